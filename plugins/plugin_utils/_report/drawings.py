# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Where the lines of the page's map of cables are. Units are those of a ``viewBox``; the page scales it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Link, Verdict


def number(value: float) -> str:
    """For people: three digits that count, and all before the point."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}".replace(",", "\u202f")
    return text.rstrip("0").rstrip(".") if "." in text else text


MAP_WIDTH = 400
BOX_WIDTH, BOX_HEIGHT = 96, 44
ROW = 84
GAP = 16  # between the lines of a cable's halves
WORST = ("fail", "warn", "unknown", "pass")


@dataclass(frozen=True)
class Box:
    host: str
    rank: int
    x: float  # of the middle
    y: float
    outcome: str


@dataclass(frozen=True)
class Line:
    """One half; ``text`` is its rate."""

    x1: float
    y1: float
    x2: float
    y2: float
    text: str
    text_x: float
    text_y: float
    outcome: str


@dataclass(frozen=True)
class CableMap:
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    switch: bool
    summary: str


def cable_map(ranks: Mapping[str, int], links: Sequence[Link], verdicts: Sequence[Verdict]) -> CableMap:
    """``ranks`` by host. Lines have the colour of the worst that was found of their half."""
    known = {**{link.host: len(ranks) for link in links}, **ranks}
    hosts = sorted(known, key=lambda host: (known[host], host))
    switch = any(not link.peer for link in links)
    places, height = _columns(hosts if switch else _around(hosts))
    middle = (MAP_WIDTH / 2, height / 2)
    lines: list[Line] = []
    words: list[str] = []
    for host in hosts:
        own = sorted((link for link in links if link.host == host), key=lambda link: (link.cage, link.rail))
        if up := [link for link in own if not link.peer]:
            x, y = places[host]
            end = (middle[0] + (-12 if x < middle[0] else 12), y)
            lines += _cable((x, y), end, [(link, None) for link in up], verdicts)
            words.append(f"{host} to the switch: {_rates(up)}")
        for peer in sorted({link.peer for link in own if link.peer in places and link.peer != host}):
            back = [link for link in links if link.host == peer and link.peer == host]
            if hosts.index(peer) < hosts.index(host) and back:
                continue  # drawn from the other end
            there = [link for link in own if link.peer == peer]
            back = sorted(back, key=lambda link: link.rail)
            pairs = [(link, back[at] if at < len(back) else None) for at, link in enumerate(there)]
            lines += _cable(places[host], places[peer], pairs, verdicts)
            words.append(f"{host} to {peer}: {_rates(there)}")
    boxes = tuple(
        Box(host, known[host], *places[host], _worst(verdict for verdict in verdicts if host in verdict.hosts))
        for host in hosts
    )
    return CableMap(height, boxes, tuple(lines), switch, "; ".join(words))


def _columns(hosts: Sequence[str]) -> tuple[dict[str, tuple[float, float]], int]:
    """Left and right of what is between them: a cable, or a switch."""
    edge = BOX_WIDTH / 2 + 2
    xs = (edge, MAP_WIDTH - edge) if len(hosts) > 1 else (edge,)
    places = {host: (xs[at % 2 if len(hosts) > 1 else 0], ROW / 2 + ROW * (at // 2)) for at, host in enumerate(hosts)}
    return places, ROW * math.ceil(len(hosts) / 2)


def _around(hosts: Sequence[str]) -> list[str]:
    """Down the left side and up the right one, so that neighbours in a ring are beside each other."""
    half = math.ceil(len(hosts) / 2)
    return [host for at in range(half) for host in (hosts[at], hosts[-1 - at])][: len(hosts)]


def _cable(
    begin: tuple[float, float],
    end: tuple[float, float],
    halves: Sequence[tuple[Link, Link | None]],
    verdicts: Sequence[Verdict],
) -> list[Line]:
    """Parallel lines, each with its rate in the middle of what is seen of it."""
    length = math.dist(begin, end) or 1
    ahead = ((end[0] - begin[0]) / length, (end[1] - begin[1]) / length)
    aside = (-ahead[1], ahead[0])
    lines = []
    for at, (link, back) in enumerate(halves):
        shift = GAP * (at - (len(halves) - 1) / 2)
        x1, y1 = begin[0] + aside[0] * shift, begin[1] + aside[1] * shift
        x2, y2 = end[0] + aside[0] * shift, end[1] + aside[1] * shift
        rates = [one.rate_gbps for one in (link, back) if one and one.rate_gbps]
        ends = [(one.host, one.device) for one in (link, back) if one]
        # Of a line to a switch the box hides a part at one end only; halves beside each other: words not at one height.
        part = (
            0.62
            if not link.peer
            else 0.5 + (at - (len(halves) - 1) / 2) * (0.2 if abs(ahead[0]) < abs(ahead[1]) else 0)
        )
        lines.append(
            Line(
                x1=round(x1, 1),
                y1=round(y1, 1),
                x2=round(x2, 1),
                y2=round(y2, 1),
                text=number(min(rates)) if rates else "?",
                text_x=round(x1 + (x2 - x1) * part, 1),
                text_y=round(y1 + (y2 - y1) * part, 1),
                outcome=_worst(
                    verdict
                    for verdict in verdicts
                    if verdict.device and any(_is_about(verdict, *place) for place in ends)
                ),
            )
        )
    return lines


def _is_about(verdict: Verdict, host: str, device: str) -> bool:
    return verdict.hosts[:1] == (host,) and verdict.device == device


def _worst(verdicts: Iterable[Verdict]) -> str:
    found = {verdict.outcome for verdict in verdicts}
    return next((outcome for outcome in WORST if outcome in found), "none")


def _rates(links: Sequence[Link]) -> str:
    return " and ".join(f"{number(link.rate_gbps)} Gb/s" if link.rate_gbps else "rate not read" for link in links)
