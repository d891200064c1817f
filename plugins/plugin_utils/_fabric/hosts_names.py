# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Names of the fabric addresses for ``/etc/hosts``.

``<host>-fabric`` is where a node is best reached over the fabric, ``<host>-fabric0``, ``-fabric1`` … are its addresses
one by one. The plain name stays with management, so that a node whose cable is pulled can still be reached by it, and
``<host>.local`` is bound to it: mDNS announces every interface and would answer with an address of the fabric. In a
ring each neighbour reaches a node at another address, so the same name means different addresses on different nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import is_address
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.addresses import network_of

_MDNS_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.local")


def hosts_lines(facts: Mapping[str, FabricFact]) -> tuple[list[str], dict[str, list[str]]]:
    """Lines that are the same on every node, and those that are not, by host.

    On one switch and on a direct cable all nodes share all subnets and get the same lines, of which there is one list.
    """
    ordered = sorted((fact for fact in facts.values() if fact.rails), key=lambda fact: fact.rank)
    names = labels([fact.host for fact in ordered])
    subnets = {frozenset(map(network_of, fact.rails)) for fact in ordered}
    if len(subnets) <= 1:
        return [line for fact in ordered for line in seen_from(ordered[0], fact, names[fact.host])], {}
    return [], {
        here.host: [line for fact in ordered for line in seen_from(here, fact, names[fact.host])] for here in ordered
    }


def local_lines(facts: Mapping[str, FabricFact], logins: Mapping[str, str]) -> list[str]:
    """The names of mDNS: those by which the nodes know each other, and those by which Ansible logs in (``logins``)."""
    ordered = sorted((fact for fact in facts.values() if fact.rails), key=lambda fact: fact.rank)
    names = labels([fact.host for fact in ordered])
    lines = []
    for fact in ordered:
        login = logins.get(fact.host, "").lower().rstrip(".")
        used = [f"{names[fact.host]}.local", *([login] if _MDNS_NAME.fullmatch(login) else [])]
        lines.append(" ".join([fact.management_address, *dict.fromkeys(used)]))
    return lines


def seen_from(here: FabricFact, there: FabricFact, name: str) -> list[str]:
    """One line per address at which ``here`` reaches ``there``; none when the fabric does not lead there."""
    mine = set(map(network_of, here.rails))
    rails = sorted(there.rails, key=lambda rail: rail.index)
    reached = [rail.address for rail in rails if network_of(rail) in mine]
    main = there.cluster_address if there.cluster_address in reached else next(iter(reached), "")
    return [
        f"{address} {name}-fabric {name}-fabric{number}" if address == main else f"{address} {name}-fabric{number}"
        for number, address in enumerate(reached)
    ]


def labels(hosts: list[str]) -> dict[str, str]:
    """What a host name may consist of, short where that is unique."""
    short = [_label(host if is_address(host) else host.partition(".")[0]) for host in hosts]
    chosen = short if len(set(short)) == len(short) else [_label(host) for host in hosts]
    return dict(zip(hosts, chosen))


def _label(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]+", "-", name).strip("-") or "node"
