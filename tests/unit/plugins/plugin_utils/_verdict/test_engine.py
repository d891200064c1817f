# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.golden import Difference
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import Answer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.ray_cluster import Counted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.smoke import Smoked, Tried
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.golden_check import Compared
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.wait import Answered
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules import limits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import engine
from engine_plans import cluster_plans
from rules import hold, of_verdicts

PLANS = cluster_plans(2)
HEAD = PLANS["spark1"].heads[0]
LOW = PLANS["spark1"].here[0].expectation.low
FIRST, SECOND = "rocep1s0f0", "roceP2p1s0f0"


def answered(rate=LOW + 1, **more):
    answer = Answer(HEAD.model, "", 32, 1.0, 0.1, rate, measured=f"32 tokens in 1 s, {rate} tokens/s")
    return Answered(ready=True, answer=answer, **{"access": 401, **more})


def failed(message, **more):
    return Answered(failed=True, msg=message, **more)


def judged(*, answer=None, tried=(), golden=(), moved=None, ray=None, filters=None, gateway=()):
    """{(check, host): verdict}; ``moved``: MB of both halves, by host."""
    added = dict.fromkeys(PLANS, (500, 500)) if moved is None else moved
    devices = (FIRST, SECOND, "rocep1s0f1", "roceP2p1s0f1")  # the last two: of a ring
    before = {host: dict.fromkeys(devices[: len(added.get(host, "12"))], 1000) for host in PLANS}
    after = {
        host: {
            device: None if size is None else 1000 + int(size * 1e6)
            for device, size in zip(devices, sizes, strict=False)
        }
        for host, sizes in added.items()
    }
    asked = engine.Asked(
        answers={"spark1": [answered() if answer is None else answer]},
        smoke={"spark1": [Smoked(tuple(tried))]},
        golden={"spark1": golden},
        before=before,
        after=after,
        ray={"spark1": ray or Counted(True, ("10.0.0.1", "10.0.0.2"))},
        filters={
            host: engine.Checked(**one)
            for host, one in ({"spark1": {}, "spark2": {}} if filters is None else filters).items()
        },
        gateway={"spark1": gateway},
    )
    found = engine.judge(PLANS, asked, limits.limits())
    return {(verdict.check, verdict.hosts[0] if verdict.hosts else ""): verdict for verdict in found}


def test_a_healthy_cluster_has_passed_everything():
    found = judged(tried=[Tried("chat", "ok", 0.1, "an answer")], gateway=[answered()])
    assert {one.outcome for one in found.values()} == {"pass"}
    assert {check for check, _host in found} == {
        "answer",
        "key",
        "speed",
        "smoke_chat",
        "rdma_used",
        "both_halves",
        "ray_nodes",
        "port_filter",
        "gateway",
    }


def test_a_service_of_one_node_needs_no_fabric():
    plans = cluster_plans(1)
    asked = engine.Asked(answers={"spark1": [answered()]}, before={"spark1": {}}, after={"spark1": {}})
    assert not [verdict for verdict in engine.judge(plans, asked, limits.limits()) if verdict.check == "rdma_used"]


def test_the_transport_is_the_users_choice():
    asked = engine.Asked(
        answers={"spark1": [answered()]}, before={host: {} for host in PLANS}, after={host: {} for host in PLANS}
    )
    assert not [verdict for verdict in engine.judge(PLANS, asked, limits.limits()) if verdict.check == "rdma_used"]


def test_cables_to_nodes_without_the_service_carry_nothing_of_it():
    """Two nodes of a ring of three, each with a cable to the third."""
    third = {"rocep1s0f1": 7, "roceP2p1s0f1": 7}
    own = {FIRST: 0, SECOND: 0}
    asked = engine.Asked(
        answers={"spark1": [answered()]},
        before={host: {**own, **third} for host in PLANS},
        after={host: {**dict.fromkeys(own, 500_000_000), **third} for host in PLANS},
        neighbors={
            host: {**dict.fromkeys(own, other), **dict.fromkeys(third, "spark3")}
            for host, other in (("spark1", "spark2"), ("spark2", "spark1"))
        },
    )
    found = [
        verdict
        for verdict in engine.judge(PLANS, asked, limits.limits())
        if verdict.check in ("rdma_used", "both_halves")
    ]
    assert [verdict.outcome for verdict in found] == ["pass"] * 4


# Arguments of judged(); what is found is in the fixtures.
MORE = {
    "all is well": {},
    "no answer": {"answer": failed("no token: it ran out of memory")},
    "a wrong key gets in": {"answer": failed("a wrong key got HTTP 200", failed_at="access")},
    "it failed at something else": {"answer": failed("no answer in time", failed_at="answer")},
    "check mode": {"answer": Answered(reason="check mode")},
    "it was not asked": {"answer": Answered()},
    "the key was not tried": {"answer": answered(access=0)},
    "no rate": {"answer": answered(0)},
    "just the expected rate": {"answer": answered(LOW)},
    "below the expected rate": {"answer": answered(LOW - 0.1)},
    "smoke tests": {
        "tried": [
            Tried(kind, outcome, 0.1, f"{kind} said")
            for kind, outcome in (("chat", "ok"), ("json", "failed"), ("tool", "not judged"), ("vision", "not offered"))
        ]
    },
    **{
        f"golden: {rule}": {"golden": [Compared(True, "", (Difference(rule, f"{rule} was found"),), failed=True)]}
        for rule in ("numbers_differ", "template_differs", "smoke_failed", "regression", "memory_grows")
    },
    "as when it was last good": {"golden": [Compared(True, "as vllm 0.32, then")]},
    "nothing to compare with": {"golden": [Compared(words="nothing is kept yet")]},
    "it gave no number": {"golden": [Compared(failed=True, msg="a log probability is nan")]},
    "nothing over RDMA": {"moved": {"spark1": (0, 0), "spark2": (500, 500)}},
    "one half only": {"moved": {"spark1": (500, 0), "spark2": (500, 500)}},
    "one half of two cables": {"moved": {"spark1": (500, 500, 500, 0)}},
    "one half less": {"moved": {"spark1": (500, 100), "spark2": (100, 500)}},
    "one half just enough": {"moved": {"spark1": (600, 400), "spark2": (602, 398)}},
    "one of four halves less": {"moved": {"spark1": (400, 400, 400, 100), "spark2": (400, 400, 400, 300)}},
    "too few to tell": {"moved": {"spark1": (15.9, 0), "spark2": (16, 0)}},
    "not counted": {"moved": {"spark1": (None, 5), "spark2": (5, 5)}},
    "counted back": {"moved": {"spark1": (-0.0005, 5), "spark2": (5, 5)}},
    "not read": {"moved": {"spark1": (500, 500)}},
    "one half per machine": {"moved": {"spark1": (500,), "spark2": (500,)}},
    "Ray has lost one": {"ray": Counted(False, ("10.0.0.1",), msg="1 of 2 nodes")},
    "Ray does not say why": {"ray": Counted(reason="check mode")},
    "Ray was not asked": {"ray": Counted()},
    "Ray fails": {"ray": Counted(msg="no answer")},
    "a filter is off": {"filters": {"spark1": {}, "spark2": {"msg": "the kernel lacks the table"}}},
    "a filter was not asked": {"filters": {"spark2": {}}},
    "no filter": {"filters": {}},
    "the gateway answers": {"gateway": [answered()]},
    "the gateway does not": {"gateway": [failed("nothing listens")]},
    "the gateway was not asked": {"gateway": [Answered()]},
}


def test_what_is_found_of_every_answer():
    usual = list(judged().values())
    told = {name: [one for one in judged(**how).values() if one not in usual] for name, how in MORE.items()}
    told["all is well"] = usual
    hold("engine", ((name, of_verdicts(found)) for name, found in told.items()))


def test_the_document_has_what_was_judged():
    tried = [
        Tried(kind, outcome, 0.25, f"{kind} said")
        for kind, outcome in (("chat", "ok"), ("json", "failed"), ("tool", "not judged"))
    ]
    found = engine.smoked(PLANS, engine.Asked(smoke={"spark1": [Smoked(tuple(tried))]}))
    assert [(smoke.kind, smoke.ok, smoke.seconds) for smoke in found] == [("chat", True, 0.25), ("json", False, 0.25)]
    assert {smoke.service for smoke in found} == {HEAD.name}
