# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The one error type that parsers, readers and planners raise, and the findings that checks collect."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
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
    remedy: str = ""
    device: str = ""
    severity: str = "error"
    why: str = ""
    rule: str = field(default="", compare=False)  # id of the check that found it, on the controller

    def __str__(self) -> str:
        where = f"{self.host} {self.device}".strip()
        found = f"{_closed(self.found)} {self.why}" if self.why else self.found
        return sentence(found, where, self.remedy)

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "rule"}


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


_ITSELF = "\0"  # the name of the host that something is said of
_WITH_IT = re.compile(rf"([\w@./-]*){_ITSELF}([\w.-]*\w)?")  # the word that it is in


def alike(said: Iterable[tuple[str, Any, str]]) -> list[tuple[list[str], Any, str]]:
    """(host, what belongs to it, text) as (hosts, what belongs to them, text): what is said alike of several hosts,
    but for their own names, once, with the names of the others behind that of the first. Nothing is alike that is said
    of no host."""
    found: dict[Any, list[str]] = {}
    said = list(said)
    times = Counter((beside, text) for _host, beside, text in said)
    for place, (host, beside, text) in enumerate(said):
        differs = host and times[beside, text] == 1
        own = re.sub(rf"\b{re.escape(host)}\b", _ITSELF, text) if differs else text
        found.setdefault((beside, own, None if host else place), []).append(host)
    return [
        (list(dict.fromkeys(hosts)), beside, _of(list(dict.fromkeys(hosts)), own))
        for (beside, own, _place), hosts in found.items()
    ]


def _of(hosts: Sequence[str], text: str) -> str:
    def each(at: re.Match[str]) -> str:
        names = [hosts[0], *named(hosts[1:]).split(", ")] if hosts[1:] else hosts
        return and_others([f"{at[1]}{name}{at[2] or ''}" for name in names])

    return _WITH_IT.sub(each, text)


def and_others(names: Iterable[str]) -> str:
    """The first, which may be copied with the words around it, and the others behind it."""
    first, *others = dict.fromkeys(names)
    return f"{first} (and {', '.join(others)})" if others else first


def named(hosts: Sequence[str]) -> str:
    """Numbered names as ``spark1..spark3``."""
    runs: list[list[str]] = []
    for host in hosts:
        if runs and _number(host) == _number(runs[-1][-1], 1):
            runs[-1].append(host)
        else:
            runs.append([host])
    return ", ".join(f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _number(host: str, more: int = 0) -> tuple[str, int] | None:
    found = re.match(r"(.*?)(\d+)$", host)
    return (found[1], int(found[2]) + more) if found else None
