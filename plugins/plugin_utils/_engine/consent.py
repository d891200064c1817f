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
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables, recipe_variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import INTO_SWAP, Job
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Recipe

MOVING_IMAGE = "moving-image"  # one whose name means another image tomorrow
_MOVING = re.compile(r"(^|[^a-z])(latest|nightly|main|master|dev|edge|stable)([^a-z]|$)")
_RELEASE = re.compile(r"\d+\.\d+")
_COMMIT = re.compile(r"(^|-)[0-9a-f]{7,40}(-|$)")
_OFF = ("", "0", "false")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|[a-z]+_proxy")
TOKEN_PATH = "HF_TOKEN_PATH"  # noqa: S105 - a file


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
    mounted: bool = True  # else it is read there, if at all: its variable needs the user's word


def words() -> frozenset[str]:
    """All that may be allowed."""
    of_engines = {word for engine in ENGINES.values() for word in (*engine.dangerous, *engine.dangerous_environment)}
    return frozenset({MOVING_IMAGE, INTO_SWAP, *of_engines})


def is_variable(word: str, recipe: Recipe) -> bool:
    """Any variable may be allowed: of this recipe, and of one that was there before it."""
    of_recipe = {*recipe.environment, *(name for one in recipe.engines.values() for name in one.environment)}
    return bool(_VARIABLE.fullmatch(word)) or word in of_recipe


def moves(image: str) -> bool:
    """Without a digest, and without a tag that names a release or a commit."""
    if "@sha256:" in image:
        return False
    name, _colon, tag = image.rpartition("/")[2].partition(":")
    if not tag or not name:
        return True
    return not _COMMIT.search(tag) and (bool(_MOVING.search(tag)) or not _RELEASE.search(tag))


def dangers(job: Job) -> Iterator[Danger]:
    """What the recipe sets that the engine's file names as dangerous, and variables that it does not know better."""
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
    for name, value in _own_variables(job):
        why = recipe_variables.doubt(engine, name, value)
        if why and name != TOKEN_PATH:
            yield Danger(name, why, option=False)


def _own_variables(job: Job) -> list[tuple[str, str]]:
    return [one for one in sorted(job.recipe_settings.environment.items()) if one[0] not in job.settings.environment]


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
    for name, value in _own_variables(job):
        if name == TOKEN_PATH:
            made += [HostFile(value, "the token for downloads")] if value else []
        else:
            made += [HostFile(path, name, mounted=False) for path in recipe_variables.paths(value)]
    return made


def within(path: str, job: Job) -> bool:
    """Below a directory that recipes may take files from."""
    clean = posixpath.normpath(path)
    allowed = [posixpath.normpath(item) for item in (*job.settings.mount_directories, job.settings.hf_home)]
    return path.startswith("/") and any(clean == item or clean.startswith(f"{item.rstrip('/')}/") for item in allowed)
