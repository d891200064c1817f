# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which settings a running engine says that it has, and which of them are not those of its plan.

An option that an engine reads and does not obey, or lowers by itself, stands in no error message. vLLM names what it
has in ``/v1/models`` and in the labels of ``vllm:cache_config_info`` (vllm/v1/metrics/loggers.py, the fields of
CacheConfig); SGLang in ``/server_info`` (the fields of ServerArgs, its keys among them, which are left out).
TensorRT-LLM does not tell, and nothing is compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import Difference

_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\} ", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# Options whose field is called otherwise, in one of the engines.
_FIELDS = {
    "kv-cache-dtype": ("cache_dtype",),
    "tensor-parallel-size": ("tp_size",),
    "pipeline-parallel-size": ("pp_size",),
    "data-parallel-size": ("dp_size",),
    "expert-parallel-size": ("ep_size",),
}
# Where the engine puts another word for the same thing: a directory for a name.
_OTHER_WORDS = frozenset({"model", "model-path", "tokenizer", "tokenizer-path", "revision", "host", "dist-init-addr"})
_SECRET = re.compile(r"(?:^|_)(?:key|token|password|secret)$")
_FREE = frozenset({"auto", "", "none"})  # the engine may choose
_EQUAL = {"1": "true", "0": "false", "fp8_e4m3": "fp8"}
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)([kKmMgGtT]?)")
_TIMES = {"": 1, **{sign: 1000**power for power, sign in enumerate("kmgt", 1)}}  # as vllm/utils/argparse_utils.py
_TIMES |= {sign: 1024**power for power, sign in enumerate("KMGT", 1)}


def parse(metrics: str, models: Mapping[str, Any], model: str, info: Mapping[str, Any] | None = None) -> dict[str, str]:
    """By name of the field, as the engine writes it. ``info``: what SGLang says of its arguments."""
    found = {
        name: str(value)
        for name, value in (info or {}).items()
        if isinstance(value, (str, int, float)) and not _SECRET.search(name)
    }
    labels = _INFO.search(metrics)
    if labels:
        found |= dict(_LABEL.findall(labels.group(1)))
    listed = models.get("data")
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, Mapping) and one.get("id") == model and isinstance(one.get("max_model_len"), int):
            found["max_model_len"] = str(one["max_model_len"])
    return {name: value for name, value in found.items() if name != "engine" and value not in ("None", "")}


def planned(words: Sequence[str]) -> dict[str, str]:
    """``--name value``, ``--name=value``, and ``--name`` or ``--no-name`` for a switch; several values are joined."""
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            found[name] = [value] if given else []
        elif name:
            found[name].append(word)
    return {
        name if values or not name.startswith("no-") else name[3:]: " ".join(values)
        or ("false" if name.startswith("no-") else "true")
        for name, values in found.items()
    }


def compare(words: Sequence[str], active: Mapping[str, str]) -> list[Difference]:
    """Options of the plan that the engine has otherwise; those that it does not tell of are left out."""
    found = []
    for name, value in planned(words).items():
        fields = (*_FIELDS.get(name, ()), name.replace("-", "_"))
        has = next((active[field] for field in fields if field in active), None)
        free = value.lower() in _FREE or name in _OTHER_WORDS
        if has is not None and not free and not _same(value, has):
            found.append(Difference(f"--{name}", value, has))
    return found


def _same(value: str, has: str) -> bool:
    one, other = _EQUAL.get(value.lower(), value.lower()), _EQUAL.get(has.lower(), has.lower())
    numbers = _number(value), _number(has)
    return one == other or (None not in numbers and numbers[0] == numbers[1])


def _number(text: str) -> float | None:
    match = _NUMBER.fullmatch(text)
    return float(match.group(1)) * _TIMES[match.group(2)] if match else None
