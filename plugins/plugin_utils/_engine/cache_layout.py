# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How vLLM 0.33 lays out its KV cache: layers of a kind share blocks, kinds share one pool of blocks of one size.

Per token and rank a layer keeps

    grouped-query attention   max(1, KV heads / TP) x head_dim x 2 (key and value) x bytes per value
    multi-head latent (MLA)   (kv_lora_rank + rope_head_dim) x bytes per value, on every rank, and an indexer's keys
    linear                    nothing; each request has blocks of one state

Where all layers grow with the context a block has them all. Otherwise they are put into groups of as many layers as the
smallest kind has, the smaller pages are made as large as the largest, and each group takes its own blocks for a
request. Models that keep compressed tokens have pages of several sizes packed into a block.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture, Kept

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
INDEXER_SCALE = 4  # bytes for 128 values of eight bits
BLOCK = 16  # tokens
LISTED_BLOCK = 256  # of models that keep compressed tokens
# Blocks of hybrid models are a multiple of it (784, 1616, 2144 and 4192 in logs before vLLM 0.33): where prefixes are
# cached, GB10's kernels of the gated delta net keep states every 64 tokens; with MLA it is 128.
DELTA_BLOCK, LATENT_BLOCK = 64, 128
# States of a request: one. Where prefixes are cached, the one before its last block too, and since 0.33 one within a
# prefill.
STATES, STATES_OF_PREFIXES = 1, 3
UNEVEN = 1.5  # kinds that differ by less than this factor are filled up to the larger
ENDLESS = 1 << 30  # tokens


@dataclass(frozen=True)
class Load:
    """What is asked of the KV cache: tokens per request, requests of that length at once, vLLM's kv-cache-dtype.

    ``batched`` tokens are computed in one step, and ``ahead`` further steps are prepared while one runs (asynchronous
    scheduling). ``drafted`` tokens are tried in each step of speculative decoding by ``draft_layers`` further layers,
    which are of the same shape where ``draft_kv`` (KV heads, head_dim) is 0, and keep ``draft_caches`` beside.
    ``sequences``: requests that the scheduler runs at once, of any length. ``loader``: vLLM's load-format.
    ``prefixes``: what was computed is kept for later requests. ``windows``: layers with one keep no more than it.
    """

    context: int
    concurrency: int
    dtype: str = "auto"
    batched: int = 8192
    drafted: int = 0
    draft_layers: int = 0
    draft_kv: tuple[int, int] = (0, 0)
    draft_caches: tuple[Kept, ...] = ()
    sequences: int = 64
    loader: str = ""
    prefixes: bool = True
    ahead: int = 1
    windows: bool = True


@dataclass(frozen=True)
class Group:
    """Layers that share their blocks, ``count`` times: a block for each ``block`` tokens, or ``fixed`` ones."""

    count: int
    block: int = 0
    most: int = 0  # tokens after which no further blocks are taken; 0: never
    fixed: int = 0

    def blocks(self, context: int) -> int:
        if self.fixed:
            return self.count * self.fixed
        # A window need not begin where a block does.
        return self.count * (math.ceil(min(context, self.most or context) / self.block) + bool(self.most))


@dataclass(frozen=True)
class Cache:
    """The cache in blocks, of one rank: a request takes ``blocks(context)`` of ``block_bytes`` each."""

    block_bytes: int
    groups: Sequence[Group]

    @property
    def block(self) -> int:
        """Tokens of the longest block that grows with the context; 0: none does."""
        return max((group.block for group in self.groups if not group.fixed and not group.most), default=0)

    @property
    def even(self) -> bool:
        """All tokens of all requests take the same."""
        return len(self.groups) == 1 and bool(self.block)

    @property
    def constant(self) -> int:
        """Blocks of a request that do not depend on its length."""
        return sum(group.blocks(0) for group in self.groups if group.fixed)

    def blocks(self, context: int) -> int:
        return sum(group.blocks(context) for group in self.groups)

    def request(self, context: int) -> int:
        """Bytes of one request."""
        return self.blocks(context) * self.block_bytes

    def longest(self, size: int) -> int:
        """Tokens of the longest request that fits into ``size`` bytes."""
        low, high = 0, max(1, (size // self.block_bytes + 1) * self.block if self.block else ENDLESS)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request(middle) <= size else (low, middle - 1)
        return low


@dataclass(frozen=True)
class _Kind:
    """Layers that keep the same, ``page`` bytes for ``group.block`` tokens each. ``shape``: what makes them equal."""

    layers: int
    page: int
    group: Group
    shape: tuple[float, ...]

    @property
    def sort(self) -> tuple[float, ...]:
        """Kinds of one sort need the same blocks."""
        return self.shape if self.group.fixed else (self.group.block, self.group.most)


def kv_bytes(dtype: str) -> float:
    """Bytes per value of a KV cache dtype; all plain eight-bit floats begin with ``fp8``."""
    if dtype in FEW_BITS:
        return FEW_BITS[dtype] / 8 * SCALES
    return KV_BITS.get(dtype, 8 if dtype.startswith("fp8") else 16) / 8


def kv_per_token(model: Architecture, parallel: Parallel, dtype: str = "auto") -> int:
    """Bytes of one token in all layers that grow, on one rank."""
    growing = [one for one in _kept(model, dtype) if not one.window and not one.once]
    return math.ceil(
        sum(math.ceil(one.layers / parallel.pipeline) * _entry(one, parallel, dtype) / one.tokens for one in growing)
    )


def state_bytes(model: Architecture, parallel: Parallel, drafted: int = 0) -> int:
    """Bytes of one request's state in one linear-attention layer (gated delta net) on one rank. Its convolution also
    keeps the tokens that are tried at once."""
    values = model.linear_value_heads * model.linear_value_head_dim
    recurrent = values * model.linear_key_head_dim * model.state_bytes
    channels = 2 * model.linear_key_heads * model.linear_key_head_dim + values
    return math.ceil((recurrent + channels * (model.linear_conv_kernel - 1 + drafted) * 2) / parallel.tensor)


def read_bytes(model: Architecture, parallel: Parallel, context: int, dtype: str = "auto", drafted: int = 0) -> float:
    """Of one request, that a step reads on one rank of a stage; states are written, too."""
    found = 2.0 * math.ceil(model.linear_layers / parallel.pipeline) * state_bytes(model, parallel, drafted)
    for one in _kept(model, dtype):
        entries = one.once * (1 + one.state) if one.once else min(context, one.window or context) / one.tokens
        found += math.ceil(one.layers / parallel.pipeline) * _entry(one, parallel, dtype) * entries
    return found


def _kept(model: Architecture, dtype: str) -> Iterator[Kept]:
    """What the layers keep, but for the states of linear ones."""
    growing = model.growing_layers
    if growing and model.attention == "mla":
        latent = model.kv_lora_rank + model.rope_head_dim
        special = MLA_BYTES.get(dtype)
        yield Kept(growing, special, bits=8) if special else Kept(growing, latent)
        if model.indexer_dim:
            width = model.indexer_dim + model.indexer_dim // 128 * INDEXER_SCALE
            yield Kept(model.indexer_layers or growing, width, bits=8)
    elif growing:
        yield Kept(growing, 2 * model.head_dim, model.kv_heads)
    if model.sliding_layers and model.attention != "listed":
        heads, dim = model.sliding_kv_heads or model.kv_heads, model.sliding_head_dim or model.head_dim
        yield Kept(model.sliding_layers, 2 * dim, heads, window=model.sliding_window)
    yield from model.caches


def _drafting(model: Architecture, load: Load) -> Iterator[Kept]:
    """Layers of the draft; those of the model's own shape are of its kind."""
    heads, dim = load.draft_kv
    if load.draft_layers and heads:
        yield Kept(load.draft_layers, 2 * dim, heads)
    elif load.draft_layers:
        first = next((one for one in _kept(model, load.dtype) if not one.window and not one.once), None)
        if first:
            yield replace(first, layers=load.draft_layers)
    yield from load.draft_caches


def _entry(one: Kept, parallel: Parallel, dtype: str) -> float:
    """Bytes of an entry in one layer on one rank."""
    return max(1, one.heads // parallel.tensor) * one.values * (one.bits / 8 if one.bits else kv_bytes(dtype))


def _window(one: Kept, parallel: Parallel, load: Load) -> int:
    """Tokens that a request holds at most: the window, and those of the steps that are computed or prepared."""
    return one.window - 1 + load.batched * (parallel.pipeline + load.ahead)


def cache(model: Architecture, parallel: Parallel, load: Load, state_blocks: int = 0, align: int = 0) -> Cache:
    """How the engine keeps tokens. ``state_blocks``: blocks of a request per group of linear layers, and ``align``:
    tokens that a hybrid model's block is a multiple of, where they are not those of vLLM 0.33 on GB10."""
    own, drafted = list(_kept(model, load.dtype)), list(_drafting(model, load))
    packed = any(one.tokens > 1 or one.once for one in own)
    states = state_blocks or (STATES_OF_PREFIXES if load.prefixes else STATES) + load.drafted
    block, stateful = LISTED_BLOCK if packed and model.attention == "listed" else BLOCK, 0
    if model.linear_layers:
        stateful = state_bytes(model, parallel, load.drafted)
        delta = model.linear_key_head_dim == model.linear_value_head_dim and load.prefixes
        align = align or (LATENT_BLOCK if model.attention == "mla" else DELTA_BLOCK if delta else BLOCK)
        largest = max([stateful, *(_once(one, parallel, load) for one in own if one.state)])
        block = align * math.ceil(largest / align / _entry(own[0], parallel, load.dtype))
    kinds: dict[tuple[float, ...], _Kind] = {}

    def add(layers: int, page: float, group: Group, *shape: float) -> None:
        made = _Kind(layers, math.ceil(page), group, (*shape, group.block, group.most, group.fixed))
        old = kinds.get(made.shape)
        kinds[made.shape] = replace(old, layers=old.layers + layers) if old else made

    for one, stages in (*((one, parallel.pipeline) for one in own), *((one, 1) for one in drafted)):
        layers, size = math.ceil(one.layers / stages), _entry(one, parallel, load.dtype)
        if one.once:
            page = max(_once(one, parallel, load), block * _entry(own[0], parallel, load.dtype) if one.state else 0)
            add(layers, page, Group(1, fixed=states if one.state else 1), one.once, size)
            continue
        tokens = one.block or block
        page = one.align * math.ceil(tokens / one.tokens * size / one.align)
        most = _window(one, parallel, load) if one.window and load.windows else 0
        add(layers, page, Group(1, tokens, most), size, one.heads, one.tokens)
    if stateful:
        page = block * _entry(own[0], parallel, load.dtype)
        add(math.ceil(model.linear_layers / parallel.pipeline), page, Group(1, fixed=states), -1)
    made = list(kinds.values())
    if len({one.sort for one in made}) == 1:
        return Cache(sum(one.layers * one.page for one in made), [made[0].group])
    return _packed(made) if packed else _grouped(made)


def _once(one: Kept, parallel: Parallel, load: Load) -> int:
    """Bytes of what a request has once: room for the tokens that are tried, in whole rings."""
    entries = one.once + load.drafted if one.state else one.once * math.ceil(1 + load.drafted / one.once)
    return math.ceil(entries * _entry(one, parallel, load.dtype))


def _grouped(kinds: Sequence[_Kind]) -> Cache:
    """Groups of one size, all pages as large as the largest."""
    page = max(one.page for one in kinds)
    few, many = (choose(one.layers for one in kinds) for choose in (min, max))
    size = many if many < UNEVEN * few else few
    groups = [
        # Where it fits evenly a smaller page has more tokens, otherwise the rest of it is empty.
        replace(one.group, count=math.ceil(one.layers / size), block=one.group.block * max(1, _times(page, one.page)))
        for one in kinds
    ]
    widest = max(math.ceil(one.layers / group.count) for one, group in zip(kinds, groups))
    return Cache(page * widest, groups)


def _times(page: int, smaller: int) -> int:
    return 0 if page % smaller else page // smaller


def _packed(kinds: Sequence[_Kind]) -> Cache:
    """Groups of kinds that need the same blocks; pages of several sizes lie in one, as large as the largest group."""
    sorts: dict[tuple[float, ...], list[_Kind]] = {}
    for one in kinds:
        sorts.setdefault(one.sort, []).append(one)
    most = {sort: max(one.layers for one in same) for sort, same in sorts.items()}
    even = {sort for sort, same in sorts.items() if len({one.layers for one in same}) == 1}
    least = max((most[sort] for sort in even if len({one.page for one in sorts[sort]}) > 1), default=0)
    size = _least_padding([most[sort] for sort in even], least) if least else 0
    counts = {sort: math.ceil(most[sort] / size) if size and sort in even else 1 for sort in sorts}

    def width(sort: tuple[float, ...], count: int) -> int:
        return sum(math.ceil(one.layers / count) * one.page for one in sorts[sort])

    # States and rings, and windows where nothing else sets the size, may be split further, so that none is wider.
    splits = {sort for sort in sorts if sorts[sort][0].group.fixed or (not size and sorts[sort][0].group.most)}
    block = max(width(sort, most[sort] if sort in splits else counts[sort]) for sort in sorts)
    for sort in splits:
        layers = sum(one.layers for one in sorts[sort])
        counts[sort] = max(counts[sort], math.ceil(layers / max(1, block // sorts[sort][0].page)))
    groups = [replace(same[0].group, count=counts[sort]) for sort, same in sorts.items()]
    return Cache(max(width(sort, count) for sort, count in counts.items()), groups)


def _least_padding(layers: Sequence[int], least: int) -> int:
    """Layers of a group, at least so many, with which the groups are filled up by the fewest."""
    sizes = range(least, max(*layers, least) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in layers), -size))
