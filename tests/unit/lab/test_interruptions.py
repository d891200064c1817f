# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Where site.yml is killed: a stand-in for it changes ten things in a row, and goes on where it was killed."""

from __future__ import annotations

import random

import cluster
import pytest
import test_interruptions as interruptions

CHANGES = 10


class Site:
    """``fragile``: a change that is taken back when the run is killed right after it."""

    def __init__(self, fragile=0, breaks_at=0):
        self.done, self.fragile, self.breaks_at = 0, fragile, breaks_at
        self.kills = []

    def play(self, _name, *_options, kill_at_change=0, **_more):
        changed = 0
        while self.done < CHANGES:
            if self.done + 1 == self.breaks_at:
                return cluster.Run(2, 1.0)
            self.done, changed = self.done + 1, changed + 1
            if changed == kill_at_change:
                self.kills.append(self.done)
                stats = {"changed": str(self.done), "running": "next"}
                self.done -= self.done == self.fragile
                return cluster.Run(-9, 1.0, killed=True, stats=stats)
        return cluster.Run(0, 1.0)


@pytest.fixture
def site(monkeypatch):
    def make(**options):
        made = Site(**options)
        monkeypatch.setattr(interruptions.cluster, "play", made.play)
        monkeypatch.setattr(interruptions.cluster, "log_tail", lambda _name: "the log")
        return made

    return make


def kill(changes):
    return interruptions.kill_through(iter(changes), random.Random(1), [])


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_the_parts_kill_after_every_change_once(site, parts):
    kills = []
    for part in range(1, parts + 1):
        made = site()
        kill(interruptions.every(CHANGES, part, parts))
        kills += made.kills
    assert kills == list(range(1, CHANGES + 1))


@pytest.mark.parametrize("seed", range(20))
def test_a_sample_is_spread_over_the_run(site, seed):
    made = site()
    killed = kill(interruptions.sampled(4, CHANGES, random.Random(seed)))
    assert 2 <= killed <= 4
    assert made.kills == sorted(made.kills)


def test_a_run_that_ends_before_its_kill_is_no_failure(site):
    site()
    assert kill([6, 6, 6]) == 1


def test_a_run_that_fails_by_itself_is_one(site):
    site(breaks_at=5)
    with pytest.raises(cluster.LabError, match="After 2 kills the next run failed by itself"):
        kill([2, 2, 2])


def test_a_change_that_is_taken_back_is_passed_in_the_end(site):
    made = site(fragile=3)
    assert kill([1] * 6) == 6
    assert made.kills == [1, 2, 3, 3, 4, 5]


def test_the_seed_follows_the_commit():
    assert interruptions.seed_of_the_commit() > 1
