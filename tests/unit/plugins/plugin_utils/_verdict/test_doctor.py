# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Every fault that doctor can see, with its cause, and a healthy cluster, which passes everything."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.document import plain
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.gpu import Rate
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.hardware import Memory
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.journal import Boot, Lines
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import (
    NOT_KNOWN,
    UNLIMITED,
    Difference,
    Rank,
    Service,
    Snapshot,
    Weights,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import node as status_node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import document
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks as preflight_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules import limits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import doctor
from rules import hold, of_verdicts
from status_documents import ELSEWHERE, SERVICE, said

HOSTS = ("spark1", "spark2")
HALVES = ("rocep1s0f0", "roceP2p1s0f0")
UNIT = "sparkmatrix-engine.service"
RANK = Rank("", UNIT, "VLLM::Worker_TP0", UNLIMITED, UNLIMITED, HALVES, HALVES, over_rdma=True)
HEAD = Service(
    "",
    UNIT,
    "m",
    engine="vllm",
    version="0.33.0",
    runs=True,
    image="vllm:1",
    image_planned="sha256:aa",
    image_named="sha256:aa",
    image_running="sha256:aa",
    head=True,
    options={"max_model_len": "65536"},
    answered=True,
    answer="1 token in 0.20 s",
    moved=dict.fromkeys(HALVES, 1e6),
)
WEIGHTS = Weights("org/m", "a" * 40, "whole")
WORKER = replace(HEAD, head=False, answered=False, answer="", options={}, moved={})
LINES = Lines("no_memory", "", 23, 23, 23, 1.79e9, "NVRM: … NV_ERR_NO_MEMORY …")


def machine(service=WORKER, **changed):
    usual = {
        "host": "spark",
        "journal_read": True,
        "lines": (LINES, replace(LINES, kind="link_down", device="enp1s0f0np0", most_per_day=2)),
        "boots": (Boot(1.79e9, True), Boot(1.78e9, True)),
        "uptime_s": 1e5,
        "days": 7.0,
        "services": (service,),
        "ranks": (RANK,),
        "weights": (WEIGHTS,),
        "gpu": Rate(reason="an engine runs"),
        "halves": HALVES,
        "versions": {"UEFI firmware": "5.36"},
    }
    return Snapshot(**{**usual, **changed})


HEALTHY = {"spark1": machine(HEAD), "spark2": machine()}
SERVES = json.loads(said()["stdout"])
WORKER_SAYS = json.loads(said(ELSEWHERE, serving=False, ray=None)["stdout"])


def run(observed=HEALTHY, status=SERVES, findings=()):
    """The verdicts, as the planner returns them and the document reads them."""
    made = doctor.make(
        {
            "head": "spark1",
            "findings": list(findings),
            "checks": 40,
            "limits": {},
            "observed": {
                host: doctor.read_observation(
                    {"snapshot": plain(one), "status": status if host == "spark1" else WORKER_SAYS}, host
                )
                if isinstance(one, Snapshot)
                else one
                for host, one in observed.items()
            },
        }
    )
    run = {"cluster": "c", "playbook": "doctor", "at": "t", "seconds": 1, "release": "0", "schema": 1, **made["part"]}
    return document.load(json.loads(json.dumps(run)), "test")


def worse(found):
    return [
        (verdict.cause, verdict.outcome, verdict.hosts, verdict.device)
        for verdict in found.verdicts
        if verdict.outcome != "pass"
    ]


def test_a_healthy_cluster_passes_everything():
    found = run()
    assert worse(found) == []
    assert {verdict.check for verdict in found.verdicts} == {
        *("preflight", "journal", "boot", "port_filter", "rank_process", "answer", "options", "environment", "image"),
        *("weights", "serving"),
    }
    assert found.outcome == "pass"
    assert found.services[0].options == {"max_model_len": "65536"}
    assert found.services[0].hosts == HOSTS


def changed(**values):
    return {**HEALTHY, "spark2": machine(**values)}


def ranked(**values):
    return changed(ranks=(replace(RANK, **values), replace(RANK, title="another", **values)))


def served(**values):
    return {**HEALTHY, "spark1": machine(replace(HEAD, **values))}


def lines(kind, most, device=""):
    return changed(lines=(replace(LINES, kind=kind, device=device, count=most, most_per_hour=most, most_per_day=most),))


FAULTS = {
    "memory that the driver did not get": lines("no_memory", 198),
    "a machine that stood still": changed(boots=(Boot(1.79e9, False, 12, ("NVRM",)), Boot(1.78e9, True))),
    "a boot that breaks off": changed(boots=(Boot(1.79e9, False, 0, ("x",)),)),
    "a link that flaps": lines("link_down", 5, "enp1s0f0np0"),
    "a process that was killed": lines("out_of_memory", 1, "python3"),
    "an error of the GPU": lines("gpu_error", 1, "PCI:000f:01:00"),
    "memory that may not be locked": ranked(memlock=8 * 2**20),
    "a limit below the planned one": ranked(memlock=2**16, memlock_planned=2**23, over_rdma=False),
    "no device in a container": ranked(may_open=(), opened=()),
    "ranks over TCP": ranked(opened=()),
    "ranks on one half": ranked(opened=HALVES[:1]),
    "an answer over TCP": served(moved=dict.fromkeys(HALVES, 0.0)),
    "a slow GPU": changed(gpu=Rate(gbs=70.0)),
    "a port filter that was flushed": changed(filters=("its table is gone",)),
    "an environment of its own": ranked(environment=(Difference("NCCL_NET", "IB", "Socket"),)),
    "settings of before": changed(service=replace(WORKER, other_settings=True)),
    "an option that is ignored": served(ignored=(Difference("--max-model-len", "65536", "32768"),)),
    "another image": served(image_running="sha256:bb"),
    "an image that was tagged again": served(image_named="sha256:bb"),
    "an image that was removed": served(image_named=""),
    "a link of the weights that leads nowhere": changed(
        weights=(replace(WEIGHTS, state="broken", found="x leads nowhere"),)
    ),
    "weights that are gone": changed(weights=(Weights("org/m", "", "missing", "gone"),)),
    "another revision": changed(weights=(replace(WEIGHTS, revision="b" * 40),)),
    "another firmware": changed(versions={"UEFI firmware": "5.30"}),
    "an engine that does not answer": served(
        answered=False, answer="the key file holds no VLLM_API_KEY", moved={}, options={}
    ),
}


NOT_MEASURED = {
    "a journal that nobody can read": changed(journal_read=False),
    "a GPU without torch": changed(gpu=Rate(reason="no module torch")),
    "weights elsewhere": changed(weights=(Weights("org/m", "", "unseen", "a cache of its own"),)),
    "a journal that keeps one boot": changed(boots=()),
    "an environment under a title": ranked(environment_known=False),
    "a part that failed": changed(problems=("engine plan: damaged",)),
    "a machine that was not asked": {**HEALTHY, "spark2": "the module failed"},
}


# --- what the head says


@pytest.mark.parametrize("at", [9e18, -9e18])
def test_a_time_that_no_calendar_has_hides_no_other_machine(at):
    told = machine(HEAD, boots=(Boot(at, False),), lines=(replace(LINES, kind="out_of_memory", last_at=at),))
    lacking = machine(weights=(replace(WEIGHTS, state="missing"),))
    assert ("dangling_weights", "fail", ("spark2",), "") in worse(run({"spark1": told, "spark2": lacking}))


def test_without_the_head_the_others_are_looked_at():
    """With --limit; that the head was left out is a finding of preflight."""
    found = run({"spark2": machine(weights=(replace(WEIGHTS, state="missing"),))})
    assert worse(found) == [("dangling_weights", "fail", ("spark2",), ""), ("", "unknown", (), "")]
    assert "the head (spark1) was left out" in found.verdicts[-1].found


# --- everything that is found


def nodes_say(**changed):
    nodes = [dict(node) for node in SERVES["nodes"]]
    nodes[1] |= changed
    return {"status": {**SERVES, "nodes": nodes}}


def head_says(**changed):
    return {"status": {**SERVES, **changed}}


def service_says(**changed):
    return head_says(services={"": {**SERVICE, **changed}})


NO_MEMORY, DOWN = (int(limits.limits()[name].value) for name in ("no_memory_per_hour", "links_down_per_day"))
# Arguments of run(); what is found is in the fixtures.
MORE = {
    "nothing is wrong": {},
    "lines without a fault": {"observed": lines("no_memory", 1)},
    "lines at the limit": {"observed": lines("no_memory", NO_MEMORY)},
    "lines above the limit": {"observed": lines("no_memory", NO_MEMORY + 1)},
    "a link that went down as often as it may": {"observed": lines("link_down", DOWN, "enp1s0f0np0")},
    "a link that went down more often": {"observed": lines("link_down", DOWN + 1, "enp1s0f0np0")},
    "lines of a kind that is none": {"observed": lines("rubbish", 500)},
    "lines of the year 1970": {
        "observed": changed(lines=(replace(LINES, kind="gpu_error", device="gpu", last_at=0.0),))
    },
    "lines of before": {"observed": changed(lines=(replace(LINES, kind="gpu_error", device="gpu", last_at=-1.0),))},
    "lines of the year 9998": {
        "observed": changed(lines=(replace(LINES, kind="gpu_error", device="gpu", last_at=253370764799.0),))
    },
    "lines of the year 9999": {
        "observed": changed(lines=(replace(LINES, kind="gpu_error", device="gpu", last_at=253370764800.0),))
    },
    "two boots of three": {
        "observed": changed(boots=(Boot(1.79e9, False, 0, ("a",)), Boot(1.78e9, False, 7, ("b",)), Boot(1.77e9, True)))
    },
    "no boots for as long as anybody looks": {"observed": changed(boots=(), uptime_s=7 * 86400.0)},
    "no boots for less": {"observed": changed(boots=(), uptime_s=7 * 86400.0 - 1)},
    "two filters": {"observed": changed(filters=("its table is gone", "another one is there"))},
    "memlock just as planned": {"observed": ranked(memlock=2**23, memlock_planned=2**23, over_rdma=False)},
    "memlock just enough for RDMA": {"observed": ranked(memlock=64 * 2**20, memlock_planned=2**20)},
    "memlock not enough for RDMA": {"observed": ranked(memlock=64 * 2**20 - 1, memlock_planned=2**20)},
    "memlock that is not known, over TCP": {"observed": ranked(memlock=NOT_KNOWN, over_rdma=False)},
    "nothing over RDMA": {"observed": ranked(may_open=(), opened=(), over_rdma=False)},
    "ranks of two units": {
        "observed": changed(ranks=(replace(RANK, opened=()), replace(RANK, unit="other.service", opened=())))
    },
    "two faults of one rank": {"observed": ranked(memlock=2**20, opened=HALVES[1:])},
    "a GPU at its limit": {"observed": changed(gpu=Rate(gbs=150.0))},
    "a GPU below its limit": {"observed": changed(gpu=Rate(gbs=149.9))},
    "both did not pass": {"observed": {host: machine(filters=("gone",)) for host in HOSTS}},
    "no ranks": {"observed": {host: machine(services=(), ranks=()) for host in HOSTS}},
    "no head": {"observed": {"spark2": machine()}},
    "no engine": {"status": {"schema": 1, "problem": "/etc/sparkmatrix: no engine is set up on this node. Ask"}},
    "nobody tells": {"status": {"schema": 1, "problem": "systemctl show failed"}},
    "a node that is not reached": nodes_say(answers=False, problem="Permission denied"),
    "a node that needs root": nodes_say(answers=False, problem=status_node.ROOT),
    "a node that was not asked": nodes_say(answers=False, problem=status_node.NOT_ASKED),
    "a node that answers and grumbles": nodes_say(answers=True, problem="its clock is late"),
    "a node that says nothing": nodes_say(answers=False, problem=""),
    "Ray is whole": head_says(ray={"nodes": 2, "running": 2}),
    "Ray is not": head_says(ray={"nodes": 3, "running": 2}),
    "no Ray": head_says(ray=None),
    "a gateway": head_says(
        gateway={"unit": "active", "answers": True, "problem": "", "certificate_until": "", "endpoints": []}
    ),
    "a silent gateway": head_says(
        gateway={"unit": "failed", "answers": False, "problem": "x", "certificate_until": "", "endpoints": []}
    ),
    "a service that waits": service_says(serving=False, phase="waiting", detail="its port is taken"),
    "a service of the user's name": head_says(services={"chat": {**SERVICE, "serving": False, "phase": "waiting"}}),
    "a service elsewhere": head_says(services={"": {**SERVICE, "unit": ""}}),
    "a service whose keeper was killed": service_says(serving=False, running=False, problem="nothing listens there"),
    "a service whose keeper hangs": service_says(serving=False, frozen=True, silent_s=75, problem="x"),
    "a service that has lost its memory": service_says(serving=False, damage="what the keeper remembers is damaged"),
    "weights of others": {"observed": changed(weights=(replace(WEIGHTS, state="foreign"),))},
    "memlock that is not known": {"observed": ranked(memlock=NOT_KNOWN)},
}


def findings_of(*made):
    return {"findings": list(made)}


def test_what_is_found_of_every_fault():
    cases = {
        **{name: {"observed": observed} for name, observed in FAULTS.items()},
        **{name: {"observed": observed} for name, observed in NOT_MEASURED.items()},
        **MORE,
        "findings of preflight": findings_of(
            finding("firmware_differs", "all 2 sparks", "warning"),
            finding("clones", "spark1, spark2"),
            finding("severity", "preflight_severity"),
            finding("pcie_downtrained", device="rocep1s0f0"),
            finding("gpu", severity="info", found="not checked: no CUDA"),
            finding("low_power", severity="info", found="came back"),
        ),
        "a check finds two things": findings_of(finding("pcie_downtrained"), finding("pcie_downtrained", "spark1")),
        "one of two does not answer": {
            "observed": {**HEALTHY, "spark2": "it was not asked"},
            **findings_of(finding("not_answering", "spark2, spark3")),
        },
    }
    usual = run().verdicts
    told = {name: [verdict for verdict in run(**how).verdicts if verdict not in usual] for name, how in cases.items()}
    told["nothing is wrong"] = usual
    hold("doctor", ((name, of_verdicts(found)) for name, found in told.items()))


@pytest.mark.parametrize(
    ("checks", "count", "words"),
    [
        ((), 2, ["2 of 2 checks before a run find nothing"]),
        (("gpu",), 2, ["gpu", "1 of 2 checks before a run find nothing"]),
        (("gpu", "gpu"), 2, ["gpu", "gpu", "1 of 2 checks before a run find nothing"]),
        (("gpu", "clock"), 2, ["gpu", "clock"]),
        (("gpu", "clock"), 1, ["gpu", "clock"]),
        ((), 0, []),
    ],
)
def test_checks_that_find_nothing_are_counted(checks, count, words):
    found = doctor.checked([finding(check, found=check) for check in checks], HOSTS, count)
    assert [verdict.found for verdict in found] == words
    assert all(verdict.hosts == HOSTS for verdict in found if verdict.outcome == "pass")


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "it was not asked"),
        ({}, "it was not asked"),
        ({"msg": "no  answer"}, "no answer"),
        ({"msg": "x" * 5000}, None),
        ({"msg": "x", "timedout": {"period": 1}}, "it took too long, so something on the machine hangs"),
    ],
)
def test_why_nothing_was_observed(result, said):
    found = doctor.read_observation(result, "spark1")
    assert found == said if said else len(found) < 5000


def test_what_the_document_says_of_the_machines():
    found = run({"spark1": machine(HEAD, memory=Memory(int(119.94 * 2**30), int(19.88 * 2**30)))})
    (one,) = found.machines
    assert (one.host, one.rank, one.used_gib, one.total_gib, one.facts) == (
        *("spark1", 0, 100.1, 119.9),
        {"bios_version": "5.36"},
    )


# --- what preflight found


def finding(check, host="spark2", severity="error", found="x", device=""):
    return {"rule": check, "host": host, "severity": severity, "found": found, "remedy": "do", "device": device}


def test_rules_about_a_half_are_checks():
    assert set(preflight_checks.HOSTS) >= doctor.HALVES


def test_a_machine_that_does_not_answer_is_told_once():
    observed = {**HEALTHY, "spark2": "it was not asked"}
    assert worse(run(observed, findings=[finding("not_answering")])) == [("not_answering", "fail", ("spark2",), "")]


def test_an_engine_that_does_not_tell_its_options_is_no_engine_that_has_them():
    (found,) = [
        verdict for verdict in run(served(engine="tensorrt-llm", options={})).verdicts if verdict.check == "options"
    ]
    assert (found.outcome, found.device) == ("unknown", UNIT)
    assert found.found == "not compared with the plan: tensorrt-llm does not tell which options it has"
