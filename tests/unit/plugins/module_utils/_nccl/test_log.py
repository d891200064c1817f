# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.log import Log, parse

HALVES = ("rocep1s0f1", "roceP2p1s0f1")
BEFORE = "spark-1:100:101 [0] NCCL INFO "
WARNS = "[2026-11-23 07:16:55] spark-1:100:101 [0] plugin/net.cc:379 NCCL WARN "
WAYS = ("IB/1", "IB/1", "IB/0/GDRDMA", "Socket/0", "Socket/1", "IB/1")


def captured(fixtures: Path, name: str) -> Log:
    return parse((fixtures / "nccl" / name).read_text())


@pytest.mark.parametrize(
    ("name", "transport", "devices", "used"),
    [
        ("log-two-halves.txt", "NET/IB", HALVES, HALVES),
        ("collectives-one-host.txt", "P2P", (), ()),
        ("collectives-shared-memory.txt", "SHM", (), ()),
        ("collectives-sockets.txt", "NET/Socket", (), ()),
        ("collectives-sockets-namespaces.txt", "NET/Socket", (), ()),
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
    assert found == Log(
        version="2.28.9",
        network="IB",
        devices=HALVES,
        via=("NET/IB",),
        used=HALVES,
        evidence=found.evidence,
    )
    halves = "NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; OOB enp1s0f1np1:192.168.100"
    assert found.evidence == (
        "spark-1:23491:23491 [0] NCCL INFO NCCL_SOCKET_IFNAME set to enp1s0f1np1",
        "spark-1:23491:23491 [0] NCCL INFO NCCL version 2.28.9+cuda13.0",
        f"spark-2:24302:24302 [0] NCCL INFO {halves}.16<0>",
        "spark-2:24302:24302 [0] NCCL INFO Using network IB",
        f"spark-1:23491:23491 [0] NCCL INFO {halves}.15<0>",
        "spark-1:23491:23491 [0] NCCL INFO Using network IB",
        "spark-2:24302:24302 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0",
        "spark-2:24302:24302 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [receive] via NET/IB/1",
    )
    assert found.over_rdma


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ("NCCL version 2.28.9+cuda13.0", {"version": "2.28.9"}),
        ("NCCL git version v2.28.9-1 1a2b3c4", {"branch": "v2.28.9-1"}),
        ("Using network IB", {"network": "IB"}),
        ("NET/Plugin: Loaded net plugin IBext_v10 (v10)", {"plugin": "IBext_v10"}),
        ("NET/Plugin: Loaded net plugin NCCL RDMA Plugin v10 (v10)", {"plugin": "NCCL RDMA Plugin v10"}),
        ("Successfully loaded external network plugin /opt/libnccl-net.so", {"plugin": "/opt/libnccl-net.so"}),
        ("Successfully loaded external plugin libnccl-net.so", {"plugin": "libnccl-net.so"}),
        ("NET/Plugin: Could not find: mesh libnccl-net-mesh.so", {"plugin_missing": "mesh"}),
        ("NET/IB : No device found.", {"no_device": True}),
        ("Connected all rings, use ring PXN 0 GDR 0", {"rings": True}),
        ("Connected all trees", {"trees": True}),
        ("Failed to initialize NET plugin IB", {}),
        ("NET/Socket : Using [0]eth0:192.0.2.2<0>", {}),
        ("NCCL_NET_PLUGIN set by environment to mesh", {}),
        ("NCCL_IB_DISABLE set by environment to 1.", {}),
        ("NCCL_SOCKET_IFNAME set by environment to =enp1s0f0np0", {}),
        ("NET/IB : Using [0]rocep1s0f1:1/RoCE [RO]; OOB [1]enp:1<0>", {"devices": ("rocep1s0f1",)}),
        ("NET/IB : Using [0]rocep1s0f1:1/RoCE [RO]", {"devices": ("rocep1s0f1",)}),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", {"via": ("P2P",)}),
        ("Channel 00/0 : 0[0] -> 1[1] via SHM/direct/direct", {"via": ("SHM",)}),
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA", {"via": ("NET/IB",)}),
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/0", {"via": ("NET/AWS Libfabric",)}),
        ("Using network NCCL RDMA Plugin v10", {"network": "NCCL RDMA Plugin v10"}),
        ("NET/Plugin: Could not find: libnccl-net.so", None),
        ("NET/Plugin: Could not find:  .", None),
        ("NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.", None),
        ("NET/Plugin: Could not find: mesh. Using internal network plugin.", {"plugin_missing": "mesh"}),
        ("NET/Plugin: Could not find: none libnccl-net-none.so.", None),  # what our own environment asks for
        ("Failed to open libibverbs.so[.1]", {}),
        ("ENV/Plugin: Could not find: mesh", None),
        ("TUNER/Plugin: Could not find: mesh", None),
        ("NET/Plugin: Loaded net plugin Socket (v10)", None),
        ("Channel 00/16 : 0 1", None),
        ("Check P2P Type isAllDirectP2p 1 directMode 0 isAllCudaP2p 1", None),
        ("plugin/net.cc:379 -> 3", None),
    ],
)
def test_what_a_line_tells(said: str, fields: dict[str, Any] | None) -> None:
    line = BEFORE + said
    assert parse(f"{line}\n") == (Log() if fields is None else Log(**fields, evidence=(line,)))


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ("Failed to initialize any NET plugin", {}),
        ("Bootstrap : no socket interface found", {"no_interface": True}),
        ("NET/IB : No device found.", {"no_device": True}),
        ("ncclTransportTreeConnect failed", {}),
    ],
)
def test_warnings_are_trouble_once_for_all_ranks(said: str, fields: dict[str, Any]) -> None:
    line = WARNS + said
    found = Log(trouble=(said,), evidence=(line,), **fields)
    assert parse(f"{line}\n{line.replace('spark-1', 'spark-2')}") == found


def test_a_call_that_failed_is_trouble_without_a_place_in_the_source_too() -> None:
    said = "Call to ibv_modify_qp failed with error Connection timed out errno 110"
    assert parse(BEFORE + said) == Log(trouble=(said,), evidence=(BEFORE + said,))


def test_what_is_kept_has_limits() -> None:
    found = parse("\n".join(f"{WARNS}{number} {'x' * 300}" for number in range(13)))
    assert [line.split()[0] for line in found.trouble] == [str(number) for number in range(12)], "the first causes it"
    assert [line[len(WARNS) :].split()[0] for line in found.evidence] == [str(number) for number in range(1, 13)]
    assert {len(line) for line in (*found.trouble, *found.evidence)} == {240}


def test_one_line_of_evidence_for_each_way_and_device() -> None:
    lines = [f"{BEFORE}Channel 0{n}/0 : 0[0] -> 1[0] [send] via NET/{net}" for n, net in enumerate(WAYS)]
    used = f"{BEFORE}NET/IB : Using [0]rocep1s0f1:1/RoCE [1]roceP2p1s0f1:1/RoCE [RO]; OOB enP7s7:192.0.2.70<0>"
    found = parse("\n".join(["noise", used, "", *lines]))
    assert found == Log(
        devices=HALVES,
        via=("NET/IB", "NET/Socket"),
        used=HALVES[::-1],
        evidence=(used, lines[0], lines[2], lines[3]),
    )


@pytest.mark.parametrize(
    ("log", "transport"),
    [
        (Log(), ""),
        (Log(network="IB"), "NET/IB"),
        (Log(network="IB", via=("P2P", "SHM")), "P2P"),
        (Log(network="IB", via=("P2P", "NET/Socket", "NET/IB")), "NET/Socket"),
    ],
)
def test_channels_tell_the_transport_before_the_network_does(log: Log, transport: str) -> None:
    assert log.transport == transport


def test_what_went_wrong(fixtures: Path) -> None:
    none = captured(fixtures, "collectives-no-device.txt")
    assert (none.no_device, none.trouble) == (True, ("Failed to initialize any NET plugin",))
    for name in ("collectives-no-interface.txt", "all_reduce-no-interface.txt"):
        found = captured(fixtures, name)
        assert (found.no_interface, found.trouble) == (True, ("Bootstrap : no socket interface found",))
    assert captured(fixtures, "collectives-plugin-missing.txt").plugin_missing == "mesh"


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


@pytest.mark.parametrize(
    ("network", "rdma"),
    [("IB", True), ("IBext_v10", True), ("NCCL RDMA Plugin v10", True), ("Socket", False), ("AWS Libfabric", False)],
)
def test_networks_that_are_rdma(network: str, rdma: bool) -> None:
    channel = parse(
        f"{BEFORE}NET/IB : Using [0]rocep1s0f0:1/RoCE [RO]; OOB [1]enp:1<0>\n"
        f"{BEFORE}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/{network}/0"
    )
    assert channel.over_rdma is rdma and channel.used == ("rocep1s0f0",) * rdma
    assert parse(f"{BEFORE}Using network {network}").over_rdma is rdma
