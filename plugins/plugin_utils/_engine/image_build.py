# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An image that one of the nodes builds from a Dockerfile of the controller.

Its name tells its content: the tag that the user gives it, and a digest of Dockerfile and arguments. What is there by
that name is used as it is, on whichever node, and what has changed is another image.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

SHIPPED = Path(__file__).resolve().parents[3] / "roles/engine/files/images"
_ENDS = ".Dockerfile"
_ARG = re.compile(r"^[ \t]*ARG[ \t]+(.+)", re.MULTILINE | re.IGNORECASE)
# Docker takes these in every build (docs.docker.com, predefined ARGs).
_PREDEFINED = re.compile(
    r"(?:https?|ftp|no|all)_proxy|BUILDKIT_\w+|SOURCE_DATE_EPOCH|(?:BUILD|TARGET)(?:PLATFORM|OS|ARCH|VARIANT)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Build:
    """``dockerfile``: of :data:`SHIPPED` by its name, or the path of a file; empty where nothing is built."""

    dockerfile: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)


def parse(given: Mapping[str, Any] | None) -> Build:
    """``engine_image_build``, or ``image_build`` of a service."""
    known = given or {}
    arguments = {str(name): str(value) for name, value in (known.get("arguments") or {}).items()}
    return Build(str(known.get("dockerfile") or ""), arguments)


def read(build: Build) -> str:
    shipped = "/" not in build.dockerfile
    path = SHIPPED / f"{build.dockerfile}{_ENDS}" if shipped else Path(build.dockerfile).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        there = ", ".join(sorted(one.name[: -len(_ENDS)] for one in SHIPPED.glob(f"*{_ENDS}")))
        raise SparkError(
            f"there is no Dockerfile {build.dockerfile} ({exc})",
            "engine_image_build",
            f"Name a file on this computer by its whole path, or one of this collection: {there}",
        ) from exc
    # Docker would take the layers that it has under a new name.
    declared = {word.partition("=")[0] for line in _ARG.findall(text) for word in line.split()}
    if unknown := sorted(name for name in build.arguments if name not in declared and not _PREDEFINED.fullmatch(name)):
        raise SparkError(
            f"{build.dockerfile} has no ARG {', '.join(unknown)}, so this would change nothing in the image",
            "engine_image_build",
            f"Use what it declares: {', '.join(sorted(declared)) or 'nothing'}",
        )
    return text


def name(image: str, build: Build) -> str:
    """What the built image is called. ``image``: name and tag by the user. As it is where the file cannot be read,
    which the checks tell."""
    try:
        text = read(build)
    except SparkError:
        return image
    parts = json.dumps([text, dict(build.arguments)], sort_keys=True)
    return f"{image}-{hashlib.sha256(parts.encode()).hexdigest()[:12]}"


def of(image: str, builds: Sequence[Build]) -> Build | None:
    """The one that makes this image, with its Dockerfile as it is today."""
    return next(
        (build for build in builds if build.dockerfile and name(image.rpartition("-")[0], build) == image), None
    )
