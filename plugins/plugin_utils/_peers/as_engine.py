# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A recipe of another tool in the words of our own engine kinds, which know its options, and what of it was left out.

It says nothing of the model's shape: that comes from a shipped recipe of the same model, or from the model's own files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    Finding,
    SparkError,
    errors,
)
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
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import placement
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.facts import PeerRecipe, secret, shown

_ABBREVIATED = {"--tp": "--tp-size", "--pp": "--pp-size", "--dp": "--dp-size"}  # SGLang's; the others are in the tables
_CONTEXT = ("max-model-len", "context-length", "max_seq_len")
_USUAL_CONTEXT = 32768
_SHARE = ("gpu-memory-utilization", "mem-fraction-static")
_TENSOR = ("tensor-parallel-size", "tp-size", "tensor_parallel_size", "tp_size")
_PIPELINE = ("pipeline-parallel-size", "pp-size", "pipeline_parallel_size", "pp_size")
_POOLING = ("runner", "convert", "task")  # what else than tokens it gives; the plan sets these by the recipe's task
_RANKS = ("classify", "score", "rerank")
# The plan's own, as in every recipe: nobody misses them.
_EXPECTED = frozenset(
    {
        *("host", "port", "distributed-executor-backend", "model-path", "enable-metrics", "gpus_per_node"),
        *("nnodes", "node-rank", "master-addr", "master-port", "dist-init-addr", "headless"),
    }
)
MAX_DRAFTED, MAX_CONTEXT = 1024, 10**9
_AROUND = {
    "executor_config": "how their container is started",
    "pre_exec": "what they change in the container before it serves; without it the engine is the released one",
    "metadata": "what it says of the model; the shape comes from the model's own files",
}
_PRIVATE = "it looks like a secret, which others could read. Use a variable that names a file, such as HF_TOKEN_PATH"


@dataclass
class Translation:
    """``document``: the recipe as far as it is known."""

    document: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def text(self) -> str:
        return yaml.safe_dump(self.document, sort_keys=False, width=118)


def made(peer: PeerRecipe, recipe_paths: Sequence[str] = (), model_files: str = "") -> Translation:
    """Raises :class:`SparkError` where none of our own kinds is what the command starts."""
    known, words = placement.start(peer)
    if known is None or known.name not in ENGINES:
        labels = ", ".join(engine.label for engine in ENGINES.values() if engine.distributions)
        raise SparkError(f"its command starts none of {labels}", peer.where, "Take it as it is")
    return _Work(peer, ENGINES[known.name], words, recipe_paths, model_files).made()


@dataclass
class _Work:
    peer: PeerRecipe
    engine: kinds_base.Engine
    words: Sequence[str]
    recipe_paths: Sequence[str]
    model_files: str
    out: Translation = field(default_factory=Translation)

    def made(self) -> Translation:
        peer, engine = self.peer, self.engine
        given, served = _options(self.words, engine)
        given = kinds_base.merge(engine, given, {})
        out, document = self.out, self.out.document
        if peer.description:
            document["description"] = peer.description
        document["model"] = self._model(served or str(_taken(given, ("model", "model-path")) or ""))
        if revision := _taken(given, ("revision",)) or peer.revision:
            document["revision"] = str(revision)
        names = [str(name) for name in _listed(_taken(given, ("served-model-name",)))] or list(peer.served)
        document["served_model_name"] = names[0] if names else document["model"]
        if names[1:]:
            out.left_out.append(f"the name(s) {', '.join(names[1:])}: clients get one name here, {names[0]}")
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
        document["sources"] = [f"translated from {Path(peer.where).name}"]
        out.left_out += self._around()
        if shape:
            name = re.sub(r"[^a-z0-9._-]+", "-", document["served_model_name"].rpartition("/")[2].lower())
            _recipe, problems = engine_recipe.parse(document, peer.where, name)
            out.findings += problems
        return out

    def _around(self) -> list[str]:
        """What stands around their command."""
        peer, said = self.peer, []
        if peer.image:
            said.append(f"container ({peer.image}): engine_image names an image here, with a digest or a version")
        if peer.mods:
            said.append(
                f"mods ({', '.join(peer.mods)}): patches of their image; without them the engine is the released one"
            )
        if peer.dockerfile:
            said.append(f"build ({peer.dockerfile}): engine_image_build makes an image of it")
        said += [
            f"mount {one.source}:{one.target}: a file of theirs in the container; a recipe's key patches mounts one"
            for one in peer.mounts
        ]
        if peer.script:
            said.append("the shell around its command: only the engine's own command is read")
        said += [f"{key} ({shown(key, value)}): {_AROUND[key]}" for key, value in peer.keys.items() if value]
        said += [
            str(loss)
            for loss in peer.losses
            if not loss.what.startswith(("container (", "mods (", "model ", "executor_config.", "pre_exec ("))
        ]
        return said

    def _context(self, asked: Any, longest: int) -> int:
        size = memory_options.number(asked)
        if size and 0 < size <= MAX_CONTEXT:
            return int(size)
        if asked is not None and not longest:
            self.out.left_out.append(
                f"a context of {asked}: how long the model goes is not known, so it is {_USUAL_CONTEXT}. Set context"
            )
        return longest or _USUAL_CONTEXT

    def _model(self, served: str) -> str:
        """What the command serves: ``model`` is only what they download."""
        named = self.peer.model
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
        for names in (_TENSOR, _PIPELINE):
            _taken(given, names)
        if self.peer.min_nodes > 1:
            self.out.document["min_nodes"] = self.peer.min_nodes
        if self.peer.max_nodes:
            self.out.document["max_nodes"] = max(self.peer.max_nodes, self.peer.min_nodes)

    def _shape(self, document: dict[str, Any]) -> None:
        if self.model_files:
            architecture, weights = model.read(Path(self.model_files).expanduser())
            document["architecture"] = model.document(architecture)
            if weights:
                document["weights_gb"] = round(weights.total / 1e9, 2)
                document["replicated_gb"] = round(weights.replicated / 1e9, 2)
            return
        for recipe, _problems in catalogue.recipes(self.recipe_paths):
            if recipe and recipe.model == document["model"]:
                document["architecture"] = model.document(recipe.architecture)
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
        tokens = memory_options.number(config.get("num_speculative_tokens", 1))
        if tokens is None or not 1 <= tokens <= MAX_DRAFTED:
            said = shown("draft", config.get("num_speculative_tokens"))
            self.out.left_out.append(f"the draft ({method}): it has no number of tokens ({said})")
            return
        rest = {key: value for key, value in config.items() if key not in {"method", "model", "num_speculative_tokens"}}
        made: dict[str, Any] = {"method": method, "tokens": int(tokens)}
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
            wrong = errors(kinds_base.examine(engine, version, {name: value}, {}, self.peer.where))
            doubts = {} if wrong else consent.option_doubts(engine, version, name, value)
            # What nobody knows stays: the plan asks for it by its name.
            known = {word: does for word, does in doubts.items() if does != consent.UNKNOWN}
            if wrong:
                given_as = f"--{name}" if value is True else f"--{name} {shown(name, value)}"
                self.out.left_out.append(f"{given_as}: {wrong[0].found}. {wrong[0].remedy}")
            elif secret(name, value):
                self.out.left_out.append(f"--{name} {shown(name, value)}: {_PRIVATE}")
            elif known:
                why = "; ".join(f"--{word}: it {does}" for word, does in known.items())
                self.out.left_out.append(f"{why}; if you trust that, put {name} into engine_options")
            else:
                kept[name] = value
        return kept

    def _environment(self, engine: kinds_base.Engine) -> dict[str, str]:
        version, kept = option_tables.newest(engine.name, "").version, {}
        of_plan = checks.PER_NODE | checks.OF_THE_FABRIC
        for name, value in sorted((str(name), value) for name, value in self.peer.environment.items()):
            given_as = f"{name}={shown(name, value)}"
            if name in of_plan or name.startswith("NCCL_") or "@" in value:
                self.out.left_out.append(f"{given_as}: how nodes reach each other is the fabric's")
                continue
            if secret(name, value):
                self.out.left_out.append(f"{given_as}: {_PRIVATE}")
                continue
            doubt = consent.variable_doubt(engine, name, str(value))
            # A switch of their fork stays: the plan asks for it by its name.
            if doubt and not (doubt == consent.UNKNOWN and consent.counts(str(value))):
                self.out.left_out.append(
                    f"{given_as}: it {doubt}; if you trust that, put {name} into engine_environment"
                )
                continue
            found = list(kinds_base.examine(engine, version, {}, {name: str(value)}, self.peer.where))
            if found:
                self.out.left_out.append(f"{given_as}: {found[0].found}. {found[0].remedy}")
            else:
                kept[name] = str(value)
        return kept


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


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _taken(given: dict[str, Any], names: Sequence[str]) -> Any:
    """The value of the first of these options, which are then gone."""
    values = [given.pop(name) for name in names if name in given]
    return values[0] if values else None
