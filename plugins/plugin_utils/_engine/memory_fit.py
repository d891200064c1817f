# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a model fits into the memory of one node, before anything is loaded.

vLLM (0.33, GPU worker) takes ``total memory x gpu_memory_utilization`` and puts weights, activations, communication
buffers and CUDA graphs into it; what is left becomes KV cache (:mod:`cache_layout`), which matches published logs
(docs/performance.md, "Planner accuracy").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Memory, Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import loaders
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.cache_layout import (
    Cache,
    Load,
    cache,
    kv_per_token,
)
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
PIN = GIB // 4  # a size of the cache that the engine is given is a multiple of it
TIGHT = 0.05  # a rest of the budget below this share is called tight

# -- What is beside weights and cache, in the share. H200: 21 runs, vLLM 0.26 (tests/unit/fixtures/engine_on_h200.yml).
# Activations of a step, per token: in dense layers three times the feed-forward size, twice the hidden size and the
# inputs of attention (25 to 27 bytes per hidden unit measured, 25 computed); with experts 49 to 80 bytes per hidden
# unit, with latent attention 119 (112 in a field report: 5.30 and 1.39 GiB for 8224 and 2048 tokens).
EXPERTS_BYTES, LATENT_BYTES, DENSE_BYTES = 64, 119, 28
# At least a copy of the embedding and a little: 1.16 + 0.12 GiB where the steps alone take less.
LEAST = GIB // 8
ASSUMED_HIDDEN = 8192  # where a recipe says nothing
SAMPLER_BYTES = 12  # for each request that the scheduler may run, and word of the vocabulary; H200: 10 to 11
SEQUENCES = 64  # requests at once where nobody says: as many as the gateway lets in
# CUDA graphs, for every batch up to the scheduler's limit: 0.1 to 0.6 GiB on H200 (0.9 with a draft). On Sparks 0.5 to
# 1.5 with few requests, 5.1 with vLLM's own limit (0.80 works as 0.758 then: spark-vllm-docker issue 396).
GRAPHS, GRAPHS_PER_SEQUENCE, CAPTURED = GIB, GIB // 64, 256
# What processes and libraries take from vLLM's first measure to its last. H200: 0.06 to 0.24 GiB. Where GPU and system
# have one memory vLLM asks the system what is free, so its processes count: what is left of the rest in logs of Sparks,
# without activations and graphs, is below 5 GiB in most (tests/unit/fixtures/engine_on_sparks.yml).
RUNTIME = 5 * GIB
# -- Above the share: what is there before that first measure. H200: 0.51 GiB; two ranks 1.53, two stages 1.42.
CONTEXT = GIB // 2
# In which what is kept of prompts on disk comes and goes; of a longer prefix comes back what fits. Assumed.
PREFIXES = 4 * GIB
NCCL = GIB  # buffers, where there are several ranks: each has as many neighbours


@dataclass(frozen=True)
class Takes:
    """What options take beside that, in bytes of one rank: :func:`_engine.memory_options.takes`."""

    cache: int = 0  # size of the KV cache; 0: what is left
    tokens: int = 0  # the same, in tokens
    share: int = 0  # in what the engine may have
    host: int = 0  # outside of that
    captured: int = 0  # requests for which CUDA graphs are made; 0: the engine's own choice


NOTHING = Takes()


def gib(number: float) -> str:
    return f"{number / GIB:.1f}"


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


def activations_of(model: Architecture, parallel: Parallel, load: Load) -> int:
    """The most of one step, of sampling, and of the embedding."""
    hidden = model.hidden_size or ASSUMED_HIDDEN
    if model.attention == "mla":
        token = LATENT_BYTES * hidden
    elif model.experts:
        token = EXPERTS_BYTES * hidden
    elif model.intermediate_size:
        inputs = (model.attention_heads + 2 * model.kv_heads) * model.head_dim
        token = 2 * (2 * hidden + (3 * model.intermediate_size + inputs) // parallel.tensor)
    else:
        token = DENSE_BYTES * hidden
    embedding = 2 * model.vocab_size * hidden // parallel.tensor
    return max(load.batched * token, embedding + LEAST, load.sequences * model.vocab_size * SAMPLER_BYTES)


def overhead_of(
    model: Architecture, parallel: Parallel, load: Load, eager: bool = False, captured: int = 0
) -> tuple[int, int]:
    """(all overhead, activations of it) in bytes: activations, CUDA graphs, runtime and loader."""
    activations = activations_of(model, parallel, load)
    graphs = 0 if eager else GRAPHS + (captured or min(load.sequences, CAPTURED)) * GRAPHS_PER_SEQUENCE
    return activations + graphs + RUNTIME + loaders.of(load.loader).kept, activations


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
    at_once: int = 0,
    least: bool = False,
    prefixes: bool = False,
) -> Memory:
    """The budget of one rank.

    ``total``: measured memory in bytes, 0 when no machine was asked. ``draft``: bytes of a draft model on each rank.
    ``object_store``: bytes that Ray keeps outside the engine's share. ``beside``: bytes of other services on the node.
    ``overhead_gib``: measured, instead of computed. ``other_share``: that of a context on the other side of
    :data:`LONG_CONTEXT`, where it has another one. ``into_swap``: the machines have swap for what loading takes.
    ``at_once``: requests that a step has room for, where drafts leave room for fewer.
    ``least``: the cache gets no more than what is promised. ``prefixes``: what was computed is kept on disk, too.
    """
    memory = total or GB10_TOTAL
    budget = int(memory * share)
    own = weights_per_rank(model, weights, parallel) + draft
    overhead, activations = overhead_of(model, parallel, load, eager, takes.captured)
    if overhead_gib:
        overhead = int(overhead_gib * GIB)
    overhead += takes.share
    kept = cache(model, parallel, load)
    needed = kept.request(load.context) * load.concurrency + kept.block_bytes  # the engine keeps one block empty
    asked = max(takes.cache, takes.tokens * kept.block_bytes // (kept.block or 1))
    left = max(0, budget - own - overhead)
    available = min(left, asked or (math.ceil(needed / PIN) * PIN if least else left))
    above = CONTEXT + (NCCL if parallel.ranks > 1 else 0)
    passing = math.ceil(min(PREFIXES, kept.request(load.context)) / PIN) * PIN if prefixes else 0
    host = OS_RESERVE + ENGINE_HOST + above + object_store + beside + takes.host + passing
    loader = loaders.of(load.loader)
    load_peak = own + loader.pages(own) + loader.kept
    other = max(0, int(memory * other_share) - own - overhead) if other_share else left
    other = min(other, asked or (available if least else other))
    short, long = (available, other) if load.context <= LONG_CONTEXT else (other, available)
    # Nothing is longer than the model goes, whatever would fit.
    promised, longest = (
        min(fitting, model.max_context or fitting)
        for fitting in (
            _longest(kept, *((size - kept.block_bytes) // count for size in (short, long)))
            for count in (load.concurrency, 1)
        )
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
        kv_cache_memory_bytes=available // PIN * PIN,
        state_per_request=kept.constant * kept.block_bytes,
        load_peak=load_peak,
        host=host,
        context=load.context,
        concurrency=load.concurrency,
        max_concurrency=max(0, available - kept.block_bytes) // kept.request(load.context),
        max_context=promised,
        longest=longest,
        sequences=min(load.sequences, at_once or load.sequences),
        beside=beside,
        prefixes=passing,
        cache_tokens=available // kept.block_bytes * kept.block if kept.even else 0,
    )
    return _told(_judged(made, asked or least * available, left, above, into_swap), least)


def _longest(kept: Cache, short: int, long: int) -> int:
    """Tokens of one request, for which there are so many bytes: a long one has the share for long ones."""
    most = kept.longest(long)
    return most if most > LONG_CONTEXT or short == long else min(kept.longest(short), LONG_CONTEXT)


def _judged(made: Memory, asked: int, left: int, above: int, into_swap: bool) -> Memory:
    others = " and the other services" if made.beside else ""
    against: list[str] = []
    reasons: list[str] = []
    if asked > left:
        against.append(f"the options ask for a KV cache of {gib(asked)} GiB, and {gib(left)} GiB are left for it")
    elif asked and asked < made.kv_needed:
        against.append(f"the options ask for a KV cache of {gib(asked)} GiB")
    # What a load peaks at was seen from outside: the context is in it.
    if made.load_peak + made.host - above > made.total:
        (reasons if into_swap else against).append(
            f"loading peaks at about {gib(made.load_peak)} GiB, beside {gib(made.host - above)} GiB for the system and"
            f" the engine's own processes{others}"
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


def _told(made: Memory, least: bool) -> Memory:
    """With the sentences that a user reads."""
    other = "" if made.max_context == made.context else f", or {made.concurrency} of {made.max_context}"
    whole = f"{made.max_concurrency} request(s) of {made.context} tokens"
    modest = ", and no more, since what a draft by DSpark takes beside is not known" if least else ""
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
        room=f"KV cache up to {gib(made.kv_available)} GiB: {whole}{other}{modest}"
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
