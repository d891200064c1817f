# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Recipes: what is served and how, one YAML file each, found on several paths, validated with all errors at once.

The dataclasses are the schema: ``docs/recipe.schema.json`` is made from them (:func:`schema`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.strict import quoted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import VARIABLES, OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import spelling, yaml_text
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import own_command
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.image_build import Build
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES, KINDS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import (
    ATTENTIONS,
    Architecture,
    Draft,
    Kept,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.own_command import (
    HostMount,
    Own,
    OwnBuild,
    OwnCommand,
)

SHIPPED = Path(__file__).resolve().parents[3] / "roles/engine/files/recipes"
DEVICES = ("gpu", "cpu")
RUNTIMES = ("", "venv", "container")
METHODS = ("draft_model", "eagle3", "mtp", "dflash", "dspark")
WITHIN = ("mtp", "dspark")  # may be layers of the model itself
EXAMPLES = "See an example in roles/engine/files/recipes"
UNKNOWN = Architecture(layers=0, attention_heads=0, kv_heads=0, head_dim=0)
SIZES = ("architecture", "weights_gb", "context", "concurrency")  # that a plan of a known engine is computed from
OF_COMMAND = ("command", "worker", "entrypoint", "build", "mounts", "health", "port")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"(/[\w./?=&%-]*)?", re.ASCII)
MIN_PORT, MAX_PORT = 1024, 65535
# What becomes a word of a command: no option, no address, no second line.
_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9._,-]*\])?==[0-9][A-Za-z0-9.!+_-]*( *;[ -~]*)?")
_PLAIN: dict[str, tuple[re.Pattern[str], str]] = {
    "model": (re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?|/[^\x00-\x1f\x7f]*", re.ASCII),
              "Name a model on Hugging Face (owner/name) or an absolute path"),
    "revision": (re.compile(r"([A-Za-z0-9][\w./-]*)?", re.ASCII), "Write a commit, a tag or a branch"),
    "image": (re.compile(r"([A-Za-z0-9][\w./:@-]*)?", re.ASCII), "Write name:tag or name@sha256:..."),
    "version": (re.compile(r"([0-9][\w.+-]*)?", re.ASCII), "Write major.minor.patch"),
}  # fmt: skip
_FOR_PEOPLE = ("description", "quantization", "hazards", "sources", "source", "why", "unsupported")
_OF_THE_DRAFT = {"method": "method", "model": "model", "num_speculative_tokens": "tokens", "revision": "revision"}


@dataclass(frozen=True)
class RecipeSettings:
    """What differs for one engine. Options are by whole name without dashes."""

    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    image: str = ""  # container image, pinned where it ends in @sha256:...
    version: str = ""  # of the engine inside the image, where the image's tag does not tell
    requirements: tuple[str, ...] = ()  # Python packages beside the engine, pinned with ==
    unsupported: str = ""  # why this engine cannot serve the model


@dataclass(frozen=True)
class Patch:
    """A file that is mounted over one of the image."""

    source: str  # path on the nodes
    target: str  # path in the container
    why: str


@dataclass(frozen=True)
class Expected:
    """A figure of somebody's run."""

    nodes: int
    tokens_per_second: float  # of all streams together
    source: str
    streams: int = 1
    engine: str = "vllm"
    measured_here: bool = False  # by this project
    date: str = ""
    differs: str = ""  # in what from this recipe: other drafts, another quantization or image; nothing is held to it


@dataclass(frozen=True)
class Recipe:
    """One model and the way to serve it."""

    name: str
    model: str  # name on Hugging Face, or an absolute path that exists on every node
    # These four are needed where the engine is known; of a recipe with a command of its own they may be.
    architecture: Architecture = UNKNOWN
    weights_gb: float = 0.0  # sum of the tensor files, 10^9 bytes
    context: int = 0  # tokens of one request, prompt and answer
    concurrency: int = 0  # requests of full length at the same time that must fit
    description: str = ""
    task: str = "generate"  # what clients ask for, and the probe: tokens, or vectors (embed)
    engine: str = "vllm"  # the engine that options and environment are for
    device: str = "gpu"  # cpu: vLLM's CPU build, without a memory budget
    runtime: str = ""  # venv or container; empty: as engine_runtime says
    revision: str = ""
    quantization: str = ""  # in words; engines read it from the model
    served_model_name: str = ""
    gated: bool = False  # a licence has to be accepted on Hugging Face, and HF_TOKEN_PATH named
    min_nodes: int = 1
    max_nodes: int = 64
    tensor_parallel_size: int = 0  # 0: computed
    pipeline_parallel_size: int = 0
    data_parallel_size: int = 0
    expert_parallel: bool | None = None  # absent: only where it is the way to split the experts
    gpu_memory_utilization: float = 0.0  # 0: computed
    overhead_gib: float = 0.0  # activations, CUDA graphs, NCCL and torch; 0: computed
    replicated_gb: float = 0.0  # part of the weights that every tensor parallel rank holds whole, 10^9 bytes
    download_gb: float = 0.0  # where the files are larger than what is loaded; 0: weights_gb
    active_gb: float = 0.0  # weights that one token reads, 10^9 bytes, without the input embedding: for the speed
    lookup_gb: float = 0.0  # part of the weights of which a token reads single rows (tables), 10^9 bytes
    active_b: float = 0.0  # 10^9 parameters that one token uses: for the speed of prompts
    draft: Draft | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    version: str = ""
    requirements: tuple[str, ...] = ()
    patches: tuple[Patch, ...] = ()
    engines: Mapping[str, RecipeSettings] = field(default_factory=dict)  # for engines other than `engine`
    hazards: tuple[str, ...] = ()
    expected: tuple[Expected, ...] = ()
    sources: tuple[str, ...] = ()
    # Where the engine is `command`: run as it is written, with the places @rank@ @nodes@ @head@ @address@ @interface@
    # @host@ @port@ @rendezvous_port@ @model@ @served@ filled in words, script, environment and mounts.
    command: OwnCommand | None = None  # of every rank
    worker: OwnCommand | None = None  # of all ranks but the head's, where it is another
    entrypoint: bool = False  # the words are given to the image's own entrypoint
    build: OwnBuild | None = None
    mounts: tuple[HostMount, ...] = ()
    health: str = "/health"  # path that answers once it is ready; empty: its port is enough
    port: int = 0  # of the API, where the command does not take @port@

    @property
    def for_nodes(self) -> str:
        if self.min_nodes == self.max_nodes:
            return str(self.min_nodes)
        return f"{self.min_nodes} {'or more' if self.max_nodes == Recipe.max_nodes else f'to {self.max_nodes}'}"

    @property
    def files_gb(self) -> float:
        """Of the model alone, as they are downloaded."""
        return self.download_gb or self.weights_gb

    @property
    def own(self) -> Own | None:
        """What its ranks run, where its engine is not known."""
        if self.command is None:
            return None
        return Own(self.command, self.worker or self.command, self.entrypoint, self.served_model_name)

    @property
    def own_build(self) -> Build:
        """The image that it has built; no build where it has none."""
        made = self.build or OwnBuild()
        return Build(made.dockerfile, made.arguments, made.mods, self.image)

    def settings(self, engine: str) -> RecipeSettings | None:
        """What the recipe says for an engine; nothing when it says nothing."""
        if engine == self.engine:
            return RecipeSettings(self.options, self.environment, self.image, self.version, self.requirements)
        return self.engines.get(engine)

    def not_pinned(self, image: str = "") -> list[str]:
        """What may change under the same name."""
        loose = [] if self.revision or self.model.startswith("/") else [f"revision of {self.model}"]
        if self.draft and self.draft.model and not self.draft.revision and not self.draft.model.startswith("/"):
            loose.append(f"revision of {self.draft.model}")
        return loose + ([f"digest of {image}"] if image and "@sha256:" not in image else [])


_OF_OTHERS = frozenset({"recipe_version", "container", "services"})  # keys of theirs, and never of ours
# Parts of a recipe that are mappings of their own, by the type that the field has.
_PARTS: dict[str, type[Any]] = {
    "Architecture": Architecture,
    "Draft | None": Draft,
    "OwnCommand | None": OwnCommand,
    "OwnBuild | None": OwnBuild,
}
_LISTS: dict[str, type[Any]] = {
    "tuple[Patch, ...]": Patch,
    "tuple[Expected, ...]": Expected,
    "tuple[HostMount, ...]": HostMount,
    "tuple[Kept, ...]": Kept,
}
_MAPPINGS: dict[str, type[Any]] = {"Mapping[str, RecipeSettings]": RecipeSettings}


def find(name: str, paths: Sequence[str], names: OptionNames = VARIABLES) -> tuple[Recipe | None, list[Finding]]:
    """The recipe ``name`` from the first path that has it, the user's before the shipped ones, or what is wrong.

    ``name`` may also be the path of a file (it ends in ``.yml`` or ``.yaml``).
    """
    if name.endswith((".yml", ".yaml")):
        return read(Path(name).expanduser(), names)
    directories = [*(Path(path).expanduser() for path in paths), SHIPPED]
    missing = [str(directory) for directory in directories if not directory.is_dir()]
    if missing:  # a recipe of the same name further on may be another one
        return None, [
            Finding("engine_recipe_paths", f"there is no directory {path}", "Correct it, or leave it out")
            for path in missing
        ]
    for directory in directories:
        for ending in (".yml", ".yaml"):
            if (path := directory / f"{name}{ending}").is_file():
                if directory != SHIPPED:
                    return read(path, names)
                recipe, findings = _shipped(path, path.stat().st_mtime_ns, names)
                return recipe, list(findings)
    known = sorted({path.stem for directory in directories for path in directory.glob("*.y*ml")})
    searched = f" in {', '.join(map(str, directories[:-1]))}, and none is shipped" if directories[1:] else ""
    listed = ", ".join(known)
    return None, [
        Finding(
            names["recipe"],
            f"there is no recipe {name!r}{searched}",
            f"{_hint(name, known) or f'Known recipes: {listed}. '}playbooks/recipes.yml says which fit your machines",
        )
    ]


@functools.cache
def _shipped(path: Path, _changed: int, names: OptionNames) -> tuple[Recipe | None, list[Finding]]:
    """A list of all is made of them more than once in a run."""
    return read(path, names)


def read(path: Path, names: OptionNames = VARIABLES) -> tuple[Recipe | None, list[Finding]]:
    try:
        document = yaml_text.file(path, f"Check {names['recipe']}")
    except SparkError as exc:
        return None, [Finding(str(path), exc.found, exc.remedy)]
    recipe, findings = parse(document, str(path), path.stem)
    return recipe and _beside(recipe, path.parent), findings


def _beside(recipe: Recipe, directory: Path) -> Recipe:
    """Relative paths of its build are beside its file; a Dockerfile without a slash is one of this collection's."""
    if recipe.build is None:
        return recipe

    def whole(path: str) -> str:
        return path if path.startswith(("/", "~")) else str((directory / path).resolve())

    dockerfile = whole(recipe.build.dockerfile) if "/" in recipe.build.dockerfile else recipe.build.dockerfile
    return replace(
        recipe, build=replace(recipe.build, dockerfile=dockerfile, mods=tuple(map(whole, recipe.build.mods)))
    )


def parse(document: Any, where: str, name: str = "") -> tuple[Recipe | None, list[Finding]]:
    """Validate a document. Either a recipe and no findings, or ``None`` and every finding."""
    if not isinstance(document, Mapping):
        return None, [Finding(where, f"the recipe is {_kind(document)}, not a mapping", "Write 'key: value' lines")]
    if not _OF_OTHERS.isdisjoint(document) or isinstance(document.get("command"), str):
        found = "this is a file of another tool (sparkrun, spark-vllm-docker, Compose), not a recipe of this one"
        make = f"ansible-playbook playbooks/recipes.yml -e recipes_translate={where} -e recipes_save=FILE"
        return None, [Finding(where, found, f"Make one of it: {make}")]
    document = {"name": name, **document} if name else document
    findings = list(_check(Recipe, document, where))
    if findings:
        return None, findings
    recipe: Recipe = _build(Recipe, document)
    findings = list(_judge(recipe, where))
    return (None, findings) if findings else (recipe, [])


def _build(cls: type[Any], document: Mapping[str, Any]) -> Any:
    values = {}
    for item in fields(cls):
        if item.name not in document:
            continue
        value, kind = document[item.name], str(item.type)
        if kind in _PARTS:
            value = None if value is None else _build(_PARTS[kind], value)
        elif kind in _LISTS:
            value = tuple(_build(_LISTS[kind], entry) for entry in value)
        elif kind in _MAPPINGS:
            value = {key: _build(_MAPPINGS[kind], entry) for key, entry in value.items()}
        elif kind == "Mapping[str, str]":
            value = {key: str(entry) for key, entry in (value or {}).items()}
        elif kind.startswith("tuple"):
            value = tuple(value or ())
        elif kind.startswith("Mapping"):
            value = dict(value or {})
        if item.name in _FOR_PEOPLE:
            value = strict.words(value) if isinstance(value, str) else tuple(map(strict.words, value))
        values[item.name] = value
    return cls(**values)


def _hint(word: str, known: Sequence[str]) -> str:
    hint = spelling.did_you_mean(word, known, shown=repr)
    return f"{hint} " if hint else ""


def _check(cls: type[Any], document: Any, where: str, prefix: str = "") -> Iterator[Finding]:
    """Unknown and missing keys and wrong types, also inside."""
    if not isinstance(document, Mapping):
        yield Finding(where, f"{prefix.rstrip('.')} is not a mapping", EXAMPLES)
        return
    known = {item.name: item for item in fields(cls)}
    for key in document:
        if key not in known:
            if cls is Recipe and key in own_command.NOT_GIVEN:
                yield Finding(where, f"{key} is given to no rank: {own_command.NOT_GIVEN[key]}", "Take it out")
                continue
            hint = _hint(str(key), list(known))
            yield Finding(where, f"unknown key {prefix}{key}", f"{hint}Known keys: {', '.join(known)}")
    opaque = cls is not Recipe or _opaque(document.get("engine"))
    for name, item in known.items():
        if name not in document:
            if (item.default is MISSING and item.default_factory is MISSING) or (not opaque and name in SIZES):
                yield Finding(where, f"{prefix}{name} is missing", "Add it; docs/recipes.md explains each key")
            continue
        value, kind = document[name], str(item.type)
        if kind in _PARTS:
            if value is not None or "None" not in kind:
                yield from _check(_PARTS[kind], value, where, f"{prefix}{name}.")
        elif kind in _LISTS and isinstance(value, list):
            for number, entry in enumerate(value):
                yield from _check(_LISTS[kind], entry, where, f"{prefix}{name}[{number}].")
        elif kind in _MAPPINGS and isinstance(value, Mapping):
            for key, entry in value.items():
                yield from _check(_MAPPINGS[kind], entry, where, f"{prefix}{name}.{key}.")
        else:
            complaint = _complaint(kind, value)
            if complaint:
                yield Finding(where, f"{prefix}{name} is {_kind(value)}", f"It has to be {complaint}")


def _opaque(engine: Any) -> bool:
    return isinstance(engine, str) and engine in KINDS and KINDS[engine].opaque


def _complaint(kind: str, value: Any) -> str:
    """What a value of this kind has to be, or an empty text when it is that."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    good = {
        "str": isinstance(value, str),
        "int": isinstance(value, int) and number,
        "float": number,
        "bool": isinstance(value, bool),
        "bool | None": value is None or isinstance(value, bool),
        "tuple[str, ...]": isinstance(value, list) and all(isinstance(item, str) for item in value),
        "Mapping[str, Any]": isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
        "Mapping[str, str]": isinstance(value, Mapping)
        and all(isinstance(key, str) and isinstance(item, (str, int, float)) for key, item in value.items()),
    }.get(kind, False)
    words = {
        "str": "text",
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "bool | None": "true or false",
        "tuple[str, ...]": "a list of texts",
    }
    return "" if good else words.get(kind, "a list of mappings" if kind in _LISTS else "a mapping of names to values")


def _judge(recipe: Recipe, where: str) -> Iterator[Finding]:
    sizes = recipe.architecture
    if not _NAME.fullmatch(recipe.name):
        yield Finding(
            where, f"the name {recipe.name!r} is no plain word", "Use small letters, digits, '.', '_' and '-'"
        )
    words: list[tuple[str, str, Iterable[str]]] = [
        ("engine", recipe.engine, KINDS),
        ("task", recipe.task, api_paths.PROBED),
        ("device", recipe.device, DEVICES),
        ("runtime", recipe.runtime, RUNTIMES),
        ("architecture.attention", sizes.attention, ATTENTIONS),
        *((f"engines.{name}", name, ENGINES) for name in recipe.engines),
        *((f"expected[{number}].engine", item.engine, KINDS) for number, item in enumerate(recipe.expected)),
    ]
    if recipe.draft:
        words.append(("draft.method", recipe.draft.method, METHODS))
        if recipe.draft.method not in WITHIN and not recipe.draft.model:
            yield Finding(where, f"draft.method {recipe.draft.method} needs draft.model", "Name the draft model")
        if recipe.task != "generate":
            yield Finding(where, f"draft is for tokens, and its task is {recipe.task}", "Leave draft out")
    for name, value, allowed in words:
        if value not in allowed:
            yield Finding(where, f"{name} is {value!r}", f"Choose one of: {', '.join(filter(None, allowed))}")
    yield from _judge_command(recipe, where)
    if sizes != UNKNOWN or not _opaque(recipe.engine):
        yield from _judge_sizes(recipe, where)
    yield from _judge_numbers(recipe, where)
    yield from _judge_words(recipe, where)
    for name in recipe.environment:
        if not _VARIABLE.fullmatch(name):
            yield Finding(where, f"{name!r} in environment is no name of a variable", "Correct it")
    for requirement in (*recipe.requirements, *(one for item in recipe.engines.values() for one in item.requirements)):
        if not _PINNED.fullmatch(requirement):
            yield Finding(where, f"the requirement {quoted(requirement)} is not pinned", "Write name==version")


def _judge_command(recipe: Recipe, where: str) -> Iterator[Finding]:
    """Of an engine that is known: none of its keys."""
    if not _opaque(recipe.engine):
        usual = {item.name: item.default for item in fields(Recipe)}
        for key in OF_COMMAND:
            if getattr(recipe, key) != usual[key]:
                yield Finding(
                    where, f"{key} is set, and the engine is {recipe.engine}", "Leave it out: it is for engine: command"
                )
        return
    if recipe.command is None:
        yield Finding(
            where, "command is missing", "Write words or a script (docs/recipes.md, Your own image and command)"
        )
    for key, command in (("command", recipe.command), ("worker", recipe.worker)):
        if command:
            yield from own_command.judge(where, command, key, recipe.entrypoint)
        if command and command.script and recipe.entrypoint:
            yield Finding(where, f"entrypoint is for words, and {key} is a script", "Set entrypoint: false")
    if not recipe.image and not (recipe.build and recipe.build.dockerfile):
        yield Finding(where, "there is neither an image nor a dockerfile to build one", "Name an image, best by digest")
    if recipe.build and not (recipe.build.dockerfile or recipe.build.mods):
        yield Finding(where, "build has neither dockerfile nor mods", "Name one, or leave it out")
    for key in ("options", "requirements", "engines"):
        if getattr(recipe, key):
            yield Finding(
                where, f"{key} is set, and nobody would read it", "Write it into the words or the script of command"
            )
    for name, value in recipe.environment.items():
        yield from own_command.judge_places(where, value, f"environment.{name}")
    yield from own_command.judge_mounts(where, recipe.mounts)
    if not _PATH.fullmatch(recipe.health):
        yield Finding(
            where, f"health is {quoted(recipe.health)}", "Write a path such as /health, or '' where there is none"
        )
    if recipe.port and not MIN_PORT <= recipe.port <= MAX_PORT:
        yield Finding(where, f"port is {recipe.port}", f"Use {MIN_PORT} to {MAX_PORT}, or let the command take @port@")


def _judge_sizes(recipe: Recipe, where: str) -> Iterator[Finding]:
    sizes = recipe.architecture
    positive: list[tuple[str, float]] = [
        ("weights_gb", recipe.weights_gb),
        ("context", recipe.context),
        ("concurrency", recipe.concurrency),
        ("min_nodes", recipe.min_nodes),
        ("architecture.layers", sizes.layers),
        ("architecture.attention_heads", sizes.attention_heads),
        ("architecture.kv_heads", sizes.kv_heads),
        ("architecture.head_dim", sizes.head_dim),
        ("architecture.shard_multiple", sizes.shard_multiple),
    ]
    if sizes.attention == "listed" and not sizes.caches:
        yield Finding(where, "architecture.caches is empty", "List what the layers keep")
    for prefix, kept in (("architecture", sizes.caches), ("draft", recipe.draft.caches if recipe.draft else ())):
        for count, one in enumerate(kept):
            sized = ("layers", "values", "heads", "tokens", "align")
            positive += [(f"{prefix}.caches[{count}].{name}", getattr(one, name)) for name in sized]
    if sizes.attention == "mla":
        positive.append(("architecture.kv_lora_rank", sizes.kv_lora_rank))
    if sizes.full_attention_layers:
        positive += [
            (f"architecture.{name}", getattr(sizes, name))
            for name in ("linear_key_heads", "linear_value_heads", "linear_key_head_dim", "linear_value_head_dim")
        ]
    for name, number in positive:
        if number <= 0:
            yield Finding(where, f"{name} is {number}", "It has to be larger than 0")


def _judge_words(recipe: Recipe, where: str) -> Iterator[Finding]:
    parts: list[tuple[str, Any]] = [
        ("", recipe),
        *((f"engines.{name}.", recipe_settings) for name, recipe_settings in recipe.engines.items()),
    ]
    if recipe.draft:
        parts.append(("draft.", recipe.draft))
        for key, instead in _OF_THE_DRAFT.items():
            if key in recipe.draft.options:
                yield Finding(where, f"draft.options.{key} is what draft.{instead} says", f"Set draft.{instead}")
    for prefix, part in parts:
        for name, (pattern, remedy) in _PLAIN.items():
            value = getattr(part, name, "")
            if not pattern.fullmatch(value) and (value or part is recipe):
                yield Finding(where, f"{prefix}{name} is {quoted(value)}", remedy)


def _judge_numbers(recipe: Recipe, where: str) -> Iterator[Finding]:
    sizes = recipe.architecture
    if recipe.max_nodes < recipe.min_nodes:
        yield Finding(
            where, f"max_nodes {recipe.max_nodes} is below min_nodes {recipe.min_nodes}", "Correct one of them"
        )
    if not 0 <= recipe.gpu_memory_utilization <= 1:
        yield Finding(where, f"gpu_memory_utilization is {recipe.gpu_memory_utilization}", "It is a share from 0 to 1")
    for name in ("replicated_gb", "lookup_gb"):
        if getattr(recipe, name) > recipe.weights_gb:
            yield Finding(where, f"{name} is above weights_gb", "It is a part of it")
    if sizes.kv_heads > 0 and sizes.attention_heads % sizes.kv_heads:
        yield Finding(
            where,
            f"{sizes.attention_heads} attention heads are no multiple of {sizes.kv_heads} KV heads",
            "Copy both from the model's config.json",
        )
    if sizes.full_attention_layers + sizes.plain_layers + sizes.sliding_layers > sizes.layers:
        yield Finding(where, f"there are more layers of a kind than {sizes.layers} layers", "Correct the architecture")
    if sizes.max_context and recipe.context > sizes.max_context:
        yield Finding(where, f"context {recipe.context} is above the model's {sizes.max_context}", "Lower it")


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    return f"{type(value).__name__} {quoted(value)}"


def schema() -> dict[str, Any]:
    """The JSON schema of a recipe file, for editors; :func:`parse` checks more. Written to docs/recipe.schema.json."""
    made = _schema_of(Recipe)
    made["required"].remove("name")  # comes from the file's name
    made["properties"]["engine"]["enum"] = list(KINDS)
    made["properties"]["task"]["enum"] = list(api_paths.PROBED)
    made["properties"]["device"]["enum"] = list(DEVICES)
    made["properties"]["runtime"]["enum"] = list(RUNTIMES)
    made["properties"]["engines"]["propertyNames"] = {"enum": list(ENGINES)}
    own = {"enum": [name for name, engine in KINDS.items() if engine.opaque]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Recipe of sparkmatrix.cluster",
        **made,
        "if": {"properties": {"engine": own}, "required": ["engine"]},
        "then": {"required": ["command"]},
        "else": {"required": list(SIZES)},
    }


def _schema_of(cls: type[Any]) -> dict[str, Any]:
    simple: dict[str, dict[str, Any]] = {
        "str": {"type": "string"},
        "int": {"type": "integer"},
        "float": {"type": "number"},
        "bool": {"type": "boolean"},
        "bool | None": {"type": ["boolean", "null"]},
        "tuple[str, ...]": {"type": "array", "items": {"type": "string"}},
        "Mapping[str, Any]": {"type": "object"},
        "Mapping[str, str]": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
    }
    properties: dict[str, Any] = {}
    for item in fields(cls):
        kind = str(item.type)
        if kind in _PARTS:
            properties[item.name] = _schema_of(_PARTS[kind])
        elif kind in _LISTS:
            properties[item.name] = {"type": "array", "items": _schema_of(_LISTS[kind])}
        elif kind in _MAPPINGS:
            properties[item.name] = {"type": "object", "additionalProperties": _schema_of(_MAPPINGS[kind])}
        else:
            properties[item.name] = dict(simple[kind])
    required = [item.name for item in fields(cls) if item.default is MISSING and item.default_factory is MISSING]
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required}
