# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planner of ``playbooks/report.yml``: the last runs as a page, as JSON and as JUnit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ansible import context
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import document, store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Run
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report import page
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report.view import View, view
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import commands
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import junit

MAX_FILES = 500  # of a folder, the last by name, which begins with the time
NONE = "no run has left its verdicts"
NONE_REMEDY = "Run verify.yml or playbooks/doctor.yml first; they keep them on the head"


@dataclass(frozen=True)
class Found:
    runs: tuple[Run, ...]
    left_out: tuple[str, ...]


def report(options: Options) -> dict[str, Any]:
    found = of_folder(Path(options["folder"])) if options["folder"] else of_nodes(options["kept"])
    if not found.runs:
        raise SparkError(NONE, one_line("; ".join(found.left_out)), NONE_REMEDY)
    runs, others = of_one_cluster(found.runs)
    sudo = bool(context.CLIARGS.get("become_ask_pass"))
    typed = commands.typed(options["inventories"], ask_sudo=sudo) if options["inventories"] else None
    seen = view(runs, (*found.left_out, *others), typed)
    return {
        "html": page.render(seen),
        "json": as_json(seen),
        "xml": junit.text(replace(seen.newest, verdicts=tuple(one.verdict for one in seen.said))),
        "headline": one_line(f"{seen.cluster}: {seen.headline}"),
        "lines": [
            one_line(f"{', '.join(where for where, _said in problem.places)}: {problem.title}. {problem.remedy}")
            for problem in seen.problems
        ],
        "warnings": [one_line(text) for text in seen.left_out],
    }


def one_line(text: str) -> str:
    return " ".join(text.split())


def of_nodes(kept: Mapping[str, store.Kept]) -> Found:
    """What the head keeps; the other machines were not asked."""
    if all(answer.runs is None for answer in kept.values()):
        raise SparkError("the head, which keeps the verdicts, was not asked", "", "Run it without --limit")
    runs = [run for answer in kept.values() for run in answer.runs or ()]
    return Found(tuple(runs), tuple(text for answer in kept.values() for text in answer.refused))


def of_folder(folder: Path) -> Found:
    """Documents in a folder of this computer, or what an earlier report has written as JSON."""
    if not folder.is_dir():
        raise SparkError("there is no such folder", str(folder), "Name one with the JSON files of runs")
    runs: dict[tuple[str, str, str], Run] = {}
    left_out = []
    for path in sorted(folder.glob("*.json"))[-MAX_FILES:]:
        try:
            for run in _documents(path):
                runs[run.cluster, run.playbook, run.at] = run
        except (OSError, ValueError) as exc:
            left_out.append(f"{path}: it is no JSON of a run: {exc}")
        except SparkError as exc:
            left_out.append(str(exc))
    return Found(tuple(runs.values()), tuple(left_out))


def _documents(path: Path) -> list[Run]:
    with path.open("rb") as file:
        text = file.read(store.MAX_BYTES + 1)
    if len(text) > store.MAX_BYTES:
        raise ValueError(f"it has more than {store.MAX_BYTES} bytes")
    found = json_text.read(text, str(path), "Name a file that the report or a run has written")
    several = isinstance(found, Mapping) and isinstance(found.get("runs"), list)
    return [document.load(run, str(path)) for run in (found["runs"] if several else [found])]


def of_one_cluster(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """Those of the cluster that ran last, and words about the others."""
    name = max(runs, key=lambda run: run.at).cluster
    others = sorted({run.cluster for run in runs} - {name})
    return [run for run in runs if run.cluster == name], [f"the runs of the cluster {other}" for other in others]


def as_json(seen: View) -> str:
    """The verdict, and the documents that it is made of (docs/verdicts.schema.json)."""
    return json.dumps(
        {
            "cluster": seen.cluster,
            "outcome": seen.outcome,
            "headline": seen.headline,
            "counts": {outcome: len(said) for outcome, said in seen.by.items()},
            "runs": [run.as_dict() for run in seen.runs],
        },
        indent=1,
    )


PLANNERS: Mapping[str, Planner] = {
    "report": Planner(
        report,
        {
            "folder": {"type": "str", "default": ""},
            # Of this run, for the commands of the page.
            "inventories": {"type": "list", "elements": "str", "default": []},
        },
        {"kept": "verdicts"},
    ),
}
