#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What becomes of the public recipes whose facts are in tests/unit/fixtures/peer_corpus.json, by format.

With names behind it: each of these recipes as theirs has it, as ours, and what differs.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests/unit")]

import peer_sources
from peer_sources import Taken

COLUMNS = ("as it is", "with values of its user", "starts nothing", "refused")


def all_of_them(directory: pathlib.Path, names: list[str]) -> Iterator[Taken]:
    for number, fact in enumerate(peer_sources.facts()):
        if not names or fact["id"] in names:
            place = directory / str(number)
            place.mkdir()
            yield peer_sources.outcome(fact, place)


def column(one: Taken) -> str:
    if not one.starts:
        return COLUMNS[2]
    return COLUMNS[3] if one.reason else COLUMNS[1] if one.first_reason else COLUMNS[0]


def table(taken: list[Taken]) -> Iterator[str]:
    counted = Counter((one.fact["kind"], column(one)) for one in taken)
    own = Counter(one.fact["kind"] for one in taken if one.own and not one.reason)
    yield f"| Format | recipes | {' | '.join(COLUMNS)} | also in our own words |"
    yield "|---" * (len(COLUMNS) + 3) + "|"
    for kind in dict.fromkeys(one.fact["kind"] for one in taken):
        numbers = " | ".join(str(counted[kind, name]) for name in COLUMNS)
        yield f"| {kind} | {sum(one.fact['kind'] == kind for one in taken)} | {numbers} | {own[kind]} |"
    promised = [one for one in taken if one.fact["kind"] in peer_sources.PROMISED and one.starts]
    kept = [one for one in taken if not one.refused]
    first, again = (sum(column(one) in COLUMNS[:number] for one in promised) for number in (1, 2))
    yield ""
    yield f"planned as the file is: {first} of {len(promised)} ({first / len(promised):.1%})"
    yield f"the same with values that the file leaves to its user: {again} ({again / len(promised):.1%})"
    changed = sum(bool(list(one.changed())) for one in kept)
    silent, named = sum(len(list(one.silent())) for one in kept), sum(len(one.losses) for one in kept)
    yield f"commands changed: {changed}; lost in silence: {silent} things; losses named: {named}"
    for one in taken:
        if one.reason:
            yield f"{one.fact['kind']}: {one.fact['id']}: {one.reason}"


def beside(one: Taken) -> Iterator[str]:
    yield f"== {one.fact['id']} ({one.fact['source']})"
    yield "theirs:"
    yield one.path.read_text(encoding="utf-8")
    yield "ours:"
    yield one.text
    yield "left to the plan and the fabric:"
    yield from one.placed
    yield "left out:"
    yield from one.losses
    yield f"in our own words: {one.own or 'not offered'}; left out there: {len(one.own_left)}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        found = list(all_of_them(pathlib.Path(made), sys.argv[1:]))
        lines = (line for one in found for line in beside(one)) if sys.argv[1:] else table(found)
        print("\n".join(lines))
