# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The decisions alone; with the modules of awx.awx: tests/scenarios/test_awx.py."""

from __future__ import annotations

import itertools

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.action.plan import PLANNERS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._awx.objects import KINDS, NODES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import planner

MARK = "[sparkmatrix.cluster: S]"
GOOD = {"awx_image": "x"}
WANTED = {
    "projects": [{"name": "S: project", "description": "Playbooks.", "credential": ""}],
    "job_templates": [{"name": "S: Up", "description": "Up.", "project": "S: project"}],
    "workflow_job_templates": [
        {
            "name": "S: Flow",
            "description": "Flow.",
            "organization": "Default",
            "simplified_workflow_nodes": [
                {"identifier": "ask", "approval_node": {"name": "Sure?"}, "success_nodes": ["up"]},
                {"identifier": "up", "unified_job_template": "S: Up"},
            ],
        }
    ],
}
NOTHING = {**{kind.endpoint: [] for kind in KINDS}, NODES: [], "credentials": []}


def made():
    """What is there once WANTED has been made."""
    number = itertools.count(1)
    found = {
        endpoint: [
            {"id": next(number), "name": one["name"], "description": f"{one['description']} {MARK}", "organization": 9}
            for one in objects
        ]
        for endpoint, objects in WANTED.items()
    }
    (flow,) = found["workflow_job_templates"]
    nodes = [{"id": next(number), "identifier": name, "workflow_job_template": flow["id"]} for name in ("ask", "up")]
    return {**NOTHING, **found, NODES: nodes}


def plan(there, check=False, state="present", **options):
    given = {"state": state, "name": "S", "mark": MARK, "check": check, "needed": GOOD, "instance_groups": []}
    return planner.run("awx", PLANNERS["awx"], {**given, "wanted": WANTED, "there": there, **options}, {})


def test_all_is_made_in_an_order_in_which_it_can_be():
    found = plan(NOTHING)
    assert [job_template["name"] for job_template in found["make"]["job_templates"]] == ["S: Up"]
    assert found["make"]["projects"] == [
        {"name": "S: project", "description": f"Playbooks. {MARK}", "update_project": False}
    ]
    nodes = found["make"][NODES]
    assert [(node["identifier"], "approval_node" in node, node.get("success_nodes")) for node in nodes] == [
        ("up", False, None),
        ("ask", True, None),
        ("ask", False, ["up"]),
    ]
    assert found["would"] == [] and found["line"] == "S: 1 project, 1 job template, 1 workflow"


def test_a_check_asks_modules_about_what_is_there_only():
    found = plan(NOTHING, check=True)
    assert not any(found["make"].values())
    assert found["would"] == [
        "project S: project", "job template S: Up", "workflow S: Flow",
        "node up of workflow S: Flow", "node ask of workflow S: Flow",
    ]  # fmt: skip
    there = {**made(), "projects": []}
    found = plan(there, check=True)
    assert found["would"] == ["project S: project", "job template S: Up"] and len(found["make"][NODES]) == 3
    assert plan(made(), check=True)["would"] == []


def test_removal_goes_by_the_mark_and_by_numbers():
    there = made()
    there["job_templates"] += [{"id": 77, "name": "S: Up 2", "description": "mine"}]
    found = plan(there, state="absent")
    assert not any(found["make"].values())
    assert found["remove"]["job_templates"] == [
        {"name": "2", "organization": "9", "state": "absent", "called": "S: Up"}
    ]
    assert found["line"] == "S: 1 project, 1 job template, 1 workflow removed"
    assert plan(NOTHING, state="absent")["line"] == "S: nothing removed"


@pytest.mark.parametrize("state", ["absent", "present"])
def test_what_others_use_stays(state):
    there = made()
    there["job_templates"] += [{"id": 77, "name": "mine", "description": "", "project": 1}]
    summary = {"workflow_job_template": {"name": "theirs"}}
    there[NODES] += [{"id": 78, "identifier": "a", "workflow_job_template": 99, "unified_job_template": 2,
                      "summary_fields": summary}]  # fmt: skip
    found = plan(there, state=state)
    assert bool(found.get("failed")) is (state == "absent")
    if state == "absent":
        assert "job template mine: it was not made by this playbook, and uses the project S: project" in found["msg"]
        assert "node a of workflow theirs" in found["msg"]


def test_a_name_without_our_mark_is_not_taken():
    there = made()
    there["projects"][0]["description"] = "mine"
    assert "project S: project: it is there, and was not made by this playbook" in plan(there)["msg"]


@pytest.mark.parametrize("state", ["absent", "present"])
@pytest.mark.parametrize(
    ("endpoint", "there", "mine", "another"),
    [
        ("projects", "https://git/a.git", "https://git/b.git", True),
        ("projects", "https://git/a.git", "https://Git/a.git/", False),
        ("projects", "https://me:secret@git/a.git", "https://git/b", True),
        ("projects", "git@host:a.git", "ssh://git@host/a", False),
        ("inventory_sources", "inventories/A/hosts.yml", "inventories/a/hosts.yml", True),
        ("inventory_sources", "inventories/a/hosts.yml", "inventories/a/hosts.yml", False),
    ],
)
def test_another_cluster_of_the_same_name_is_left_alone(state, endpoint, there, mine, another):
    option = {"projects": "scm_url", "inventory_sources": "source_path"}[endpoint]
    present = {**NOTHING, endpoint: [{"id": 1, "name": "S: one", "description": MARK, option: there}]}
    wanted = {endpoint: [{"name": "S: one", "description": "", option: mine}]}
    found = plan(present, state=state, wanted=wanted)
    assert bool(found.get("failed")) is another
    if another:
        assert ": of another cluster" in found["msg"]
        assert "secret" not in found["msg"]


def test_a_removal_needs_to_know_of_which_cluster():
    needed = {"awx_image": "", "awx_project_url": "", "awx_inventory_file": ""}
    assert "awx_project_url and awx_inventory_file: not set" in plan(made(), state="absent", needed=needed)["msg"]


@pytest.mark.parametrize(
    ("needed", "reason", "says"),
    [
        (
            {"awx_image": "", "awx_project_url": "", "awx_inventory_file": ""},
            "Task failed: The lookup plugin 'awx.awx.controller_api' failed: There was an error: refused",
            ["awx_image, awx_project_url and awx_inventory_file: not set", "did not let us in: There was an error"],
        ),
        (GOOD, "verify failed: self-signed", ["1. AWX: not reached, or it did not let us in: verify failed: self-"]),
    ],
)
def test_an_awx_that_cannot_be_asked_is_told_with_all_that_is_not_set(needed, reason, says):
    options = {"needed": needed, "state": "present", "reason": reason}
    found = planner.run("awx_unreached", PLANNERS["awx_unreached"], options, {})["msg"]
    assert all(part in found for part in [*says, "export CONTROLLER_HOST and CONTROLLER_OAUTH_TOKEN"])


def test_strange_nodes_go_and_settings_are_asked_for():
    there = made()
    there[NODES] += [{"id": 78, "identifier": "mine", "workflow_job_template": 3}]
    assert [node["called"] for node in plan(there)["remove"][NODES]] == ["mine of S: Flow"]
    assert "awx_image: not set" in plan(NOTHING, needed={"awx_image": ""})["msg"]
    assert "instance group one: it is not in AWX" in plan(NOTHING, instance_group="one")["msg"]
    full = [{"name": "one", "max_concurrent_jobs": 0}]
    assert "maximum of concurrent jobs is not set" in plan(NOTHING, instance_group="one", instance_groups=full)["msg"]
    assert len(plan(NOTHING)["warnings"]) == 1
