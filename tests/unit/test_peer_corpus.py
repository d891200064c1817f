# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""200 public recipes, as facts: taken as they are, nothing lost in silence, planned."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import peer_sources
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import catalogue

LEAST_PLANNED = 0.95


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    made, shipped = [], list(catalogue.recipes(()))  # read once, and not for each
    with mock.patch.object(catalogue, "recipes", lambda _paths: shipped):
        for fact in peer_sources.facts():
            made.append(peer_sources.outcome(fact, tmp_path_factory.mktemp("peer")))
    return made


def test_there_are_enough_of_each_format(taken):
    kinds = Counter(one.fact["kind"] for one in taken)
    assert len(taken) >= 150 and {kind for kind in kinds if kinds[kind] >= 10} >= set(peer_sources.PROMISED)


def test_commands_are_theirs_but_for_places(taken):
    assert {one.fact["id"]: found for one in taken if not one.refused and (found := list(one.changed()))} == {}


def test_nothing_is_lost_in_silence(taken):
    assert {one.fact["id"]: found for one in taken if not one.refused and (found := list(one.silent()))} == {}


def test_no_secret_is_written_or_said(taken):
    said = {one.fact["id"]: one.text + one.said + "\n".join(one.own_left) for one in taken if not one.refused}
    assert [name for name, text in said.items() if peer_sources.SECRET in text] == []


def test_nearly_all_that_start_something_are_planned(taken):
    """Of the formats that are taken, with values for what the file leaves to its user."""
    starting = [one for one in taken if one.fact["kind"] in peer_sources.PROMISED and one.starts]
    planned = [one for one in starting if not one.reason]
    assert len(starting) >= 150
    assert len(planned) / len(starting) >= LEAST_PLANNED, [
        (one.fact["id"], one.reason) for one in starting if one.reason
    ]


def test_what_is_refused_says_why(taken):
    assert [one.fact["id"] for one in taken if one.reason == "no plan"] == []
    starts_nothing = [one.reason for one in taken if not one.starts]
    known = ("names no model", "starts nothing", "which model it serves", "cannot be read")
    assert [reason for reason in starts_nothing if not any(words in reason for words in known)] == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("aidendle94-recipe", "it has no command to translate, and starts nothing that is known"),
        ("coolbho3k-start-server", "names no model to serve"),
        ("eugr-flux2-dev-torchao-nvfp4", "it serves images"),
        ("taussoe-recipe", "names no model to serve"),
    ],
)
def test_what_nobody_here_can_serve_is_refused_for_that(taken, name, reason):
    """A summary, a program that has the command in it, and images; one that a comment cuts off is taken, and said
    (test_as_command)."""
    assert [reason in one.reason for one in taken if one.fact["id"] == name] == [True]
