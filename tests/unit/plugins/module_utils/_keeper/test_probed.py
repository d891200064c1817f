# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import probed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.probed import Probed


def test_an_answer_and_its_time_are_noted_and_passed_on(tmp_path):
    (tmp_path / "run/sparkmatrix").mkdir(parents=True)
    root = str(tmp_path)
    times = iter([5.0, 5.75, 6.0, 66.0])

    def ask(said):
        return probed.noted(said, probed.path("a", root), lambda: 1000.0, lambda: next(times))

    def refused():
        raise SparkError("no answer")

    assert probed.last("a", root) is None
    assert ask(lambda: "the gateway is slow") == "the gateway is slow"
    assert probed.last("a", root) == Probed(1000.0, True, 0.75)
    with pytest.raises(SparkError, match="no answer"):
        ask(refused)
    assert probed.last("a", root) == Probed(1000.0, False, 60.0)
    assert probed.last("b", root) is None


def test_a_note_that_cannot_be_written_is_no_fault(tmp_path):
    assert probed.noted(lambda: "", str(tmp_path / "gone/probed.json")) == ""
