# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A launcher's environment file: values for a Compose file beside it, or the command by its names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import (
    container,
    docker_run,
    placement,
    shell,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.facts import Loss, PeerRecipe, file_text, shown
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.spark_vllm_docker import put_mod

FORMAT = "environment file"
MAX_FILES = 10
MAX_NAMES = 100
_ARGUMENTS = re.compile(r"(?:SERVE|ENGINE|EXTRA|(?:EXTRA_)?(?:VLLM|SGLANG))(?:_EXTRA)?_ARGS")
_VARIABLES = re.compile(r"ENV_EXTRA|(?:CONTAINER|ENGINE|EXTRA)_ENV|(?:PROFILE_)?ENV_VARS")
_CONTAINER = re.compile(r"(?:EXTRA_)?DOCKER_(?:RUN_)?ARGS")
_VOLUMES = re.compile(r"(?:PROFILE_)?(?:VOLUMES|MOUNTS)")
_MODEL = re.compile(r"(?:HF_)?MODEL(?:_ID|_HF|_NAME|_PATH)?|(?:VLLM|DSPARK|LLM)_MODEL(?:_HOST)?|MODEL_HOST_PATH")
_IMAGE = re.compile(r"(?:VLLM_|DOCKER_|CONTAINER_|SGLANG_|ENGINE_|DSPARK_VLLM_)?IMAGE")
# Names that are none of an option.
_OPTIONS = {
    **dict.fromkeys(("SERVED_NAME", "SERVED_MODEL", "MODEL_SERVED"), "--served-model-name"),
    **dict.fromkeys(("CONTEXT", "CTX", "CONTEXT_LENGTH", "MAX_LEN"), "--max-model-len"),
    **dict.fromkeys(("GPU_MEM_UTIL", "GPU_MEMORY", "GPU_UTIL"), "--gpu-memory-utilization"),
    **dict.fromkeys(("TP", "TP_SIZE", "TENSOR_PARALLEL"), "--tensor-parallel-size"),
    **dict.fromkeys(("PP", "PP_SIZE", "PIPELINE_PARALLEL"), "--pipeline-parallel-size"),
    **dict.fromkeys(("API_PORT", "VLLM_PORT"), "--port"),
}
_TENSORFOLD = {
    **{"CONTEXT": "--context", "PARALLEL": "--parallel", "MAX_TOKENS": "--max-tokens", "DRAFTER": "--drafter"},
    **{"KV_DTYPE": "--kv-dtype", "MTP_DRAFTS": "--mtp-drafts", "SERVED_NAME": "--name", "TP": "--tp", "PORT": "--port"},
    "HOST": "--host",
}
_OF_ENGINES = re.compile(
    r"(?:VLLM|NCCL|GLOO|TORCH|PYTORCH|CUDA|HF|TRANSFORMERS|FLASHINFER|TRITON|SGLANG|TF|TENSORFOLD|OMP|TILELANG|DG|B12X"
    r"|CUTE|INSTANTTENSOR|TORCHINDUCTOR|SAFETENSORS|EXL3|RAY|TOKENIZERS)_\w+|MAX_JOBS|LD_PRELOAD|LD_LIBRARY_PATH|PYTHONPATH"
)
_PLACES = re.compile(
    r"(?:WORKER|HEAD|MASTER|CLUSTER|SSH|NODE|SPARK|FABRIC|LOCAL|COPY|QSFP)\w*|(?:ETH|IB)_IF|NNODES|NODES|RANK|MTU"
)
_PROGRAMS: dict[str, tuple[list[str], str]] = {
    "tensorfold": (["tensorfold", "serve"], ""),
    "sglang": (["sglang", "serve", "--model-path"], "sglang"),
}
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def read(text: str, path: str) -> PeerRecipe:
    return _by_names(assigned(text, Path(path)), path)


def assigned(text: str, place: Path, seen: set[Path] | None = None) -> shell.Script:
    """The file, behind those that it includes, each of them once."""
    seen = set() if seen is None else seen
    seen.add(place.resolve())
    included = re.findall(r"(?m)^[ \t]*(?:\.|source)[ \t]+[\"']?(?:\$\{?\w+\}?/|\$\([^)\n]*\)/)?([\w./-]+)", text)
    before = shell.Script()
    for name in list(dict.fromkeys(included))[:MAX_NAMES]:
        for base in (place.parent, place.parent.parent):
            other = (base / name).resolve()
            if len(seen) < MAX_FILES and other not in seen and other.is_file() and other.is_relative_to(base.resolve()):
                found = assigned(file_text(other), other, seen)
                before.values.update(found.values)
                before.arrays.update(found.arrays)
                break
    arrays = "".join(f"{name}=({' '.join(map(_quoted, words))})\n" for name, words in before.arrays.items())
    return shell.read(arrays + text, before.values, str(place))


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _by_names(made: shell.Script, path: str) -> PeerRecipe:
    peer = PeerRecipe(FORMAT, path)
    lists = {**{name: [value] for name, value in made.values.items()}, **made.arrays}
    model, peer.image = _first(lists, _MODEL), _first(lists, _IMAGE)
    if not model:
        raise SparkError(
            "it sets values for a launcher, and names no model to serve",
            path,
            "Give the launcher's own file: a Compose file with this one as .env beside it, or its docker run line",
        )
    arguments = _taken(lists, _ARGUMENTS, path)
    engine = " ".join(lists.pop("ENGINE", [])).lower()
    program, known = next((start for name, start in _PROGRAMS.items() if name in engine), (["vllm", "serve"], "vllm"))
    for item in _taken(lists, _VARIABLES, path):
        if item not in ("-e", "--env"):
            container.put_variable(peer, item.removeprefix("-e "), made.values)
    for item in _taken(lists, _VOLUMES, path):
        container.mount(peer, item)
    docker_run.options(peer, _taken(lists, _CONTAINER, path), Path(path).parent, made.values)
    for mod in _taken(lists, re.compile("MODS"), path):
        put_mod(peer, mod, path)
    words = _options(peer, lists, known, arguments)
    if words:
        peer.lose(
            "the order of its options",
            "its launcher puts the command together, and is not in this file; options are taken by their names",
            "compare the command with what it starts",
        )
    peer.argv = [*program, model, *words, *arguments]
    docker_run.finish(peer)
    return peer


def _options(peer: PeerRecipe, lists: Mapping[str, list[str]], engine: str, arguments: list[str]) -> list[str]:
    table = option_tables.newest(engine, "") if engine else None
    given = {one.name for one in placement.options(arguments)}
    words: list[str] = []
    for name, several in lists.items():
        value = " ".join(several)
        option = _OPTIONS.get(name) if table else _TENSORFOLD.get(name)
        spelled = f"--{name.lower().replace('_', '-')}"
        if option is None and table and table.long_name(spelled):
            option = spelled
        if container.secret_name(name):
            peer.secret(name)
        elif name in placement.VARIABLES or _PLACES.fullmatch(name):
            peer.placed.append(Loss(f"{name}={value}", "which machines take part and how they meet is the inventory's"))
        elif not value:
            peer.placed.append(Loss(f"{name}=", "it is empty, so nothing is given"))
        elif option and option not in given:
            if table and table.options.get(table.long_name(option)) == "flag":
                words += [option] if value.lower() in _YES else [f"--no-{option[2:]}"] if value.lower() in _NO else []
            else:
                words += [option, value]
        elif _OF_ENGINES.fullmatch(name):
            peer.put_environment({name: value})
        else:
            peer.lose(f"{name}={shown(name, value)}", "a setting of its launcher, whose meaning is not known here")
    return words


def _first(lists: dict[str, list[str]], names: re.Pattern[str]) -> str:
    """Only that one is taken; what else there is of the kind is named."""
    name = next((name for name, words in lists.items() if names.fullmatch(name) and any(words)), "")
    return " ".join(lists.pop(name)) if name else ""


def _taken(lists: dict[str, list[str]], names: re.Pattern[str], path: str) -> list[str]:
    """Words of an array, or of a text that a shell splits."""
    found = [name for name in lists if names.fullmatch(name)]
    return [word for name in found for word in _words(lists.pop(name), path)]


def _words(given: list[str], path: str) -> list[str]:
    if len(given) != 1 or not re.search(r"\s", given[0].strip()):
        return [word for word in given if word]
    return [word for one in shell.read(given[0], {}, path).statements for word in _assigning(one)]


def _assigning(one: shell.Statement) -> list[str]:
    return [*(f"{name}={value}" for name, value in one.assigned.items()), *one.words]
