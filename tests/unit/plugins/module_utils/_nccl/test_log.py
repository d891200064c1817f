# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.log import Log, parse
from hypothesis import given
from hypothesis import strategies as st

HALVES = ("rocep1s0f1", "roceP2p1s0f1")


def captured(fixtures: Path, name: str) -> Log:
    return parse((fixtures / "nccl" / name).read_text())


@pytest.mark.parametrize(
    ("name", "transport", "devices", "used"),
    [
        ("log-two-halves.txt", "NET/IB", HALVES, HALVES),
        ("log-two-halves-excerpt.txt", "NET/IB", ("rocep1s0f0", "roceP2p1s0f0"), ("rocep1s0f0", "roceP2p1s0f0")),
        ("collectives-one-host.txt", "P2P", (), ()),
        ("collectives-sockets.txt", "NET/Socket", (), ()),
        ("collectives-plugin-missing.txt", "NET/Socket", (), ()),
        ("all_reduce-sockets.txt", "NET/Socket", (), ()),
        ("collectives-no-device.txt", "", (), ()),
        ("all_gather-pair-16g.txt", "", (), ()),
    ],
)
def test_captures(fixtures: Path, name, transport, devices, used) -> None:
    found = captured(fixtures, name)
    assert (found.transport, found.devices, found.used) == (transport, devices, used)
    assert not found.development


def test_a_healthy_log_has_no_trouble(fixtures: Path) -> None:
    found = captured(fixtures, "log-two-halves.txt")
    assert (found.version, found.over_rdma, found.trouble, found.plugin, found.plugin_missing) == (
        *("2.28.9", True, ()),
        *("", ""),
    )
    assert not found.gpu_direct, "GB10 cannot, and NCCL says so"
    assert any("Using [0]rocep1s0f1" in line for line in found.evidence)


def test_what_went_wrong(fixtures: Path) -> None:
    none = captured(fixtures, "collectives-no-device.txt")
    assert (none.no_device, none.trouble) == (True, ("Failed to initialize any NET plugin",))
    for name in ("collectives-no-interface.txt", "all_reduce-no-interface.txt"):
        found = captured(fixtures, name)
        assert (found.no_interface, found.trouble) == (True, ("Bootstrap : no socket interface found",))
    assert captured(fixtures, "collectives-plugin-missing.txt").plugin_missing == "mesh"


@pytest.mark.parametrize(
    ("line", "plugin", "transport"),
    [
        ("a:1:2 [0] NCCL INFO NET/Plugin: Loaded net plugin IBext_v10 (v10)", "IBext_v10", ""),
        ("a:1:2 [0] NCCL INFO Successfully loaded external network plugin libnccl-net.so", "libnccl-net.so", ""),
        ("a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IBext_v10/1/GDRDMA", "", "NET/IBext_v10"),
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0", "", "NET/Socket"),
    ],
)
def test_plugins(line: str, plugin: str, transport: str) -> None:
    found = parse(line)
    assert (found.plugin, found.transport) == (plugin, transport)
    assert found.over_rdma == transport.startswith("NET/IB")


@pytest.mark.parametrize(
    ("lines", "development"),
    [
        ("NCCL version 2.30.7+cuda13.0", False),
        ("NCCL version 2.31.0a1+cuda13.0", True),
        (
            "x:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\nx:1:1 [0] NCCL INFO NCCL git version dev/2.29 1a2b3c4",
            True,
        ),
        ("x:1:1 [0] NCCL INFO NCCL git version master 1a2b3c4", True),
        ("x:1:1 [0] NCCL INFO NCCL git version v2.30.7-1 1a2b3c4", False),
        ("x:1:1 [0] NCCL INFO NCCL git version HEAD 1a2b3c4", False),
    ],
)
def test_development_builds(lines: str, development: bool) -> None:
    assert parse(lines).development is development


@given(st.text(max_size=200), st.sampled_from(("NCCL INFO ", "NCCL INFO Channel 00/0 : ", "a.cc:1 NCCL WARN ")))
def test_any_text_is_read(text: str, prefix: str) -> None:
    found = parse(f"h:1:2 [0] {prefix}{text}\nh:1:2 [0] {text}")
    assert len(found.evidence) <= 12
    assert all(len(line) <= 240 for line in (*found.evidence, *found.trouble))
