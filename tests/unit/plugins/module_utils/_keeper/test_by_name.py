# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which model is served, where clients ask for them by name."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import by_name as b
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.by_name import Asked, Models, Shown

PLANS = {"one": "p", "two": "p", "three": "p"}
ONE = Models("one")
NOW = 10000.0


def asked_for(ago=0.0, last=0.0):
    return Asked(NOW - ago, NOW - last)


def chosen(asked, models=ONE, served=1000.0, plans=PLANS):
    return b.chosen(models, plans, asked, NOW - served, NOW)


@pytest.mark.parametrize(
    ("asked", "model"),
    [
        ({}, ""),
        ({"one": asked_for()}, ""),
        ({"four": asked_for()}, ""),
        ({"two": asked_for()}, "two"),
        ({"three": asked_for(5), "two": asked_for(9)}, "two"),  # who has waited longest
        ({"three": asked_for(5), "two": asked_for(99, last=11)}, "three"),  # who waited has given up
    ],
)
def test_who_has_waited_longest_comes_next_and_who_gave_up_does_not(asked, model):
    assert chosen(asked) == model


def test_a_model_stays_while_it_has_requests_for_as_long_as_loading_others_is_worth():
    busy = {"one": asked_for(last=1), "two": asked_for()}
    assert chosen(busy, served=59) == ""
    assert chosen(busy, served=60) == "two"
    slow = replace(ONE, took={"two": 300.0})
    assert chosen(busy, slow, served=899) == ""
    assert chosen(busy, slow, served=900) == "two"
    assert chosen({"one": asked_for(last=4), "two": asked_for()}, slow, served=1) == "two"


def switched(models, model, at, took):
    return b.arrived(b.begun(models, model, at), at + took)


def test_two_that_are_asked_for_all_the_time_do_not_starve_a_third():
    """Whoever asks begins anew with each keeper, and there is one after every switch."""
    models, order = ONE, []
    for number in range(6):
        now = NOW + 1000.0 * number
        asked = {model: Asked(now, now) for model in PLANS}
        order.append(b.chosen(models, PLANS, asked, now - 900, now))
        models = switched(models, order[-1], now, 20.0)
    assert order == ["three", "two", "one"] * 2


@pytest.mark.parametrize(("took", "at_once", "then_every"), [(20.0, 16, 40.0), (200.0, 2, 400.0), (3000.0, 1, 6000.0)])
def test_half_of_the_time_is_for_answers_and_nobody_waits_for_long_for_what_others_have_spent(
    took, at_once, then_every
):
    """Everybody asks for another model as soon as one is there."""
    models, now, begins = ONE, NOW, []
    for number in range(40):
        model = ("two", "one")[number % 2]
        served = now
        while b.chosen(models, PLANS, {model: Asked(now, now)}, served, now) != model:
            now += 1.0
        begins.append(now)
        models = switched(models, model, now, took)
        now += took
    waits = [after - before for before, after in itertools.pairwise(begins)]
    assert next(number for number, wait in enumerate(waits, start=1) if wait > took + 1) == at_once
    assert waits[-1] == pytest.approx(then_every, abs=2)


def test_what_was_off_in_the_middle_of_a_switch_is_no_measure():
    away = b.arrived(b.begun(ONE, "two", NOW - 86400), NOW)
    assert away.took["two"] == b.LONGEST_S
    assert away.paid <= NOW + b.LONGEST_S


def test_a_switch_goes_on_before_the_next_one():
    assert chosen({"three": asked_for()}, replace(ONE, going="two")) == ""


def test_a_model_that_does_not_start_leads_back_and_is_not_tried_again_at_once():
    trial = b.begun(ONE, "two", NOW - 100)
    assert trial.trial
    back = b.failed(trial, "p", "it has no weights", NOW)
    assert (back.going, back.loaded, back.trial) == ("one", "one", False)
    home = b.arrived(back, NOW + 9)
    assert (home.going, home.loaded) == ("", "one")
    assert "one" not in home.took  # a way back is no measure of how long it takes to come
    assert chosen({"two": asked_for()}, home) == ""
    assert chosen({"two": asked_for()}, home, plans={**PLANS, "two": "another"}) == "two"
    assert b.chosen(home, PLANS, {"two": Asked(0, NOW + b.BROKEN_S)}, 0.0, NOW + b.BROKEN_S) == "two"


def test_what_came_is_measured_and_no_longer_broken():
    trial = b.begun(b.marked(ONE, "two", "p", "x", NOW - 9999), "two", NOW - 53.21)
    there = b.arrived(trial, NOW)
    assert there == replace(
        trial, loaded="two", going="", took={"two": 53.2}, broken={}, left={"one": NOW}, paid=NOW + 53.21
    )
    assert b.arrived(there, NOW + 5) is there


def test_what_a_keeper_finds_when_it_begins():
    """A switch goes on where the keeper before was cut off; a run, and whoever stops the keeper, ends it."""
    going = replace(ONE, going="two")
    assert b.adopted(going, "one", PLANS, stopped=False) is going
    assert b.adopted(going, "one", PLANS, stopped=True) == ONE
    assert b.adopted(going, "two", PLANS, stopped=True) is going  # which may not start
    back = b.failed(going, "p", "no weights", NOW)
    assert b.adopted(back, "two", PLANS, stopped=True) is back
    assert b.adopted(back, "two", {**PLANS, "two": "of another run"}, stopped=True).loaded == "two"
    assert b.adopted(going, "one", {"one": "p"}, stopped=False) == ONE
    assert b.adopted(Models("two"), "one", PLANS, stopped=False) == ONE


def shown(model, models=ONE, asked=None, serves=100.0):
    return b.shown(model, models, PLANS, asked or {}, serves_since=None if serves is None else NOW - serves, now=NOW)


MEASURED = replace(ONE, took={"two": 50.0, "three": 30.0})


@pytest.mark.parametrize(
    ("model", "models", "asked", "serves", "told"),
    [
        ("one", ONE, {}, 100.0, Shown("serving")),
        ("one", ONE, {}, None, Shown("loading", None)),
        ("one", replace(MEASURED, took={"one": 20.0}), {}, None, Shown("loading", 20.0)),
        ("two", ONE, {}, 100.0, Shown("absent", None)),
        ("two", MEASURED, {}, 100.0, Shown("absent", 50.0)),
        ("two", MEASURED, {"two": asked_for()}, 100.0, Shown("queued", 50.0)),
        (
            "two",
            MEASURED,
            {"two": asked_for(), "one": asked_for()},
            100.0,
            Shown("queued", 100.0),
        ),  # 50 of 150 are left
        ("three", MEASURED, {"two": asked_for(9), "three": asked_for()}, 100.0, Shown("queued", 140.0)),
        ("two", replace(MEASURED, going="two", since=NOW - 20), {}, None, Shown("loading", 30.0)),
        ("two", replace(MEASURED, going="two", since=NOW - 99), {}, None, Shown("loading", 1.0)),
        ("one", replace(MEASURED, going="two"), {}, None, Shown("absent", None)),
        ("two", b.marked(ONE, "two", "p", "no weights", NOW), {}, 100.0, Shown("broken", None)),
        ("four", ONE, {}, 100.0, Shown("unknown", None)),
    ],
)
def test_what_is_told(model, models, asked, serves, told):
    assert shown(model, models, asked, serves) == told
