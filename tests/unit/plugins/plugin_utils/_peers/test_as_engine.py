# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""Recipes of sparkrun and spark-vllm-docker: own small ones with the same keys, and what has to come out of each."""

import json
from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import as_engine, read

SPARKRUN = {
    "recipe_version": "2",
    "model": "Qwen/Qwen3.6-35B-A3B-FP8",
    "runtime": "vllm",
    "container": "some/image:latest",
    "metadata": {"description": "A model"},
    "mods": ["mods/some-fix"],
    "defaults": {
        "host": "0.0.0.0",
        "tensor_parallel": 1,
        "gpu_memory_utilization": 0.8,
        "max_model_len": 131072,
        "speculative_config": '{"method": "mtp", "num_speculative_tokens": 2}',
    },
    "env": {"VLLM_MARLIN_USE_ATOMIC_ADD": "1", "NCCL_IB_DISABLE": "0"},
    "command": "vllm serve {model} \\\n  --host {host} --trust-remote-code --chat-template own.jinja \\\n"
    "  --max-model-len {max_model_len} --max-num-seqs 8 --gpu-memory-utilization {gpu_memory_utilization} \\\n"
    "  --speculative-config '{speculative_config}' --kv-cache-dtype fp8 -tp {tensor_parallel}\n",
}
DOCKER = {
    "recipe_version": "1",
    "name": "A model",
    "model": "saricles/MiniMax-M2.7-NVFP4-GB10",
    "container": "vllm-node",
    "cluster_only": True,
    "build_args": ["--tf5"],
    "defaults": {"port": 8000, "tensor_parallel": 2, "gpu_memory_utilization": 0.85, "max_model_len": 196608},
    "env": {"VLLM_USE_FLASHINFER_MOE_FP4": "0"},
    "command": "vllm serve saricles/MiniMax-M2.7-NVFP4-GB10 --port {port} -tp {tensor_parallel} \\\n"
    "  --max-model-len {max_model_len} --gpu-memory-utilization {gpu_memory_utilization} --no-such-option 1 \\\n"
    "  --distributed-executor-backend ray --max-num-batched-tokens 8192 \\\n"
    '  --compilation-config \'{{"cudagraph_mode":"none"}}\'\n',
}


def translated(tmp_path, document, **changes):
    path = tmp_path / "their.yaml"
    path.write_text(yaml.safe_dump({**document, **changes}))
    return as_engine.made(read.read(str(path)))


PEERS = yaml.safe_load((Path(__file__).resolve().parents[3] / "fixtures/peer_recipes.yml").read_text())


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer["name"])
def test_recipes_of_others_by_hand(tmp_path, peer):
    made = translated(tmp_path, peer["theirs"])
    document = {**made.document}
    shape = document.pop("architecture", None)
    for key in ("description", "sources", "weights_gb", "active_gb"):
        document.pop(key, None)
    assert document == peer["ours"]
    # Only what is named, and all of it.
    left = list(peer["left_out"]) + ([] if peer.get("shape", True) else ["architecture and weights_gb"])
    assert bool(shape) == peer.get("shape", True)
    assert [words for words in left if not any(said.startswith(words) for said in made.left_out)] == []
    assert len(made.left_out) == len(left), made.left_out
    assert [finding.found for finding in made.findings] == []


def test_braces_are_meant_where_the_other_tool_doubles_them(tmp_path):
    command = 'vllm serve a/b --speculative-config \'{{"method":"dflash","model":"a/d","num_speculative_tokens":{n}}}\''
    made = translated(tmp_path, DOCKER, command=command, defaults={"n": 7})
    assert made.document["draft"] == {"method": "dflash", "tokens": 7, "model": "a/d"}
    literal = 'vllm serve a/b --compilation-config \'{"pass_config":{"fuse_act_quant":true}}\''
    made = translated(tmp_path, SPARKRUN, command=literal)
    assert made.document["options"] == {"compilation-config": {"pass_config": {"fuse_act_quant": True}}}


BRACES = 'vllm serve a/b --speculative-config \'{{"method":"mtp","num_speculative_tokens":{n}}}\''


@pytest.mark.parametrize(
    ("keys", "draft", "said"),
    [
        # Where two open a brace anywhere in the command, two are one, in every version (sparkrun 0.4 and its elder).
        ({"recipe_version": "1", "runtime": "vllm"}, 5, ""),
        ({"recipe_version": 1}, 5, ""),
        ({}, 5, ""),
        ({"recipe_version": "2", "runtime": "vllm"}, 5, ""),
        ({"runtime": "vllm"}, 5, ""),
    ],
)
def test_braces_are_doubled_where_two_open_one(tmp_path, keys, draft, said):
    made = translated(tmp_path, {"model": "a/b", "command": BRACES, "defaults": {"n": 5}, **keys})
    assert made.document.get("draft", {}).get("tokens", 0) == draft
    assert "speculative-config" not in made.document.get("options", {})
    assert said in "\n".join(made.left_out)


def test_a_draft_without_a_number_is_named(tmp_path):
    command = 'vllm serve a/b --speculative-config \'{{"method":"mtp","num_speculative_tokens":"{none}"}}\''
    made = translated(tmp_path, DOCKER, command=command, defaults={})
    assert "draft" not in made.document and "the draft (mtp): it has no number of tokens ({none})" in made.left_out


@pytest.mark.parametrize(
    ("asked", "model", "context", "said"),
    [
        ("auto", "Qwen/Qwen3.6-35B-A3B-FP8", 262144, False),
        ("auto", "some/other", 32768, True),
        (-1, "some/other", 32768, True),
        ("1e999", "some/other", 32768, True),
        ("128k", "some/other", 128000, False),
        ("128K", "some/other", 131072, False),
    ],
)
def test_a_context_that_is_no_number(tmp_path, asked, model, context, said):
    made = translated(tmp_path, SPARKRUN, model=model, defaults={**SPARKRUN["defaults"], "max_model_len": asked})
    assert made.document["context"] == context
    assert any(line.startswith("a context of ") for line in made.left_out) == said


def test_a_recipe_without_a_command(tmp_path):
    defaults = {"port": 8000, "tensor_parallel": 4, "max_model_len": 65536, "gpu_memory_utilization": 0.7}
    defaults |= {"kv_cache_dtype": "fp8_e4m3", "max_num_seqs": 8, "trust_remote_code": False, "own_thing": 3}
    theirs = {"recipe_version": "2", "model": "some/other", "runtime": "sglang", "min_nodes": 4, "defaults": defaults}
    made = translated(tmp_path, theirs, model_revision="abc")
    document = made.document
    assert (document["engine"], document["model"], document["revision"]) == ("sglang", "some/other", "abc")
    assert (document["context"], document["min_nodes"], document["gpu_memory_utilization"]) == (65536, 4, 0.7)
    assert document["options"] == {"kv-cache-dtype": "fp8_e4m3", "max-running-requests": 8}
    assert any(said.startswith("own_thing (3): sparkrun drops it") for said in made.left_out)


def test_every_key_is_used_or_named(tmp_path):
    keys = {"runtime_version": "x-0.1", "patches": ["one.diff"], "variants": {"fast": {}}, "draft_model": "a/d"}
    keys |= {"builder": "pull", "distribution_config": {"on": True}, "pre_exec": ["true"], "post_exec": ["true"]}
    keys |= {"metadata": {"description": "A model", "num_layers": 24}, "another_of_tomorrow": 7}
    made = translated(tmp_path, SPARKRUN, **keys)
    assert [key for key in keys if not any(said.startswith(f"{key} (") for said in made.left_out)] == []
    plain = translated(tmp_path, SPARKRUN).left_out
    assert not any(said.startswith(("recipe_version", "metadata", "defaults")) for said in plain)


def test_a_model_that_is_not_known_here(tmp_path):
    made = translated(tmp_path, SPARKRUN, model="some/other")
    assert "architecture" not in made.document
    assert "recipes_model_files=DIR" in "\n".join(made.left_out)
    config = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": 2_000_000_000}, "weight_map": {}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    made = as_engine.made(read.read(str(tmp_path / "their.yaml")), model_files=str(tmp_path))
    assert made.document["architecture"]["layers"] == 4
    assert made.document["weights_gb"] == 2.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[1]", "no command"),
        ("{runtime: atlas, model: a/b, defaults: {ep_size: 2}}", "none of vLLM, SGLang"),
        ("{runtime: ds4-cuda, model: a/b, defaults: {ctx: 2}}", "what its runtime ds4-cuda makes of its defaults"),
        ("{model: a/b, command: 'uvicorn server:app --port 8000'}", "none of vLLM, SGLang"),
        ("command: echo hello", "none of vLLM, SGLang"),
        ("command: vllm serve 'a", "cannot be read"),
        (": : :", "no valid YAML"),
    ],
)
def test_what_is_no_recipe_of_theirs(tmp_path, text, found):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(SparkError, match=found):
        as_engine.made(read.read(str(path)))
    with pytest.raises(SparkError, match="No such file"):
        read.read(str(tmp_path / "none.yaml"))


def test_secrets_of_theirs_are_neither_shown_nor_taken_over(tmp_path):
    secrets = [
        "sk-0123456789abcdef",
        "hf_0123456789abcdefgh",
        "0123456789abcdef",
        "Bearer abcdef012345",
        "hunter2hunter2",
    ]
    command = (
        f"vllm serve {{model}} --api-key {secrets[0]} --tool-server '{secrets[3]}' --max-num-seqs 8 --no-such-option"
    )
    made = translated(
        tmp_path,
        SPARKRUN,
        command=command,
        env={"HF_TOKEN": secrets[1], "WANDB_API_KEY": secrets[2], "LD_PRELOAD": "/a/hook.so"},
        executor_config={"env": [{"HF_TOKEN": secrets[1]}], "registry_password": secrets[4]},
    )
    said = "\n".join(made.left_out)
    assert [secret for secret in secrets if secret in said + made.text] == []
    assert made.document["options"] == {"max-num-seqs": 8}
    assert "environment" not in made.document
    for part in (
        "--api-key …: it looks like a secret",
        "--tool-server …: it looks like a secret",
        "HF_TOKEN=…: it looks like a secret",
        "WANDB_API_KEY=…: it looks like a secret",
        "LD_PRELOAD=/a/hook.so: it may load code",
        "put LD_PRELOAD into engine_environment",
        "--no-such-option: ",  # a switch has no value
        "executor_config (env: HF_TOKEN: …, registry_password: …)",
    ):
        assert part in said


def test_the_model_of_a_container_is_an_option(tmp_path):
    """Where the engine is the image's entrypoint, no word stands before the options."""
    path = tmp_path / "run.sh"
    path.write_text("docker run --gpus all vllm/vllm-openai:v0.33.0 --model Qwen/Qwen3-8B --max-model-len 4096\n")
    made = as_engine.made(read.read(str(path)))
    assert made.document["model"] == "Qwen/Qwen3-8B" and "description" not in made.document
    assert not any("Qwen3-8B" in line for line in made.left_out)
