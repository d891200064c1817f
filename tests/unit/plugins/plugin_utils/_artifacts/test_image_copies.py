# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import dataclass

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._artifacts.image_copies import rounds

A, B = "x/a:1", "x/b:1"


@dataclass
class Rail:
    address: str
    prefix: int = 24


@dataclass
class Fact:
    rails: tuple


def switch(count):
    """Two halves each."""
    return {f"s{node}": Fact((Rail(f"10.0.0.{node}"), Rail(f"10.0.1.{node}"))) for node in range(1, count + 1)}


def ring(count):
    """A cable to the next one, and from the one before."""
    return {
        f"s{node}": Fact((Rail(f"10.0.{node}.1"), Rail(f"10.0.{(node - 2) % count + 1}.2")))
        for node in range(1, count + 1)
    }


def plan(facts, there, wanted=None, **options):
    wanted = wanted or dict.fromkeys(facts, (A,))
    made = rounds(wanted, {host: there.get(host, ()) for host in facts}, facts, **options)
    return [
        (
            {host: (offer.fetch, offer.images) for host, offer in one.offers.items()},
            {host: [(receipt.image, receipt.source) for receipt in own] for host, own in one.receipts.items()},
        )
        for one in made
    ]


def test_one_fetches_for_all():
    assert plan(switch(3), {}) == [({"s1": ([A], [A])}, {"s2": [(A, "s1")], "s3": [(A, "s1")]})]
    (only,) = rounds(dict.fromkeys(switch(3), (A,)), dict.fromkeys(switch(3), ()), switch(3))
    assert only.offers["s1"].addresses == ["10.0.0.1", "10.0.1.1"]
    assert only.offers["s1"].allowed == ["10.0.0.2", "10.0.1.2", "10.0.0.3", "10.0.1.3"]
    assert only.receipts["s3"][0].addresses == ("10.0.0.1", "10.0.1.1")


def test_what_is_built_is_built_once():
    options = {"archives": ["s2"], "built": [A]}
    once = [({"s1": ([A], [A])}, {"s2": [(A, "s1")], "s3": [(A, "s1")]})]
    assert plan(switch(3), {}, **options) == plan(switch(3), {}, from_peers=False, **options) == once


def test_nothing_moves_where_all_have_it():
    assert plan(switch(3), dict.fromkeys(switch(3), (A,))) == []


def test_who_has_it_gives_it_and_is_left_alone():
    assert plan(switch(3), {"s3": (A,)}) == [({"s3": ([], [A])}, {"s1": [(A, "s3")], "s2": [(A, "s3")]})]
    # Several share the work.
    assert plan(switch(4), {"s1": (A,), "s2": (A,)}) == [
        ({"s1": ([], [A]), "s2": ([], [A])}, {"s3": [(A, "s1")], "s4": [(A, "s2")]})
    ]


def test_each_image_goes_where_it_is_wanted():
    wanted = {"s1": (A,), "s2": (A, B), "s3": (B,), "s4": ()}
    assert plan(switch(4), {}, wanted) == [
        ({"s1": ([A], [A]), "s2": ([B], [B])}, {"s2": [(A, "s1")], "s3": [(B, "s2")]})
    ]


@pytest.mark.parametrize(("count", "deep"), [(3, 1), (4, 2), (5, 2), (6, 3)])
def test_a_ring_passes_it_on(count, deep):
    made = plan(ring(count), {})
    assert len(made) == deep
    assert [host for offers, _receipts in made for host, offer in offers.items() if offer[0]] == ["s1"]
    got = [host for _offers, receipts in made for host in receipts]
    assert sorted(got) == [f"s{node}" for node in range(2, count + 1)]
    for _offers, receipts in made:
        for host, ((_image, source),) in receipts.items():
            assert abs(int(host[1]) - int(source[1])) in (1, count - 1)


def test_without_a_cable_each_fetches_for_itself():
    apart = {**switch(2), "s3": Fact(()), "s4": None}
    assert plan(apart, {}) == [({"s1": ([A], [A]), "s3": ([A], []), "s4": ([A], [])}, {"s2": [(A, "s1")]})]
    assert plan({"s1": None}, {}) == [({"s1": ([A], [])}, {})]


def test_on_request_each_fetches_for_itself():
    assert plan(switch(2), {"s1": (A,)}, from_peers=False) == [({"s2": ([A], [])}, {})]


def test_an_archive_is_offered_by_the_node_that_has_it_to_itself_as_well():
    (only,) = plan(switch(3), {}, archives=["s2"])
    assert only == ({"s2": ([A], [A])}, {"s2": [(A, "s2")], "s1": [(A, "s2")], "s3": [(A, "s2")]})
    (made,) = rounds({"s1": (A,)}, {"s1": ()}, {"s1": None}, ["s1"])
    assert (made.offers["s1"].addresses, made.offers["s1"].allowed) == (["127.0.0.2"], ["127.0.0.1"])
    assert plan(switch(2), {"s1": (A,)}, archives=["s2"]) == [({"s1": ([], [A])}, {"s2": [(A, "s1")]})]
