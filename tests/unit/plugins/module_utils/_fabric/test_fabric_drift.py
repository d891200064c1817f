# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""What has changed under an applied fabric: each difference once, with host, device and remedy."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fabric_drift
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import status as fabric_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import Effective
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter
from fabric_change import NICS, A, B, apply, machine, planned, verify, wanted
from fake_node import FakeNode
from sysfs_tree import SysfsTree, gid_of

FACT: FabricFact = replace(planned()[0], state="applied")
FACT = replace(FACT, rails=tuple(replace(rail, gid_index=3) for rail in FACT.rails))
OURS, TWIN = (f"{rail.address}/{rail.prefix}" for rail in FACT.rails)
NOW = {A: Effective(True, True, True, 9000, (OURS,)), B: Effective(True, True, True, 9000, (TWIN,))}


def entry(number: int, index: int = 3, address: str = "", version: int = 2) -> Gid:
    rail = FACT.rails[number]
    return Gid(rail.rdma_device, 1, index, gid_of(address or rail.address), version, rail.netdev)


GIDS = [entry(0), entry(1)]
EXPORTED = replace(FACT, environment={**FACT.environment, "NCCL_IB_GID_INDEX": "3"})
RANGED = replace(FACT, environment={**FACT.environment, "NCCL_IB_ADDR_RANGE": "192.168.100.0/22"})


def changed(netdev: str = A, **changes: Any) -> dict[str, Effective]:
    return {**NOW, netdev: replace(NOW[netdev], **changes)}


@pytest.mark.parametrize(
    ("fact", "now", "gids", "expected"),
    [
        (FACT, NOW, GIDS, []),
        (FACT, NOW, None, []),
        (replace(FACT, state="applying"), {}, [], []),
        (FACT, {B: NOW[B]}, GIDS, ["one_half_only rocep1s0f0"]),
        (FACT, changed(up=False), GIDS, ["one_half_only rocep1s0f0"]),
        (FACT, changed(carrier=False), GIDS, []),
        (FACT, changed(mtu=1500), GIDS, ["wrong_mtu rocep1s0f0"]),
        (
            FACT,
            changed(B, addresses=(), carrier=False),
            [entry(0)],
            ["one_half_only roceP2p1s0f0"],
        ),
        (
            RANGED,
            changed(addresses=("10.7.7.5/24", OURS)),
            [*GIDS, entry(0, 5, "10.7.7.5")],
            ["foreign_address rocep1s0f0"],
        ),
        # NCCL cannot choose between the two GIDs any more, and the address is why.
        (
            FACT,
            changed(addresses=("10.7.7.5/24", OURS)),
            [*GIDS, entry(0, 5, "10.7.7.5")],
            ["foreign_address rocep1s0f0"],
        ),
        (
            FACT,
            changed(addresses=(OURS.replace("/24", "/16"),)),
            [entry(1)],
            ["one_half_only rocep1s0f0", "foreign_address rocep1s0f0"],
        ),
        (FACT, NOW, [entry(0)], ["gid_missing roceP2p1s0f0"]),
        (replace(FACT, transport="socket"), NOW, [], []),
        (FACT, NOW, [entry(0, 5), entry(1)], ["gid_mismatch rocep1s0f0"]),
        (
            EXPORTED,
            NOW,
            [entry(0, 5), entry(1)],
            ["gid_mismatch rocep1s0f0"],
        ),
        (
            FACT,
            NOW,
            [entry(0, 2, "10.9.9.9"), *GIDS],
            ["gid_mismatch rocep1s0f0"],
        ),
    ],
)
def test_each_difference_once(
    fact: FabricFact, now: dict[str, Effective], gids: Sequence[Gid] | None, expected: list[str]
) -> None:
    found = fabric_drift.drift(fact, now, gids)
    assert [f"{item.kind} {item.rail.rdma_device}" for item in found] == expected
    assert {item.host for item in found} <= {"spark1"}


def test_fabric_status_marks_what_has_drifted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node = FakeNode(tmp_path / "root", NICS)
    tree = SysfsTree(tmp_path / "sys").spark(cabled={0})
    tree.gid("rocep1s0f0", 3, "192.168.100.10", "v2")
    tree.gid("roceP2p1s0f0", 3, "192.168.101.10", "v2")
    want = wanted()
    apply(node, want, sysfs=tree.root)
    verify(node, want)
    monkeypatch.setattr(fabric_status, "Machine", lambda: machine(node, tree.root))
    monkeypatch.setattr(fabric_status.os, "geteuid", lambda: 0)

    def shown() -> tuple[int, list[str]]:
        code = fabric_status.run(argparse.Namespace())
        return code, capsys.readouterr().out.splitlines()[1:-1]

    good = [f"{A}: up, MTU 9000, 192.168.100.10/24", f"{B}: up, MTU 9000, 192.168.101.10/24"]
    assert shown() == (0, good)
    # The node keeps a table that its kernel has not.
    node.write(port_filter.path("services"), "# sparkmatrix 12ab\n")
    node.fail["nft list table"] = "No such file or directory"
    code, (*_halves, why) = shown()
    assert code == 1 and why.startswith("table inet sparkmatrix_services: Ray and the ranks may be open to the network")
    node.path(port_filter.path("services")).unlink()
    node.nics[B].mtu = 1500
    code, (first, second, why) = shown()
    assert (code, first) == (1, good[0])
    assert second == f"{B}: up, MTU 1500, 192.168.101.10/24   <- drifted"
    assert why.startswith(f"  spark1 roceP2p1s0f0 ({B}): the MTU is 1500, and 9000 were verified")
    assert why.endswith("Run the fabric layer again: ansible-playbook site.yml --tags fabric.")
