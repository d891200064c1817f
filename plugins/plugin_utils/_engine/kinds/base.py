# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What an engine is: one class, one command per rank, and options held against the engine's version."""

from __future__ import annotations

import functools
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths, ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.strict import digits, quoted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import VARIABLES, OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Memory,
    Parallel,
    Prefixes,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Draft
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.own_command import Own

API_HOST = "127.0.0.1"
MEDIA_OPTION = "allowed-media-domains"
NOWHERE = "nothing.invalid"  # no such name can exist (RFC 6761)
_DISTRIBUTION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_WHOLE = re.compile(r"-?\d+")
_PINNED = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([0-9]+\.[0-9]+[0-9A-Za-z.+-]*)")


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
    sequences: int  # requests that are computed at once
    port: int
    options: Mapping[str, Any]  # of recipe and user, merged
    revision: str = ""
    budget: Memory | None = None  # none on a CPU
    draft: Draft | None = None
    shared: bool = False  # other services are on the same nodes
    bin: str = ""  # directory of the programs with a / at its end, or empty
    rendezvous_port: int = ports.RENDEZVOUS
    file_directory: str = paths.ETC
    api_host: str = API_HOST
    task: str = "generate"
    names: OptionNames = VARIABLES
    media_domains: Sequence[str] = ()  # from where images may be fetched for a request
    own: Own | None = None  # the recipe's own command
    prefixes: Prefixes = field(default_factory=Prefixes)  # what is kept of prompts on disk

    @property
    def head(self) -> FabricFact:
        return self.ordered[0]


@dataclass(frozen=True)
class User:
    """Names of options and variables that come from the user, not from the recipe."""

    options: Collection[str] = ()
    environment: Collection[str] = ()
    names: OptionNames = VARIABLES


@dataclass(frozen=True)
class Rank:
    """What one node runs: program and options, behind what starts several ranks at once, where something does.

    Whoever runs it joins the three; nobody takes them apart again. No program: the head starts its
    process, through Ray.
    """

    program: Sequence[str] = ()
    options: Sequence[str] = ()
    starter: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    starter_environment: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # path: content
    entrypoint: bool = False  # the image's own gets the words, if there are any

    @property
    def runs(self) -> bool:
        """On its own node."""
        return bool(self.program) or self.entrypoint


@dataclass(frozen=True)
class Counted:
    """An option whose value is memory."""

    # cache: the KV cache, in bytes; tokens: the same in tokens; share: beside it, in what the engine may have; host:
    # outside of that; captured: requests for which CUDA graphs are made.
    part: str
    unit: float = 1  # bytes of one
    of_all: bool = False  # all ranks share it


@dataclass(frozen=True)
class Uncounted:
    """An option that takes memory, and nobody can say how much."""

    why: str
    instead: str
    unless: str = ""  # another option that says how much


@dataclass(frozen=True)
class Lora:
    """Options for adapters; each number with what counts where it is not given."""

    switch: str
    at_once: tuple[str, int]
    rank: tuple[str, int]
    held: str = ""  # outside of the engine's share


@dataclass(frozen=True)
class Drafting:
    """A way of speculative decoding that options bring, or what they change of the recipe's."""

    method: str = ""  # as the engine calls it
    model: str = ""
    revision: str = ""
    tokens: int = 0
    tensor: int = 0  # ranks that share the draft; 0: all
    nothing: bool = False  # it needs no weights and no cache
    whole: bool = False  # in place of the recipe's


OFFLOAD = Uncounted(
    "puts weights into the CPU's memory, which is the GPU's here, so that nothing becomes free",
    "Leave it out; more nodes or a smaller quantization make room",
)
REDUNDANT = Uncounted("keeps copies of experts beside the weights that the plan counts", "Leave it out")
# Without a limit it reads ahead what it can (its env-vars.md, 2026); with one the plan counts that.
STREAMER = {
    "load-format=runai_streamer": Uncounted(
        "reads ahead as much of the files as there is memory, beside what is loaded already",
        "Set model-loader-extra-config: {memory_limit: 5368709120}, or load-format: fastsafetensors",
        unless="model-loader-extra-config.memory_limit",
    )
}
STREAMED = {"model-loader-extra-config.memory_limit": Counted("host")}
_TWICE = Uncounted("makes weights and cache twice as large as the plan counts", "Use bfloat16")
WIDE = {"dtype=float32": _TWICE, "dtype=float": _TWICE}


class Engine(ABC):
    """All that the plan knows of one engine.

    A further engine is a class of this kind in a file of its own, its option tables, and a line in
    :mod:`~.registry`. What is not set here is not so: no key, no replicas, no Ray.
    """

    name: str  # as in recipes, and of the option tables
    label: str  # in messages
    short: str  # part of the names of its programs, and what others call it
    starter: str  # the module or program that serves, beside ``… serve``
    distributions: Sequence[str]  # on PyPI, that bring it
    image: str  # used where neither recipe nor user names one
    opaque = False  # a recipe's own command: nothing is known of its options and its memory
    runtime = "container"  # unless told otherwise
    prefix: str  # of its environment variables
    planned: Mapping[str, str]  # options that the plan sets itself, and what a user sets instead ({option})
    help_words: Sequence[str]  # what prints all options of its command
    removed: Mapping[str, str] = {}  # spellings that are gone, with the remedy; --option=value for a value
    removed_environment: Mapping[str, str] = {}
    # For recipes (:mod:`_engine.consent`). What needs the user's word although it is a switch or a choice, or
    # where more is known of it, and what it does; and what may be a word: ``option``, ``option=word``, ``option.key``,
    # ``option.*`` for all keys.
    dangerous: Mapping[str, str] = {}
    harmless: frozenset[str] = frozenset()
    # Variables of its own: which a recipe needs the user's word for; and which may have a number, or a word of few.
    dangerous_environment: Mapping[str, str] = {}
    counting_environment: frozenset[str] = frozenset()
    choosing_environment: frozenset[str] = frozenset()
    per_node: frozenset[str] = frozenset()  # its variables that are another on each node
    underscores = False  # the parser takes _ for -
    # Where the engine also reads a file: names that it knows and that have no flag, and what the plan sets in it
    # (``option`` or ``option.key``) with what a user sets instead.
    file_options: frozenset[str] = frozenset()
    file_planned: Mapping[str, str] = {}
    # Options by what they are for; empty where it has none.
    batched_option = ""  # tokens that are computed in one step
    sequences_option = ""  # requests that are computed at once
    loader_option = ""  # how the weights are read
    kv_dtype_option = ""
    eager_option = ""  # no CUDA graphs
    draft_keys = False  # a recipe's draft may have further keys of that option
    draft_option = ""  # brings a way of speculative decoding of the user's own
    drafts: Collection[str] = ()  # ways that recipes name
    drafts_in_one_step: Collection[str] = ()  # of these, for all requests together within the tokens of a step
    # What options take of the memory (``option``, ``option.key`` of a mapping, or ``option=value``), and mappings of
    # which only these keys may be set beside.
    counted: Mapping[str, Counted] = {}
    uncounted: Mapping[str, Uncounted] = {}
    closed: Mapping[str, frozenset[str]] = {}
    lora: Lora | None = None
    # Options that have it keep no computed prompts, or in another way than on disk, with a value that does not.
    prefixes_otherwise: Mapping[str, Any] = {}
    salted: tuple[str, ...] = ()  # paths whose requests may say with whom they share what was computed (cache_salt)
    profile_options: Mapping[str, Mapping[str, Any]] = {}  # by name of the profile
    key_variable = ""  # that holds the API key it asks for
    metrics = "/metrics"  # path of its page for Prometheus
    config_root = ""  # its directory of settings, which also a driver beside Ray's container reads
    devices: Sequence[str] = ("gpu",)
    tasks: Sequence[str] = ("generate",)
    over_ray = False  # may be started over Ray
    replicas = False  # over several nodes in one service
    replica_port = 0  # where they meet
    uneven_experts = False  # the number of experts need not divide by the ranks
    share_of_free = True  # its share is one of what is free when it starts, not of all memory

    @abstractmethod
    def image_version(self, image: str) -> str:
        """``major.minor.patch`` inside an image by its name, or an empty text."""

    @abstractmethod
    def ranks(self, launch: Launch) -> list[Rank]:
        """One entry per node, in the order of the ranks."""

    def backend(self, asked: str, replicas_of_one: bool, image: str) -> str:
        """How ranks on several nodes find each other: native, ray or mpi. ``asked``: the user's ``launch``."""
        return "native"

    def no_ray(self, replicas_of_one: bool, image: str) -> str:
        """Why ``ray`` is not used where it is asked for; empty where it is."""
        return f"ranks of {self.label} find each other without Ray"

    def served_name(self, launch: Launch) -> str:
        return launch.served

    def filled(self, launch: Launch, number: int, text: str) -> str:
        """A value of the recipe's environment, or a path of its mounts, on the node of this rank."""
        return text

    def kv_dtype(self, options: Mapping[str, Any]) -> str:
        return str(options.get(self.kv_dtype_option, "auto"))

    def drafting(self, given: Mapping[str, Any]) -> Drafting | None:
        """Speculative decoding as the options say, from :func:`_engine.memory_options.spelled`; nothing where they are
        silent."""
        return None

    def defaults(self, runtime: str, backend: str) -> dict[str, str]:
        """Environment that recipe and user may override."""
        return {}

    def own_environment(self, address: str, ray_directory: str) -> dict[str, str]:
        """What differs from node to node. ``ray_directory``: shared with the container of Ray, where there is one."""
        return {}

    def rules(self, parallel: Parallel, backend: str, where: str, names: OptionNames) -> Iterator[Finding]:
        """Sizes that are not started. What options, drafts and sizes do together is in :mod:`_engine.hazards`."""
        yield from ()

    def check_ranks(self, launch: Launch, ranks: Sequence[Rank], where: str) -> Iterator[Finding]:
        """What is wrong with the finished command lines, beside options that the version does not know."""
        yield from ()

    def not_started(self, backend: str, runtime: str, parallel: Parallel, names: OptionNames) -> tuple[str, str] | None:
        """What this release plans and does not start yet, with the remedy."""
        return None


def pinned(requirements: Sequence[str], names: Sequence[str]) -> str:
    """Version of the first requirement for one of ``names`` that is pinned with ``==``, or an empty text."""
    for requirement in requirements:
        match = _PINNED.fullmatch(requirement.replace(" ", "").split(";")[0])
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


def merge(engine: Engine, recipe: Mapping[str, Any], user: Mapping[str, Any]) -> dict[str, Any]:
    """The user's options over the recipe's, each in its one form: the whole name without dashes, and what is JSON as a
    mapping, whether it came as a text or as ``option.key``. ``null`` takes an option or a key away."""
    merged: dict[str, Any] = {}
    for given in (recipe, user):
        for name in sorted(given, key=lambda name: "." in name):  # the whole before its keys
            (*above, last), value = _path(engine, name), given[name]
            if value is None and last not in functools.reduce(json_text.entry, above, merged):
                continue
            below = merged
            for part in above:
                below[part] = dict(json_text.entry(below, part))
                below = below[part]
            if value is None:
                below.pop(last)
            else:
                below[last] = plain(_read(value, dotted=bool(above)))
    return merged


def _path(engine: Engine, name: str) -> list[str]:
    """``option.key`` in its parts; vLLM takes ``_`` for ``-`` in the first. What is no name stays as it is."""
    first, *keys = name.lstrip("-").split(".")
    parts = [first.replace("_", "-") if engine.underscores else first, *keys]
    return parts if all(map(_NAME.fullmatch, parts)) else [name.lstrip("-")]


def _read(value: Any, dotted: bool) -> Any:
    """A text that is JSON, as the engine would read it."""
    if not isinstance(value, str) or not (dotted or value.lstrip().startswith("{")):
        return value
    try:
        return json_text.read(str(value))
    except SparkError:
        return value


def render(options: Mapping[str, Any], table: option_tables.Table | None = None) -> list[str]:
    """Arguments in the order of the names: flags alone, lists as several words, mappings as JSON.

    ``false`` becomes the flag's opposite, or nothing where there is none: off is the default then. A value that begins
    with a dash stands behind ``=``, where no parser takes it for an option; in a list :func:`examine` refuses it.
    """
    argv: list[str] = []
    for name in sorted(options):
        value, kind = options[name], table.options.get(table.long_name(f"--{name}")) if table else None
        if value is True:
            argv.append(f"--{name}")
        elif value is False:
            opposite = opposite_of(name, table)
            argv += [f"--{opposite}"] if opposite else []
        elif isinstance(value, (list, tuple)) and kind != "json":
            argv += [f"--{name}", *(str(item) for item in value)]
        else:
            made = isinstance(value, (Mapping, list, tuple))
            text = json.dumps(value, sort_keys=True, separators=(",", ":")) if made else str(value)
            argv += [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
    return argv


def opposite_of(name: str, table: option_tables.Table | None) -> str:
    candidates = [f"no-{name}"]
    for prefix, other in (("enable-", "disable-"), ("disable-", "enable-"), ("no-", "")):
        if name.startswith(prefix):
            candidates.append(other + name[len(prefix) :])
    same = [
        candidate
        for candidate in candidates
        if table and table.long_name(f"--{candidate}") == table.long_name(f"--{name}") != ""
    ]
    return next(iter(same), "")


def in_file(engine: Engine, version: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without a flag, which go into the engine's file: mappings, and names known from there.

    Anything else without a flag is a mistyped one.
    """
    if not engine.file_options:
        return {}
    flags = flags_and_values(engine, version) or flags_and_values(engine, option_tables.versions(engine.name)[-1])
    return {
        name: plain(value)
        for name, value in options.items()
        if name not in flags
        and name not in engine.planned
        and (isinstance(value, Mapping) or name in engine.file_options)
    }


def plain(value: Any) -> Any:
    """Without the types that a value has while it is Ansible's, which YAML cannot write."""
    if isinstance(value, Mapping):
        return {
            str(key) if isinstance(key, str) else json.dumps(plain(key)): plain(item) for key, item in value.items()
        }
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


def examine(
    engine: Engine,
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
    if engine.opaque:
        return
    user = user or User()
    table = option_tables.load(engine.name, version)
    label = f"{engine.label} {version}" if version else f"this {engine.label}"
    if table is None:
        known = ", ".join(option_tables.versions(engine.name))
        yield Finding(
            where,
            f"there is no option table for {label}, so of its options only those that are long gone are found here",
            f"It is asked itself, on the nodes, before it is started; there are tables for {known}",
            severity="warning",
        )
    written = in_file(engine, version, options)
    for name in sorted(options):
        value, place = options[name], user.names["options"] if name in user.options else where
        remedy = planned(engine, version, name)
        if not _NAME.fullmatch(name):
            yield Finding(
                place, f"{quoted(name)} is no name of an option", "Write its whole name as the engine's help does"
            )
        elif remedy:
            yield Finding(place, f"the option {name} is set by the plan", f"Set {remedy.format_map(user.names)}")
        elif name in written:
            yield from _examine_file(engine, label, name, written[name], where=place, names=user.names)
        else:
            yield from _examine_one(engine, version, name, value, place)
    for name in sorted(environment):
        place = user.names["environment"] if name in user.environment else where
        if table is not None:
            for found, remedy in option_tables.check_environment(
                [name], engine.prefix, table, engine.removed_environment, label
            ):
                yield Finding(place, found, remedy)
        elif name in engine.removed_environment:
            yield Finding(place, f"{label} has no variable {name}", engine.removed_environment[name])


def planned(engine: Engine, version: str, name: str) -> str:
    """What to set instead of an option of the plan, however its name is spelled; a parser whose options are not known
    may also take the beginning of a name."""
    known = option_tables.newest(engine.name, version)
    long_name = known.long_name(f"--{name}")
    for own, remedy in engine.planned.items():
        same = long_name and known.long_name(f"--{own}") == long_name
        if (
            same
            or name == own
            or (not long_name and not option_tables.load(engine.name, version) and own.startswith(name))
        ):
            return remedy
    return ""


def _examine_one(engine: Engine, version: str, name: str, value: Any, where: str) -> Iterator[Finding]:
    """An option of the command line: it has to be one, whatever its value."""
    table = option_tables.load(engine.name, version)
    known = option_tables.newest(engine.name, version)
    kind = known.options.get(known.long_name(f"--{name}"))
    if isinstance(value, bool) != (kind == "flag") and kind and (table or kind == "flag"):
        found = "takes no value" if kind == "flag" else "needs a value"
        remedy = "Write true or false" if kind == "flag" else "Give one"
        yield Finding(where, f"--{name} {found}, and {_shown(value)} was given", remedy)
        return
    items = value if isinstance(value, (list, tuple)) and kind != "json" else []
    for item in items:
        if isinstance(item, bool) or not isinstance(item, (str, int, float)):
            yield Finding(where, f"--{name} has {quoted(item)} in its list", "It takes texts and numbers")
        elif str(item).startswith("-") and not _WHOLE.fullmatch(str(item)):
            yield Finding(
                where,
                f"--{name} has {quoted(item)} in its list, which its parser would take for an option of its own",
                "Take it out; what begins with a dash cannot be given in a list",
            )
    words = render({name: value}, table) or [f"--{name}"]
    if not all(map(_writable, words)):
        yield Finding(where, f"--{name} has a character that no command can have", "Take it out")
    elif all(map(_WHOLE.fullmatch, filter(option_tables.is_option, words[1:]))):
        yield from check_words(engine, version, words, where)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else quoted(value)


def _writable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return "\0" not in text


def _examine_file(
    engine: Engine, label: str, name: str, value: Any, *, where: str, names: OptionNames
) -> Iterator[Finding]:
    """An option of the engine's file."""
    keys = [name, *(f"{name}.{key}" for key in value)] if isinstance(value, Mapping) else [name]
    for key in keys:
        if key in engine.file_planned:
            yield Finding(
                where, f"the option {key} is set by the plan", f"Set {engine.file_planned[key].format_map(names)}"
            )
    if name not in (*engine.file_options, *engine.file_planned):
        hint = option_tables.close(name, sorted(engine.file_options))
        yield Finding(
            where,
            f"{name} is no option that is known of {label}; it is written to its file as it is",
            f"{hint} If it is mistyped, the engine ends at its start".strip(),
            severity="warning",
        )


def check_words(engine: Engine, version: str, words: Sequence[str], where: str) -> Iterator[Finding]:
    """A rendered command line, without its program and positional arguments, as the parser of the version reads it."""
    if engine.opaque:
        return
    table = option_tables.load(engine.name, version)
    known = option_tables.newest(engine.name, version)
    given = Counter(option.name or option.spelling for option in option_tables.read(words, known, engine.underscores))
    for name in (name for name, times in given.items() if times > 1):
        yield Finding(where, f"the command has {name} twice, and its parser takes one of them", "Leave one out")
    if table is None:
        for found, remedy in option_tables.check_removed(words, known, engine.removed, engine.underscores):
            yield Finding(where, f"{engine.label} {found}", remedy)
        return
    label = f"{engine.label} {version}"
    for found, remedy in option_tables.check(words, table, engine.removed, label, engine.underscores):
        yield Finding(where, found, remedy)


def whole(value: Any) -> int:
    """A number of something in an option, or 0."""
    return digits(str(value)) or 0


def media(engine: Engine, launch: Launch) -> dict[str, Any]:
    """From where a request may have images fetched. An empty list would mean everywhere."""
    known = flags_and_values(engine, launch.version)
    if known and MEDIA_OPTION not in known:
        return {}
    return {MEDIA_OPTION: list(launch.media_domains) or [NOWHERE]}


def values_of(engine: Engine, version: str, option: str) -> Sequence[str]:
    """The values that a version, or the newest that is known, takes for an option; none where all are."""
    table, name = option_tables.newest(engine.name, version), f"--{option}"
    kind = table.options.get(name)
    return table.values.get(name) or (kind if isinstance(kind, list) else ())


def flags_and_values(engine: Engine, version: str) -> frozenset[str]:
    """All names of options that a version knows, without dashes; empty where there is no table."""
    table = option_tables.load(engine.name, version)
    return frozenset(name.lstrip("-") for name in (*table.options, *table.aliases)) if table else frozenset()
