# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Starts as the keeper's journal tells them, and what of a fault is too late."""

from __future__ import annotations

import pytest
import test_staying_up as staying_up
from cluster import LabError

JOURNAL = """\
100.5 spark1 systemd[1]: Started sparkmatrix-keeper.service.
101.0 spark1 sparkmatrix-node[7]: waiting: spark2 is absent
110.0 spark1 sparkmatrix-node[7]: starting: stopping what is there
111.0 spark1 sparkmatrix-node[7]: starting: starting the ranks
120.0 spark1 sparkmatrix-node[7]: loading: the ranks run
150.0 spark1 sparkmatrix-node[7]: serving: it serves
160.0 spark1 sparkmatrix-node[7]: serving: it serves
200.0 spark1 sparkmatrix-node[7]: stopping: a rank is dead
205.0 spark1 sparkmatrix-node[7]: starting: starting the ranks
220.0 spark1 sparkmatrix-node[7]: stopping: it failed
230.0 spark1 sparkmatrix-node[7]: starting: starting the ranks
280.0 spark1 sparkmatrix-node[7]: serving: it serves, 80 s after the failure
"""


@pytest.fixture
def here(monkeypatch):
    made = staying_up.Cluster("", "ray")
    monkeypatch.setattr(made, "node", lambda *_words: JOURNAL)
    return made


def test_a_start_is_from_its_first_word_to_the_first_answer(here):
    assert here.starts() == [(110.0, 150.0), (230.0, 280.0)]


@pytest.mark.parametrize(
    ("noticed", "serving", "says"),
    [(20, 70, ""), (21, 60, "noticed after more than 20 s"), (3, 71, "serving later than a start and 20 s")],
)
def test_what_is_promised_of_a_dead_rank(here, noticed, serving, says):
    result = {"noticed_s": noticed, "serving_s": serving}
    if says:
        with pytest.raises(LabError, match=says):
            staying_up.in_time(here, result)
    else:
        staying_up.in_time(here, result)
    assert (result["first_start_s"], result["start_s"]) == (40, 50)


def test_a_start_that_became_much_slower_is_found(here, monkeypatch):
    monkeypatch.setattr(here, "starts", lambda: [(0.0, 40.0), (100.0, 161.0)])
    with pytest.raises(LabError, match="much longer than the first one"):
        staying_up.in_time(here, {"noticed_s": 3, "serving_s": 65})
