# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import planner
from planning import plan


def test_a_host_without_the_variable_is_refused() -> None:
    known: dict[str, dict[str, object]] = {"a": {"__x": 1}, "b": {}, "c": {}}
    with pytest.raises(SparkError, match=r"^b, c: __x is not known\. Run the whole layer for all machines"):
        planner.gather(known, "__x")
    assert planner.gather(known, "__x", partly=True) == {"a": 1}
    assert planner.gather({host: {"__x": None} for host in "abc"}, "__x") == {"a": None, "b": None, "c": None}


def test_the_first_place_counts_that_has_something() -> None:
    facts = ["__made", "__read.fact"]
    known: dict[str, dict[str, object]] = {
        "a": {"__made": 1, "__read": {"fact": 2}},
        "b": {"__read": {"fact": 2}},
        "c": {"__read": {"fact": None}},
        "d": {"__made": None, "__read": {"fact": 2}},
    }
    assert planner.gather(known, facts) == {"a": 1, "b": 2, "c": None, "d": 2}
    known["e"] = {"__read": {"failed": True}}
    known["f"] = {"__read": "text"}
    with pytest.raises(SparkError, match=r"^e, f: __made or __read\.fact is not known"):
        planner.gather(known, facts)
    wanted = {"rank": "__rank", "fact": facts}
    assert planner.gather({"a": {"__rank": 0, **known["a"]}, "e": known["e"]}, wanted) == {
        "a": {"rank": 0, "fact": 1},
        "e": {},
    }


def test_a_planner_of_living_hosts_does_not_wait_for_a_dead_one() -> None:
    play = {"ansible_play_hosts_all": ["a", "b"], "ansible_play_hosts": ["a"], "hostvars": {"a": {"__x": 1}, "b": {}}}
    for alive, expected in ((True, {"a": 1}), (False, None)):
        asked = planner.Planner(lambda options: {"read": options["x"]}, {}, {"x": planner.ours}, alive=alive)
        assert planner.run("some", asked, {"x": "__x"}, play).get("read") == expected


def test_options_are_checked() -> None:
    result = plan("qos_before", {"nodes": {}}, profile="fcoe", facts={})
    assert result["failed"] and result["msg"].startswith(
        "planner qos_before: value of profile must be one of: none, roce"
    )
    assert "surplus" in plan("os_update", {"nodes": {}}, surplus=1)["msg"]
    assert "missing required arguments: nodes" in plan("os_update")["msg"]
