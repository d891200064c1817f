# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node lets in on its fabric interfaces: the other nodes by address, and nobody else."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import ufw
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact


def rules(facts: Mapping[str, FabricFact]) -> dict[str, list[str]]:
    """The rules of every host, as ufw takes them."""
    return {
        host: list(
            dict.fromkeys(rule for peer, there in facts.items() if peer != host for rule in _between(here, there))
        )
        for host, here in facts.items()
    }


def _between(here: FabricFact, there: FabricFact) -> list[str]:
    """On the interface that shares the subnet with the peer's address; where none does (rings), on every one: its
    packets come over whichever neighbour relays them."""
    found = []
    for rail in there.rails:
        shared = [own for own in here.rails if _subnet(own.address, own.prefix) == _subnet(rail.address, rail.prefix)]
        found += [ufw.peer_rule(rail.address, own.netdev) for own in shared or here.rails]
    return found


def _subnet(address: str, prefix: int) -> str:
    return str(ipaddress.ip_network(f"{address}/{prefix}", strict=False))
