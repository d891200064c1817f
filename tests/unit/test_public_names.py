# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A name that users type goes on to work, or is refused by a message that says what stands for it now."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks, layers, variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import verbs
from preflight_inputs import context, inventory

ROOT = Path(__file__).resolve().parents[2]
NAMES = yaml.safe_load((ROOT / "tests/unit/fixtures/public_names.yml").read_text(encoding="utf-8"))
ROUTED = yaml.safe_load((ROOT / "meta/runtime.yml").read_text()).get("plugin_routing", {}).get("modules", {})
KNOWN = variables.load()
READ = "".join(path.read_text() for path in ROOT.glob("playbooks/**/*.yml"))
THERE = {
    "playbooks": lambda name: (ROOT / name).is_file(),
    "roles": lambda name: (ROOT / "roles" / name).is_dir(),
    "tags": layers.KNOWN_TAGS.__contains__,
    "verbs": verbs.VERBS.__contains__,
    "commands": _node_program.COMMANDS.__contains__,
    "modules": lambda name: (ROOT / f"plugins/modules/{name}.py").is_file(),
    "inventories": lambda name: (ROOT / "inventories" / name).is_dir(),
    "of_playbooks": READ.__contains__,
    "variables": KNOWN.__contains__,
}


def of_variable(name: str) -> str:
    hosts = inventory(1, **{name: 1})
    made = checks.run(checks.INVENTORY, context(hosts=hosts, variables=KNOWN))
    return " ".join(str(finding) for finding in made if finding.rule == "renamed_variables")


def of_tag(name: str) -> str:
    return " ".join(map(str, layers.select([], [name], [])[1]))


# What is said of a name that is no more; of the other kinds nothing is renamed.
SAID = {
    "variables": of_variable,
    "tags": of_tag,
    "verbs": lambda name: verbs.unknown("verb", name, list(verbs.VERBS)),
    "modules": lambda name: str(ROUTED.get(name, "")),
}


@pytest.mark.parametrize("kind", THERE)
def test_what_users_type_is_there_or_named(kind: str) -> None:
    names = NAMES[kind] if kind != "variables" else [name for role in NAMES[kind].values() for name in role]
    lost = []
    for entry in names:
        old, arrow, new = entry.partition(" -> ")
        if not (new and new in SAID[kind](old) if arrow else THERE[kind](old)):
            lost.append(entry)
    assert lost == []


def test_what_is_said_of_a_variable_that_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "RENAMED", {"engine_old": "It is called engine_port now"})
    assert "there is no variable engine_old" in of_variable("engine_old")
    assert "It is called engine_port now" in of_variable("engine_old")


def test_what_was_renamed_is_in_the_list() -> None:
    listed = {entry.partition(" -> ")[0] for role in NAMES["variables"].values() for entry in role}
    assert set(variables.RENAMED) <= listed and not set(variables.RENAMED) & set(KNOWN)
