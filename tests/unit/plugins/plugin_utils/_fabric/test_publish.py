# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.apply import Outcome
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import planners
from fabric_rates import fabric

PLANNED = {"facts": {"a": {"plan": 1}, "b": {"plan": 2}}, "texts": {"a": "plan a", "b": "plan b"}}
APPLIED = {"a": Outcome(transaction="x"), "b": Outcome()}
NOTHING = {"a": Outcome(), "b": Outcome()}
FACT = fabric(1)["spark1"]


def compared(**of_a: Any) -> dict[str, Outcome]:
    return {"a": Outcome(**{"changes": ["it"], **of_a}), "b": Outcome(changes=["it"])}


def verified(refusal: str | None) -> dict[str, Any]:
    return {"facts": {"a": {"gid": 3}, "b": {"gid": 3}}, "texts": {"a": "new a", "b": "new b"}, "refusal": refusal}


def publish(planned: Any, before: Any, applied: Any, measured: Any) -> Any:
    options = {"plan": planned, "compared": before, "applied": applied, "verified": measured}
    return SimpleNamespace(**planners.publish(options))


def test_a_fabric_that_works_is_written_everywhere() -> None:
    made = publish(PLANNED, compared(), APPLIED, verified(None))
    assert (made.facts["a"], made.texts) == ({"gid": 3}, {"a": "new a", "b": "new b"})
    assert (made.reconfigured, made.refusal) == (["a"], "")


def test_who_took_a_change_back_keeps_its_previous_fact() -> None:
    made = publish(PLANNED, compared(), APPLIED, verified("It does not work:"))
    assert made.texts == {"b": "new b"}
    assert made.refusal.splitlines() == [
        "It does not work:",
        "Taken back on a: The configuration of before this run is active again.",
    ]
    unchanged = publish(PLANNED, compared(), NOTHING, verified("It does not work:"))
    assert unchanged.texts == {"a": "new a", "b": "new b"}
    assert unchanged.refusal.endswith("so nothing was taken back.")


def test_check_mode_takes_the_measured_fact_of_a_machine_that_is_as_planned() -> None:
    made = publish(PLANNED, compared(fact_applied=True, changes=[], fact=FACT), NOTHING, None)
    assert made.facts == {"a": FACT.as_dict(), "b": {"plan": 2}}
    assert (made.texts, made.reconfigured, made.refusal) == ({"b": "plan b"}, [], "")
    drifted = publish(PLANNED, compared(fact_applied=True, fact=FACT), NOTHING, None)
    assert drifted.facts["a"] == {"plan": 1}
    assert drifted.texts == {"b": "plan b"}
