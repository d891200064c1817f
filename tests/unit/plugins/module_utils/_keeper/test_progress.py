# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import progress as p
from hypothesis import given
from hypothesis import strategies as st

GIB = p.GIB


def moved(read, written=0):
    return UnitReport(active="active", counted=True, read=read, written=written)


def rank(*looks, weights=58 * GIB):
    """``looks``: (second, GiB read, GiB written)."""
    made = p.Rank("spark2", weights)
    for now, read, written in looks:
        made.see(now, int(read * GIB), int(written * GIB))
    return made


@pytest.mark.parametrize(
    ("looks", "now", "expected"),
    [
        ([(0, 0.2, 0)], 2, "spark2 read 0.2 of 62.3 GB"),
        # Python and CUDA are read first, at a speed that says nothing of the weights.
        ([(0, 0, 0), (20, 1, 0), (60, 3.9, 0)], 60, "spark2 read 4.2 of 62.3 GB"),
        ([(0, 0, 0), (60, 3, 0), (62, 5, 0), (64, 8, 0)], 64, "spark2 read 8.6 of 62.3 GB, 1.3 GB/s, 40 s left"),
        ([(0, 0.2, 0), (10, 31.4, 0)], 12, "spark2 read 33.7 of 62.3 GB, 3.4 GB/s, 9 s left"),
        ([(0, 0.2, 0), (10, 31.4, 0), (40, 31.41, 0)], 52, "spark2 read 33.7 of 62.3 GB, no more for 42 s"),
        ([(0, 0.2, 0), (10, 55, 0)], 99, "spark2 read 59.1 of 62.3 GB, warms up"),
        # A download is read from the network, and counts for nothing.
        ([(0, 1, 0), (10, 21, 20), (20, 41, 40)], 20, "spark2 fetches the model, 42.9 GB written"),
        ([(0, 1, 0), (10, 21, 20)], 70, "spark2 fetches the model, 21.5 GB written, no more for 60 s"),
        ([(0, 1, 0), (10, 59, 58), (20, 66, 58)], 20, "spark2 read 7.5 of 62.3 GB, 752 MB/s, 73 s left"),
        # Compiled code that is written after all weights were read is no download.
        ([(0, 1, 0), (10, 58, 0), (20, 58, 1)], 20, "spark2 read 62.3 of 62.3 GB, warms up"),
        # A process that reads anew: another one.
        ([(0, 1, 0), (10, 58, 0), (20, 3, 0)], 20, "spark2 read 3.2 of 62.3 GB"),
    ],
)
def test_words(looks, now, expected):
    assert rank(*looks).words(now) == expected


def test_small_weights_are_not_compared_with_what_python_reads():
    assert rank((0, 0.2, 0), (9, 1.3, 0), weights=GIB).words(9) == "spark2 read 1.4 GB"


@pytest.mark.parametrize(
    ("told", "words", "stage"),
    [
        ("", "spark1 read 0.8 of 17.2 GB, spark2 read 4.0 of 17.2 GB", "while weights were read"),
        ("start", "spark1 starts its processes, spark2 starts its processes", "while its processes started"),
        ("read", "spark1 read 0.8 of 17.2 GB, spark2 read 4.0 of 17.2 GB", "while weights were read"),
        # Its journal is the head's: another node may still read.
        (
            "loaded",
            "spark1 has its weights, compiles and warms up, spark2 read 4.0 of 17.2 GB",
            "while weights were read",
        ),
        (
            "warm",
            "spark1 has its weights, compiles and warms up, spark2 has its weights, compiles and warms up",
            "in the warm-up, after all weights were read",
        ),
    ],
)  # fmt: skip
def test_what_the_engine_says_comes_before_what_was_read(told, words, stage):
    ranks = {host: p.Rank(host, 16 * GIB) for host in ("spark1", "spark2")}
    every = list(ranks.values())
    p.see(ranks, 0.0, {"spark1": {"e": moved(3 * GIB // 4)}, "spark2": {"e": moved(15 * GIB // 4)}})
    for earlier in ("start", "read", told):
        p.hear(every, earlier)
    assert (p.words(every, 9.0), p.stage(every)) == (words, stage)


def test_what_the_engine_says_is_told_without_any_figures():
    ranks = [p.Rank("spark1", 16 * GIB)]
    p.hear(ranks, "start")
    assert p.words(ranks, 9.0) == "spark1 starts its processes" and p.told(ranks)[0].stage == "start"


def test_all_ranks_together():
    ranks = {host: p.Rank(host, 10 * GIB) for host in ("spark1", "spark2", "spark3")}
    every = list(ranks.values())
    assert (p.words(every, 0), p.stage(every), p.told(every)) == ("", "", ())
    p.see(ranks, 0.0, {"spark1": {"r": moved(5, 1), "e": moved(GIB, 2), "x": UnitReport()}})
    p.see(ranks, 0.0, {"spark2": {"e": moved(9 * GIB)}, "spark3": {"e": UnitReport(active="active")}, "other": {}})
    assert p.words(every, 0) == "spark1 read 1.1 of 10.7 GB, spark2 read 9.7 of 10.7 GB, warms up"
    assert p.stage(every) == "while weights were read"
    assert p.told(every)[0] == p.Progress("spark1", "read", GIB, 2, 10 * GIB)
    p.see(ranks, 9.0, {"spark1": {"e": moved(10 * GIB, 2)}})
    assert p.stage(every) == "in the warm-up, after all weights were read"
    p.see(ranks, 9.0, {"spark3": {"e": moved(1, 0)}})
    assert p.words(every, 9) == "the slowest of 3: spark3 read 0.0 of 10.7 GB"
    p.see(ranks, 19.0, {"spark3": {"e": moved(GIB, GIB)}})
    assert p.stage(every) == "while the model was fetched"


@given(st.lists(st.tuples(st.integers(0, 9 * GIB), st.integers(0, 9 * GIB)), min_size=1), st.integers(0, 9 * GIB))
def test_no_order_of_looks_gives_nonsense(looks, weights):
    made = p.Rank("spark1", weights)
    for now, (read, written) in enumerate(looks):
        made.see(float(now), read, written)
        assert 0 <= made.own <= read
        assert made.does in ("fetch", "read", "warm")
        assert "spark1 " in made.words(float(now))
