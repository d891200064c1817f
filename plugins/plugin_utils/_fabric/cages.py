# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The cages and halves of one node: which are cabled, and is each half that is to carry a rail fit for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import Cage
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import RdmaPort as Half
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import management
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import (
    RAILS,
    Found,
    NodeInput,
)


def numbers(node: NodeInput) -> list[int]:
    return [cage.cage for cage in node.cages]


def by_number(node: NodeInput, number: int) -> Cage | None:
    return next((cage for cage in node.cages if cage.cage == number), None)


def halves(cage: Cage) -> list[Half]:
    """By PCIe path, so that the same half has the same place on every node."""
    return sorted(cage.halves, key=_pcie_order)


def _pcie_order(half: Half) -> tuple[int, str]:
    try:
        return (int(half.pcie_path or "", 16), half.rdma_device)
    except ValueError:
        return (1 << 32, half.rdma_device)


def _has_link(node: NodeInput, half: Half) -> bool:
    """Seen by the discovery, or by the neighbour probe, which brings interfaces up that were switched off."""
    seen = node.neighbors.interfaces.get(half.netdev or "")
    return bool(half.carrier or (seen and seen.carrier))


def may_use(node: NodeInput, number: int) -> bool:
    """What ``fabric_cages`` allows."""
    return node.use_cages == "auto" if isinstance(node.use_cages, str) else number in node.use_cages


def is_cabled(node: NodeInput, cage: Cage) -> bool:
    return cage.cabled or any(_has_link(node, half) for half in cage.halves)


def cabled(node: NodeInput) -> list[int]:
    return sorted(cage.cage for cage in node.cages if is_cabled(node, cage))


def gbps(cage: Cage) -> float:
    """Of the cable, 0 when unknown. Both halves are one cable; one of them may be down and not know its speed."""
    return max((half_gbps(half) for half in cage.halves), default=0.0)


def half_gbps(half: Half) -> float:
    """0 when unknown: -1 is no speed, and what a port without a link says is that of another day."""
    if half.carrier is False and half.rdma_state != "ACTIVE":
        return 0.0
    return next((float(speed) for speed in (half.speed_gbps, half.rate_gbps) if speed and speed > 0), 0.0)


def is_switched_off(half: Half) -> bool:
    """Administratively down. No fault: applying the plan brings it up."""
    return half.admin_up is False


def choose(node: NodeInput, found: Found) -> list[int]:
    """The cages that may be used, all of them cabled; nothing when there is none, with the reason as a finding."""
    if not node.cages:
        found(
            "",
            f"no QSFP cage was found. {node.absence}".strip().rstrip("."),
            "Then run again"
            if node.absence
            else "This needs RDMA devices that tell their cage (phys_port_name), as the ConnectX-7 of a Spark does",
        )
        return []
    wanted, plugged = node.use_cages, cabled(node)
    if isinstance(wanted, str):
        if wanted != "auto":
            found("", f"fabric_cages is {wanted!r}", "Use auto, [0], [1] or [0, 1], with the brackets")
            return []
        if not plugged:
            _explain_dark(node.cages, found)
        return plugged
    if not wanted or not set(wanted) <= set(numbers(node)):
        found("", f"fabric_cages is {list(wanted)}, and this node has {numbers(node)}", "Name one of these")
        return []
    chosen = []
    for number in sorted(set(wanted)):
        if number in plugged:
            chosen.append(number)
            continue
        others = [other for other in plugged if other not in wanted]
        if others:
            found(
                f"cage {number}",
                f"no link here, while cage {others[0]} has one",
                f"Move the cable to cage {number}, or set fabric_cages: [{others[0]}] or auto",
            )
        else:
            _explain_dark([cage for cage in node.cages if cage.cage == number], found)
    return chosen


def _explain_dark(cages: Iterable[Cage], found: Found) -> None:
    dark = [cage for cage in cages if cage.admin_down]
    if dark:
        netdevs = [str(half.netdev) for cage in dark for half in cage.halves]
        found(
            ", ".join(netdevs),
            "these interfaces are administratively down, so a cable in their cage cannot be seen",
            f"Bring one up and run again: ip link set {netdevs[0]} up",
        )
        return
    names = " and ".join(f"cage {cage.cage}" for cage in cages)
    found(
        names,
        "no link: no cable, or the other end is dark",
        "Plug the QSFP cable at both ends (it locks with a click), and check that the switch port or the other node is "
        "on and set to 200G",
    )


def usable_halves(
    node: NodeInput,
    cage: Cage,
    places: Sequence[int],
    *,
    transport: str,
    far_is_off: bool,
    found: Found,
) -> dict[int, Half]:
    """The halves at ``places`` (0, 1: by PCIe path) of a cage, or nothing when they cannot carry a rail each.

    ``far_is_off``: a half at the other end of the cable is administratively down, which takes the link of ours with it.
    """
    ordered = halves(cage)
    label = f"cage {cage.cage}"
    if len(ordered) != RAILS:
        found(
            label,
            f"{len(ordered)} of its {RAILS} halves were found ({', '.join(half.rdma_device for half in ordered)})",
            "Power the node off, wait a minute and start it with the cable attached",
        )
        return {}
    netdevs = [half.netdev for half in ordered]
    if netdevs[0] and netdevs[0] == netdevs[1]:
        found(
            str(netdevs[0]),
            f"both halves of {label} belong to this interface, a bond or bridge",
            "Dissolve it: each half needs an address of its own, and a bond carries no more RDMA than one half",
        )
        return {}
    usable = {
        place: ordered[place]
        for place in places
        if _check_half(node, ordered[place], label, transport=transport, far_is_off=far_is_off, found=found)
    }
    return usable if len(usable) == len(places) else {}


def _check_half(node: NodeInput, half: Half, label: str, *, transport: str, far_is_off: bool, found: Found) -> bool:
    device, netdev = half.rdma_device, half.netdev
    path = f"the half of {label} on PCIe path {half.pcie_path}"
    if not netdev:
        found(device, f"{path} has no network interface", "Check dmesg for mlx5_core, and power-cycle the node")
        return False
    where = f"{device} ({netdev})"
    if netdev == node.management_interface:
        found(
            where,
            f"{path} has the management address {node.management_address}",
            f"Set {management.VARIABLE} for this host to an address on its other network (10GbE or Wi-Fi)",
        )
        return False
    if half.link_layer == "InfiniBand":
        found(where, "the port is in InfiniBand mode", "Set LINK_TYPE to ETH with mlxconfig and reboot")
        return False
    if not is_switched_off(half):
        if not _has_link(node, half):
            if far_is_off:
                return True
            found(
                where,
                f"{path} has no link, while its twin has one",
                "Switch off the nodes at both ends, reseat the cable there, and start them with the cable attached",
            )
            return False
        if transport != "socket" and half.rdma_state not in (None, "ACTIVE"):
            found(
                where,
                f"the interface has a link, and its RDMA port is {half.rdma_state}",
                f"Run: ip link set {netdev} down; ip link set {netdev} up. If that does not help, reboot; or choose "
                "fabric_transport: socket, which is several times slower",
            )
            return False
    return True
