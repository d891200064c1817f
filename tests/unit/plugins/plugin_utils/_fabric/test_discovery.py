# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.discovery import discovery

ADDRESSES = {"a": "10.0.0.1", "b": "", "c": "10.0.0.3"}
DEVICES: dict[str, Any] = {"devices": [{"name": "rocep1s0f0"}]}


@pytest.mark.parametrize(
    ("topology", "probe", "found", "speakers"),
    [
        ("auto", "auto", {"a": DEVICES, "b": DEVICES, "c": {"devices": []}}, ["a", "b"]),
        ("auto", "auto", {"a": DEVICES, "b": {"skipped": True}, "c": {"devices": None}}, []),
        ("single", "auto", {"a": DEVICES, "b": DEVICES}, []),
        ("switch", "never", {"a": DEVICES, "b": DEVICES}, []),
        ("auto", "auto", {"a": {"skipped": True}}, []),  # one machine is not asked for its devices
    ],
)
def test_who_speaks(topology: str, probe: str, found: dict[str, Any], speakers: list[str]) -> None:
    made = discovery(topology, probe, 5, 10, found=found, addresses=ADDRESSES)
    assert made == {"speakers": speakers, "cluster": "a b c 10.0.0.1 10.0.0.3", "background_s": 0}


def test_more_machines_than_forks_speak_in_the_background() -> None:
    found = dict.fromkeys(ADDRESSES, DEVICES)
    assert discovery("auto", "auto", 2, 10, found=found, addresses=ADDRESSES)["background_s"] == 80
    assert discovery("auto", "auto", 3, 10, found=found, addresses=ADDRESSES)["background_s"] == 0
