# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.discovery import discovery

ADDRESSES = {"a": "10.0.0.1", "b": "", "c": "10.0.0.3"}


@pytest.mark.parametrize(
    ("topology", "timeout_s", "found", "speakers"),
    [
        ("auto", 10, ["a", "b"], ["a", "b"]),
        ("auto", 10, ["a"], []),
        ("single", 10, ["a", "b"], []),
        ("switch", 0, ["a", "b"], []),
    ],
)
def test_who_speaks(topology: str, timeout_s: float, found: list[str], speakers: list[str]) -> None:
    made = discovery(topology, 5, timeout_s, found=found, addresses=ADDRESSES)
    assert made == {"speakers": speakers, "cluster": "a b c 10.0.0.1 10.0.0.3", "background_s": 0}


def test_more_machines_than_forks_speak_in_the_background() -> None:
    for forks, seconds in ((2, 80), (3, 0)):
        made = discovery("auto", forks, 10, found=[*ADDRESSES], addresses=ADDRESSES)
        assert made["background_s"] == seconds
