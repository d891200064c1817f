# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whatever an option takes of a node's memory is counted, or it is refused."""

from __future__ import annotations

import re

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    memory_options,
    option_tables,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from engine_plans import foreign, required

GIB = 1024**3
DRAFT = "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"  # of the recipe llama-3.1-70b-fp8-eagle3
REQUIREMENTS = {"vllm": ("vllm==0.33.0",), "sglang": ("sglang==0.5.23",), "tensorrt-llm": ()}
IMAGES = {"tensorrt-llm": "nvcr.io/nvidia/tensorrt-llm/release:1.4.0"}


def planned(options, engine="vllm", recipe="qwen3-8b", count=1, **settings):
    made = required(*engine_recipe.find(recipe, ()))
    given = {"requirements": REQUIREMENTS[engine], "image": IMAGES.get(engine, ""), "engine": engine, **settings}
    given["runtime"] = "container" if engine == "tensorrt-llm" else "venv"
    facts = engine_plan.assumed_facts([f"spark{number + 1}" for number in range(count)])
    return engine_plan.plan(made, facts, UserSettings(options=options, only_print=True, **given), {})


def memory(result):
    assert result.plans, [str(item) for item in result.findings]
    return result.plans["spark1"].here[0].memory


def refused(result):
    assert not result.plans
    return "\n".join(str(item) for item in result.findings if item.severity == "error")


# --- every name of the newest tables

WORDS = frozenset(
    re.findall(
        r"\w+",
        """backup block blocks buffer bytes cache capture copies draft fraction gb gpu host kv lora loras mb mem memory
        offload offloading pool ratio redundant reserve reserved size swap token tokens weights""",
    )
)
# Names with such a word that take nothing beside what the fit counts: they say how the cache or a step is used, of
# which type it is, whom to talk to, or how a file is read.
HARMLESS = {
    "vllm": """
        block-size cp-kv-cache-interleave-size dbo-decode-token-threshold dbo-prefill-token-threshold
        dcp-kv-cache-interleave-size decode-context-parallel-size default-mm-loras disable-hybrid-kv-cache-manager
        elastic-ep-max-dp-size enable-mamba-cache-stochastic-rounding enable-mixed-moe-lora-format
        enable-moe-shared-loras enable-prompt-tokens-details enable-tower-connector-lora fully-sharded-loras
        h11-max-incomplete-event-size kv-cache-dtype-skip-layers kv-cache-metrics kv-cache-metrics-sample
        kv-events-config kv-offloading-backend kv-sharing-fast-prefill long-prefill-token-threshold
        long-prefill-token-threshold-adaptive lora-dtype lora-modules lora-target-modules mamba-block-size
        mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype max-lora-cls-labels
        max-num-queued-tokens max-num-scheduled-tokens mm-processor-cache-type mm-shm-cache-max-object-size-mb
        prefill-context-parallel-size prefix-cache-retention-interval replayssm-buffer-len
        return-tokens-as-token-ids safetensors-prefetch-block-size scheduler-reserve-full-isl
        sleep-mode-offload-cudagraph specialize-active-lora tokens-only ubatch-size
        """,
    "sglang": """
        asr-max-buffer-seconds attn-cp-size attn-dp-size base-gpu-id batch-notify-size bucket-inter-token-latency
        bucket-time-to-first-token c128-page-size checkpoint-engine-wait-weights-before-ready dcp-size
        decrypted-draft-config-file disable-chunked-prefix-cache disable-hybrid-swa-memory disable-outlines-disk-cache
        disable-radix-cache disaggregation-decode-enable-radix-cache disaggregation-decode-host-receive-threshold
        disaggregation-decode-retraction-backup disaggregation-enable-kv-checksum dp-size dwdp-size
        dynamic-batch-tokenizer-batch-size elastic-ep-initial-size experts-shared-outer-loras enable-cache-report
        enable-dsa-cache-layer-split
        enable-kv-cache-sharding enable-lora-overlap-loading enable-mamba-cache-stochastic-rounding enable-memory-saver
        enable-page-major-kv-layout enable-prefix-mm-cache enable-session-radix-cache enable-symm-mem
        enable-torch-symm-mem enable-unified-memory expert-distribution-recorder-buffer-size
        generation-tokens-buckets gpu-id-step hicache-host-memory-mode hicache-mem-layout
        http2-initial-connection-window-size int8-mamba-ckpt-size kt-max-deferred-experts-per-token kv-canary
        kv-canary-real-data kv-canary-sweep-interval kv-events-config linear-replayssm-cache-len lora-backend
        lora-drain-wait-threshold lora-eviction-policy lora-paths lora-strict-loading lora-target-modules
        lora-use-virtual-experts mamba-cache-philox-rounds mamba-full-memory-ratio mamba-radix-cache-strategy
        max-ep-size max-lora-chunk-size max-mamba-cache-size max-prefill-tokens media-url-max-file-size-mb
        mm-global-cache-backend moe-dense-tp-size moe-dp-size num-reserved-decode-tokens offload-mode
        offload-num-in-group offload-prefetch-step page-size ple-offload-backend ple-offload-dir ple-offload-embedding
        pp-max-micro-batch-size prefill-delayer-queue-min-ratio prefill-delayer-token-usage-low-watermark
        prefill-kv-cache-dequant-dtype prefill-only-disable-kv-cache prompt-tokens-buckets radix-cache-backend
        remote-instance-weight-loader-send-weights-group-ports sampling-mask-max-tokens shared-experts-tp-size
        strip-thinking-cache swa-full-tokens-ratio tbo-token-distribution-threshold triton-attention-num-kv-splits
        triton-attention-split-tile-size unified-cache-external-linker-backend unified-cache-external-linker-config
        uno-lora-path weight-cache-mode weight-cache-socket weight-cache-timeout weight-loader-drop-cache-after-load
        """,
    "tensorrt-llm": """
        batch_wait_max_tokens_ratio cluster_size context_parallel_size enable_lora prefill_capture_num_tokens
        """,
}


def of_memory(names):
    return {name for name in names if WORDS & set(re.split(r"[-_.]", name))}


def known(engine):
    """Names that the fit reads, or that the plan sets or refuses."""
    read = {getattr(engine, field) for field in vars(type(engine)) if field.endswith("_option")}
    lora = {engine.lora.switch, engine.lora.rank[0], engine.lora.at_once[0], engine.lora.held}
    tables = (*engine.counted, *engine.uncounted, *engine.closed, *engine.planned, *lora, *read)
    return {name.partition(".")[0].partition("=")[0] for name in tables}


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_no_option_that_takes_memory_slips_by(engine):
    table = option_tables.newest(engine.name, "")
    names = {name.lstrip("-") for name in table.options} | engine.file_options
    left = of_memory(names) - known(engine) - set(HARMLESS[engine.name].split())
    left = {name for name in left if not name.startswith(("spec-", "speculative-"))}  # engine.drafting
    assert not left, "count or refuse them in the engine's file, or name them harmless here"
    assert of_memory(["kv-cache-spare-bytes", "gpu-reserve", "x.host_cache_size", "swap-space"])


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_every_name_of_the_tables_is_one_of_the_engine(engine):
    names = {
        name.lstrip("-")
        for version in option_tables.versions(engine.name)
        for name in option_tables.load(engine.name, version).options
    }
    names |= {*engine.file_options, *(name.lstrip("-") for name in engine.removed)}
    wanted = {name.partition(".")[0].partition("=")[0] for name in (*engine.counted, *engine.uncounted, *engine.closed)}
    assert wanted <= names


# --- what is counted


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (75161927680, 75161927680), ("75161927680", 75161927680), ("200G", 200 * GIB), ("200g", 200 * 10**9),
        ("0.5g", 5 * 10**8), ("64K", 65536), ("2T", 2 * 1024**4), ("1Gi", GIB), ("1gi", GIB), (" 3M ", 3 * 1024**2),
        (["1G", "3G"], 3 * GIB), ("1e9", 10**9), (-1, -1), ("-1", -1),
        ("", None), ("auto", None), (True, None), (None, None), ("12 apples", None), ({}, None), ([], None),
    ],
)  # fmt: skip
def test_numbers_as_engines_read_them(value, size):
    assert memory_options.number(value) == size


PINNED = [
    {"kv-cache-memory-bytes": "200G"},
    {"kv_cache_memory_bytes": 200 * GIB},
    {"--kv-cache-memory-bytes": ["200G"]},
]


@pytest.mark.parametrize("options", PINNED, ids=str)
def test_a_cache_that_is_larger_than_the_memory_is_refused(options):
    said = refused(planned(options))
    assert "a KV cache of 200.0 GiB" in said and "are left for it" in said and "eave kv-cache-memory-bytes out" in said


def test_a_cache_of_ones_own_is_what_the_plan_counts_with():
    free, own = memory(planned({})), memory(planned({"kv-cache-memory-bytes": "40G"}))
    assert (own.kv_available, own.weights, own.overhead) == (40 * GIB, free.weights, free.overhead)
    assert own.max_concurrency < free.max_concurrency
    too_small = refused(planned({"kv-cache-memory-bytes": "1G"}))
    assert "the options ask for a KV cache of 1.0 GiB" in too_small and "engine_context: " in too_small


_STREAM = {"load-format": "runai_streamer", "model-loader-extra-config": {"memory_limit": 5 * GIB}}
COUNTED = [
    # engine, options, part, GiB
    ("vllm", _STREAM, "host", 5),
    ("sglang", _STREAM, "host", 5),
    ("vllm", {"kv-offloading-size": 12}, "host", 12),
    ("vllm", {"mm-processor-cache-gb": "8", "mm-ipc-gpu-memory-gb": 2}, "host", 8),
    ("vllm", {"mm-ipc-gpu-memory-gb": 2}, "overhead", 2),
    ("vllm", {"max-cudagraph-capture-size": 2176}, "overhead", 16),
    ("vllm", {"cudagraph-capture-sizes": [1, 2176]}, "overhead", 16),
    ("vllm", {"compilation-config": '{"cudagraph_capture_sizes": [1, 2176]}'}, "overhead", 16),
    ("vllm", {"compilation-config.max_cudagraph_capture_size": 2176}, "overhead", 16),
    ("sglang", {"hicache-size": 12, "enable-hierarchical-cache": True}, "host", 12e9 / GIB),
    ("sglang", {"mm-preprocess-cache-size-mb": 4096}, "host", 4),
    ("sglang", {"cuda-graph-max-bs-decode": 1088}, "overhead", 16),
    ("tensorrt-llm", {"kv_cache_config": {"host_cache_size": 12 * GIB}}, "host", 12),
    ("tensorrt-llm", {"kv_cache_config": '{"host_cache_size": 12884901888}'}, "host", 12),
]


@pytest.mark.parametrize(("engine", "options", "part", "more"), COUNTED, ids=str)
def test_what_an_option_takes_is_counted(engine, options, part, more):
    plain, taken = memory(planned({}, engine)), memory(planned(options, engine))
    assert getattr(taken, part) - getattr(plain, part) == pytest.approx(more * GIB, abs=1)


def test_a_size_that_ranks_share_is_divided():
    taken, plain = (memory(planned(given, count=2)) for given in ({"kv-offloading-size": 12}, {}))
    assert taken.host - plain.host == 6 * GIB


def test_a_cache_in_tokens():
    plain, own = memory(planned({}, "sglang")), memory(planned({"max-total-tokens": "300000"}, "sglang"))
    assert own.kv_available == 300000 // 16 * 16 * plain.kv_bytes_per_token < plain.kv_available
    assert "are left for it" in refused(planned({"max-total-tokens": 9_000_000}, "sglang"))


@pytest.mark.parametrize("value", [32768, "32768", "32K", ["32768"]])
def test_tokens_of_a_step_and_requests_count_however_they_are_written(value):
    plain, many = memory(planned({})), memory(planned({"max-num-batched-tokens": value}))
    assert many.activations > 3 * plain.activations - 2 * GIB
    assert memory(planned({"max-num-seqs": "256"})).sequences == 256


CHUNKS = [{"chunked-prefill-size": -1}, {"chunked-prefill-size": 32768}, {}]


def test_a_whole_prompt_in_one_step():
    whole, same, usual = (memory(planned(given, "sglang", context=32768)) for given in CHUNKS)
    assert whole.activations == same.activations > usual.activations


def test_adapters():
    plain, lora = memory(planned({})), memory(planned({"enable-lora": True, "max-loras": 4, "max-lora-rank": 64}))
    assert GIB < lora.overhead - plain.overhead < 4 * GIB
    assert memory(planned({"enable-lora": True, "max-cpu-loras": 8})).host > plain.host


def test_memory_outside_of_the_share_has_its_end():
    said = refused(planned({"kv-offloading-size": 40}))
    assert "the share leaves less than the 49.5 GiB that the system" in said and "eave kv-offloading-size out" in said


# --- what is refused

UNCOUNTED = [
    ("vllm", {"cpu-offload-gb": 20}, "cpu-offload-gb", "nothing becomes free"),
    ("vllm", {"cpu_offload_gb": "20"}, "cpu-offload-gb", "nothing becomes free"),
    ("vllm", {"num-gpu-blocks-override": 90000}, "num-gpu-blocks-override", "Set kv-cache-memory-bytes"),
    (
        "vllm",
        {"kv-transfer-config": {"kv_connector": "LMCacheConnectorV1"}},
        "kv-transfer-config",
        "kv-offloading-size",
    ),
    ("vllm", {"kv-transfer-config.kv_connector": "LMCacheConnectorV1"}, "kv-transfer-config", "offloading-size"),
    ("vllm", {"eplb-config": '{"num_redundant_experts": 8}'}, "eplb-config.num_redundant_experts", "copies of experts"),
    ("vllm", {"safetensors-load-strategy": "eager"}, "safetensors-load-strategy", "Leave it out"),
    ("vllm", {"load-format": "runai_streamer"}, "load-format", "memory_limit"),
    ("sglang", {"load-format": "runai_streamer"}, "load-format", "memory_limit"),
    ("vllm", {"dtype": "float32"}, "dtype", "bfloat16"),
    ("vllm", {"kv-offloading-size": "many"}, "kv-offloading-size", "has to be a number"),
    ("sglang", {"enable-hierarchical-cache": True}, "enable-hierarchical-cache", "hicache-size"),
    ("sglang", {"enable-hicache": True}, "enable-hierarchical-cache", "hicache-size"),
    ("sglang", {"enable-hierarchical-cache": True, "hicache-ratio": 3.0}, "hicache-ratio", "hicache-size"),
    ("sglang", {"enable-weights-cpu-backup": True}, "enable-weights-cpu-backup", "second time"),
    ("sglang", {"ep-num-redundant-experts": 4}, "ep-num-redundant-experts", "copies of experts"),
    ("sglang", {"mem-fraction-static": 0.85}, "mem-fraction-static", "engine_gpu_memory_utilization"),
    ("tensorrt-llm", {"kv_cache_config": {"use_uvm": True}}, "kv_cache_config.use_uvm", "Leave it out"),
    ("tensorrt-llm", {"kv_cache_config": {"max_tokens": 9}}, "kv_cache_config.max_tokens", "engine_gpu_memory"),
    ("tensorrt-llm", {"kv_cache_config": {"huge_pool": 9}}, "kv_cache_config.huge_pool", "nobody has looked"),
    (
        "tensorrt-llm",
        {"kv_cache_config": {"free_gpu_memory_fraction": 0.95}},
        "free_gpu_memory_fraction",
        "engine_gpu_",
    ),
    ("tensorrt-llm", {"free_gpu_memory_fraction": 0.95}, "free_gpu_memory_fraction", "engine_gpu_memory_utilization"),
]


@pytest.mark.parametrize(("engine", "options", "name", "remedy"), UNCOUNTED, ids=str)
def test_what_nobody_can_count_is_refused_with_what_to_set(engine, options, name, remedy):
    said = refused(planned(options, engine))
    assert said.startswith("engine_options: ") and name in said and remedy in said


def test_what_is_off_is_not_refused():
    assert planned({"cpu-offload-gb": 0, "offload-backend": "auto", "eplb-config": {"num_redundant_experts": 0}}).plans
    assert planned({"kv_cache_config": {"dtype": "fp8", "enable_block_reuse": False}}, "tensorrt-llm").plans
    assert planned({"enable-hierarchical-cache": False, "cpu-offload-gb": "0"}, "sglang").plans


@pytest.mark.parametrize("version", ["0.99.0", "0.33.0"])
def test_an_abbreviation_is_what_it_is_for(version):
    given = memory_options.spelled(ENGINES["vllm"], version, {"kv-cache-mem": "200G", "mm_processor_cache-g": 9})
    assert given == {"kv_cache_memory_bytes": "200G", "mm_processor_cache_gb": 9}


# --- drafts

EAGLE = {"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 5}
UNKNOWN = {"method": "draft_model", "model": "meta-llama/Llama-3.1-8B-Instruct", "num_speculative_tokens": 5}
OTHER = [
    ("vllm", {"speculative-config": UNKNOWN}),
    ("vllm", {"speculative_config": '{"method": "draft_model", "model": "someone/else"}'}),
    ("vllm", {"speculative-config.model": "someone/else"}),
    ("vllm", {"spec-model": "someone/else"}),
    ("sglang", {"speculative-algorithm": "STANDALONE", "speculative-draft-model-path": "someone/else"}),
    ("sglang", {"speculative-algorithm": "EAGLE3", "speculative-draft-model": "someone/else"}),
    ("tensorrt-llm", {"speculative_config": {"decoding_type": "Eagle3", "speculative_model_dir": "/models/else"}}),
]


@pytest.mark.parametrize("recipe", ["llama-3.1-70b-fp8", "llama-3.1-70b-fp8-eagle3"])
@pytest.mark.parametrize(("engine", "options"), OTHER, ids=str)
def test_a_draft_of_unknown_size_is_refused(engine, options, recipe):
    said = refused(planned(options, engine, recipe, 2))
    assert "engine_options: " in said and "Write the recipe's key draft" in said


def test_the_draft_that_is_used_is_the_one_that_counts():
    without = memory(planned({}, "vllm", "llama-3.1-70b-fp8", 2))
    own = memory(planned({}, "vllm", "llama-3.1-70b-fp8-eagle3", 2))
    assert own.weights - without.weights == int(3.2e9 / 2)
    same = memory(planned({"speculative-config": EAGLE}, "vllm", "llama-3.1-70b-fp8-eagle3", 2))
    assert (same.weights, same.kv_bytes_per_token) == (own.weights, own.kv_bytes_per_token)
    apart = {**EAGLE, "draft_tensor_parallel_size": 1}
    whole = memory(planned({"speculative-config": apart}, "vllm", "llama-3.1-70b-fp8-eagle3", 2))
    assert whole.weights - without.weights == int(3.2e9)
    ngram = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
    none = memory(planned({"speculative-config": ngram}, "vllm", "llama-3.1-70b-fp8-eagle3", 2))
    assert none.weights == without.weights


def test_layers_of_the_model_itself_take_cache():
    options = {"speculative-config": '{"method": "qwen3_5_mtp", "num_speculative_tokens": 4}'}
    own, more = (memory(planned(given, recipe="qwen3.8-27b-fp8")) for given in ({}, options))
    assert more.state_per_request > own.state_per_request  # three drafted tokens are the recipe's
    eagle = {"speculative-algorithm": "EAGLE", "speculative-num-steps": 3}
    plain, drafted = (memory(planned(given, "sglang", "llama-3.1-70b-fp8", 2)) for given in ({}, eagle))
    assert drafted.kv_needed > plain.kv_needed


@pytest.mark.parametrize(
    ("recipe", "options", "less"),
    [
        ("qwen3-coder-next-fp8", {"no-enable-prefix-caching": True}, True),
        ("qwen3-coder-next-fp8", {"enable-prefix-caching": False}, True),
        ("qwen3-coder-next-fp8", {"mamba-ssm-cache-dtype": "bfloat16"}, True),
        ("gpt-oss-20b", {"no-async-scheduling": True}, True),
        ("gpt-oss-20b", {"async-scheduling": True}, None),
        ("gpt-oss-20b", {"disable-hybrid-kv-cache-manager": True}, False),
    ],
)
def test_options_that_say_what_a_request_keeps(recipe, options, less):
    needed, own = (memory(planned(given, recipe=recipe)).kv_needed for given in (options, {}))
    assert needed < own if less else needed > own if less is False else needed == own


def test_a_draft_of_the_options_is_among_the_models_that_a_node_reads():
    result = planned({"speculative-draft-model-path": DRAFT}, "sglang", "llama-3.1-70b-fp8-eagle3", 2)
    assert DRAFT in {model.name for model in result.plans["spark1"].here[0].models}


# --- what a refusal says would do, does

NO_ROOM = [
    ("llama-3.1-405b-awq", 2, {"gpu_memory_utilization": 0.9, "pipeline_parallel_size": 2, "context": 8192}),
    ("llama-3.1-405b-awq", 2, {"gpu_memory_utilization": 0.9, "context": 64, "concurrency": 1}),
    ("llama-3.1-405b-awq", 2, {}),
    ("qwen3.5-397b-a17b-fp8", 4, {}),
    ("qwen3.5-397b-a17b-fp8", 4, {"gpu_memory_utilization": 0.85, "context": 262144}),
    ("qwen3.5-397b-a17b-autoround", 2, {"gpu_memory_utilization": 0.885}),
    ("qwen3-8b", 1, {"context": 40960, "concurrency": 40}),
    ("qwen3-8b", 1, {"options": {"kv-cache-memory-bytes": "200G"}}),
    ("qwen3-8b", 1, {"options": {"kv-offloading-size": "40"}}),
    ("qwen3-8b", 1, {"options": {"kv-offloading-size": "20"}, "gpu_memory_utilization": 0.9}),
]


def asked_for(remedy, options):
    """The settings and numbers of nodes that a remedy names, each alone."""
    values = {"engine_gpu_memory_utilization": float, "engine_context": int, "engine_concurrency": int}
    for name, kind in values.items():
        for value in re.findall(rf"{name}: ([0-9.]*[0-9])", remedy):
            yield {name.removeprefix("engine_"): kind(value)}, 0
    for key, value in re.findall(r"engine_options: \{([a-z-]+): (\w+)\}", remedy):
        yield {"options": {**options, key: value}}, 0
    for name in re.findall(r"eave ([a-z-]+) out", remedy):
        yield {"options": {key: value for key, value in options.items() if key != name}}, 0
    for nodes in re.findall(r"se (\d+) nodes", remedy):
        yield {"pipeline_parallel_size": 0}, int(nodes)
    if "engine_allow: [load-into-swap]" in remedy:
        yield {"allow": ("load-into-swap",)}, 0


@pytest.mark.parametrize(("recipe", "count", "settings"), NO_ROOM, ids=str)
def test_each_setting_that_a_refusal_names_would_do(recipe, count, settings):
    given = {"options": {}, **settings}
    said = refused(planned(recipe=recipe, count=count, **given))
    assert "the model does not fit" in said
    ways = list(asked_for(said.partition("does not fit.")[2] or said.partition("does not fit: ")[2], given["options"]))
    assert ways, said
    for values, nodes in ways:
        result = planned(recipe=recipe, count=nodes or count, **{**given, **values})
        assert result.plans, (values, nodes, [str(item) for item in result.findings])


@pytest.mark.parametrize("known", [{}, {"weights_gb": 3.2}, {"layers": 1}])
def test_a_recipe_s_draft_without_its_size_is_refused(known):
    draft = {"method": "eagle3", "model": "someone/draft", "tokens": 3, **known}
    assert "recipe foreign: someone/draft drafts" in refused(foreign({"draft": draft}))
