# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What holds for all roles: private variables stay private, and a default stands in one place."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import apply as access
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import apply as fabric
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import rollback
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())


def specs(role: str) -> dict[str, dict[str, Any]]:
    """Every option by name, of all entry points."""
    entries = yaml.safe_load((ROOT / f"roles/{role}/meta/argument_specs.yml").read_text())["argument_specs"]
    return {name: option for entry in entries.values() for name, option in (entry.get("options") or {}).items()}


def defaults(role: str) -> dict[str, Any]:
    path = ROOT / f"roles/{role}/defaults/main.yml"
    return dict(yaml.safe_load(path.read_text()) or {}) if path.exists() else {}


def test_no_role_playbook_or_plugin_reads_a_private_variable_of_another_role():
    """What one role hands to another is public (spark_...) and listed in docs/architecture.md."""
    private = re.compile(rf"\b__({'|'.join(sorted(ROLES, key=len, reverse=True))})_\w+")
    files = [path for room in ("roles", "playbooks") for path in (ROOT / room).rglob("*.yml")]
    files += (ROOT / "plugins").rglob("*.py")
    found = {}
    for path in files:
        where = path.relative_to(ROOT)
        own = where.parts[1] if where.parts[0] == "roles" else ""
        # The planner of a role may be told the name of a variable by the role itself, with its own default.
        if where == pathlib.Path("plugins/action/preflight.py") or where == pathlib.Path(
            "plugins/modules/preflight.py"
        ):
            own = "preflight"
        strange = {match[0] for match in private.finditer(path.read_text()) if match[1] != own}
        if strange:
            found[str(where)] = strange
    assert found == {}


def test_the_plans_that_a_run_computes_are_read_where_it_computes_them():
    """A rollback, and the way back of an upgrade, serve by a plan of before: that is in spark_plan alone."""
    users = {str(p.relative_to(ROOT)) for p in (ROOT / "roles").rglob("*.yml") if "spark_plans" in p.read_text()}
    assert users == {"roles/engine/tasks/plan.yml"}


def test_no_name_of_a_file_that_is_included_has_an_equals_sign():
    """Ansible takes what stands before it for an option."""
    pattern = re.compile(r"(?:include|import)_(?:tasks|role|playbook):[ ]+(\S.*)")
    named = [
        (str(path.relative_to(ROOT)), name)
        for folder in ("roles", "playbooks")
        for path in (ROOT / folder).rglob("*.yml")
        for name in pattern.findall(path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 50
    assert not [one for one in named if "=" in one[1]]


def test_what_is_done_in_turn_is_done_in_the_order_of_the_play():
    """Of files that machines include each for itself, Ansible takes first that of the one that has answered first."""
    in_a_loop = re.compile(
        r"include_tasks:.*\n(?:  +\S.*\n)*?  +(?:loop|with_\w+):.*\n(?:  +\S.*\n)*?  +when:.*inventory_hostname"
    )
    files = [path for room in ("roles", "playbooks") for path in (ROOT / room).rglob("*.yml")]
    assert [str(path) for path in files if in_a_loop.search(path.read_text())] == []
    before = "- include_tasks: a.yml\n  loop: x\n  loop_control:\n    loop_var: y\n  when: y == inventory_hostname\n"
    assert in_a_loop.search(before)


def test_nobody_stops_a_keeper_without_a_word_to_the_gateway():
    """`engine_units` lets answers end first; a service is stopped at once."""
    stops = re.compile(r"managed_service:\n(?:    \s*[\w-]+: .*\n)*?\s+name: .*keeper.*\n\s+state: stopped")
    texts = {path: path.read_text() for place in ("roles", "playbooks") for path in (ROOT / place).rglob("*.yml")}
    assert not [str(path) for path, text in texts.items() if stops.search(text)]


def test_what_roles_share_is_documented():
    text = (ROOT / "docs/architecture.md").read_text()
    shared = {
        variable.name
        for variable in variables.SHARED
        if re.search("(set|read) by the (?!playbook)", variable.description)
    }
    assert [name for name in sorted(shared) if f"`{name}`" not in text] == []
    used = set()
    for path in [*(ROOT / "roles").rglob("tasks/*.yml"), *(ROOT / "playbooks").rglob("*.yml")]:
        used |= set(re.findall(r"(?:register:|^\s+)\s*(spark_\w+)\b(?=:| #|$)", path.read_text(), re.MULTILINE))
    assert used <= {variable.name for variable in variables.SHARED}


@pytest.mark.parametrize("role", ROLES)
def test_defaults_and_argument_specs_are_equal(role):
    documented = {name: option["default"] for name, option in specs(role).items() if "default" in option}
    assert documented == defaults(role)


@pytest.mark.parametrize("role", ROLES)
def test_every_entry_point_that_others_use_has_an_argument_spec(role):
    entries = yaml.safe_load((ROOT / f"roles/{role}/meta/argument_specs.yml").read_text())["argument_specs"]
    used = set()
    for path in [*(ROOT / "roles").rglob("tasks/*.yml"), *(ROOT / "playbooks").rglob("*.yml")]:
        text = path.read_text()
        used |= set(re.findall(rf"name: sparkmatrix\.cluster\.{role}\n\s+tasks_from: (\w+)", text))
    assert used <= set(entries)
    assert all((ROOT / f"roles/{role}/tasks/{name}.yml").exists() for name in entries)


def test_a_default_that_is_said_again_is_the_same():
    """A variable of another role has no default where it is read; there the value of defaults/main.yml is repeated."""
    known = {name: value for role in ROLES for name, value in defaults(role).items()}
    documented = variables.load()
    again = re.compile(r"\b(\w+) \| default\(('[^']*'|[\w.\[\]]+)\)")
    wrong, own = [], []
    for path in [*(ROOT / "roles").rglob("*.yml"), *(ROOT / "playbooks").rglob("*.yml")]:
        for name, text in again.findall(path.read_text()):
            value = yaml.safe_load(text) if text != "omit" else known.get(name)
            if name in known and value != known[name]:
                wrong.append((path.relative_to(ROOT), name, text))
            if name in known and path.relative_to(ROOT).parts[:2] == ("roles", documented[name].role):
                own.append((path.relative_to(ROOT), name, text))
    assert wrong == []
    assert own == [], "a role has its own defaults"


def test_the_gateway_opens_the_paths_of_the_table():
    assert defaults("gateway")["gateway_paths"] == [api_paths.MODELS, *api_paths.TASKS]


def test_an_unconfirmed_change_lasts_as_long_in_role_and_program():
    of_access = yaml.safe_load((ROOT / "roles/access/vars/main/sshd.yml").read_text())["__access_rollback_seconds"]
    of_programs = {rollback.SECONDS, access.Wanted().rollback_seconds, fabric.Wanted(None).rollback_s}
    assert {of_access, defaults("fabric")["fabric_rollback_seconds"], *of_programs} == {rollback.SECONDS}


def test_the_changelog_lists_the_modules_for_users():
    releases = yaml.safe_load((ROOT / "changelogs/changelog.yaml").read_text())["releases"].values()
    listed = [entry["name"] for release in releases for entry in release.get("modules", ())]
    text = (ROOT / "docs/modules.md").read_text()
    gone = set(yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["plugin_routing"]["modules"])
    there = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert len(listed) == len(set(listed)) and set(listed) - gone == there
    assert (ROOT / "changelogs/fragments").is_dir(), "antsibull-changelog wants it"


def test_root_runs_and_writes_nothing_in_an_environment_of_somebody_else():
    tasks = yaml.safe_load((ROOT / "roles/engine/tasks/python_environment.yml").read_text())
    tasks += [task for block in tasks for task in block.get("block", ())]
    there = {task["name"]: task for task in tasks if "__engine_venv.path" in str({**task, "block": ""})}
    acting = {
        name: str(task.get("ansible.builtin.command", {}).get("argv"))
        for name, task in there.items()
        if not {"sparkmatrix.cluster.node", "ansible.builtin.debug", "ansible.builtin.assert", "block"} & set(task)
    }
    assert len(acting) == 5, "making, the lock, installing it and the rest, kernels; engine_inputs asks as the owner"
    for name, argv in acting.items():
        assert 0 < argv.find("runuser") < argv.find("__engine_venv_owner") < argv.find("__engine_venv.path"), name


# What decides whom Ansible talks to, how, and as whom.
CONNECTION = re.compile(r"ansible_\w+|delegate_to|remote_user|port|connection|add_host|hosts|group_by|include_vars")
# Results of the controller itself, in which no machine's word is an address or a name.
MADE_HERE = {
    "discover_found": "lan_discover: IPv4 addresses, of which each was asked",
    "discover_keys": "a file that Ansible has made on the controller",
    "discover_machines": "addresses of discover_found, and names that are counted",
    "node_answer": "whether there is any, which chooses one of two groups",
    "node_leaving": "hosts and variables of the inventory",
}


def mappings(value: Any) -> list[dict[str, Any]]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*([value] if isinstance(value, dict) else []), *(mapping for part in inner for mapping in mappings(part))]


def connections_from_results(files: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Where, what is set, and the result it is made of, however many variables and loops lie in between."""
    registered = {
        str(mapping["register"]) for text in files.values() for mapping in mappings(text) if "register" in mapping
    }
    registered |= {"ansible_facts", "ansible_local"}
    made_of: dict[str, set[str]] = {}
    places = []

    def define(name: str, value: Any) -> None:
        made_of.setdefault(name, set()).update(re.findall(r"\w+", str(value)))

    for where, text in files.items():
        if isinstance(text, dict):  # of roles/*/vars and defaults
            for name, value in text.items():
                define(name, value)
        for mapping in mappings(text):
            loops = [value for key, value in mapping.items() if re.fullmatch(r"loop|with_\w+", str(key))]
            if loops and (mapping.get("loop_control") or {}).get("loop_var"):
                define(mapping["loop_control"]["loop_var"], loops)
            for key, value in mapping.items():
                name = str(key).rpartition(".")[2]
                any_name = name in ("set_fact", "vars") and "{{" in str(
                    list(value) if isinstance(value, dict) else value
                )
                if name in ("set_fact", "vars") and isinstance(value, dict):
                    for inner, what in value.items():
                        define(inner, [what, loops])
                sets = CONNECTION.fullmatch(name) and (name.startswith("ansible_") or {"name", "hosts"} & set(mapping))
                if sets or any_name:
                    used = set(re.findall(r"\w+", str(value)))
                    places.append((where, name, used | set(re.findall(r"\w+", str(loops)))))
    found = set()
    for where, name, used in places:
        ask, seen = list(used), set()
        while ask:
            word = ask.pop()
            ask += made_of.get(word, set()) - seen if word not in registered | seen else ()
            seen.add(word)
        found |= {(where, name, word) for word in seen & registered}
    return found


def test_no_answer_of_a_machine_decides_whom_ansible_talks_to():
    paths = [path for room in ("roles", "playbooks") for path in (ROOT / room).rglob("*.yml")]
    files = {str(path.relative_to(ROOT)): yaml.load(path.read_text(), yaml.BaseLoader) for path in paths}
    found = connections_from_results(files)
    assert [one for one in found if one[2] not in MADE_HERE] == []
    assert {one[2] for one in found} == set(MADE_HERE), "a reason that is needed no more"


def test_a_task_with_a_secret_is_kept_out_of_the_log():
    """Those that make, copy or remove one, and what a module returns as ``secret``; who only looks gets none."""
    secret = re.compile(r"'call': 'secret'|\.secret\b")
    files = [path for room in ("roles", "playbooks") for path in (ROOT / room).rglob("*.yml")]
    tasks = [mapping for path in files for mapping in mappings(yaml.load(path.read_text(), yaml.BaseLoader))]
    handle = [task for task in tasks if any("." in key and secret.search(f"{key} {task[key]}") for key in task)]
    shown = [one for one in handle if one.get("no_log") != "true"]
    assert [one["name"] for one in shown if "'state': 'read'" not in str(one)] == []
    assert len(handle) > 8


def test_no_unit_loses_its_file_before_it_is_stopped():
    """What is cut off in between leaves a unit that runs, and that nothing tells of any more."""
    found = []
    for path in sorted((ROOT / "roles").glob("*/tasks/*.yml")):
        placed = False
        for task in yaml.safe_load(path.read_text()) or []:
            placed = placed or "sparkmatrix.cluster.managed_files" in task
            stops = task.get("sparkmatrix.cluster.managed_service") or {}
            if placed and stops.get("state") == "absent":
                found.append(f"{path.relative_to(ROOT)}: {task['name']}")
    assert found == []


def excused(text: str) -> list[tuple[str, list[str]]]:
    """Rules of ansible-lint that a line is excused from, and the variables of the task or line that it stands in."""
    found = []
    for part in re.split(r"\n(?=\s*- name: |\S)", text):
        for rules in re.findall(r"# *noqa\b:? *(.*)$", part, re.MULTILINE):
            code = re.sub(r" *# *noqa.*", "", part)
            named = re.findall(r"^\s+register: (\w+)$", code, re.MULTILINE) + re.findall(r"^(\w+):", code)
            for facts in re.findall(r"^(\s+)ansible\.builtin\.set_fact:\n((?:\1 .*\n?)+)", code, re.MULTILINE):
                named += re.findall(rf"^{facts[0]}  (\w+):", facts[1], re.MULTILINE)
            found.append((rules, [name for name in named if not name.startswith("__") and name != "cacheable"]))
    return found


def test_a_rule_that_a_line_is_excused_from_is_one_that_the_contributing_guide_explains():
    guide = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## Rules of ansible-lint")[2].partition("\n## ")[0]
    links = dict(re.findall(r"\[`([a-z-]+(?:\[[a-z-]+\])?)`\]\((\S+?)\)", guide))
    for rule, link in links.items():
        assert link == f"https://docs.ansible.com/projects/lint/rules/{rule.partition('[')[0]}/"
    prefixes = tuple(re.findall(r"`(\w+_)…`", guide))
    used = set()
    for path in (path for room in ("roles", "playbooks", "molecule") for path in (ROOT / room).rglob("*.yml")):
        for rules, named in excused(path.read_text()):
            where = f"{path.relative_to(ROOT)}: {rules}, {named}"
            assert rules in links and named and all(name.startswith(prefixes) for name in named), where
            used.add((rules, *(name.partition("_")[0] + "_" for name in named)))
    assert {rule for rule, *_prefixes in used} == set(links) and {one for _, *some in used for one in some} == {
        *prefixes
    }


def test_notes_of_two_layers_are_not_put_together_without_a_space():
    """Ansible adds texts of the same name up, unless told not to; the verdicts at the end have those of the fabric."""
    texts = [path.read_text() for room in ("roles", "playbooks") for path in (ROOT / room).rglob("*.yml")]
    notes = [note for text in texts for note in re.findall(r"set_stats:\n(.*?)\n(?=  \w|- |\n)", text, re.DOTALL)]
    assert notes
    assert [note for note in notes if "aggregate: false" not in note] == []
