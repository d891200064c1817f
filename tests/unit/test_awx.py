# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What an execution environment is told, and what docs/awx.md says, held against the code."""

from __future__ import annotations

import fnmatch
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import layers as preflight_layers
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables as preflight_variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.base import WHOLE

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/awx.md").read_text()
GALAXY = yaml.safe_load((ROOT / "galaxy.yml").read_text())
NAMED = [f"playbooks/{path.name}" for path in sorted(ROOT.glob("playbooks/*.yml"))]
# A playbook at the root is the one of the same name.
SHORT = {f"{name}.yml": f"playbooks/{name}.yml" for name in ("site", "reset", "verify")}


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
    offered = playbooks_in(section("Job templates")) | {"playbooks/reset.yml"}
    assert playbooks_in(taken) == {name for name in offered if not refuses_a_limit(ROOT / name)}


def test_survey_variables_exist():
    rows = [line.split("|") for line in section("Job templates").splitlines() if line.count("|") == 5]
    asked = {name for row in rows for name in re.findall(r"`(\w+)`", row[3])}
    assert "engine_recipe" in asked
    texts = "".join(path.read_text() for path in sorted((ROOT / "playbooks").rglob("*.yml")))
    assert [name for name in sorted(asked - set(preflight_variables.load())) if name not in texts] == []


def test_nothing_waits_for_a_person():
    for room in ("roles", "playbooks"):
        for path in sorted((ROOT / room).rglob("*.yml")):
            assert not re.search(r"vars_prompt:|ansible\.builtin\.pause:|\bpause:", path.read_text()), path
