# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""Command lines of public guides for several Sparks, as facts: what they pass, and what has to be said of it.

The guides: NVIDIA's playbooks and forum, vendors' walkthroughs and community launchers, as of November 2026. Each entry
is one mistake, in the shape in which the guides have it.
"""

import shlex

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import option_tables, parallelism
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import sglang, tensorrt_llm, vllm
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture

SPECS = {"vllm": vllm.ENGINE, "sglang": sglang.ENGINE, "trtllm-serve": tensorrt_llm.ENGINE}
# program and version, options as the guide passes them, replacement that has to be named
REFUSED = [
    (
        "vllm 0.33.0",
        "--tensor-parallel-size 2 --speculative-model draft --num-speculative-tokens 5",
        "--speculative-config",
    ),
    ("vllm 0.33.0", "--num-speculative-tokens 5", "num_speculative_tokens inside --speculative-config"),
    ("vllm 0.33.0", "--speculative-draft-tensor-parallel-size 1", "draft_tensor_parallel_size inside"),
    ("vllm 0.31.0", "--speculative-model draft", "--speculative-config"),
    ("vllm 0.20.1", "--speculative-model draft", "--speculative-config"),
    ("vllm 0.32.0", "--max-model-len 32768 --disable-log-requests", "Leave it out"),
    ("vllm 0.31.0", "--disable-log-requests", "Leave it out"),
    ("vllm 0.20.1", "--disable-log-requests", "Leave it out"),
    ("vllm 0.33.0", "--quantization fp4 --kv-cache-dtype fp8", "modelopt_fp4"),
    ("vllm 0.33.0", "--swap-space 16", "removed in 0.18"),
    ("vllm 0.33.0", "--gpu-memory-util 0.85", "--gpu-memory-utilization"),
    ("vllm 0.33.0", "--guided-decoding-backend xgrammar", "--structured-outputs-config"),
    ("vllm 0.33.0", "--use-v2-block-manager", "Leave it out"),
    ("sglang 0.5.23", "--tp 2 --dist-init-addr 192.168.100.10:20000", "--tp-size"),
    ("sglang 0.5.23", "--pp 2", "--pp-size"),
    ("sglang 0.5.23", "--quantization fp4", "modelopt_fp4"),
    ("sglang 0.5.23", "--cuda-graph-max-bs 8", "--cuda-graph-max-bs-decode"),
    ("trtllm-serve 1.2.1", "--engine_dir /engines/llama", "Give the model itself"),
    ("trtllm-serve 1.4.0", "--engine_dir /engines/llama --port 8000", "Give the model itself"),
    ("trtllm-serve 1.4.0", "--backend tensorrt", "Use pytorch"),
    ("trtllm-serve 1.4.0", "--max_input_len 4096", "--max_seq_len"),
    ("trtllm-serve 1.4.0", "--max_output_len 1024", "--max_seq_len"),
    ("trtllm-serve 1.4.0", "--gemm_plugin auto", "no longer built"),
    ("trtllm-serve 1.4.0", "--use_fp4", "no longer built"),
    ("trtllm-serve 1.4.0", "--enable_chunked_context", "--enable_chunked_prefill"),
]
VARIABLES = [
    ("0.33.0", "VLLM_ATTENTION_BACKEND", "--attention-backend"),
    ("0.20.1", "VLLM_ATTENTION_BACKEND", "--attention-backend"),
    ("0.33.0", "VLLM_DISTRIBUTED_EXECUTOR_CONFIG", "never existed"),
    ("0.33.0", "VLLM_USE_V1", "only the V1 engine"),
    ("0.33.0", "VLLM_RPC_TIMEOUT", "Leave it out"),
    ("0.33.0", "VLLM_SKIP_INIT_MEMORY_CHECK", "Leave it out"),
    ("0.31.0", "VLLM_NVFP4_GEMM_BACKEND", "--linear-backend"),
    ("0.31.0", "VLLM_USE_FLASHINFER_MOE_FP4", "--moe-backend"),
    ("0.31.0", "VLLM_FLASHINFER_MOE_BACKEND", "--moe-backend"),
    ("0.33.0", "VLLM_USE_RAY_COMPILED_DAG", "gone"),
    ("0.33.0", "VLLM_ENABLE_ROCE_ALLREDUCE", "only a fork"),
]
# What the same guides pass and may go on passing.
ACCEPTED = [
    ("vllm 0.33.0", "--tensor-parallel-size 4 --distributed-executor-backend ray --gpu-memory-utilization 0.85"),
    ("vllm 0.33.0", "--max-model-len 128k --max-num-seqs 16 --max-num-batched-tokens 8192 --language-model-only"),
    (
        "vllm 0.33.0",
        "--enable-prefix-caching --enable-chunked-prefill --reasoning-parser qwen3 --tool-call-parser qwen3_xml",
    ),
    ("vllm 0.33.0", "--limit-mm-per-prompt.video 0 --mm-encoder-tp-mode data --safetensors-load-strategy eager"),
    ("vllm 0.33.0", "--attention-backend FLASHINFER --enable-expert-parallel --quantization awq --block-size 128"),
    ("vllm 0.33.0", "-tp 2 --nnodes 2 --node-rank 1 --master-addr 192.168.100.10 --master-port 29501 --headless"),
    ("vllm 0.31.0", "--load-format fastsafetensors --enforce-eager --kv-cache-dtype fp8 --kv-cache-memory-bytes 40G"),
    ("vllm 0.33.0", "--disable-log-requests"),
    ("sglang 0.5.23", "--model-path m --tp-size 2 --nnodes 2 --node-rank 1 --dist-init-addr 192.168.100.10:20000"),
    ("sglang 0.5.23", "--speculative-algorithm EAGLE --speculative-num-steps 5 --speculative-eagle-topk 8"),
    (
        "sglang 0.5.23",
        "--mem-fraction-static 0.80 --max-running-requests 16 --chunked-prefill-size 4096 --enable-cache-report",
    ),
    (
        "trtllm-serve 1.4.0",
        "--tp_size 2 --pp_size 1 --ep_size 2 --gpus_per_node 1 --max_batch_size 4 --max_num_tokens 4096",
    ),
    ("trtllm-serve 1.2.1", "--backend pytorch --extra_llm_api_options extra.yml --log_level info --port 8355"),
]


def findings(program, line):
    name, version = program.split()
    return "\n".join(map(str, kinds_base.check_words(SPECS[name], version, shlex.split(line), "guide")))


@pytest.mark.parametrize(("program", "line", "replacement"), REFUSED)
def test_refused_with_the_replacement(program, line, replacement):
    assert replacement in findings(program, line)


@pytest.mark.parametrize(("version", "name", "replacement"), VARIABLES)
def test_variables_refused_with_the_replacement(version, name, replacement):
    text = "\n".join(map(str, kinds_base.examine(vllm.ENGINE, version, {}, {name: "1"}, "guide")))
    assert replacement in text


@pytest.mark.parametrize(("program", "line"), ACCEPTED)
def test_what_is_right_is_left_alone(program, line):
    assert findings(program, line) == ""


LLAMA_70B = Architecture(layers=80, attention_heads=64, kv_heads=8, head_dim=128)


def test_sizes_of_guides_that_cannot_work():
    _, (problem, *_rest) = parallelism.choose(LLAMA_70B, 3, parallelism.Asked(tensor=3), vllm.ENGINE)
    assert problem.remedy == "Tensor parallel sizes that work on 3 nodes: 1"


def test_how_many_were_refused():
    # The figure in docs/performance.md.
    assert len(REFUSED) + len(VARIABLES) == 36
    assert option_tables.load("ray", "2.60.0").long_name("--block")
