# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How a job of AWX was started, as far as the job itself can know. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding

JOB = "awx_job_id"  # AWX gives it to every job, as an extra variable
GUIDE = "docs/awx.md#job-templates"


def findings(variables: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[Finding]:
    """``variables`` of the run, ``environment`` of the process."""
    if JOB not in variables:
        return
    template = str(variables.get("awx_job_template_name") or "")
    where = f"job template {template}" if template else f"job {variables[JOB]}"
    # A sliced template is started as a workflow of its own name.
    if template and variables.get("awx_workflow_job_name") == template:
        yield Finding(
            where,
            "its jobs are sliced, so this one sees a part of the machines only",
            f"Set Job slicing to 1 (a workflow must not have the name of a template in it). {GUIDE}",
        )
    if environment.get("ANSIBLE_CACHE_PLUGIN") == "jsonfile":
        yield Finding(
            where,
            "fact storage is on, and facts of an earlier job would be taken for those of the machines",
            f"Switch off Enable fact storage. {GUIDE}",
        )


def unchecked_host_keys(variables: Mapping[str, Any], hosts: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """``hosts``: variables by host."""
    if JOB not in variables:
        return []
    unchecked = [
        host
        for host, own in hosts.items()
        if not any(_true(own.get(f"ansible_{name}host_key_checking")) for name in ("", "ssh_"))
    ]
    if not unchecked:
        return []
    return [
        Finding(
            ", ".join(unchecked),
            "AWX checks no host key, so whoever answers there is taken for the machine",
            "Put their keys into a file of the project, and name it: awx_known_hosts. docs/awx.md#host-keys",
            severity="warning",
        )
    ]


def _true(value: Any) -> bool:
    return str(value).lower() in ("true", "yes", "1", "on")
