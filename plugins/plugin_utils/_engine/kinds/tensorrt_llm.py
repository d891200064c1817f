# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""TensorRT-LLM: ``trtllm-serve`` with the PyTorch backend; over several nodes one MPI process each, from the head.

Building engines (``trtllm-build``, ``convert_checkpoint.py``) went with the TensorRT backend: a checkpoint is served as
it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Memory, Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import (
    API_HOST,
    REDUNDANT,
    WIDE,
    Counted,
    Drafting,
    Engine,
    Launch,
    Lora,
    Rank,
    Uncounted,
)

DECODING = {"draft_model": "DraftTarget", "eagle3": "Eagle3", "mtp": "MTP"}
MAX_FREE_FRACTION = 0.80  # of what is free after loading, which on unified memory is all that the system has left
_NODES = "nothing: it follows from the nodes of the inventory"
_FILE = "nothing: the plan writes the file, and options without a flag in {options} go into it"
# Fields of TorchLlmArgs (tensorrt_llm/llmapi/llm_args.py, 1.2 to 1.4) without a flag in one of these versions.
_FILE_FIELDS = """
allreduce_strategy attention_dp_config attn_backend batch_wait_max_tokens_ratio batch_wait_timeout_iters
batch_wait_timeout_ms cache_transceiver_config checkpoint_format checkpoint_io_policy cp_config
cuda_graph_config disable_mm_encoder disable_overlap_scheduler dtype enable_attention_dp enable_autotuner
enable_energy_metrics enable_iter_perf_stats enable_iter_req_stats enable_layerwise_nvtx_marker
enable_lm_head_tp_in_adp enable_lora enable_min_latency force_dynamic_quantization
garbage_collection_gen0_threshold gather_generation_logits guided_decoding_backend iter_stats_max_iterations
kv_cache_config kv_connector_config load_format lora_config max_stats_len model_kwargs moe_config
multimodal_config nvfp4_gemm_config peft_cache_config pp_partition prefill_capture_num_tokens
prefill_cuda_graph_backend print_iter_log prometheus_metrics_config reorder_policy_config
request_stats_max_iterations return_perf_metrics sampler_type scheduler_config skip_tokenizer_init
sparse_attention_config speculative_config stream_interval telemetry_config tokenizer_mode
tokenizer_revision torch_compile_config use_cute_dsl_bf16_bmm use_cute_dsl_bf16_gemm
use_cute_dsl_blockscaling_bmm use_cute_dsl_blockscaling_mm
"""
_BUILD = "Leave it out: engines are no longer built; serve an NVFP4 or FP8 checkpoint directly"
_PLANNED = {
    "served_model_name": "{served_model_name}",
    "host": "nothing: the API listens on the head's loopback, since it has neither key nor TLS",
    "port": "{port}",
    "tp_size": "{tensor_parallel_size}",
    "tensor_parallel_size": "{tensor_parallel_size}",
    "pp_size": "{pipeline_parallel_size}",
    "pipeline_parallel_size": "{pipeline_parallel_size}",
    "ep_size": "{expert_parallel}",
    "moe_expert_parallel_size": "{expert_parallel}",
    "gpus_per_node": _NODES,
    "max_seq_len": "{context}",
    "free_gpu_memory_fraction": "{gpu_memory_utilization}",
    "kv_cache_free_gpu_memory_fraction": "{gpu_memory_utilization}",
    "config": _FILE,
    "extra_llm_api_options": _FILE,
    "revision": "the recipe's revision",
}
_REMOVED = {
    "--engine_dir": "Give the model itself: a directory of engines was never an option, nor are any built",
    "--checkpoint_dir": _BUILD,
    "--output_dir": _BUILD,
    "--model_dir": _BUILD,
    "--gemm_plugin": _BUILD,
    "--use_fp4": _BUILD,
    "--use_fp8": _BUILD,
    "--paged_kv_cache": "Leave it out: the cache is always paged",
    "--use_paged_context_fmha": _BUILD,
    "--enable_chunked_context": "Use --enable_chunked_prefill",
    "--max_input_len": "Use --max_seq_len",
    "--max_output_len": "Use --max_seq_len",
    "--backend=tensorrt": "Use pytorch, the default: the TensorRT backend was removed",
    "--backend=trt": "Use pytorch, the default: the TensorRT backend was removed",
}
_FILE_PLANNED = {
    "enable_iter_perf_stats": "nothing: the keeper tells by it a busy engine from one that stands still",
    "env_overrides": "{environment}",
    "kv_cache_config.free_gpu_memory_fraction": "{gpu_memory_utilization}",
    "kv_cache_config.max_gpu_total_bytes": "{gpu_memory_utilization}",
    "kv_cache_config.max_tokens": "{gpu_memory_utilization}",
}
_PROFILE_OPTIONS = {"agentic": {"enable_chunked_prefill": True}}


_MODULE = "loads Python code that it names"
_DANGEROUS = {
    "trust_remote_code": "runs Python files from the model's repository",
    **dict.fromkeys(
        ("custom_module_dirs", "custom_tokenizer", "middleware", "post_processor_hook", "kv_connector_config"), _MODULE
    ),
    "metadata_server_config_file": "lets another program say where its parts are",
    "disagg_cluster_uri": "lets another program say where its parts are",
    "allow_request_chat_template": "runs templates out of requests",
    **dict.fromkeys(("otlp_traces_endpoint", "telemetry"), "sends what it does somewhere else"),
    "grpc": "listens somewhere else",
}
# With a word as their value, mostly in the file; of mappings the keys. Values that the tables know need no line here.
_HARMLESS = """
log_level reasoning_parser tool_parser
allreduce_strategy attn_backend batch_wait_max_tokens_ratio batch_wait_timeout_iters batch_wait_timeout_ms
disable_mm_encoder disable_overlap_scheduler dtype enable_attention_dp enable_autotuner enable_energy_metrics
enable_iter_req_stats enable_layerwise_nvtx_marker enable_lm_head_tp_in_adp enable_lora enable_min_latency
force_dynamic_quantization garbage_collection_gen0_threshold gather_generation_logits guided_decoding_backend
iter_stats_max_iterations max_stats_len pp_partition prefill_capture_num_tokens prefill_cuda_graph_backend
request_stats_max_iterations return_perf_metrics sampler_type skip_tokenizer_init stream_interval tokenizer_mode
tokenizer_revision use_cute_dsl_bf16_bmm use_cute_dsl_bf16_gemm use_cute_dsl_blockscaling_bmm
use_cute_dsl_blockscaling_mm
attention_dp_config.batching_wait_iters attention_dp_config.enable_balance attention_dp_config.timeout_iters
cuda_graph_config.batch_sizes cuda_graph_config.enable_padding cuda_graph_config.max_batch_size
kv_cache_config.dtype kv_cache_config.enable_block_reuse kv_cache_config.enable_partial_reuse
kv_cache_config.max_attention_window kv_cache_config.mamba_ssm_cache_dtype kv_cache_config.tokens_per_block
moe_config.backend moe_config.disable_finalize_fusion moe_config.max_num_tokens
moe_config.use_low_precision_moe_combine
nvfp4_gemm_config.allowed_backends
scheduler_config.capacity_scheduler_policy scheduler_config.context_chunking_policy
speculative_config.allow_advanced_sampling speculative_config.decoding_type=MTP
speculative_config.decoding_type=NGram speculative_config.max_draft_len
speculative_config.max_matching_ngram_size speculative_config.num_nextn_predict_layers
torch_compile_config.capture_num_tokens torch_compile_config.enable_fullgraph
torch_compile_config.enable_inductor torch_compile_config.enable_piecewise_cuda_graph
torch_compile_config.max_num_streams
"""


_SECOND_CACHE = Uncounted(
    "keeps a second cache, in the memory that the GPU has", "Set kv_cache_config.host_cache_size, which the plan counts"
)
_OF_FREE = Uncounted("is a share of what is free, which the cache has already", "Leave it out")
_COUNTED = {
    "kv_cache_config.host_cache_size": Counted("host"),
    "peft_cache_config.host_cache_size": Counted("host"),
    "cuda_graph_config.max_batch_size": Counted("captured"),
    "cuda_graph_config.batch_sizes": Counted("captured"),
}
_UNCOUNTED = {
    "kv_cache_config.use_uvm": Uncounted("lets the cache grow beyond its size", "Leave it out"),
    "kv_connector_config": _SECOND_CACHE,
    "cache_transceiver_config": _SECOND_CACHE,
    "peft_cache_config.device_cache_percent": _OF_FREE,
    "moe_config.load_balancer": REDUNDANT,
    "force_dynamic_quantization": Uncounted("loads weights before they are quantized", "Use a quantized checkpoint"),
    **WIDE,
}
# Fields of KvCacheConfig that say how the cache is used, and not how large it is (1.2 to 1.4).
_CACHE_FIELDS = """
attention_dp_events_gather_period_ms copy_on_partial_reuse dtype enable_block_reuse enable_partial_reuse
event_buffer_max_size kv_cache_event_hash_algo mamba_ssm_cache_dtype mamba_ssm_stochastic_rounding max_attention_window
max_util_for_resume onboard_blocks secondary_offload_min_priority sink_token_length tokens_per_block
use_kv_cache_manager_v2
"""
_CLOSED = {"kv_cache_config": frozenset(_CACHE_FIELDS.split())}
_WITHOUT_DRAFT = ("NGRAM", "LOOKAHEAD", "AUTO", "USERPROVIDED", "USER_PROVIDED", "SUFFIX")


class TensorRTLLM(Engine):
    name = "tensorrt-llm"
    label = "TensorRT-LLM"
    short = "trtllm"
    starter = "trtllm-serve"
    distributions = ("tensorrt-llm",)
    image = "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
    prefix = "TRTLLM_"
    help_words = ("trtllm-serve", "serve", "--help")
    planned = _PLANNED
    removed = _REMOVED
    dangerous = _DANGEROUS
    harmless = frozenset(_HARMLESS.split())
    file_options = frozenset(_FILE_FIELDS.split())
    file_planned = _FILE_PLANNED
    batched_option = "max_num_tokens"
    sequences_option = "max_batch_size"
    kv_dtype_option = "kv_cache_dtype"
    draft_option = "speculative_config"
    drafts = tuple(DECODING)
    counted = _COUNTED
    uncounted = _UNCOUNTED
    closed = _CLOSED
    lora = Lora("lora_config", ("lora_config.max_loras", 4), ("lora_config.max_lora_rank", 64))
    profile_options = _PROFILE_OPTIONS
    metrics = "/prometheus/metrics"

    def image_version(self, image: str) -> str:
        tag = image.split("@", maxsplit=1)[0].rpartition(":")[2]
        return tag if tag[:1].isdigit() else ""

    def backend(self, asked: str, replicas_of_one: bool, image: str) -> str:
        return "mpi"

    def served_name(self, launch: Launch) -> str:
        """1.2 has no option for the name: clients use the last part of the model's."""
        known = kinds_base.flags_and_values(self, launch.version)
        return launch.served if "served_model_name" in known else launch.model.rstrip("/").rpartition("/")[2]

    def kv_dtype(self, options: Mapping[str, Any]) -> str:
        """1.2 has it in its file only."""
        nested = options.get("kv_cache_config")
        fallback = nested.get("dtype", "auto") if isinstance(nested, Mapping) else "auto"
        return str(options.get(self.kv_dtype_option, fallback))

    def drafting(self, given: Mapping[str, Any]) -> Drafting | None:
        if "speculative_config" not in given:
            return None

        def value(*keys: str) -> Any:
            return next(
                (given[f"speculative_config.{key}"] for key in keys if f"speculative_config.{key}" in given), ""
            )

        method = str(value("decoding_type"))
        return Drafting(
            method,
            str(value("speculative_model", "speculative_model_dir") or ""),
            tokens=kinds_base.whole(value("max_draft_len", "num_nextn_predict_layers")),
            nothing=method.upper() in _WITHOUT_DRAFT,
            whole=True,
        )

    def ranks(self, launch: Launch) -> list[Rank]:
        """Options of the file are those that the command line does not have.

        Over several nodes the head runs ``mpirun``, which has the other ranks become its daemons
        (:mod:`_engine.mpi`). Each has the environment of its own node; nothing is carried over.
        """
        path = f"{launch.file_directory}/trtllm.yml"
        written = kinds_base.in_file(self, launch.version, launch.options)
        given = {name: value for name, value in launch.options.items() if name not in written}
        options = _common(launch) | {"config": path} | given
        words = kinds_base.render(options, option_tables.load(self.name, launch.version))
        files = {path: yaml.safe_dump(kinds_base.merge_deep(_file(launch), written), sort_keys=True)}
        program = (f"{launch.bin}trtllm-serve", launch.model)
        environment = {"TRT_LLM_DISABLE_LOAD_WEIGHTS_IN_PARALLEL": "1"}  # loading in parallel runs out of memory
        alone = Rank(program, words, environment=environment, ports={"api": launch.port}, files=files)
        return _over_mpi(launch, alone) if launch.backend == "mpi" else [alone]

    def check_ranks(self, launch: Launch, ranks: Sequence[Rank], where: str) -> Iterator[Finding]:
        """What trtllm-llmapi-launch makes of the command line of the head."""
        if launch.backend != "mpi":
            return
        for word in (*ranks[0].starter, *ranks[0].program, *ranks[0].options):
            if len(word.split()) != 1:
                yield Finding(
                    where,
                    f"trtllm-llmapi-launch would take {word!r} apart at its spaces",
                    "Choose a value without spaces, or put it into a file",
                )

    def not_started(self, backend: str, runtime: str, parallel: Parallel, names: OptionNames) -> tuple[str, str] | None:
        if backend != "mpi" or runtime == "container":
            return None
        remedy = f"Set {names['runtime']}: container"
        return "TensorRT-LLM over several nodes from Python environments", remedy


def _over_mpi(launch: Launch, alone: Rank) -> list[Rank]:
    hosts, port = f"{launch.file_directory}/mpi-hosts", launch.rendezvous_port
    head = launch.head.cluster_address
    count = str(len(launch.ordered))
    first = replace(
        alone,
        program=(f"{launch.bin}trtllm-llmapi-launch", *alone.program),
        # One process per node, whose threads may use all of it: mpirun would bind it to one core.
        starter=("mpirun", "--allow-run-as-root", "-n", count, "--hostfile", hosts, "--bind-to", "none"),
        starter_environment={
            "OMPI_MCA_plm_rsh_agent": f"{paths.NODE_PROGRAM} mpi order --port {port} --source {head}",
            # The head starts all daemons; the others have nothing to start one with.
            "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
            "OMPI_MCA_orte_leave_session_attached": "1",  # the daemon stays the container's process
        },
        files={**alone.files, hosts: "".join(f"{fact.cluster_address} slots=1\n" for fact in launch.ordered)},
    )
    wait = (paths.NODE_PROGRAM, "mpi", "wait", "--head", head, "--listen")
    return [
        first,
        *[
            Rank((*wait, f"{fact.cluster_address}:{port}"), environment=alone.environment, ports={"rendezvous": port})
            for fact in launch.ordered[1:]
        ],
    ]


def _common(launch: Launch) -> dict[str, Any]:
    parallel = launch.parallel
    planned: dict[str, Any] = {
        "host": API_HOST,
        "port": launch.port,
        "tp_size": parallel.tensor,
        "max_batch_size": launch.sequences,
        "max_seq_len": launch.context,
        "gpus_per_node": 1,
    }
    if launch.revision:
        planned["revision"] = launch.revision
    if parallel.pipeline > 1:
        planned["pp_size"] = parallel.pipeline
    if parallel.expert:
        planned["ep_size"] = parallel.tensor
    table = kinds_base.flags_and_values(ENGINE, launch.version)
    if "served_model_name" in table:
        planned["served_model_name"] = launch.served
    if launch.budget:
        planned["free_gpu_memory_fraction"] = f"{free_fraction(launch.budget):.2f}"
    return planned


def free_fraction(budget: Memory) -> float:
    """The cache's part of what is free after loading, so that the engine stays within its share of all memory."""
    free = max(1, budget.total - budget.weights - budget.overhead - budget.host)
    return max(0.01, min(MAX_FREE_FRACTION, int(100 * budget.kv_available / free) / 100))


def _file(launch: Launch) -> dict[str, Any]:
    # The keeper sees by its iterations whether an engine that gives no answer is busy or stands still.
    made: dict[str, Any] = {"kv_cache_config": {"enable_block_reuse": True}, "enable_iter_perf_stats": True}
    if launch.shared and launch.budget and launch.budget.cache_tokens:
        # The smaller of this and the share of free memory counts: services beside it may come later.
        made["kv_cache_config"]["max_tokens"] = launch.budget.cache_tokens
    if launch.draft:
        draft: dict[str, Any] = {"decoding_type": DECODING[launch.draft.method]}
        length = "num_nextn_predict_layers" if launch.draft.method == "mtp" else "max_draft_len"
        draft[length] = launch.draft.tokens
        if launch.draft.model:
            draft["speculative_model"] = launch.draft.model
        made["speculative_config"] = draft
    return made


ENGINE = TensorRTLLM()
