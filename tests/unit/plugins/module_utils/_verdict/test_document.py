# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Limit, Run, Verdict, load
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import verdict

SLOW = Verdict(
    "rdma_rate",
    "fail",
    "link",
    "13 Gb/s",
    hosts=("spark1", "spark2"),
    value=13,
    limit=(Limit(90, "Gb/s", "least", "docs/fabric.md", "this collection", "verify_limits.half_good_gbps"),),
    cause="nic_degraded",
)
RUN = Run("desk", "doctor", "2026-11-23T07:30:00Z", 12.5, "0.1.0", verdicts=(SLOW,))


def test_a_run_is_read_as_it_was_written():
    assert load(json.loads(json.dumps(RUN.as_dict())), "spark1") == RUN


def test_its_texts_do_nothing_to_a_terminal():
    assert load({**RUN.as_dict(), "cluster": "a\x1b[2J\nb"}, "spark1").cluster.isprintable()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema '2', expected 1"),
        ({"verdicts": [{"check": "x", "outcome": "good", "scope": "node", "found": ""}]}, "verdicts[0].outcome"),
        ({"surprise": 1}, "unknown keys: surprise"),
    ],
)
def test_what_is_no_run_is_refused_with_words(change, said):
    with pytest.raises(SparkError, match=said.replace("[", r"\[").replace("]", r"\]")):
        load({**RUN.as_dict(), **change}, "spark1")


@pytest.mark.parametrize(
    ("outcomes", "worst"),
    [((), "unknown"), (("pass",), "pass"), (("pass", "unknown"), "unknown"), (("warn", "unknown", "fail"), "fail")],
)
def test_a_run_is_as_good_as_its_worst_verdict(outcomes, worst):
    found = tuple(Verdict("x", outcome, "node", "") for outcome in outcomes)
    assert Run("desk", "verify", "2026-11-23T07:30:00Z", 1, "0.1.0", verdicts=found).outcome == worst


def test_a_failure_names_a_cause_and_has_its_remedy():
    found = verdict("rdma_rate", "link", "13 Gb/s", cause="nic_degraded", hosts=["spark1"])
    assert "Reboot both machines" in found.remedy
    with pytest.raises(ValueError, match="needs a cause"):
        verdict("rdma_rate", "link", "13 Gb/s")
    with pytest.raises(ValueError, match="has no cause"):
        verdict("rdma_rate", "link", "13 Gb/s", cause="nic_degraded", outcome="pass")
