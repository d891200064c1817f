# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planner of what this collection has in AWX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._awx import objects
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner, judged

REFUSED = "This was refused, and nothing was changed in AWX:"
LOOKUP = "controller_api' failed: "  # Ansible's own words before those of the lookup


def plan(options: Options) -> dict[str, Any]:
    present = options["state"] == "present"
    wanted = options["wanted"] if present else {}
    made = objects.plan(options["name"], options["mark"], wanted, options["there"], options["check"])
    findings = [
        *_missing(options["needed"], present),
        *(_instance_group(options) if present else ()),
        *objects.another_cluster(options["mark"], options["wanted"], options["there"]),
        *made.findings,
    ]
    return {
        **judged(REFUSED, findings),
        "make": made.make,
        "remove": made.remove,
        "would": made.would,
        "line": f"{options['name']}: {_counted(wanted if present else made.remove) or 'nothing'}"
        f"{'' if present else ' removed'}{' (a check: nothing was changed)' if options['check'] else ''}",
    }


def unreached(options: Options) -> dict[str, Any]:
    """AWX could not be asked: why, and what else it would have been refused for."""
    findings = [
        *_missing(options["needed"], options["state"] == "present"),
        Finding(
            "AWX",
            f"not reached, or it did not let us in: {options['reason'].partition(LOOKUP)[2] or options['reason']}",
            "export CONTROLLER_HOST and CONTROLLER_OAUTH_TOKEN, or write host and oauth_token into ~/.tower_cli.cfg;"
            " docs/awx.md#set-it-up",
        ),
    ]
    return judged(REFUSED, findings)


def _counted(by_endpoint: objects.Objects) -> str:
    return ", ".join(
        f"{len(found)} {objects.WORDS[endpoint]}{'' if len(found) == 1 else 's'}"
        for endpoint, found in by_endpoint.items()
        if found and endpoint != objects.NODES
    )


def _missing(needed: Mapping[str, str], present: bool) -> Iterator[Finding]:
    """A removal needs no image; by the others it knows whether what is there is of this cluster."""
    unset = [variable for variable, value in needed.items() if not value and (present or variable != "awx_image")]
    if unset:
        named = " and ".join(filter(None, [", ".join(unset[:-1]), unset[-1]]))
        yield Finding(named, "not set", "Set it with -e @awx.yml; docs/awx.md says to what")


def _instance_group(options: Options) -> Iterator[Finding]:
    group = options["instance_group"]
    if not group:
        yield Finding(
            "awx_instance_group",
            "it is not set, so jobs of two templates can run on the cluster at the same time",
            "Make an instance group with a maximum of one concurrent job, and name it here",
            severity="warning",
        )
    for found in options["instance_groups"]:
        if found["max_concurrent_jobs"] != 1:
            yield Finding(
                f"instance group {group}",
                f"its maximum of concurrent jobs is {found['max_concurrent_jobs'] or 'not set'}",
                "Set it to 1: two jobs must not change one cluster at the same time",
            )
    if group and not options["instance_groups"]:
        yield Finding(f"instance group {group}", "it is not in AWX", "Correct awx_instance_group, or make it")


PLANNERS = {
    "awx": Planner(
        plan,
        {
            "state": {"type": "str", "required": True, "choices": ["present", "absent"]},
            "name": {"type": "str", "required": True},
            "mark": {"type": "str", "required": True},
            "check": {"type": "bool", "required": True},
            "needed": {"type": "dict", "required": True},
            "instance_group": {"type": "str", "default": ""},
            "instance_groups": {"type": "list", "elements": "dict", "required": True},
            "wanted": {"type": "dict", "required": True},
            "there": {"type": "dict", "required": True},
        },
    ),
    "awx_unreached": Planner(
        unreached,
        {
            "needed": {"type": "dict", "required": True},
            "state": {"type": "str", "required": True, "choices": ["present", "absent"]},
            "reason": {"type": "str", "required": True},
        },
    ),
}
