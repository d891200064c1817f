# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import ray_cluster as rc
from module_runner import run_call

WANTED = ("10.0.0.1", "10.0.0.2")
PLANNED = {"spark1": "10.0.0.1", "spark2": "10.0.0.2"}


def nodes(*addresses, dead=()):
    made = [{"address": address, "alive": True, "gpus": 1} for address in addresses]
    return made + [{"address": address, "alive": False, "gpus": 0} for address in dead]


@pytest.mark.parametrize(
    ("present", "missing", "duplicate", "foreign"),
    [
        (nodes(*WANTED), (), (), ()),
        (nodes(*reversed(WANTED), dead=("10.0.0.2", "10.0.0.9")), (), (), ()),
        (nodes("10.0.0.1", dead=("10.0.0.2",)), ("10.0.0.2",), (), ()),
        (nodes(*WANTED, "10.0.0.2"), (), ("10.0.0.2",), ()),
        (nodes(*WANTED, "10.0.0.9"), (), (), ("10.0.0.9",)),
        (None, WANTED, (), ()),
        ([{"alive": True}], WANTED, (), ("",)),
    ],
)
def test_judge(present, missing, duplicate, foreign):
    verdict = rc.judge(present, WANTED)
    assert (verdict.missing, verdict.duplicate, verdict.foreign) == (missing, duplicate, foreign)
    assert verdict.complete == (not missing + duplicate + foreign)


def test_the_sentence_names_hosts():
    verdict = rc.judge(nodes("10.0.0.1", "10.0.0.1", "10.0.0.9"), WANTED, "ConnectionError: x")
    assert verdict.sentence(PLANNED) == (
        "3 nodes are alive, 2 are planned; Ray said: ConnectionError: x; missing: spark2 (10.0.0.2);"
        " there more than once: spark1 (10.0.0.1); not planned: 10.0.0.9"
    )


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ('talk\n{"nodes": [{"address": "a", "alive": true}], "error": ""}\n', ([{"address": "a", "alive": True}], "")),
        ('{"nodes": null, "error": "E: x"}', (None, "E: x")),
        ('{"nodes": null, "error": ""}\nlater talk', (None, "")),
        ("", (None, "the query gave no answer")),
        ('{"nodes": 3}\n[1]\n{"a": 1}', (None, "the query gave no answer")),
    ],
)
def test_parse(output, expected):
    assert rc.parse(output) == expected


class Query:
    """Gives one output after the other and moves its clock by sleeping."""

    def __init__(self, *outputs):
        self.outputs = list(outputs)
        self.calls = []
        self.now = 0.0

    def run(self, argv, environment, user, timeout_s):
        self.calls.append((list(argv), dict(environment), user, timeout_s))
        return self.outputs.pop(0) if len(self.outputs) > 1 else self.outputs[0]

    def sleep(self, seconds):
        self.now += seconds

    def read(self, timeout_s=30.0):
        query = rc.Query("/venv/python", "10.0.0.1:6379", PLANNED, {"RAY_AUTH_MODE": "token"}, "svc", timeout_s)
        return rc.read(query, self.run, lambda: self.now, self.sleep)


def reply(present, error=""):
    return 0, json.dumps({"nodes": present, "error": error}), ""


def test_a_complete_cluster_is_asked_once():
    query = Query(reply(nodes(*WANTED)))
    assert query.read().complete
    ((argv, environment, user, timeout_s),) = query.calls
    assert argv[0] == "/venv/python"
    assert argv[3:] == ["10.0.0.1:6379", '["10.0.0.1", "10.0.0.2"]', "30.0"]
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["PATH"]
    assert (user, timeout_s) == ("svc", 30.0 + rc.GRACE_S)


def test_a_ray_in_a_container_is_asked_there():
    """Its environment has the token's path already, and only root may talk to Docker."""
    query = Query(reply(nodes(*WANTED)))
    wanted = rc.Query("python3", "10.0.0.1:6379", PLANNED, {"RAY_AUTH_MODE": "token"}, "svc", 30.0, "sparkmatrix-ray")
    assert rc.read(wanted, query.run, lambda: query.now, query.sleep).complete
    ((argv, environment, user, _timeout_s),) = query.calls
    assert argv[:5] == ["docker", "exec", "sparkmatrix-ray", "python3", "-c"]
    assert (list(environment), user) == (["PATH"], "")


def test_a_query_that_dies_is_repeated():
    query = Query((134, "", "Check failed\nCannot reach GCS"), reply(nodes("10.0.0.1")), reply(nodes(*WANTED)))
    assert query.read().complete
    assert len(query.calls) == 3
    assert query.calls[2][0][5] == "28.0"


def test_the_time_limit_and_the_last_word():
    query = Query((134, "", "Check failed\nCannot reach GCS\n"))
    verdict = query.read(2.0)
    assert verdict.error == "Cannot reach GCS"
    assert verdict.missing == WANTED
    assert query.now == 2.0
    assert Query((1, "", "")).read(0).error == "the query gave no answer"


def test_execute():
    code, out, err = rc.execute(
        [sys.executable, "-c", "import os, sys; print(os.environ['A']); sys.stderr.write('e'); sys.exit(3)"],
        {"A": "b"},
        "",
        30,
    )
    assert (code, out.strip(), err) == (3, "b", "e")


def test_execute_takes_too_long():
    assert rc.execute([sys.executable, "-c", "import time; time.sleep(9)"], {}, "", 0.2)[0] == 124


@pytest.mark.parametrize(("program", "user"), [("/no/such/python", ""), (sys.executable, "no-such-user-here")])
def test_execute_without_program_or_user(program, user):
    with pytest.raises(SparkError, match="Ray cannot be asked"):
        rc.execute([program, "-c", ""], {}, user, 5)


FAKE_RAY = """
state = {"calls": 0}
def is_initialized():
    return state["calls"] > 1
def init(**options):
    state["calls"] += 1
    if state["calls"] == 1:
        raise ConnectionError("not yet")
def nodes():
    first = {"NodeManagerAddress": "10.0.0.1", "Alive": True, "Resources": {"GPU": 1.0}}
    second = {"NodeManagerAddress": "10.0.0.2", "Alive": True, "Resources": None}
    state["calls"] += 1
    return [first, second] if state["calls"] > 3 else [first]
"""


@pytest.mark.parametrize(("seconds", "count"), [("20", 2), ("0", 0)])
def test_the_script_itself(tmp_path, seconds, count):
    (tmp_path / "ray.py").write_text(FAKE_RAY)
    done = subprocess.run(
        [sys.executable, "-c", rc.SCRIPT, "10.0.0.1:6379", json.dumps(list(WANTED)), seconds],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    present, error = rc.parse(done.stdout)
    assert len(present or []) == count
    assert error == ("" if count else "ConnectionError: not yet")


def waited(monkeypatch, answer, check=False):
    asked = []

    def read(query):
        asked.append(query)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(rc, "read", read)
    request = {"python": "python3", "address": "10.0.0.1:6379", "nodes": PLANNED, "timeout_s": 7}
    return (*run_call("ray_cluster", request, check=check), asked[0])


def test_an_incomplete_cluster_is_a_failure_but_in_check_mode(monkeypatch):
    result, failed, query = waited(monkeypatch, rc.Verdict(WANTED))
    assert (failed, result["complete"], result["alive"], query.timeout_s) == (False, True, list(WANTED), 7)
    verdict = rc.Verdict(WANTED[:1], missing=WANTED[1:])
    result, failed, _query = waited(monkeypatch, verdict)
    assert failed and "missing: spark2 (10.0.0.2)" in result["msg"] and result["alive"] == ["10.0.0.1"]
    result, failed, query = waited(monkeypatch, verdict, check=True)
    assert (failed, result["complete"], query.timeout_s) == (False, False, 0)
    assert waited(monkeypatch, SparkError("no python"))[1]
    assert "no python" in waited(monkeypatch, SparkError("no python"), check=True)[0]["reason"]
