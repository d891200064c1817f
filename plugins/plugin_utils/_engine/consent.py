# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What is done only where the user has named it in ``engine_allow``: a recipe of somebody else is code.

What the user sets in options and environment of their own is named by that already.

Options: numbers, switches, and choices that the engine's table knows need no word. A text, a path, an address or a key
of JSON can make an engine load code, read a file or ask another machine, and each version knows new ones: of those only
what the engine's file lists as harmless passes. What is judged is the command that was rendered, read back as the
engine's parser reads it. Variables: those known by name, with a value that names nothing, since one can make loader,
Python, CUDA, NCCL, a compiler or the engine do the same.
"""

from __future__ import annotations

import contextlib
import functools
import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, printable
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables, own_command
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import INTO_SWAP, Job
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import Engine
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.option_tables import Given, Table
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.own_command import HostMount, OwnCommand
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Recipe, RecipeSettings

COMMAND = "command"  # all that a recipe with a command of its own brings
MOVING_IMAGE = "moving-image"  # one whose name means another image tomorrow
PATCHES = "patches"  # of a recipe: files of the nodes, which a model may have brought, as code of the image
_MOVING = re.compile(r"(^|[^a-z])(latest|nightly|main|master|dev|edge|stable)([^a-z]|$)")
_RELEASE = re.compile(r"\d+\.\d+")
_COMMIT = re.compile(r"(^|-)[0-9a-f]{7,40}(-|$)")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|[a-z]+_proxy")
TOKEN_PATH = "HF_TOKEN_PATH"  # noqa: S105 - a file
_OPTION_WORD = re.compile(r"[+-]?[A-Za-z0-9_][A-Za-z0-9_.:,;+-]{0,79}")
UNKNOWN = "may load code, read files or lead to other machines"
# Of all engines; by number or switch.
_COUNTING = frozenset({
    *("MAX_JOBS", "NVCC_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_LAUNCH_BLOCKING"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "TORCHINDUCTOR_COMPILE_THREADS", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    *("NVIDIA_TF32_OVERRIDE", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_XET"),
    *("HF_HUB_ENABLE_HF_TRANSFER", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"),
    *("DO_NOT_TRACK", "NO_COLOR", "PYTHONUNBUFFERED", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_MAX_NCHANNELS"),
    *("NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_TIMEOUT"),
    *("NCCL_IB_RETRY_CNT", "NCCL_IB_QPS_PER_CONNECTION", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "MALLOC_ARENA_MAX"),
    *("SAFETENSORS_FAST_GPU", "DG_JIT_USE_NVRTC", "TILELANG_CLEANUP_TEMP_FILES", "TORCHDYNAMO_DISABLE"),
    *("TORCH_COMPILE_DISABLE", "TORCHINDUCTOR_MAX_AUTOTUNE"),
})  # fmt: skip
# And by a word of few.
_CHOOSING = frozenset({
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCH_CUDA_ARCH_LIST", "CUDA_DEVICE_ORDER"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_ALGO", "NCCL_PROTO"),
})  # fmt: skip
_COUNT = re.compile(r"[+-]?\d{1,15}(\.\d{1,9})?|true|false|yes|no|on|off|auto|none|", re.IGNORECASE | re.ASCII)
_VARIABLE_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:,;+-]{0,79}( [A-Za-z0-9][A-Za-z0-9_.:,;+-]{0,79}){0,7}|")
_PLACE = re.compile(r"_(PATH|ROOT|DIR|FOLDER|FILE|HOST|IP|PORT|URL|URI|PLUGINS?)(_|$)")
_PATH = re.compile(r"(?:^|[=:,;\s\"'])(~?/[^\s:,;\"']*|~[^\s:,;\"']*|file:[^\s,;\"']*|\.{1,2}/[^\s:,;\"']*)")
_ADDRESS = re.compile(r"\b(?!file:)[a-z][a-z0-9+.-]*://[^\s,;\"']*", re.IGNORECASE)
_OFF = ("", "0", "false")
_ON = ("1", "true", "yes", "on")
_QUIET = frozenset({"DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "VLLM_DO_NOT_TRACK", "VLLM_NO_USAGE_STATS"})


@dataclass(frozen=True)
class Danger:
    """What a recipe sets, and what it does."""

    word: str  # that allows it
    why: str
    place: str  # where the user can take it away; empty where nowhere
    brings: tuple[str, ...] = ()  # each for a line of its own


@dataclass(frozen=True)
class HostFile:
    """A path of the nodes that a recipe brings into what it runs."""

    path: str
    why: str
    mounted: bool = True  # else it is read there, if at all: its variable needs the user's word


def words() -> frozenset[str]:
    """What may be allowed, beside options and variables by their names."""
    of_engines = {word for engine in ENGINES.values() for word in (*engine.dangerous, *engine.dangerous_environment)}
    return frozenset({COMMAND, MOVING_IMAGE, INTO_SWAP, PATCHES, *of_engines})


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
def _known_options(engine: Engine) -> frozenset[str]:
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
    if job.engine.opaque:
        yield Danger(
            COMMAND,
            "runs as root of a container on each of its nodes, and nothing of it is checked",
            "",
            tuple(brought(job)),
        )
        return
    for name, value in sorted(_own_options(job).items()):
        for word, why in option_doubts(job.engine, job.version, name, value).items():
            yield Danger(word, why, "options")
    for name, value in _own_variables(job):
        why = variable_doubt(job.engine, name, value)
        if why and name != TOKEN_PATH:
            yield Danger(name, why, "environment")


def brought(job: Job) -> list[str]:
    """All of a recipe with a command of its own, of which each part is somebody's code; each of one line."""
    recipe, build, own = job.recipe, job.build, job.recipe.own
    image = f"image {job.image}"
    if build:
        mods = f" with the mods {', '.join(build.mods)}" if build.mods else ""
        given = "".join(f" with {name}={value}" for name, value in sorted(build.arguments.items()))
        image = f"an image built from {build.dockerfile or build.base}{given}{mods}"
    ran = (
        [_shown(own.command), *([f"on workers {_shown(own.worker)}"] if own.worker != own.command else [])]
        if own
        else []
    )
    files = [f"{item.path} ({item.why})" for item in host_files(job)]
    parts = [
        image,
        *ran,
        f"variables {', '.join(sorted(recipe.environment))}" if recipe.environment else "no variables",
        f"host files {', '.join(files)}" if files else "no host files",
    ]
    return [printable(" ".join(part.split())) for part in parts]


def _shown(command: OwnCommand) -> str:
    lines = command.script.strip().splitlines()
    if lines:
        return f"a script of {len(lines)} line{'s' if len(lines) > 1 else ''}, which begins with {lines[0][:60]!r}"
    return f"the command {' '.join(command.words)}" if command.words else "the command of the image itself"


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
        made += [HostFile(own_command.fill(one.source, {"model": job.model}), _mounted(one)) for one in recipe.mounts]
    for name, value in _own_variables(job):
        if name == TOKEN_PATH:
            made += [HostFile(value, "the token for downloads")] if value else []
        else:
            made += [HostFile(path, name, mounted=False) for path in paths(value)]
    made += [HostFile(path, name, mounted=False) for name, text in _texts(job) for path in paths(text)]
    return made


def _mounted(mount: HostMount) -> str:
    return mount.why if mount.read_only else f"{mount.why}; it may write there"


def addresses(job: Job) -> list[tuple[str, str]]:
    """(address, option or variable) of what the recipe lets the engine ask, or where it lets it listen."""
    given = [*_own_variables(job), *_texts(job)]
    return [(address, name) for name, value in given for address in addresses_in(value)]


def _texts(job: Job) -> Iterator[tuple[str, str]]:
    for name, value in sorted(_own_options(job).items()):
        yield from ((path, leaf) for path, leaf in leaves(name, value) if isinstance(leaf, str))


def within(path: str, job: Job) -> bool:
    """Below a directory that recipes may take files from."""
    clean = own_command.plain(path)
    allowed = [posixpath.normpath(item) for item in (*job.settings.mount_directories, job.settings.hf_home)]
    return path.startswith("/") and any(clean == item or clean.startswith(f"{item.rstrip('/')}/") for item in allowed)


def option_doubts(engine: Engine, version: str, name: str, value: Any) -> dict[str, str]:
    """Of one option in its :func:`~.kinds.base.merge` form: by each word that allows it (``option``, ``option.key``)
    what it does, as the end of a sentence."""
    if name in kinds_base.in_file(engine, version, {name: value}):
        return dict(_of_leaves(engine, name, value))
    own = option_tables.load(engine.name, version)
    if kinds_base.planned(engine, version, name):
        return {}  # nobody may set it
    table = option_tables.newest(engine.name, version)
    made: dict[str, str] = {}
    for given in option_tables.read(kinds_base.render({name: value}, own or table), table, engine.underscores):
        if given.name or own is None:  # where there is a table, what it does not know is refused
            made |= _of_given(engine, table, given)
    return made


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(``option.key.key``, value) of all that is no mapping and no list, also inside of a text that is JSON."""
    if isinstance(value, str) and value.lstrip()[:1] in {"{", "["}:
        with contextlib.suppress(SparkError):
            value = json_text.read(value)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(f"{name}.{key}", inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from leaves(name, inner)
    else:
        yield name, value


def _of_given(engine: Engine, table: Table, given: Given) -> dict[str, str]:
    name, kind = given.name[2:], table.options.get(given.name)
    if not name:
        # Nobody refuses an abbreviation where the version has no table.
        whole = [known for known in table.options if known.startswith(given.spelling)]
        name = (whole[0] if len(whole) == 1 else given.spelling).lstrip("-")
        return {name: engine.dangerous.get(name, UNKNOWN)}
    if name in engine.dangerous:
        return {name: engine.dangerous[name]} if given.on else {}
    fits = not given.keys and option_tables.complaint(given, table, {}) is None
    numbers = kind == "list" and all(re.fullmatch(r"-?\d+(\.\d+)?", value) for value in given.values)
    if fits and (isinstance(kind, list) or kind in {"flag", "int", "float", "size"} or given.name in table.values):
        return {}
    return {} if fits and numbers else dict(_of_leaves(engine, name, list(given.values)))


def _of_leaves(engine: Engine, name: str, value: Any) -> Iterator[tuple[str, str]]:
    if name in engine.dangerous:
        yield name, engine.dangerous[name]
        return
    listed = any(known.partition(".")[0] == name for known in (*engine.harmless, *engine.dangerous))
    for path, leaf in leaves(name, value):
        if not _harmless(engine, path, leaf):
            word = path if listed else name
            yield word, engine.dangerous.get(word, UNKNOWN)


def _harmless(engine: Engine, path: str, leaf: Any) -> bool:
    """A number, a switch or a word of an option or a key that is listed, with this value or with any."""
    if not _OPTION_WORD.fullmatch(str(leaf)):
        return False
    above = path.split(".")[:-1]
    known = {path, f"{path}={leaf}", *(".".join((*above[: number + 1], "*")) for number in range(len(above)))}
    return not known.isdisjoint(engine.harmless)


def variable_doubt(engine: Engine, name: str, value: str) -> str:
    """Why a recipe may set this only with the user's word, as the end of a sentence; empty where it may."""
    if name in engine.dangerous_environment:
        return "" if value.casefold() in _OFF else engine.dangerous_environment[name]
    if name in _QUIET and value.casefold() not in _ON:
        return "sends what it does somewhere else"
    counting = name in _COUNTING or name in _of_engine(engine)
    choosing = name in _CHOOSING or name in engine.choosing_environment
    fits = (counting and counts(value)) or (choosing and _VARIABLE_WORD.fullmatch(value))
    return "" if fits else UNKNOWN


def counts(value: str) -> bool:
    """A number or a switch."""
    return bool(_COUNT.fullmatch(value))


def paths(value: str) -> list[str]:
    """What in a value is a file or a directory of the node."""
    return _PATH.findall(_ADDRESS.sub("", value))


def addresses_in(value: str) -> list[str]:
    """What in a value is an address that is asked, or listened at."""
    return _ADDRESS.findall(value)


@functools.cache
def _of_engine(engine: Engine) -> frozenset[str]:
    """Variables of the engine's own that its sources name, but those that are a place."""
    tables = [option_tables.load(engine.name, version) for version in option_tables.versions(engine.name)]
    known = {name for table in tables if table for name in table.environment}
    own = {name for name in known if name.startswith(engine.prefix) and not _PLACE.search(name)}
    return engine.counting_environment | own
