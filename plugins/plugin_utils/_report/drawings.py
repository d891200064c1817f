# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where the lines and points of the page's drawings are: line charts, and the cables of the cluster. Pure geometry.

Units are those of a ``viewBox``; the page scales it. A chart is as wide as a phone, so that it can be read there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Link, Verdict


def number(value: float) -> str:
    """For people: three digits that count, and all before the point."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{digits}f}".replace(",", "\u202f")
    return text.rstrip("0").rstrip(".") if "." in text else text


# --- line charts -----------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 34
LETTER = 7  # width, of the words on an axis


@dataclass(frozen=True)
class Series:
    """``points``: value by place on the axis; ``spread``: lowest and highest there, where it was repeated."""

    name: str
    points: Mapping[str, float]
    spread: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    low: float  # the y of the spread; the same where there is none
    high: float


@dataclass(frozen=True)
class Curve:
    name: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Chart:
    title: str
    unit: str
    axis: str
    series: tuple[Series, ...]
    places: tuple[str, ...]
    curves: tuple[Curve, ...]
    xs: tuple[Tick, ...]
    ys: tuple[Tick, ...]
    slot: float  # width of one place
    band: tuple[float, float] = (0, 0)  # y and height of what is expected at the first place
    expected: str = ""  # the same in words

    @property
    def summary(self) -> str:
        """For who cannot see it."""
        parts = []
        for one in self.series:
            first, last = next(iter(one.points)), list(one.points)[-1]
            parts.append(
                f"{one.name}: from {number(one.points[first])} at {first} to {number(one.points[last])} at {last}"
            )
        return f"{self.title}, {self.unit}, by {self.axis}. {'; '.join(parts)}. {self.expected}".strip()


def chart(
    title: str,
    unit: str,
    axis: str,
    places: Sequence[str],
    series: Iterable[Series],
    *,
    band: tuple[float, float] = (0, 0),
) -> Chart:
    """``places``: what stands on the axis, at equal distances; ``band``: what is expected at the first, from and to."""
    drawn = tuple(one for one in series if one.points)
    values = [value for one in drawn for value in one.points.values()]
    values += [end for one in drawn for ends in one.spread.values() for end in ends]
    steps = _steps(max([*values, *band, 0]))
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(place: str) -> float:
        return round(LEFT + wide * (places.index(place) + 0.5) / len(places), 1)

    def y(value: float) -> float:
        return round(TOP + high * (1 - value / steps[-1]), 1)

    curves = []
    for one in drawn:
        dots = []
        for place, value in one.points.items():
            low, top = one.spread.get(place, (value, value))
            dots.append(Dot(x(place), y(value), y(low), y(top)))
        curves.append(Curve(one.name, tuple(dots)))
    every = math.ceil(len(places) * (LETTER * max(map(len, places)) + LETTER) / wide)
    expected = f"Expected at {places[0]}: {number(band[0])} to {number(band[1])} {unit}" if band[1] else ""
    return Chart(
        title=title,
        unit=unit,
        axis=axis,
        series=drawn,
        places=tuple(places),
        curves=tuple(curves),
        xs=tuple(Tick(x(place), place) for place in places[::every]),
        ys=tuple(Tick(y(step), number(step)) for step in steps),
        slot=round(wide / len(places), 1),
        band=(y(band[1]), round(y(band[0]) - y(band[1]), 1)) if band[1] else (0, 0),
        expected=expected,
    )


def _steps(largest: float) -> list[float]:
    """Three to six round numbers from 0 to the largest value or a bit more."""
    if largest <= 0:
        return [0, 1]
    power = 10.0 ** math.floor(math.log10(largest))
    step = next(power * part for part in (0.2, 0.5, 1, 2) if largest <= 5 * power * part)
    return [step * count for count in range(math.ceil(round(largest / step, 6)) + 1)]


# --- the cables ------------------------------------------------------------------------------------------------------

MAP_WIDTH = 400
BOX_WIDTH, BOX_HEIGHT = 96, 44
ROW = 84
GAP = 16  # between the lines of a cable's halves
MOST_ROUND = 8  # machines in a circle
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
    if switch or len(hosts) <= 2:
        places, height = _columns(hosts)
    else:
        places, height = _ring(hosts) if len(hosts) <= MOST_ROUND else _loop(hosts)
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
        Box(host, known[host], *places[host], _worst(one for one in verdicts if host in one.hosts)) for host in hosts
    )
    return CableMap(height, boxes, tuple(lines), switch, "; ".join(words))


def _columns(hosts: Sequence[str]) -> tuple[dict[str, tuple[float, float]], int]:
    """Left and right of what is between them: a cable, or a switch."""
    edge = BOX_WIDTH / 2 + 2
    xs = (edge, MAP_WIDTH - edge) if len(hosts) > 1 else (edge,)
    places = {host: (xs[at % 2 if len(hosts) > 1 else 0], ROW / 2 + ROW * (at // 2)) for at, host in enumerate(hosts)}
    return places, ROW * math.ceil(len(hosts) / 2)


def _ring(hosts: Sequence[str]) -> tuple[dict[str, tuple[float, float]], int]:
    radius_x = MAP_WIDTH / 2 - BOX_WIDTH / 2 - 2
    radius_y = max(110, 26 * len(hosts))
    start = -math.pi / 2 if len(hosts) % 2 else -math.pi / 2 - math.pi / len(hosts)
    angles = [start + 2 * math.pi * at / len(hosts) for at in range(len(hosts))]
    ys = [radius_y * math.sin(angle) for angle in angles]
    xs = [math.cos(angle) for angle in angles]
    widest = max(abs(x) for x in xs)
    top = BOX_HEIGHT / 2 + 4 - min(ys)
    places = {
        host: (round(MAP_WIDTH / 2 + radius_x * x / widest, 1), round(top + y, 1))
        for host, x, y in zip(hosts, xs, ys, strict=True)
    }
    return places, math.ceil(top + max(ys) + BOX_HEIGHT / 2 + 4)


def _loop(hosts: Sequence[str]) -> tuple[dict[str, tuple[float, float]], int]:
    """Down the left side and up the right one, so that neighbours are beside each other."""
    half = math.ceil(len(hosts) / 2)
    places, height = _columns([host for at in range(half) for host in (hosts[at], hosts[-1 - at])][: len(hosts)])
    return places, height


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
                outcome=_worst(one for one in verdicts if one.device and any(_is_about(one, *place) for place in ends)),
            )
        )
    return lines


def _is_about(verdict: Verdict, host: str, device: str) -> bool:
    return verdict.hosts[:1] == (host,) and verdict.device == device


def _worst(verdicts: Iterable[Verdict]) -> str:
    found = {one.outcome for one in verdicts}
    return next((outcome for outcome in WORST if outcome in found), "none")


def _rates(links: Sequence[Link]) -> str:
    return " and ".join(f"{number(link.rate_gbps)} Gb/s" if link.rate_gbps else "rate not read" for link in links)
