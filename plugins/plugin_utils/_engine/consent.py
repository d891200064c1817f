# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is done only where the user has named it in ``engine_allow``: a recipe of somebody else is code.

What the user sets in options and environment of their own is named by that already.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    option_tables,
    recipe_options,
    recipe_variables,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import INTO_SWAP, Job
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Recipe, RecipeSettings

MOVING_IMAGE = "moving-image"  # one whose name means another image tomorrow
PATCHES = "patches"  # of a recipe: files of the nodes, which a model may have brought, as code of the image
_MOVING = re.compile(r"(^|[^a-z])(latest|nightly|main|master|dev|edge|stable)([^a-z]|$)")
_RELEASE = re.compile(r"\d+\.\d+")
_COMMIT = re.compile(r"(^|-)[0-9a-f]{7,40}(-|$)")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|[a-z]+_proxy")
TOKEN_PATH = "HF_TOKEN_PATH"  # noqa: S105 - a file


@dataclass(frozen=True)
class Danger:
    """What a recipe sets, and what it does."""

    word: str  # that allows it
    why: str
    place: str  # where the user can take it away; empty where nowhere


@dataclass(frozen=True)
class HostFile:
    """A path of the nodes that a recipe brings into what it runs."""

    path: str
    why: str
    mounted: bool = True  # else it is read there, if at all: its variable needs the user's word


def words() -> frozenset[str]:
    """What may be allowed, beside options and variables by their names."""
    of_engines = {word for engine in ENGINES.values() for word in (*engine.dangerous, *engine.dangerous_environment)}
    return frozenset({MOVING_IMAGE, INTO_SWAP, PATCHES, *of_engines})


def is_name(word: str, recipe: Recipe) -> bool:
    """Any option and any variable may be allowed: of this recipe, and of one that was there before it."""
    own: list[Recipe | RecipeSettings] = [recipe, *recipe.engines.values()]
    if _VARIABLE.fullmatch(word) or any(word in one.environment for one in own):
        return True
    option = word.partition(".")[0]
    known = any(option in _known_options(engine) for engine in ENGINES.values())
    return known or any(
        option in kinds_base.merge(engine, one.options, {}) for engine in ENGINES.values() for one in own
    )


def granted(word: str, allow: Collection[str]) -> bool:
    """By its name, or by that of what it is a key of."""
    parts = word.split(".")
    return any(".".join(parts[: number + 1]) in allow for number in range(len(parts)))


@functools.cache
def _known_options(engine: kinds_base.Engine) -> frozenset[str]:
    tables = [option_tables.load(engine.name, version) for version in option_tables.versions(engine.name)]
    return engine.file_options.union(name[2:] for table in tables if table for name in table.options)


def moves(image: str) -> bool:
    """Without a digest, and without a tag that names a release or a commit."""
    if "@sha256:" in image:
        return False
    name, _colon, tag = image.rpartition("/")[2].partition(":")
    if not tag or not name:
        return True
    return not _COMMIT.search(tag) and (bool(_MOVING.search(tag)) or not _RELEASE.search(tag))


def dangers(job: Job) -> Iterator[Danger]:
    """What of the recipe needs the user's word: options and variables not known to be harmless, and patches."""
    if job.recipe.patches and job.runtime == "container":
        yield Danger(PATCHES, "are files of the nodes over those of the image, so code", "")
    for name, value in sorted(_own_options(job).items()):
        for word, why in recipe_options.doubts(job.engine, job.version, name, value).items():
            yield Danger(word, why, "options")
    for name, value in _own_variables(job):
        why = recipe_variables.doubt(job.engine, name, value)
        if why and name != TOKEN_PATH:
            yield Danger(name, why, "environment")


def _own_options(job: Job) -> dict[str, Any]:
    """The recipe's, without what the user says otherwise; with the keys of its draft."""
    engine = job.engine
    made = kinds_base.merge(engine, job.recipe_settings.options, dict.fromkeys(job.settings.options))
    if job.draft and job.draft.options and engine.draft_keys:
        made[engine.draft_option] = kinds_base.plain(job.draft.options)
    return made


def _own_variables(job: Job) -> list[tuple[str, str]]:
    return [one for one in sorted(job.recipe_settings.environment.items()) if one[0] not in job.settings.environment]


def host_files(job: Job) -> list[HostFile]:
    """Paths of the nodes that the recipe itself names, not the user."""
    recipe, made = job.recipe, []
    contained = job.runtime == "container"
    if recipe.model.startswith("/") and not job.settings.model:
        made.append(HostFile(recipe.model, "the model", mounted=contained))
    if job.draft and job.draft.model.startswith("/"):
        made.append(HostFile(job.draft.model, "the draft", mounted=False))
    if contained:
        made += [HostFile(patch.source, patch.why) for patch in recipe.patches]
    for name, value in _own_variables(job):
        if name == TOKEN_PATH:
            made += [HostFile(value, "the token for downloads")] if value else []
        else:
            made += [HostFile(path, name, mounted=False) for path in recipe_variables.paths(value)]
    made += [HostFile(path, name, mounted=False) for name, text in _texts(job) for path in recipe_variables.paths(text)]
    return made


def addresses(job: Job) -> list[tuple[str, str]]:
    """(address, option or variable) of what the recipe lets the engine ask, or where it lets it listen."""
    given = [*_own_variables(job), *_texts(job)]
    return [(address, name) for name, value in given for address in recipe_variables.addresses(value)]


def _texts(job: Job) -> Iterator[tuple[str, str]]:
    for name, value in sorted(_own_options(job).items()):
        yield from ((path, leaf) for path, leaf in recipe_options.leaves(name, value) if isinstance(leaf, str))


def within(path: str, job: Job) -> bool:
    """Below a directory that recipes may take files from."""
    clean = posixpath.normpath(path)
    allowed = [posixpath.normpath(item) for item in (*job.settings.mount_directories, job.settings.hf_home)]
    return path.startswith("/") and any(clean == item or clean.startswith(f"{item.rstrip('/')}/") for item in allowed)
