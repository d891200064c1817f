# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What is written about options in several places is the same: documentation and code of modules and actions, entry
points of roles, the list of modules for users. And the guides can be read: links, lines, contents."""

from __future__ import annotations

import copy
import importlib
import itertools
import pathlib
import re
from collections.abc import Mapping
from typing import Any
from unittest import mock

import make_docs
import pytest
import yaml
from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.layers import LAYERS
from guide_examples import FENCE, GUIDES

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = "ansible_collections.sparkmatrix.cluster.plugins"
MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py"))
ACTIONS = sorted(path.stem for path in (ROOT / "plugins/action").glob("*.py"))
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
FRONT = ROOT / "docs/README.md"
INTERNAL = "Internal to this collection: no compatibility promise."
KEYS = {"type": "str", "required": False, "default": None, "choices": None, "elements": None}


class SpecFound(BaseException):
    """Not an Exception: nothing between the call and the test may catch it."""


def documentation(name: str) -> dict[str, Any]:
    text = importlib.import_module(f"{PACKAGE}.modules.{name}").DOCUMENTATION
    return dict(yaml.safe_load(text))


def found(*_args: Any, argument_spec: Mapping[str, Any], **_options: Any) -> None:
    raise SpecFound(argument_spec)


def spec_of(name: str) -> Any:
    """What the code checks options against; None for an action that hands all of them to its module."""
    module = importlib.import_module(f"{PACKAGE}.modules.{name}")
    try:
        if hasattr(module, "main"):
            with mock.patch.object(module, "AnsibleModule", found):
                module.main()
        action = importlib.import_module(f"{PACKAGE}.action.{name}").ActionModule
        task = mock.MagicMock(args={}, async_val=0)
        with mock.patch.object(ActionBase, "validate_argument_spec", found):
            action(*[task] + [mock.MagicMock()] * 5).run(task_vars={})
    except SpecFound as exc:
        return exc.args[0]
    raise AssertionError(f"{name} checks no options")


def plain(options: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Any]:
    """Options by what Ansible makes of them, from documentation, a module's spec or a role's."""
    return {
        name: {
            **{key: _listed(option.get(key, usual)) for key, usual in KEYS.items()},
            "options": plain(option.get("suboptions") or option.get("options")),
        }
        for name, option in (options or {}).items()
    }


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, (tuple, set, type({}.keys()))) else copy.deepcopy(value)


# Now, before a test runs: Ansible writes the defaults of suboptions into a default that is a dict.
SPECS = {name: plain(spec_of(name)) for name in MODULES}


@pytest.mark.parametrize("name", MODULES)
def test_options_are_documented_as_they_are_checked(name: str) -> None:
    assert plain(documentation(name)["options"]) == SPECS[name]


def test_every_action_is_documented() -> None:
    assert set(ACTIONS) <= set(MODULES)


def test_every_module_is_for_users_or_internal() -> None:
    """Those for users are in docs/modules.md; the others say in their first line that they are not."""
    table = (
        (ROOT / "docs/modules.md").read_text().partition("| Module for your own playbooks |")[2].partition("\n\n")[0]
    )
    listed = re.findall(r"^\| `(\w+)` \| [^|]+ \|$", table, re.M)
    assert len(listed) == table.count("\n") - 1 and set(listed) <= set(MODULES)
    for name in MODULES:
        document = documentation(name)
        assert (name in listed) == (document["description"][0] != INTERNAL), name
        if name in listed:
            examples = yaml.safe_load(importlib.import_module(f"{PACKAGE}.modules.{name}").EXAMPLES)
            assert examples, name
            attributes = document.get("attributes") or {}
            info = "sparkmatrix.cluster.attributes.info_module" in document["extends_documentation_fragment"]
            assert info or attributes["check_mode"]["support"] == attributes["diff_mode"]["support"] == "full", name


@pytest.mark.parametrize("role", ROLES)
def test_an_option_of_several_entry_points_is_one(role: str) -> None:
    specs = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text())["argument_specs"]
    options: dict[str, Any] = {}
    for entry in specs.values():
        for name, option in (entry.get("options") or {}).items():
            assert plain({name: options.setdefault(name, option)}) == plain({name: option}), name


# --- the guides ------------------------------------------------------------------------------------------------------


def anchors(page: str) -> set[str]:
    """Of its headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: pathlib.Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", path.read_text())):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_guide_can_be_read(path: pathlib.Path) -> None:
    page = path.read_text()
    prose = FENCE.sub("", page)
    # A table's row and an address cannot be broken.
    long = [line for line in page.splitlines() if len(line) > 120 and not re.match(r"\s*\||\S*\]\(http|\[", line)]
    assert long == []
    titles = re.findall(r"^## (.*)$", prose, re.MULTILINE)
    if path.parent == ROOT / "docs" and len(titles) > 3:
        assert re.search(r"^- \[.*\]\(#", prose, re.MULTILINE), "a table of contents"


def test_the_first_page_and_the_glossary_are_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
    rows = re.findall(r"^\| .* \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert len(rows) - 1 <= 20  # one screen
    assert [word for word in EXPLAINED if not re.search(rf"^\| [^|]*\b{word}\b[^|]* \|", "\n".join(rows), re.M)] == []
    assert {str(path.relative_to(FRONT.parent)) for path in ROOT.glob("docs/**/*.md")} - {"README.md"} <= set(
        re.findall(r"\(([\w/-]+\.md)", FRONT.read_text())
    ) | {"examples/README.md"}, "docs/README.md lists every guide"
    roles = {path.parent.name for path in ROOT.glob("roles/*/README.md")}
    assert roles <= set(re.findall(r"\(\.\./roles/(\w+)/README\.md\)", FRONT.read_text())), "and every role"


# Words that the guides use as if they were known.
EXPLAINED = [
    *("engine", "service", "verdict", "drifted", "stream", "share", "unit", "preflight", "replicas", "OOM kill"),
    *("rank", "head", "fabric", "half", "rail", "cage", "layer", "recipe", "keeper", "gateway", "manifest", "GID"),
]


# What a new owner asks, and the words that answer it.
ASKED = {
    "Is it healthy?": "sparkmatrix status",
    "Why is it slow?": "sparkmatrix doctor",
    "How fast should it be?": "(`Speed: …`)",
    "Which cable goes where?": "one QSFP cable",
    "What does it change on my machine?": "/etc/netplan/60-sparkmatrix-fabric.yaml",
    "How do I undo everything?": "sparkmatrix undo",
    "How do I add a machine?": "sparkmatrix ansible node_add",
    "How do I change the model?": "sparkmatrix run",
    "Where are the logs?": "journalctl -u sparkmatrix-engine",
    "Who can reach it?": "other nodes and root",
    "How do I rotate keys?": "gateway_keys",
    "A machine has lost its network": "sudo sparkmatrix access-restore",
    "Does my model fit?": "sparkmatrix plan",
    "How do I back up?": "etc/sparkmatrix/gateway/keys",
    "It stopped, or restarted, at night": "sudo sparkmatrix logs --part keeper",
    "NVIDIA Sync has set it up already": "fabric_foreign: adopt",
}


# --- what other guides advise -----------------------------------------------------------------------------------------

# Number, guides, what they say, where it is answered: a file of this repository and a text in it.
ADVICE = [line.split("\t") for line in (ROOT / "tests/unit/fixtures/guide_rows.tsv").read_text().splitlines()]


def test_every_piece_of_advice_of_the_guides_has_a_row() -> None:
    guides = set(re.findall(r"^\| (\d{3}) \|", (ROOT / "docs/guides.md").read_text(), re.MULTILINE))
    assert [int(row[0]) for row in ADVICE] == list(range(1, 286))
    assert {guide for row in ADVICE for guide in row[1].split(",")} == guides


def test_what_a_guide_advises_is_answered() -> None:
    texts = {place: " ".join((ROOT / place).read_text().split()) for place in {row[3] for row in ADVICE}}
    lost = [row for row in ADVICE if len(row[4]) < 8 or row[4] not in texts[row[3]]]
    assert lost == []


# A layer's or playbook's variable; more of a name than its beginning.
VARIABLE = re.compile(r"(?<![\w./-])([a-z]+(?:_[a-z0-9]+)+)(?![\w(/.-])")
NO_VARIABLE = {"fabric_mtuu"}  # an example of a slip


def test_every_variable_that_a_page_names_is_there() -> None:
    known = variables.load()
    beginnings = {name.partition("_")[0] + "_" for name in known} | {"discover_", "recipes_", "report_", "sbatch_"}
    # Names of modules, causes and errors, and what a playbook alone reads.
    texts = (path.read_text() for room in ("playbooks/**/*.yml", "roles/**/*.j2") for path in ROOT.glob(room))
    ours = {word for text in texts for word in re.findall(r"\w+", text)}
    ours |= {
        word for path in ROOT.glob("plugins/**/*.py") for word in re.findall(r"""["'](\w+)["']""", path.read_text())
    }
    ours |= {path.stem for path in ROOT.glob("plugins/*/*.py")} | NO_VARIABLE
    lost = [
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "README.md", *ROOT.glob("docs/**/*.md"))
        for span in re.findall(r"`([^`\n]+)`", path.read_text())
        for name in VARIABLE.findall(span)
        if name.startswith(tuple(beginnings)) and name not in known and name not in ours
    ]
    assert lost == []


def section(page: str, anchor: str) -> str:
    """What a reader sees after a link: the section, or a page without sections from its begin."""
    if not anchor:
        return page
    parts = re.split(r"^(?=#+ )", page, flags=re.MULTILINE)
    (number,) = [number for number, part in enumerate(parts) if anchors(part.partition("\n")[0]) == {anchor}]
    level = parts[number].index(" ")
    after = itertools.takewhile(lambda part: part.index(" ") > level, parts[number + 1 :])
    return "".join([parts[number], *after])


def linked(text: str, place: pathlib.Path) -> list[tuple[pathlib.Path, str]]:
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        path = (place.parent / name).resolve() if name else place
        if not link.startswith("http") and path.suffix == ".md":
            found.append((path, section(path.read_text(), anchor)))
    return found


@pytest.mark.parametrize("question", ASKED)
def test_what_a_new_owner_asks_is_answered_two_clicks_from_the_front_page(question: str) -> None:
    (row,) = [line for line in FRONT.read_text().splitlines() if line.startswith(f"| {question} |")]
    once = linked(row, FRONT)
    twice = [found for path, text in once for found in linked(text, path)]
    assert any(ASKED[question] in text for _path, text in [*once, *twice])


def test_the_reference_names_every_playbook_layer_inventory_and_role() -> None:
    page = (ROOT / "docs/reference.md").read_text()
    names = [path.name for room in ("playbooks/*.yml", "inventories/*", "roles/*") for path in ROOT.glob(room)]
    assert [name for name in (*names, *LAYERS) if not re.search(rf"[`/]{re.escape(name)}`", page)] == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("playbooks/*.yml")), ids=lambda path: path.stem)
def test_a_playbook_says_what_it_changes_and_how_to_undo_it(path: pathlib.Path) -> None:
    _changes, undo = make_docs.undo_of(path)
    for name in re.findall(r"`([\w/]+\.yml)", undo):
        assert (ROOT / name).is_file(), name
    assert set(re.findall(r"--tags (\w+)", undo)) <= set(LAYERS)


def test_what_holds_the_invariants_is_there() -> None:
    """By path and not by link: who has the archive alone has no tests."""
    named = re.findall(r"`((?:tests|molecule)/[\w./-]+\.\w+)`", (ROOT / "docs/architecture.md").read_text())
    assert len(named) >= 15 and [path for path in named if not (ROOT / path).exists()] == []
