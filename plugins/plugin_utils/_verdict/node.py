# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Machines as doctor sees them: what their journals tell, boots that ended without a shutdown, what the processes of
their ranks may do, and how fast the GPU is. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import journal
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    PASS,
    UNKNOWN,
    WARN,
    Limit,
    Verdict,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observation import (
    EXPECTED,
    NOT_KNOWN,
    UNLIMITED,
    Lines,
    Observation,
    Rank,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import verdict

Observed = Mapping[str, Observation]  # by host
Limits = Mapping[str, Limit]  # of limits.py
MIB = 2**20
YEAR_9999 = 253370764800  # seconds since 1970


def judge(observed: Observed, limits: Limits) -> list[Verdict]:
    return [
        *_passed("journal", "the journals tell of no fault", observed, _journal(observed, limits)),
        *_passed("boot", "every boot ended with a shutdown", observed, _boots(observed)),
        *_passed("port_filter", "the port filter is active", observed, _filters(observed)),
        *_passed(
            "rank_process",
            "the processes of the ranks have what they need",
            _with_ranks(observed),
            _ranks(observed, limits),
        ),
        *_gpus(observed, limits),
        *(
            verdict("observed", "node", f"not looked at: {problem}", outcome=UNKNOWN, hosts=[host])
            for host, one in observed.items()
            for problem in one.problems
        ),
    ]


def _passed(check: str, words: str, hosts: Iterable[str], found: Iterable[Verdict]) -> Iterator[Verdict]:
    """What was found; a pass for all the machines without a finding."""
    said = list(found)
    yield from said
    good = [host for host in hosts if not any(host in one.hosts for one in said)]
    if good:
        yield verdict(check, "node", words, outcome=PASS, hosts=good)


def _with_ranks(observed: Observed) -> list[str]:
    return [host for host, one in observed.items() if one.ranks]


# --- the journal


def _journal(observed: Observed, limits: Limits) -> Iterator[Verdict]:
    for host, one in observed.items():
        if not one.journal_read:
            yield verdict("journal", "node", "not looked at: journalctl does not answer", outcome=UNKNOWN, hosts=[host])
        for lines in one.lines:
            yield from _lines(host, lines, limits)


def _lines(host: str, lines: Lines, limits: Limits) -> Iterator[Verdict]:
    at = _time(lines.last_at)
    lacking, flaps = limits["no_memory_per_hour"], limits["links_down_per_day"]
    if lines.kind == journal.NO_MEMORY and lines.most_per_hour > lacking.value:
        yield verdict(
            "journal",
            "node",
            f"the GPU's driver got no memory {lines.most_per_hour} times within an hour, last at {at}",
            cause="no_memory_journal",
            outcome=WARN,
            hosts=[host],
            value=lines.most_per_hour,
            limit=lacking,
            evidence=[lines.last],
        )
    elif lines.kind == journal.LINK_DOWN and lines.most_per_day > flaps.value:
        yield verdict(
            "journal",
            "half",
            f"the link went down {lines.most_per_day} times within a day, last at {at}",
            cause="link_flaps",
            outcome=WARN,
            hosts=[host],
            device=lines.device,
            value=lines.most_per_day,
            limit=flaps,
            evidence=[lines.last],
        )
    elif lines.kind in (journal.OUT_OF_MEMORY, journal.GPU_ERROR):
        words, cause = {
            journal.OUT_OF_MEMORY: ("the kernel killed {device} because memory ran out", "out_of_memory"),
            journal.GPU_ERROR: ("the driver reports an error of the GPU {device}", "gpu_error"),
        }[lines.kind]
        yield verdict(
            "journal",
            "node",
            f"{words.format(device=lines.device)} {lines.count} times, last at {at}",
            cause=cause,
            outcome=WARN,
            hosts=[host],
            device=lines.device if lines.kind == journal.GPU_ERROR else "",
            value=lines.count,
            evidence=[lines.last],
        )


def _time(at: float) -> str:
    if not 0 <= at < YEAR_9999:
        return "a time that no calendar has"  # a node has said so; the others are judged all the same
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _boots(observed: Observed) -> Iterator[Verdict]:
    for host, one in observed.items():
        if not one.boots and one.uptime_s < one.days * journal.DAY:
            words = "not looked at: how the boot before this one ended, of which the journal has nothing"
            yield verdict("boot", "node", words, outcome=UNKNOWN, hosts=[host])
        ended = [boot for boot in one.boots if not boot.clean]
        if not ended:
            continue
        wedged = [boot for boot in ended if boot.no_memory]
        first = (wedged or ended)[0]
        before = f" after {first.no_memory} lines with NV_ERR_NO_MEMORY" if wedged else ""
        yield verdict(
            "boot",
            "node",
            f"{len(ended)} of the last {len(one.boots)} boots ended without a shutdown, the last one at"
            f" {_time(first.ended_at)}{before}",
            cause="no_memory_journal" if wedged else "power_off",
            outcome=WARN,
            hosts=[host],
            value=len(ended),
            evidence=first.last,
        )


def _filters(observed: Observed) -> Iterator[Verdict]:
    for host, one in observed.items():
        for problem in one.filters:
            yield verdict("port_filter", "node", problem, cause="port_filter_off", hosts=[host])


# --- processes of the ranks


def _ranks(observed: Observed, limits: Limits) -> Iterator[Verdict]:
    for host, one in observed.items():
        said: set[tuple[str, str]] = set()
        for rank in one.ranks:
            for made in _rank(host, one, rank, limits["memlock_mib"]):
                # Ranks of one unit have the same fault: it is told once.
                if (made.cause, made.device) not in said:  # of what is not known the cause is empty
                    said.add((made.cause, made.device))
                    yield made


def _rank(host: str, one: Observation, rank: Rank, memlock: Limit) -> Iterator[Verdict]:
    title = [rank.title]
    if rank.memlock == NOT_KNOWN:
        words = "how much memory a rank may lock cannot be read"
        yield verdict("rank_process", "service", words, outcome=UNKNOWN, hosts=[host], device=rank.unit, evidence=title)
    short = rank.memlock not in (NOT_KNOWN, UNLIMITED)
    below = rank.memlock_planned == UNLIMITED or rank.memlock < rank.memlock_planned
    if short and (below or (rank.over_rdma and rank.memlock < memlock.value * MIB)):
        planned = "no limit" if rank.memlock_planned == UNLIMITED else f"{rank.memlock_planned / MIB:.1f} MiB"
        yield verdict(
            "rank_process",
            "service",
            f"a rank may lock {rank.memlock / MIB:.1f} MiB of memory, planned is {planned}",
            cause="memlock",
            hosts=[host],
            device=rank.unit,
            value=rank.memlock / MIB,
            limit=memlock,
            evidence=title,
        )
    if not rank.over_rdma:
        return
    if not rank.may_open:
        yield verdict(
            "rank_process",
            "service",
            "a rank finds no device in /dev/infiniband",
            cause="no_infiniband",
            hosts=[host],
            device=rank.unit,
            evidence=title,
        )
    elif not rank.opened:
        yield verdict(
            "rank_process",
            "service",
            f"a rank has opened no RDMA device ({', '.join(rank.may_open)} are there): it talks to the others over TCP",
            cause="tcp_fallback",
            hosts=[host],
            device=rank.unit,
            evidence=title,
        )
    else:
        unused = [device for device in one.halves if device not in rank.opened]
        if unused:
            yield verdict(
                "rank_process",
                "service",
                f"a rank has opened {', '.join(rank.opened)} and not {', '.join(unused)}",
                cause="one_half_only",
                hosts=[host],
                device=rank.unit,
                evidence=title,
            )


# --- the GPU


def _gpus(observed: Observed, limits: Limits) -> Iterator[Verdict]:
    """While an engine runs nothing is measured and nothing is said: preflight looks at the clocks then."""
    limit = limits["gpu_gbs"]
    for host, one in observed.items():
        if one.gpu.gbs:
            good = one.gpu.gbs >= limit.value
            yield verdict(
                "gpu_rate",
                "node",
                f"a matrix-vector product reads {one.gpu.gbs:.0f} GB/s",
                outcome=PASS if good else WARN,
                cause="" if good else "gpu_slow",
                hosts=[host],
                value=one.gpu.gbs,
                limit=limit,
            )
        elif one.gpu.reason not in EXPECTED:
            yield verdict(
                "gpu_rate", "node", f"not measured: {one.gpu.reason}", outcome=UNKNOWN, hosts=[host], limit=limit
            )
