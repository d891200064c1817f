# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json as decide
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._keeper import ranges as r

ROLE = Path(r.__file__).resolve().parents[3] / "roles/engine"
BY_NAME = {allowed.variable: allowed for allowed in r.RANGES}


def test_every_setting_of_the_keeper_has_a_range_that_its_default_is_in():
    options = {item.name: getattr(decide.Settings(), item.name) for item in fields(decide.Settings)}
    assert {allowed.option for allowed in r.RANGES} < {*options}
    assert list(r.problems(options)) == []
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    assert [text for name, allowed in BY_NAME.items() if (text := r.outside(defaults[name], allowed))] == []


@pytest.mark.parametrize("allowed", r.RANGES, ids=lambda allowed: allowed.variable)
def test_the_documented_range_is_the_one_that_is_enforced(allowed):
    specification = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]
    texts = [entry["options"][allowed.variable]["description"] for entry in specification.values()
             if allowed.variable in entry.get("options", {})]  # fmt: skip
    assert texts and all(allowed.allowed in text for text in texts)
    for value in (allowed.low, allowed.high, str(allowed.low)):
        assert r.outside(value, allowed) == ""
    for value in (allowed.low - 1, allowed.high + 1, str(allowed.high + 1), float("inf"), float("nan")):
        assert (
            r.outside(value, allowed) == f"{allowed.variable} is {value}, allowed is {allowed.allowed}: {allowed.why}"
        )
    for value in (None, "x", [], True):
        assert r.outside(value, allowed) == ""


def test_what_is_wrong_is_said_all_at_once():
    assert len(list(r.problems({"hang_s": 0.0, "stable_s": 0, "ready_s": 60}))) == 2


@pytest.mark.parametrize(
    ("hang_s", "interval", "timeout"), [(30, 5, 10), (200, 10, 20), (600, 30, 60), (86400, 30, 60)]
)
def test_an_engine_that_hangs_is_asked_several_times(hang_s, interval, timeout):
    assert r.probes(hang_s) == {"probe_interval_s": interval, "probe_timeout_s": timeout}
    usual = decide.Settings()
    assert r.probes(usual.hang_s) == {
        "probe_interval_s": usual.probe_interval_s,
        "probe_timeout_s": usual.probe_timeout_s,
    }
