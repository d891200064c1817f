# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Tables of the guides that a test on machines holds to what is there: who listens, and which files are secret."""

from __future__ import annotations

import pathlib
import re
from dataclasses import dataclass

DOCS = pathlib.Path(__file__).resolve().parents[1] / "docs"
LOOPBACK = frozenset({"127.0.0.1", "::1"})
_PORTS = re.compile(r"\b(\d{2,5})(?: to (\d{2,5})| (and above))?")


def rows(page: str, heading: str, number: int = 0) -> list[dict[str, str]]:
    """Of the ``number``-th table below a heading: what stands below each title."""
    section = re.split(rf"^#+ {re.escape(heading)}$", page, maxsplit=1, flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]
    lines = re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE)[number].splitlines()
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [dict(zip(cells[0], row)) for row in cells[2:]]


@dataclass(frozen=True)
class Listener:
    """A row of "What listens". ``who`` begins with a program; it names the head where no other node has it."""

    ports: tuple[range, ...]
    who: str
    where: str

    @property
    def program(self) -> str:
        return re.split(r"[:,]", self.who)[0]

    def admits(self, address: str, port: int, *, own: str, head: bool) -> bool:
        """Is this listener one of the row, on a node with the cluster address ``own``?"""
        return (
            any(port in one for one in self.ports)
            and (head or not re.search(r"\bhead\b", self.who))
            and (
                "all interfaces" in self.where
                or ("loopback" in self.where and address in LOOPBACK)
                or ("cluster address" in self.where and address == own)
                or ("`gateway_listen`" in self.where and address not in LOOPBACK)
            )
        )


def listener(row: dict[str, str]) -> Listener:
    plain = re.sub(r"`[^`]*`", "", row["Port"])
    return Listener(ports(plain), row["Who"], row["Where"])


def ports(text: str) -> tuple[range, ...]:
    """``22, or yours``; ``21010 to 21999``; ``32768 and above``."""
    return tuple(
        range(int(first), 65536 if above else int(last or first) + 1) for first, last, above in _PORTS.findall(text)
    )


def listeners(page: str = "", number: int = 0) -> list[Listener]:
    """Of a cluster that serves; ``number`` 1: those of some minutes, and of what is off until asked for."""
    page = page or (DOCS / "access.md").read_text(encoding="utf-8")
    return [listener(row) for row in rows(page, "What listens", number)]


def secrets(page: str = "") -> list[re.Pattern[str]]:
    """Files of the table of secrets; ``<name>`` stands for any one, a directory for all files in it."""
    page = page or (DOCS / "security.md").read_text(encoding="utf-8")
    named = [path for row in rows(page, "Secrets") for path in re.findall(r"`(/[^`]*)`", row["Where"])]
    return [re.compile(re.sub(r"<\w+>", "[^/]+", re.sub(r"\.", r"\\.", path)) + "(?:/.*)?") for path in named]
