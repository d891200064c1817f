# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which environment variables a recipe may set without the user's word: those that only choose or count.

A variable can make the loader, OpenSSL, Python, CUDA, NCCL, Triton, a compiler or the engine load code, read a file or
ask another machine, and nobody knows all that can. So it is the other way round: known by name, and with a value that
names nothing.
"""

from __future__ import annotations

import functools
import re

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import Engine

UNKNOWN = "may load code, read files or lead to other machines"
# Of all engines; by number or switch.
_COUNTING = frozenset({
    *("MAX_JOBS", "NVCC_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_LAUNCH_BLOCKING"),
    *("CUDA_DEVICE_MAX_CONNECTIONS", "TORCHINDUCTOR_COMPILE_THREADS", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    *("NVIDIA_TF32_OVERRIDE", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_XET"),
    *("HF_HUB_ENABLE_HF_TRANSFER", "HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"),
    *("DO_NOT_TRACK", "NO_COLOR", "PYTHONUNBUFFERED", "NCCL_CUMEM_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_MAX_NCHANNELS"),
    *("NCCL_MIN_NCHANNELS", "NCCL_BUFFSIZE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_TIMEOUT"),
    *("NCCL_IB_RETRY_CNT", "NCCL_IB_QPS_PER_CONNECTION", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "MALLOC_ARENA_MAX"),
    *("SAFETENSORS_FAST_GPU", "DG_JIT_USE_NVRTC", "TILELANG_CLEANUP_TEMP_FILES", "TORCHDYNAMO_DISABLE"),
    *("TORCH_COMPILE_DISABLE", "TORCHINDUCTOR_MAX_AUTOTUNE"),
})  # fmt: skip
# And by a word of few.
_CHOOSING = frozenset({
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCH_CUDA_ARCH_LIST", "CUDA_DEVICE_ORDER"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_MODULE_LOADING", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_ALGO", "NCCL_PROTO"),
})  # fmt: skip
_PLAIN = re.compile(r"[+-]?\d{1,15}(\.\d{1,9})?|true|false|yes|no|on|off|auto|none|", re.IGNORECASE | re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:,;+-]{0,79}( [A-Za-z0-9][A-Za-z0-9_.:,;+-]{0,79}){0,7}|")
_PLACE = re.compile(r"_(PATH|ROOT|DIR|FOLDER|FILE|HOST|IP|PORT|URL|URI|PLUGINS?)(_|$)")
_PATH = re.compile(r"(?:^|[=:,;\s\"'])(~?/[^\s:,;\"']*|~[^\s:,;\"']*|file:[^\s,;\"']*|\.{1,2}/[^\s:,;\"']*)")
_ADDRESS = re.compile(r"\b(?!file:)[a-z][a-z0-9+.-]*://[^\s,;\"']*", re.IGNORECASE)
_OFF = ("", "0", "false")
_ON = ("1", "true", "yes", "on")
_QUIET = frozenset({"DO_NOT_TRACK", "HF_HUB_DISABLE_TELEMETRY", "VLLM_DO_NOT_TRACK", "VLLM_NO_USAGE_STATS"})


def doubt(engine: Engine, name: str, value: str) -> str:
    """Why a recipe may set this only with the user's word, as the end of a sentence; empty where it may."""
    if name in engine.dangerous_environment:
        return "" if value.casefold() in _OFF else engine.dangerous_environment[name]
    if name in _QUIET and value.casefold() not in _ON:
        return "sends what it does somewhere else"
    counting = name in _COUNTING or name in _of_engine(engine)
    choosing = name in _CHOOSING or name in engine.choosing_environment
    fits = (counting and counts(value)) or (choosing and _WORD.fullmatch(value))
    return "" if fits else UNKNOWN


def counts(value: str) -> bool:
    """A number or a switch."""
    return bool(_PLAIN.fullmatch(value))


def paths(value: str) -> list[str]:
    """What in a value is a file or a directory of the node."""
    return _PATH.findall(_ADDRESS.sub("", value))


def addresses(value: str) -> list[str]:
    """What in a value is an address that is asked, or listened at."""
    return _ADDRESS.findall(value)


@functools.cache
def _of_engine(engine: Engine) -> frozenset[str]:
    """Variables of the engine's own that its sources name, but those that are a place."""
    tables = [option_tables.load(engine.name, version) for version in option_tables.versions(engine.name)]
    known = {name for table in tables if table for name in table.environment}
    own = {name for name in known if name.startswith(engine.prefix) and not _PLACE.search(name)}
    return engine.counting_environment | own
