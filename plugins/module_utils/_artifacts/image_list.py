# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The container images of this node: how large they are, what needs them, and how one goes.

Docker is shared with whatever else runs on the node, so what no plan has ever used is somebody else's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Word, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image as engine_image
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Kept

_FINE = ("no such image", "has dependent child images")


@dataclass(frozen=True)
class Image:
    """``size``: bytes, layers that other images share among them. ``known``: names by which plans have used it, the
    last time at ``used_at`` (to a day); none where no plan has. ``why``: what needs it, empty where nothing does."""

    id: Word
    names: tuple[Word, ...]
    digests: tuple[Word, ...]
    size: Count
    known: tuple[Word, ...] = ()
    used_at: Count = 0
    why: Words = ""


def listed(kept: Kept, runner: Runner = run, root: str = "/") -> tuple[list[Image], str]:
    """All images, and why Docker does not tell them. ``kept``: the plan that serves here, and the one before it."""
    done = runner(["docker", "image", "ls", "--quiet", "--no-trunc"])
    if done.rc == NOT_FOUND:
        return [], ""
    try:
        told = _inspect("image", done.out.split(), runner) if done.rc == 0 else None
        containers = _inspect("container", _ids(runner), runner) if told else []
    except SparkError as exc:
        return [], str(exc)
    if told is None:
        return [], f"Docker does not answer ({done.complaint})"
    used = engine_image.known(root)
    return [_image(one, containers, used.get(str(one["Id"]), {}), kept) for one in told], ""


def _ids(runner: Runner) -> list[str]:
    return runner(["docker", "container", "ls", "--all", "--quiet", "--no-trunc"]).out.split()


def _inspect(what: str, ids: Sequence[str], runner: Runner) -> list[dict[str, Any]]:
    """One that has gone meanwhile is not among them."""
    asked = list(dict.fromkeys(ids))
    with json_text.Reading(f"what Docker says of its {what}s cannot be read", "", "Look at: docker info"):
        told = json_text.mappings(runner(["docker", what, "inspect", *asked]).out or "[]") if asked else []
        if not all(isinstance(one.get("Id"), str) for one in told):
            raise ValueError("one has no id")
        return told


def _image(
    told: Mapping[str, Any], containers: Sequence[Mapping[str, Any]], answers: Mapping[str, Any], kept: Kept
) -> Image:
    own, used = str(told["Id"]), json_text.entry(answers, engine_image.USED)
    names, digests = _words(told, "RepoTags"), _words(told, "RepoDigests")
    return Image(
        own,
        names,
        digests,
        _whole(told, "Size"),
        _words(used, "names"),
        _whole(used, "day"),
        _planned(own, {*names, *digests}, kept) or _running(own, names, containers),
    )


def _words(told: Mapping[str, Any], name: str) -> tuple[str, ...]:
    found = told.get(name)
    return tuple(sorted(map(str, found))) if isinstance(found, list) else ()


def _whole(told: Mapping[str, Any], name: str) -> int:
    found = told.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def _planned(image: str, names: set[str], kept: Kept) -> str:
    for why, plan in (("serves now", kept.current), ("served before", kept.previous)):
        ids = plan.image_ids if plan else {}
        for one in plan.images if plan else ():
            if image == ids.get(one.name) or {one.name, engine_image.local_name(one.name)} & names:
                return why
    return ""


def _running(image: str, names: Sequence[str], containers: Sequence[Mapping[str, Any]]) -> str:
    for container in containers:
        if container.get("Image") == image or json_text.entry(container, "Config").get("Image") in names:
            state = json_text.entry(container, "State").get("Status") or "unknown"
            return f"needed by container {str(container.get('Name') or container['Id']).lstrip('/')} ({state})"
    return ""


def remove(image: str, names: Sequence[str], runner: Runner = run) -> None:
    """These names of it go; where none is left, the image goes with them. Docker refuses where a container needs it,
    and keeps what another image has been built on."""
    for name in names:
        _removed(name, runner)
    left = runner(["docker", "image", "inspect", "--format", "{{json .RepoTags}}", image])
    if left.rc == 0 and left.out.strip() in ("[]", "null"):
        _removed(image, runner)


def _removed(name: str, runner: Runner) -> None:
    done = runner(["docker", "image", "rm", name])
    if done.rc != 0 and not any(words in done.complaint.casefold() for words in _FINE):
        raise SparkError(f"Docker does not remove it ({done.complaint})", f"image {name}", "Look at: docker ps --all")
