# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What all engines have in common: the job, one command per rank, and options held against the engine's version."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric_fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._memory_fit import Budget
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._parallel import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._recipe import Draft

API_HOST = "127.0.0.1"
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


def flags_of(spec: Spec, version: str) -> frozenset[str]:
    table = _option_tables.load(spec.name, version)
    return table.flags() if table else frozenset()


def examine(
    spec: Spec, version: str, options: Mapping[str, Any], environment: Mapping[str, str], where: str
) -> Iterator[Finding]:
    """Options and variables of recipe and user: reserved, unknown, removed, renamed ones, and values."""
    table = _option_tables.load(spec.name, version)
    label = f"{spec.label} {version}" if version else f"this {spec.label}"
    if table is None:
        known = ", ".join(_option_tables.versions(spec.name))
        yield Finding(
            where,
            f"there is no option table for {label}, so its options are not checked",
            f"A mistyped option shows only when the engine starts; there are tables for {known}",
            severity="warning",
        )
    free = {}
    for name, value in options.items():
        plain = name.split(".")[0]  # JSON options may be dotted: limit-mm-per-prompt.video
        if plain in spec.planned:
            yield Finding(where, f"the option {name} is set by the plan", f"Set {spec.planned[plain]}")
        elif table is not None and isinstance(value, bool) and table.options.get(f"--{plain}", "flag") != "flag":
            yield Finding(where, f"--{plain} needs a value, and {str(value).lower()} was given", "Give one")
        else:
            free[name] = True if value is False else value  # the name is what counts
    if table is not None:
        yield from check_words(spec, version, render(free), where)
    if table is None:
        gone = [(name, spec.removed_environment[name]) for name in environment if name in spec.removed_environment]
        for name, remedy in gone:
            yield Finding(where, f"{label} has no variable {name}", remedy)
        return
    for found, remedy in _option_tables.check_environment(
        list(environment), spec.prefix, table, spec.removed_environment, label
    ):
        yield Finding(where, found, remedy)


def check_words(spec: Spec, version: str, words: Sequence[str], where: str) -> Iterator[Finding]:
    """A rendered command line, without its program and positional arguments, against the table of the version."""
    table = _option_tables.load(spec.name, version)
    if table is None:
        return
    label = f"{spec.label} {version}"
    for found, remedy in _option_tables.check(words, table, spec.removed, label, spec.underscores):
        yield Finding(where, found, remedy)


def flags_and_values(spec: Spec, version: str) -> frozenset[str]:
    """All names of options that a version knows, without dashes; empty where there is no table."""
    table = _option_tables.load(spec.name, version)
    return frozenset(name.lstrip("-") for name in (*table.options, *table.aliases)) if table else frozenset()
