# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The judgement over all nodes, pure and through its planners."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import errors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import Cable
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._qos import planners, verdict
from fabric_rates import fabric
from planning import plan

HALVES = ("net0", "net1")
GOOD = {
    "trust": "dscp",
    "dscp2prio": {"26": 3},
    "pfc": [0, 0, 0, 1, 0, 0, 0, 0],
}
FACTORY = {**GOOD, "trust": "pcp", "dscp2prio": {}, "pfc": [0] * 8}
ROCE = "roce"


def fact(host="spark1", **values):
    planned = {"state": "planned", "environment": {"NCCL_IB_TC": "106"}, "qos": "roce"}
    cables = (Cable(cage=0, switch="switch0", source="lldp"),)
    return replace(fabric(2)[host], **{**planned, "cables": cables, **values})


def half(state=None, **values):
    return {"applied": [], "commands": [], "link_bounced": False, "carrier": True, "state": state or GOOD, **values}


def node(*, engines=(), problems=(), **values):
    interfaces = {name: half(**values) for name in HALVES}
    differs = any(entry["applied"] for entry in interfaces.values())
    return {
        "changed": differs,
        "differs": differs,
        "interfaces": interfaces,
        "link_bounced": False,
        "engines": list(engines),
        "problems": list(problems),
    }


def told(nodes):
    return {host: planners.NODES(one, host) for host, one in nodes.items()}


def before(nodes, *rest, **more):
    return verdict.before(told(nodes), *rest, **more)


def after(nodes, *rest):
    return verdict.after(told(nodes), *rest)


def changes(nodes):
    return verdict.changes(told(nodes))


def due(**values):
    return node(state=FACTORY, applied=["trust", "pfc"], link_bounced=True, **values)


FACTS = {"spark1": fact(), "spark2": fact("spark2")}


def texts(findings):
    return [str(finding) for finding in findings]


def test_nothing_to_do_says_nothing():
    nodes = {"spark1": node(engines=["unit x is active"]), "spark2": node()}
    assert before(nodes, FACTS, ROCE) == after(nodes, FACTS, ROCE) == []
    assert not changes(nodes)
    assert changes({**nodes, "spark2": due()})


def test_an_engine_on_any_node_refuses_unless_confirmed():
    nodes = {"spark1": node(engines=["process 5 (vllm)"]), "spark2": due(engines=["GPU process 7 (x)"])}
    found = errors(before(nodes, FACTS, ROCE))
    assert [finding.host for finding in found] == ["spark1", "spark2"]
    assert "process 5 (vllm)" in found[0].found
    assert "spark2" in found[0].found
    assert "fabric_qos_confirm" in found[0].remedy
    assert errors(before(nodes, FACTS, ROCE, confirm=True)) == []


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({}, "NCCL_IB_TC is not set"),
        ({"NCCL_IB_TC": "0"}, "would carry DSCP 0"),
        ({"NCCL_IB_TC": "x"}, "would carry no DSCP"),
        ({"NCCL_IB_TC": "104"}, None),  # DSCP 26 without ECN: no harm
    ],
)
def test_packets_that_nobody_marks(environment, says):
    found = errors(before({"spark1": due()}, {"spark1": fact(environment=environment)}, ROCE))
    assert (says is None and not found) or says in found[0].found


def test_a_single_machine_is_warned():
    found = before({"spark1": node()}, {"spark1": fact(rails=(), topology="single")}, ROCE)
    assert errors(found) == []
    assert "no fabric" in found[0].found


def test_all_problems_of_all_nodes_at_once():
    problem = {"device": HALVES[0], "found": "lldpad is running", "remedy": "Stop it"}
    nodes = {"spark1": due(problems=[problem]), "spark2": due(problems=[problem], engines=["unit x is active"])}
    found = errors(before(nodes, {**FACTS, "spark2": fact("spark2", environment={})}, ROCE))
    assert len(found) == 4
    assert {finding.host for finding in found} == {"spark1", "spark2"}
    assert len(errors(after(nodes, FACTS, "none"))) == 6


def test_after_names_what_is_not_in_force():
    broken = due(carrier=False)
    found = errors(after({"spark1": node(), "spark2": broken}, FACTS, ROCE))
    assert {finding.host for finding in found} == {"spark2"}
    assert sum("not the wanted ones (trust, pfc)" in finding.found for finding in found) == 2
    assert sum("did not come up again" in finding.found for finding in found) == 2
    assert len(found) == 4


def test_after_reads_the_state_and_not_only_the_difference():
    found = errors(after({"spark1": node(state=FACTORY)}, {"spark1": fact()}, ROCE))
    assert len(found) == 2
    assert "trust is pcp, not dscp; DSCP 26 is in priority None, not 3; PFC is 0,0,0,0,0,0,0,0" in found[0].found


# -- through the planners


def act(planner, nodes, **options):
    facts = {host: made.as_dict() for host, made in FACTS.items()}
    return plan(planner, {"nodes": nodes}, **{"facts": facts, "profile": "roce", **options})


def test_the_planner_refuses_with_every_reason():
    nodes = {"spark1": due(engines=["unit x is active"]), "spark2": due(engines=["unit y is active"])}
    result = act("qos_before", nodes)
    assert result["failed"]
    assert "no QoS setting was changed" in result["msg"]
    assert "  1. spark1" in result["msg"]
    assert "  2. spark2" in result["msg"]
    assert not act("qos_before", nodes, confirm=True).get("failed")
    assert act("qos_after", nodes)["failed"]
