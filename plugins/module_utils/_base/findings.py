# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The one error type that parsers, readers and planners raise, and the findings that checks collect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


class SparkError(Exception):
    """Something could not be read or done.

    ``found`` says what was found, ``where`` names the host, device, file or command, ``remedy`` says what to do next.
    """

    def __init__(self, found: str, where: str = "", remedy: str = "") -> None:
        self.found = found
        self.where = where
        self.remedy = remedy
        super().__init__(sentence(found, where, remedy))


@dataclass(frozen=True)
class Finding:
    """One result of a check: ``severity`` is ``error`` (refuse), ``warning`` or ``info`` (show and go on).

    ``why`` says what goes wrong because of it.
    """

    host: str
    found: str
    remedy: str
    device: str = ""
    severity: str = "error"
    why: str = ""

    def __str__(self) -> str:
        where = f"{self.host} {self.device}".strip()
        found = f"{_closed(self.found)} {self.why}" if self.why else self.found
        return sentence(found, where, self.remedy)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def sentence(found: str, where: str = "", remedy: str = "") -> str:
    """Join the three parts of a message: ``where: found. remedy.``"""
    text = _closed(found)
    if where:
        text = f"{where}: {text}"
    return printable(f"{text} {_closed(remedy)}" if remedy else text)


def printable(text: str) -> str:
    """What a machine said, without what acts on a terminal or in a journal."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in text)


def _closed(text: str) -> str:
    text = text.strip().rstrip(".")
    return text if text.endswith("?") else f"{text}."


def errors(findings: Iterable[Finding]) -> list[Finding]:
    return [f for f in findings if f.severity == "error"]


def warnings(findings: Iterable[Finding]) -> list[Finding]:
    return [f for f in findings if f.severity == "warning"]


def infos(findings: Iterable[Finding]) -> list[Finding]:
    return [f for f in findings if f.severity == "info"]


def refusal(title: str, findings: Iterable[Finding]) -> str:
    """The text of a refusal: a title and one numbered line per error, all of them."""
    lines = [f"  {number}. {finding}" for number, finding in enumerate(errors(findings), start=1)]
    return "\n".join([title, *lines])
