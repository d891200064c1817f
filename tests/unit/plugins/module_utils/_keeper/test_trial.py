# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import random

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import trial
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import RULES

GIB = 2**30
LASTS_S = 1200.0


def memory(shape, seed=1, minutes=20):
    """Bytes that are available every half minute, with what a machine does meanwhile."""
    chance = random.Random(seed)
    return [int((12 - shape(half / 2)) * GIB + chance.uniform(-0.02, 0.02) * GIB) for half in range(2 * minutes)]


LEAKS = {
    "3.5 GiB an hour": lambda minute: minute * 3.5 / 60,
    "8 GiB an hour": lambda minute: minute * 8 / 60,
    "after ten minutes as before": lambda minute: minute * 0.1 + (0.5 if minute > 10 else 0),
    "steps": lambda minute: minute // 2 * 0.2,
}
GOOD = {
    "nothing": lambda _minute: 0,
    "kernels of the first requests": lambda minute: 2.5 * min(minute / 5, 1),
    "a picture now and then": lambda minute: 3 if minute % 4 == 0 else 0,
    "another program that was started": lambda minute: 4 if minute > 11 else 0,
    "it levels out": lambda minute: 2 * (1 - 0.5 ** (minute / 2)),
    "less and less": lambda minute: -minute / 10,
}


@pytest.mark.parametrize("shape", LEAKS.values(), ids=LEAKS)
@pytest.mark.parametrize("seed", range(5))
def test_what_grows_all_the_time_is_a_leak(shape, seed):
    assert trial.leaks(memory(shape, seed)) > 0.8 * GIB
    assert trial.GROWS in RULES


@pytest.mark.parametrize("shape", GOOD.values(), ids=GOOD)
@pytest.mark.parametrize("seed", range(5))
def test_what_comes_to_rest_is_none(shape, seed):
    assert trial.leaks(memory(shape, seed)) == 0


def test_a_cache_that_fills_comes_to_rest_later():
    """Four GiB of images, at one of 15 MB every ten seconds: in 45 minutes."""
    sizes = memory(lambda minute: min(minute * 0.088, 4), minutes=90)
    found = [trial.leaks(sizes[: 2 * minutes]) for minutes in range(20, 90)]
    assert found[0] > GIB and max(found) <= trial.ROOM and found[-1] == 0


def test_a_trial_looks_now_and_then_and_says_which_node():
    made = trial.Trial(0.0, LASTS_S)
    for second in range(0, int(LASTS_S) + 10, 2):
        made.see(float(second), [("spark1", 10 * GIB), ("spark2", 10 * GIB - second * 4 * 2**20)])
    assert trial.SAMPLES - 1 <= len(made.available["spark1"]) <= trial.SAMPLES
    assert made.over(LASTS_S) and not made.over(LASTS_S - 1)
    host, lost = made.losing()
    assert host == "spark2" and trial.ROOM < lost < 4.5 * GIB


def test_a_short_look_finds_nothing():
    assert trial.leaks([10 * GIB, GIB]) == trial.leaks([]) == 0
