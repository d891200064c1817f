# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What an execution environment is told, and what docs/awx.md says, held against the code."""

from __future__ import annotations

import fnmatch
import functools
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import layers as preflight_layers
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables as preflight_variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import WHOLE

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/awx.md").read_text()
GALAXY = yaml.safe_load((ROOT / "galaxy.yml").read_text())
NAMED = [f"playbooks/{path.name}" for path in sorted(ROOT.glob("playbooks/*.yml"))]
SETTINGS: Mapping[str, Any] = {
    "awx_image": "registry.example.com/sparkmatrix-ee",
    "awx_project_url": "https://git.example.com/cluster.git",
    "awx_inventory_file": "inventories/mine/hosts.yml",
    "awx_known_hosts": "known_hosts",
    "awx_notifications": ["https://hooks.example.com/x"],
}


@functools.cache
def variables() -> dict[str, Any]:
    """Of the role, as a run has them."""
    role = ROOT / "roles/awx"
    files = [role / "defaults/main.yml", *sorted(role.glob("vars/main/*.yml"))]
    loaded = [DataLoader().load_from_file(str(file), trusted_as_template=True) for file in files]
    return {**{name: value for values in loaded for name, value in values.items()}, **SETTINGS}


def objects() -> dict[str, Any]:
    """What the data says, with its templates filled in: every controller_ variable."""
    templar = Templar(DataLoader(), variables())
    return {name: templar.template(text) for name, text in variables().items() if name.startswith("controller_")}


OBJECTS = objects()
TEMPLATES = OBJECTS["controller_templates"]
# Modules of awx.awx by variable of the data.
MODULES = {
    "controller_execution_environments": "execution_environment",
    "controller_credential_types": "credential_type",
    "controller_notifications": "notification_template",
    "controller_projects": "project",
    "controller_inventories": "inventory",
    "controller_inventory_sources": "inventory_source",
    "controller_templates": "job_template",
    "controller_workflows": "workflow_job_template",
    "controller_schedules": "schedule",
}
DISRUPTIVE = {f"playbooks/{name}.yml" for name in ("site", "upgrade", "os_update", "reset")}
TAGGED = {f"playbooks/{name}.yml" for name in ("site", "reset", "benchmark")}
# A playbook at the root is the one of the same name.
SHORT = {f"{name}.yml": f"playbooks/{name}.yml" for name in ("site", "reset", "verify")}


def module_options(name: str) -> set[str]:
    """Of a module of awx.awx, where that is installed."""
    module = pytest.importorskip(
        f"ansible_collections.awx.awx.plugins.modules.{name}",
        reason="the package ansible has awx.awx up to version 12, so this runs with Python 3.11",
    )
    return set(yaml.safe_load(module.DOCUMENTATION)["options"])


def section(title: str) -> str:
    start = PAGE.index(f"\n## {title}\n") if f"\n## {title}\n" in PAGE else PAGE.index(f"\n### {title}\n")
    return re.split(r"\n##+ ", PAGE[start + 4 :], maxsplit=1)[0]


def playbooks_in(text: str) -> set[str]:
    found = set(re.findall(r"`((?:playbooks/\w+|site|reset|verify)\.yml)`", text))
    return {SHORT.get(name, name) for name in found}


def plays(path: pathlib.Path, variables: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any], Mapping[str, Any]]]:
    """Every play of a playbook in order, with the file that it is in and the variables of its imports."""
    for entry in yaml.safe_load(path.read_text()):
        target = entry.get("ansible.builtin.import_playbook")
        if target:
            yield from plays(path.parent / target, {**entry.get("vars", {}), **variables})
        else:
            yield path.name, entry, variables


def refuses_a_limit(path: pathlib.Path) -> bool:
    """The first play that does something is preflight, for layers that must see all machines."""
    for name, play, variables in plays(path, {}):
        first = (play.get("tasks") or [{}])[0]
        if "preflight_layers" in first.get("vars", {}):
            return bool(WHOLE & set(first["vars"]["preflight_layers"]))
        if play.get("become"):
            return name == "preflight.yml" and bool(
                WHOLE & set(variables.get("spark_layers") or preflight_layers.LAYERS)
            )
    return False


def test_the_metadata_names_files_that_the_collection_carries():
    named = yaml.safe_load((ROOT / "meta/execution-environment.yml").read_text())["dependencies"]
    image = yaml.safe_load((ROOT / "execution-environment.yml").read_text())["dependencies"]
    assert named["system"] == image["system"] == "bindep.txt"
    for name in (*named.values(), "meta/execution-environment.yml"):
        assert (ROOT / name).is_file()
        assert not any(fnmatch.fnmatch(name, pattern) for pattern in GALAXY["build_ignore"])
    assert (ROOT / image["galaxy"]).is_file()


def test_the_image_has_an_ansible_that_the_collection_takes():
    asked = yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["requires_ansible"]
    image = yaml.safe_load((ROOT / "execution-environment.yml").read_text())["dependencies"]
    least = re.fullmatch(r">=(\d+\.\d+)\.0", asked)
    assert least
    assert image["ansible_core"]["package_pip"].startswith(f"ansible-core>={least[1]},")


def test_the_page_names_every_playbook_and_no_other():
    assert playbooks_in(PAGE) == set(NAMED)
    assert all((ROOT / name).is_file() for name in SHORT)


def test_the_page_says_which_playbooks_refuse_a_limit():
    refused, _blank, taken = section("Limit").partition("\n\nThese take one")
    assert playbooks_in(refused) == {name for name in NAMED if refuses_a_limit(ROOT / name)}
    # One asks no machine, the other is refused when it has let the machines of the limit in.
    offered = {one["playbook"] for one in TEMPLATES} - {"playbooks/recipes.yml", "playbooks/bootstrap.yml"}
    assert playbooks_in(taken) == {name for name in offered if not refuses_a_limit(ROOT / name)}


def test_every_playbook_has_a_template_or_a_reason_for_having_none():
    """A new playbook gets an entry in roles/awx/vars/main/objects.yml: a template, or a line that says why not."""
    without = variables()["__awx_without_template"]
    assert {one["playbook"] for one in TEMPLATES} | set(without) == set(NAMED)
    assert not {one["playbook"] for one in TEMPLATES} & set(without)


def test_playbooks_are_those_that_awx_offers():
    """AWX lists files in which it finds a play, as its own expression says (awx/main/utils/ansible.py)."""
    play = re.compile(r"^\s*?-?\s*?(?:hosts|(?:ansible\.builtin\.)?import_playbook):\s*?.*?$", re.MULTILINE)
    for one in TEMPLATES:
        assert play.search((ROOT / one["playbook"]).read_text()), one["playbook"]


def test_what_awx_offers_that_must_not_be_switched_on_is_off():
    for one in TEMPLATES:
        assert (one["job_slice_count"], one["limit"], one["forks"], one["timeout"]) == (1, "", 0, 0), one["name"]
        assert not (one["allow_simultaneous"] or one["use_fact_cache"] or one["become_enabled"]), one["name"]
        asked = {name for name, value in one.items() if name.startswith("ask_") and value}
        allowed = {f"ask_{name}_on_launch" for name in ("job_type", "diff_mode", "verbosity", "tags")}
        assert asked <= allowed, one["name"]
        assert one["ask_tags_on_launch"] == (one["playbook"] in TAGGED) or (one["name"].endswith("Drift"))
    (source,) = OBJECTS["controller_inventory_sources"]
    assert source["overwrite"] and source["overwrite_vars"] and source["update_on_launch"]


def test_tags_and_variables_of_templates_exist():
    known = set(preflight_variables.load())
    for one in TEMPLATES:
        assert set(filter(None, one["job_tags"].split(","))) <= set(preflight_layers.KNOWN_TAGS)
        assert {name for name in one["extra_vars"] if not name.startswith("ansible_")} <= known, one["name"]
        text = (ROOT / one["playbook"]).read_text() + "".join(
            path.read_text() for path in (ROOT / "playbooks/layers").glob("*.yml")
        )
        asked = {question["variable"] for question in one["survey_spec"].get("spec", ())}
        assert one["survey_enabled"] == bool(asked) and all(name in known or name in text for name in asked)


def test_answers_of_every_survey_are_what_the_variables_take():
    """The defaults, every choice, and for a text that may be empty the empty one."""
    known = preflight_variables.load()
    count = 0
    for one in (*TEMPLATES, *OBJECTS["controller_workflows"]):
        for question in one.get("survey_spec", {}).get("spec", ()):
            variable = known.get(question["variable"])
            assert question["question_description"]
            choices = question.get("choices", "").splitlines()
            assert question["required"] or question["type"] == "text", "an empty answer is no number and no choice"
            for answer in choices or ([question["default"]] if not question["required"] or question["default"] else []):
                count += 1
                assert variable is None or preflight_variables.complaint(variable, answer) == "", question
    assert count > 20
    assert preflight_variables.complaint(known["engine_context"], "many") != ""


def test_the_template_of_the_models_removes_and_exports_nothing():
    """Nobody approves there, and a survey cannot ask for artifacts_models."""
    (template,) = [one for one in TEMPLATES if one["playbook"] == "playbooks/artifacts.yml"]
    (question,) = template["survey_spec"]["spec"]
    assert question["choices"].splitlines() == ["list", "verify", "repair"]
    assert all(f"({choice})" in question["question_description"] for choice in question["choices"].splitlines())
    assert "`playbooks/artifacts.yml` with `remove` or `export`" in section("What does not work there")


def test_options_are_those_of_the_modules():
    for endpoint, module in MODULES.items():
        options = module_options(module)
        for one in OBJECTS[endpoint]:
            assert set(one) - {"simplified_workflow_nodes"} <= options, one["name"]
    nodes = [
        node
        for controller_workflow in OBJECTS["controller_workflows"]
        for node in controller_workflow["simplified_workflow_nodes"]
    ]
    assert all(set(node) <= module_options("workflow_job_template_node") for node in nodes)


def test_workflows_ask_before_what_changes_the_machines():
    disruptive = {one["name"] for one in TEMPLATES if one["playbook"] in DISRUPTIVE}
    for workflow in OBJECTS["controller_workflows"]:
        nodes = {node["identifier"]: node for node in workflow["simplified_workflow_nodes"]}
        parents = {next_: node for node in nodes.values() for next_ in node.get("success_nodes", ())}
        assert all(set(node.get("success_nodes", ())) <= set(nodes) for node in nodes.values())
        for name, node in nodes.items():
            if node.get("unified_job_template") in disruptive:
                assert "approval_node" in parents[name], (workflow["name"], name)
            assert "approval_node" in node or node["unified_job_template"] in {one["name"] for one in TEMPLATES}


def test_nothing_secret_is_in_the_data():
    for kind in OBJECTS["controller_credential_types"]:
        secret = {entry["id"] for entry in kind["inputs"]["fields"] if entry.get("secret")}
        for text in (*kind["injectors"]["extra_vars"].values(), *kind["injectors"].get("file", {}).values()):
            assert re.fullmatch(r"\{\{ (\w+|tower\.filename) \}\}", text)
        assert secret and set(kind["inputs"]["required"]) == {entry["id"] for entry in kind["inputs"]["fields"]}


def test_the_token_of_a_hub_comes_as_the_file_that_the_layer_wants():
    """AWX writes the template into a file of the job, whose path is tower.filename."""
    (kind,) = [one for one in OBJECTS["controller_credential_types"] if one["name"].endswith(": hub token")]
    (variable,) = kind["injectors"]["extra_vars"]
    options = yaml.safe_load((ROOT / "roles/artifacts/meta/argument_specs.yml").read_text())["argument_specs"]["main"]
    assert variable in options["options"]
    assert kind["injectors"]["file"] == {"template": "{{ token }}"}
    assert kind["injectors"]["extra_vars"][variable] == "{{ tower.filename }}"


def test_nothing_waits_for_a_person():
    for room in ("roles", "playbooks"):
        for path in sorted((ROOT / room).rglob("*.yml")):
            assert not re.search(r"vars_prompt:|ansible\.builtin\.pause:|\bpause:", path.read_text()), path
