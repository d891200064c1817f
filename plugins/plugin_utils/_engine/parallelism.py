# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How one model is split over the nodes, each of which has one GPU: tensor, pipeline, expert and data parallel.

Rules that vLLM, SGLang and TensorRT-LLM share: attention heads divide by the tensor parallel size; KV heads divide by
it, or it by them (then each is held several times); a shard of a quantized layer must hold whole quantization blocks.
Experts may be spread whole instead of being cut (expert parallel), which is the way out where their shards would not
hold whole blocks (vllm issues 54178 and 25292). Sources: vLLM 0.33, SGLang 0.5.23 and TensorRT-LLM 1.4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture

VOCABULARY_PADDING = 64
WHERE = "engine plan"


class Splits(Protocol):
    """What an engine says about it: :class:`_engine.kinds.base.Engine`."""

    name: str
    replicas: bool
    uneven_experts: bool


@dataclass(frozen=True)
class Asked:
    """Sizes that a user or recipe sets; 0 and ``None`` mean computed."""

    tensor: int = 0
    pipeline: int = 0
    data: int = 0
    expert: bool | None = None
    throughput: bool = False  # many requests at once matter more than the speed of one
    whole_on_one: bool = False  # the model fits one node with what is asked of it


def choose(
    model: Architecture, nodes: int, asked: Asked | None, engine: Splits
) -> tuple[Parallel | None, list[Finding]]:
    """Pick the sizes, or check those that were asked for."""
    asked = asked or Asked()
    if min(asked.tensor, asked.pipeline, asked.data) < 0:
        return None, [Finding(WHERE, "a parallel size is negative", "Use 0 to have it computed")]
    if asked.tensor or asked.pipeline or asked.data:
        return _checked(model, nodes, asked, engine)
    return _computed(model, nodes, asked, engine)


def _checked(model: Architecture, nodes: int, asked: Asked, engine: Splits) -> tuple[Parallel | None, list[Finding]]:
    data = asked.data or 1
    tensor = asked.tensor or max(1, nodes // (asked.pipeline or 1) // data)
    pipeline = asked.pipeline or max(1, nodes // tensor // data)
    problems = []
    if tensor * pipeline * data != nodes:
        also = f" x data parallel {data}" if data > 1 else ""
        problems.append(
            Finding(
                WHERE,
                f"tensor parallel {tensor} x pipeline parallel {pipeline}{also} = {tensor * pipeline * data} ranks,"
                f" and there are {nodes} nodes with one GPU each",
                f"Make the product {nodes}, or set all of them to 0 to have them computed",
            )
        )
    expert, obstacle = _experts(model, tensor, asked.expert, engine)
    if obstacle:
        found = f"tensor parallel {tensor} does not work: {obstacle}"
        problems.append(Finding(WHERE, found, _possible(model, nodes, asked.expert, engine)))
    made = Parallel(tensor, pipeline, "", data, expert)
    problems += list(_limits(model, made, engine))
    if problems:
        return None, problems
    parts = [f"Tensor parallel {tensor}, pipeline parallel {pipeline}"]
    parts += [f", {data} replicas"] if data > 1 else []
    parts += [", experts spread whole"] if expert else []
    return Parallel(tensor, pipeline, f"{''.join(parts)}: as asked for.", data, expert), []


def _computed(model: Architecture, nodes: int, asked: Asked, engine: Splits) -> tuple[Parallel | None, list[Finding]]:
    if nodes == 1:
        return Parallel(1, 1, "One node holds the whole model."), []
    expert, obstacle = _experts(model, nodes, asked.expert, engine)
    pipeline_problems = list(_limits(model, Parallel(1, nodes, ""), engine))
    if asked.throughput and asked.whole_on_one and not list(_limits(model, Parallel(1, 1, "", nodes), engine)):
        reason = f"{nodes} replicas behind one endpoint, because the model fits one node and throughput is what counts."
        return Parallel(1, 1, reason, nodes), []
    if asked.throughput and not pipeline_problems and model.layers >= 4 * nodes:
        reason = f"Pipeline parallel over {nodes} nodes, for many requests at once: less is exchanged than by tensors."
        return Parallel(1, nodes, reason), []
    if not obstacle:
        return Parallel(nodes, 1, _tensor_reason(model, nodes, expert), expert=expert), []
    if not pipeline_problems:
        return Parallel(1, nodes, f"Pipeline parallel over {nodes} nodes, because {obstacle}."), []
    return None, [
        replace(problem, found=f"{nodes} nodes cannot share this model: {obstacle}, and {problem.found}")
        for problem in pipeline_problems
    ]


def _tensor_reason(model: Architecture, nodes: int, expert: bool) -> str:
    heads = f"{model.attention_heads} attention and {model.kv_heads} KV heads divide by {nodes}"
    if model.attention == "mla":
        heads = f"{model.attention_heads} attention heads divide by {nodes}, the compressed cache is on every rank"
    elif model.kv_heads % nodes:
        heads = f"{model.attention_heads} attention heads divide by {nodes}, {model.kv_heads} KV heads are replicated"
    if expert:
        why = _expert_obstacle(model, nodes)
        heads += f"; {model.experts} experts are spread whole" + (f", because {why}" if why else "")
    return f"Tensor parallel over {nodes} nodes, for short answers: {heads}."


def _experts(model: Architecture, tensor: int, asked: bool | None, engine: Splits) -> tuple[bool, str]:
    """(experts are spread whole, obstacle) for a tensor parallel size. Off unless asked for, or the only way."""
    obstacle = heads_obstacle(model, tensor)
    if obstacle or tensor == 1:
        return False, obstacle
    cut = _expert_obstacle(model, tensor)
    if not model.experts:
        return False, "the model has no experts to spread" if asked else cut
    spread = ""
    if not engine.uneven_experts and model.experts % tensor:
        spread = f"{model.experts} experts do not divide by {tensor}"
    elif model.experts < tensor:
        spread = f"there are {model.experts} experts for {tensor} ranks"
    if asked:
        return True, spread
    if asked is None and cut and not spread:
        return True, ""
    return False, cut


def heads_obstacle(model: Architecture, size: int) -> str:
    """Why the model, but for its experts, cannot be cut into ``size`` tensor parallel shards, or an empty text."""
    if model.attention_heads % size:
        return f"{model.attention_heads} attention heads do not divide by {size}"
    if model.attention != "mla" and model.kv_heads % size and size % model.kv_heads:
        return f"{model.kv_heads} KV heads and {size} shards do not divide"
    if model.linear_value_heads and (model.linear_value_heads % size or model.linear_key_heads % size):
        heads = f"{model.linear_key_heads} key and {model.linear_value_heads} value heads"
        return f"{heads} of the linear attention do not divide by {size}"
    # All three engines pad the vocabulary to a multiple of 64 and give every rank an equal part of that.
    padded = -(-model.vocab_size // VOCABULARY_PADDING) * VOCABULARY_PADDING
    if padded % size:
        return f"the vocabulary of {model.vocab_size}, padded to {padded}, does not divide by {size}"
    if not model.moe_intermediate_size and model.intermediate_size and model.shard_multiple > 1:
        return _cut("the intermediate size", model.intermediate_size, size, model.shard_multiple)
    return ""


def _expert_obstacle(model: Architecture, size: int) -> str:
    if not model.moe_intermediate_size:
        return ""
    return _cut("the experts' intermediate size", model.moe_intermediate_size, size, model.shard_multiple)


def _cut(what: str, length: int, size: int, multiple: int) -> str:
    if length % size:
        return f"{what} {length} does not divide by {size}"
    if size > 1 and length // size % multiple:
        return f"a shard of {length} / {size} = {length // size} is no multiple of the quantization group {multiple}"
    return ""


def _limits(model: Architecture, made: Parallel, engine: Splits) -> Iterator[Finding]:
    """What does not depend on how tensors are cut."""
    if made.pipeline > model.layers:
        found = f"pipeline parallel {made.pipeline} is more than the model's {model.layers} layers"
        yield Finding(WHERE, found, "Use a smaller size")
    if made.data > 1 and not engine.replicas:
        yield Finding(
            WHERE,
            f"{engine.name} has no replicas over several nodes in one service",
            "Serve each node on its own behind one gateway, or use vllm",
        )


def instead_of_replicas(parallel: Parallel, names: OptionNames) -> str:
    """What serves where replicas of several nodes each are wanted."""
    size = parallel.tensor * parallel.pipeline
    return (
        f"Write {parallel.data} engine_services of {size} nodes each, each with a served_model_name of its own."
        f" Or set {names['data_parallel_size']}: {parallel.ranks} (one node each, where the model fits one) or 1 (one"
        " model over all nodes)"
    )


def _possible(model: Architecture, nodes: int, expert: bool | None, engine: Splits) -> str:
    sizes = [size for size in range(1, nodes + 1) if nodes % size == 0 and not _experts(model, size, expert, engine)[1]]
    return f"Tensor parallel sizes that work on {nodes} nodes: {', '.join(map(str, sizes)) or 'none'}"
