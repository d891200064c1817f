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
MAX_DEEP = 3
_ARGUMENTS = ("SERVE_ARGS", "VLLM_ARGS", "VLLM_EXTRA_ARGS", "EXTRA_ARGS", "ENGINE_ARGS", "SGLANG_ARGS")
_VARIABLES = ("ENV_EXTRA", "CONTAINER_ENV", "ENGINE_ENV")
_MODEL = ("MODEL", "MODEL_ID", "MODEL_HF", "MODEL_NAME", "MODEL_PATH", "HF_MODEL", "VLLM_MODEL")
_IMAGE = ("IMAGE", "VLLM_IMAGE", "DOCKER_IMAGE", "CONTAINER_IMAGE", "SGLANG_IMAGE", "ENGINE_IMAGE")
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
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def read(text: str, path: str) -> PeerRecipe:
    return _by_names(assigned(text, Path(path)), path)


def assigned(text: str, place: Path, deep: int = 0) -> shell.Script:
    """The file, behind those that it includes."""
    included = re.findall(r"(?m)^\s*(?:\.|source)\s+[\"']?(?:\$\{?\w+\}?/|\$\([^)]*\)/)?([\w./-]+)", text)
    before = shell.Script()
    for name in included:
        for base in (place.parent, place.parent.parent):
            other = base / name
            if deep < MAX_DEEP and other.is_file() and other.resolve().is_relative_to(base.resolve()):
                found = assigned(file_text(other), other, deep + 1)
                before.values.update(found.values)
                before.arrays.update(found.arrays)
                break
    arrays = "".join(f"{name}=({' '.join(map(_quoted, words))})\n" for name, words in before.arrays.items())
    return shell.read(arrays + text, before.values, str(place))


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _by_names(made: shell.Script, path: str) -> PeerRecipe:
    peer, values = PeerRecipe(FORMAT, path), dict(made.values)
    model = _first(values, _MODEL)
    arguments = [
        word for name in _ARGUMENTS for word in [*made.arrays.get(name, []), *_split(values.pop(name, ""), path)]
    ]
    if not model:
        raise SparkError(
            "it sets values for a launcher, and names no model to serve",
            path,
            "Give the launcher's own file: a Compose file with this one as .env beside it, or its docker run line",
        )
    engine = values.pop("ENGINE", "vllm").lower()
    tensorfold, sglang = "tensorfold" in engine, "sglang" in engine
    peer.image = _first(values, _IMAGE)
    program = (
        ["tensorfold", "serve", model]
        if tensorfold
        else ["sglang", "serve", "--model-path", model]
        if sglang
        else ["vllm", "serve", model]
    )
    for name in _VARIABLES:
        for item in [*made.arrays.get(name, []), *_split(values.pop(name, ""), path)]:
            if item not in ("-e", "--env"):
                container.put_variable(peer, item.removeprefix("-e "), made.values)
    for mod in [*made.arrays.get("MODS", []), *_split(values.pop("MODS", ""), path)]:
        put_mod(peer, mod, path)
    words = _options(peer, values, "sglang" if sglang else "" if tensorfold else "vllm", arguments)
    if words:
        peer.lose(
            f"the order of {len([word for word in words if word.startswith('--')])} option(s)",
            "its launcher puts the command together, and is not in this file; options are taken by their names",
            "compare the command with what it starts",
        )
    peer.argv = [*program, *words, *arguments]
    for name in made.arrays:
        if name not in (*_ARGUMENTS, *_VARIABLES, "MODS"):
            peer.lose(
                f"{name} ({shown(name, made.arrays[name])})", "a list of its launcher, whose meaning is not known here"
            )
    docker_run.finish(peer, values)
    return peer


def _options(peer: PeerRecipe, values: Mapping[str, str], engine: str, arguments: list[str]) -> list[str]:
    table = option_tables.newest(engine, "") if engine else None
    given = {one.name for one in placement.options(arguments)}
    words: list[str] = []
    for name, value in values.items():
        option = _OPTIONS.get(name) if table else _TENSORFOLD.get(name)
        spelled = f"--{name.lower().replace('_', '-')}"
        if option is None and table and table.long_name(spelled):
            option = spelled
        if container.secret_name(name):
            peer.secret(name)
        elif name in placement.VARIABLES or _PLACES.fullmatch(name):
            peer.placed.append(Loss(f"{name}={value}", "which machines take part and how they meet is the inventory's"))
        elif option and option not in given:
            if not value:
                peer.placed.append(Loss(f"{name}=", "it is empty, so nothing is given"))
            elif table and table.options.get(table.long_name(option)) == "flag":
                words += [option] if value.lower() in _YES else [f"--no-{option[2:]}"] if value.lower() in _NO else []
            else:
                words += [option, value]
        elif _OF_ENGINES.fullmatch(name):
            peer.put_environment({name: value})
        else:
            peer.lose(f"{name}={shown(name, value)}", "a setting of its launcher, whose meaning is not known here")
    return words


def _first(values: dict[str, str], names: tuple[str, ...]) -> str:
    found = [values.pop(name) for name in names if name in values]
    return next((value for value in found if value), "")


def _split(text: str, path: str) -> list[str]:
    return [word for one in shell.read(text, {}, path).statements for word in one.words] if text else []
