# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What all engines have in common: the job, one command per rank, and options held against the engine's version."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.memory_fit import Budget
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.parallelism import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Draft

API_HOST = "127.0.0.1"
_DISTRIBUTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([0-9]+\.[0-9]+[0-9A-Za-z.+-]*)$")


@dataclass(frozen=True)
class Spec:
    """Facts about one engine that do not depend on the job."""

    name: str  # as in recipes, and of the option tables
    label: str  # in messages
    distributions: Sequence[str]  # on PyPI, that bring it
    image: str  # used where neither recipe nor user names one
    prefix: str  # of its environment variables
    separator: str  # between the words of an option: - or _
    planned: Mapping[str, str]  # options that the plan sets itself, and what a user sets instead
    removed: Mapping[str, str]  # spellings that are gone, with the remedy; --option=value for a value
    removed_environment: Mapping[str, str] = field(default_factory=dict)
    underscores: bool = False  # the parser takes _ for -
    key: bool = False  # asks for an API key, from the environment
    # Where the engine also reads a file: names that it knows and that have no flag, and what the plan sets in it
    # (``option`` or ``option.key``) with what a user sets instead.
    file_options: frozenset[str] = frozenset()
    file_planned: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launch:
    """One job, ready to be written as command lines."""

    version: str
    model: str
    served: str
    ordered: Sequence[FabricFact]  # by rank; the first is the head
    parallel: Parallel
    backend: str  # single, ray, native or mpi
    context: int
    concurrency: int
    port: int
    options: Mapping[str, Any]  # of recipe and user, merged
    revision: str = ""
    budget: Budget | None = None  # none on a CPU
    draft: Draft | None = None
    pin_kv_cache: bool = False
    shared: bool = False  # other services are on the same nodes
    bin: str = ""  # directory of the programs with a / at its end, or empty
    rendezvous_port: int = 29501
    file_directory: str = "/etc/sparkmatrix"
    api_host: str = API_HOST
    task: str = "generate"

    @property
    def head(self) -> FabricFact:
        return self.ordered[0]

    @property
    def local(self) -> bool:
        """The model is a directory on the nodes."""
        return self.model.startswith("/")


@dataclass(frozen=True)
class User:
    """Names of options and variables that come from the user, not from the recipe."""

    options: Collection[str] = ()
    environment: Collection[str] = ()


@dataclass(frozen=True)
class Rank:
    """What one node runs. No ``argv``: the head starts its process, through Ray."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # path: content


def pinned(requirements: Sequence[str], names: Sequence[str]) -> str:
    """Version of the first requirement for one of ``names`` that is pinned with ``==``, or an empty text."""
    for requirement in requirements:
        match = _PINNED.match(requirement.replace(" ", "").split(";")[0])
        if match and match.group(1).lower().replace("_", "-") in names:
            return match.group(2)
    return ""


def distribution(requirement: str) -> str:
    """The normalized name of what a requirement asks for, also of a wheel by its path."""
    text = requirement.partition(";")[0].strip()
    if text.endswith(".whl") and "@" not in text:
        text = text.rpartition("/")[2].partition("-")[0]
    match = _DISTRIBUTION.match(text)
    return re.sub(r"[-_.]+", "-", match.group()).lower() if match else ""


def merge(spec: Spec, recipe: Mapping[str, Any], user: Mapping[str, Any]) -> dict[str, Any]:
    """The user's options over the recipe's; ``null`` takes an option of the recipe away. Names lose their dashes."""
    merged = {_name(spec, key): value for key, value in recipe.items()}
    merged.update({_name(spec, key): value for key, value in user.items()})
    return {key: value for key, value in merged.items() if value is not None}


def _name(spec: Spec, key: str) -> str:
    """vLLM takes ``_`` for ``-``, except behind the first dot, where the names are JSON."""
    head, dot, rest = key.lstrip("-").partition(".")
    return (head.replace("_", "-") if spec.underscores else head) + dot + rest


def render(options: Mapping[str, Any], flags: frozenset[str] = frozenset()) -> list[str]:
    """Arguments in the order of the names: flags alone, lists as several words, mappings as JSON.

    ``false`` becomes the flag's opposite, or nothing where there is none: off is the default then.
    """
    argv: list[str] = []
    for name in sorted(options):
        value = options[name]
        if value is True:
            argv.append(f"--{name}")
        elif value is False:
            opposite = opposite_of(name, flags)
            argv += [f"--{opposite}"] if opposite else []
        elif isinstance(value, (list, tuple)):
            argv += [f"--{name}", *(str(item) for item in value)]
        elif isinstance(value, Mapping):
            argv += [f"--{name}", json.dumps(value, sort_keys=True, separators=(",", ":"))]
        else:
            argv += [f"--{name}", str(value)]
    return argv


def opposite_of(name: str, flags: frozenset[str]) -> str:
    candidates = [f"no-{name}"]
    for prefix, other in (("enable-", "disable-"), ("disable-", "enable-"), ("no-", "")):
        if name.startswith(prefix):
            candidates.append(other + name[len(prefix) :])
    return next((candidate for candidate in candidates if candidate in flags), "")


def in_file(spec: Spec, version: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without a flag, which go into the engine's file: mappings, and names known from there.

    Anything else without a flag is a mistyped one.
    """
    if not spec.file_options:
        return {}
    flags = flags_and_values(spec, version) or flags_and_values(spec, option_tables.versions(spec.name)[-1])
    return {
        name: plain(value)
        for name, value in options.items()
        if name not in flags and name not in spec.planned and (isinstance(value, Mapping) or name in spec.file_options)
    }


def plain(value: Any) -> Any:
    """Without the types that a value has while it is Ansible's, which YAML cannot write."""
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    kind = next((kind for kind in (bool, int, float) if isinstance(value, kind)), str)
    return None if value is None else kind(value)


def merge_deep(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` over ``base``, mappings key by key."""
    made = dict(base)
    for key, value in over.items():
        below = made.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            made[key] = merge_deep(below, value)
        else:
            made[key] = value
    return made


def flags_of(spec: Spec, version: str) -> frozenset[str]:
    table = option_tables.load(spec.name, version)
    return table.flags() if table else frozenset()


def examine(
    spec: Spec,
    version: str,
    options: Mapping[str, Any],
    environment: Mapping[str, str],
    where: str,
    *,
    user: User | None = None,
) -> Iterator[Finding]:
    """Options and variables of recipe and user: reserved, unknown, removed, renamed ones, and values.

    ``where``: the recipe. ``user``: names that the user gave, which are to be corrected elsewhere.
    """
    user = user or User()
    table = option_tables.load(spec.name, version)
    label = f"{spec.label} {version}" if version else f"this {spec.label}"
    if table is None:
        known = ", ".join(option_tables.versions(spec.name))
        yield Finding(
            where,
            f"there is no option table for {label}, so its options are not checked",
            f"A mistyped option shows only when the engine starts; there are tables for {known}",
            severity="warning",
        )
    written = in_file(spec, version, options)
    for name in sorted(options):
        value, place = options[name], "engine_options" if name in user.options else where
        plain_name = name.split(".")[0]  # JSON options may be dotted: limit-mm-per-prompt.video
        if plain_name in spec.planned:
            yield Finding(place, f"the option {name} is set by the plan", f"Set {spec.planned[plain_name]}")
        elif name in written:
            yield from _examine_file(spec, label, name, written[name], place)
        elif table is not None and isinstance(value, bool) and table.options.get(f"--{plain_name}", "flag") != "flag":
            yield Finding(place, f"--{plain_name} needs a value, and {str(value).lower()} was given", "Give one")
        else:
            words = render({name: True if value is False else value})  # the name is what counts
            yield from check_words(spec, version, words, place)
    for name in sorted(environment):
        place = "engine_environment" if name in user.environment else where
        if table is not None:
            for found, remedy in option_tables.check_environment(
                [name], spec.prefix, table, spec.removed_environment, label
            ):
                yield Finding(place, found, remedy)
        elif name in spec.removed_environment:
            yield Finding(place, f"{label} has no variable {name}", spec.removed_environment[name])


def _examine_file(spec: Spec, label: str, name: str, value: Any, where: str) -> Iterator[Finding]:
    """An option of the engine's file."""
    keys = [name, *(f"{name}.{key}" for key in value)] if isinstance(value, Mapping) else [name]
    for key in keys:
        if key in spec.file_planned:
            yield Finding(where, f"the option {key} is set by the plan", f"Set {spec.file_planned[key]}")
    if name not in (*spec.file_options, *spec.file_planned):
        hint = option_tables.close(name, sorted(spec.file_options))
        yield Finding(
            where,
            f"{name} is no option that is known of {label}; it is written to its file as it is",
            f"{hint} If it is mistyped, the engine ends at its start".strip(),
            severity="warning",
        )


def check_words(spec: Spec, version: str, words: Sequence[str], where: str) -> Iterator[Finding]:
    """A rendered command line, without its program and positional arguments, against the table of the version."""
    table = option_tables.load(spec.name, version)
    if table is None:
        return
    label = f"{spec.label} {version}"
    for found, remedy in option_tables.check(words, table, spec.removed, label, spec.underscores):
        yield Finding(where, found, remedy)


def flags_and_values(spec: Spec, version: str) -> frozenset[str]:
    """All names of options that a version knows, without dashes; empty where there is no table."""
    table = option_tables.load(spec.name, version)
    return frozenset(name.lstrip("-") for name in (*table.options, *table.aliases)) if table else frozenset()
