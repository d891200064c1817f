# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Judges the QoS of all nodes together: what speaks against a change, and whether all have the profile after it."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import state as qos_state
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.port import Qos
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.profile import DSCP, PRIORITY, PROFILES
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.state import QosState

TRAFFIC_CLASS = "NCCL_IB_TC"


def before(
    nodes: Mapping[str, Qos], facts: Mapping[str, FabricFact], profile: str, *, confirm: bool = False
) -> list[Finding]:
    """``nodes``: per host the result of ``mlnx_qos`` in check mode. ``facts``: the planned facts."""
    findings: list[Finding] = []
    if profile != "none":
        for host, fact in facts.items():
            findings += _misfit(host, fact)
    for host, node in nodes.items():
        findings += [Finding(host, problem.found, problem.remedy, device=problem.device) for problem in node.problems]
    bouncing = {host: node.bouncing for host, node in nodes.items() if node.bouncing}
    if not bouncing:
        return findings
    busy = {host: node.engines for host, node in nodes.items() if node.engines}
    # All nodes are looked at: an engine spans them, and its traffic crosses links that others take down.
    for host, signs in busy.items():
        if not confirm:
            findings.append(
                Finding(
                    host,
                    f"an engine runs ({', '.join(signs)}), and changing priority flow control takes the fabric links "
                    f"of {', '.join(bouncing)} down and up, which breaks its connections",
                    "Stop it first, or say that it may break: fabric_qos_confirm: true",
                )
            )
    for host, netdevs in bouncing.items():
        findings.append(
            Finding(
                host,
                "priority flow control changes, which takes the link down and up (a few seconds)",
                "No action needed: the links are waited for and tested afterwards",
                device=", ".join(netdevs),
                severity="warning",
            )
        )
    return findings


def after(nodes: Mapping[str, Qos], facts: Mapping[str, FabricFact], profile: str) -> list[Finding]:
    """``nodes``: per host the result of ``mlnx_qos`` in check mode, read again after the change."""
    findings: list[Finding] = []
    for host, node in nodes.items():
        for netdev, entry in node.interfaces.items():
            if entry.applied:
                findings.append(
                    Finding(
                        host,
                        f"after the change the settings are still not the wanted ones ({', '.join(entry.applied)})",
                        "Something else sets them as well: look for lldpad, other services or a script",
                        device=netdev,
                    )
                )
            if not entry.carrier:
                findings.append(
                    Finding(
                        host,
                        "the link did not come up again after the change",
                        "Check the switch port: PFC on a port with link pause or another speed keeps some links down. "
                        "Then run again",
                        device=netdev,
                    )
                )
        findings += [Finding(host, problem.found, problem.remedy, device=problem.device) for problem in node.problems]
    if profile == "none":
        return findings
    for host, fact in facts.items():
        findings += _unfinished(host, fact, nodes.get(host))
    return findings


def changes(nodes: Mapping[str, Qos]) -> bool:
    """Whether any node has something to do."""
    return any(node.differs for node in nodes.values())


def _misfit(host: str, fact: FabricFact) -> list[Finding]:
    """What speaks against the profile on this node. Cables without a switch are the planner's to refuse."""
    if not fact.rails:
        found = "fabric_qos is roce, but there is no fabric: it has no effect"
        return [Finding(host, found, "fabric_qos: none", severity="warning")]
    marked = _marking(fact)
    if marked == DSCP:
        return []
    carried = "no DSCP" if marked is None else f"DSCP {marked}"
    return [
        Finding(
            host,
            f"fabric_qos is roce, but {TRAFFIC_CLASS} is {fact.environment.get(TRAFFIC_CLASS) or 'not set'}: NCCL's "
            f"packets would carry {carried} instead of {DSCP}, and priority {PRIORITY} would protect nothing",
            f"Take {TRAFFIC_CLASS} out of fabric_environment, or fabric_qos: none",
        )
    ]


def _marking(fact: FabricFact) -> int | None:
    """The DSCP that NCCL writes: the upper six bits of the traffic class."""
    value = strict.digits(fact.environment.get(TRAFFIC_CLASS))
    return None if value is None else value >> 2


def _unfinished(host: str, fact: FabricFact, node: Qos | None) -> list[Finding]:
    """Halves that the plan uses and that were not read, or do not have the profile by what was read."""
    findings = []
    for rail in fact.rails:
        entry = node.interfaces.get(rail.netdev) if node else None
        wrong = ["its settings could not be read"] if entry is None else deviations(entry.state)
        if wrong and not (entry and entry.applied):  # what is still to change has been reported
            findings.append(Finding(host, "; ".join(wrong), "Run the fabric layer again", device=rail.netdev))
    return findings


def deviations(state: QosState) -> list[str]:
    """What in a state is not the profile."""
    want = PROFILES["roce"]
    found = []
    if state.trust != want.trust:
        found.append(f"trust is {state.trust}, not {want.trust}")
    priority = state.dscp2prio.get(DSCP)
    if priority != PRIORITY:
        found.append(f"DSCP {DSCP} is in priority {priority}, not {PRIORITY}")
    if state.pfc != want.pfc:
        found.append(f"PFC is {qos_state.readable(state.pfc)}, not {qos_state.readable(want.pfc)}")
    return found
