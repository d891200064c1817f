# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the role awx makes, mends and removes, with the modules of awx.awx and AWX's API in memory."""

from __future__ import annotations

import copy
import json
import sys

import pytest
from awx_api import NODES, TOKEN, Api
from fake_awx import PLAYBOOKS, Awx, variables

pytestmark = pytest.mark.skipif(
    # By the version: with 3.11 it must not be skipped where awx.awx is not found.
    sys.version_info >= (3, 12),
    reason="the package ansible has awx.awx up to version 12, so this runs with Python 3.11",
)


def state(api: Api) -> str:
    lists = {str(key): sorted(value) for key, value in api.lists.items() if value}
    return json.dumps([api.objects, lists, sorted(api.surveys.items())], sort_keys=True, indent=1, default=list)


def without_ids(text: str) -> list[str]:
    """What is there by its names: numbers differ where something was made again."""
    objects, lists, surveys = json.loads(text)
    names = {str(number): one.get("name") for found in objects.values() for number, one in found.items()}

    def named(value):
        return names.get(str(value), value) if isinstance(value, int) and not isinstance(value, bool) else value

    rows = [
        json.dumps([kind, {key: named(value) for key, value in one.items() if key != "id"}], sort_keys=True)
        for kind, found in objects.items()
        for one in found.values()
    ]
    return [*sorted(rows), str(len(lists)), str(len(surveys))]


@pytest.fixture(scope="module")
def made():
    """A server on which a run has made everything, and that run."""
    with pytest.MonkeyPatch.context() as patch:
        api = Api(playbooks=PLAYBOOKS)
        run = Awx(api, patch).run()
    assert not run.refused
    return api, run


@pytest.fixture
def awx(made, monkeypatch):
    return Awx(copy.deepcopy(made[0]), monkeypatch)


@pytest.fixture
def empty(monkeypatch):
    return Awx(Api(playbooks=PLAYBOOKS), monkeypatch)


def test_a_first_run_makes_everything_and_a_second_one_changes_nothing(awx):
    data = variables()
    counts = {resource: len(found) for resource, found in awx.api.objects.items()}
    assert counts["job_templates"] == len(data["__awx_templates"])
    assert counts["workflow_job_templates"] == len(data["__awx_workflows"])
    assert counts[NODES] == sum(len(one["simplified_workflow_nodes"]) for one in data["__awx_workflows"])
    assert counts["workflow_approval_templates"] == len(data["__awx_workflows"])
    before = state(awx.api)
    assert awx.run().changed == [] and awx.run(check=True).changed == []
    assert state(awx.api) == before


def test_a_check_says_what_a_first_run_makes_and_makes_nothing(empty, made):
    before = state(empty.api)
    checked = empty.run(check=True)
    # An approval is made before it is linked.
    assert len(checked.changed) == len(set(made[1].changed)) and len(checked.changed) == len(set(checked.changed))
    assert state(empty.api) == before


def test_drift_is_told_and_mended(awx):
    before = state(awx.api)
    template = awx.api.named("job_templates", "Sparks: Bring up")
    template.update(allow_simultaneous=True, job_slice_count=4, limit="spark1")
    awx.api.surveys[awx.api.named("job_templates", "Sparks: Plan")["id"]]["spec"].pop()
    source = awx.api.named("inventory_sources", "Sparks: inventory file")
    source["overwrite"] = False
    schedule = awx.api.named("schedules", "Sparks: daily drift check")
    awx.api.answer("DELETE", f"/api/v2/schedules/{schedule['id']}/", {}, {}, TOKEN)
    checked = awx.run(check=True)
    assert sorted(checked.changed) == [
        "inventory_source Sparks: inventory file",
        "job_template Sparks: Bring up",
        "job_template Sparks: Plan",
        "schedule Sparks: daily drift check",
    ]
    assert len(awx.run().changed) == 4 and awx.run().changed == []
    assert without_ids(state(awx.api)) == without_ids(before)


def test_a_node_that_somebody_added_to_our_workflow_is_taken_out(awx):
    before = state(awx.api)
    given = {
        "identifier": "mine",
        "workflow_job_template": awx.api.named("workflow_job_templates", "Sparks: Undo with approval")["id"],
        "unified_job_template": awx.api.named("job_templates", "Sparks: Undo")["id"],
    }
    awx.api.create(NODES, given)
    assert awx.run().changed == ["workflow_job_template_node mine of Sparks: Undo with approval"]
    assert state(awx.api) == before


def test_removal_leaves_what_others_made(awx):
    theirs = Api(playbooks=PLAYBOOKS)
    organization = awx.api.named("organizations", "Default")["id"]
    for api in (awx.api, theirs):
        project = api.create("projects", {"name": "mine", "organization": organization, "scm_type": "git"})
        inventory = api.create("inventories", {"name": "Sparks", "organization": organization})
        given = {"project": project["id"], "inventory": inventory["id"], "playbook": "playbooks/site.yml"}
        api.create("job_templates", {"name": "Sparks bring up", **given})
    other = awx.run(awx_name="Others")
    assert not other.refused
    for check in (True, False):
        gone = awx.run(check, awx_state="absent")
        assert "Sparks" in " ".join(gone.changed) and "Others" not in " ".join(gone.changed)
    assert awx.run(awx_state="absent").changed == []
    assert awx.run(awx_name="Others").changed == []
    awx.run(awx_name="Others", awx_state="absent")
    assert without_ids(state(awx.api)) == without_ids(state(theirs))


@pytest.mark.parametrize("awx_state", ["present", "absent"])
@pytest.mark.parametrize(
    "settings",
    [{"awx_project_url": "https://git.example.com/other.git"}, {"awx_inventory_file": "inventories/other/hosts.yml"}],
)
def test_a_second_cluster_of_the_same_name_neither_changes_nor_removes_the_first(awx, awx_state, settings):
    before = state(awx.api)
    assert ": of another cluster" in awx.run(awx_state=awx_state, **settings).refused
    assert state(awx.api) == before


def test_a_cluster_of_the_same_name_in_another_organization_is_left_alone(awx):
    awx.api.create("organizations", {"name": "Lab"})
    before = state(awx.api)
    assert awx.run(awx_organization="Lab", awx_state="absent").changed == []
    assert "was not made by this playbook" in awx.run(awx_organization="Lab").refused
    assert state(awx.api) == before


@pytest.mark.parametrize(
    ("resource", "given", "says"),
    [
        ("job_templates", {"name": "mine", "project": ("projects", "Sparks: project"), "playbook": "playbooks/site.yml",
                           "ask_inventory_on_launch": True}, "job template mine"),
        ("schedules", {"name": "mine", "unified_job_template": ("job_templates", "Sparks: Verify"),
                       "rrule": "DTSTART:20260101T000000Z RRULE:FREQ=DAILY;INTERVAL=1"}, "schedule mine"),
        ("credentials", {"name": "mine", "credential_type": ("credential_types", "Sparks: API key")},
         "credential mine"),
    ],
)  # fmt: skip
def test_nothing_is_removed_that_others_have_built_on(awx, resource, given, says):
    awx.api.create(
        resource,
        {name: awx.api.named(*value)["id"] if isinstance(value, tuple) else value for name, value in given.items()},
    )
    before = state(awx.api)
    refused = awx.run(awx_state="absent").refused
    assert says in refused and "it was not made by this playbook, and uses the" in refused
    assert state(awx.api) == before
    assert awx.run().changed == []


def test_a_node_of_somebody_elses_workflow_keeps_our_template(awx):
    mine = awx.api.create("workflow_job_templates", {"name": "mine"})
    template = awx.api.named("job_templates", "Sparks: Verify")["id"]
    awx.api.create(NODES, {"identifier": "one", "workflow_job_template": mine["id"], "unified_job_template": template})
    assert "node one of workflow mine" in awx.run(awx_state="absent").refused


def test_what_bears_our_name_and_not_our_mark_is_left_alone(empty):
    organization = empty.api.named("organizations", "Default")["id"]
    empty.api.create("inventories", {"name": "Sparks: machines", "organization": organization})
    before = state(empty.api)
    refused = empty.run().refused
    assert "inventory Sparks: machines" in refused and "[sparkmatrix.cluster: Sparks of Default]" in refused
    assert state(empty.api) == before


def test_a_template_that_is_no_longer_in_the_data_goes(awx):
    api = awx.api
    old = dict(api.named("job_templates", "Sparks: Verify"))
    del old["id"]
    api.create("job_templates", {**old, "name": "Sparks: Old"})
    assert awx.run().changed == ["job_template Sparks: Old"]


def test_a_new_playbook_is_fetched_before_its_template_is_made(made, monkeypatch):
    api = copy.deepcopy(made[0])
    template = api.named("job_templates", "Sparks: Plan")
    api.answer("DELETE", f"/api/v2/job_templates/{template['id']}/", {}, {}, TOKEN)
    project = api.named("projects", "Sparks: project")
    project["playbook_files"] = tuple(name for name in PLAYBOOKS if name != "playbooks/plan.yml")
    api.revision = 1
    done = Awx(api, monkeypatch).run()
    assert "job_template Sparks: Plan" in done.changed


def test_what_is_not_set_or_not_there_is_refused(empty):
    refused = empty.run(awx_image="", awx_project_url="").refused
    assert "awx_image and awx_project_url: not set" in refused and "awx_inventory_file" not in refused
    assert "it is not in AWX" in empty.run(awx_instance_group="one").refused
    group = empty.api.create("instance_groups", {"name": "one", "max_concurrent_jobs": 4})
    assert "its maximum of concurrent jobs is 4" in empty.run(awx_instance_group="one").refused
    empty.api.objects["instance_groups"][group["id"]]["max_concurrent_jobs"] = 1
    assert not empty.run(awx_instance_group="one").refused
    (template, *_others) = empty.api.objects["job_templates"].values()
    assert template["prevent_instance_group_fallback"] is True


@pytest.mark.parametrize(
    ("resource", "given", "status"),
    [
        ("job_templates", {"nmae": "x"}, 400),
        ("job_templates", {"name": "x", "forks": "25"}, 400),
        ("job_templates", {"name": "x", "project": 4711}, 400),
        ("job_templates", {"name": "x", "job_type": "dry"}, 400),
        ("inventories", {"name": "x"}, 400),
        ("no_such_thing", {"name": "x"}, 404),
    ],
)
def test_the_server_refuses_what_awx_refuses(resource, given, status):
    assert Api().answer("POST", f"/api/v2/{resource}/", {}, given, TOKEN)[0] == status
    assert Api().answer("GET", "/api/v2/projects/", {}, {}, "")[0] == 401
