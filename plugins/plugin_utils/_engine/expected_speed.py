# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How fast a service is by one model of cost, and how long a start takes. An estimate: docs/performance.md says how far
published runs are from it.

One step of the engine reads the dense weights once, the experts that its tokens were sent to, and what the requests
keep; each layer costs some time of its own, and with tensor parallel two all-reduces. It makes one token for each user,
and with drafts as many as were accepted. A prompt costs the same way; there computing counts more than reading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import cache_layout, memory_fit
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture, Draft

USERS = (1, 8, 16, 32)  # that a plan says the speed for
PROMPT = 8192  # tokens of the prompt that a plan says the time for
ALREADY = 1024  # tokens that a request has before its answer, where speeds are compared


@dataclass(frozen=True)
class Costs:
    """Of GB10. Fitted to the seen half of tests/bench/speed_rows.yml, where nothing else is said."""

    memory: float = 225e9  # bytes/s that are read; 273 by the data sheet
    flops: float = 46e12  # operations/s of many tokens, whatever the quantization
    layer_s: float = 71e-6  # of each layer: kernels that are too small to fill the GPU
    eager_s: float = 230e-6  # the same without CUDA graphs, on top
    all_reduce_s: float = 60e-6  # of a few bytes, each time that the ranks double
    fabric: float = 22.7e9  # bytes/s of an all-reduce between two Sparks (MTU 9000, both halves; field reports)
    request_s: float = 0.1  # until a prompt is begun with, and the first token is on its way


GB10 = Costs()
HALF = 0.55  # of the fabric where one of a port's two PCIe paths is lost: 106 to 112 of 196 Gb/s (field reports)
SMALL_MTU = 0.97  # of it at 1500 bytes instead of 9000: 21.95 to 22.68 GB/s in four runs each (field reports)

# Share of drafted tokens that are accepted, each given that the one before was: assumed where a recipe does not say.
# mtp: 2.3 to 2.8 tokens of a step that drafts three (speed_rows.yml, seen half). dspark: 2.1 to 2.6, in mathematics 4.9
# (the same). dflash: 3.3 to 4.5 of 7 (github.com/jschmied/dgx-spark-setup-guide, bench/nvfp4-table), and what makes
# 23 and 27 tokens/s of Laguna S 2.1 and Muse Glimmer (Blackwellboy/laguna-s21-lab, ryangu00, 2026). The others: of no
# source. Code has more, prose and other languages than English have less.
ACCEPTED = {"mtp": 0.65, "dflash": 0.7, "dspark": 0.55, "eagle3": 0.6, "draft_model": 0.7}
OTHERS_ACCEPTED = 0.6
AT_ONCE = ("dflash", "dspark")  # methods that draft all tokens of a step in one pass

# Start without the weights: compiling, CUDA graphs, profiling. 144 s for GLM-5.3-Flash on two Sparks
# (GLM-5.3-Flash-EXL3-2x-DGX-Sparks 142, 2026-09); 310 to 408 s with the weights (SparkRing, four models, 2026-09).
START_S = 144
# Assumed, not measured on a Spark: the layers of a run, packages of the engine.
LAYERS_MIN, ENVIRONMENT_MIN = 3, 10
GIGABIT_GB_PER_MIN = 7.5


@dataclass(frozen=True)
class Served:
    """What decides the speed of a service. ``weights``, ``active``: bytes of all and of those that one token reads;
    ``parameters``: that one token uses."""

    model: Architecture
    parallel: Parallel
    weights: float
    active: float
    parameters: float = 0.0
    dtype: str = "auto"
    draft: Draft | None = None
    eager: bool = False
    batched: int = 8192
    fabric: float = 1.0  # of what two halves with a large MTU carry


def accepted(draft: Draft | None) -> float:
    """Tokens that one step gives on average, the model's own among them."""
    if draft is None:
        return 1.0
    if draft.acceptance:
        return float(draft.acceptance)
    share = ACCEPTED.get(draft.method, OTHERS_ACCEPTED)
    return (1 - share ** (draft.tokens + 1)) / (1 - share)


def tokens_per_second(served: Served, users: int, context: int = ALREADY, costs: Costs = GB10) -> float:
    """Of all users together, while their answers come."""
    parallel = served.parallel
    each = users / parallel.data if users > parallel.data else 1.0
    batch = max(1.0, each / parallel.pipeline)  # stages work on different requests at the same time
    drafted = served.draft.tokens if served.draft else 0
    seconds = _stage(served, batch * (1 + drafted), batch, context, costs) * parallel.pipeline
    seconds += _drafting(served, costs)
    at_once: float = min(each, parallel.pipeline) * min(users, parallel.data)
    return at_once * batch * accepted(served.draft) / seconds


def prefill_s(served: Served, prompt: int, costs: Costs = GB10) -> float:
    """Seconds until the first token of one prompt that nothing is known of yet."""
    seconds, done = costs.request_s, 0
    while done < prompt:
        tokens = min(served.batched, prompt - done)
        done += tokens
        seconds += _stage(served, tokens, 1, done, costs) * served.parallel.pipeline
        seconds += _attention(served.model, tokens, done) / served.parallel.tensor / costs.flops
    return seconds


def _stage(served: Served, tokens: float, users: float, context: int, costs: Costs) -> float:
    """Seconds of one step on one rank of one stage."""
    model, parallel = served.model, served.parallel
    ranks = parallel.tensor * parallel.pipeline
    layers = math.ceil(model.layers / parallel.pipeline)
    drafted = served.draft.tokens if served.draft else 0
    kept = users * cache_layout.read_bytes(model, parallel, context, served.dtype, drafted)
    seconds = (_read(served, tokens) / ranks + kept) / costs.memory
    seconds += layers * (costs.layer_s + (costs.eager_s if served.eager else 0.0))
    seconds += 2 * served.parameters * tokens / ranks / costs.flops
    if parallel.tensor > 1:
        share = 2 * (parallel.tensor - 1) / parallel.tensor  # of the activations, that each rank sends
        moved = tokens * (model.hidden_size or memory_fit.ASSUMED_HIDDEN) * 2 * share
        latency = costs.all_reduce_s * math.log2(parallel.tensor)
        seconds += 2 * layers * (latency + moved / (costs.fabric * served.fabric))
    return seconds


def _read(served: Served, tokens: float) -> float:
    """Bytes of all ranks in a step: the more tokens, the more of the experts are asked."""
    model = served.model
    if not model.experts or not model.experts_per_token:
        return served.active
    one = model.experts_per_token / model.experts
    experts = max(0.0, served.weights - served.active) / (1 - one)
    asked: float = 1 - (1 - one) ** tokens
    return served.active + experts * (asked - one)


def _drafting(served: Served, costs: Costs) -> float:
    """Seconds of the draft in one step: its layers, and the output matrix, which is the model's own."""
    draft, model = served.draft, served.model
    if draft is None:
        return 0.0
    passes = 1 if draft.method in AT_ONCE else draft.tokens
    own = draft.weights_gb * 1e9 if draft.model else served.active / model.layers
    seconds = (own + 2 * model.vocab_size * model.hidden_size) / served.parallel.tensor / costs.memory
    return passes * (seconds + max(1, draft.layers) * costs.layer_s)


def _attention(model: Architecture, tokens: int, context: int) -> float:
    """Operations of the growing layers on so many tokens, which end at ``context``."""
    return 4 * tokens * (context - tokens / 2) * model.growing_layers * model.attention_heads * model.head_dim


def run_minutes(load_s: float, *, environment: bool) -> float:
    """Of a run without its downloads. ``environment``: Python's is made."""
    return LAYERS_MIN + (ENVIRONMENT_MIN if environment else 0) + (load_s + START_S) / 60
