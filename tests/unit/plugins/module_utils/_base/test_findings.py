# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    Finding,
    infos,
    refusal,
    sentence,
)

CABLE = Finding("spark3", "no cable in either cage", "Plug the cable", device="rocep1s0f0")
SLOW = Finding("spark1", "link at 100 Gb/s", "Force 200G on the switch", severity="warning")


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (("found it",), "found it."),
        (("found it.", "spark1"), "spark1: found it."),
        (("found it", "spark1 eth0", "Do this."), "spark1 eth0: found it. Do this."),
        (("found it ", "", " Do this"), "found it. Do this."),
    ],
)
def test_a_message_says_where_what_and_what_to_do(parts, text):
    assert sentence(*parts) == text


def test_a_refusal_lists_every_error_and_no_warning():
    assert refusal("Refused:", [CABLE, SLOW, CABLE]).splitlines() == [
        "Refused:",
        "  1. spark3 rocep1s0f0: no cable in either cage. Plug the cable.",
        "  2. spark3 rocep1s0f0: no cable in either cage. Plug the cable.",
    ]


def test_the_reason_stands_between_finding_and_remedy():
    finding = Finding("spark1", "the link is down.", "Plug it", device="enp1s0f0np0", why="Nothing passes")
    assert str(finding) == "spark1 enp1s0f0np0: the link is down. Nothing passes. Plug it."
    assert infos([finding]) == []
    assert infos([Finding("a", "b", "c", severity="info")])


def test_a_question_needs_no_full_stop():
    assert str(Finding("spark1", "no variable X", "Did you mean Y?")) == "spark1: no variable X. Did you mean Y?"
    assert str(Finding("spark1", "is it on?", "Look.", why="It has to be.")) == "spark1: is it on? It has to be. Look."
