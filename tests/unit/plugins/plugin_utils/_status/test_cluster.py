# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from planning import plan
from status_documents import ELSEWHERE, SERVICE, said

DEAD = {"unreachable": True, "msg": "Failed to connect to the host via ssh: No route to host", "changed": False}


def judged(**answers):
    return plan("cluster_status", {"answers": answers}, head="spark1")


def test_the_head_speaks_for_all():
    found = judged(spark1=said(), spark2=said(ELSEWHERE))
    assert found["serving"]
    assert found["lines"][0] == "engine    serving: it serves"
    assert [line for line in found["lines"] if line.endswith("fabric verified")] != []
    assert "no answer" not in "\n".join(found["lines"])


def test_a_dead_worker_is_named():
    found = judged(spark1=said(), spark2=DEAD)
    assert found["serving"], "by the word of the head, which asks the engine"
    assert found["lines"][-1] == "no answer spark2: No route to host"


def test_dead_machines_are_one_line():
    hosts = {f"spark{n}": {**DEAD, "msg": f"no address of spark{n}.local"} for n in range(2, 5)}
    found = judged(spark1=said(), **hosts)
    assert found["lines"][-1] == "no answer spark2..spark4: no address of spark2.local (and spark3.local, spark4.local)"
    found = judged(spark1=DEAD, spark2=DEAD)
    assert found["lines"] == ["no answer spark1, spark2 (spark1 is the head): No route to host"]
    assert found["verdict"].startswith("Its head spark1 does not answer, so nobody can tell")


def test_before_the_first_run_there_is_nothing_to_ask():
    bare = {"rc": 2, "stdout": "", "msg": "Error executing command.", "changed": False}
    found = judged(spark1=bare, spark2={**DEAD, "msg": f"Task failed: {DEAD['msg']}"})
    assert found["lines"] == [
        "no answer spark1 (the head): it is not set up yet: run site.yml",
        "no answer spark2: No route to host",
    ]
    assert found["verdict"].endswith(
        "What to do about machines that do not answer: ansible-playbook playbooks/preflight.yml"
    )
    nothing = judged(spark1=bare, spark2=bare)
    assert nothing["lines"][0].startswith("no answer spark1, spark2 (spark1 is the head): it is not set up yet")
    assert nothing["verdict"] == "Nothing is set up on these machines yet. Next: ansible-playbook site.yml"


def test_without_the_head_nobody_can_tell():
    found = judged(spark1=DEAD, spark2=said(ELSEWHERE))
    assert not found["serving"]
    assert found["lines"][0].startswith("nodes     spark2")
    assert found["lines"][-1].startswith("no answer spark1 (the head): ")


def test_a_service_with_a_head_of_its_own_counts():
    stopped = {**SERVICE, "serving": False, "answers": False, "stopped": {"by": "stop.yml", "time": "t", "user": ""}}
    found = judged(spark1=said(), spark2=said(stopped))
    assert not found["serving"]
    assert "on spark2 engine    Stopped by stop.yml at t" in found["lines"]
    assert found["verdict"] == "The cluster does not serve: see above. Next: ansible-playbook playbooks/start.yml"
    dead = judged(spark1=said(), spark2=said({**stopped, "stopped": None}))
    assert dead["verdict"].endswith(". Next: ansible-playbook playbooks/doctor.yml  (names the cause)")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"rc": 2, "stdout": "", "msg": "[Errno 2] No such file or directory"}, "No such file or directory"),
        (said(schema=2), "of another release"),
        ({"rc": 1, "stdout": '{"schema": 1, "problem": "no engine is set up on this node"}'}, "no engine is set up"),
    ],
)
def test_a_machine_without_a_status_says_why(answer, says):
    found = judged(spark1=answer, spark2=DEAD)
    assert not found["serving"]
    assert says in found["lines"][0]


@pytest.mark.parametrize("text", ["{", '{"schema": 1, "services": {"": {"unit": 1}}}', "[]", '"\\u001b[2J"'])
def test_what_a_machine_says_is_not_trusted(text):
    found = judged(spark1={"rc": 0, "stdout": text}, spark2=DEAD)
    assert not found["serving"]
    assert "spark1 (the head): its status is not understood" in "\n".join(found["lines"])
    assert "\x1b" not in "\n".join(found["lines"])
