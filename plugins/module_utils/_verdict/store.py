# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The verdicts of the last runs, on the head: one file per run, for report, comparison and ``sparkmatrix status``."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.document import one_of
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import drop_state, write_state
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Run

KEPT = 50  # runs
MAX_BYTES = 4 * 1024 * 1024  # of one
_AT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@dataclass(frozen=True)
class Request:
    """``present`` writes ``run`` down, which is no change of the machine; ``read`` returns what is kept; ``absent``
    forgets it."""

    state: str = field(default="present", metadata=one_of("present", "read", "absent"))
    run: Optional[Run] = None


@dataclass(frozen=True)
class Kept:
    """``runs``: the newest first; None where nobody has read. ``refused``: what is wrong with files among them."""

    changed: Flag = False
    runs: Optional[tuple[Run, ...]] = None
    refused: tuple[Words, ...] = ()


def verdicts(request: Request, check: bool) -> Kept:
    if request.state == "absent":
        return Kept(changed=forget(check_mode=check))
    if request.state == "read":
        runs, refused = read()
        return Kept(runs=tuple(runs), refused=tuple(refused))
    if request.run is None:
        raise SparkError("there is no run to keep", "verdicts")
    if not check:
        keep(request.run)
    return Kept()


def keep(run: Run, root: str = "/") -> str:
    """Write a run, and forget those beyond the newest :data:`KEPT`. Returns its path."""
    if not _AT.fullmatch(run.at):
        raise SparkError(f"it began at {run.at!r:.40}, expected a time like 2026-11-23T07:30:00Z", paths.VERDICTS)
    text = json.dumps(run.as_dict(), sort_keys=True) + "\n"
    if len(text) > MAX_BYTES:
        raise SparkError(f"it has {len(text)} bytes, expected {MAX_BYTES} at most", paths.VERDICTS)
    path = f"{paths.VERDICTS}/{re.sub('[-:]', '', run.at)}-{run.playbook}.json"
    write_state(path, text.encode(), root=root)
    for old in _files(root)[KEPT:]:
        drop_state(f"{paths.VERDICTS}/{old.name}", root=root)
    return path


def read(most: int = KEPT, root: str = "/") -> tuple[list[Run], list[str]]:
    """The newest runs, the newest first, and what is wrong with files among them that cannot be read."""
    runs, refused = [], []
    for path in _files(root)[:most]:
        where = f"{paths.VERDICTS}/{path.name}"
        try:
            with path.open("rb") as file:
                text = file.read(MAX_BYTES + 1)
            if len(text) > MAX_BYTES:
                raise ValueError("too long")
            with json_text.Reading("the verdicts cannot be read", where, document.REMEDY):
                found = json_text.read(text)
            runs.append(document.load(found, where))
        except PermissionError as exc:
            raise SparkError("no permission to read it", where, "Ask as root: sudo") from exc
        except (OSError, ValueError) as exc:
            refused.append(str(SparkError(f"the verdicts cannot be read: {exc}", where, document.REMEDY)))
        except SparkError as exc:
            refused.append(str(exc))
    return runs, refused


def forget(root: str = "/", check_mode: bool = False) -> bool:
    there = _files(root)
    for path in there if not check_mode else ():
        drop_state(f"{paths.VERDICTS}/{path.name}", root=root)
    return bool(there)


def _files(root: str) -> list[Path]:
    """The newest first: their names begin with the time."""
    return sorted(Path(root, paths.VERDICTS.lstrip("/")).glob("*Z-*.json"), reverse=True)
