# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which rank each node is in a test of NCCL, or why there is none. Pure; runs once per play on the controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.run import SMALLEST, Part, Ready

GIB = 2**30
# all_gather has what is sent beside what is received; torch, CUDA and NCCL's own buffers take about 3 GiB.
COPIES = 2
BESIDE = 4 * GIB
TIMEOUT_S = 600.0  # for all sizes; systemd ends the test then


@dataclass(frozen=True)
class Schedule:
    """``reason`` says why nothing is measured; it is empty when ``parts`` are to be done."""

    parts: Mapping[str, Part]
    reason: str = ""


def schedule(
    facts: Mapping[str, FabricFact],
    ready: Mapping[str, Ready],
    *,
    head: str,
    largest: int,
    forks: int,
    port: int,
) -> Schedule:
    """``ready``: what was found on each node."""
    reason = _not_possible(facts, ready, head, largest, forks)
    if reason:
        return Schedule({}, reason)
    hosts = [head, *sorted((host for host in facts if host != head), key=lambda host: (facts[host].rank, host))]
    store = f"{facts[head].cluster_address}:{port}"
    return Schedule(
        {
            host: Part(
                rank=rank,
                ranks=len(hosts),
                store=store,
                largest=largest,
                timeout_s=TIMEOUT_S,
            )
            for rank, host in enumerate(hosts)
        }
    )


def _not_possible(
    facts: Mapping[str, FabricFact],
    ready: Mapping[str, Ready],
    head: str,
    largest: int,
    forks: int,
) -> str:
    if len(facts) < 2:
        return "there is one machine, and NCCL is tested between machines"
    if largest < SMALLEST:
        return "benchmark_nccl_largest_mib has to be 1 or more"
    if head not in facts:
        return "the plan has no head, where the ranks would meet"
    needed = COPIES * largest + BESIDE
    for found, text in (
        (
            [host for host in facts if not ready[host].engine],
            "the plan has no engine, whose Python or image would run the test,",
        ),
        (
            [host for host in facts if not ready[host].program],
            "the engine's Python, image or files are missing (run the layer engine)",
        ),
        (
            [host for host in facts if ready[host].busy],
            "the engine is running and would be disturbed (stop it with playbooks/stop.yml)",
        ),
        (
            [host for host in facts if ready[host].available < needed],
            f"less than the {needed / GIB:.1f} GiB that it needs are free (lower benchmark_nccl_largest_mib)",
        ),
    ):
        if found:
            return f"{text} on {'all machines' if len(found) == len(facts) else ', '.join(sorted(found))}"
    if forks < len(facts):
        return f"all ranks must run at the same time, and Ansible runs {forks} at once (set --forks {len(facts)})"
    return ""
