#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Published speeds of real Sparks (speed_rows.yml), one half of which the model of speed was never fitted to."""

from __future__ import annotations

import hashlib
import pathlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "collections"))

TABLE = pathlib.Path(__file__).with_name("speed_rows.yml")


@dataclass(frozen=True)
class Row:
    """One point of a configuration."""

    configuration: str
    source: str
    model: Mapping[str, Any]
    nodes: int
    users: int
    tokens_per_second: float
    context: int
    draft: Mapping[str, Any] | None
    accepted: float
    eager: bool

    @property
    def kept_apart(self) -> bool:
        """All points of one configuration lie in the same half: by its name alone, before anything was compared."""
        return hashlib.sha256(self.configuration.encode()).digest()[0] % 2 == 1


def rows() -> Iterator[Row]:
    table = yaml.safe_load(TABLE.read_text())
    for row in table["rows"]:
        draft, source = row.get("draft"), table["sources"][row["source"]]
        drafted = f"{draft['method']} {draft['tokens']}" if draft else "plain"
        for users, speed, *more in row["points"]:
            said = more[0] if more else {}
            yield Row(
                f"{row['source']} {row['model']} x{row['nodes']} {drafted}",
                f"{source['of']}, {source['date']}",
                table["models"][row["model"]],
                row["nodes"],
                users,
                speed,
                said.get("context", 1024),
                draft,
                said.get("accepted", 1.0),
                row.get("eager", False),
            )


def main() -> None:
    for half in (False, True):
        found = [row for row in rows() if row.kept_apart == half]
        several = len({row.configuration for row in found})
        print(f"{'kept apart' if half else 'seen'}: {len(found)} points of {several} configurations")


if __name__ == "__main__":
    main()
