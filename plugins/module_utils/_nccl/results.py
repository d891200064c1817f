# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Figures of collectives: of our own ``collectives.py``, which prints them as they are here, and of nccl-tests, whose
table somebody may have."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Number, Words

MAX_ROWS = 128
MAX_WORDS = 200  # characters
_STARTING = re.compile(r"^# Collective test starting: ([a-z_]{3,40})_perf", re.MULTILINE)
_RANK = re.compile(r"^#\s+Rank\s+(\d{1,5}) .*?\bon\s+(\S+) device\s+\d+ \[\S+\] (\S[^\n]*)$", re.MULTILINE)
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*:\s*([0-9.]+)", re.MULTILINE)
_FAILED = re.compile(r"^.*(?:Test (?:\w+ )?failure|CUDA failure|out of memory).*$", re.MULTILINE)
_COLUMNS = 13  # size, count, type, operation, root, and twice: time, algbw, busbw, #wrong


@dataclass(frozen=True)
class Row:
    """One size. Rates are the middle of in place and out of place, where both were measured, as nccl-tests averages."""

    bytes: Count
    microseconds: Number
    algorithm_gbs: Number  # GB/s
    bus_gbs: Number  # GB/s
    wrong: Count = 0  # elements


@dataclass(frozen=True)
class Results:
    """One run of one test. ``hosts`` are as many as ranks named theirs, in the order of the ranks."""

    test: Words
    rows: tuple[Row, ...] = ()
    ranks: Count = 0  # 0: it did not say
    hosts: tuple[Words, ...] = ()
    device: Words = ""  # of rank 0
    average_gbs: Number = 0
    nccl: Words = ""  # version
    backend: Words = "nccl"
    trouble: Words = ""  # how it ended, where it ended badly

    @property
    def largest(self) -> Row | None:
        return max(self.rows, key=lambda row: row.bytes, default=None)

    @property
    def wrong(self) -> int:
        """Elements with a wrong value."""
        return sum(row.wrong for row in self.rows)


def ours(text: str) -> list[Results]:
    """What ``collectives.py`` has printed between the lines of NCCL. :class:`SparkError` where there is nothing."""
    found = []
    for line in text.splitlines():
        if line.startswith('{"test": '):
            with json_text.Reading("a result is damaged", "collectives"):
                found.append(document.load(Results, json_text.mapping(line)))
    if not found:
        raise SparkError(f"there is no result in it; it ends with {_end(text)!r}", "collectives")
    return found


def table(text: str) -> Results:
    """The output of one program of nccl-tests. :class:`SparkError` where there is no table, and no failure."""
    ranks = sorted({(int(number), host, device.strip()) for number, host, device in _RANK.findall(text)})
    test, average, failed = _STARTING.search(text), _AVERAGE.search(text), _FAILED.findall(text)
    made = Results(
        test=test[1] if test else "",
        rows=tuple(row for row in map(_row, text.splitlines()) if row)[:MAX_ROWS],
        # Programs that were built without MPI and started by mpirun are rank 0 of one each.
        ranks=len({number for number, _host, _device in ranks}),
        hosts=tuple(host for _number, host, _device in ranks),
        device=ranks[0][2][:MAX_WORDS] if ranks else "",
        average_gbs=_number(average[1]) if average else 0,
        trouble=" ".join(failed[-1].split())[:MAX_WORDS] if failed else "",
    )
    if not (made.rows or made.ranks or made.trouble):
        found = f"there is no table of nccl-tests in it; it ends with {_end(text)!r}"
        raise SparkError(found, "output of nccl-tests")
    return made


def _end(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing")[:160]


def _row(line: str) -> Row | None:
    words = line.split()
    size = strict.digits(words[0]) if len(words) == _COLUMNS else None
    if not size or size > document.LARGEST:
        return None
    # N/A: the tool has no such run.
    measured = [one for one in ([_number(word) for word in words[at : at + 4]] for at in (5, 9)) if one[0] > 0]
    if not measured:
        return None
    time, algorithm, bus = (round(sum(values) / len(values), 4) for values in list(zip(*measured))[:3])
    return Row(size, time, algorithm, bus, int(sum(one[3] for one in measured)))


def _number(word: str) -> float:
    try:
        number = float(word)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) and 0 <= number < 1e15 else 0.0
