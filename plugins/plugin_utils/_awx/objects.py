# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What is to be made, mended and removed in AWX: the wanted objects compared with those that are there. Pure.

What this collection made is known by a mark at the end of its description. Nothing else is changed or removed, and
nothing is removed that something of others stands on. Two clusters of one name are told apart by their project.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding

Object = Mapping[str, Any]
Objects = Mapping[str, Sequence[Object]]  # by endpoint of AWX's API
Named = Mapping[str, Mapping[str, Object]]  # likewise, by name

NODES = "workflow_job_template_nodes"
FOLLOWERS = ("success_nodes", "failure_nodes", "always_nodes")
UNIFIED = ("projects", "inventory_sources", "job_templates", "workflow_job_templates")  # whose ids are of one series


@dataclass(frozen=True)
class Kind:
    """``relations``: options that name objects of another kind; ``within``: what the module asks for to remove one."""

    endpoint: str
    words: str
    relations: Mapping[str, str] = field(default_factory=dict)
    within: str = "organization"


# In the order in which they are made.
KINDS: tuple[Kind, ...] = (
    Kind("execution_environments", "execution environment"),
    Kind("credential_types", "credential type", within=""),
    Kind("notification_templates", "notification"),
    Kind("projects", "project"),
    Kind("inventories", "inventory"),
    Kind(
        "inventory_sources",
        "inventory source",
        {"inventory": "inventories", "source_project": "projects"},
        within="inventory",
    ),
    Kind(
        "job_templates",
        "job template",
        {
            "project": "projects",
            "inventory": "inventories",
            "execution_environment": "execution_environments",
            "notification_templates_error": "notification_templates",
        },
    ),
    Kind("workflow_job_templates", "workflow", {"notification_templates_error": "notification_templates"}),
    Kind("schedules", "schedule", {"unified_job_template": "job_templates"}, within=""),
)
WORDS = {**{kind.endpoint: kind.words for kind in KINDS}, "credentials": "credential", NODES: "node"}
# Fields by which something of others may stand on something of ours; and the endpoints that they lead to.
STANDS_ON: Mapping[str, Sequence[str]] = {
    "credential_type": ("credential_types",),
    "execution_environment": ("execution_environments",),
    "default_environment": ("execution_environments",),
    "project": ("projects",),
    "source_project": ("projects",),
    "inventory": ("inventories",),
    "unified_job_template": UNIFIED,
}
# What a cluster alone has, with the variable that says it and what AWX's pages call it.
OWN = (
    ("projects", "scm_url", "awx_project_url", "Source control URL"),
    ("inventory_sources", "source_path", "awx_inventory_file", "Inventory file"),
)


@dataclass(frozen=True)
class Plan:
    """``make`` and ``remove``: what the modules are called with, by endpoint. ``would``: in a check, what does not
    exist yet or needs what does not; a module could not be asked about it."""

    make: dict[str, list[dict[str, Any]]]
    remove: dict[str, list[dict[str, Any]]]
    would: list[str]
    findings: list[Finding]


def plan(name: str, mark: str, wanted: Objects, there: Objects, check: bool = False) -> Plan:
    """``wanted`` is empty where all is to be removed."""
    known = {kind.endpoint: {str(one["name"]): one for one in there[kind.endpoint]} for kind in KINDS}
    asked = {kind.endpoint: {str(one["name"]): one for one in wanted.get(kind.endpoint, ())} for kind in KINDS}
    ours = {endpoint: [one for one in there[endpoint] if _marked(one, mark)] for endpoint in known}
    going = {
        endpoint: [one for one in objects if str(one["name"]) not in asked[endpoint]]
        for endpoint, objects in ours.items()
    }
    findings = [*_taken(asked, known, mark), *_needed(going, ours, there)]
    make: dict[str, list[dict[str, Any]]] = {}
    would: list[str] = []
    for kind in KINDS:
        make[kind.endpoint] = []
        for title, one in asked[kind.endpoint].items():
            lacks = title not in known[kind.endpoint] or any(
                needed.startswith(f"{name}: ") and needed not in known[target]
                for option, target in kind.relations.items()
                for needed in _names(one.get(option))
            )
            if lacks:
                would.append(f"{kind.words} {title}")
            if not (check and lacks):
                make[kind.endpoint].append(_arguments(one, mark))
    if not check and any(title not in known["job_templates"] for title in asked["job_templates"]):
        # AWX knows the playbooks of the last synchronization only; one that is new is synchronized anyway.
        make["projects"] = [
            {**project, "update_project": project["name"] in known["projects"]} for project in make["projects"]
        ]
    make[NODES], untold = _nodes(asked["workflow_job_templates"].values(), known, there[NODES], check)
    remove = {kind.endpoint: [_removal(kind, one) for one in going[kind.endpoint]] for kind in KINDS}
    remove[NODES] = _stray_nodes(asked["workflow_job_templates"], ours["workflow_job_templates"], there[NODES])
    return Plan(make, remove, (would + untold) if check else [], findings)


def _marked(one: Object, mark: str) -> bool:
    return str(one.get("description") or "").rstrip().endswith(mark)


def _names(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or ())


def _arguments(one: Object, mark: str) -> dict[str, Any]:
    """Of its module. An option that names nothing is left out, since no object has an empty name."""
    given = {
        option: value
        for option, value in one.items()
        if not (option == "credential" and not value) and option != "simplified_workflow_nodes"
    }
    return {**given, "description": f"{one['description']} {mark}"}


def _removal(kind: Kind, one: Object) -> dict[str, Any]:
    """By numbers, since a name may be given twice."""
    within = {kind.within: str(one[kind.within])} if kind.within and one.get(kind.within) else {}
    return {"name": str(one["id"]), **within, "state": "absent", "called": str(one["name"])}


def _taken(asked: Named, known: Named, mark: str) -> Iterator[Finding]:
    for kind in KINDS:
        for title in asked[kind.endpoint]:
            one = known[kind.endpoint].get(title)
            if one is not None and not _marked(one, mark):
                yield Finding(
                    f"{kind.words} {title}",
                    f"it is there, and was not made by this playbook (its description does not end with {mark})",
                    "Rename it, or choose another awx_name",
                )


def another_cluster(mark: str, wanted: Objects, there: Objects) -> Iterator[Finding]:
    """What bears our mark and belongs to a cluster that was given the same name: it would be changed, or removed."""
    for endpoint, option, variable, field_name in OWN:
        given = {str(one["name"]): str(one.get(option) or "") for one in wanted.get(endpoint, ())}
        for one in there[endpoint]:
            title, found = str(one["name"]), str(one.get(option) or "")
            mine = given.get(title, "")
            if _marked(one, mark) and mine and found and _spelled(mine) != _spelled(found):
                yield Finding(
                    f"{WORDS[endpoint]} {title}",
                    f"it has {_without_login(found)}, and {variable} is {_without_login(mine)}: of another cluster",
                    f"Choose another awx_name; or, if {variable} has changed for this cluster, first write the new one"
                    f" into {field_name} of it in AWX",
                )


def _without_login(address: str) -> str:
    return re.sub(r"//[^/@]*@", "//", address)


def _spelled(address: str) -> str:
    """One spelling of an address: AWX stores some in another one. Paths stay as they are."""
    if "://" not in address and "@" not in address:
        return address
    bare = re.sub(r"^(?:[\w+]+://)?(?:[^/@]*@)?", "", address.strip())
    return bare.replace(":", "/").rstrip("/").removesuffix(".git").casefold()


def _needed(going: Objects, ours: Objects, there: Objects) -> Iterator[Finding]:
    """What others have built on something that is to go would be broken, or removed with it."""
    ids = {endpoint: {one["id"]: str(one["name"]) for one in objects} for endpoint, objects in going.items()}
    own = {endpoint: {one["id"] for one in objects} for endpoint, objects in ours.items()}
    for endpoint, objects in there.items():
        for one in objects:
            if one["id"] in own.get(endpoint, ()) or one.get("workflow_job_template") in own["workflow_job_templates"]:
                continue
            for option, targets in STANDS_ON.items():
                for target in targets:
                    if one.get(option) in ids[target]:
                        title = one.get("name") or one.get("identifier")
                        if endpoint == NODES:
                            title = f"{title} of workflow {one['summary_fields']['workflow_job_template']['name']}"
                        used = f"{WORDS[target]} {ids[target][one[option]]}"
                        yield Finding(
                            f"{WORDS[endpoint]} {title}",
                            f"it was not made by this playbook, and uses the {used}",
                            "Remove it first, or let it use another one",
                        )


def _nodes(
    workflows: Iterable[Object],
    known: Named,
    there: Sequence[Object],
    check: bool,
) -> tuple[list[dict[str, Any]], list[str]]:
    """Of all workflows, each node after those that it leads to: a module looks for them."""
    made, untold = [], []
    for workflow in workflows:
        title = str(workflow["name"])
        existing = known["workflow_job_templates"].get(title, {}).get("id")
        present = {one["identifier"] for one in there if one["workflow_job_template"] == existing}
        left = list(workflow["simplified_workflow_nodes"])
        done: set[str] = set()
        while left:
            node = next(one for one in left if all(set(one.get(way, ())) <= done for way in FOLLOWERS))
            left.remove(node)
            done.add(node["identifier"])
            runs = node.get("unified_job_template")
            lacks = not {node["identifier"], *(n for way in FOLLOWERS for n in node.get(way, ()))} <= present or (
                runs is not None and not any(runs in known[endpoint] for endpoint in UNIFIED)
            )
            if check and lacks:
                untold.append(f"node {node['identifier']} of workflow {title}")
            else:
                where = {"workflow_job_template": title, "organization": workflow["organization"]}
                if runs:
                    where["lookup_organization"] = workflow["organization"]
                else:
                    # The module would look for the links of an approval in the wrong place.
                    made.append({**{key: value for key, value in node.items() if key not in FOLLOWERS}, **where})
                made.append({**{key: value for key, value in node.items() if key != "approval_node"}, **where})
    return made, untold


def _stray_nodes(asked: Mapping[str, Object], ours: Sequence[Object], there: Sequence[Object]) -> list[dict[str, Any]]:
    """Somebody's additions to our workflows. One without what leads to it would run first."""
    titles = {one["id"]: str(one["name"]) for one in ours if str(one["name"]) in asked}
    wanted = {(title, node["identifier"]) for title, one in asked.items() for node in one["simplified_workflow_nodes"]}
    return [
        {
            "identifier": node["identifier"],
            "workflow_job_template": str(node["workflow_job_template"]),
            "state": "absent",
            "called": f"{node['identifier']} of {titles[node['workflow_job_template']]}",
        }
        for node in there
        if node["workflow_job_template"] in titles
        and (titles[node["workflow_job_template"]], node["identifier"]) not in wanted
    ]
