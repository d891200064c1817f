# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planners behind the engine plan: whether all ranks of a service have the same image, and the files of a node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document as documents
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import Found
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._artifacts import image_copies
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import (
    Options,
    Planner,
    RefusedError,
    judged,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    catalogue,
    image_build,
    images,
    inputs,
    unknown_versions,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import ray_files as render_ray_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import service_files as render_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._keeper import ranges

REFUSED_INPUTS = "The models were refused, and nothing was stopped or started:"
REFUSED = "The container images were refused, and nothing was started:"
REFUSED_OPTIONS = "The engine itself does not know what it was to be started with, and nothing was started:"
COMMON: dict[str, dict[str, Any]] = {
    "plan": {"type": "dict", "required": True},  # the node's part of the plan, as engine_plan returns it
    "user": {"type": "str", "default": "sparkmatrix"},
    "group": {"type": "str", "default": "sparkmatrix"},
    "sandbox": {"type": "bool", "default": True},
}


def judge_inputs(options: Options) -> dict[str, Any]:
    plans: Mapping[str, NodePlan] = options["plans"]
    seen = {host: found.models for host, found in options["seen"].items()}
    told = judged(REFUSED_INPUTS, inputs.judge(plans, seen, options["brought"]))
    # Of any node. Each would have to ask all others.
    return {**told, **{part: any(getattr(plan, part) for plan in plans.values()) for part in ("images", "unknown")}}


def judge_images(options: Options) -> dict[str, Any]:
    plans: Mapping[str, NodePlan] = options["plans"]
    found: Mapping[str, Found] = options["images"]
    archives = {host: seen.archive for host, seen in found.items()}
    facts = options["facts"]
    wanted = {host: [image.name for image in plan.images] for host, plan in plans.items()}
    there = {host: [name for name in names if found[host].ids.get(name)] for host, names in wanted.items()}
    holders = [host for host, has in archives.items() if has]
    models = ({"recipe": one} if isinstance(one, str) else one for one in options["models"])
    entries = [*options["services"], *models]
    given = [options["build"], *(entry.get("image_build") for entry in entries)]
    recipes = {str(one) for one in (options["recipe"], *(entry.get("recipe") for entry in entries)) if one}
    found_recipes = [engine_recipe.find(one, options["recipe_paths"])[0] for one in sorted(recipes)]
    builds = [*map(image_build.parse, given), *(one.own_build for one in found_recipes if one)]
    names = {name for own in wanted.values() for name in own}
    built = {name: made for name in names if (made := image_build.of(name, builds))}
    copies = image_copies.rounds(wanted, there, facts, holders, from_peers=options["from_peers"], built=built)
    fetching = [offer for copy in copies for offer in copy.offers.values() if offer.fetch]
    for offer in fetching:
        offer.builds = {
            name: {
                "dockerfile": image_build.read(built[name]),
                "arguments": dict(built[name].arguments),
                "files": image_build.files(built[name]),
            }
            for name in offer.fetch
            if name in built
        }
    missing = (
        images.no_archive(options["archive"], archives)
        if any(set(offer.fetch) - set(built) for offer in fetching)
        else []
    )
    told = judged(REFUSED, [*images.judge(plans, found), *images.foreign(found), *missing])
    return {**told, "rounds": [copy.as_dict() for copy in copies]}


def judge_versions(options: Options) -> dict[str, Any]:
    told = {host: found.engines for host, found in options["told"].items()}
    return judged(REFUSED_OPTIONS, unknown_versions.judge(options["plans"], told))


def list_recipes(options: Options) -> dict[str, Any]:
    nodes = options["nodes"]
    if nodes < 1:
        raise RefusedError("There are no Sparks to list recipes for. Name an inventory (-i), or -e recipes_nodes=2.")
    words = options["search"]
    entries, findings, rest = catalogue.fitting(options["recipe_paths"], nodes, options["launch"])
    found = [entry for entry in entries if entry.has(words)]
    unfit = [f"{entry.recipe.name} does not fit: {entry.why}" for entry in rest if words and entry.has(words)]
    if not found:
        every = "ansible-playbook playbooks/recipes.yml"
        raise RefusedError("\n".join([f"No recipe that fits {nodes} Spark(s) says {words!r}. All: {every}", *unfit]))
    lines = [
        f"{len(found)} recipe(s) fit {nodes} Spark(s), the fastest for one user first.",
        *catalogue.table(found),
        *catalogue.LEGEND,
        *catalogue.notes(found),
        *(line for entry in found if words for line in entry.details),
        *(["", *unfit] if unfit else []),
    ]
    lines += [] if words else ["More of some: -e recipes_search=coding, or a part of the name."]
    return {"lines": lines, "recipes": [entry.document for entry in found], "warnings": list(map(str, findings))}


def engine_files(options: Options) -> dict[str, Any]:
    wrong = list(ranges.problems(options["keeper"]))
    if wrong:
        raise RefusedError("\n".join(["These settings are not allowed:", *wrong]))
    # Whole numbers as they were given: 30, not 30.0.
    keeper = {name: int(value) if value == int(value) else value for name, value in options["keeper"].items() if value}
    settings = render_files.Settings(
        user=options["user"],
        group=options["group"],
        login_environment=options["login_environment"],
        sandbox=options["sandbox"],
        keeper={**keeper, **(ranges.probes(keeper["hang_s"]) if "hang_s" in keeper else {}), "trial": options["trial"]},
    )
    marks = render_files.Marks(options["key_mark"], options["image_marks"], options["tool_mark"])
    made = render_files.node(documents.load(options["plan"]), settings, marks)
    keepers = [{**keeper, "serves": _serves(keeper, options["running"])} for keeper in made.keepers]
    return {"files": _listed(made.files), "units": list(made.units), "keepers": keepers}


def _serves(keeper: Mapping[str, Any], running: Mapping[str, Any]) -> bool:
    """Whether it has run with this configuration since before the run, and its engine answers."""
    found = running.get(keeper["unit"]) or {}
    return found.get("serving") is True and found.get("config_hash") == keeper["config_hash"]


def ray_files(options: Options) -> dict[str, Any]:
    settings = render_ray_files.Settings(options["user"], options["group"], options["sandbox"])
    made = render_ray_files.make(
        documents.load(options["plan"]), settings, options["token_mark"], options["image_mark"]
    )
    return {"files": _listed(made.files), "config_hash": made.config_hash}


def _listed(files: Mapping[str, str]) -> list[dict[str, str]]:
    """As managed_files takes them."""
    return [{"path": path, "content": content} for path, content in files.items()]


# A mark changes a file with what it stands for, so that a unit is restarted; it has no meaning of its own.
PLANNERS = {
    "engine_inputs": Planner(
        judge_inputs,
        {"brought": {"type": "bool", "default": False}},
        gathered={"plans": documents.read, "seen": "engine_inputs"},
        alive=True,
    ),
    "images": Planner(
        judge_images,
        {
            "archive": {"type": "str", "default": ""},
            "from_peers": {"type": "bool", "default": True},
            "build": {"type": "dict", "default": {}},
            "services": {"type": "list", "elements": "dict", "default": []},
            "models": {"type": "list", "elements": "raw", "default": []},
            "recipe": {"type": "str", "default": ""},
            "recipe_paths": {"type": "list", "elements": "str", "default": []},
        },
        gathered={"plans": documents.read, "images": "image_look", "facts": fabric_fact.read},
        alive=True,
    ),
    "engine_versions": Planner(
        judge_versions, {}, gathered={"plans": documents.read, "told": "engine_version"}, alive=True
    ),
    "engine_files": Planner(
        engine_files,
        {
            **COMMON,
            "login_environment": {"type": "bool", "default": False},
            "trial": {"type": "bool", "default": True},
            "keeper": {
                "type": "dict",
                "default": {},
                "options": {name: {"type": "float"} for name in ("hang_s", "ready_s", "stable_s")},
            },
            "key_mark": {"type": "str", "default": "", "no_log": False},
            "image_marks": {"type": "dict", "default": {}},
            "tool_mark": {"type": "str", "default": ""},
            "running": {"type": "dict", "default": {}},
        },
    ),
    "recipes": Planner(
        list_recipes,
        {
            "nodes": {"type": "int", "required": True},
            "recipe_paths": {"type": "list", "elements": "str", "default": []},
            "launch": {"type": "str", "default": "auto"},
            "search": {"type": "str", "default": ""},
        },
    ),
    "ray_files": Planner(
        ray_files,
        {
            **COMMON,
            "token_mark": {"type": "str", "default": "", "no_log": False},
            "image_mark": {"type": "str", "default": ""},
        },
    ),
}
