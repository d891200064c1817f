# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Recipes of sparkrun and of spark-vllm-docker in our words, and what of them was left out and why.

Both are a command line with placeholders, defaults for them, and environment. They say nothing of the model's shape:
that comes from a shipped recipe of the same model, or from the model's own files.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    Finding,
    SparkError,
    errors,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import yaml_text
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    catalogue,
    checks,
    consent,
    memory_fit,
    memory_options,
    model,
    option_tables,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import METHODS, WITHIN
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.secret_names import looks_secret

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\w+)\}")
_ABBREVIATED = {"--tp": "--tp-size", "--pp": "--pp-size", "--dp": "--dp-size"}  # SGLang's; the others are in the tables
_CONTEXT = ("max-model-len", "context-length", "max_seq_len")
_USUAL_CONTEXT = 32768
_SHARE = ("gpu-memory-utilization", "mem-fraction-static")
_TENSOR = ("tensor-parallel-size", "tp-size", "tensor_parallel_size", "tp_size")
_PIPELINE = ("pipeline-parallel-size", "pp-size", "pipeline_parallel_size", "pp_size")
_POOLING = ("runner", "convert", "task")  # what else than tokens it gives; the plan sets these by the recipe's task
_RANKS = ("classify", "score", "rerank")
# The plan's own, as in every recipe: nobody misses them.
_EXPECTED = ("host", "port", "distributed-executor-backend", "model-path", "enable-metrics", "gpus_per_node")
_LABELS = ", ".join(engine.label for engine in ENGINES.values())
_STARTERS = frozenset(engine.starter for engine in ENGINES.values())  # beside `… serve`
# Keys of sparkrun's defaults where it has no command: what they are called here, where that is not their name.
_DEFAULTS = {
    "tensor_parallel": _TENSOR,
    "pipeline_parallel": _PIPELINE,
    "max_model_len": _CONTEXT,
    "gpu_memory_utilization": _SHARE,
    "max_num_seqs": tuple(engine.sequences_option for engine in ENGINES.values()),
}
# Keys of a recipe that are read, and others with what is known of them.
_READ = frozenset(
    {
        *("recipe_version", "name", "description", "model", "model_revision", "runtime", "command", "defaults", "env"),
        *("min_nodes", "max_nodes", "cluster_only", "solo_only"),
    }
)
_UNKNOWN = {
    "mods": "patches of their image; without them the engine is the released one",
    "build_args": "how their image is built",
    "executor_config": "how their container is started",
    "container": "engine_image names an image here, with a digest or a version",
    "patches": "changes of their engine; without them it is the released one",
    "draft_model": "a draft is a part of the recipe here (docs/recipes.md)",
    "metadata": "what it says of the model; the shape comes from the model's own files",
    "variants": "further settings; translate the one that you want",
}

_PRIVATE = "it looks like a secret, which others could read. Use a variable that names a file, such as HF_TOKEN_PATH"

_SHAPE = {"defaults": dict, "metadata": dict, "env": dict, "min_nodes": int, "max_nodes": int, "model": str}


@dataclass
class Translation:
    """``document``: the recipe as far as it is known."""

    document: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def text(self) -> str:
        return yaml.safe_dump(self.document, sort_keys=False, width=118)


def translate(path: str, recipe_paths: Sequence[str] = (), model_files: str = "") -> Translation:
    """The recipe in a file. Raises :class:`SparkError` where it is none of theirs."""
    theirs = yaml_text.file(Path(path).expanduser(), "Check recipes_translate")
    runtime = str(theirs.get("runtime") or "") if isinstance(theirs, Mapping) else ""
    if runtime and not _engine_of(runtime):
        remedy = f"Look for one of {_LABELS}"
        raise SparkError(f"it is for {runtime}, which is not started here", path, remedy)
    commanded = isinstance(theirs, Mapping) and isinstance(theirs.get("command"), str)
    if not commanded and not (runtime and "model" in theirs):
        remedy = "Name a recipe of sparkrun or spark-vllm-docker: it has a command, or a runtime and defaults"
        raise SparkError("it has no command to translate", path, remedy)
    yaml_text.check(theirs, _SHAPE, path)
    return _Work(theirs, recipe_paths, model_files, path).made()


@dataclass
class _Work:
    theirs: Mapping[str, Any]
    recipe_paths: Sequence[str]
    model_files: str
    path: str
    out: Translation = field(default_factory=Translation)

    def made(self) -> Translation:
        program, words = self._words()
        engine = ENGINES[_engine_of(program)]
        given, served = _options(words, engine)
        given = kinds_base.merge(engine, given, {})
        out, document = self.out, self.out.document
        document["description"] = self._description()
        document["model"] = self._model(served or str(given.get("model-path") or ""))
        if revision := _taken(given, ("revision",)) or self.theirs.get("model_revision"):
            document["revision"] = str(revision)
        document["served_model_name"] = str(
            _taken(given, ("served-model-name",)) or document["model"].rpartition("/")[2].lower()
        )
        document["engine"] = engine.name
        self._task(given)
        self._nodes(given)
        self._shape(document)
        shape = document.get("architecture", {})
        document["context"] = self._context(_taken(given, _CONTEXT), int(shape.get("max_context") or 0))
        document["concurrency"] = 1  # vLLM starts where one whole request fits; max-num-seqs is another number
        self._share(given, document["context"])
        self._draft(given, engine)
        document["options"] = self._checked(engine, given)
        document["environment"] = self._environment(engine)
        for key in ("options", "environment"):
            if not document[key]:
                del document[key]
        document["sources"] = [f"translated from {Path(self.path).name}"]
        for key, value in self.theirs.items():
            if key in _READ or not value or (key == "metadata" and set(value) <= {"description"}):
                continue
            out.left_out.append(
                f"{key} ({_shown(str(key), value)}): {_UNKNOWN.get(str(key), 'nothing here is like it')}"
            )
        if shape:
            name = re.sub(r"[^a-z0-9._-]+", "-", document["served_model_name"].rpartition("/")[2].lower())
            _recipe, problems = engine_recipe.parse(document, self.path, name)
            out.findings += problems
        return out

    def _words(self) -> tuple[str, list[str]]:
        """The engine's program and the words behind it, with the defaults put in."""
        defaults = {**(self.theirs.get("defaults") or {}), "model": self.theirs.get("model", "")}
        if not isinstance(self.theirs.get("command"), str):
            return self._without_command()
        # Version 1 doubles braces that are meant; where none is said, the one that knows no runtimes does.
        version = str(self.theirs.get("recipe_version") or "")
        theirs = version != "1" if version else "runtime" in self.theirs

        def value(match: re.Match[str]) -> str:
            if not match.group(1):
                return match.group() if theirs else match.group()[0]
            return str(defaults.get(match.group(1), match.group()))

        text = _PLACEHOLDER.sub(value, self.theirs["command"].replace("\\\n", " "))
        try:
            words = shlex.split(text, comments=True)
        except ValueError as exc:
            raise SparkError(f"its command cannot be read ({exc})", self.path, "Correct its quotes") from exc
        for number, word in enumerate(words):
            if word == "serve" and number:
                return words[number - 1], words[number + 1 :]
            if word.rpartition("/")[2] in _STARTERS and words[number + 1 : number + 2] != ["serve"]:
                return word, words[number + 1 :]
        raise SparkError(f"its command starts none of {_LABELS}", self.path, "Write the recipe by hand")

    def _without_command(self) -> tuple[str, list[str]]:
        """sparkrun makes one from `defaults`; what the engine does not know by that name is said."""
        program = str(self.theirs["runtime"])
        engine = ENGINES[_engine_of(program)]
        known = kinds_base.flags_and_values(engine, option_tables.newest(engine.name, "").version)
        words = [str(self.theirs["model"])]
        for key, value in (self.theirs.get("defaults") or {}).items():
            names = (*_DEFAULTS.get(str(key), ()), str(key).replace("_", "-"), str(key))
            name = next((name for name in names if name in known), "")
            if not name:
                self.out.left_out.append(
                    f"{key} ({_shown(str(key), value)}): {engine.label} has no option of that name"
                )
            elif value is not False and value is not None:
                text = value if isinstance(value, str) else json.dumps(value)
                words += [f"--{name}"] if value is True else [f"--{name}={text}"]
        return program, words

    def _context(self, asked: Any, longest: int) -> int:
        size = memory_options.number(asked)
        if size and size > 0:
            return int(size)
        if asked is not None and not longest:
            self.out.left_out.append(
                f"a context of {asked}: how long the model goes is not known, so it is {_USUAL_CONTEXT}. Set context"
            )
        return longest or _USUAL_CONTEXT

    def _description(self) -> str:
        metadata = self.theirs.get("metadata") or {}
        text = self.theirs.get("description") or metadata.get("description") or self.theirs.get("name") or ""
        return " ".join(str(text).split())

    def _model(self, served: str) -> str:
        """What the command serves: ``model`` is only what they download."""
        named = str(self.theirs.get("model") or "")
        if named and served and served != named:
            taken, other = (named, served) if served.startswith("/") else (served, named)
            self.out.left_out.append(f"model {other}: their recipe names two; the command serves {served}")
            return taken
        return named or served

    def _task(self, given: dict[str, Any]) -> None:
        given_kinds = [given.pop(name, "") for name in _POOLING]
        name = self.out.document["model"].lower()
        if "rerank" in name or any(kind in _RANKS for kind in given_kinds):
            self.out.document["task"] = "rank"
        elif "embed" in name or any(given_kinds):
            self.out.document["task"] = "embed"

    def _nodes(self, given: dict[str, Any]) -> None:
        """As many as their sizes take, or what they ask for; the plan splits the model itself."""
        sizes = [_taken(given, names) for names in (_TENSOR, _PIPELINE)]
        product = 1
        for size in sizes:
            product *= size if isinstance(size, int) and size > 0 else 1
        asked = int(self.theirs.get("min_nodes") or (2 if self.theirs.get("cluster_only") else 1))
        if asked > 1:
            self.out.document["min_nodes"] = max(product, asked)
        most = 1 if self.theirs.get("solo_only") else int(self.theirs.get("max_nodes") or 0)
        if most:
            self.out.document["max_nodes"] = most

    def _shape(self, document: dict[str, Any]) -> None:
        if self.model_files:
            architecture, weights = model.read(Path(self.model_files).expanduser())
            self._put(document, asdict(architecture))
            if weights:
                document["weights_gb"] = round(weights.total / 1e9, 2)
                document["replicated_gb"] = round(weights.replicated / 1e9, 2)
            return
        for recipe, _problems in catalogue.recipes(self.recipe_paths):
            if recipe and recipe.model == document["model"]:
                self._put(document, asdict(recipe.architecture))
                if recipe.task != "generate":
                    document["task"] = recipe.task
                document["weights_gb"] = recipe.weights_gb
                if recipe.active_gb:
                    document["active_gb"] = recipe.active_gb
                return
        self.out.left_out.append(
            "architecture and weights_gb: their recipe does not say, and no recipe here is for this model. Name a"
            " directory with its config.json and model.safetensors.index.json: -e recipes_model_files=DIR"
        )

    @staticmethod
    def _put(document: dict[str, Any], shape: Mapping[str, Any]) -> None:
        plain = {item.name: item.default for item in fields(model.Architecture)}
        document["architecture"] = {key: value for key, value in shape.items() if value != plain[key]}

    def _share(self, given: dict[str, Any], context: int) -> None:
        share = _taken(given, _SHARE)
        if not isinstance(share, float):
            return
        usual = memory_fit.utilization(context, 0.0)
        if share < usual:
            self.out.document["gpu_memory_utilization"] = share
        elif share > usual:
            self.out.left_out.append(
                f"a share of the memory of {share:g}: the plan takes {usual:g} with this context. Set"
                f" engine_gpu_memory_utilization: {share:g} yourself if you accept that a node may freeze"
            )

    def _draft(self, given: dict[str, Any], engine: kinds_base.Engine) -> None:
        config = given.get(engine.draft_option) if engine.draft_option else None
        if config is not None and not isinstance(config, Mapping):
            self.out.left_out.append(f"the draft ({given.pop(engine.draft_option)}): it is no JSON")
        if not isinstance(config, Mapping):
            return
        method, name = str(config.get("method")), str(config.get("model") or "")
        if method.endswith("_mtp"):  # vLLM's former names, one per model
            method = "mtp"
        if method not in METHODS:
            return
        del given[engine.draft_option]
        if name.startswith("/"):
            self.out.left_out.append(f"the draft {name} ({method}): a directory of their image")
            return
        if not name and method not in WITHIN:
            self.out.left_out.append(f"the draft ({method}): their recipe does not name its model")
            return
        rest = {key: value for key, value in config.items() if key not in {"method", "model", "num_speculative_tokens"}}
        made: dict[str, Any] = {"method": method, "tokens": int(config.get("num_speculative_tokens") or 1)}
        made |= {"model": name} if name else {}
        made |= {"layers": 1} if method == "mtp" else {}
        made |= {"options": rest} if rest else {}
        self.out.document["draft"] = made
        if name:
            self.out.left_out.append(
                f"draft.weights_gb and draft.layers: the size of {name} is not said. Write both, or the plan is refused"
            )

    def _checked(self, engine: kinds_base.Engine, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the newest known version of the engine takes."""
        version, kept = option_tables.newest(engine.name, "").version, {}
        for name, value in sorted(given.items()):
            if name in _EXPECTED:
                continue
            if name == "chat-template" and str(value).endswith(".jinja"):
                self.out.left_out.append(
                    f"--{name} {value}: a file of their image; the model brings a template of its own"
                )
                continue
            wrong = errors(kinds_base.examine(engine, version, {name: value}, {}, self.path))
            doubts = {} if wrong else consent.option_doubts(engine, version, name, value)
            # What nobody knows stays: the plan asks for it by its name.
            known = {word: does for word, does in doubts.items() if does != consent.UNKNOWN}
            if wrong:
                given_as = f"--{name}" if value is True else f"--{name} {_shown(name, value)}"
                self.out.left_out.append(f"{given_as}: {wrong[0].found}. {wrong[0].remedy}")
            elif _secret(name, value):
                self.out.left_out.append(f"--{name} {_shown(name, value)}: {_PRIVATE}")
            elif known:
                why = "; ".join(f"--{word}: it {does}" for word, does in known.items())
                self.out.left_out.append(f"{why}; if you trust that, put {name} into engine_options")
            else:
                kept[name] = value
        return kept

    def _environment(self, engine: kinds_base.Engine) -> dict[str, str]:
        version, kept = option_tables.newest(engine.name, "").version, {}
        of_plan = checks.PER_NODE | checks.OF_THE_FABRIC
        for name, value in sorted((str(name), value) for name, value in (self.theirs.get("env") or {}).items()):
            given_as = f"{name}={_shown(name, value)}"
            if name in of_plan or name.startswith("NCCL_"):
                self.out.left_out.append(f"{given_as}: how nodes reach each other is the fabric's")
                continue
            if _secret(name, value):
                self.out.left_out.append(f"{given_as}: {_PRIVATE}")
                continue
            doubt = consent.variable_doubt(engine, name, str(value))
            # A switch of their fork stays: the plan asks for it by its name.
            if doubt and not (doubt == consent.UNKNOWN and consent.counts(str(value))):
                self.out.left_out.append(
                    f"{given_as}: it {doubt}; if you trust that, put {name} into engine_environment"
                )
                continue
            found = list(kinds_base.examine(engine, version, {}, {name: str(value)}, self.path))
            if found:
                self.out.left_out.append(f"{given_as}: {found[0].found}. {found[0].remedy}")
            else:
                kept[name] = str(value)
        return kept


def _engine_of(program: str) -> str:
    """By the name of a program or of a runtime, or an empty text."""
    return next((name for name, engine in ENGINES.items() if engine.short in program), "")


def _options(words: Sequence[str], engine: kinds_base.Engine) -> tuple[dict[str, Any], str]:
    """Options by name, and the first word that is none: the model."""
    made: dict[str, Any] = {}
    model_name, table = "", option_tables.newest(engine.name, "")
    for given in option_tables.read(words, table, engine.underscores):
        # A switch takes no word; what stands behind it is of the command.
        lonely = table.options.get(given.name) == "flag" and not given.inline
        if lonely or not option_tables.is_option(given.spelling):
            model_name = model_name or next(iter(given.values if lonely else [given.spelling]), "")
        if not option_tables.is_option(given.spelling):
            continue
        whole = given.name if given.on and given.name else _ABBREVIATED.get(given.spelling, given.spelling)
        name = (whole + (f".{given.keys}" if given.keys else "")).lstrip("-")
        values = [_value(item) for item in ([] if lonely else given.values)]
        made[name] = True if not values else values[0] if len(values) == 1 else values
    return made, model_name


def _value(text: str) -> Any:
    try:
        return json_text.read(text)
    except SparkError:
        return text


def _secret(name: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_secret(str(key), item) for key, item in value.items())
    if isinstance(value, list):
        return any(_secret(name, item) for item in value)
    return looks_secret(name.replace("-", "_"), str(value))


def _shown(name: str, value: Any) -> str:
    """For screen and log, which keep no secret of theirs."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_shown(str(key), item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(_shown(name, item) for item in value)
    return "…" if _secret(name, value) else str(value)


def _taken(given: dict[str, Any], names: Sequence[str]) -> Any:
    """The value of the first of these options, which are then gone."""
    values = [given.pop(name) for name in names if name in given]
    return values[0] if values else None
