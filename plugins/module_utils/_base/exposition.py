# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Prometheus' text format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import printable

MAX_LABEL = 200  # characters
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Sample:
    """``name`` is one of a catalogue, see :func:`text`."""

    name: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


def text(catalogue: Mapping[str, str], samples: Iterable[Sample]) -> str:
    """``catalogue``: what each metric is, by name; those that end in ``_total`` only grow. The same series twice would
    make the collector refuse the whole file, so the last one counts."""
    found: dict[str, dict[str, float]] = {}
    for sample in samples:
        if sample.name not in catalogue:
            raise ValueError(f"{sample.name} is not in the catalogue")
        if math.isfinite(sample.value):
            found.setdefault(sample.name, {})[_labels(sample.labels)] = sample.value
    lines = []
    for name in sorted(found):
        lines += [f"# HELP {name} {catalogue[name]}", f"# TYPE {name} {kind(name)}"]
        lines += [
            f"{name}{labels} {int(value) if value == int(value) else value}"
            for labels, value in sorted(found[name].items())
        ]
    return "".join(f"{line}\n" for line in lines)


def kind(name: str) -> str:
    return "counter" if name.endswith("_total") else "gauge"


def _labels(labels: Mapping[str, str]) -> str:
    for name in labels:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a label")
    return f"{{{','.join(f'{name}={_quoted(value)}' for name, value in sorted(labels.items()))}}}" if labels else ""


def _quoted(value: str) -> str:
    one_line = printable(" ".join(value.split()))[:MAX_LABEL]
    return '"' + one_line.replace("\\", "\\\\").replace('"', '\\"') + '"'
