# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Machines as doctor sees them: what their journals tell, boots that ended without a shutdown, what the processes of
their ranks may do, and how fast the GPU is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import journal
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.journal import Lines
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import (
    EXPECTED,
    NOT_KNOWN,
    UNLIMITED,
    Rank,
    Snapshot,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    Limit,
    Verdict,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import (
    or_passed,
    passed,
    unknown,
    verdict,
)

Observed = Mapping[str, Snapshot]  # by host
Limits = Mapping[str, Limit]  # of limits.py
MIB = 2**20
YEAR_9999 = 253370764800  # seconds since 1970


def judge(observed: Observed, limits: Limits) -> list[Verdict]:
    ranked = [host for host, snapshot in observed.items() if snapshot.ranks]
    return [
        *or_passed("journal", "the journals tell of no fault", observed, _journal(observed, limits)),
        *or_passed("boot", "every boot ended with a shutdown", observed, _boots(observed)),
        *or_passed("rank_process", "the processes of the ranks have what they need", ranked, _ranks(observed, limits)),
        *_gpus(observed, limits),
    ]


# --- the journal


def _journal(observed: Observed, limits: Limits) -> Iterator[Verdict]:
    for host, snapshot in observed.items():
        if not snapshot.journal_read:
            yield unknown("journal", "node", "not looked at: journalctl does not answer", [host])
        for lines in snapshot.lines:
            yield from _lines(host, lines, limits)


# Kinds of lines: the rule, what is said, and the limit of how often.
KINDS: Mapping[str, tuple[str, str, str]] = {
    journal.NO_MEMORY: (
        "no_memory_journal",
        "the GPU's driver got no memory {count} times within an hour",
        "no_memory_per_hour",
    ),
    journal.LINK_DOWN: ("link_flaps", "the link went down {count} times within a day", "links_down_per_day"),
    journal.OUT_OF_MEMORY: ("out_of_memory", "the kernel killed {device} because memory ran out {count} times", ""),
    journal.GPU_ERROR: ("gpu_error", "the driver reports an error of the GPU {device} {count} times", ""),
}


def _lines(host: str, lines: Lines, limits: Limits) -> Iterator[Verdict]:
    if lines.kind not in KINDS:
        return
    rule, words, name = KINDS[lines.kind]
    often = {journal.NO_MEMORY: lines.most_per_hour, journal.LINK_DOWN: lines.most_per_day}
    limit, count = limits.get(name), often.get(lines.kind, lines.count)
    if limit and count <= limit.value:
        return
    device = lines.device if lines.kind in (journal.LINK_DOWN, journal.GPU_ERROR) else ""
    found = f"{words.format(device=lines.device, count=count)}, last at {_time(lines.last_at)}"
    scope = "half" if lines.kind == journal.LINK_DOWN else "node"
    measured: dict[str, Any] = {"value": count, "limit": limit, "evidence": [lines.last]}
    yield verdict("journal", scope, found, rule, [host], device=device, **measured)


def _time(at: float) -> str:
    if not 0 <= at < YEAR_9999:
        return "a time that no calendar has"  # a node has said so; the others are judged all the same
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _boots(observed: Observed) -> Iterator[Verdict]:
    for host, snapshot in observed.items():
        if not snapshot.boots and snapshot.uptime_s < snapshot.days * journal.DAY:
            words = "not looked at: how the boot before this one ended, of which the journal has nothing"
            yield unknown("boot", "node", words, [host])
        ended = [boot for boot in snapshot.boots if not boot.clean]
        if not ended:
            continue
        wedged = [boot for boot in ended if boot.no_memory]
        first = (wedged or ended)[0]
        before = f" after {first.no_memory} lines with NV_ERR_NO_MEMORY" if wedged else ""
        many = f"{len(ended)} of the last {len(snapshot.boots)} boots ended without a shutdown"
        words = f"{many}, the last one at {_time(first.ended_at)}{before}"
        rule = "no_memory_journal" if wedged else "power_off"
        yield verdict("boot", "node", words, rule, [host], value=len(ended), evidence=first.last)


# --- processes of the ranks


def _ranks(observed: Observed, limits: Limits) -> Iterator[Verdict]:
    for host, snapshot in observed.items():
        said: set[tuple[str, str]] = set()
        for rank in snapshot.ranks:
            for made in _rank(host, snapshot, rank, limits["memlock_mib"]):
                # Ranks of one unit have the same fault: it is told once.
                if (made.cause, made.device) not in said:  # of what is not known the cause is empty
                    said.add((made.cause, made.device))
                    yield made


def _rank(host: str, snapshot: Snapshot, rank: Rank, memlock: Limit) -> Iterator[Verdict]:
    about: dict[str, Any] = {"device": rank.unit, "evidence": [rank.title]}
    if rank.memlock == NOT_KNOWN:
        yield unknown("rank_process", "service", "how much memory a rank may lock cannot be read", [host], **about)
    short = rank.memlock not in (NOT_KNOWN, UNLIMITED)
    below = rank.memlock_planned == UNLIMITED or rank.memlock < rank.memlock_planned
    if short and (below or (rank.over_rdma and rank.memlock < memlock.value * MIB)):
        planned = "no limit" if rank.memlock_planned == UNLIMITED else f"{rank.memlock_planned / MIB:.1f} MiB"
        words = f"a rank may lock {rank.memlock / MIB:.1f} MiB of memory, planned is {planned}"
        measured: dict[str, Any] = {"value": rank.memlock / MIB, "limit": memlock}
        yield verdict("rank_process", "service", words, "memlock", [host], **measured, **about)
    unused = [device for device in snapshot.halves if device not in rank.opened]
    if not rank.over_rdma or (rank.may_open and rank.opened and not unused):
        return
    if not rank.may_open:
        rule, words = "no_infiniband", "a rank finds no device in /dev/infiniband"
    elif not rank.opened:
        there = f"({', '.join(rank.may_open)} are there): it talks to the others over TCP"
        rule, words = "tcp_fallback", f"a rank has opened no RDMA device {there}"
    else:
        rule, words = "one_half_only", f"a rank has opened {', '.join(rank.opened)} and not {', '.join(unused)}"
    yield verdict("rank_process", "service", words, rule, [host], **about)


# --- the GPU


def _gpus(observed: Observed, limits: Limits) -> Iterator[Verdict]:
    """While an engine runs nothing is measured and nothing is said: preflight looks at the clocks then."""
    limit = limits["gpu_gbs"]
    for host, snapshot in observed.items():
        if snapshot.gpu.gbs:
            words = f"a matrix-vector product reads {snapshot.gpu.gbs:.0f} GB/s"
            measured: dict[str, Any] = {"value": snapshot.gpu.gbs, "limit": limit}
            if snapshot.gpu.gbs >= limit.value:
                yield passed("gpu_rate", "node", words, [host], **measured)
            else:
                yield verdict("gpu_rate", "node", words, "gpu_slow", [host], **measured)
        elif snapshot.gpu.reason not in EXPECTED:
            yield unknown("gpu_rate", "node", f"not measured: {snapshot.gpu.reason}", [host], limit=limit)
