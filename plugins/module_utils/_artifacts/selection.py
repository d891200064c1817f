# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which files of a repository an engine needs: one set of weights in safetensors, and all the small ones.

A repository often holds its weights two or three times; gpt-oss-120b is 196 GB, of which 65 are needed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import check_paths, is_path
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

INDEX = "model.safetensors.index.json"
_CONSOLIDATED = "consolidated"
_CONSOLIDATED_INDEX = "consolidated.safetensors.index.json"
INDEXES = (INDEX, _CONSOLIDATED_INDEX, "pytorch_model.bin.index.json")
_SAFETENSORS = ".safetensors"
PICKLE = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
# Weights for other programs.
_OTHER = (
    ".gguf",
    ".ggml",
    ".h5",
    ".msgpack",
    ".onnx",
    ".onnx_data",
    ".ot",
    ".tflite",
    ".mlmodel",
    ".nemo",
    ".npz",
    ".llamafile",
)
_FOLDERS = ("original", "metal", "onnx", "openvino", "coreml", "gguf", "runs")
# Folders whose weights belong to the model: they say so in a file of these names.
_COMPOSED = ("model_index.json", "modules.json")
_LARGEST_SMALL = 256 * 1024 * 1024  # tokenizers have some ten MB
_LEFTOVERS = re.compile(r"(training_args|optimizer|scheduler|rng_state[\w]*|scaler)\.(bin|pt|pth)")
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.(?:safetensors|bin)")
_NAMED = 3


@dataclass(frozen=True)
class Choice:
    """``paths``: the files to bring. ``left_out``: of each reason, how many bytes stay where they are."""

    paths: tuple[str, ...]
    left_out: Mapping[str, int]


def choose(name: str, sizes: Mapping[str, int], indexes: Mapping[str, str], pickle: bool = False) -> Choice:
    """``sizes``: bytes of every file. ``indexes``: content of those of :data:`INDEXES` that there are.

    ``pickle``: allowed, where there is nothing else.
    """
    reasons = {path: _reason(path, size) for path, size in sizes.items()}
    wanted = _weights(name, sizes, indexes, pickle)
    chosen = tuple(sorted(path for path in sizes if path in wanted or not reasons[path]))
    wrong = ""
    try:
        check_paths(list(chosen))
    except ValueError as exc:
        wrong = str(exc)
    odd = [f"a file of the name {ascii(path)[:80]}" for path in sorted(wanted) if not is_path(path)]
    if wrong or odd:
        raise SparkError(
            f"it cannot be laid down as files: {wrong or odd[0]}",
            name,
            "Use another repository, or bring the model to every node yourself and name its path: engine_model_path",
        )
    left_out: dict[str, int] = {}
    for path in sorted(set(sizes) - set(chosen)):
        left_out[reasons[path]] = left_out.get(reasons[path], 0) + sizes[path]
    return Choice(chosen, left_out)


def _reason(path: str, size: int) -> str:
    """Why a file is left out, if it is not one of the weights; empty where it is a small one."""
    folder, base = path.partition("/")[0], posixpath.basename(path)
    if "/" in path and (folder in _FOLDERS or folder.startswith("checkpoint-")):
        return f"{folder}/"
    if not is_path(path):
        return "names that are not taken"
    if any(part.startswith(".") for part in path.split("/")):
        return "hidden files"
    if base.endswith(_SAFETENSORS):
        own = base.startswith(_CONSOLIDATED)
        return "the same weights in Mistral's own layout" if own else "weights that the engine does not read"
    if base.endswith(PICKLE):
        return "pickle"
    if base.endswith(_OTHER):
        return f"*{posixpath.splitext(base)[1]}"
    return "large files that are no weights" if size > _LARGEST_SMALL else ""


def _weights(name: str, sizes: Mapping[str, int], indexes: Mapping[str, str], pickle: bool) -> set[str]:
    top = {path for path in sizes if path.endswith(_SAFETENSORS) and not _reason(path, 0).endswith("/")}
    mistral = {path for path in top if path.startswith(_CONSOLIDATED)}
    own = "params.json" in sizes and "config.json" not in sizes
    if mistral and (own or not (INDEX in indexes or any("/" not in path for path in top - mistral))):
        return _indexed(name, sizes, indexes, _CONSOLIDATED_INDEX) or _shards(name, mistral)
    if INDEX in indexes:
        found = _indexed(name, sizes, indexes, INDEX)
    else:
        found = _shards(name, {path for path in top - mistral if "/" not in path})
    if not found or set(_COMPOSED) & set(sizes):
        found |= {path for path in top - mistral if "/" in path}
    if found:
        return found
    pickles = {path for path in sizes if "/" not in path and path.endswith(PICKLE) and not _LEFTOVERS.fullmatch(path)}
    if pickles and pickle:
        return _indexed(name, sizes, indexes, INDEXES[-1]) or _shards(name, pickles)
    if pickles:
        raise SparkError(
            f"its weights are pickle only ({_some(pickles)}): reading them runs whatever program is in them",
            name,
            "Use a repository with safetensors; or, if you trust who made it, allow it: artifacts_allow_pickle: true",
        )
    other = {path for path in sizes if path.endswith(_OTHER)}
    raise SparkError(
        f"it has no safetensors{f', only {_some(other)}' if other else ''}",
        name,
        "Use the repository with the safetensors; or put the file on every node and name its path: engine_model_path",
    )


def _indexed(name: str, sizes: Mapping[str, int], indexes: Mapping[str, str], index: str) -> set[str]:
    if index not in indexes:
        return set()
    with json_text.Reading(f"its {index} cannot be read", name, "Use another revision"):
        found = {str(one) for one in json_text.mapping(indexes[index])["weight_map"].values()}
    odd = {one for one in found if not one.endswith(PICKLE if index == INDEXES[-1] else _SAFETENSORS)}
    if odd:
        raise SparkError(f"its {index} names {_some(odd)}", name, "Use another repository: these are no such weights")
    lacking = found - set(sizes)
    if lacking or not found:
        says = f"{_some(lacking)}, which it does not have" if lacking else "no file"
        raise SparkError(f"its {index} names {says}", name, "Use another revision: this one is not complete")
    return found


def _shards(name: str, paths: set[str]) -> set[str]:
    """All of them; where their names count, none may be missing."""
    counted: dict[tuple[str, str], set[str]] = {}
    for path in paths:
        shard = _SHARD.fullmatch(path)
        if shard:
            counted.setdefault((shard[1], shard[3]), set()).add(shard[2])
    for (start, count), numbers in counted.items():
        if len(numbers) != int(count):
            raise SparkError(
                f"it has {len(numbers)} of {int(count)} files {start}-*",
                name,
                "Use another revision: this one is not complete",
            )
    return set(paths)


def _some(paths: set[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(ascii(path)[1:81].rstrip("'") for path in sorted(paths)[:_NAMED]) + more
