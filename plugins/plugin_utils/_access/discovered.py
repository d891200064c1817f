# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which machines are behind the addresses that answer ssh, and at which of its addresses each is managed.

Everything that a machine says of itself, that it is a GB10 too, is its own word until its host key was compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import management

Candidate = Mapping[str, Any]


def machines(candidates: Sequence[Candidate], read: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``candidates``: of ``lan_discover``; ``read``: address -> the ``node`` of ``node_info``, where that was let in.

    A machine shows the same host key at each of its addresses. Copies of one disk may share it, and differ by machine
    id then; an address that let nobody in goes to the first that shows its key.
    """
    found: dict[tuple[str, str], list[Candidate]] = {}
    for one in sorted(candidates, key=lambda one: one["address"] not in read):  # those that are known best first
        key = str(one["fingerprint"] or one["address"])
        own = str((read.get(one["address"]) or {}).get("machine_id") or "")
        same = next((known for known in found if known[0] == key and own in ("", known[1])), (key, own))
        found.setdefault(same, []).append(one)
    made = [_machine(at, read) for at in found.values()]
    order = [one["address"] for one in candidates]
    return sorted(made, key=lambda item: order.index(item["address"]))


def _machine(at: Sequence[Candidate], read: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    node = next((read[one["address"]] for one in at if one["address"] in read), None)
    managed = _of_management((node or {}).get("network") or {})
    best = next((one for one in at if one["address"] in managed), at[0])
    is_gb10 = bool(((node or {}).get("machine") or {}).get("is_gb10"))
    why = "not a GB10" if node else "no login with a key, so not looked at"
    return {
        **{name: best[name] for name in ("address", "name", "interface", "fingerprint", "kind")},
        "others": [one["address"] for one in at if one is not best],
        "is_gb10": is_gb10,
        "why": "" if is_gb10 else why if best["fingerprint"] else "it shows no host key",
    }


def _of_management(network: Mapping[str, Any]) -> set[str]:
    """Every address of the interface, of which some may be IPv6."""
    carrier = management.choose("", network).interface
    own = (item for item in network.get("interfaces") or () if item["name"] == carrier)
    return {str(entry["address"]) for item in own for entry in item.get("addresses") or ()}
