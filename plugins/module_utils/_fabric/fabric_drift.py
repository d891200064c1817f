# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What has changed under an applied fabric since it was verified: MTU, addresses and GIDs against the node's own fact.

Pure: ``fabric-status`` asks on the node, preflight (and with it ``verify.yml``) with what ``node_info`` has read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import show_gids
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import REMEDY, FabricFact, Rail
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import Effective
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid

# Kinds, by the names of the rules about them.
HALF, MTU, FOREIGN = "one_half_only", "wrong_mtu", "foreign_address"
NO_GID, GID = "gid_missing", "gid_mismatch"
KINDS = (HALF, MTU, FOREIGN, NO_GID, GID)


@dataclass(frozen=True)
class Drift:
    """``remedy``: of this device; empty where the rule's own is all. ``off``: the half is switched off or gone.
    ``harmless``: nothing of ours uses the number of a GID that has moved, NCCL looks for the address."""

    kind: str
    host: str
    rail: Rail
    found: str
    remedy: str = ""
    off: bool = False
    harmless: bool = False

    @property
    def device(self) -> str:
        return f"{self.rail.rdma_device} ({self.rail.netdev})"

    def __str__(self) -> str:
        return str(Finding(self.host, self.found, self.remedy or REMEDY, self.device))


def drift(fact: FabricFact, now: Mapping[str, Effective], gids: Sequence[Gid] | None = None) -> list[Drift]:
    """Every difference; ``now`` by interface. None for ``gids``: they were not read. Nothing where the fact is not
    applied: a run is at work there, or has to come again, and the fact's state says so."""
    if fact.state != "applied":
        return []
    found: list[Drift] = []
    for rail in fact.rails:
        state = now.get(rail.netdev, Effective())
        of_interface = list(_interface(fact, rail, state))
        found += of_interface
        # Without its address a half has no GID either, and a foreign address brings one more: that is one fault.
        if gids is not None and fact.transport == "rdma" and _planned(rail) in state.addresses:
            found += _gid(fact, rail, gids, any(one.kind == FOREIGN for one in of_interface))
    return found


def _planned(rail: Rail) -> str:
    return f"{rail.address}/{rail.prefix}"


def _interface(fact: FabricFact, rail: Rail, now: Effective) -> Iterator[Drift]:
    if not now.exists:
        yield Drift(HALF, fact.host, rail, "the interface is gone", "Check the cable and dmesg, then reboot", off=True)
        return
    if not now.up:
        yield Drift(HALF, fact.host, rail, "the interface is switched off", f"ip link set {rail.netdev} up", off=True)
    if now.mtu not in (0, rail.mtu):  # 0: not told
        yield Drift(
            MTU,
            fact.host,
            rail,
            f"the MTU is {now.mtu}, and {rail.mtu} were verified: larger packets of the others are lost here",
        )
    if _planned(rail) not in now.addresses:
        half = f"the half on PCIe path {rail.pcie_path} of cage {rail.cage}"
        cable = "" if now.carrier else ", and the link is down"
        remedy = REMEDY if now.carrier else f"Check the cable. {REMEDY}"
        yield Drift(HALF, fact.host, rail, f"{half} has lost its address {_planned(rail)}{cable}", remedy)
    for address in now.addresses:
        if address != _planned(rail):
            yield Drift(
                FOREIGN,
                fact.host,
                rail,
                f"the interface has the address {address} beside {_planned(rail)}, which this collection did not place",
                f"ip addr del {address} dev {rail.netdev}; if it is needed, move it to another interface",
            )


def _gid(fact: FabricFact, rail: Rail, gids: Sequence[Gid], foreign: bool) -> Iterator[Drift]:
    if (rail.rdma_device, rail.address, 2) not in [(gid.device, gid.ipv4, gid.version) for gid in gids]:
        yield Drift(
            NO_GID,
            fact.host,
            rail,
            f"the RDMA device has no RoCE v2 GID for {rail.address}",
            f"Cycle the link: ip link set {rail.netdev} down; ip link set {rail.netdev} up. If it stays away, reboot",
        )
        return
    try:
        gid = show_gids.of_rail(gids, rail, fact.address_range)
    except SparkError as exc:
        if not foreign:
            found = f"NCCL no longer finds the GID of {rail.address}: {exc.found}"
            yield Drift(GID, fact.host, rail, found, f"Give {rail.netdev} no other IPv4 address. {REMEDY}")
        return
    if rail.gid_index is not None and gid.index != rail.gid_index:
        fixed = fact.environment.get("NCCL_IB_GID_INDEX")
        used = f", and NCCL_IB_GID_INDEX={fixed} is exported" if fixed else ""
        yield Drift(
            GID,
            fact.host,
            rail,
            f"the GID of {rail.address} moved from index {rail.gid_index} to {gid.index}{used}",
            harmless=not fixed,
        )
