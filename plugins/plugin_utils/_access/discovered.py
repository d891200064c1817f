# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which machines are behind the addresses that answer ssh, and at which of its addresses each is managed.

Everything that a machine says of itself, that it is a GB10 too, is its own word until its host key was compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.discover import THIS, Candidate, together
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Network
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import management


def machines(
    candidates: Sequence[Candidate], read: Mapping[str, Node], *, require_gb10: bool = True
) -> list[dict[str, Any]]:
    """``read``: by address, where somebody was let in. ``taken``: it goes into the inventory."""
    at = {candidate.address: candidate for candidate in candidates}
    shown = {address: candidate.fingerprint or THIS * candidate.own for address, candidate in at.items()}
    ids = {address: node.machine_id or "" for address, node in read.items()}
    made = [_machine([at[address] for address in places], read, require_gb10) for places in together(shown, ids)]
    order = list(at)
    return sorted(made, key=lambda item: order.index(item["address"]))


def _machine(at: Sequence[Candidate], read: Mapping[str, Node], require_gb10: bool) -> dict[str, Any]:
    node = next((read[candidate.address] for candidate in at if candidate.address in read), None)
    known = node or Node()
    managed = _of_management(known.network)
    best = next((candidate for candidate in at if candidate.address in managed), at[0])
    is_gb10 = known.machine.is_gb10
    why = "not a GB10" if node else "no login with a key, so not looked at"
    own = any(candidate.own for candidate in at)
    return {
        **{name: getattr(best, name) for name in ("address", "interface", "fingerprint", "kind")},
        "name": next((candidate.name for candidate in (best, *at) if candidate.name), ""),
        "others": [candidate.address for candidate in at if candidate is not best],
        "own": own,
        "is_gb10": is_gb10,
        "taken": is_gb10 or bool(node and not require_gb10),
        "kept": document.plain(known.network.kept) or {},
        "why": "" if is_gb10 else why if best.fingerprint or own else "it shows no host key",
    }


def _of_management(network: Network) -> set[str]:
    """Every address of the interface, of which some may be IPv6."""
    carrier = management.choose("", network).interface
    return {entry.address for item in network.interfaces or () if item.name == carrier for entry in item.addresses}
