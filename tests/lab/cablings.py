#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Every cabling that the lab can wire, right and wrong: does the planner see what is plugged in where?

    tests/lab/cablings.py      the table in Markdown; exit code 1 for a wrong verdict. Needs no lab and no privilege.

As ``verdicts.py`` does for preflight: the machines' files are written as the simulator writes them and read with the
code of the nodes; what the machines hear follows from the segments that the lab would plug them into. Each cabling is
planned twice: with ``fabric_topology: auto``, and with the cabling declared in ``fabric_cables``.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import verdicts
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Heard, Neighbors
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import types as fabric_types
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks as preflight_checks
from sim import faults

FAULTY = verdicts.FAULTY
# Topology of the lab, nodes, fabric_topology when it is named, rails per node.
TOPOLOGIES = (
    ("direct", 2, "direct", 2),
    ("direct_crossed", 2, "direct", 2),
    ("direct_two", 2, "direct", 2),
    ("crossed_100g", 2, "switch", 2),
    ("ring", 3, "ring", 4),
    ("ring", 4, "ring", 4),
    ("switch", 2, "switch", 2),
    ("switch", 4, "switch", 2),
    ("switch", 8, "switch", 2),
    ("switch_two", 4, "switch", 2),
    ("mixed", 3, "auto", 2),
    ("mixed", 4, "auto", 2),
)
Topology = tuple[str, int, str, int]


def heard(lab: faults.Lab, node: str) -> Neighbors:
    """What one node hears."""
    entries = []
    for ports in lab.segments().values():
        for mine in ports:
            for far in ports:
                if mine.node == node and (far.node, far.nic.cage) != (node, mine.nic.cage):
                    entries.append(Heard(mine.nic.netdev, mine.nic.cage, "probe", far.node, far.nic.cage, True))
    return Neighbors(tuple(entries), complete=True)


def declared(topology: str, nodes: int) -> list[str]:
    """``fabric_cables`` for the cabling as it is meant."""
    written = []
    for segment, ends in faults.cables(topology, nodes).items():
        names = [f"{node}.{cage}" for node, cage in ends]
        written += [" ".join(names)] if faults.is_cable(segment) else [f"{name} switch" for name in names]
    return written


def plan(item: Topology, injected: Sequence[faults.Fault], *, declare: bool) -> fabric_types.Plan:
    topology, nodes, named, _rails = item
    lab = faults.wanted(topology, nodes, injected)
    findings: list[Finding] = []
    inputs = {}
    for rank, (host, machine) in enumerate(verdicts.cluster(topology, nodes, injected).items()):
        for half in machine.halves:
            half.addresses = []
        found = verdicts.read(machine)
        raw = {
            "rank": rank,
            "network": found.network,
            "rdma": found.rdma,
            "neighbors": heard(lab, host),
        }
        inputs[host] = fabric_types.node_input(host, raw, findings)
    assert not findings, findings
    settings = fabric_plan.Settings(
        topology=named if declare else "auto",
        cables=declared(topology, nodes) if declare else (),
        allow_large_ring=declare,
    )
    return fabric_plan.plan(inputs, settings)


def before(item: Topology, injected: Sequence[faults.Fault], *, declare: bool) -> list[str]:
    """What preflight refuses because of the cables on machines that never had a fabric."""
    topology, nodes, named, _rails = item
    lab = faults.wanted(topology, nodes, injected)
    machines = verdicts.cluster(topology, nodes, injected)
    for machine in machines.values():
        for half in machine.halves:
            half.addresses = []
    settings = {"fabric_topology": named, "fabric_cables": declared(topology, nodes), "fabric_allow_large_ring": True}
    context = base.Context(
        layers=frozenset({"fabric"}),
        hosts={host: {"spark_rank": rank, **(settings if declare else {})} for rank, host in enumerate(machines)},
        play_hosts=list(machines),
        variables=verdicts.variables(),
        nodes={host: verdicts.read(machine) for host, machine in machines.items()},
        earlier={},
    )
    listening = preflight_checks.listeners(context, forks=nodes)["nodes"]
    context = dataclasses.replace(context, neighbors={host: heard(lab, host) for host in listening})
    made = preflight_checks.run(preflight_checks.HOSTS, context)
    return [str(finding) for finding in made if finding.rule == "cables" and finding.severity == "error"]


# --- what has to come out --------------------------------------------------------------------------------------------

PLANNED = "planned"
Expected = Callable[[Topology, bool], str]  # PLANNED, or a regular expression for one of the refusals


def _none(item: Topology, declare: bool) -> str:
    topology, nodes, _named, _rails = item
    if topology == "mixed":
        return r"neither a ring nor one switch"
    return r"ring of 4" if topology == "ring" and nodes > 3 and not declare else PLANNED


def _dark(_item: Topology, _declare: bool) -> str:
    return rf"^{FAULTY} .*no link"


def _half(_item: Topology, _declare: bool) -> str:
    return rf"^{FAULTY} roceP2p1s0f\d \(enP2p1s0f\dnp\d\): .*no link, while its twin has one"


def _absent(_item: Topology, _declare: bool) -> str:
    return rf"^{FAULTY}.*no QSFP cage was found"


def _other_cage(item: Topology, declare: bool) -> str:
    """Both cages of the node trade their cables. Where nothing was declared, the cabling is as good as before."""
    topology = item[0]
    if topology in ("switch_two", "crossed_100g"):
        return PLANNED  # both lead to the same switch
    return rf"{FAULTY}.*(expected|is plugged into)" if declare else _none(item, declare)


def _loop(_item: Topology, _declare: bool) -> str:
    return rf"^{FAULTY}.*(a cable in a loop|is plugged into {FAULTY} cage)"


def _swapped(item: Topology, declare: bool) -> str:
    """The lower cabled cage of the node trades its cable with cage 1 of the next one: see SWAPPED."""
    automatic, named = SWAPPED.get(item[:2], (r"^spark1 .*no link", r"spark1 cage 0 has no link; expected a switch"))
    return named if declare else automatic


# By topology: with fabric_topology auto, and with the cables declared. The others lose their link to the switch.
SWAPPED: dict[tuple[str, int], tuple[str, str]] = {
    ("direct", 2): (r"^spark1 .*no link", r"spark1 cage 0 has no link; expected spark2 cage 0"),
    ("direct_crossed", 2): (PLANNED, PLANNED),  # the two ends of one cable
    ("direct_two", 2): (r"^spark1 .*loop", r"spark1 cage 1 is plugged into spark1 cage 0; expected spark2 cage 1"),
    ("crossed_100g", 2): (PLANNED, PLANNED),  # all in one switch
    ("switch_two", 4): (PLANNED, PLANNED),
    ("ring", 3): (PLANNED, r"spark3 cage 0 is plugged into spark1 cage 0; expected spark2 cage 1"),  # a ring as well
    ("ring", 4): (r"a ring of 4", r"spark3 cage 0 is plugged into spark1 cage 0; expected spark2 cage 1"),
    ("mixed", 3): (r"^spark2 cage 0: .*same node", r"spark2 cage 0 is plugged into spark2 cage 1; expected a switch"),
    ("mixed", 4): (r"form 2 fabrics that nothing joins", r"spark1 cage 0 has no link; expected a switch"),
}


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    expected: Expected
    kind: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


CASES = (
    Case("none", _none),
    Case("no cable", _dark, "no_cable"),
    Case("NIC removed", _absent, "nic_removed"),
    Case("one half without link", _half, "half_down"),
    Case("cable in the other cage", _other_cage, "wrong_cage"),
    Case("cables of two machines swapped", _swapped, "cable_swapped"),
    Case("cable from cage to cage of one machine", _loop, "loop_cable"),
)


def verdict(item: Topology, case: Case, *, declare: bool) -> tuple[str, bool]:
    """The verdict in a few words, and whether it is right."""
    made = plan(item, [faults.Fault(FAULTY, case.kind, **case.options)] if case.kind else [], declare=declare)
    errors = [str(finding) for finding in made.findings if finding.severity == "error"]
    wanted = case.expected(item, declare)
    if not made.refused:
        rails = sum(len(fact.rails) for fact in made.facts.values())
        return f"{made.topology}, {rails} rails", wanted == PLANNED
    right = wanted != PLANNED and any(re.search(wanted, text) for text in errors)
    return "; ".join(errors), right


def first_verdict(item: Topology, case: Case, *, declare: bool) -> tuple[str, bool]:
    """The same of preflight, before anything is changed."""
    injected = [faults.Fault(FAULTY, case.kind, **case.options)] if case.kind else []
    errors = before(item, injected, declare=declare)
    # The layer fabric sees a half without link when it chooses halves, and another check that the NIC is gone.
    wanted = _none(item, declare) if case.kind == "half_down" else case.expected(item, declare)
    if wanted == PLANNED or case.kind == "nic_removed":
        return "; ".join(errors), not errors
    return "; ".join(errors), any(re.search(wanted, text) for text in errors)


def short(text: str, right: bool) -> str:
    """A cell of the table: what was planned, or the first refusal without its remedy."""
    first = text.split(". ", maxsplit=1)[0].replace("|", "/")
    return first if right else f"WRONG: {text}"


def table() -> tuple[list[str], int]:
    """Lines of the table, and the number of wrong verdicts."""
    lines = ["| Cabling | Fault | auto | declared |", "|---|---|---|---|"]
    wrong = 0
    for item in TOPOLOGIES:
        for case in CASES:
            cells = [verdict(item, case, declare=declare) for declare in (False, True)]
            wrong += sum(not right for _text, right in cells)
            lines.append(f"| {item[0]} {item[1]} | {case.name} | {' | '.join(short(*cell) for cell in cells)} |")
    return lines, wrong


def main() -> int:
    lines, wrong = table()
    print("\n".join(lines))
    verdicts_made = 2 * len(CASES) * len(TOPOLOGIES)
    print(f"\n{len(TOPOLOGIES)} cablings x {len(CASES)} faults x 2 = {verdicts_made} verdicts, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
