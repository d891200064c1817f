# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the collection requires against what it uses, in both directions."""

from __future__ import annotations

import ast
import fnmatch
import importlib.metadata
import json
import pathlib
import re
import sys
from collections.abc import Iterator

import pytest
import release
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = pathlib.Path(__file__).resolve().parents[2]
GALAXY = yaml.safe_load((ROOT / "galaxy.yml").read_text())
PACKAGES = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
# What a filter of a collection needs on the controller.
BEHIND = {"community.general.json_query": "jmespath"}


def texts() -> Iterator[str]:
    for room in ("roles", "playbooks", "plugins"):
        for path in sorted((ROOT / room).rglob("*.yml")) + sorted((ROOT / room).rglob("*.py")):
            yield path.read_text()


def called() -> set[str]:
    """Modules, filters and the like of other collections, by their full names."""
    names = re.compile(r"\b((?:ansible|community)\.(?!builtin\b|module_utils\b|plugins\b)[a-z]+\.[a-z]\w+)")
    text = "".join(text for text in texts() if "ansible" in text)
    found = set(names.findall(re.sub(r"(?m)^\s*(?:from|import) .*$", "", text)))
    return {name for name in found if name.rpartition(".")[0] in KNOWN}


# Also those that were required once: a use of them has to bring the requirement back.
KNOWN = {
    "ansible.posix",
    "ansible.utils",
    "ansible.netcommon",
    "community.docker",
    "community.general",
    "community.crypto",
}


def imported(room: str) -> set[str]:
    found = set()
    for path in sorted((ROOT / "plugins" / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").split(".")[0])
    return found - {*sys.stdlib_module_names, "ansible", "ansible_collections"}


def test_every_collection_that_is_required_is_used_and_the_other_way_round():
    listed = yaml.safe_load((ROOT / "collections/requirements.yml").read_text())["collections"]
    assert {entry["name"]: entry["version"] for entry in listed} == GALAXY["dependencies"]
    assert {name.rpartition(".")[0] for name in called()} == set(GALAXY["dependencies"])


@pytest.mark.parametrize("name", GALAXY["dependencies"])
def test_the_package_ansible_brings_every_collection_that_is_required(name):
    """The tests have the oldest ansible of the guide's range, or the newest: no user has to ask Galaxy."""
    package = importlib.metadata.distribution("ansible")
    assert Requirement(release.asked_for(ROOT)).specifier.contains(package.version)
    path = pathlib.Path(package.locate_file("ansible_collections"), *name.split("."), "MANIFEST.json")
    bundled = json.loads(path.read_text())["collection_info"]["version"]
    assert SpecifierSet(GALAXY["dependencies"][name]).contains(bundled)
    asked = SpecifierSet(yaml.safe_load((ROOT / "meta/runtime.yml").read_text())["requires_ansible"])
    assert asked.contains(importlib.metadata.version("ansible-core"))


def test_the_range_of_ansible_is_that_of_the_locks():
    """So what is tested is the oldest and the newest of what the guide installs."""
    lower, upper = sorted(str(specifier) for specifier in Requirement(release.asked_for(ROOT)).specifier)[::-1]
    dev = (ROOT / "requirements/dev.in").read_text()
    assert f"ansible{lower}," in dev and f',{upper} ; python_version >= "3.12"' in dev


def test_awx_awx_is_needed_by_the_role_awx_alone_and_named_there():
    files = [path for room in ("roles", "playbooks") for path in (ROOT / room).rglob("*.yml")]
    uses = re.compile(r"^\s+awx\.awx\.", re.MULTILINE)
    users = {path.relative_to(ROOT).parts[:2] for path in files if uses.search(path.read_text())}
    assert users == {("roles", "awx")} and "awx.awx" not in GALAXY["dependencies"]
    said = (ROOT / "roles/awx/tasks/main.yml").read_text() + (ROOT / "roles/awx/README.md").read_text()
    assert "awx.awx:24.6.1" in said and "`awx.awx` 24.6.1" in said


def test_every_python_package_that_is_required_is_used_and_the_other_way_round():
    used = imported("action") | imported("plugin_utils") | {BEHIND[name] for name in called() & set(BEHIND)}
    # Ansible itself brings these.
    assert {re.split(r"[<>=]", line)[0] for line in PACKAGES} == used - {"yaml", "jinja2", "markupsafe"}


def test_a_node_needs_python_alone():
    """PyYAML is there where netplan is."""
    assert imported("module_utils") | imported("modules") <= {"yaml"}


def test_everybody_is_told_of_the_packages():
    assert "-r requirements.txt" in (ROOT / release.GUIDE).read_text()
    assert "-r ../requirements.txt" in (ROOT / "requirements/dev.in").read_text().splitlines()
    for name in ("meta/execution-environment.yml", "execution-environment.yml"):
        assert yaml.safe_load((ROOT / name).read_text())["dependencies"]["python"] == "requirements.txt"
    assert not any(fnmatch.fnmatch("requirements.txt", pattern) for pattern in GALAXY["build_ignore"])
    for lock in ("dev-py311.txt", "dev-py312.txt"):
        pinned = {line.partition("==")[0] for line in (ROOT / "requirements" / lock).read_text().splitlines()}
        assert {re.split(r"[<>=]", line)[0] for line in PACKAGES} <= pinned


def test_who_has_the_archive_alone_finds_inventories_and_the_packages():
    page = (ROOT / "docs/start/from-the-archive.md").read_text()
    ignored = GALAXY["build_ignore"]
    for name, there in (("inventories", True), ("inventories/2spark", True), ("inventories/mine", False)):
        assert there != any(fnmatch.fnmatch(name, pattern) for pattern in ignored), name
    assert all(f"'{package}'" in page for package in PACKAGES)
    assert re.search(r"pip install '(ansible[^']+)'", page)[1] in (ROOT / release.GUIDE).read_text()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):  # a link to what the archive lacks
        assert not re.search(r"\]\((?:\.\./)*(?:tests|tools|molecule|requirements)/", path.read_text()), path


def test_the_tools_of_awx_are_locked_with_hashes_and_only_there():
    """What the tests make and run an execution environment with."""
    text = (ROOT / "requirements/awx-py311.txt").read_text()
    parts = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert [line for line in parts if not re.fullmatch(r"\S+==\S+(\s+--hash=sha256:[0-9a-f]{64})+", line.strip())] == []
    locked = dict(line.split()[0].split("==") for line in parts)
    source = (ROOT / "requirements/awx.in").read_text().splitlines()
    asked = [Requirement(line) for line in source if line[:1].isalpha()] + [Requirement(line) for line in PACKAGES]
    image = yaml.safe_load((ROOT / "execution-environment.yml").read_text())["dependencies"]
    asked += [Requirement(image[name]["package_pip"]) for name in ("ansible_core", "ansible_runner")]
    assert (
        all(locked[requirement.name] in requirement.specifier for requirement in asked)
        and "-r ../requirements.txt" in source
    )
    for lock in ("dev-py311.txt", "dev-py312.txt"):
        assert not re.search(r"(?m)^ansible-(builder|runner)==", (ROOT / "requirements" / lock).read_text())
