# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import how_far


@pytest.mark.parametrize(
    ("done", "total", "rate", "said"),
    [
        (34.2e9, 128.8e9, 118e6, "34.2 of 129 GB, 118 MB/s, 13 min left"),
        (1e9, 62.3e9, 2.1e9, "1.0 of 62.3 GB, 2.1 GB/s, 29 s left"),
        (0, 400e9, 11e6, "0.0 of 400 GB, 11 MB/s, 10 h 6 min left"),
        (4e6, 20e6, 1.5e6, "4.0 of 20.0 MB, 1.5 MB/s, 11 s left"),
        (4e6, 20e6, 0, "4.0 of 20.0 MB"),
        (5e9, 4e9, 1e9, "4.0 of 4.0 GB"),
        (0, 0, 0, "0.0 of 0.0 MB"),
    ],
)
def test_bytes_rate_and_time_left(done, total, rate, said):
    assert how_far.words(done, total, rate) == said
