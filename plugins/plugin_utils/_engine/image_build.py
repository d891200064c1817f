# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An image that one of the nodes builds from a Dockerfile of the controller, or from another image, with mods.

Its name tells its content: the tag that the user gives it, and a digest of Dockerfile, arguments and mods. What is
there by that name is used as it is, on whichever node, and what has changed is another image. A mod is a directory with
a ``run.sh`` that changes what the image has, as those of spark-vllm-docker; it is run while the image is built, so that
a start needs nothing.
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
_MOD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MODS = "workspace/mods"  # in the image, where spark-vllm-docker has them
_RUN = "run.sh"
_MAX_MODS = 1024 * 1024  # bytes of all of their files
_MAX_DOCKERFILE = 256 * 1024
_ARG = re.compile(r"^[ \t]*ARG[ \t]+(.+)", re.MULTILINE | re.IGNORECASE)
# Docker takes these in every build (docs.docker.com, predefined ARGs).
_PREDEFINED = re.compile(
    r"(?:https?|ftp|no|all)_proxy|BUILDKIT_\w+|SOURCE_DATE_EPOCH|(?:BUILD|TARGET)(?:PLATFORM|OS|ARCH|VARIANT)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Build:
    """``dockerfile``: of :data:`SHIPPED` by its name, or the path of a file; empty where nothing is built, or where it
    is the image ``base`` with ``mods``, directories of the controller."""

    dockerfile: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    mods: tuple[str, ...] = ()
    base: str = ""

    def __bool__(self) -> bool:
        return bool(self.dockerfile or self.mods)


def parse(given: Mapping[str, Any] | None) -> Build:
    """``engine_image_build``, or ``image_build`` of a service."""
    known = given or {}
    arguments = {str(name): str(value) for name, value in (known.get("arguments") or {}).items()}
    return Build(str(known.get("dockerfile") or ""), arguments)


def read(build: Build) -> str:
    """The whole Dockerfile."""
    text = _dockerfile(build) if build.dockerfile else f"FROM {build.base}\n"
    # Docker would take the layers that it has under a new name.
    declared = {word.partition("=")[0] for line in _ARG.findall(text) for word in line.split()}
    if unknown := sorted(name for name in build.arguments if name not in declared and not _PREDEFINED.fullmatch(name)):
        raise SparkError(
            f"{build.dockerfile or 'what is built'} has no ARG {', '.join(unknown)}, so this would change nothing in"
            " the image",
            "engine_image_build",
            f"Use what it declares: {', '.join(sorted(declared)) or 'nothing'}",
        )
    if not build.mods:
        return text
    runs = [
        f'RUN export WORKSPACE_DIR="$PWD" && cd /{_MODS}/{_named(path)} && chmod -R a+x . && ./{_RUN}'
        for path in build.mods
    ]
    return "\n".join([text.rstrip("\n"), "USER 0", f"COPY {_MODS} /{_MODS}", *runs, ""])


def files(build: Build) -> dict[str, str]:
    """What lies beside the Dockerfile, by path."""
    found: dict[str, str] = {}
    for path in build.mods:
        directory = Path(path).expanduser()
        if not (directory / _RUN).is_file():
            raise SparkError(f"the mod {path} is no directory with a {_RUN}", "build", "Correct its path in the recipe")
        if not _MOD.fullmatch(directory.name) or any(one.startswith(f"{_MODS}/{directory.name}/") for one in found):
            raise SparkError(
                f"the mod {path} has a name that is no plain word, or that of another one", "build", "Rename it"
            )
        inside = directory.resolve()
        for file in sorted(one for one in directory.rglob("*") if one.is_file()):
            if not file.resolve().is_relative_to(inside):
                raise SparkError(
                    f"{file} of the mod {path} leads to {file.resolve()}, which is not in the mod, and the image would"
                    " have what is there",
                    "build",
                    "Copy into the mod what it needs",
                )
            try:
                text = _text(file, _MAX_MODS)
            except (OSError, ValueError) as exc:
                raise SparkError(
                    f"{file} of the mod {path} is no text that can be read ({exc})",
                    "build",
                    "Have its run.sh fetch what is no text, with a checksum",
                ) from exc
            found[f"{_MODS}/{directory.name}/{file.relative_to(directory)}"] = text
    if sum(map(len, found.values())) > _MAX_MODS:
        raise SparkError(f"the mods have more than {_MAX_MODS} bytes of text", "build", "Leave out what is not needed")
    return found


def _text(path: Path, most: int) -> str:
    """Of a file; what has no end, or waits for somebody to write, is none."""
    if not path.is_file() and path.exists():
        raise ValueError("it is no file")
    with path.open(encoding="utf-8") as opened:
        text = opened.read(most + 1)
    if len(text) > most:
        raise ValueError(f"it has more than {most} characters")
    return text


def _named(path: str) -> str:
    return Path(path).expanduser().name


def _dockerfile(build: Build) -> str:
    shipped = "/" not in build.dockerfile
    path = SHIPPED / f"{build.dockerfile}{_ENDS}" if shipped else Path(build.dockerfile).expanduser()
    try:
        return _text(path, _MAX_DOCKERFILE)
    except (OSError, ValueError) as exc:
        there = ", ".join(sorted(one.name[: -len(_ENDS)] for one in SHIPPED.glob(f"*{_ENDS}")))
        raise SparkError(
            f"there is no Dockerfile {build.dockerfile} ({exc})",
            "engine_image_build",
            f"Name a file on this computer by its whole path, or one of this collection: {there}",
        ) from exc


def name(image: str, build: Build) -> str:
    """What the built image is called. ``image``: name and tag by the user. As it is where the file cannot be read,
    which the checks tell."""
    try:
        parts: list[Any] = [read(build), dict(build.arguments)]
        parts += [files(build)] if build.mods else []
    except SparkError:
        return image
    return f"{image}-{hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]}"


def of(image: str, builds: Sequence[Build]) -> Build | None:
    """The one that makes this image, with its Dockerfile as it is today."""
    return next((build for build in builds if build and name(image.rpartition("-")[0], build) == image), None)
