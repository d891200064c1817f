# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The fabric as the inventory alone tells it, for what is written without asking a machine: the batch script.

The planner gets Sparks whose cable is where the inventory says, so names, addresses and environment are those that a
run would plan. What only a machine knows is asked of the user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, errors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import (
    Cage,
    PciFunction,
    RdmaPort,
    cages,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import NodeInput, Settings, everywhere

_CAGE = re.compile(r"en(?:P\d+)?p1s0f([01])np[01]")
_UNKNOWN = "192.0.2.{}"  # an address of documents: nothing of a plan without a ring has it
_SETTINGS = ("topology", "subnets", "host_offset", "mtu", "transport", "cables", "qos")
_OF_A_HOST = ("addresses", "cages", "environment")
READ = ("spark_rank", *(f"fabric_{name}" for name in (*_SETTINGS, *_OF_A_HOST)))


def facts(hosts: Sequence[str], values: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, FabricFact], list[Finding]]:
    """The facts of two hosts and more, or what they lack.

    Args:
        hosts: inventory names, in the order of the ranks where they have none of their own.
        values: of :data:`READ` for each host, each of its type, defaults among them.
    """
    settings = Settings(**{name: values[hosts[0]][f"fabric_{name}"] for name in _SETTINGS})
    if settings.topology == "ring" or (len(hosts) > 2 and any(_between_machines(line) for line in settings.cables)):
        return {}, [
            everywhere(
                "in a ring machines reach each other over management addresses, which only they know",
                "Serve a ring with site.yml, or put the machines on a switch",
            )
        ]
    nodes, lacking = {}, []
    for number, host in enumerate(hosts):
        rank = values[host]["spark_rank"]
        addresses = {str(name): str(text) for name, text in values[host]["fabric_addresses"].items()}
        cage = _cage(values[host]["fabric_cages"], addresses)
        if cage is None:
            lacking.append(
                Finding(
                    host,
                    "the interface of its cable is not known, since no machine is asked",
                    "Say in which cage the cable is: fabric_cages: [0] where enp1s0f0np0 has a link (ip -br link), [1] "
                    "where enp1s0f1np1 has; or name its interfaces in fabric_addresses",
                )
            )
            continue
        nodes[host] = NodeInput(
            rank=number if rank is None else rank,
            management_address=_UNKNOWN.format(number + 1),
            cages=_cabled(cage),
            addresses=addresses,
            environment=values[host]["fabric_environment"],
        )
    if lacking:
        return {}, lacking
    made = plan(nodes, settings)
    if made.refused:
        return {}, errors(made.findings)
    return {host: _over_the_cable(fact, nodes[host].environment) for host, fact in made.facts.items()}, []


def told(found: Mapping[str, FabricFact]) -> list[str]:
    """What was taken for true, a line for each host and one before them."""
    lines = ["No machine was asked. These are the interfaces of a Spark and the addresses that the inventory gives:"]
    return lines + [f"{host}: {fact.cluster_interface} {fact.cluster_address}" for host, fact in found.items()]


def _over_the_cable(fact: FabricFact, wanted: Mapping[str, Any]) -> FabricFact:
    """The management interface, on which NCCL would meet, has no name here; the cable reaches all as well."""
    meeting = {} if "NCCL_SOCKET_IFNAME" in wanted else {"NCCL_SOCKET_IFNAME": f"={fact.rails[0].netdev}"}
    return replace(fact, environment={**fact.environment, **meeting})


def _between_machines(line: object) -> bool:
    return len([word for word in str(line).split() if not word.startswith("switch")]) > 1


def _cage(asked: object, addresses: Mapping[str, str]) -> int | None:
    """The one cage that is used, by ``fabric_cages`` or the names of interfaces."""
    if isinstance(asked, (list, tuple)) and len(asked) == 1 and str(asked[0]) in ("0", "1"):
        return int(asked[0])
    named = {match[1] for match in map(_CAGE.fullmatch, addresses) if match}
    return int(named.pop()) if asked == "auto" and len(named) == 1 else None


def _cabled(cage: int) -> list[Cage]:
    """A Spark with a cable in one cage."""
    ports = [
        RdmaPort(
            rdma_device=f"roce{prefix}p1s0f{number}",
            port=1,
            driver="mlx5_core",
            link_layer="Ethernet",
            rdma_state="ACTIVE" if number == cage else "DOWN",
            netdev=f"en{prefix}p1s0f{number}np{number}",
            carrier=number == cage,
            admin_up=True,
            speed_gbps=200.0 if number == cage else None,
            mtu=1500,
            phys_port_name=f"p{number}",
            sys_image_guid="the card",
            pci=PciFunction(f"{domain}:01:00.{number}", link_speed_gts=32.0, link_width=4),
        )
        for domain, prefix in (("0000", ""), ("0002", "P2"))
        for number in (0, 1)
    ]
    return cages(ports)
