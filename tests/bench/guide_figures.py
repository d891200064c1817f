#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How much documentation there is, and how many of its commands are run, for docs/test-figures.md."""

from __future__ import annotations

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import guide_examples

# As tools/make_site.py takes them.
WRITTEN = ("*.md", "docs/*.md", "docs/*/*.md", "roles/*/README.md")


def table() -> list[str]:
    written = sum(len([*ROOT.glob(pattern)]) for pattern in WRITTEN)
    roles = len([*ROOT.glob("roles/*/meta/argument_specs.yml")])
    modules = len(re.findall(r"^\| `\w+` \|", (ROOT / "docs/modules.md").read_text(encoding="utf-8"), re.MULTILINE))
    kinds = collections.Counter(
        command.marks.partition("=")[2]
        for block in guide_examples.blocks("console")
        for command in guide_examples.commands(block)
    )
    run, by_hand = kinds["site"] + kinds["head"], kinds["by-hand"]
    checked = kinds[""] + len(guide_examples.inline())
    return [
        "| Figure | Value |",
        "|---|---|",
        f"| pages of the site, and how many of them are made from the code (roles, modules) |"
        f" {written + roles + modules}: {roles + modules} |",
        f"| commands in the guides | {run + by_hand + checked} |",
        f"| of these, run on simulated machines by the Molecule scenario `site` | {run} |",
        f"| of these, checked by unit tests: program, options, variables, files, recipes | {checked} |",
        f"| of these, by hand only (`run=by-hand`: a switch, Slurm …); names and files are checked | {by_hand} |",
    ]


if __name__ == "__main__":
    print("\n".join(table()))
