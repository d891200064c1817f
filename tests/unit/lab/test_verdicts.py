# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Topologies x faults: exactly the right check finds something, on host and device. See tests/lab/verdicts.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import pytest
import verdicts
from exploring import EXPLORE

T = TypeVar("T")
PART = 5


def some(topologies: Sequence[T], place: int) -> Sequence[T]:
    """A fifth of them, other ones for the next fault: every topology and every fault is tried."""
    return topologies if EXPLORE else topologies[place % PART :: PART]


@pytest.mark.parametrize("nodes", verdicts.TOPOLOGIES, ids=lambda item: verdicts.label(*item))
def test_no_fault_no_finding(nodes: tuple[str, int]) -> None:
    assert verdicts.judge(*nodes, verdicts.cluster(*nodes)) == set()


@pytest.mark.parametrize("case", verdicts.CASES, ids=lambda case: case.name)
def test_every_topology_gets_the_right_verdict(case: verdicts.Case) -> None:
    wrong = {}
    for topology, nodes in some(verdicts.TOPOLOGIES, verdicts.CASES.index(case)):
        found, expected = verdicts.verdict(topology, nodes, case)
        if found != expected:
            wrong[verdicts.label(topology, nodes)] = (found, expected)
    assert wrong == {}


def test_the_matrix_is_as_large_as_was_asked_for() -> None:
    assert len(verdicts.TOPOLOGIES) >= 10
    assert len(verdicts.CASES) >= 18
