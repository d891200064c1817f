# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan as kept
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Kept
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Cluster,
    Environment,
    NodePlan,
    Prefixes,
)
from engine_plans import PLAN
from module_runner import run_call

IDLE = NodePlan("spark1")


def plan(identity, **more):
    return replace(PLAN, identity=identity, **more)


def serving(**services):
    """A plan with services by name and what makes them another one."""
    here = (replace(PLAN.here[0], instance=name.strip("_"), config_hash=mark) for name, mark in services.items())
    return replace(PLAN, here=tuple(here))


def test_the_one_before_is_kept(tmp_path):
    root = str(tmp_path)
    assert kept.read(root) == Kept(None, None)
    assert kept.keep(plan("a"), root, check_mode=True)
    assert kept.read(root).current is None
    assert kept.keep(plan("a"), root)
    assert not kept.keep(plan("a", model_cache="measured otherwise"), root)
    assert kept.read(root) == Kept(plan("a"), None)
    assert kept.keep(plan("b"), root)
    assert kept.read(root) == Kept(plan("b"), plan("a"))
    assert kept.keep(plan("a"), root)
    assert kept.read(root) == Kept(plan("a"), plan("b"))


def test_ids_of_images_are_kept_and_make_no_step(tmp_path):
    root = str(tmp_path)
    assert kept.keep(plan("a", image_ids={"x": "sha256:1"}), root)
    assert not kept.keep(plan("a", image_ids={"x": "sha256:1"}), root)
    assert kept.keep(plan("a", image_ids={"x": "sha256:2"}), root)
    assert kept.read(root) == Kept(plan("a", image_ids={"x": "sha256:2"}), None)


def test_both_are_put_back(tmp_path):
    root = str(tmp_path)
    for identity in "abc":
        kept.keep(plan(identity), root)
    assert kept.put(plan("b"), plan("a"), root, check_mode=True)
    assert kept.read(root).current == plan("c")
    assert kept.put(plan("b"), plan("a"), root)
    assert not kept.put(plan("b"), plan("a"), root)
    assert kept.read(root) == Kept(plan("b"), plan("a"))
    assert kept.put(plan("b"), None, root)
    assert kept.read(root) == Kept(plan("b"), None)


def test_what_services_kept_of_prompts_goes_with_their_cache(tmp_path):
    base, own = tmp_path / paths.PREFIXES[1:], Prefixes(f"{paths.PREFIXES}/chat", "key", 200)
    chat, small = base / "chat/key/file", base / "small/key/file"
    for file in (chat, small):
        file.parent.mkdir(parents=True)
        file.write_text("computed")
    (base / "small/link").symlink_to(base / "chat")
    (base / "elsewhere").symlink_to(base / "chat")
    one = replace(PLAN.here[0], prefixes=own)
    for plan_with_chat in (replace(PLAN, here=(one,)), replace(PLAN, at_hand=(one,))):  # also of a model at hand
        assert kept.drop_prefixes(plan_with_chat, str(tmp_path), check_mode=True) is small.exists()
        kept.drop_prefixes(plan_with_chat, str(tmp_path))
        assert (chat.exists(), list((base / "small").iterdir())) == (True, [])
    assert not kept.drop_prefixes(replace(PLAN, here=(one,)), str(tmp_path))
    assert kept.drop_prefixes(PLAN, str(tmp_path))
    assert list((base / "chat").iterdir()) == []


@pytest.mark.parametrize(
    ("removed", "left"), [(lambda root, **how: kept.drop_prefixes(PLAN, root, **how), True), (kept.forget, False)]
)
def test_directories_in_each_other_keep_nothing_from_being_removed(tmp_path, monkeypatch, removed, left):
    """An engine may make as many as it likes there."""
    own = tmp_path / paths.PREFIXES[1:] / "chat"
    own.mkdir(parents=True)
    monkeypatch.chdir(own)
    for _deep in range(1500):
        os.mkdir("key")
        os.chdir("key")
    os.chdir(tmp_path)
    assert removed(str(tmp_path), check_mode=True) and list(own.iterdir()) != []
    assert removed(str(tmp_path)) and list(own.parent.rglob("*")) == [own] * left
    assert not removed(str(tmp_path))


def test_which_services_differ():
    assert kept.differing(None, None) == kept.differing(IDLE, None) == []
    assert kept.differing(serving(_="a"), serving(_="b")) == [""]
    assert kept.differing(serving(chat="a", small="s"), serving(chat="a", small="t")) == ["small"]
    assert kept.differing(serving(chat="a"), serving(code="a")) == ["chat", "code"]
    assert kept.differing(replace(serving(chat="a"), identity="another"), serving(chat="a")) == []


def test_which_services_there_are():
    assert kept.services(None, IDLE) == kept.services(serving(_="a")) == []
    assert kept.services(serving(chat="", small=""), serving(chat="", code=""), serving(_="")) == [
        "chat",
        "code",
        "small",
    ]


def test_forget(tmp_path):
    root = str(tmp_path)
    assert not kept.forget(root)
    kept.keep(plan("a"), root)
    assert kept.forget(root, check_mode=True)
    assert kept.forget(root)
    assert not kept.forget(root)


OLD = {key: value for key, value in PLAN.as_dict().items() if key != "schema"}


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("{", "current.json: it cannot be read"),
        (json.dumps(OLD), "was made by another release: it has schema none, this one reads 1. Run site.yml"),
        (json.dumps({**OLD, "schema": 0}), "it has schema 0"),
        (json.dumps({**OLD, "schema": 1, "here": [{}]}), "is damaged (here[0].instance is missing)"),
    ],
)
def test_what_cannot_be_read_is_said_and_replaced(tmp_path, text, refused):
    root = str(tmp_path)
    kept.keep(plan("a"), root)
    kept.keep(plan("b"), root)
    (tmp_path / "var/lib/sparkmatrix/plan/current.json").write_text(text)
    found = kept.read(root)
    assert (found.current, found.previous) == (None, plan("a"))
    assert "/var/lib/sparkmatrix/plan/current.json" in found.refused and refused in found.refused
    assert kept.keep(plan("c"), root)
    assert kept.read(root) == Kept(plan("c"), plan("a"))


def test_a_plan_of_another_release_does_not_stay_where_none_is_to_be_kept(tmp_path):
    root = str(tmp_path)
    kept.keep(plan("a"), root)
    kept.keep(plan("b"), root)
    path = next(tmp_path.rglob("previous.json"))
    path.write_text('{"schema": 0}')
    assert kept.put(plan("b"), None, root)
    assert not path.exists()
    assert not kept.put(plan("b"), None, root)


def another(path: str = "/opt/a", requirement: str = "vllm==1", nodes: int = 2, services: str = "chat") -> NodePlan:
    here = tuple(replace(PLAN.here[0], instance=name, config_hash=requirement) for name in services.split(","))
    environments = (Environment(path, (requirement,)),)
    return replace(PLAN, here=here, environments=environments, cluster=replace(Cluster(), nodes=nodes))


@pytest.mark.parametrize(
    ("kind", "there", "planned", "service", "says"),
    [
        ("upgrade", Kept(None, None), another(), "", "no plan is kept here"),
        ("upgrade", Kept(None, None, "kept by another release"), another(), "", "kept by another release"),
        ("upgrade", Kept(another(), None), another(), "", ""),
        ("upgrade", Kept(another(), None), another("/opt/b", "vllm==2"), "chat", ""),
        (
            "upgrade",
            Kept(another(), None),
            another(requirement="vllm==2"),
            "",
            "/opt/a is the environment",
        ),
        ("upgrade", Kept(another(), None), another("/opt/b", "vllm==2"), "other", "chat would be served otherwise"),
        ("upgrade", Kept(another(services=""), None), another(), "chat", "the service that was alone would be served"),
        ("rollback", Kept(another(), None), None, "", "no earlier plan is kept here"),
        ("rollback", Kept(another(), another("/opt/b", "vllm==2")), None, "", ""),
        ("rollback", Kept(another(), another(nodes=3)), None, "", "for 3 nodes, the inventory has 2"),
        ("rollback", Kept(another(), another("/opt/b", "vllm==2")), None, "other", "chat would be served otherwise"),
    ],
)
def test_what_is_refused(kind: str, there: Kept, planned: NodePlan | None, service: str, says: str) -> None:
    if not says:
        kept.check_way_back(kind, there, planned, 2, service)
        return
    with pytest.raises(SparkError) as refused:
        kept.check_way_back(kind, there, planned, 2, service)
    assert says in str(refused.value)


def test_the_call(monkeypatch, tmp_path):
    monkeypatch.setattr(kept, "DIRECTORY", str(tmp_path))
    monkeypatch.setattr(paths, "PREFIXES", f"{tmp_path}/prefixes")
    served = serving(chat="a").as_dict()
    planned = replace(serving(code="a"), identity="b").as_dict()
    assert run_call("kept_plan", {"plan": served})[0]["changed"]
    assert not run_call("kept_plan", {"plan": served})[0]["changed"]
    assert run_call("kept_plan", {"plan": served, "images": {"x": "sha256:1"}})[0]["changed"]
    result, _failed = run_call("kept_plan", {"state": "read"})
    assert (result["current"], result["previous"]) == ({**served, "image_ids": {"x": "sha256:1"}}, None)
    result, _failed = run_call("kept_plan", {"state": "read", "plan": planned})
    assert (result["differing"], result["services"]) == (["chat", "code"], ["chat", "code"])
    assert run_call("kept_plan", {"state": "read", "change": "rollback", "nodes": 2})[1], "there is no earlier plan"
    assert run_call("kept_plan", {"state": "restored", "plan": planned, "previous": served})[0]["changed"]
    assert run_call("kept_plan", {"plan": {}})[1]
    assert run_call("kept_plan", {"state": "absent"})[0]["changed"]
