# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Numbers for people, and the places of machines and cables."""

from __future__ import annotations

import itertools

import pytest
import report_samples as samples
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report import drawings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report.drawings import cable_map, number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (184, "184"),
        (21.94, "21.9"),
        (0.9234, "0.923"),
        (1200, "1\u202f200"),
        (12345.6, "12\u202f346"),
        (-2.5, "-2.5"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 12])
@pytest.mark.parametrize("shape", ["ring", "switch"])
def test_machines_are_beside_each_other_and_in_the_drawing(count, shape):
    hosts = {f"spark{rank}": rank for rank in range(count)}
    links = (
        [samples.link(host, half) for host in hosts for half in (0, 1)]
        if shape == "switch"
        else samples.ring(count).links
    )
    drawn = cable_map(hosts if shape == "switch" else {}, links, ())
    assert len(drawn.boxes) == count
    for box in drawn.boxes:
        assert drawings.BOX_WIDTH / 2 <= box.x <= drawings.MAP_WIDTH - drawings.BOX_WIDTH / 2
        assert drawings.BOX_HEIGHT / 2 <= box.y <= drawn.height - drawings.BOX_HEIGHT / 2
    for a, b in itertools.combinations(drawn.boxes, 2):
        assert abs(a.x - b.x) >= drawings.BOX_WIDTH or abs(a.y - b.y) >= drawings.BOX_HEIGHT, (a, b)


def test_a_cable_is_drawn_once_with_its_lower_rate():
    slow = [samples.link("a", 0, "b"), samples.link("b", 0, "a", rate=100), samples.link("a", 1, "b", rate=0)]
    drawn = cable_map({"a": 0, "b": 1}, slow, ())
    assert [line.text for line in drawn.lines] == ["100", "?"] and not drawn.switch
    assert drawn.summary == "a to b: 200 Gb/s and rate not read"


def test_a_line_has_the_colour_of_the_worst_word_on_its_half():
    verdicts = samples.degraded()[-1].verdicts
    drawn = cable_map(dict(zip(samples.HOSTS, range(4), strict=True)), samples.cables(), verdicts)
    assert [line.outcome for line in drawn.lines] == ["pass"] * 4 + ["fail"] * 2 + ["pass"] * 2
    assert [box.outcome for box in drawn.boxes] == ["unknown", "pass", "fail", "pass"]
