#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Write what docs/ has from the code, tables and schemas; and AWX's surveys. A unit test fails while it is older."""

from __future__ import annotations

import json
import pathlib
import re
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests/bench")]

import guide_figures
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import document as verdicts
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._awx import surveys
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import hazards, loaders, recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks as preflight_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import layers as preflight_layers
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables as preflight_variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules import limits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import AFTER_FABRIC, ANY, WHOLE, Rule
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import RULES, SYMPTOMS

BEGIN, END = "<!-- begin: make docs -->\n", "<!-- end -->"
# Pages of others, as causes name them.
ADDRESS = r"\b(?:github\.com|docs\.(?:kernel\.org|docker\.com|nvidia\.com))/[^\s,;]+"


def layers(rule: Rule) -> str:
    words = {ANY: "all", WHOLE: "access, fabric and later", AFTER_FABRIC: "after fabric"}
    return words.get(rule.layers) or ", ".join(name for name in preflight_layers.LAYERS if name in rule.layers)


def table(page: str, old: str, lines: list[str]) -> str:
    before, begin, rest = old.partition(BEGIN)
    _table, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page}: the marks around the table are missing")
    return before + begin + "\n".join(lines) + "\n" + end + after


def preflight_page(old: str) -> str:
    lines = ["| Name | Severity | Layers | Found | Why |", "|---|---|---|---|---|"]
    for rule in (RULES[name] for name in preflight_checks.JUDGES):
        level = f"{rule.severity}, *fixed*" if rule.fixed else rule.severity
        lines.append(f"| `{rule.id}` | {level} | {layers(rule)} | {rule.title} | {rule.why} |")
    return table("docs/preflight.md", old, lines)


class _Data(yaml.SafeLoader):
    """Of files that Ansible reads."""


_Data.add_constructor("!unsafe", lambda _loader, node: node.value)


class _Indented(yaml.SafeDumper):
    """Lists as yamllint wants them; the same list twice is written twice."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def awx_objects() -> dict[str, Any]:
    places = [ROOT / "roles/awx/vars/main" / name for name in ("objects.yml", "surveys.yml")]
    return {key: value for place in places for key, value in yaml.load(place.read_text(), Loader=_Data).items()}


def awx_surveys(_old: str) -> str:
    known = preflight_variables.load()
    made = {playbook: surveys.survey(asked, known) for playbook, asked in awx_objects()["__awx_questions"].items()}
    text = yaml.dump({"awx_surveys": made}, Dumper=_Indented, sort_keys=False, allow_unicode=True, width=120)
    return f"---\n# Written by make docs, from surveys.yml and the argument specifications of the roles.\n{text}"


def awx_page(old: str) -> str:
    data = awx_objects()
    lines = ["| Template | Playbook | Asks for | What it does |", "|---|---|---|---|"]
    for awx_template in ({**data["__awx_template"], **entry} for entry in data["__awx_templates"]):
        name = awx_template["name"].removeprefix("{{ awx_name }}: ")
        asked = [f"`{question['variable']}`" for question in data["__awx_questions"].get(awx_template["playbook"], ())]
        also = ["tags"] if awx_template["ask_tags_on_launch"] else []
        survey = ", ".join([*(asked if awx_template["survey_enabled"] else []), *also])
        lines.append(f"| {name} | `{awx_template['playbook']}` | {survey} | {awx_template['description']} |")
    lines += ["", "| No template | Why |", "|---|---|"]
    lines += [f"| `{playbook}` | {why} |" for playbook, why in data["__awx_without_template"].items()]
    return table("docs/awx.md", old, lines)


def undo_of(playbook: pathlib.Path) -> tuple[str, str]:
    """What its header says that it changes, and how that is undone."""
    header = re.match(r"---\n((?:#.*\n)+)", playbook.read_text())
    words = " ".join(line.lstrip("# ") for line in header[1].splitlines()) if header else ""
    said = re.search(r" Changes: (.+) Undo: (.+)$", words)
    if not said:
        raise SystemExit(f"{playbook}: its first comment has to end with `Changes: …` and `Undo: …`")
    return said[1], said[2]


def reference_page(old: str) -> str:
    lines = ["| Playbook | Changes | Undo |", "|---|---|---|"]
    for path in sorted(ROOT.glob("playbooks/*.yml")):
        changes, undo = undo_of(path)
        lines.append(f"| `{path.stem}` | {changes.rstrip('.')} | {undo.rstrip('.')} |")
    return table("docs/reference.md", old, lines)


def limits_page(old: str) -> str:
    lines = ["| Limit | At | Whose | Where it comes from | Setting |", "|---|---|---|---|---|"]
    for name, limit in limits.limits().items():
        value = f"{limit.value:g} {limit.unit}".strip()
        lines.append(f"| `{name}` | {limit.kind} {value} | {limit.owner} | {limit.source} | `{limit.variable}` |")
    return table("docs/verdicts.md", old, lines)


_NAMED = {
    "image": "the image",
    "requirements": "packages",
    "label": "the engine",
    "version": "",
    "expert_parallel": "engine_expert_parallel",
    "prefix_cache_gb": "engine_prefix_cache_gb",
}


def hazards_page(old: str) -> str:
    lines = ["| When | What happens | What to do | Source |", "|---|---|---|---|"]
    for row in hazards.HAZARDS:
        versions = " ".join(filter(None, (row.since and f"from {row.since}", row.mended and f"before {row.mended}")))
        when = [*filter(None, (row.engine, versions)), *(f"`{name}`: `{one}`" for name, one in row.when.items())]
        when += [f"not `{name}`: `{one}`" for name, one in row.unless.items()]
        does = {"error": "Refused. ", "warning": "Warned of. "}.get(row.severity, "")
        does += "".join(f"The plan sets `{name}`. " for name in row.sets)
        cells = ("; ".join(when), row.what.format_map(_NAMED), f"{does}{row.remedy.format_map(_NAMED)}", row.source)
        lines.append("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |")
    return table("docs/known-problems.md", old, lines)


def loaders_page(old: str) -> str:
    lines = ["| `load-format` | GB/s of one disk | Takes, GiB | Over N machines a disk reads | Where it comes from |"]
    lines.append("|---|---|---|---|---|")
    for name, one in {"none: files mapped into memory": loaders.MAPPED, **loaders.LOADERS}.items():
        part = "1/N" if one.divided else "all"
        lines.append(f"| {name} | {one.gb_per_s:g} | {one.kept / loaders.GIB:g} | {part} | {one.source} |")
    return table("docs/tasks/change-model.md", old, lines)


def anchor(title: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def troubleshooting(_old: str) -> str:
    """Every rule, below what an owner sees of it."""
    lines = [
        "# Troubleshooting",
        "",
        *wrapped(
            "Every fault that [verify, doctor and benchmark](verdicts.md) can name, and what to do. A run's JSON and"
            " JUnit carry the name, and so do alerts and preflight's checks. What only preflight finds is in"
            " [preflight.md](preflight.md). This page is made from the table of rules in the code."
        ),
        "",
        *(f"- [{symptom}](#{anchor(symptom)})" for symptom in SYMPTOMS),
        "",
        "How to read a remedy:",
        "",
        "| It says | Do |",
        "|---|---|",
        "| `ansible-playbook site.yml …`, run `playbooks/stop.yml` | by the command `sparkmatrix ansible site …`,"
        " `sparkmatrix stop` ([verbs](command.md#verbs)); in the folder of a clone, with your inventory:"
        " `.venv/bin/ansible-playbook site.yml -i inventories/mine …` (a run prints it so that it can be copied) |",
        "| `engine_…`, `fabric_…`, the recipe | a setting: write it into `group_vars/sparks.yml` of your inventory."
        " An environment variable: a line of `engine_environment` there |",
        "| `sudo …`, `journalctl`, `ethtool` | on the machine that was named, after `ssh nvidia@spark1.local` (your"
        " login) |",
        "| `<unit>` | `sparkmatrix-engine`; with several services `systemctl list-units 'sparkmatrix-*'` shows the"
        " names |",
        "| `<interface>` | the one that the message names; `ip -brief link` lists all |",
        "| reboot | `sudo reboot` on the machine; the engine starts by itself when all machines are back |",
        "| off power | shut it down, and unplug its power supply for as long as it says |",
    ]
    for symptom, found in SYMPTOMS.items():
        lines += ["", f"## {symptom}", "", "| Found | Name |", "|---|---|"]
        lines += [f"| [{rule.title}](#{anchor(rule.title)}) | `{rule.id}` |" for rule in found]
        lines += [line for rule in found for line in about(rule)]
    return "\n".join(lines) + "\n"


def about(rule: Rule) -> list[str]:
    page = re.fullmatch(r"(docs/)?(\S+\.md)", rule.source)
    place = f"{'' if page[1] else '../'}{page[2]}" if page else ""
    source = f"[{page[2]}]({place})" if page else re.sub(ADDRESS, r"[\g<0>](https://\g<0>)", rule.source)
    texts = (
        f"{rule.why}.",
        f"**Do**: {rule.remedy}.",
        f"**If that does not help**: {rule.otherwise}.",
        f"More: {source}.",
    )
    return ["", f"### {rule.title}", *(line for text in texts for line in ("", *wrapped(text)))]


def wrapped(text: str) -> list[str]:
    text = re.sub(r"\.\.(?!/)", ".", text).replace("<", "&lt;").replace("?.", "?")
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def schema_page(schema: Mapping[str, Any]) -> str:
    """What holds nothing but words is one line."""
    innermost = r"(?<=[{\[])\n\s+([^{}\[\]]+)\n\s+(?=[}\]])"
    text = json.dumps(schema, indent=2)
    return re.sub(innermost, lambda found: re.sub(r"\n\s+", " ", found[1]), text) + "\n"


# Page -> its text, from the one that is there.
PAGES: Mapping[str, Callable[[str], str]] = {
    "docs/preflight.md": preflight_page,
    "docs/awx.md": awx_page,
    "roles/awx/vars/main/surveys_generated.yml": awx_surveys,
    "docs/troubleshooting.md": troubleshooting,
    "docs/verdicts.md": limits_page,
    "docs/known-problems.md": hazards_page,
    "docs/tasks/change-model.md": loaders_page,
    "docs/reference.md": reference_page,
    "docs/test-figures.md": lambda old: table("docs/test-figures.md", old, guide_figures.table()),
    "docs/verdicts.schema.json": lambda _old: schema_page(verdicts.schema()),
    "docs/engine-plan.schema.json": lambda _old: schema_page(engine_plan.schema()),
    "docs/recipe.schema.json": lambda _old: schema_page(recipe.schema()),
}


def main() -> None:
    for name, text in PAGES.items():
        page = ROOT / name
        page.write_text(text(page.read_text() if page.exists() else ""))


if __name__ == "__main__":
    main()
