# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Figures of collectives: the text and the JSON of nccl-tests, and of our own ``collectives.py``, which has its shape.

Text is the same in all versions but for blanks. JSON (``-J``, since 2.17.3) writes true and false as texts, and the
whole environment, of which nothing is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Count, Number, Words

MOST_ROWS = 128
MOST_RANKS = 1024
MOST_WORDS = 200  # characters
_TEST = re.compile(r"(?:^|/)([a-z_]{3,40}?)_perf\w*$")  # all_reduce_perf_mpi: a name that its makefile knows
_STARTING = re.compile(r"^# Collective test starting: ([a-z_]{3,40})_perf", re.MULTILINE)
_RANK = re.compile(
    r"^#\s+Rank\s+(\d{1,5}) (?:Group\s+\d+ )?Pid\s+\d+ on\s+(\S+) device\s+\d+ \[\S+\] (.*)$", re.MULTILINE
)
_AVERAGE = re.compile(r"^# Avg bus bandwidth\s*:\s*([0-9.eE+-]+|nan|-nan|inf)\b", re.MULTILINE)
_BOUNDS = re.compile(r"^# Out of bounds values\s*:\s*(\d{1,18})", re.MULTILINE)
_TOOL = re.compile(r"^# nccl-tests version (\S{1,40})(?: nccl-headers=\d+ nccl-library=(\d{3,7}))?", re.MULTILINE)
# Who printed a line, as launchers say it: Open MPI and PRRTE ("[1,0]<stdout>:", "[job@1,0][host:pid]<stderr>: ", also
# inside a line that came in pieces), srun --label ("0: "), mpiexec -l and torchrun ("[0] ", "[default0]:").
_TAG = re.compile(
    r"\[[\w.@-]+,\d+\](?:\[[\w.:-]+\])?<std(?:out|err|diag)>: ?"
    r"|^ {0,4}\d{1,4}: |^\[(?:rank|default)?\d{1,4}\](?:: ?| )",
    re.MULTILINE,
)
# What stands before lines that are known by their beginning: times, names of machines, containers and pods.
_BEFORE = re.compile(
    r"^((?=\S)(?:(?!NCCL)[^\x22{}#\n]){1,80}?)(?:# (?:nccl-tests|Collective|nThread|Using devices| *Rank | *size |Avg )"
    r"|(?<![\w.-])[\w.-]+:\d+:\d+ \[\d+\] |\{\s*$|\{ ?\")",
    re.MULTILINE,
)
_MOST_TAGS = 16  # shapes
_FAILED = re.compile(r"^.*(?:Test (?:\w+ )?failure|CUDA failure|out of memory).*$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One size. Rates are the middle of in place and out of place, where both were measured, as the tool averages."""

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
    wrong: Count = 0  # elements with a wrong value
    nccl: Words = ""  # version
    backend: Words = "nccl"
    trouble: Words = ""  # how it ended, where it ended badly

    @property
    def largest(self) -> Row | None:
        return max(self.rows, key=lambda row: row.bytes, default=None)


def version(code: int) -> str:
    """22809 as 2.28.9, and 2708 of the time before 2.9 as 2.7.8."""
    if code <= 0:
        return ""
    major, rest = divmod(code, 10000) if code >= 10000 else divmod(code, 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def untagged(text: str) -> str:
    """Without the names of the ranks before the lines."""
    text = _TAG.sub("", text)
    shapes = {re.sub(r"\d+", _as_long, re.escape(before)): None for before in _BEFORE.findall(text)}
    known = "|".join(list(shapes)[:_MOST_TAGS])
    return re.sub(f"^(?:{known})", "", text, flags=re.MULTILINE) if known else text


def _as_long(number: re.Match[str]) -> str:
    """Any number of so many digits: a figure may follow without a blank."""
    return f"\\d{{1,{max(len(number[0]), 2)}}}"


def read(text: str) -> list[Results]:
    """All runs in a text of either kind. :class:`SparkError` where there is none."""
    text = untagged(text)
    found = [made for line in text.splitlines() for made in _from_json(line)]
    if not found and text.lstrip().startswith("{"):
        found = _from_json(text)
    if not found:
        found = parse_text(text)
    if not found:
        said = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing")
        raise SparkError(f"there is no result of nccl-tests in it; it ends with {said[:160]!r}", "output of nccl-tests")
    return found


# --- text ------------------------------------------------------------------------------------------------------------


def parse_text(text: str) -> list[Results]:
    """The output of one program, or of several one after the other."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ")
    starts = [match.start() for match in _STARTING.finditer(text)]
    cuts = [0, *starts[1:], len(text)]
    parts = [text[first:last] for first, last in zip(cuts, cuts[1:])]
    return [made for made in map(_one, parts) if made.rows or made.ranks or made.trouble]


def _one(text: str) -> Results:
    rows = tuple(row for row in map(_row, text.split("\n")) if row)[:MOST_ROWS]
    ranks = [(int(number), host, device.strip()) for number, host, device in _RANK.findall(text)][:MOST_RANKS]
    ranks.sort()
    test, average, bounds, tool = (pattern.search(text) for pattern in (_STARTING, _AVERAGE, _BOUNDS, _TOOL))
    failed = _FAILED.findall(text)
    return Results(
        test=test[1] if test else _guess(text),
        rows=rows,
        # Programs that were built without MPI and started by mpirun are rank 0 of one each.
        ranks=len({number for number, _host, _device in ranks}),
        hosts=tuple(host for _number, host, _device in ranks),
        device=ranks[0][2][:MOST_WORDS] if ranks else "",
        average_gbs=_number(average[1]) if average else 0,
        wrong=max(int(bounds[1]) if bounds else 0, sum(row.wrong for row in rows)),
        nccl=version(int(tool[2])) if tool and tool[2] else "",
        trouble=" ".join(failed[-1].split())[:MOST_WORDS] if failed else "",
    )


def _guess(text: str) -> str:
    """Before version 2.15 only the end of the name of a file tells; rows with an operation are those of a reduction."""
    return "all_reduce" if re.search(r"^\s*\d+\s+\d+\s+\w+\s+(sum|prod|max|min|avg)\s", text, re.MULTILINE) else ""


def _row(line: str) -> Row | None:
    """``size count type operation root``, then twice ``time algbw busbw #wrong``; excerpts have size and three."""
    words = line.split()
    size = strict.digits(words[0]) if len(words) in (4, 13) else None
    if size is None or size >= 10**18:
        return None
    if len(words) == 4:
        values = [words[1:]]
        wrongs: list[str] = []
    else:
        if strict.digits(words[1]) is None:
            return None
        values, wrongs = [words[5:8], words[9:12]], [words[8], words[12]]
    measured = [
        (time, algorithm, bus)
        for time, algorithm, bus in (map(_number, part) for part in values)
        if time > 0  # N/A: the tool has no such run
    ]
    if not measured:
        return None
    times, algorithms, buses = zip(*measured)
    wrong = sum(strict.digits(word) or 0 for word in wrongs if len(word) <= 18)
    return Row(size, _middle(times), _middle(algorithms), _middle(buses), wrong)


# --- JSON ------------------------------------------------------------------------------------------------------------


def _from_json(text: str) -> list[Results]:
    if not text.lstrip().startswith("{"):
        return []
    try:
        document = json_text.mapping(text)
    except SparkError:
        return []
    if not isinstance(document.get("results"), list):
        return []
    rows = tuple(row for row in map(_json_row, document["results"]) if row)[:MOST_ROWS]
    words = _list(document.get("args"))
    named = _TEST.search(str(words[0])) if words else None
    config = document.get("config")
    devices = _list(config.get("devices") if isinstance(config, Mapping) else None)[:MOST_RANKS]
    devices = [device for device in devices if isinstance(device, Mapping)]
    told = _whole(document.get("ranks"))
    bounds = document.get("out_of_bounds")
    average = document.get("average_bus_bandwidth")
    errors = [str(error) for error in _list(document.get("errors")) if error]
    return [
        Results(
            test=named[1] if named else "",
            rows=rows,
            # A process that drives several GPUs lists only its first rank.
            ranks=told or len(devices) * max(_whole(config.get("ngpus")) if isinstance(config, Mapping) else 1, 1),
            hosts=tuple(str(device.get("hostname") or "")[:MOST_WORDS] for device in devices if device.get("hostname")),
            device=str(devices[0].get("device_info") or "")[:MOST_WORDS] if devices else "",
            average_gbs=_number(average.get("bandwidth")) if isinstance(average, Mapping) else 0,
            wrong=max(
                _whole(bounds.get("count")) if isinstance(bounds, Mapping) else 0, sum(row.wrong for row in rows)
            ),
            nccl=version(_whole(document.get("nccl_version"))),
            backend=str(document.get("backend") or "nccl")[:20],
            trouble=errors[0][:MOST_WORDS] if errors else "",
        )
    ]


def _json_row(entry: Any) -> Row | None:
    if not isinstance(entry, Mapping):
        return None
    parts = [part for part in (entry.get("out_of_place"), entry.get("in_place")) if isinstance(part, Mapping)]
    parts = [part for part in parts if _number(part.get("time")) > 0]
    size = _whole(entry.get("size"))
    if not parts or size <= 0:
        return None
    time, algorithm, bus = (
        _middle([_number(part.get(name)) for part in parts]) for name in ("time", "alg_bw", "bus_bw")
    )
    return Row(size, time, algorithm, bus, sum(_whole(part.get("nwrong")) for part in parts))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> float:
    """0 for what is no number: N/A, null, "nan"."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if math.isfinite(number) and not isinstance(value, bool) else 0.0


def _whole(value: Any) -> int:
    return int(_number(value)) if 0 <= _number(value) < 2**62 else 0


def _middle(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4)
