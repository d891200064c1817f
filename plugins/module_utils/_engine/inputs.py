# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node has of what its plan needs: Python environments, which their own Python is asked for, and models."""

from __future__ import annotations

import json
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import model_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.model_files import Reply, Seen

_READABLE = 'for file; do [ -r "$file" ] || { echo "$file"; exit 1; }; done'


def environment(
    path: str, requirements: Sequence[str], oldest_ray: str, question: str, runner: Runner
) -> dict[str, str]:
    """Whose it is, and which requirements it does not meet: ``complete``, or nothing where there is none. ``kernels``:
    the FlashInfer whose compiled kernels are not there.

    It is asked as its owner: root does not run what somebody else can change.
    """
    place = Path(path)
    try:
        owner = pwd.getpwuid(place.stat().st_uid).pw_name
    except (OSError, KeyError):
        owner = "root"
    python = place / "bin/python"
    if not python.exists():
        return {"owner": owner, "unmet": "", "kernels": ""}
    words = [str(python), "-c", question, json.dumps(list(requirements)), oldest_ray]
    done = runner(["runuser", f"--user={owner}", "--", *words])
    if done.rc != 0:
        raise SparkError(
            f"its Python does not say what is installed ({done.complaint[-300:]})",
            path,
            "Remove the directory, so that it is made anew, or name another one: engine_venv_path",
        )
    return {"owner": owner, "unmet": done.out.strip(), "kernels": without_kernels(place)}


def without_kernels(place: Path) -> str:
    """The version of a FlashInfer that would compile: vLLM and SGLang load its kernels only in the same version."""
    found = {}
    for path in place.glob("lib/python3*/site-packages/flashinfer_*.dist-info"):
        name, _dash, version = path.name[: -len(".dist-info")].partition("-")
        found[name] = version.partition("+")[0]
    version = found.get("flashinfer_python", "")
    whole = all(found.get(name) == version for name in ("flashinfer_cubin", "flashinfer_jit_cache"))
    return "" if whole else version


def model(wanted: Mapping[str, Any], user: str, runner: Runner, brought: bool = False) -> Seen:
    """``wanted``: a model of the plan. ``user``: who reads it outside of containers. ``brought``: the layer artifacts
    sees to it that it comes, so this node does not ask the hub."""
    name = str(wanted["name"])
    ask = (lambda *_asked: Reply(200)) if brought else None
    seen = model_files.look(name, str(wanted.get("revision") or ""), wanted.get("environment") or {}, ask)
    if seen.where != model_files.FILES or seen.problem or wanted.get("contained") or not _exists(user):
        return seen
    place = Path(name)
    files = [path for pattern in ("*.json", "*.safetensors") for path in sorted(place.glob(pattern))] or [place]
    done = runner(["runuser", f"--user={user}", "--", "sh", "-c", _READABLE, "sh", *map(str, files)])
    if done.rc == 0:
        return seen
    return replace(
        seen,
        problem=f"the service user {user} may not read {done.out.strip() or name}",
        remedy=f"Let it: sudo chmod -R o+rX {name}; the directories above need x for others, too",
    )


def _exists(user: str) -> bool:
    """In check mode it may be about to be made."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
