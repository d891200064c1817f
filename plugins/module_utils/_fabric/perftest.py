# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the tools of perftest print, and what they write with ``--out_json``, of every version.

Our own runs read the text: it is complete in all versions, while JSON names no unit, and before 24.01 it is not even
valid JSON.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

WHERE = "output of perftest"


@dataclass(frozen=True)
class Row:
    """One line of results. Of a rate ``average_gbps``, and ``peak_gbps`` but in runs for a time; of a latency
    ``microseconds``, the typical one, or the average in runs for a time."""

    size: int  # bytes
    iterations: int
    peak_gbps: float = 0.0
    average_gbps: float = 0.0
    microseconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """What a run printed. None: it did not say."""

    rows: tuple[Row, ...]
    device: str | None = None
    rdma_mtu: int | None = None  # bytes
    gid_index: int | None = None


# "MB/sec" of older versions is 2^20 bytes too (perftest, src/perftest_parameters.c: format_factor 0x100000).
_MIB = 2**20 * 8 / 1e9
_UNITS = {"Gb": 1.0, "MB": _MIB, "MiB": _MIB}
_HEADER = re.compile(r"^\s*#bytes\s+#iterations\s+BW peak\s*\[(?P<unit>\w+)/sec\]\s+BW average\s*\[(?P=unit)/sec\]")
_LATENCY = re.compile(r"\s*#bytes\s+#iterations\s+(?P<columns>t_\w+\s*\[usec\].*)")
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"
_ROW = re.compile(rf"\s*([0-9]{{1,12}})\s+([0-9]{{1,15}})((?:\s+{_NUMBER}){{2,7}})\s*")
_FAILED = re.compile("Failed status|Completion with error")
ONE = "Pass the output of one run"
_FIELD = re.compile(r'^\s*"?(\w[\w.]*)"?\s*:\s*"?([^",{]+?)"?\s*,?\s*$', re.MULTILINE)


def parse(text: str, gbits: bool = False) -> Report:
    """Text as it was printed, also with warnings between header and rows; or JSON, whose rates are in Gb/s where it was
    asked for them (``gbits``), else in MiB/s. Raises :class:`SparkError` when there is no result in it."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " ")
    return _json(text, gbits) if "test_info" in text else _text(text)


def _text(text: str) -> Report:
    unit: float | None = None
    column: int | None = None  # of the latency
    rows: list[Row] = []
    for line in text.split("\n"):
        if rows and _FAILED.search(line):
            raise SparkError(f"a run behind the first result has failed: {line.strip()[:160]!r}", WHERE, ONE)
        header, latency = _HEADER.match(line), _LATENCY.fullmatch(line)
        if header:
            if header["unit"] not in _UNITS:
                raise SparkError(f"unknown unit {header['unit']}/sec", WHERE, "Use --report_gbits")
            unit, column = _UNITS[header["unit"]], None
        elif latency:
            names = re.findall(r"t_\w+", latency["columns"])
            known = [names.index(name) for name in ("t_typical", "t_avg") if name in names]
            if not known:
                raise SparkError(f"unknown columns {' '.join(names)[:160]!r}", WHERE, ONE)
            column = known[0]
        match = _ROW.fullmatch(line)
        if match:
            values = [float(word) for word in match[3].split()]
            if column is not None and column < len(values):
                rows.append(Row(int(match[1]), int(match[2]), microseconds=values[column]))
            elif column is None and unit is not None and len(values) in (3, 4):
                rows.append(Row(int(match[1]), int(match[2]), round(values[0] * unit, 3), round(values[1] * unit, 3)))
    if not rows:
        said = next((line.strip() for line in reversed(text.split("\n")) if line.strip(" -")), "nothing")
        raise SparkError(f"no result in the text; it ends with {said[:160]!r}", WHERE)
    device = re.search(r"\bDevice\s*:\s*(\S+)", text)
    return Report(
        tuple(rows),
        device[1] if device else None,
        _setting(r"\bMtu\s*:\s*([0-9]{1,6})\[B\]", text),
        _setting(r"\bGID index\s*:\s*([0-9]{1,6})\b", text),
    )


def _setting(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text)
    return int(match[1]) if match else None


def _json(text: str, gbits: bool) -> Report:
    """Field by field: versions before 24.01 leave out the quotes, and some leave a comma at the end."""
    fields = dict(_FIELD.findall(text))
    unit = 1.0 if gbits else _MIB
    try:
        size, count = int(fields["MsgSize"]), int(fields["n_iterations"])
        if "BW_average" in fields:
            peak, average = (round(float(fields[name]) * unit, 3) for name in ("BW_peak", "BW_average"))
            row = Row(size, count, peak, average)
        else:
            row = Row(size, count, microseconds=float(fields.get("t_typical") or fields["t_avg"]))
        return Report(
            (row,),
            fields.get("Device"),
            int(fields["Mtu"]) if "Mtu" in fields else None,
            int(fields["GID_index"]) if "GID_index" in fields else None,
        )
    except (KeyError, ValueError) as exc:
        raise SparkError(f"no result in the JSON: {exc}", WHERE) from exc
