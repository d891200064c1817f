# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe as engine_probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import ProbeError, Question, Target
from fake_engine import KEY, MODEL, fake_engine, free_port

UNIT = "sparkmatrix-engine.service"


def target(engine, key=KEY):
    return Target("127.0.0.1", engine.port, MODEL, key)


def test_a_good_answer_is_measured():
    with fake_engine() as engine:
        answer = engine_probe.ask(target(engine), Question("hello", 4))
    assert (answer.model, answer.completion_tokens, answer.finish_reason) == (MODEL, 4, "length")
    assert answer.text == "w0 w1 w2 w3 "
    assert 0 < answer.first_token_s <= answer.seconds
    assert answer.tokens_per_s == pytest.approx(4 / answer.seconds, rel=0.05)
    method, path, body = engine.requests[0]
    assert (method, path) == ("POST", "/v1/chat/completions")
    assert body["max_tokens"] == 4
    assert body["messages"] == [{"role": "user", "content": "hello"}]


def test_a_stranger_on_the_port_gets_no_key(monkeypatch):
    who = ["python3 (process 7, account mallory)"]
    monkeypatch.setattr(engine_probe.listening, "stranger", lambda *_args: who[0])
    with fake_engine() as engine:
        with pytest.raises(ProbeError, match=r"the port belongs to python3 .*it gets no key") as caught:
            engine_probe.ask(target(engine), Question())
        assert caught.value.kind == "stranger"
        assert engine.requests == []
        # Without a key there is nothing to keep from him.
        with pytest.raises(ProbeError, match="HTTP 401"):
            engine_probe.ask(target(engine, ""), Question())


def test_who_takes_the_port_between_two_looks_gets_no_key(monkeypatch):
    looks = ["", "python3 (process 7, account mallory)"]
    monkeypatch.setattr(engine_probe.listening, "stranger", lambda *_args: looks.pop(0))
    with fake_engine() as engine:
        with pytest.raises(ProbeError, match="it gets no key"):
            engine_probe.ask(target(engine), Question())
        monkeypatch.setattr(engine_probe.listening, "stranger", lambda *_args: "")
        monkeypatch.setattr(engine_probe.listening, "holders", lambda *_args: [])  # it closed the port meanwhile
        with pytest.raises(ProbeError, match="nothing listens there"):
            engine_probe.ask(target(engine), Question())
        assert engine.requests == []


def test_an_engine_may_be_asked_by_name(monkeypatch):
    with fake_engine() as engine:
        named = replace(target(engine), host="localhost")
        assert engine_probe.ask(named, Question()).completion_tokens == 1
        asked = []
        monkeypatch.setattr(engine_probe.listening, "stranger", lambda _machine, host, _port: asked.append(host) or "")
        engine_probe.ask(named, Question())
        assert asked == ["localhost", "127.0.0.1"]


def test_an_engine_is_asked_for_its_models():
    with fake_engine() as engine:
        engine_probe.listed(target(engine))
        assert engine.requests == [("GET", "/v1/models", {})]
        with pytest.raises(ProbeError, match="its models are tiny"):
            engine_probe.listed(replace(target(engine), model="other"))
        with pytest.raises(ProbeError, match="HTTP 401"):
            engine_probe.listed(target(engine, "wrong"))
    with fake_engine("hang") as engine, pytest.raises(ProbeError, match="no complete answer"):
        engine_probe.listed(target(engine), 0.2)
    with pytest.raises(ProbeError, match="nothing listens there"):
        engine_probe.listed(Target("127.0.0.1", free_port(), MODEL))


@pytest.mark.parametrize(("mode", "tokens"), [("no-usage", 3), ("reasoning", 3), ("open", 3)])
def test_other_good_answers(mode, tokens):
    with fake_engine(mode) as engine:
        assert engine_probe.ask(target(engine), Question(max_tokens=3)).completion_tokens == tokens


@pytest.mark.parametrize(
    ("mode", "kind", "status", "text"),
    [
        ("hang", "timeout", 0, "time limit"),
        ("drip", "timeout", 0, "time limit"),
        ("slow", "timeout", 0, "time limit"),
        ("500", "status", 500, "EngineCore encountered an issue"),
        ("503-html", "status", 503, "busy"),
        ("404", "status", 404, "does not exist"),
        ("not-http", "garbage", 0, "broke"),
        ("cut", "garbage", 0, "ends in the middle"),
        ("truncated-json", "garbage", 0, "no chat completion"),
        ("not-an-object", "garbage", 0, "no chat completion"),
        ("choices-text", "garbage", 0, "no chat completion"),
        ("no-delta", "garbage", 0, "without a delta"),
        ("flood", "garbage", 0, "longer than"),
        ("error-event", "status", 0, "engine core died"),
        ("empty-choices", "empty", 0, "no token"),
        ("zero-tokens", "empty", 0, "no token"),
    ],
)
def test_bad_answers(mode, kind, status, text):
    with fake_engine(mode) as engine, pytest.raises(ProbeError) as caught:
        engine_probe.ask(
            target(engine), Question(max_tokens=8, timeout_s=0.4 if mode in ("hang", "drip", "slow") else 5)
        )
    assert (caught.value.kind, caught.value.status) == (kind, status)
    assert text in str(caught.value)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("task", "field", "count", "body"),
    [
        ("embed", "dimensions", 3, {"input": "hello", "encoding_format": "float"}),
        ("rank", "scores", 2, {"query": "hello", "documents": list(engine_probe.RANKED)}),
    ],
)
def test_an_answer_of_numbers_is_measured(task, field, count, body):
    with fake_engine() as engine:
        answer = engine_probe.ask(replace(target(engine), task=task), Question("hello"))
    assert (answer.model, getattr(answer, field), answer.completion_tokens) == (MODEL, count, 0)
    assert f"{count} " in answer.measured and "token" not in answer.measured
    assert engine.requests == [("POST", api_paths.PROBED[task], {"model": MODEL, **body})]


@pytest.mark.parametrize("task", ["embed", "rank"])
@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        *(("hang", "timeout"), ("404", "status"), ("html", "garbage"), ("no-vector", "garbage")),
        *(("nan", "garbage"), ("no-number", "empty")),
    ],
)
def test_bad_answers_of_numbers(task, mode, kind):
    with fake_engine(mode) as engine, pytest.raises(ProbeError) as caught:
        engine_probe.ask(replace(target(engine), task=task), Question(timeout_s=0.3 if mode == "hang" else 10))
    assert caught.value.kind == kind


def test_a_wrong_key_is_refused():
    with fake_engine() as engine:
        with pytest.raises(ProbeError, match="401") as caught:
            engine_probe.ask(target(engine, "wrong"), Question())
        assert caught.value.status == 401
        assert engine_probe.status_without_access(target(engine)) == 401


def test_an_api_without_a_key_is_seen():
    with fake_engine("open") as engine:
        assert engine_probe.status_without_access(target(engine)) == 200


def test_nothing_listens():
    nobody = Target("127.0.0.1", free_port(), MODEL)
    with pytest.raises(ProbeError) as caught:
        engine_probe.ask(nobody, Question())
    assert caught.value.kind == "refused"
    with pytest.raises(ProbeError):
        engine_probe.status_without_access(nobody)


def test_no_time_is_left():
    with fake_engine() as engine, pytest.raises(ProbeError, match="time limit"):
        engine_probe.ask(target(engine), Question(timeout_s=0))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('VLLM_API_KEY="abc"\n', "abc"),
        ("# our key\nVLLM_API_KEY=abc==\n", "abc=="),
        ("abcdef==\n", "abcdef=="),
        ("OTHER=1\nVLLM_API_KEY='abc'\n", "abc"),
    ],
)
def test_read_key(tmp_path, text, key):
    path = tmp_path / "key"
    path.write_text(text)
    assert engine_probe.read_key(str(path)) == key


@pytest.mark.parametrize("content", [b"", b"OTHER=1\n", b"a\nb\n", b"\xff\xfe\n"])
def test_a_file_without_a_key(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(SparkError):
        engine_probe.read_key(str(path))


def test_a_missing_or_unreadable_key_file(tmp_path):
    with pytest.raises(SparkError, match="does not exist"):
        engine_probe.read_key(str(tmp_path / "none"))
    with pytest.raises(SparkError, match="cannot be read"):
        engine_probe.read_key(str(tmp_path))


# -- waiting ----------------------------------------------------------------------------------------------------------


class System:
    """systemctl and journalctl with given answers, and a clock that moves only by sleeping."""

    def __init__(self, *states, journal=""):
        self.states = list(states)
        self.journal = journal
        self.now = 0.0

    def run(self, argv):
        if argv[0] == "journalctl":
            self.asked = argv
            return Completed(0, self.journal)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return Completed(0, state)

    def sleep(self, seconds):
        self.now += seconds

    def clock(self):
        return self.now


RUNNING = "LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=7\nNRestarts=2\nInvocationID=first\n"
RESTARTED = RUNNING.replace("NRestarts=2", "NRestarts=3").replace("first", "second")
RESTARTING = RUNNING.replace("active\nSubState=running", "activating\nSubState=auto-restart")
FAILED = RUNNING.replace("active\nSubState=running", "failed\nSubState=failed") + "Result=exit-code\nExecMainStatus=1\n"


def wait(system, ask_target, timeout_s=30, unit=UNIT):
    return engine_probe.wait_ready(
        ask_target,
        Question(timeout_s=1),
        unit,
        timeout_s,
        Machine("/", system.run, system.sleep, system.clock),
    )


def test_it_asks_again_until_the_engine_is_there():
    system = System(RUNNING)
    with fake_engine() as engine:
        ports = [free_port(), free_port(), engine.port]
        answer = wait(system, lambda: Target("127.0.0.1", ports.pop(0), MODEL, KEY))
    assert answer.completion_tokens == 1
    assert system.now == 2 * engine_probe.POLL_S


@pytest.mark.parametrize("state", [FAILED, RESTARTING, RESTARTED, FAILED.replace("failed", "inactive")])
def test_it_ends_early_when_the_unit_has_died(state):
    system = System(RUNNING, RUNNING, state, journal="torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB\n")
    with pytest.raises(SparkError, match="died while it started") as caught:
        wait(system, lambda: Target("127.0.0.1", free_port(), MODEL))
    assert system.now < 5
    assert "ran out of memory" in str(caught.value)
    assert "engine_context" in str(caught.value)
    assert "_SYSTEMD_INVOCATION_ID=first" in system.asked


def test_the_time_limit():
    system = System(RUNNING)
    with pytest.raises(SparkError, match="no token within 5 s; last: nothing listens"):
        wait(system, lambda: Target("127.0.0.1", free_port(), MODEL), timeout_s=5)
    with pytest.raises(SparkError, match="See its log"):
        wait(System(RUNNING), lambda: Target("127.0.0.1", free_port(), MODEL), timeout_s=0, unit="")


@pytest.mark.parametrize(
    ("mode", "key", "text"), [("good", "wrong", "another key"), ("404", KEY, "not the planned one")]
)
def test_it_does_not_wait_for_what_time_cannot_cure(mode, key, text):
    system = System(RUNNING)
    with fake_engine(mode) as engine, pytest.raises(SparkError, match=text):
        wait(system, lambda: target(engine, key))
    assert system.now == 0


# -- sparkmatrix-node probe -------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path):
    def write(engine, **changes):
        (tmp_path / "key").write_text(f'VLLM_API_KEY="{KEY}"\n')
        document = {"engine": "vllm", "backend": "ray", "endpoint": "http://e/v1", "host": "127.0.0.1", "nodes": 4}
        document.update(port=engine.port, model=MODEL, key_file=str(tmp_path / "key"), **changes)
        path = tmp_path / "engine.json"
        path.write_text(json.dumps(document))
        return str(path)

    return write


def test_the_command_prints_one_json_object(config, capsys):
    with fake_engine() as engine:
        code = _node_program.main(
            ["probe", "--json", "--max-tokens", "3", "--prompt", "hi", "--config", config(engine)]
        )
    told = json.loads(capsys.readouterr().out)
    assert code == 0
    assert told["ok"]
    assert (told["engine"], told["backend"], told["endpoint"]) == ("vllm", "ray", "http://e/v1")
    assert (told["model"], told["completion_tokens"]) == (MODEL, 3)
    assert told["tokens_per_s"] > 0


def test_the_command_for_people(config, capsys):
    with fake_engine() as engine:
        assert _node_program.main(["probe", "--max-tokens", "2", "--config", config(engine)]) == 0
    assert "2 tokens in" in capsys.readouterr().out
    with fake_engine() as engine:
        assert _node_program.main(["probe", "--config", config(engine, task="embed")]) == 0
    assert capsys.readouterr().out.startswith(f"-- {MODEL}: an embedding of 3 numbers")


def test_the_command_fails_with_a_reason(config, capsys, tmp_path):
    with fake_engine("500") as engine:
        path = config(engine)
        assert _node_program.main(["probe", "--json", "--config", path]) == 1
        assert "HTTP 500" in json.loads(capsys.readouterr().out)["error"]
        assert _node_program.main(["probe", "--config", path]) == 1
        assert "gives no answer" in capsys.readouterr().out
    assert _node_program.main(["probe", "--config", str(tmp_path / "none")]) == 1
    assert "Ask the head" in capsys.readouterr().out
