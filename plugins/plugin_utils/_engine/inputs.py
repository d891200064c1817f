# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Judges the models of all nodes together, before anything is stopped: each can be had, and is the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.inputs import Model
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import model_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan


def judge(plans: Mapping[str, NodePlan], seen: Mapping[str, Sequence[Model]], brought: bool = False) -> list[Finding]:
    """``seen``: per host, what the node has of its models. ``brought``: the layer artifacts judges
    those that it brings, when it has seen where they can be had."""
    if brought:
        seen = {host: [model for model in models if not model.held] for host, models in seen.items()}
    findings = [
        Finding(host, f"model {model.name}: {model.problem}", model.remedy)
        for host, models in sorted(seen.items())
        for model in models
        if model.problem
    ]
    return [*findings, *_differing(plans, seen)]


def _differing(plans: Mapping[str, NodePlan], seen: Mapping[str, Sequence[Model]]) -> list[Finding]:
    """Ranks of one service read the same files.

    The cache of a node may be older for a while: an engine that reaches the hub fetches the newest on all nodes, so
    that is told and not refused.
    """
    signed = {host: {one.name: one for one in models if one.signature} for host, models in seen.items()}
    found: dict[tuple[str, str], dict[str, Model]] = {}
    for host, document in sorted(plans.items()):
        for service in document.all:
            for model in service.models:
                if model.name in signed.get(host, {}):
                    found.setdefault((service.instance, model.name), {})[host] = signed[host][model.name]
    made = []
    for (_instance, name), by_host in found.items():
        if len({one.signature for one in by_host.values()}) > 1:
            local = any(one.where == model_files.FILES for one in by_host.values())
            made.append(
                Finding(
                    ", ".join(f"{host} {one.signature[:8]}" for host, one in by_host.items()),
                    f"model {name} is not the same on these nodes (config.json, names or sizes of files differ), and"
                    " all ranks of a service have to read the same",
                    "Copy it from one node to the others"
                    if local
                    else "Pin a revision in the recipe, or remove it from the cache where it is old",
                    severity="error" if local else "warning",
                )
            )
    return list(dict.fromkeys(made))
