# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Jobs of AWX that were started otherwise than the templates of this collection."""

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import awx_job as job

# What AWX gives a job (awx_meta_vars), and the environment of its ansible-runner.
JOB = {"awx_job_id": 7, "tower_job_id": 7, "awx_job_launch_type": "manual", "awx_job_template_name": "Sparks: Bring up"}
ENVIRONMENT = {"JOB_ID": "7", "ANSIBLE_HOST_KEY_CHECKING": "False", "ANSIBLE_CACHE_PLUGIN": ""}
SLICED = {**JOB, "awx_job_launch_type": "workflow", "awx_workflow_job_name": "Sparks: Bring up"}
STORED = {**ENVIRONMENT, "ANSIBLE_CACHE_PLUGIN": "jsonfile"}


@pytest.mark.parametrize(
    ("variables", "environment", "says"),
    [
        (JOB, ENVIRONMENT, []),
        ({**JOB, "awx_workflow_job_name": "Sparks: Set up"}, ENVIRONMENT, []),
        ({}, STORED, []),  # somebody's own settings
        (SLICED, ENVIRONMENT, ["its jobs are sliced"]),
        (SLICED, STORED, ["its jobs are sliced", "fact storage is on"]),
        ({"awx_job_id": 7}, STORED, ["job 7: fact storage is on"]),
    ],
)
def test_what_a_job_can_know_of_how_it_was_started(variables, environment, says):
    found = [str(finding) for finding in job.findings(variables, environment)]
    assert len(found) == len(says)
    assert all(part in text for part, text in zip(says, found)) and all("docs/awx.md" in text for text in found)


@pytest.mark.parametrize(
    ("own", "named"),
    [
        ({}, True),
        ({"ansible_host_key_checking": True}, False),
        ({"ansible_ssh_host_key_checking": "yes"}, False),
        ({"ansible_host_key_checking": False}, True),
    ],
)
def test_host_keys_that_nobody_checks_are_told_in_awx_only(own, named):
    hosts = {"spark1": own, "spark2": {"ansible_host_key_checking": True}}
    found = job.unchecked_host_keys(JOB, hosts)
    assert [(finding.host, finding.severity) for finding in found] == ([("spark1", "warning")] if named else [])
    assert job.unchecked_host_keys({}, hosts) == []
