# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How one model is split over the nodes, each of which has one GPU: tensor or pipeline parallel.

Rules of vLLM 0.32/0.33: attention heads divide by the tensor parallel size; KV heads divide by it, or it by them (then
each is held several times); a shard of a quantized expert must hold whole quantization groups.
"""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._recipe import Architecture


@dataclass(frozen=True)
class Parallel:
    tensor: int
    pipeline: int
    reason: str


def choose(
    model: Architecture, nodes: int, tensor: int = 0, pipeline: int = 0
) -> tuple[Parallel | None, list[tuple[str, str]]]:
    """Pick the sizes, or check those that were asked for (0 means not asked). Problems are (found, remedy)."""
    if tensor < 0 or pipeline < 0:
        return None, [("a parallel size is negative", "Use 0 to have it computed")]
    if tensor or pipeline:
        tensor = tensor or max(1, nodes // pipeline)
        pipeline = pipeline or max(1, nodes // tensor)
        problems = []
        if tensor * pipeline != nodes:
            problems.append(
                (
                    f"tensor parallel {tensor} x pipeline parallel {pipeline} = {tensor * pipeline} ranks,"
                    f" and there are {nodes} nodes with one GPU each",
                    f"Make the product {nodes}, or set both to 0 to have them computed",
                )
            )
        obstacle = tensor_obstacle(model, tensor)
        if obstacle:
            problems.append((f"tensor parallel {tensor} does not work: {obstacle}", _possible(model, nodes)))
        if pipeline > model.layers:
            problems.append(
                (f"pipeline parallel {pipeline} is more than the model's {model.layers} layers", "Use a smaller size")
            )
        reason = f"Tensor parallel {tensor}, pipeline parallel {pipeline}: as asked for."
        return (None, problems) if problems else (Parallel(tensor, pipeline, reason), [])
    if nodes == 1:
        return Parallel(1, 1, "One node holds the whole model."), []
    obstacle = tensor_obstacle(model, nodes)
    if not obstacle:
        heads = f"{model.attention_heads} attention and {model.kv_heads} KV heads divide by {nodes}"
        if model.kv_heads % nodes:
            heads = (
                f"{model.attention_heads} attention heads divide by {nodes}, {model.kv_heads} KV heads are replicated"
            )
        return Parallel(nodes, 1, f"Tensor parallel over {nodes} nodes, for short answers: {heads}."), []
    if nodes <= model.layers:
        return Parallel(1, nodes, f"Pipeline parallel over {nodes} nodes, because {obstacle}."), []
    return None, [
        (f"{nodes} nodes cannot share this model: {obstacle}, and it has {model.layers} layers", "Use fewer nodes")
    ]


def tensor_obstacle(model: Architecture, size: int) -> str:
    """Why the model cannot be split into ``size`` tensor parallel shards, or an empty text."""
    if model.attention_heads % size:
        return f"{model.attention_heads} attention heads do not divide by {size}"
    if model.kv_heads % size and size % model.kv_heads:
        return f"{model.kv_heads} KV heads and {size} shards do not divide"
    if model.moe_intermediate_size:
        if model.moe_intermediate_size % size:
            return f"the experts' intermediate size {model.moe_intermediate_size} does not divide by {size}"
        shard = model.moe_intermediate_size // size
        if shard % model.shard_multiple:
            return (
                f"a shard of {model.moe_intermediate_size} / {size} = {shard} is no multiple of the quantization group"
                f" {model.shard_multiple}"
            )
    return ""


def _possible(model: Architecture, nodes: int) -> str:
    sizes = [size for size in range(1, nodes + 1) if nodes % size == 0 and not tensor_obstacle(model, size)]
    return f"Tensor parallel sizes that work on {nodes} nodes: {', '.join(map(str, sizes)) or 'none'}"
