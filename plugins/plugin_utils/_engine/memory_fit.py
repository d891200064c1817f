# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a model fits into the memory of one node, before anything is loaded.

vLLM (0.33, GPU worker) takes ``total memory x gpu_memory_utilization`` and puts weights, activations, communication
buffers and CUDA graphs into it; what is left becomes KV cache. Per token and rank that is

    grouped-query attention   layers / PP x max(1, KV heads / TP) x head_dim x 2 (key and value) x bytes per value
    multi-head latent (MLA)   layers / PP x (kv_lora_rank + rope_head_dim) x bytes per value, on every rank; keys of an
                              indexer (sparse attention) beside it
    hybrid                    the first for full-attention layers only, and for each request blocks for the states

which matches published logs (docs/performance.md, "Planner accuracy").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Memory, Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import loaders
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture, Weights

GIB = 1024**3

# What is said to be assumed has no published figure of its own; the outcomes that others published
# (tests/bench/planner_verdicts.py) hold all of it together.

# -- The machine.
GB10_TOTAL = int(121.6 * GIB)  # CUDA reports 121.63 to 121.69 GiB; used where no machine was measured
DEFAULT_UTILIZATION = 0.80  # leaves the operating system, which lives in the same memory, 24 GiB
# Prefills of 131k tokens reset whole hosts at 0.80 and not at 0.75 (NVIDIA dgx-spark-playbooks issue 97).
LONG_CONTEXT, LONG_CONTEXT_UTILIZATION = 65536, 0.75
# Above it only when the user says so. At 0.90 nodes freeze without an OOM kill (open-gpu-kernel-modules issue 1358).
MAX_UTILIZATION, HARD_MAX_UTILIZATION = 0.85, 0.90
OS_RESERVE = 6 * GIB  # operating system, ssh and containers without a desktop; assumed
ENGINE_HOST = 3 * GIB  # Python processes of API server, engine and rank; assumed
NO = "does not fit"
TIGHT = 0.05  # a rest of the budget below this share is called tight

# -- The cache.
KV_BITS = {"auto": 16, "bfloat16": 16, "float16": 16, "nvfp4": 4.5, "nvfp4_4over6": 4.5}  # NVFP4: a scale for 16 values
# Formats of a few bits, of key and value on average; the size of their scales is not published: a tenth is added.
FEW_BITS = {
    "int8_per_token_head": 8,
    "fp8_per_token_head": 8,
    "int4_per_token_head": 4,
    "turboquant_k8v4": 6,
    "turboquant_4bit_nc": 4,
    "turboquant_k3v4_nc": 3.5,
    "turboquant_3bit_nc": 3,
    "octave_k3v4": 3.5,
    "octave_k3v3": 3,
    "octave_k3v3_compact": 3,
    "ultraquant_4bit": 4,
}
SCALES = 1.1
# Bytes per token and layer of formats that are made for MLA (512 + 64 values): vLLM's FlashMLA layouts.
MLA_BYTES = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 416}
# Tokens that a block of the cache is aligned to in hybrid models: 784, 1616, 2144 and 4192 in logs of Qwen3.5 and 3.8.
BLOCK = 16

# -- What is beside weights and cache.
RUNTIME = int(1.5 * GIB)  # CUDA context and torch; assumed
NCCL_PER_NODES = int(0.5 * GIB)  # buffers, each time that the nodes double; assumed
# Activations of the profiling run: 8224 -> 2048 batched tokens lowered the peak from 5.30 to 1.39 GiB on a model with
# hidden size 6144 (field report), so about 112 bytes per token and hidden unit.
ACTIVATION_BYTES = 112
ASSUMED_HIDDEN = 8192  # where a recipe says nothing
# The profiling run samples for as many requests as the scheduler may run: logits, probabilities and two copies of them.
SAMPLER_BYTES = 16  # per request and word of the vocabulary
SEQUENCES = 64  # requests at once where nobody says: as many as the gateway lets in
# CUDA graphs are captured for every batch up to the scheduler's limit, at most for 512 tokens: 1 GiB with a few
# requests, 5.1 with vLLM's own limit (0.80 works as 0.758 then: spark-vllm-docker issue 396).
GRAPHS, GRAPHS_PER_SEQUENCE, CAPTURED = GIB, GIB // 64, 256


@dataclass(frozen=True)
class Load:
    """What is asked of the KV cache: tokens per request, requests of that length at once, vLLM's kv-cache-dtype.

    ``batched`` tokens are computed in one step. ``drafted`` tokens are tried in each step of speculative decoding by
    ``draft_layers`` further layers, which are of the same shape where ``draft_kv`` (KV heads, head_dim) is 0.
    ``apart``: they are those of another model, and so a kind of their own. ``sequences``: requests that the scheduler
    runs at once, of any length. ``loader``: vLLM's load-format.
    """

    context: int
    concurrency: int
    dtype: str = "auto"
    batched: int = 8192
    drafted: int = 0
    draft_layers: int = 0
    draft_kv: tuple[int, int] = (0, 0)
    apart: bool = False
    sequences: int = SEQUENCES
    loader: str = ""


@dataclass(frozen=True)
class Takes:
    """What options take beside that, in bytes of one rank: :func:`_engine.memory_options.takes`."""

    cache: int = 0  # size of the KV cache; 0: what is left
    tokens: int = 0  # the same, in tokens
    share: int = 0  # in what the engine may have
    host: int = 0  # outside of that
    captured: int = 0  # requests for which CUDA graphs are made; 0: the engine's own choice


NOTHING = Takes()


@dataclass(frozen=True)
class Cache:
    """The cache in blocks, of one rank: ``context`` tokens take ``blocks(context)`` of ``block_bytes`` each."""

    block: int  # tokens
    block_bytes: int
    constant: int = 0  # blocks of a request that do not depend on its length
    groups: Sequence[tuple[int, int]] = ()  # so many blocks for so many tokens, each; none: one for ``block`` tokens
    window: int = 0  # tokens after which sliding layers stop growing
    window_bytes: int = 0  # per token of the window

    def blocks(self, context: int) -> int:
        groups = self.groups or ((1, self.block),)
        return sum(blocks * math.ceil(context / tokens) for blocks, tokens in groups) + self.constant

    def request(self, context: int) -> int:
        """Bytes of one request."""
        return self.blocks(context) * self.block_bytes + min(context, self.window) * self.window_bytes

    def longest(self, size: int) -> int:
        """Tokens of the longest request that fits into ``size`` bytes."""
        low, high = 0, max(1, size // max(1, self.block_bytes // self.block) + self.block)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request(middle) <= size else (low, middle - 1)
        return low


def gib(number: float) -> str:
    return f"{number / GIB:.1f}"


def kv_bytes(dtype: str) -> float:
    """Bytes per value of a KV cache dtype; all plain eight-bit floats begin with ``fp8``."""
    if dtype in FEW_BITS:
        return FEW_BITS[dtype] / 8 * SCALES
    return KV_BITS.get(dtype, 8 if dtype.startswith("fp8") else 16) / 8


def layer_bytes(model: Architecture, parallel: Parallel, dtype: str) -> float:
    """Bytes of one token in one attention layer on one rank."""
    if model.attention == "mla":
        latent = MLA_BYTES.get(dtype) or (model.kv_lora_rank + model.rope_head_dim) * kv_bytes(dtype)
        return latent + model.indexer_bytes
    return max(1, model.kv_heads // parallel.tensor) * model.head_dim * 2 * kv_bytes(dtype)


def sliding_bytes(model: Architecture, parallel: Parallel, dtype: str) -> float:
    """Bytes of one token in one layer that sees only the window, on one rank."""
    heads = max(1, (model.sliding_kv_heads or model.kv_heads) // parallel.tensor)
    return heads * (model.sliding_head_dim or model.head_dim) * 2 * kv_bytes(dtype)


def kv_per_token(model: Architecture, parallel: Parallel, dtype: str = "auto") -> int:
    """Bytes of one token in all layers that grow, on one rank."""
    return math.ceil(math.ceil(model.growing_layers / parallel.pipeline) * layer_bytes(model, parallel, dtype))


def state_bytes(model: Architecture, parallel: Parallel, drafted: int = 0) -> int:
    """Bytes of one request's state in one linear-attention layer (gated delta net) on one rank. Its convolution also
    keeps the tokens that are tried at once."""
    values = model.linear_value_heads * model.linear_value_head_dim
    recurrent = values * model.linear_key_head_dim * model.state_bytes
    channels = 2 * model.linear_key_heads * model.linear_key_head_dim + values
    return math.ceil((recurrent + channels * (model.linear_conv_kernel - 1 + drafted) * 2) / parallel.tensor)


def cache(model: Architecture, parallel: Parallel, load: Load, state_blocks: int = 0, align: int = BLOCK) -> Cache:
    """How the engine keeps tokens.

    ``state_blocks``: blocks of a request per group of linear layers, 0: as on GB10; ``align``: tokens that a hybrid
    model's block is a multiple of.

    In hybrid models an attention block is made so large that it can hold a layer's state; layers then share one pool
    of blocks, in groups of as many as there are of the smallest kind, and all blocks are as large as the largest
    (vLLM's unified hybrid KV cache, logs of Qwen3.5 and 3.8).
    """
    one = layer_bytes(model, parallel, load.dtype)
    heads, dim = load.draft_kv
    other = max(1, heads // parallel.tensor) * dim * 2 * kv_bytes(load.dtype) if heads else one
    growing = math.ceil(model.growing_layers / parallel.pipeline)
    drafting = load.draft_layers if load.apart or heads else 0
    growing += load.draft_layers - drafting
    if model.linear_layers:
        block = math.ceil(state_bytes(model, parallel, load.drafted) / one / align) * align
        page = math.ceil(block * max(one, other if drafting else 0))
        group = min(growing, drafting or growing)
        kinds = [(math.ceil(growing / group), int(page // one))]
        kinds += [(math.ceil(drafting / group), int(page // other))] if drafting else []
        # One block, one more for the state at the end of a cached prefix, and one for each drafted token.
        each = state_blocks or 2 + load.drafted
        linear = math.ceil(math.ceil(model.linear_layers / parallel.pipeline) / group)
        return Cache(kinds[0][1], page * group, constant=linear * each, groups=kinds)
    window = model.sliding_window + load.batched if model.sliding_layers else 0
    layers = math.ceil(model.sliding_layers / parallel.pipeline)
    sliding = math.ceil(layers * sliding_bytes(model, parallel, load.dtype))
    return Cache(16, math.ceil(16 * (one * growing + other * drafting)), window=window, window_bytes=sliding)


def utilization(context: int, asked: float, total: int = 0, available: int = 0) -> float:
    """The share to use: what was asked for, or a default that depends on the longest prompt.

    With measured memory the default is never above what is free (``available`` bytes of ``total``), in whole percent.
    """
    if asked:
        return asked
    share = LONG_CONTEXT_UTILIZATION if context > LONG_CONTEXT else DEFAULT_UTILIZATION
    if total and available:
        share = min(share, math.floor(100 * available / total) / 100)
    return share


def weights_per_rank(model: Architecture, weights: Weights, parallel: Parallel) -> int:
    """Bytes on the fullest rank: whole layers per stage, and the embedding or the output matrix at the ends."""
    ends = 2 * model.vocab_size * model.hidden_size  # bfloat16, each of two; quantizations leave them alone
    shared = weights.total - weights.replicated
    if parallel.pipeline == 1 or shared < 2 * ends:
        return math.ceil(shared / parallel.tensor / parallel.pipeline + weights.replicated / parallel.pipeline)
    stage = math.ceil(model.layers / parallel.pipeline) / model.layers
    return math.ceil(((shared - 2 * ends) * stage + ends) / parallel.tensor + weights.replicated * stage)


def overhead_of(
    model: Architecture, parallel: Parallel, load: Load, eager: bool = False, captured: int = 0
) -> tuple[int, int]:
    """(all overhead, activations of it) in bytes: activations, CUDA graphs, runtime, loader and communication."""
    activations = max(GIB // 2, load.batched * (model.hidden_size or ASSUMED_HIDDEN) * ACTIVATION_BYTES)
    activations += load.sequences * model.vocab_size * SAMPLER_BYTES
    graphs = 0 if eager else GRAPHS + (captured or min(load.sequences, CAPTURED)) * GRAPHS_PER_SEQUENCE
    rest = RUNTIME + graphs + NCCL_PER_NODES * math.ceil(math.log2(parallel.ranks))
    return activations + rest + loaders.of(load.loader).kept, activations


def fit(
    model: Architecture,
    parallel: Parallel,
    weights: Weights,
    load: Load,
    *,
    share: float,
    other_share: float = 0.0,
    overhead_gib: float = 0.0,
    total: int = 0,
    draft: int = 0,
    object_store: int = 0,
    beside: int = 0,
    eager: bool = False,
    takes: Takes = NOTHING,
    into_swap: bool = False,
) -> Memory:
    """The budget of one rank.

    ``total``: measured memory in bytes, 0 when no machine was asked. ``draft``: bytes of a draft model on each rank.
    ``object_store``: bytes that Ray keeps outside the engine's share. ``beside``: bytes of other services on the node.
    ``overhead_gib``: measured, instead of computed. ``other_share``: that of a context on the other side of
    :data:`LONG_CONTEXT`, where it has another one. ``into_swap``: the machines have swap for what loading takes.
    """
    memory = total or GB10_TOTAL
    budget = int(memory * share)
    own = weights_per_rank(model, weights, parallel) + draft
    overhead, activations = overhead_of(model, parallel, load, eager, takes.captured)
    if overhead_gib:
        overhead = int(overhead_gib * GIB)
    overhead += takes.share
    kept = cache(model, parallel, load)
    asked = max(takes.cache, takes.tokens * kept.block_bytes // kept.block)
    left = max(0, budget - own - overhead)
    available = min(left, asked or left)
    needed = kept.request(load.context) * load.concurrency
    host = OS_RESERVE + ENGINE_HOST + object_store + beside + takes.host
    loader = loaders.of(load.loader)
    load_peak = own + loader.pages(own) + loader.kept
    other = max(0, int(memory * other_share) - own - overhead) if other_share else left
    other = min(other, asked or other)
    short, long = (available, other) if load.context <= LONG_CONTEXT else (other, available)
    # Nothing is longer than the model goes, whatever would fit.
    promised, longest = (
        min(fitting, model.max_context or fitting)
        for fitting in (_longest(kept, short // count, long // count) for count in (load.concurrency, 1))
    )
    made = Memory(
        verdict="fits",
        sentence="",
        room="",
        device="gpu",
        total=memory,
        assumed=not total,
        utilization=share,
        budget=budget,
        weights=own,
        overhead=overhead,
        activations=activations,
        kv_bytes_per_token=kv_per_token(model, parallel, load.dtype),
        kv_needed=needed,
        kv_available=available,
        kv_cache_memory_bytes=available // (GIB // 4) * (GIB // 4),  # where it is pinned: in whole 256 MiB
        state_per_request=kept.constant * kept.block_bytes,
        load_peak=load_peak,
        host=host,
        context=load.context,
        concurrency=load.concurrency,
        max_concurrency=available // kept.request(load.context),
        max_context=promised,
        longest=longest,
        sequences=load.sequences,
        beside=beside,
        cache_tokens=0 if kept.constant or kept.window else available // kept.block_bytes * kept.block,
    )
    return _told(_judged(made, asked, left, into_swap))


def _longest(kept: Cache, short: int, long: int) -> int:
    """Tokens of one request, for which there are so many bytes: a long one has the share for long ones."""
    most = kept.longest(long)
    return most if most > LONG_CONTEXT or short == long else min(kept.longest(short), LONG_CONTEXT)


def _judged(made: Memory, asked: int, left: int, into_swap: bool) -> Memory:
    others = " and the other services" if made.beside else ""
    against: list[str] = []
    reasons: list[str] = []
    if asked > left:
        against.append(f"the options ask for a KV cache of {gib(asked)} GiB, and {gib(left)} GiB are left for it")
    elif asked and asked < made.kv_needed:
        against.append(f"the options ask for a KV cache of {gib(asked)} GiB")
    if made.load_peak + made.host > made.total:
        (reasons if into_swap else against).append(
            f"loading peaks at about {gib(made.load_peak)} GiB, beside {gib(made.host)} GiB for the system and the"
            f" engine's own processes{others}"
        )
    if made.budget + made.host > made.total:
        against.append(
            f"the share leaves less than the {gib(made.host)} GiB that the system and the engine's processes{others}"
            " need"
        )
    if against or made.kv_available < made.kv_needed:
        return replace(made, verdict=NO, reasons=tuple(against))
    if made.kv_available - made.kv_needed < TIGHT * made.budget and not asked:
        reasons.insert(0, f"only {gib(made.kv_available - made.kv_needed)} GiB are left")
    return replace(made, verdict="tight" if reasons else "fits", reasons=tuple(reasons))


def _told(made: Memory) -> Memory:
    """With the sentences that a user reads."""
    other = "" if made.max_context == made.context else f", or {made.concurrency} of {made.max_context}"
    whole = f"{made.max_concurrency} request(s) of {made.context} tokens"
    at_once = (
        f"At once: {made.concurrency} request(s) of {made.context} tokens are promised room, {made.max_concurrency}"
        f" have it; the scheduler runs up to {made.sequences}, further ones wait. The longest single request could"
        f" have {made.longest} tokens"
    )
    if made.sequences > made.max_concurrency:
        at_once += (
            f". When those {made.sequences} grow beyond the cache, the youngest are preempted and computed again later:"
            " they answer late, and the engine counts it (docs/engine.md, preemption)"
        )
    return replace(
        made,
        sentence=f"{gib(made.budget)} GiB of {gib(made.total)} GiB ({'assumed' if made.assumed else 'measured'}) at"
        f" {made.utilization:.2f}: weights {gib(made.weights)} + overhead {gib(made.overhead)} + KV cache"
        f" {gib(made.kv_needed)} GiB for {made.concurrency} x {made.context} tokens",
        room=f"KV cache up to {gib(made.kv_available)} GiB: {whole}{other}"
        if made.kv_available
        else "No room for a KV cache",
        at_once=at_once,
    )


def refusal(budget: Memory, ways: Sequence[str], others: Sequence[str]) -> tuple[str, str]:
    """(found, remedy) for a budget that is too large. ``ways``: settings with which it fits; ``others``: what else."""
    found = ": ".join(("the model does not fit", budget.sentence, *filter(None, ["; ".join(budget.reasons)])))
    parts = [f"set {' or '.join(ways)}"] if ways else []
    parts += others
    if not ways and not any(one.startswith("leave") for one in others):
        parts.append("take a smaller quantization")
    remedy = ", or ".join(parts)
    return found, remedy[0].upper() + remedy[1:]
