# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fabric_drift
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import drift
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.layers import LAYERS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import CHECKS, RULES, SYMPTOMS

# Not among the faults of fixtures/rules.txt: tests of verdicts have them.
OF_VERDICTS = {"nccl_no_interface", "tree_on_ring", "requests_failed", "speculation_rejected"}
OF_DRIFT = {"not_looked_at"}


def test_every_rule_is_found_in_a_fault_that_tests_know(fixtures: Path):
    found = set(re.findall(r"\w+", (fixtures / "rules.txt").read_text()))
    assert set(RULES) - found == OF_VERDICTS | OF_DRIFT


def test_a_rule_has_its_texts_and_stands_once():
    told = [rule for rules in SYMPTOMS.values() for rule in rules]
    assert len(told) + len(CHECKS) == len(RULES)
    for rule in RULES.values():
        assert re.fullmatch("[a-z][a-z0-9_]*", rule.id) and rule.title and rule.why
        assert not rule.title.endswith(".") and not rule.remedy.endswith(".")
    assert all(rule.remedy and rule.otherwise and rule.source for rule in told), "they are in docs/troubleshooting.md"


def test_every_check_has_a_predicate_and_known_layers():
    assert {rule.id for rule in RULES.values() if rule.layers} == set(checks.JUDGES)
    assert all(rule.layers <= {"preflight", *LAYERS} for rule in RULES.values())
    assert set(checks.RENAMED.values()) <= set(checks.JUDGES)
    assert not set(checks.RENAMED) & set(RULES)


def test_an_alert_is_told_from_the_others_of_its_rule_and_has_its_words():
    for rule in RULES.values():
        assert len({alert.sign for alert in rule.alerts}) == len(rule.alerts), rule.id
        assert "{{" not in rule.why + rule.remedy + rule.otherwise, "Prometheus would fill it in"


def test_what_a_node_sees_has_the_name_of_its_rule():
    assert {*fabric_drift.KINDS, *drift.KINDS} <= set(RULES)
