# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What sparkrun makes of the defaults of a recipe without a command: one map for each runtime, in its order.

Facts of sparkrun 0.4 (its runtimes, read 2026-11-26). A key that is not here reaches nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


@dataclass(frozen=True)
class Table:
    program: tuple[str, ...]
    options: tuple[str, ...]
    model: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    negated: frozenset[str] = frozenset()  # false is --no-x
    worded: frozenset[str] = frozenset()  # a switch that takes a word
    words: Mapping[bool, str] = field(default_factory=lambda: {True: "true", False: "false"})
    revision: bool = False
    underscores: bool = False
    others: bool = False  # further keys are options, too

    def flag(self, key: str) -> str:
        if key in self.renamed:
            return self.renamed[key]
        if key not in self.options and not self.others:
            return ""
        return "--" + (key if self.underscores else key.replace("_", "-"))


_VLLM = Table(
    ("vllm", "serve"),
    _names(
        "tensor_parallel pipeline_parallel data_parallel port host gpu_memory_utilization max_model_len"
        " max_num_batched_tokens max_num_seqs served_model_name dtype quantization enforce_eager enable_prefix_caching"
        " trust_remote_code kv_cache_dtype otlp_traces_endpoint api_key attention_backend load_format reasoning_parser"
        " tool_call_parser chat_template speculative_config tokenizer_mode mm_encoder_tp_mode block_size seed"
        " enable_auto_tool_choice enable_chunked_prefill async_scheduling generation_config hf_overrides"
        " compilation_config attention_config model_loader_extra_config default_chat_template_kwargs"
        " limit_mm_per_prompt mm_processor_cache_gb kv_cache_memory_bytes max_cudagraph_capture_size"
        " long_prefill_token_threshold mamba_cache_mode safetensors_load_strategy moe_backend"
        " enable_prompt_tokens_details enable_force_include_usage enable_request_id_headers"
        " enable_flashinfer_autotune linear_backend gdn_prefill_backend gdn_decode_kernel kda_prefill_backend"
        " mamba_backend recurrent_checkpoint_policy prefix_cache_retention_interval engram_config dcp_comm_backend"
        " prefill_policy prefill_compute_share prefill_compute_half_life prefill_schedule_interval"
        " max_parallel_prefills decode_refill_target scheduler_reserve_full_isl jit_monitor_mode"
        " disable_custom_all_reduce"
    ),
    renamed={"tensor_parallel": "-tp", "pipeline_parallel": "-pp", "data_parallel": "--data-parallel-size"},
    negated=frozenset(
        _names(
            "enable_prefix_caching enable_chunked_prefill async_scheduling enable_flashinfer_autotune"
            " scheduler_reserve_full_isl"
        )
    ),
    revision=True,
)
_SGLANG = Table(
    ("sglang", "serve"),
    _names(
        "tensor_parallel pipeline_parallel data_parallel port host gpu_memory_utilization max_model_len max_num_seqs"
        " chunked_prefill served_model_name dtype quantization trust_remote_code kv_cache_dtype tokenizer_path api_key"
        " attention_backend load_format reasoning_parser tool_call_parser mm_feature_transport speculative_algorithm"
        " speculative_draft_model_path speculative_draft_model speculative_draft_model_revision speculative_num_steps"
        " speculative_eagle_topk speculative_num_draft_tokens speculative_dspark_block_size cuda_graph_bs"
        " cuda_graph_max_bs cuda_graph_max_bs_decode torch_compile_max_bs num_continuous_decode_steps"
        " fp8_gemm_backend fp4_gemm_backend moe_runner_backend mamba_ssm_dtype mamba_full_memory_ratio"
        " enable_torch_compile disable_radix_cache disable_prefill_cuda_graph enable_dp_attention"
    ),
    model=("--model-path",),
    renamed={
        "tensor_parallel": "--tp-size",
        "pipeline_parallel": "--pp-size",
        "data_parallel": "--dp-size",
        "gpu_memory_utilization": "--mem-fraction-static",
        "max_model_len": "--context-length",
        "max_num_seqs": "--max-running-requests",
        "chunked_prefill": "--chunked-prefill-size",
        "speculative_draft_model": "--speculative-draft-model-path",
    },
    revision=True,
)
_TRTLLM = Table(
    ("trtllm-serve",),
    _names(
        "port host backend tensor_parallel pipeline_parallel ep_size max_num_tokens max_batch_size max_model_len"
        " tokenizer kv_cache_free_gpu_memory_fraction trust_remote_code"
    ),
    renamed={"tensor_parallel": "--tp_size", "pipeline_parallel": "--pp_size", "max_model_len": "--max_seq_len"},
    underscores=True,
)
_LLAMA = Table(
    ("llama-server",),
    _names(
        "port host ctx_size max_model_len n_gpu_layers parallel threads chat_template reasoning_format split_mode"
        " served_model_name top_p top_k temperature min_p presence_penalty flash_attn cont_batching no_webui jinja"
        " webui mmap"
    ),
    model=("-hf",),
    renamed={"max_model_len": "--ctx-size", "served_model_name": "--alias", "temperature": "--temp"},
    negated=frozenset({"webui", "mmap"}),
    worded=frozenset({"flash_attn"}),
    words={True: "on", False: "off"},
)
_ATLAS = Table(
    ("spark", "serve"),
    (),
    renamed={
        "tensor_parallel": "--tp-size",
        "max_model_len": "--max-seq-len",
        "max_num_batched_tokens": "--max-prefill-tokens",
        "served_model_name": "--model-name",
        "api_key": "--auth-token",
    },
    worded=frozenset(
        _names(
            "disable_tool_grammar gdn_fused_norm ssm_batched_recurrent ssm_tail_midchunk prefill_varlen_batch"
            " exact_verify content_loop_watchdog high_speed_swap_graph"
        )
    ),
    others=True,
)
RUNTIMES: dict[str, Table] = {
    **dict.fromkeys(("vllm", "vllm-distributed", "vllm-ray", "eugr-vllm"), _VLLM),
    "sglang": _SGLANG,
    "trtllm": _TRTLLM,
    "llama-cpp": _LLAMA,
    "atlas": _ATLAS,
}


def of(runtime: str) -> Table | None:
    return RUNTIMES.get(runtime)
