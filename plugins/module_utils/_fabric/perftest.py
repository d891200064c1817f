# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the tools of perftest print with ``--report_gbits``. JSON names no unit."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

WHERE = "output of perftest"


@dataclass(frozen=True)
class Report:
    """The last line of results. Of a rate ``average_gbps``, of a latency ``microseconds``, the typical one."""

    size: int  # bytes
    iterations: int
    average_gbps: float = 0.0
    microseconds: float = 0.0
    rdma_mtu: int | None = None  # bytes; None: it did not say


_RATE = re.compile(r"\s*#bytes\s+#iterations\s+BW peak\[Gb/sec\]\s+BW average\[Gb/sec\].*")
_LATENCY = re.compile(r"\s*#bytes\s+#iterations\s+t_min\[usec\]\s+t_max\[usec\]\s+t_typical\[usec\].*")
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"
_ROW = re.compile(rf"\s*([0-9]{{1,12}})\s+([0-9]{{1,15}})((?:\s+{_NUMBER}){{3,7}})\s*")
_MTU = re.compile(r"\bMtu\s*:\s*([0-9]{1,6})\[B\]")


def parse(text: str) -> Report:
    """Raises :class:`SparkError` when there is no result in it. Warnings may stand between header and row."""
    mtu = _MTU.search(text)
    rate = latency = False
    found = None
    for line in text.splitlines():
        rate, latency = rate or bool(_RATE.fullmatch(line)), latency or bool(_LATENCY.fullmatch(line))
        row = _ROW.fullmatch(line)
        if row and (rate or latency):
            values = [float(word) for word in row[3].split()]
            gbps, spent = (0.0, values[2]) if latency else (values[1], 0.0)
            found = Report(int(row[1]), int(row[2]), gbps, spent, int(mtu[1]) if mtu else None)
    if found is None:
        said = next((line.strip() for line in reversed(text.splitlines()) if line.strip(" -")), "nothing")
        raise SparkError(f"no result in the text; it ends with {said[:160]!r}", WHERE)
    return found
