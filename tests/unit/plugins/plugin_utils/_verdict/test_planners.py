# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time
from dataclasses import replace
from xml.etree import ElementTree

import preflight_inputs
import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Info
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Limit, Machine, Rdma, load
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import verdict
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import planners
from engine_plans import cluster_plans

HOSTS = ("spark1", "spark2")
LIMIT = Limit(90, "Gb/s", "least", "docs/fabric.md", "this collection", "verify_limits.half_good_gbps")
SLOW = verdict(
    "rdma_rate",
    "half",
    "13 Gb/s",
    cause="nic_degraded",
    hosts=HOSTS,
    device="rocep1s0f0",
    value=13,
    limit=LIMIT,
    evidence=["65536 5000 0.00 13.01"],
)
UNKNOWN = verdict("nccl", "cluster", "nccl-tests is not installed", outcome="unknown")
FINE = verdict("answer", "service", "32 tokens in 1 s", outcome="pass")


def judged(*parts, **options):
    nodes = preflight_inputs.nodes(2)
    for node in nodes.values():
        node.update(time=time.time() - 57, clock_offset=3.0)
    info = {
        host: Info(preflight_inputs.as_node(nodes[host]), preflight_inputs.fact(host, rank, 2))
        for rank, host in enumerate(HOSTS)
    }
    plans = cluster_plans(2)
    asked = {"playbook": "verify", "head": "spark1", "info": info, "plans": plans, "parts": parts}
    return planners.judge({**asked, **options})


def test_the_run_is_put_together_from_what_is_known_and_what_was_found():
    part = planners.part(verdicts=[SLOW, FINE], rdma=[Rdma("spark1", "spark2", ("rocep1s0f0",), "write", 13.0)])
    found = judged(part, {}, planners.part(verdicts=[UNKNOWN], machines=[Machine("spark2", 1, {"torch": "2.11"})]))
    run = load(found["run"], "test")
    assert (run.cluster, run.topology, run.outcome, run.release) == ("spark1", "switch", "fail", planners.release())
    assert 60 <= run.seconds < 70
    assert [machine.host for machine in run.machines] == list(HOSTS)
    assert run.machines[1].facts["torch"] == "2.11" and run.machines[1].facts["kernel"]
    # As the node is now, not as it was verified.
    assert [(link.host, link.mtu) for link in run.links] == [("spark1", 1500)] * 2 + [("spark2", 1500)] * 2
    assert run.services[0].options and run.services[0].hosts == HOSTS
    assert run.rdma[0].value == 13
    assert json.loads(found["json"]) == found["run"]


def test_a_cluster_keeps_its_name_where_its_head_does_not_answer():
    """The report puts the runs of one name together."""
    nodes = preflight_inputs.nodes(2)
    run = judged(
        info={"spark2": Info(preflight_inputs.as_node(nodes["spark2"]), preflight_inputs.fact("spark2", 1, 2))}
    )["run"]
    assert (run["cluster"], [machine["host"] for machine in run["machines"]]) == ("spark1", ["spark2"])


def test_what_failed_is_said_with_limit_and_remedy():
    found = judged(planners.part(verdicts=[FINE, UNKNOWN, SLOW]))
    assert found["lines"][0] == "verify: 1 failed, 1 not measured, 1 passed"
    assert found["lines"][1:] == ["not measured: cluster: nccl-tests is not installed."]
    said = "These checks failed:\n  1. spark1 - spark2 rocep1s0f0: 13 Gb/s; expected is 90 Gb/s at least"
    assert found["refusal"].startswith(said)
    assert "Reboot both machines" in found["refusal"] and "If that does not help: Switch both off" in found["refusal"]
    assert found["refusal"].endswith("docs/troubleshooting.md")
    assert judged(planners.part(verdicts=[FINE]))["refusal"] == ""


def test_what_is_alike_on_several_machines_is_said_once_with_their_names():
    alike = [replace(one, hosts=(host,), found=f"{host} knows nothing") for one in (UNKNOWN, SLOW) for host in HOSTS]
    found = judged(planners.part(verdicts=[*alike, replace(SLOW, hosts=HOSTS)]))
    assert found["lines"][1:] == ["not measured: spark1, spark2: spark1 (and spark2) knows nothing."]
    assert "  1. spark1, spark2 rocep1s0f0: spark1 (and spark2) knows nothing" in found["refusal"]
    assert "  2. spark1 - spark2 rocep1s0f0: 13 Gb/s" in found["refusal"] and "  3. " not in found["refusal"]
    # A machine that reads it, and a case of JUnit, has one host each.
    assert found["not_measured"] == 2 and len(found["run"]["verdicts"]) == 5
    assert found["junit"].count("<testcase ") == 5


def test_nothing_measured_is_no_pass():
    assert judged()["outcome"] == "unknown"
    assert judged()["lines"] == ["verify: nothing was checked"]


def test_the_same_fault_is_said_once():
    assert len(judged(planners.part(verdicts=[SLOW]), planners.part(verdicts=[SLOW]))["run"]["verdicts"]) == 1


def test_a_part_with_something_else_is_refused():
    with pytest.raises(planners.SparkError, match="unknown keys: surprise"):
        judged({"surprise": []})


def test_junit_has_a_case_per_verdict():
    suite = ElementTree.fromstring(judged(planners.part(verdicts=[SLOW, UNKNOWN, FINE]))["junit"])
    assert [suite.get(name) for name in ("tests", "failures", "skipped", "errors")] == ["3", "1", "1", "0"]
    failed, skipped, fine = suite.findall("testcase")
    assert failed.find("failure").get("type") == "nic_degraded"
    assert "65536 5000" in failed.find("failure").text
    assert skipped.find("skipped").get("message") == "nccl-tests is not installed"
    assert fine.find("system-out") is not None


def run_verdicts(hostvars, playbook="verify", **names):
    """As the role calls it; ``hostvars`` by host, ``__name`` is the variable of the option ``name``."""
    for node, told in zip(preflight_inputs.nodes(2).values(), hostvars.values()):
        told["__info"] = {"node": node}
    options = {"playbook": playbook, "head": "spark1", **{name: f"__{name}" for name in planners.GATHERED}, **names}
    variables = {"ansible_play_hosts_all": HOSTS, "ansible_play_hosts": HOSTS, "hostvars": hostvars}
    found = planner.run("verdicts", planners.PLANNERS["verdicts"], options, variables)
    assert not found.get("failed"), found["msg"]
    return found


SKIPPED = {"skipped": True, "skip_reason": "Conditional result was False", "changed": False}
ITEM = {"instance": "", "model": "qwen3-8b", "unit": "sparkmatrix-engine.service"}


def test_what_failed_on_a_node_is_words_only():
    """As Ansible registers the tasks of the role: of a service that does not answer, and of a table that is gone."""
    plans = {host: plan.as_dict() for host, plan in cluster_plans(2).items()}
    failed = {"failed": True, "msg": "no token\ncame", "failed_at": ""}
    off = {"msg": "the table is gone"}
    seen = {
        "spark1": {
            "asked": {
                "results": [failed],
                "ray": None,
                "filters": off,
                "changed": False,
                "failed": False,
                "msg": "both",
            },
            "smoke": {"results": [{**SKIPPED, "item": ITEM}]},
            "observed": {"failed": False, "timedout": {"period": 120}},
        },
        "spark2": {"asked": {"results": [], "filters": {"msg": ""}}, "smoke": SKIPPED, "ray": SKIPPED},
    }
    hostvars = {
        host: {"spark_plan": plans[host], "__traffic": {"moved": {}}, **{f"__{n}": v for n, v in told.items()}}
        for host, told in seen.items()
    }
    found = run_verdicts(hostvars, plans="spark_plan", before="__traffic", after="__traffic")
    assert [(one["check"], one["cause"]) for one in found["run"]["verdicts"]] == [
        ("answer", "not_serving"),
        ("port_filter", "port_filter_off"),
        ("environment", ""),
    ]
    assert "it took too long, so something on the machine hangs" in found["lines"][-1]


ANSWERED = {"results": [{"ready": True, "answer": document.plain(probe.Answer("m", "", 8, 1.0, 1.0, 0.0))}]}
WRITTEN = planners.part(rdma=[Rdma("spark1", "spark2", ("rocep1s0f0",), "write", 100.0)], verdicts=[SLOW])
PINGED = planners.part(rdma=[Rdma("spark1", "spark2", ("rocep1s0f0",), "ping", 30.0)])


@pytest.mark.parametrize(
    ("playbook", "told", "kept", "checks"),
    [
        ("verify", {}, True, []),
        ("doctor", {"doctor": {"part": WRITTEN}}, True, ["rdma_rate"]),
        ("site", {"asked": ANSWERED, "keeper": {"changed": True}}, True, ["answer"]),
        ("site", {"asked": ANSWERED, "keeper": {"changed": False}}, False, ["answer"]),
        ("site", {"asked": ANSWERED, "fabric": {"part": WRITTEN}}, True, ["rdma_rate", "answer"]),
        ("site", {"fabric": {"part": WRITTEN}}, True, ["rdma_rate"]),  # --tags fabric
        ("site", {"fabric": {"part": PINGED}}, False, []),
        ("site", {"fabric": SKIPPED, "keeper": {"changed": True}}, False, []),  # nothing was asked of it
    ],
)
def test_a_run_that_has_found_something_new_is_kept(playbook, told, kept, checks):
    """A first run of site.yml, so that the report has something to show; an unchanged one leaves the last 50 alone."""
    plan = next(iter(cluster_plans(2).values())).as_dict()
    hostvars = {host: {"__plans": plan, **{f"__{name}": value for name, value in told.items()}} for host in HOSTS}
    hostvars["spark2"].pop("__asked", None)
    hostvars["spark2"].pop("__plans")
    found = run_verdicts(hostvars, playbook)
    assert found["keep"] is kept
    assert [one["check"] for one in found["run"]["verdicts"]] == checks


def test_a_first_run_that_was_broken_off_is_made_up_for_by_the_next_one(monkeypatch):
    """It had started the engine, and nothing is left to change; but the report has nothing to show yet."""
    monkeypatch.setitem(preflight_inputs.NODE, "verdicts", 0)
    plan = next(iter(cluster_plans(2).values())).as_dict()
    first = {"__plans": plan, "__asked": ANSWERED, "__keeper": {"changed": False}}
    assert run_verdicts({"spark1": first, "spark2": {}}, "site")["keep"] is True


def test_the_role_names_every_variable_that_is_judged():
    tasks = yaml.safe_load((planners.ROOT / "roles/verify/tasks/verdicts.yml").read_text())
    (options,) = [task["sparkmatrix.cluster.plan"]["options"] for task in tasks if "sparkmatrix.cluster.plan" in task]
    assert set(options) == {*planners.GATHERED, "playbook", "head", "limits"}
    assert all(options[name] == f"spark_found_{name}" for name in planners.JUDGES)
