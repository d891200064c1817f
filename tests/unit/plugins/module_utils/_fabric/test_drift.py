# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""What has changed under an applied fabric: each difference once, with host, device and remedy."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import drift
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import status as fabric_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import Effective
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid
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
        (FACT, {B: NOW[B]}, GIDS, ["gone: spark1 rocep1s0f0 (enp1s0f0np0): the interface is gone. Check the cable"]),
        (FACT, changed(up=False), GIDS, ["down: spark1 rocep1s0f0 (enp1s0f0np0): the interface is switched off"]),
        (FACT, changed(carrier=False), GIDS, []),
        (FACT, changed(mtu=1500), GIDS, ["mtu: spark1 rocep1s0f0 (enp1s0f0np0): the MTU is 1500, and 9000 were"]),
        (
            FACT,
            changed(B, addresses=(), carrier=False),
            [entry(0)],
            [
                "address: spark1 roceP2p1s0f0 (enP2p1s0f0np0): the half on PCIe path 0002 of cage 0 has lost its "
                "address 192.168.101.10/24, and the link is down. Check the cable. Run the fabric layer again"
            ],
        ),
        (
            RANGED,
            changed(addresses=("10.7.7.5/24", OURS)),
            [*GIDS, entry(0, 5, "10.7.7.5")],
            [
                "foreign: spark1 rocep1s0f0 (enp1s0f0np0): the interface has the address 10.7.7.5/24 beside "
                "192.168.100.10/24, which this collection did not place. ip addr del 10.7.7.5/24 dev enp1s0f0np0"
            ],
        ),
        # NCCL cannot choose between the two GIDs any more, and the address is why.
        (
            FACT,
            changed(addresses=("10.7.7.5/24", OURS)),
            [*GIDS, entry(0, 5, "10.7.7.5")],
            ["foreign: spark1 rocep1s0f0 (enp1s0f0np0): the interface has the address 10.7.7.5/24 beside "],
        ),
        (
            FACT,
            changed(addresses=(OURS.replace("/24", "/16"),)),
            [entry(1)],
            ["address: spark1 rocep1s0f0 ", "foreign: spark1 rocep1s0f0 (enp1s0f0np0): the interface has the address"],
        ),
        (FACT, NOW, [entry(0)], ["no_gid: spark1 roceP2p1s0f0 (enP2p1s0f0np0): the RDMA device has no RoCE v2 GID"]),
        (replace(FACT, transport="socket"), NOW, [], []),
        (FACT, NOW, [entry(0, 5), entry(1)], ["index: spark1 rocep1s0f0 (enp1s0f0np0): the GID of 192.168.100."]),
        (
            EXPORTED,
            NOW,
            [entry(0, 5), entry(1)],
            ["gid: spark1 rocep1s0f0 (enp1s0f0np0): the GID of 192.168.100.10 moved from index 3 to 5, and NCCL_IB"],
        ),
        (
            FACT,
            NOW,
            [entry(0, 2, "10.9.9.9"), *GIDS],
            ["gid: spark1 rocep1s0f0 (enp1s0f0np0): NCCL no longer finds the GID of 192.168.100.10: "],
        ),
    ],
)
def test_each_difference_once(
    fact: FabricFact, now: dict[str, Effective], gids: Sequence[Gid] | None, expected: list[str]
) -> None:
    found = [f"{item.kind}: {item}" for item in drift.drift(fact, now, gids)]
    assert [text[: len(start)] for text, start in zip(found, expected)] == expected, found
    assert len(found) == len(expected)


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
