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


def test_a_cluster_of_the_same_name_in_another_organization_is_left_alone(awx):
    awx.api.create("organizations", {"name": "Lab"})
    before = state(awx.api)
    assert awx.run(awx_organization="Lab", awx_state="absent").changed == []
    assert "was not made by this playbook" in awx.run(awx_organization="Lab").refused
    assert state(awx.api) == before


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
