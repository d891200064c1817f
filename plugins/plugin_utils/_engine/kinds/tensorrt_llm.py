# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""TensorRT-LLM: ``trtllm-serve`` with the PyTorch backend; over several nodes one MPI process each, from the head.

Building engines (``trtllm-build``, ``convert_checkpoint.py``) went with the TensorRT backend: a checkpoint is served as
it is.
"""

from __future__ import annotations

from typing import Any

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import API_HOST, Launch, Rank, Spec
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.memory_fit import Budget

DECODING = {"draft_model": "DraftTarget", "eagle3": "Eagle3", "mtp": "MTP"}
MAX_FREE_FRACTION = 0.80  # of what is free after loading, which on unified memory is all that the system has left
_NODES = "nothing: it follows from the nodes of the inventory"
_FILE = "nothing: the plan writes the file, and options without a flag in engine_options go into it"
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

SPEC = Spec(
    name="tensorrt-llm",
    label="TensorRT-LLM",
    distributions=("tensorrt-llm",),
    image="nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
    prefix="TRTLLM_",
    separator="_",
    planned={
        "served_model_name": "engine_served_model_name",
        "host": "nothing: the API listens on the head's loopback, since it has neither key nor TLS",
        "port": "engine_port",
        "tp_size": "engine_tensor_parallel_size",
        "tensor_parallel_size": "engine_tensor_parallel_size",
        "pp_size": "engine_pipeline_parallel_size",
        "pipeline_parallel_size": "engine_pipeline_parallel_size",
        "ep_size": "engine_expert_parallel",
        "moe_expert_parallel_size": "engine_expert_parallel",
        "gpus_per_node": _NODES,
        "max_batch_size": "engine_concurrency",
        "max_seq_len": "engine_context",
        "free_gpu_memory_fraction": "engine_gpu_memory_utilization",
        "kv_cache_free_gpu_memory_fraction": "engine_gpu_memory_utilization",
        "config": _FILE,
        "extra_llm_api_options": _FILE,
        "revision": "the recipe's revision",
    },
    removed={
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
    },
    file_options=frozenset(_FILE_FIELDS.split()),
    file_planned={
        "enable_iter_perf_stats": "nothing: the keeper tells by it a busy engine from one that stands still",
        "env_overrides": "engine_environment",
        "kv_cache_config.free_gpu_memory_fraction": "engine_gpu_memory_utilization",
        "kv_cache_config.max_gpu_total_bytes": "engine_gpu_memory_utilization",
        "kv_cache_config.max_tokens": "engine_gpu_memory_utilization",
    },
)
STARTER_VARIABLES = ("OMPI_MCA_plm_", "OMPI_MCA_orte_")  # of mpirun, not of the ranks


def image_version(image: str) -> str:
    tag = image.split("@", maxsplit=1)[0].rpartition(":")[2]
    return tag if tag[:1].isdigit() else ""


def ranks(launch: Launch) -> list[Rank]:
    """Options of the file are those that the command line does not have.

    Over several nodes the head runs ``mpirun``, which has the other ranks become its daemons (:mod:`_engine.mpi`). Each
    has the environment of its own node; nothing is carried over.
    """
    path = f"{launch.file_directory}/trtllm.yml"
    written = kinds_base.in_file(SPEC, launch.version, launch.options)
    given = {name: value for name, value in launch.options.items() if name not in written}
    options = _common(launch) | {"config": path} | given
    flags = kinds_base.flags_of(SPEC, launch.version)
    argv = [f"{launch.bin}trtllm-serve", launch.model, *kinds_base.render(options, flags)]
    files = {path: yaml.safe_dump(kinds_base.merge_deep(_file(launch), written), sort_keys=True)}
    environment = {"TRT_LLM_DISABLE_LOAD_WEIGHTS_IN_PARALLEL": "1"}  # loading in parallel runs out of memory
    if launch.backend != "mpi":
        return [Rank(argv, environment, {"api": launch.port}, files)]
    hosts, port = f"{launch.file_directory}/mpi-hosts", launch.rendezvous_port
    head = launch.head.cluster_address
    files[hosts] = "".join(f"{fact.cluster_address} slots=1\n" for fact in launch.ordered)
    # One process per node, whose threads may use all of it: mpirun would bind it to one core.
    command = [
        "mpirun",
        "--allow-run-as-root",
        "-n",
        str(len(launch.ordered)),
        "--hostfile",
        hosts,
        "--bind-to",
        "none",
    ]
    over_mpi = {
        "OMPI_MCA_plm_rsh_agent": f"{_node_program.PATH} mpi order --port {port} --source {head}",
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",  # the head starts all daemons; the others have nothing to start one with
        "OMPI_MCA_orte_leave_session_attached": "1",  # the daemon stays the container's process
    }
    first = Rank(
        [*command, f"{launch.bin}trtllm-llmapi-launch", *argv], environment | over_mpi, {"api": launch.port}, files
    )
    wait = [_node_program.PATH, "mpi", "wait", "--head", head, "--listen"]
    return [
        first,
        *[
            Rank([*wait, f"{fact.cluster_address}:{port}"], environment, {"rendezvous": port})
            for fact in launch.ordered[1:]
        ],
    ]


def _common(launch: Launch) -> dict[str, Any]:
    parallel = launch.parallel
    planned: dict[str, Any] = {
        "host": API_HOST,
        "port": launch.port,
        "tp_size": parallel.tensor,
        "max_batch_size": launch.concurrency,
        "max_seq_len": launch.context,
        "gpus_per_node": 1,
    }
    if launch.revision:
        planned["revision"] = launch.revision
    if parallel.pipeline > 1:
        planned["pp_size"] = parallel.pipeline
    if parallel.expert:
        planned["ep_size"] = parallel.tensor
    table = kinds_base.flags_and_values(SPEC, launch.version)
    if "served_model_name" in table:
        planned["served_model_name"] = launch.served
    if launch.budget:
        planned["free_gpu_memory_fraction"] = f"{free_fraction(launch.budget):.2f}"
    return planned


def served_name(launch: Launch) -> str:
    """1.2 has no option for the name: clients use the last part of the model's."""
    known = kinds_base.flags_and_values(SPEC, launch.version)
    return launch.served if "served_model_name" in known else launch.model.rstrip("/").rpartition("/")[2]


def free_fraction(budget: Budget) -> float:
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
