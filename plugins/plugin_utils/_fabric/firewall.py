# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a node lets in on its fabric interfaces: the other nodes by address, and nobody else."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import ufw
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.addresses import network_of


def rules(facts: Mapping[str, FabricFact]) -> dict[str, list[str]]:
    """The rules of every host, as ufw takes them."""
    return {
        host: list(
            dict.fromkeys(rule for peer, there in facts.items() if peer != host for rule in _between(here, there))
        )
        for host, here in facts.items()
    }


def netdevs(fact: FabricFact) -> dict[str, str]:
    """The interface of each address on the fabric."""
    return {rail.address: rail.netdev for rail in fact.rails}


def _between(here: FabricFact, there: FabricFact) -> list[str]:
    """On the interface that shares the subnet with the peer's address; in a ring only neighbours share any."""
    own = {network_of(rail): rail.netdev for rail in here.rails}
    return [
        ufw.peer_rule(rail.address, own[network])
        for rail in there.rails
        for network in [network_of(rail)]
        if network in own
    ]
