#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Write what docs/ has from the code: the table of checks, the schemas. A unit test fails while docs/ is older."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable, Mapping

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import base as preflight_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks as preflight_checks

BEGIN, END = "<!-- begin: make docs -->\n", "<!-- end -->"
ORDER = ("access", "os_stabilization", "fabric", "plan", "ray", "engine", "gateway", "verify")


def layers(check: preflight_checks.Check) -> str:
    if check.layers == preflight_base.ANY:
        return "all"
    if check.layers == preflight_base.WHOLE:
        return "access, fabric and later"
    if check.layers == preflight_base.AFTER_FABRIC:
        return "after fabric"
    return ", ".join(name for name in ORDER if name in check.layers)


def preflight_page(old: str) -> str:
    lines = ["| Name | Severity | Layers | Found when | Why |", "|---|---|---|---|---|"]
    for check in preflight_checks.CHECKS:
        level = f"{check.level}, *fixed*" if check.fixed else check.level
        lines.append(f"| `{check.name}` | {level} | {layers(check)} | {check.title} | {check.why} |")
    before, begin, rest = old.partition(BEGIN)
    _table, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit("docs/preflight.md: the marks around the table are missing")
    return before + begin + "\n".join(lines) + "\n" + end + after


# Page -> its text, from the one that is there.
PAGES: Mapping[str, Callable[[str], str]] = {
    "docs/preflight.md": preflight_page,
    "docs/engine-plan.schema.json": lambda _old: json.dumps(engine_plan.schema(), indent=2) + "\n",
    "docs/recipe.schema.json": lambda _old: json.dumps(recipe.schema(), indent=2) + "\n",
}


def main() -> None:
    for name, text in PAGES.items():
        page = ROOT / name
        page.write_text(text(page.read_text() if page.exists() else ""))


if __name__ == "__main__":
    main()
