# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import (
    Cable,
    FabricFact,
    Rail,
    dump,
    load,
    require_applied,
)
from hypothesis import given, settings
from hypothesis import strategies as st

RAIL = Rail(0, 0, "0000", "enp1s0f0np0", "rocep1s0f0", 1, "192.168.100.10", 24, 9000, 200.0, "rail0")
FACT = FabricFact(
    host="spark1",
    state="applied",
    topology="switch",
    transport="rdma",
    rank=0,
    nodes=2,
    management_address="10.0.0.1",
    cluster_address="192.168.100.10",
    cluster_interface="enp1s0f0np0",
    rails=(RAIL,),
    environment={"NCCL_DEBUG": "WARN"},
).with_hash()


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_garbage_is_one_clear_error(document: Any) -> None:
    with pytest.raises(SparkError, match=r"spark1 .*sparkmatrix\.fact: .*--tags fabric"):
        load(document, "spark1")


@given(st.sampled_from(sorted(FACT.as_dict())), st.none() | st.integers() | st.text() | st.lists(st.integers()))
def test_one_damaged_value_never_gives_a_traceback(name: str, value: Any) -> None:
    document = {**json.loads(dump(FACT)), name: value}
    try:
        loaded = load(document, "spark1")
    except SparkError:
        return
    assert isinstance(loaded, FabricFact)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": 1}, "has schema 1, this release reads 3"),
        ({"rails": [asdict(RAIL), asdict(RAIL)]}, "the rails have the indices [0, 0], and each needs its own"),
        ({"cables": [asdict(Cable(0, "guessed", "spark2"))]}, "cables[0].source is 'guessed', expected one of"),
        ({"cables": [asdict(Cable(0, "probe"))]}, "cage 0 leads to neither node nor switch"),
        ({"cables": [asdict(Cable(1, "probe", "spark2", 0, "sw"))]}, "the cable of cage 1 leads to spark2"),
        ({"rank": True}, "rank is True"),
        ({"cluster_address": "here"}, "cluster_address is 'here', which is no address"),
        ({"cluster_address": "10.9.9.9"}, "is neither management_address nor that of a rail"),
        ({"environment": {"A": 1}}, "environment.A is 1, expected a text"),
        ({"rails": ["x"]}, "rails[0] is 'x', not a mapping"),
        ({"extra": 1}, "unknown keys: extra"),
    ],
)
def test_the_damage_is_named(change: dict[str, Any], text: str) -> None:
    with pytest.raises(SparkError, match="fabric layer again") as raised:
        load({**json.loads(dump(FACT)), **change}, "spark1")
    assert text in str(raised.value)


@pytest.mark.parametrize("name", ["rails", "cables"])
def test_a_missing_key_is_damage(name: str) -> None:
    document = json.loads(dump(FACT))
    del document[name]
    with pytest.raises(SparkError, match="damaged"):
        load(document, "spark1")


@pytest.mark.parametrize("document", [None, "", {}])
def test_no_fact_says_so(document: Any) -> None:
    with pytest.raises(SparkError, match="the fabric layer has not run on this node"):
        load(document, "spark1")


def test_a_torn_file_says_so() -> None:
    # Ansible hands over the text of a file that is not JSON.
    with pytest.raises(SparkError, match="not valid JSON"):
        load(dump(FACT)[:-20], "spark1")


def test_the_hash_is_of_the_plan_not_of_the_measurement() -> None:
    rail = replace(RAIL, gid_index=5, gid="x", link_gbps=100.0)
    cable = Cable(0, "probe", switch="sw1")
    assert replace(FACT, state="planned", rails=(rail,), cables=(cable,)).with_hash().plan_hash == FACT.plan_hash
    for other in (
        replace(FACT, rails=(replace(RAIL, address="192.168.100.11"),)),
        replace(FACT, environment={}),
        replace(FACT, nodes=3),
        replace(FACT, qos="roce"),
    ):
        assert other.with_hash().plan_hash != FACT.plan_hash


def test_only_an_applied_fabric_is_accepted() -> None:
    assert require_applied(FACT) is FACT
    for state in ("planned", "applying"):
        with pytest.raises(SparkError, match=f"state '{state}', not 'applied'"):
            require_applied(replace(FACT, state=state))
