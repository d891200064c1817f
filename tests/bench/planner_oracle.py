#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Ask real vLLM (CPU build) how many tokens fit into a KV cache, and compare the planner.

``planner_oracle.py ENGINE DIR``: ENGINE is the interpreter of the lab's engine environment (tests/lab/engine_env.py),
DIR takes the tiny models. For each kind of attention a model with random weights is made and vLLM started once; the
planner reads the same config.json. About a minute per model on two cores.
"""

from __future__ import annotations

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "collections"))

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import cache_layout as layout
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import model as engine_model

SIZE = 256 * 1024**2
CONTEXT = 1024
ONE = Parallel(1, 1, "")
TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
COMMON = "vocab_size=512,hidden_size=128,intermediate_size=256,num_hidden_layers=4,num_attention_heads=4"
KINDS = {
    "gqa": ("Llama", f"{COMMON},num_key_value_heads=2,head_dim=32,max_position_embeddings=2048"),
    "mla": (
        "DeepseekV2",
        f"{COMMON},num_key_value_heads=4,kv_lora_rank=512,q_lora_rank=None,qk_rope_head_dim=64,qk_nope_head_dim=128,"
        "v_head_dim=128,moe_intermediate_size=64,n_routed_experts=4,n_shared_experts=1,num_experts_per_tok=2,"
        "first_k_dense_replace=4,max_position_embeddings=2048,topk_group=1,n_group=1",
    ),
    "hybrid": (
        "Qwen3Next",
        f"{COMMON},num_key_value_heads=2,head_dim=64,linear_num_key_heads=2,linear_num_value_heads=4,"
        "linear_key_head_dim=64,linear_value_head_dim=64,linear_conv_kernel_dim=4,num_experts=4,num_experts_per_tok=2,"
        "moe_intermediate_size=64,shared_expert_intermediate_size=64,max_position_embeddings=2048,"
        "full_attention_interval=4",
    ),
}
MAKE = """
import sys, torch
from transformers import {0}Config, {0}ForCausalLM
{0}ForCausalLM({0}Config({1})).to(torch.bfloat16).save_pretrained(sys.argv[1])
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def logged(engine: str, model: pathlib.Path) -> int:
    """Tokens in vLLM's own log line."""
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    command = [engine, "-m", "vllm.entrypoints.cli.main", "serve", str(model), "--skip-tokenizer-init"]
    command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", "2", "--dtype", "bfloat16", "--enforce-eager"]
    command += ["--kv-cache-memory-bytes", str(SIZE), "--host", "127.0.0.1", "--port", str(free_port())]
    log = model / "vllm.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            end = time.monotonic() + 240
            while time.monotonic() < end and process.poll() is None:
                found = TOKENS.search(log.read_text(errors="replace"))
                if found:
                    return int(found[1].replace(",", ""))
                time.sleep(1)
        finally:
            # Its children outlive a process that is stopped while it starts.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    sys.exit(f"vLLM said nothing about its cache: {log}")


def planned(model: pathlib.Path) -> float:
    shape, _weights = engine_model.read(model)
    # The CPU build aligns blocks to 128 tokens and keeps states in float32; 0.32 has two of them per group.
    shape = replace(shape, state_bytes=4)
    kept = layout.cache(shape, ONE, layout.Load(CONTEXT, 1), state_blocks=2, align=128)
    if shape.linear_layers:
        return SIZE // kept.block_bytes / kept.blocks(CONTEXT) * CONTEXT
    return SIZE / layout.kv_per_token(shape, ONE)


def main(argv: list[str]) -> int:
    if len(argv) != 2:
        sys.exit(__doc__)
    engine, directory = argv[0], pathlib.Path(argv[1])
    worst = 0.0
    print("| Attention | Tokens in vLLM's log | Computed | Error |\n|---|---|---|---|")
    for kind, (family, sizes) in KINDS.items():
        model = directory / kind
        model.mkdir(parents=True, exist_ok=True)
        subprocess.run([engine, "-c", MAKE.format(family, sizes), str(model)], check=True, capture_output=True)
        tokens, computed = logged(engine, model), planned(model)
        worst = max(worst, abs(computed / tokens - 1))
        print(f"| {kind} | {tokens:,} | {computed:,.0f} | {100 * (computed / tokens - 1):+.2f} % |", flush=True)
    return 1 if worst > 0.03 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
