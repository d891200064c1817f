# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planner behind ``recipes_translate``: a recipe of another tool as it is, and in our own words beside it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, printable
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import consent
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import as_command, as_engine, read

KEEPS = "1. As it is (engine: command). It keeps image, command and variables; its options are not checked."
SHIPPED = {1: "1spark", 2: "2spark", 3: "3spark_ring", 4: "4spark", 8: "8spark"}  # inventories, by their machines
NOT_KEPT = "Neither is kept yet: the same command with -e recipes_save=mine.yml writes them."
CHECKED = "2. In our own words (engine: {}). Every option is checked, and memory and speed are planned."


def translate_recipe(options: Options) -> dict[str, Any]:
    peer = read.read(options["path"])
    document = as_command.made(peer)
    text = as_command.printed(document)
    _recipe, findings = engine_recipe.parse(document, options["path"], "theirs")
    lines = [f"Read as: {peer.format}.", "", KEEPS, *text.splitlines()]
    lines += _said("Left to the plan and the fabric:", peer.placed)
    lines += _said("Left out, what it means, and what to do:", peer.losses) or ["Nothing was left out."]
    lines += _said("What our checks say of it:", findings)
    recipes = [{"ending": "", "text": text, "left_out": [str(loss) for loss in peer.losses]}]
    try:
        made = as_engine.made(peer, options["recipe_paths"], options["model_files"])
    except SparkError as exc:
        lines += ["", f"2. In our own words: not offered, since {exc.found}."]
    else:
        engine = made.document["engine"]
        recipes.append({"ending": f"-{engine}", "text": made.text, "left_out": made.left_out})
        lines += ["", CHECKED.format(engine), *made.text.splitlines()]
        lines += _said("Left out, and why:", made.left_out) or ["Nothing was left out."]
        lines += _said("What our checks say of it:", made.findings)
    if not options["save"]:
        return {"recipes": recipes, "lines": [*lines, NOT_KEPT], "next": []}
    path, plan = Path(options["save"]), _plan_for(options["inventory"], document.get("min_nodes", 1))
    files = [shlex.quote(str(path.with_name(f"{path.stem}{one['ending']}{path.suffix}"))) for one in recipes]
    following = [
        f"The plan of the first, allowing what it brings, which the plan lists: {plan}{files[0]}"
        f" -e engine_allow={consent.COMMAND}",
        *(f"The plan of the second: {plan}{file}" for file in files[1:]),
    ]
    return {"recipes": recipes, "lines": lines, "next": following}


def _plan_for(inventory: bool, nodes: int) -> str:
    """``inventory``: the user has one."""
    where = "" if inventory else f" -i inventories/{SHIPPED[nodes]}" if nodes in SHIPPED else " -i INVENTORY"
    return f"ansible-playbook playbooks/plan.yml{where} -e engine_recipe="


def _said(heading: str, items: Any) -> list[str]:
    said = list(dict.fromkeys(printable(str(item)) for item in items))
    return [heading, *said] if said else []


PLANNERS = {
    "recipe_translation": Planner(
        translate_recipe,
        {
            "path": {"type": "str", "required": True},
            "recipe_paths": {"type": "list", "elements": "str", "default": []},
            "model_files": {"type": "str", "default": ""},
            "save": {"type": "str", "default": ""},  # where they are written to, if anywhere
            "inventory": {"type": "bool", "default": False},  # the user has one
        },
    ),
}
