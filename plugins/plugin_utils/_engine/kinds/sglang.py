# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""SGLang: the same command line on every rank, but for its number."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Memory, Prefixes
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import (
    API_HOST,
    OFFLOAD,
    REDUNDANT,
    STREAMED,
    STREAMER,
    WIDE,
    Counted,
    Drafting,
    Engine,
    Launch,
    Lora,
    Rank,
    Uncounted,
)

# SGLang's name for a way of speculative decoding; those that draft token by token need the length of the draft twice.
ALGORITHMS = {"draft_model": "STANDALONE", "eagle3": "EAGLE3", "mtp": "EAGLE", "dflash": "DFLASH", "dspark": "DSPARK"}
IN_BLOCKS = ("dflash", "dspark")
MAX_FRACTION = 0.95
PAGE = 64  # tokens, where what was computed is kept on disk
_NODES = "nothing: it follows from the nodes of the inventory"
_PLANNED = {
    "model-path": "the recipe's model",
    "model": "the recipe's model",
    "served-model-name": "{served_model_name}",
    "host": "nothing: the API listens on the head's loopback until a gateway stands in front of it",
    "port": "{port}",
    "tp-size": "{tensor_parallel_size}",
    "tensor-parallel-size": "{tensor_parallel_size}",
    "pp-size": "{pipeline_parallel_size}",
    "pipeline-parallel-size": "{pipeline_parallel_size}",
    "ep-size": "{expert_parallel}",
    "expert-parallel-size": "{expert_parallel}",
    "nnodes": _NODES,
    "node-rank": _NODES,
    "dist-init-addr": _NODES,
    "nccl-init-addr": _NODES,
    "mem-fraction-static": "{gpu_memory_utilization}",
    "context-length": "{context}",
    "revision": "the recipe's revision",
    "enable-metrics": "nothing: metrics are always on",
    kinds_base.MEDIA_OPTION: "{media_domains}",
    # Arguments are visible to every user of the node.
    "api-key": "nothing: SGLang takes it as an argument only; the gateway asks for keys",
    "admin-api-key": "nothing: SGLang takes it as an argument only",
}
_REMOVED = {
    "--tp": "Write --tp-size: --tp is an abbreviation that breaks with the next option of that prefix",
    "--pp": "Write --pp-size: --pp is ambiguous",
    "--dp": "Write --dp-size",
    "--cuda-graph-max-bs": "Use --cuda-graph-max-bs-decode and --cuda-graph-max-bs-prefill",
    "--enable-ep-moe": "Use --ep-size",
    "--quantization=fp4": "Use modelopt_fp4, or leave it out: an NVFP4 checkpoint names its method itself",
}


_MODULE = "loads Python code that it names"
_DANGEROUS = {
    "trust-remote-code": "runs Python files from the model's repository",
    **dict.fromkeys(("custom-weight-loader", "forward-hooks", "trace-modules", "hicache-storage-backend"), _MODULE),
    "enable-custom-logit-processor": "runs code out of requests (pickle)",
    **dict.fromkeys(
        ("config", "decrypted-config-file", "decrypted-draft-config-file"),
        "reads further options, which nobody has looked at, from a file of the node",
    ),
    "tool-server": "lets the model run tools, some of them code",
    "trust-request-chat-template": "runs templates out of requests",
    "trust-mm-content-hashes": "lets a request answer with what another one has sent",
    **dict.fromkeys(
        ("remote-instance-weight-loader-seed-instance-ip", "encoder-urls", "encoder-register-urls"),
        "takes weights or vectors from another machine",
    ),
    "checkpoint-engine-wait-weights-before-ready": "takes weights or vectors from another machine",
    **dict.fromkeys(
        ("grpc-mode", "smg-grpc-mode", "disaggregation-mode", "gated-launch-port"), "listens somewhere else"
    ),
    "remote-instance-weight-loader-start-seed-via-transfer-engine": "listens somewhere else",
    "enable-trace": "sends what it does somewhere else",
    "delete-ckpt-after-loading": "deletes the model's files",
    **dict.fromkeys(
        ("log-requests", "export-metrics-to-file", "enable-response-store"), "keeps what people ask or get"
    ),
}
# With a word as their value; of JSON the keys. Values that the tables know need no line here.
_HARMLESS = """
cuda-graph-backend-decode cuda-graph-backend-prefill dllm-algorithm eplb-algorithm
hf-chat-template-name kt-method log-level log-level-http lora-target-modules max-prefill-tokens max-total-tokens
model-config-parser=auto model-impl reasoning-parser sampling-backend speculative-algorithm
speculative-draft-attention-backend tool-call-parser weight-version
default-chat-template-kwargs.clear_thinking default-chat-template-kwargs.enable_thinking
default-chat-template-kwargs.preserve_thinking default-chat-template-kwargs.reasoning_effort
default-chat-template-kwargs.thinking default-chat-template-kwargs.thinking_budget
limit-mm-data-per-request.* preferred-sampling-params.max_new_tokens preferred-sampling-params.min_p
preferred-sampling-params.repetition_penalty preferred-sampling-params.temperature preferred-sampling-params.top_k
preferred-sampling-params.top_p
"""
_COUNTING_ENVIRONMENT = frozenset({
    *("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", "SGLANG_DISABLE_CUDNN_CHECK", "SGLANG_ENABLE_JIT_DEEPGEMM"),
    *("SGLANG_ENABLE_SPEC_V2", "SGLANG_SET_CPU_AFFINITY", "SGL_ENABLE_JIT_DEEPGEMM"),
})  # fmt: skip


_BESIDE = "Set hicache-size, in GB, which the plan counts"
_SECOND_CACHE = Uncounted("keeps a second cache, in the memory that the GPU has", _BESIDE)
_SECOND_WEIGHTS = Uncounted("keeps the weights a second time, in the memory that the GPU has", "Leave it out")
_UNQUANTIZED = Uncounted("loads the weights before they are quantized", "Use a checkpoint that is quantized")
_COUNTED = {
    "max-total-tokens": Counted("tokens"),
    "hicache-size": Counted("host", 10**9),
    "mm-preprocess-cache-size-mb": Counted("host", 1024**2),
    "cuda-graph-max-bs-decode": Counted("captured"),
    "cuda-graph-bs-decode": Counted("captured"),
    **STREAMED,
}
_UNCOUNTED = {
    **dict.fromkeys(
        ("enable-hierarchical-cache", "hicache-ratio"),
        Uncounted("takes a multiple of the KV cache beside it", _BESIDE, unless="hicache-size"),
    ),
    **dict.fromkeys(("enable-lmcache", "lmcache-config-file", "enable-flexkv", "flexkv-config-file"), _SECOND_CACHE),
    **dict.fromkeys(("enable-unified-cache-external-linker", "enable-hisparse", "hisparse-config"), _SECOND_CACHE),
    **dict.fromkeys(("hicache-host-memory-fraction", "disaggregation-decode-enable-offload-kvcache"), _SECOND_CACHE),
    **dict.fromkeys(("enable-weights-cpu-backup", "enable-draft-weights-cpu-backup"), _SECOND_WEIGHTS),
    "enable-elastic-expert-backup": _SECOND_WEIGHTS,
    "enable-mm-global-cache": Uncounted("keeps a cache of images whose size nobody says", "Leave it out"),
    **dict.fromkeys(("cpu-offload-gb", "offload-group-size", "kt-weight-path", "kt-num-gpu-experts"), OFFLOAD),
    "ep-num-redundant-experts": REDUNDANT,
    **dict.fromkeys(("quantize-and-serve", "modelopt-quant"), _UNQUANTIZED),
    **STREAMER,
    **WIDE,
}


_OTHERWISE = {
    "disable-radix-cache": False,
    **dict.fromkeys(("enable-hierarchical-cache", "hicache-size", "hicache-ratio", "hicache-storage-backend")),
    **dict.fromkeys(("hicache-host-memory-mode", "hicache-storage-backend-extra-config", "radix-cache-backend")),
}


class SGLang(Engine):
    name = "sglang"
    label = "SGLang"
    short = "sglang"
    starter = "sglang.launch_server"
    distributions = ("sglang",)
    image = "lmsysorg/sglang:v0.5.23"
    prefix = "SGLANG_"
    help_words = ("python3", "-m", "sglang.launch_server", "--help")
    planned = _PLANNED
    removed = _REMOVED
    dangerous = _DANGEROUS
    harmless = frozenset(_HARMLESS.split())
    counting_environment = _COUNTING_ENVIRONMENT
    batched_option = "chunked-prefill-size"
    kv_dtype_option = "kv-cache-dtype"
    sequences_option = "max-running-requests"
    loader_option = "load-format"
    eager_option = "disable-cuda-graph"
    drafts = tuple(ALGORITHMS)
    counted = _COUNTED
    uncounted = _UNCOUNTED
    prefixes_otherwise = _OTHERWISE
    salted = tuple(path for path in api_paths.PROMPTS if path != api_paths.MESSAGES)  # 0.5.23
    lora = Lora("enable-lora", ("max-loras-per-batch", 8), ("max-lora-rank", 64), "max-loaded-loras")

    def image_version(self, image: str) -> str:
        tag = image.split("@", maxsplit=1)[0].rpartition(":")[2].lstrip("v")
        return tag.split("-")[0] if tag[:1].isdigit() else ""

    def drafting(self, given: Mapping[str, Any]) -> Drafting | None:
        if not any(name.startswith("speculative_") for name in given):
            return None
        algorithm = str(given.get("speculative_algorithm") or "").upper()
        blocks = ("speculative_num_draft_tokens", "speculative_dflash_block_size", "speculative_dspark_block_size")
        return Drafting(
            algorithm,
            str(given.get("speculative_draft_model_path") or ""),
            str(given.get("speculative_draft_model_revision") or ""),
            max(kinds_base.whole(given.get(name)) for name in ("speculative_num_steps", *blocks)),
            nothing=algorithm == "NGRAM",
        )

    def ranks(self, launch: Launch) -> list[Rank]:
        options = _common(launch)
        table = option_tables.load(self.name, launch.version)
        several = len(launch.ordered) > 1
        ports = {"api": launch.port, **({"rendezvous": launch.rendezvous_port} if several else {})}
        made = []
        for number in range(len(launch.ordered)):
            own = {**options, "node-rank": number} if several else options
            words = kinds_base.render({**own, **launch.options}, table)
            made.append(Rank((f"{launch.bin}sglang", "serve"), words, environment=_place(launch.prefixes), ports=ports))
        return made


def _common(launch: Launch) -> dict[str, Any]:
    parallel = launch.parallel
    planned: dict[str, Any] = {
        "model-path": launch.model,
        "served-model-name": launch.served,
        "host": API_HOST,
        "port": launch.port,
        "tp-size": parallel.tensor,
        "context-length": launch.context,
        "max-running-requests": launch.sequences,
        "enable-metrics": True,
        **kinds_base.media(ENGINE, launch),
    }
    if launch.revision:
        planned["revision"] = launch.revision
    if parallel.pipeline > 1:
        planned["pp-size"] = parallel.pipeline
        planned["disable-overlap-schedule"] = True  # pipeline parallel does not work with it
    if parallel.expert:
        planned["ep-size"] = parallel.tensor
    if len(launch.ordered) > 1:
        planned["nnodes"] = len(launch.ordered)
        planned["dist-init-addr"] = f"{launch.head.cluster_address}:{launch.rendezvous_port}"
    if launch.budget:
        planned["mem-fraction-static"] = f"{static_fraction(launch.budget, launch.shared):.2f}"
        if launch.shared and launch.budget.cache_tokens:
            planned["max-total-tokens"] = launch.budget.cache_tokens
    if launch.prefixes.base:
        planned |= _kept_on_disk(launch.prefixes)
    if launch.draft:
        planned["speculative-algorithm"] = ALGORITHMS[launch.draft.method]
        if launch.draft.method not in IN_BLOCKS:
            planned["speculative-num-steps"] = launch.draft.tokens
            planned["speculative-eagle-topk"] = 1
        planned["speculative-num-draft-tokens"] = launch.draft.tokens + 1
        if launch.draft.model:
            planned["speculative-draft-model-path"] = launch.draft.model
    return planned


def _kept_on_disk(prefixes: Prefixes) -> dict[str, Any]:
    """Every rank has files of its own, and all of them take the shortest prefix that one has. It removes the oldest
    files itself, a little before our own limit is reached. A page is a file, so it is not one token."""
    return {
        "enable-hierarchical-cache": True,
        "hicache-size": max(1, int(prefixes.memory / 1e9)),  # in whole GB
        "hicache-storage-backend": "file",
        "hicache-storage-backend-extra-config": json.dumps({"max_size": prefixes.disk_gb * 10**9 * 9 // 10}),
        "page-size": PAGE,
    }


def _place(prefixes: Prefixes) -> dict[str, str]:
    return {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": prefixes.directory} if prefixes.base else {}


def static_fraction(budget: Memory, shared: bool = False) -> float:
    """SGLang's share is weights and cache alone: what the plan calls overhead comes on top of it.

    It is a share of what is free when SGLang starts. Beside other services that is unknown: taken is what is left when
    they are all there. If they are not yet, ``max-total-tokens`` keeps the cache to its size.
    """
    own = budget.budget - budget.overhead
    if shared:
        return min(MAX_FRACTION, math.ceil(100 * own / max(1, budget.total - budget.host)) / 100)
    return math.floor(100 * own / budget.total) / 100


ENGINE = SGLang()
