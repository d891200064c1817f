# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import canonical, is_address


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("FE80::0:1%eth0", "fe80::1"),
        ("10.0.0.1%eth0", ""),
        ("010.0.0.1", ""),
        ("spark1", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_one_spelling(text: object, found: str) -> None:
    assert canonical(text) == found
    assert is_address(str(text)) is bool(found)
