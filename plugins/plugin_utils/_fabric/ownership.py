# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whose address is it? What a node claims goes into the names, keys and rules of all others."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact

Claims = Mapping[str, str]  # address: what the node has it for
MANAGEMENT = "its management address"
_REACHED = "Set fabric_management_address for this host to the address at which the other nodes reach it"


def of_fact(fact: FabricFact) -> dict[str, str]:
    cluster = {fact.cluster_address: "its cluster address", fact.management_address: MANAGEMENT}
    return {**cluster, **{rail.address: f"that of {rail.netdev}" for rail in fact.rails}}


def conflicts(claims: Mapping[str, Claims], given: Mapping[str, frozenset[str]] | None = None) -> list[Finding]:
    """An address that two nodes claim, or one at which no other node can reach anybody.

    ``given``: addresses that the inventory has for a host. Those are its own, whoever else claims them.
    """
    findings: list[Finding] = []
    if len(claims) < 2:
        return findings
    owners: dict[str, tuple[str, str]] = {}
    for host, addresses in (given or {}).items():
        for address in addresses:
            owners.setdefault(address, (host, "the inventory"))
    for host, own in claims.items():
        mine = (given or {}).get(host, frozenset())
        for address, what in own.items():
            if _is_nowhere(address):
                findings.append(
                    Finding(host, f"it says that {address} is {what}, and no other node can reach it there", _REACHED)
                )
                continue
            owner, word = owners.get(address, (host, ""))
            if owner != host and not (word == "the inventory" and address in mine):
                findings.append(
                    Finding(
                        host,
                        f"it says that {address} is {what}, and {word} says that this address belongs to {owner}",
                        "An address is one machine's: correct it where it is wrong. If this machine should not have "
                        "it, find out what runs there",
                    )
                )
            else:
                owners[address] = (host, host)
    return findings


def _is_nowhere(address: str) -> bool:
    found = ipaddress.ip_address(address)
    local = found.version == 6 and found.is_link_local
    reserved = found.version == 4 and found.is_reserved
    return found.is_loopback or found.is_unspecified or found.is_multicast or local or reserved
