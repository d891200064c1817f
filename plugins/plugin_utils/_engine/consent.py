# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is done only where the user has named it in ``engine_allow``: a recipe of somebody else is code.

What the user sets in options and environment of their own is named by that already.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import Job
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES

MOVING_IMAGE = "moving-image"  # one whose name means another image tomorrow
_MOVING = re.compile(r"(^|[^a-z])(latest|nightly|main|master|dev|edge|stable)([^a-z]|$)")
_RELEASE = re.compile(r"\d+\.\d+")
_COMMIT = re.compile(r"(^|-)[0-9a-f]{7,40}(-|$)")
_OFF = ("", "0", "false")


@dataclass(frozen=True)
class Danger:
    """An option or a variable of a recipe, and what it does."""

    word: str  # that allows it
    why: str
    option: bool


@dataclass(frozen=True)
class HostFile:
    """A path of the nodes that a recipe brings into what it runs."""

    path: str
    why: str


def words() -> frozenset[str]:
    """All that may be allowed."""
    of_engines = {word for engine in ENGINES.values() for word in (*engine.dangerous, *engine.dangerous_environment)}
    return frozenset({MOVING_IMAGE, *kinds_base.DANGEROUS_ENVIRONMENT, *of_engines})


def moves(image: str) -> bool:
    """Without a digest, and without a tag that names a release or a commit."""
    if "@sha256:" in image:
        return False
    name, _colon, tag = image.rpartition("/")[2].partition(":")
    if not tag or not name:
        return True
    return not _COMMIT.search(tag) and (bool(_MOVING.search(tag)) or not _RELEASE.search(tag))


def dangers(job: Job) -> Iterator[Danger]:
    """What the recipe sets that the engine's file names as dangerous."""
    engine = job.engine
    newest = kinds_base.flags_and_values(engine, option_tables.versions(engine.name)[-1])
    unknown = option_tables.load(engine.name, job.version) is None
    for name, value in sorted(kinds_base.merge(engine, job.recipe_settings.options, {}).items()):
        if name in job.user.options or name not in job.options or value is False or str(value).casefold() in _OFF:
            continue
        spelled = set(spellings(name, value))
        for word, why in engine.dangerous.items():
            # Without a table nobody else refuses an abbreviation, which the parser may take.
            if word in spelled or (unknown and name not in newest and "." not in word and word.startswith(name)):
                yield Danger(word, why, option=True)
    known = {**kinds_base.DANGEROUS_ENVIRONMENT, **engine.dangerous_environment}
    for name, value in sorted(job.recipe_settings.environment.items()):
        if name in known and name not in job.settings.environment and value.casefold() not in _OFF:
            yield Danger(name, known[name], option=False)


def spellings(name: str, value: Any) -> Iterator[str]:
    """An option, and the keys of one that is a mapping, whichever way it is written."""
    yield name
    yield name.partition(".")[0]
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json_text.read(value)
        except SparkError:
            return
    if isinstance(value, Mapping):
        yield from (f"{name}.{key}" for key in value)


def host_files(job: Job) -> list[HostFile]:
    """Paths of the nodes that the recipe itself names, not the user."""
    recipe, made = job.recipe, []
    if job.runtime == "container":
        if recipe.model.startswith("/") and not job.settings.model:
            made.append(HostFile(recipe.model, "the model"))
        made += [HostFile(patch.source, patch.why) for patch in recipe.patches]
    token = job.recipe_settings.environment.get("HF_TOKEN_PATH")
    if token and "HF_TOKEN_PATH" not in job.settings.environment:
        made.append(HostFile(token, "the token for downloads"))
    return made


def within(path: str, job: Job) -> bool:
    """Below a directory that recipes may take files from."""
    clean = posixpath.normpath(path)
    allowed = [posixpath.normpath(item) for item in (*job.settings.mount_directories, job.settings.hf_home)]
    return path.startswith("/") and any(clean == item or clean.startswith(f"{item.rstrip('/')}/") for item in allowed)
