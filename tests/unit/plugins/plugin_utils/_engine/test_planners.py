# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan
from engine_plans import PLAN, node_plans, with_service
from planning import plan

IMAGE = "x/y:v0.33.0"
CONTAINER = with_service(runtime="container", image=IMAGE).as_dict()
CONTAINER["images"] = [{"name": IMAGE}]
PLANS = {"spark1": CONTAINER, "spark2": CONTAINER, "spark3": NodePlan("spark3").as_dict()}


def judge(plans, images, **options):
    return plan("images", {"plans": plans, "images": images, "facts": dict.fromkeys(plans)}, **options)


def seen(first, second, contents=None, **more):
    return {
        "spark1": {"ids": {IMAGE: first}, "contents": {IMAGE: (contents or [first])[0]}, **more},
        "spark2": {"ids": {IMAGE: second}, "contents": {IMAGE: (contents or [second])[-1]}},
        "spark3": {"skipped": True},
    }


def test_the_same_images_everywhere():
    result = judge(PLANS, seen("sha256:1", "sha256:1"))
    assert not result.get("failed") and result["warnings"] == []


def test_all_images_that_differ_are_named():
    result = judge(PLANS, seen("sha256:1", "sha256:2"))
    assert result["failed"]
    assert "nothing was started" in result["msg"] and "spark1 sha256:1, spark2 sha256:2" in result["msg"]


def test_the_same_image_in_another_store_has_another_id():
    result = judge(PLANS, seen("sha256:1", "sha256:2", contents=["content:a"]))
    assert not result.get("failed") and result["warnings"] == []
    assert judge(PLANS, seen("sha256:1", "sha256:1", contents=["content:a", "content:b"]))["failed"]


def test_an_image_that_is_gone_is_a_warning():
    kept = {**PLANS, "spark1": {**PLANS["spark1"], "image_ids": {IMAGE: "sha256:0"}}}
    result = judge(kept, seen("sha256:1", "sha256:1"))
    assert not result.get("failed") and len(result["warnings"]) == 1
    assert "sha256:0, which is gone" in result["warnings"][0]


def test_what_is_missing_is_fetched():
    assert judge(PLANS, seen("sha256:1", "sha256:1"))["rounds"] == []
    (only,) = judge(PLANS, seen("", ""))["rounds"]  # without cables each fetches for itself
    assert {host: offer["fetch"] for host, offer in only["offers"].items()} == {"spark1": [IMAGE], "spark2": [IMAGE]}
    assert only["receipts"] == {}


def test_an_archive_that_no_node_has():
    assert "spark1, spark2, spark3: there is no file /x.tar" in judge(PLANS, seen("", ""), archive="/x.tar")["msg"]
    assert not judge(PLANS, seen("sha256:1", "sha256:1"), archive="/x.tar").get("failed")  # it is not needed
    (only,) = judge(PLANS, seen("", "", archive=True), archive="/x.tar")["rounds"]
    assert [receipt["source"] for receipt in only["receipts"]["spark1"]] == ["spark1"]


def test_an_image_for_another_kind_of_machine():
    foreign = {"platforms": {IMAGE: "linux/amd64"}, "platform": "linux/arm64"}
    text = judge(PLANS, seen("sha256:1", "sha256:1", **foreign))["msg"]
    assert f"spark1: {IMAGE} is for linux/amd64, and these machines are linux/arm64" in text
    fits = {**foreign, "platforms": {IMAGE: "linux/arm64"}}
    assert not judge(PLANS, seen("sha256:1", "sha256:1", **fits)).get("failed")


def test_images_of_no_plan():
    assert "spark1: there is no engine plan" in judge({"spark1": {}}, {"spark1": {}})["msg"]


def test_files_of_the_engine():
    result = plan(
        "engine_files",
        plan=PLAN.as_dict(),
        keeper={"hang_s": 600, "stable_s": 7.5},
        trial=False,
        key_mark="f",
        tool_mark="t",
    )
    files = {item["path"]: item["content"] for item in result["files"]}
    assert '"hang_s": 600,\n' in files["/etc/sparkmatrix/engine.json"]
    told = json.loads(files["/etc/sparkmatrix/engine.json"])["keeper"]
    assert (told["stable_s"], told["trial"]) == (7.5, False)
    (keeper,) = result["keepers"]
    assert f"HASH={keeper['config_hash']}\n" in files[f"/etc/systemd/system/{keeper['unit']}"]
    assert keeper["unit"] in result["units"]


def test_a_keeper_that_serves_with_this_configuration_is_told_from_others():
    def serves(**running):
        return plan("engine_files", plan=PLAN.as_dict(), running=running)["keepers"][0]["serves"]

    (keeper,) = plan("engine_files", plan=PLAN.as_dict())["keepers"]
    assert keeper["serves"] is False
    same = {"config_hash": keeper["config_hash"], "serving": True, "enabled": True}
    assert serves(**{keeper["unit"]: same}) is True
    assert serves(**{keeper["unit"]: {**same, "serving": False}}) is False
    assert serves(**{keeper["unit"]: {**same, "config_hash": "other"}}) is False
    assert serves(**{"sparkmatrix-keeper-other.service": same}) is False


def test_files_of_no_plan():
    assert (
        "made by another release: it has schema none"
        in plan("engine_files", plan={"role": "head", "names": {"instance": ""}})["msg"]
    )


def test_settings_that_are_not_allowed_are_refused_together():
    result = plan("engine_files", plan=PLAN.as_dict(), keeper={"hang_s": 0, "stable_s": 0})
    assert result["failed"] and "files" not in result
    assert [line.split(" is ")[0] for line in result["msg"].splitlines()[1:]] == [
        "engine_hang_seconds",
        "engine_stable_s",
    ]


def test_files_of_ray():
    plans = node_plans(2, "qwen3-235b-a22b-gptq-int4", launch="ray")
    result = plan("ray_files", plan=plans["spark2"].as_dict(), user="llm", token_mark="f00")
    files = {item["path"]: item["content"] for item in result["files"]}
    unit = files["/etc/systemd/system/sparkmatrix-ray.service"]
    assert "\nUser=llm\nGroup=sparkmatrix\n" in unit
    assert unit.endswith(f"HASH={result['config_hash']}\n")


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({}, "there is no engine plan"),
        ({"ray": {}, "runtime": "container"}, "it has schema none"),
        ({"schema": 1, "host": "spark1", "ray": None}, "the engine plan is damaged (ray is None, not a mapping)"),
    ],
)
def test_files_of_ray_of_no_plan(document, found):
    assert found in plan("ray_files", plan=document)["msg"]
