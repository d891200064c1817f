# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""vLLM: the command line of ``vllm serve`` on each rank, with Ray, without it (``--nnodes``), and as replicas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, paths, ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Parallel, Prefixes
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import (
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
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.memory_fit import GIB
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.parallelism import instead_of_replicas

# vLLM inside NVIDIA's images, by tag (release notes).
IMAGE_WITHOUT_RAY = (0, 19)  # vllm/vllm-openai: kubernetes-sigs/lws issue 835, ai-dynamo/dynamo pull request 8515
IMAGES = {"26.01": "0.11.1", "26.03": "0.17.1", "26.05": "0.20.1", "26.10": "0.31.0"}
_NODES = "nothing: it follows from the nodes of the inventory"
_DRAFT = 'Use --speculative-config {"method": "draft_model", "model": .., "num_speculative_tokens": ..}'
_V0 = "Leave it out: it went with the V0 engine"
_PLANNED = {
    "model": "the recipe's model",
    "served-model-name": "{served_model_name}",
    "host": "nothing: the API listens on the head's loopback until a gateway stands in front of it",
    "port": "{port}",
    "tensor-parallel-size": "{tensor_parallel_size}",
    "pipeline-parallel-size": "{pipeline_parallel_size}",
    "data-parallel-size": "{data_parallel_size}",
    "data-parallel-size-local": _NODES,
    "data-parallel-start-rank": _NODES,
    "data-parallel-address": _NODES,
    "data-parallel-rpc-port": _NODES,
    "data-parallel-backend": "{launch}",
    "enable-expert-parallel": "{expert_parallel}",
    "nnodes": _NODES,
    "node-rank": _NODES,
    "master-addr": _NODES,
    "master-port": "{rendezvous_port}",
    "headless": _NODES,
    "distributed-executor-backend": "{launch}",
    "gpu-memory-utilization": "{gpu_memory_utilization}",
    "device-memory-utilization": "{gpu_memory_utilization}",
    "max-model-len": "{context}",
    "revision": "the recipe's revision",
    kinds_base.MEDIA_OPTION: "{media_domains}",
    # Arguments are visible to every user of the node.
    "api-key": "nothing: the key is made on the head and travels in a file of mode 0600",
    "hf-token": "a file: HF_TOKEN_PATH in the environment",
}
# Options of many guides that are gone, with what does the same today (vLLM 0.20 to 0.33).
_REMOVED = {
    "--speculative-model": _DRAFT,
    "--num-speculative-tokens": "Use num_speculative_tokens inside --speculative-config",
    "--speculative-draft-tensor-parallel-size": "Use draft_tensor_parallel_size inside --speculative-config",
    "--speculative-disable-by-batch-size": "Leave it out: --speculative-config decides",
    "--ngram-prompt-lookup-max": "Use prompt_lookup_max inside --speculative-config",
    "--swap-space": "Leave it out: it was removed in 0.18",
    "--disable-log-requests": "Leave it out: requests are not logged unless --enable-log-requests is set",
    "--use-v2-block-manager": "Leave it out: there is only one block manager",
    "--worker-use-ray": "Leave it out: --distributed-executor-backend is set by the plan",
    "--num-scheduler-steps": _V0,
    "--preemption-mode": _V0,
    "--num-lookahead-slots": _V0,
    "--enable-chunked-mm-prefill": _V0,
    "--max-seq-len-to-capture": "Use --max-cudagraph-capture-size",
    "--guided-decoding-backend": "Use --structured-outputs-config.backend",
    "--task": "Use --runner and --convert",
    "--rope-scaling": "Use rope_parameters inside --hf-overrides",
    "--rope-theta": "Use rope_parameters inside --hf-overrides",
    "--disable-async-output-proc": _V0,
    "--engine-use-ray": _V0,
    "--quantization=fp4": "Leave it out: an NVFP4 checkpoint names its method (modelopt_fp4) itself",
}
_REMOVED_ENVIRONMENT = {
    "VLLM_ATTENTION_BACKEND": "Use the option --attention-backend",
    "VLLM_USE_V1": "Leave it out: there is only the V1 engine",
    "VLLM_DISTRIBUTED_EXECUTOR_CONFIG": "Leave it out: it never existed, and one GPU per node spreads the ranks",
    "VLLM_RAY_PG_STRATEGY": "Leave it out: it was never released",
    "VLLM_USE_RAY_SPMD_WORKER": "Leave it out: there is one Ray executor",
    "VLLM_ENABLE_ROCE_ALLREDUCE": "Leave it out: only a fork knows it",
    "VLLM_USE_RAY_COMPILED_DAG": "Leave it out: the executor that it was for is gone",
    # Gone with 0.24; NVIDIA's 26.05 image (0.20.1) still has them.
    "VLLM_NVFP4_GEMM_BACKEND": "Use the option --linear-backend",
    "VLLM_USE_FLASHINFER_MOE_FP16": "Use the option --moe-backend; for a draft the key moe_backend of its options",
    "VLLM_USE_FLASHINFER_MOE_FP4": "Use the option --moe-backend",
    "VLLM_FLASHINFER_MOE_BACKEND": "Use the option --moe-backend",
    "VLLM_SKIP_INIT_MEMORY_CHECK": "Leave it out",
    "VLLM_RPC_TIMEOUT": "Leave it out",
}
_PROFILE_OPTIONS = {"agentic": {"enable-prefix-caching": True}}


_MODULE = "loads Python code that it names"
_DANGEROUS = {
    "trust-remote-code": "runs Python files from the model's repository",
    **dict.fromkeys(("middleware", "worker-cls", "worker-extension-cls", "scheduler-cls"), _MODULE),
    **dict.fromkeys(("logits-processors", "model-class-overrides", "io-processor-plugin"), _MODULE),
    **dict.fromkeys(("tool-parser-plugin", "reasoning-parser-plugin"), _MODULE),
    **dict.fromkeys(("logging-config", "log-config-file"), "loads classes that a logging configuration names"),
    "kv-transfer-config.kv_connector_module_path": _MODULE,
    "ec-transfer-config.ec_connector_module_path": _MODULE,
    "compilation-config.backend": _MODULE,
    "config": "reads further options, which nobody has looked at, from a file of the node",
    "allowed-local-media-path": "lets requests read files of the node",
    "enable-prompt-embeds": "loads tensors out of requests, which can crash it or run code",
    "enable-mm-embeds": "loads tensors out of requests, which can crash it or run code",
    "tool-server": "lets the model run tools, some of them code",
    "trust-request-chat-template": "runs templates out of requests",
    "trust-request-mm-kwargs": "takes arguments of image processors out of requests",
    "otlp-traces-endpoint": "sends what it does somewhere else",
    **dict.fromkeys(("uds", "grpc"), "listens somewhere else"),
    "spec-method": "may be a class that it names",
    **dict.fromkeys(
        ("enable-log-requests", "enable-log-outputs", "enable-log-deltas"), "writes what people ask or get into the log"
    ),
}
# With a word as their value; of JSON the keys. Values that the tables know need no line here.
_HARMLESS = """
config-format cpu-offload-params generation-config=auto generation-config=vllm ignore-patterns kv-cache-dtype
kv-cache-dtype-skip-layers lora-target-modules mamba-backend mm-encoder-attn-backend model-impl offload-params
optimization-level override-attention-dtype quantization reasoning-parser response-role safetensors-load-strategy
tokenizer-mode tokenizer-revision tool-call-parser
attention-config.backend attention-config.flash_attn_version attention-config.use_prefill_decode_attention
attention-config.use_trtllm_attention attention-config.disable_flashinfer_prefill
compilation-config.compile_sizes compilation-config.cudagraph_capture_sizes compilation-config.cudagraph_mode
compilation-config.cudagraph_num_of_warmups compilation-config.custom_ops compilation-config.level
compilation-config.max_cudagraph_capture_size compilation-config.mode compilation-config.pass_config.*
compilation-config.use_inductor compilation-config.use_inductor_graph_partition
default-chat-template-kwargs.clear_thinking default-chat-template-kwargs.enable_thinking
default-chat-template-kwargs.preserve_thinking default-chat-template-kwargs.reasoning_effort
default-chat-template-kwargs.thinking default-chat-template-kwargs.thinking_budget
engram-config.cpu_offload
eplb-config.log_balancedness eplb-config.num_redundant_experts eplb-config.step_interval eplb-config.window_size
hf-overrides.architectures hf-overrides.classifier_from_token hf-overrides.is_matryoshka
hf-overrides.is_original_qwen3_reranker hf-overrides.matryoshka_dimensions hf-overrides.max_position_embeddings
hf-overrides.num_experts_per_tok hf-overrides.rope_parameters.* hf-overrides.rope_scaling.* hf-overrides.rope_theta
hf-overrides.text_config.rope_parameters.* hf-overrides.text_config.rope_scaling.*
kernel-config.enable_flashinfer_autotune kernel-config.linear_backend kernel-config.moe_backend
limit-mm-per-prompt.* media-io-kwargs.video.fps media-io-kwargs.video.num_frames
mm-processor-kwargs.fps mm-processor-kwargs.max_pixels mm-processor-kwargs.min_pixels mm-processor-kwargs.num_crops
mm-processor-kwargs.num_frames
model-loader-extra-config.concurrency model-loader-extra-config.memory_limit
override-generation-config.max_new_tokens override-generation-config.min_p
override-generation-config.repetition_penalty override-generation-config.temperature
override-generation-config.top_k override-generation-config.top_p
pooler-config.dimensions pooler-config.normalize pooler-config.pooling_type pooler-config.seq_pooling_type
pooler-config.task pooler-config.tok_pooling_type pooler-config.use_activation
reasoning-config.reasoning_parser
speculative-config.attention_backend speculative-config.disable_padded_drafter_batch
speculative-config.draft_sample_method speculative-config.draft_tensor_parallel_size
speculative-config.max_model_len speculative-config.method=mtp speculative-config.method=ngram
speculative-config.method=ngram_gpu speculative-config.method=suffix speculative-config.moe_backend
speculative-config.num_speculative_tokens speculative-config.prompt_lookup_max speculative-config.prompt_lookup_min
speculative-config.quantization speculative-config.rejection_sample_method
structured-outputs-config.backend structured-outputs-config.disable_additional_properties
structured-outputs-config.disable_any_whitespace structured-outputs-config.enable_in_reasoning
structured-outputs-config.reasoning_parser
"""
_DANGEROUS_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "opens endpoints that change and stop the engine",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "runs code out of messages (pickle)",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "lets requests load adapters from paths of the node",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "lets fetched images lead it to any address",
    "VLLM_MEDIA_CONNECTOR": _MODULE,
    "VLLM_PLUGINS": _MODULE,
    "VLLM_LOGGING_CONFIG_PATH": "loads classes that a logging configuration names",
    "VLLM_RUST_FRONTEND_PATH": "runs another program",
    **dict.fromkeys(("VLLM_NCCL_SO_PATH", "VLLM_CUDART_SO_PATH"), "loads another library"),
    **dict.fromkeys(
        ("VLLM_MODEL_REDIRECT_PATH", "VLLM_USE_MODELSCOPE", "S3_ENDPOINT_URL"), "takes models from somewhere else"
    ),
    "VLLM_USAGE_STATS_SERVER": "sends what it does somewhere else",
    "VLLM_CI_USE_S3": "takes models from somewhere else",
    "VLLM_USE_RUST_FRONTEND": "runs another program",
    "VLLM_ENABLE_COHERE_API": "opens further endpoints",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "writes what it answers into the log",
    "VLLM_REQUEST_BODY_LOG_LEVEL": "writes what people ask into the log",
    "VLLM_ENABLE_RESPONSES_API_STORE": "keeps what people ask and get",
    "VLLM_V1_USE_OUTLINES_CACHE": "keeps on disk, without an end, what requests bring",
    "VLLM_TRACE_FUNCTION": "writes every call into files",
}
_CAPTURED = Counted("captured", 0.5)  # in tokens, and it captures two for each request
_COUNTED = {
    "kv-cache-memory-bytes": Counted("cache"),
    "kv-offloading-size": Counted("host", GIB, of_all=True),
    "mm-processor-cache-gb": Counted("host", GIB),
    "mm-ipc-gpu-memory-gb": Counted("share", GIB),
    "api-server-count": Counted("host", GIB),
    "max-cudagraph-capture-size": _CAPTURED,
    "cudagraph-capture-sizes": _CAPTURED,
    "compilation-config.max_cudagraph_capture_size": _CAPTURED,
    "compilation-config.cudagraph_capture_sizes": _CAPTURED,
    **STREAMED,
}
_UNCOUNTED = {
    "num-gpu-blocks-override": Uncounted(
        "is the cache in blocks, whose size the engine alone knows", "Set kv-cache-memory-bytes"
    ),
    "kv-transfer-config": Uncounted(
        "keeps a second cache, in the memory that the GPU has", "Set kv-offloading-size, in GiB, which the plan counts"
    ),
    **dict.fromkeys(("cpu-offload-gb", "cpu-offload-params", "offload-params", "offload-group-size"), OFFLOAD),
    **dict.fromkeys(("offload-backend", "offload-num-in-group", "offload-prefetch-step", "swap-space"), OFFLOAD),
    "eplb-config.num_redundant_experts": REDUNDANT,
    "safetensors-load-strategy=eager": Uncounted(
        "eager reads whole files into memory, beside what is loaded already", "Leave it out"
    ),
    **STREAMER,
    **WIDE,
}
_OTHERWISE = {
    "enable-prefix-caching": True,
    **dict.fromkeys(("kv-transfer-config", "kv-offloading-size", "kv-offloading-backend")),
}
_WITHOUT_DRAFT = ("ngram", "[ngram]", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states")
_CHOOSING_ENVIRONMENT = frozenset({
    *("VLLM_FLOAT32_MATMUL_PRECISION", "VLLM_KV_CACHE_LAYOUT", "VLLM_SSM_CONV_STATE_LAYOUT", "VLLM_LOGGING_LEVEL"),
    *("VLLM_MARLIN_INPUT_DTYPE", "VLLM_NVFP4_GEMM_BACKEND", "VLLM_FLASHINFER_MOE_BACKEND", "VLLM_GDN_DECODE_KERNEL"),
    *("VLLM_FLASHINFER_ALLREDUCE_BACKEND", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_DEEP_GEMM_WARMUP"),
    "VLLM_CPU_OMP_THREADS_BIND",
})  # fmt: skip


class VLLM(Engine):
    name = "vllm"
    label = "vLLM"
    short = "vllm"
    starter = "vllm.entrypoints.openai.api_server"
    distributions = ("vllm", "vllm-cpu")
    image = "nvcr.io/nvidia/vllm:26.10-py3"
    prefix = "VLLM_"
    underscores = True
    help_words = ("vllm", "serve", "--help=all")
    planned = _PLANNED
    removed = _REMOVED
    removed_environment = _REMOVED_ENVIRONMENT
    dangerous = _DANGEROUS
    harmless = frozenset(_HARMLESS.split())
    dangerous_environment = _DANGEROUS_ENVIRONMENT
    choosing_environment = _CHOOSING_ENVIRONMENT
    per_node = frozenset({"VLLM_HOST_IP"})
    runtime = "venv"
    batched_option = "max-num-batched-tokens"
    sequences_option = "max-num-seqs"
    loader_option = "load-format"
    kv_dtype_option = "kv-cache-dtype"
    eager_option = "enforce-eager"
    draft_option = "speculative-config"
    draft_keys = True
    drafts = ("draft_model", "eagle3", "mtp", "dflash", "dspark")
    drafts_in_one_step = ("dflash", "dspark")  # 0.33, config/vllm.py: max_num_active_seqs
    counted = _COUNTED
    uncounted = _UNCOUNTED
    prefixes_otherwise = _OTHERWISE
    salted = api_paths.PROMPTS
    lora = Lora("enable-lora", ("max-loras", 1), ("max-lora-rank", 16), "max-cpu-loras")
    profile_options = _PROFILE_OPTIONS
    key_variable = "VLLM_API_KEY"
    config_root = f"{paths.ETC}/vllm"
    devices = ("gpu", "cpu")
    tasks = tuple(api_paths.PROBED)
    over_ray = True
    replicas = True
    replica_port = ports.VLLM_REPLICAS
    uneven_experts = True
    share_of_free = False

    def image_version(self, image: str) -> str:
        """By the image's tag: NVIDIA's months, or vLLM's own ``vllm/vllm-openai:v0.33.0``."""
        tag = image.split("@", maxsplit=1)[0].rpartition(":")[2]
        if "nvcr.io/nvidia/vllm" in image:
            return IMAGES.get(tag.split("-")[0], "")
        return tag.lstrip("v").split("-")[0] if tag.lstrip("v")[:1].isdigit() else ""

    def backend(self, asked: str, replicas_of_one: bool, image: str) -> str:
        # Ray only where it is asked for: it starts and serves again later, and takes more memory (docs/performance.md).
        return "ray" if asked == "ray" and not self.no_ray(replicas_of_one, image) else "native"

    def no_ray(self, replicas_of_one: bool, image: str) -> str:
        if replicas_of_one:
            return "replicas of one node each find each other without Ray"
        version = tuple(map(int, re.findall(r"\d+", self.image_version(image))[:2]))
        if "vllm/vllm-openai" in image and version >= IMAGE_WITHOUT_RAY:
            return f"vLLM's own image has no Ray since {'.'.join(map(str, IMAGE_WITHOUT_RAY))}"
        return ""

    def ranks(self, launch: Launch) -> list[Rank]:
        """Under Ray only the head runs the command."""
        if launch.backend in {"single", "ray"}:
            options = _common(launch) | _ray(launch) | _api(launch)
            return [self._serve(launch, options, {"api": launch.port}), *[Rank()] * (len(launch.ordered) - 1)]
        made = []
        ports = {"api": launch.port, "rendezvous": launch.rendezvous_port}
        for number in range(len(launch.ordered)):
            own = _replica(launch, number) if launch.parallel.data > 1 else _native(launch, number)
            options = _common(launch) | own | (_api(launch) if number == 0 else {"headless": True})
            made.append(self._serve(launch, options, ports if number == 0 else {}))
        return made

    def _serve(self, launch: Launch, options: Mapping[str, Any], ports: Mapping[str, int]) -> Rank:
        words = kinds_base.render({**options, **launch.options}, option_tables.load(self.name, launch.version))
        return Rank((f"{launch.bin}vllm", "serve", launch.model), words, ports=ports)

    def drafting(self, given: Mapping[str, Any]) -> Drafting | None:
        """``spec-method`` and its like stand for keys of ``speculative-config``."""

        def value(key: str, short: str = "") -> Any:
            return given.get(f"speculative_config.{key}") or given.get(short)

        if not any(name.startswith(("speculative_config", "spec_")) for name in given):
            return None
        method, model = str(value("method", "spec_method") or ""), str(value("model", "spec_model") or "")
        return Drafting(
            method,
            model,
            str(value("revision") or ""),
            kinds_base.whole(value("num_speculative_tokens", "spec_tokens")),
            kinds_base.whole(value("draft_tensor_parallel_size")),
            nothing=method in _WITHOUT_DRAFT or model in _WITHOUT_DRAFT,
            whole="speculative_config" in given,
        )

    def defaults(self, runtime: str, backend: str) -> dict[str, str]:
        # Its ray_non_carry_over_env_vars.json keeps the API key out of what vLLM copies to the ranks.
        root = {"VLLM_CONFIG_ROOT": self.config_root} if runtime == "venv" or backend == "ray" else {}
        kept = {"VLLM_CACHE_ROOT": f"{paths.KERNELS}/vllm"} if runtime == "container" else {}
        return {"VLLM_NO_USAGE_STATS": "1", "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0", **root, **kept}

    def own_environment(self, address: str, ray_directory: str) -> dict[str, str]:
        # The engine and the rank on its node meet at sockets in a directory that both containers have.
        return {"VLLM_HOST_IP": address, **({"VLLM_RPC_BASE_PATH": ray_directory} if ray_directory else {})}

    def rules(self, parallel: Parallel, backend: str, where: str, names: OptionNames) -> Iterator[Finding]:
        if backend == "native" and parallel.data > 1 and parallel.tensor * parallel.pipeline > 1:
            yield Finding(
                where,
                "replicas that span several nodes each are not started without Ray",
                instead_of_replicas(parallel, names),
            )

    def not_started(self, backend: str, runtime: str, parallel: Parallel, names: OptionNames) -> tuple[str, str] | None:
        if backend != "ray" or parallel.data == 1:
            return None
        return "replicas over Ray", instead_of_replicas(parallel, names)


def _common(launch: Launch) -> dict[str, Any]:
    parallel = launch.parallel
    planned: dict[str, Any] = {
        "served-model-name": launch.served,
        "tensor-parallel-size": parallel.tensor,
        "max-model-len": launch.context,
        "max-num-seqs": launch.sequences,
        **kinds_base.media(ENGINE, launch),  # part of the model's configuration, which all ranks must share
    }
    if launch.prefixes.base:
        planned["kv-transfer-config"] = _kept_on_disk(launch.prefixes)
    if launch.task != "generate":
        planned["runner"] = "pooling"  # vLLM converts a model that generates by itself (--convert auto)
    if launch.revision:
        planned["revision"] = launch.revision
    if parallel.pipeline > 1:
        planned["pipeline-parallel-size"] = parallel.pipeline
    if parallel.expert:
        planned["enable-expert-parallel"] = True
    if launch.budget:
        share = f"{launch.budget.utilization:.3f}"
        planned["gpu-memory-utilization"] = share[:-1] if share.endswith("0") else share
        # What vLLM measures counts what it compiles at a first start, the page cache, and what others take meanwhile.
        planned["kv-cache-memory-bytes"] = launch.budget.kv_cache_memory_bytes
    if launch.draft:
        draft: dict[str, Any] = {
            "method": launch.draft.method,
            "num_speculative_tokens": launch.draft.tokens,
            **launch.draft.options,
        }
        if launch.draft.model:
            draft["model"] = launch.draft.model
        if launch.draft.revision:
            draft["revision"] = launch.draft.revision
        planned["speculative-config"] = draft
    return planned


def _kept_on_disk(prefixes: Prefixes) -> dict[str, Any]:
    """Blocks are copied into memory of the node as they are filled, and from there into files named by their hash."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": prefixes.memory,
            "secondary_tiers": [{"type": "fs", "root_dir": prefixes.directory}],
        },
    }


def _api(launch: Launch) -> dict[str, Any]:
    return {"host": launch.api_host, "port": launch.port}


def _ray(launch: Launch) -> dict[str, Any]:
    if launch.backend != "ray":
        return {}
    if launch.parallel.data > 1:
        return {
            "data-parallel-size": launch.parallel.data,
            "data-parallel-size-local": 1,
            "data-parallel-address": launch.head.cluster_address,
            "data-parallel-backend": "ray",
            "distributed-executor-backend": "ray",
        }
    # Without it vLLM counts the GPUs of this node only and refuses (since 0.13).
    return {"distributed-executor-backend": "ray"}


def _native(launch: Launch, number: int) -> dict[str, Any]:
    return {
        "nnodes": len(launch.ordered),
        "node-rank": number,
        "master-addr": launch.head.cluster_address,
        "master-port": launch.rendezvous_port,
    }


def _replica(launch: Launch, number: int) -> dict[str, Any]:
    """One API server: by default there is one per replica, each with memory that the head's own replica needs."""
    return {
        "data-parallel-size": launch.parallel.data,
        "data-parallel-size-local": 1,
        "data-parallel-address": launch.head.cluster_address,
        "data-parallel-rpc-port": ENGINE.replica_port,
        **({"api-server-count": 1} if number == 0 else {}),
        **({"data-parallel-start-rank": number} if number else {}),
    }


ENGINE = VLLM()
