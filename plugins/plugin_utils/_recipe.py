# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Recipes: what is served and how, one YAML file each, found on several paths, validated with all errors at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import Finding, SparkError

SHIPPED = Path(__file__).resolve().parents[2] / "roles/engine/files/recipes"
ENGINES = ("vllm",)
RUNTIMES = ("gpu", "cpu")
_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]*$")
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")


@dataclass(frozen=True)
class Architecture:
    """Sizes from the model's ``config.json``; the names differ between families, these follow the Llama family."""

    layers: int  # num_hidden_layers
    attention_heads: int  # num_attention_heads
    kv_heads: int  # num_key_value_heads
    head_dim: int  # head_dim, or hidden_size / num_attention_heads
    hidden_size: int = 0
    vocab_size: int = 0
    experts: int = 0  # num_experts; 0 for a dense model
    moe_intermediate_size: int = 0
    shard_multiple: int = 1  # a shard of moe_intermediate_size must be a multiple: the quantization's group or block


@dataclass(frozen=True)
class Recipe:
    """One model and the way to serve it. ``options`` are options of ``vllm serve`` by whole name, without dashes."""

    name: str
    model: str  # name on Hugging Face, or an absolute path that exists on every node
    architecture: Architecture
    weights_gb: float  # sum of the tensor files, 10^9 bytes
    context: int  # tokens of one request, prompt and answer
    concurrency: int  # requests of full length at the same time that must fit
    description: str = ""
    engine: str = "vllm"
    runtime: str = "gpu"
    revision: str = ""
    served_model_name: str = ""
    min_nodes: int = 1
    max_nodes: int = 64
    tensor_parallel_size: int = 0  # 0: computed
    pipeline_parallel_size: int = 0
    gpu_memory_utilization: float = 0.0  # 0: computed
    overhead_gib: float = 8.0
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    hazards: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()


def find(name: str, paths: Sequence[str]) -> tuple[Recipe | None, list[Finding]]:
    """The recipe ``name`` from the first path that has it, the user's before the shipped ones, or what is wrong.

    ``name`` may also be the path of a file (it ends in ``.yml`` or ``.yaml``).
    """
    if name.endswith((".yml", ".yaml")):
        return read(Path(name).expanduser())
    directories = [*(Path(path).expanduser() for path in paths), SHIPPED]
    for directory in directories:
        for ending in (".yml", ".yaml"):
            if (directory / f"{name}{ending}").is_file():
                return read(directory / f"{name}{ending}")
    known = sorted({path.stem for directory in directories for path in directory.glob("*.y*ml")})
    searched = ", ".join(map(str, directories))
    return None, [
        Finding(
            "engine_recipe",
            f"there is no recipe {name!r} in {searched}",
            f"{did_you_mean(name, known)}Known recipes: {', '.join(known) or 'none'}",
        )
    ]


def read(path: Path) -> tuple[Recipe | None, list[Finding]]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        return None, [Finding(str(path), f"the recipe cannot be read ({exc.strerror})", "Check engine_recipe")]
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as exc:
        return None, [Finding(str(path), f"the recipe is no valid YAML ({' '.join(str(exc).split())})", "Correct it")]
    return parse(document, str(path), path.stem)


def parse(document: Any, where: str, name: str = "") -> tuple[Recipe | None, list[Finding]]:
    """Validate a document. Either a recipe and no findings, or ``None`` and every finding."""
    if not isinstance(document, Mapping):
        return None, [Finding(where, f"the recipe is {_kind(document)}, not a mapping", "Write 'key: value' lines")]
    findings = list(_check(Recipe, {"name": name, **document} if name else document, where))
    architecture = document.get("architecture")
    if isinstance(architecture, Mapping):
        findings += _check(Architecture, architecture, where, prefix="architecture.")
    elif "architecture" in document:
        findings.append(Finding(where, "architecture is not a mapping", "See an example in roles/engine/files/recipes"))
    if findings:
        return None, findings
    values = {"name": name, **document, "architecture": Architecture(**document["architecture"])}
    values["environment"] = {key: str(value) for key, value in (document.get("environment") or {}).items()}
    values["options"] = dict(document.get("options") or {})
    for key in ("hazards", "sources"):
        values[key] = tuple(document.get(key) or ())
    recipe = Recipe(**values)
    findings = list(_judge(recipe, where))
    return (None, findings) if findings else (recipe, [])


def did_you_mean(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}? " if close else ""


def _check(cls: type[Any], document: Mapping[Any, Any], where: str, prefix: str = "") -> Iterator[Finding]:
    known = {item.name: item for item in fields(cls)}
    for key in document:
        if key not in known:
            hint = did_you_mean(str(key), list(known))
            yield Finding(where, f"unknown key {prefix}{key}", f"{hint}Known keys: {', '.join(known)}")
    for name, item in known.items():
        if name not in document:
            required = item.default is MISSING and item.default_factory is MISSING
            if required:
                yield Finding(where, f"{prefix}{name} is missing", "Add it; docs/engine.md explains each key")
            continue
        complaint = "" if name == "architecture" else _complaint(str(item.type), document[name])
        if complaint:
            yield Finding(where, f"{prefix}{name} is {_kind(document[name])}", f"It has to be {complaint}")


def _complaint(kind: str, value: Any) -> str:
    """What a value of this kind has to be, or an empty text when it is that."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    good = {
        "str": isinstance(value, str),
        "int": isinstance(value, int) and number,
        "float": number,
        "tuple[str, ...]": isinstance(value, list) and all(isinstance(item, str) for item in value),
        "Mapping[str, Any]": isinstance(value, Mapping) and all(isinstance(key, str) for key in value),
        "Mapping[str, str]": isinstance(value, Mapping)
        and all(isinstance(key, str) and isinstance(item, (str, int, float)) for key, item in value.items()),
    }[kind]
    words = {"str": "text", "int": "a whole number", "float": "a number", "tuple[str, ...]": "a list of texts"}
    return "" if good else words.get(kind, "a mapping of names to values")


def _judge(recipe: Recipe, where: str) -> Iterator[Finding]:
    sizes = recipe.architecture
    if not _NAME.match(recipe.name):
        yield Finding(
            where, f"the name {recipe.name!r} is no plain word", "Use small letters, digits, '.', '_' and '-'"
        )
    for name, value, allowed in (("engine", recipe.engine, ENGINES), ("runtime", recipe.runtime, RUNTIMES)):
        if value not in allowed:
            yield Finding(where, f"{name} is {value!r}", f"Choose one of: {', '.join(allowed)}")
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
    for name, number in positive:
        if number <= 0:
            yield Finding(where, f"{name} is {number}", "It has to be larger than 0")
    if recipe.max_nodes < recipe.min_nodes:
        yield Finding(
            where, f"max_nodes {recipe.max_nodes} is below min_nodes {recipe.min_nodes}", "Correct one of them"
        )
    if not 0 <= recipe.gpu_memory_utilization <= 1:
        yield Finding(where, f"gpu_memory_utilization is {recipe.gpu_memory_utilization}", "It is a share from 0 to 1")
    if sizes.kv_heads > 0 and sizes.attention_heads % sizes.kv_heads:
        yield Finding(
            where,
            f"{sizes.attention_heads} attention heads are no multiple of {sizes.kv_heads} KV heads",
            "Copy both from the model's config.json",
        )
    if not recipe.model.strip():
        yield Finding(where, "model is empty", "Name a model on Hugging Face or an absolute path")
    for name in recipe.environment:
        if not _VARIABLE.match(name):
            yield Finding(where, f"{name!r} in environment is no name of a variable", "Correct it")


def _kind(value: Any) -> str:
    if value is None:
        return "empty"
    text = repr(value)
    return f"{type(value).__name__} {text[:60]}"


def require(recipe: Recipe | None, findings: Sequence[Finding]) -> Recipe:
    """For callers that want one recipe or an exception with all findings."""
    if recipe is None:
        raise SparkError("\n".join(map(str, findings)))
    return recipe
