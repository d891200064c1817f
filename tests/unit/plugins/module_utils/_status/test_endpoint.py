# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix env``: what a head tells of a model, and what of it is believed elsewhere."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Member, NodePlan, Offer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import endpoint
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status.endpoint import Endpoint

KEY = "sk-0123456789abcdef"
TOLD = Endpoint("http://127.0.0.1:8000/v1", 8000, KEY, "Qwen/Qwen3-8B", "generate")


def test_what_is_written_is_read():
    assert endpoint.load(TOLD.write()) == TOLD
    assert json.loads(TOLD.write())["schema_version"] == 1
    assert TOLD.host == "127.0.0.1"
    without = replace(TOLD, api_key="", base_url="http://spark2-fabric:8000/v1")
    assert endpoint.load(without.write()).host == "spark2-fabric"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"base_url": "http://-oProxyCommand=id:8000/v1"}, "base_url is"),
        ({"base_url": "http://spark1:8000/v1'; id; '"}, "base_url is"),
        ({"base_url": "http://spark1:8001/v1"}, "and port is 8000"),
        ({"base_url": "https://spark1:8000/v1"}, "expected http://<host>:<port>/v1"),
        ({"port": 70000, "base_url": "http://a:70000/v1"}, "port is 70000"),
        ({"port": "8000"}, "port is '8000'"),
        ({"api_key": "a' b"}, "api_key has other signs"),
        ({"api_key": "a\nb"}, "api_key has other signs"),
        ({"api_key": "a\x1bb"}, "control characters"),
        ({"model": "a'; id"}, "model is"),
        ({"model": ""}, "model is"),
        ({"model": None}, "model is None"),
        ({"task": "dance"}, "task is 'dance'"),
        ({"more": 1}, "unknown keys: more"),
        ({"schema_version": 2}, "this release reads 1"),
    ],
)
def test_whatever_else_it_is_is_refused(values, says):
    with pytest.raises(SparkError, match="no endpoint of a model") as caught:
        endpoint.load(json.dumps({**document.plain(TOLD), **values}))
    assert says in str(caught.value)
    assert "a' b" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", "sudo: a password is required", b"\xff"])
def test_what_is_no_object(text):
    with pytest.raises(SparkError, match="no endpoint"):
        endpoint.load(text)


def test_a_shell_reads_the_lines():
    text = f"{TOLD.exports()}\nprintf '%s %s %s' $OPENAI_BASE_URL $OPENAI_API_KEY $OPENAI_MODEL"
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == f"http://127.0.0.1:8000/v1 {KEY} Qwen/Qwen3-8B"
    assert "OPENAI_API_KEY='none'" in replace(TOLD, api_key="").exports()


# -- on the head ------------------------------------------------------------------------------------------------------


@pytest.fixture
def head(tmp_path, monkeypatch):
    """Writes descriptions and the kept plan of a node; ``run`` is the command there, as root."""
    monkeypatch.setattr(endpoint.os, "geteuid", lambda: 0)
    (tmp_path / "etc/sparkmatrix").mkdir(parents=True)
    key = tmp_path / "key.env"
    key.write_text(f'VLLM_API_KEY="{KEY}"\n')

    class Head:
        root = str(tmp_path)

        def told(self, name="", model="tiny", rank=0, **values):
            members = (Member("spark1", 0, "a", True, True), Member("spark2", 1, "b", True, False))
            made = Description("127.0.0.1", 8000, model, str(key), ("u",), members, instance=name, rank=rank)
            path = tmp_path / f"etc/sparkmatrix/engine{name and f'-{name}'}.json"
            path.write_text(json.dumps(replace(made, **values).as_dict()))

        def planned(self, *offers):
            path = kept_plan._path(kept_plan.CURRENT, self.root)
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(NodePlan("spark1", services=offers).as_dict()))

        def run(self, *words):
            return endpoint.run(_node_program.parser("env").parse_args(["env", *words]), self.root)

        @staticmethod
        def offer(name, model, host="127.0.0.1", task="generate"):
            return Offer(name, model, host, 8001, True, task, str(key))

    return Head()


def test_lines_and_json(head, capsys):
    head.told()
    assert head.run() == 0
    assert capsys.readouterr().out.splitlines() == [
        "export OPENAI_BASE_URL='http://127.0.0.1:8000/v1'",
        f"export OPENAI_API_KEY='{KEY}'",
        "export OPENAI_MODEL='tiny'",
    ]
    assert head.run("--json") == 0
    assert endpoint.load(capsys.readouterr().out) == replace(TOLD, model="tiny")


def test_an_engine_that_asks_for_no_key(head, capsys):
    head.told(key=False, key_file="/nonexistent")
    assert head.run("--json") == 0
    assert endpoint.load(capsys.readouterr().out).api_key == ""


def test_several_services_and_those_on_other_heads(head, capsys):
    head.told("words", "embedder", task="embed", port=8002)
    head.told("chat", "talker", port=8003)
    head.told("far", "distant", rank=1, host="10.0.0.2")
    head.planned(
        head.offer("words", "old", task="embed"),
        head.offer("far", "distant", "10.0.0.2"),
        head.offer("chat", "talker"),
        head.offer("engine", "gone"),
    )
    assert [offer.model for offer in endpoint.services(head.root)] == ["embedder", "distant", "talker"]
    assert head.run("--json") == 0
    assert endpoint.load(capsys.readouterr().out).base_url == "http://10.0.0.2:8001/v1"
    assert head.run("--json", "--model", "embedder") == 0
    assert endpoint.load(capsys.readouterr().out).task == "embed"
    assert head.run("--model", "gone") == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "There is: embedder, distant, talker" in shown.err


def test_a_node_that_is_no_head(head, capsys):
    assert head.run() == 1
    assert "sudo sparkmatrix status" in capsys.readouterr().err
    head.told(rank=1)
    assert head.run("--json") == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "Ask on spark1" in shown.err


def test_a_name_that_no_shell_should_get(head, capsys):
    head.told(model="my model")
    assert head.run() == 1
    assert "served_model_name" in capsys.readouterr().err


def test_only_root(head, monkeypatch, capsys):
    monkeypatch.setattr(endpoint.os, "geteuid", lambda: 1000)
    assert head.run() == 1
    assert "sudo sparkmatrix env" in capsys.readouterr().err
