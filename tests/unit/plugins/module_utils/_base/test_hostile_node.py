# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A node lies in every field of every answer: it is refused with the name of the node and of the field, or what is
taken is of the field's kind, one line, and does nothing to a terminal. And every planner takes the answers of the other
nodes as if nobody had lied.

Answers and fields are those of the types, and planners those of the table, so a new one is tried as well.
"""

from __future__ import annotations

import itertools
import json
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.action.plan import PLANNERS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.node import left_out
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls, document, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan, plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import apply
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import Cable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support import capture
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import planners as access
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import planners as fabric
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._qos import planners as qos
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._status import cluster, collect
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import doctor
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import planners as verdict
from engine_plans import PLAN
from fabric_rates import fabric as facts_of
from ssh_keys import ssh_key
from status_documents import said as status_said

LIAR = "spark2"
LIES: tuple[Any, ...] = (
    "x\n    ProxyCommand id\n#",
    "10.0.0.66\n10.0.0.67",
    "fe80::1%x",
    'x"; id; "',
    "\x1b[2J\x1b]0;x\x07",
    "a\0b",
    "\u202e\u2028",
    "x" * 1_000_000,
    -(2**80),
    float("nan"),
    None,
    True,
    ["x\n"],
    {"x": "y\n"},
)
# What some kind takes; of a parser that reads a document of its own, what it reads.
TRUE: tuple[Any, ...] = (
    *("spark1", "192.0.2.1", "enp1s0f0np0", "00:11:22:33:44:55", "0011:2233:4455:6677", "0600", "0002:01", ""),
    *("fe80:0000:0000:0000:0011:22ff:fe33:4455", "2026-11-23T07:30:00Z", "sha256:1f0c", "a" * 40, "https://192.0.2.1/"),
    *(ssh_key("a"), f"spark1 {ssh_key('a')}\n", 1, 100, 1.5, True, {"a": "b"}, ["a"]),
)
FILE = manifest.File("config.json", 2, "1" * 64, "2" * 40)
OF_PARSERS: Mapping[Any, Any] = {
    left_out: None,
    capture.unpacked: capture.pack({"nvidia_smi": "GB10\nx"}),
    kept_plan.plan_or_none: None,
    manifest.parse: manifest.Manifest("org/model", "a" * 40, (FILE,)).as_dict(),
    apply._fact: replace(
        facts_of(1)["spark1"], cables=(Cable(0, "probe", switch="sw1"),), environment={"NCCL_DEBUG": "WARN"}
    ).as_dict(),
}


def sample(kind: Any, where: str) -> Any:
    """A true value, with something in every field."""
    if is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return {
            item.name: item.metadata["enum"][0]
            if "enum" in item.metadata
            else sample(hints[item.name], f"{where}.{item.name}")
            for item in fields(kind)
        }
    arguments = typing.get_args(kind)
    if hasattr(kind, "__metadata__"):
        parser = kind.__metadata__[0]
        return OF_PARSERS[parser] if parser in OF_PARSERS else next(filter(lambda one: takes(parser, one), TRUE))
    origin = typing.get_origin(kind)
    if origin is typing.Union:
        return sample(arguments[0], where)
    if origin in (tuple, list):
        return [sample(arguments[0], where)]
    if origin is Mapping:
        return {sample(arguments[0], where): sample(arguments[1], where)}
    return {str: "x", int: 1, float: 1.5, bool: True}.get(kind, {})


def takes(parser: Any, value: Any) -> bool:
    try:
        return bool(parser(value) == value)
    except (ValueError, SparkError):
        return False


def lies(value: Any, lie: Any) -> Iterator[tuple[str, Any]]:
    """(field, the value with a lie in one place), for all places; also as the name of an entry."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name, {**value, name: lie}
            for place, made in lies(inner, lie):
                yield f"{name}.{place}", {**value, name: made}
        if isinstance(lie, str):
            yield "", {**value, lie: next(iter(value.values()), "")}
    elif isinstance(value, list):
        for place, made in lies(value[0], lie):
            yield place, [made]


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (*texts(key), *texts(item))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts(item)


def harmless(answer: Any) -> bool:
    plain = {name: value for name, value in document.plain(answer).items() if name != "diff"}
    return all(
        text.replace("\n", "").replace("\t", "").isprintable() and "ProxyCommand id\n" not in text
        for text in texts(plain)
    )


NODE_INFO = "node_info"  # a public module: what it returns is no answer of a call


def answer_type(name: str) -> Any:
    return node.Node if name == NODE_INFO else calls.answer_type(name)


def taken(name: str, answer: Any) -> Any:
    if name != NODE_INFO:
        return calls.read(name, answer, LIAR)
    told = node.read({"node": answer}, LIAR)
    return told.node if told else None


@pytest.mark.parametrize("name", [*calls.CALLS, NODE_INFO])
def test_a_true_answer_comes_in_unchanged_and_a_lie_does_not_come_in(name: str) -> None:
    true = json.loads(json.dumps(sample(answer_type(name), name)))
    read = document.plain(taken(name, true))
    assert {key: value for key, value in read.items() if key not in ("diff", "outputs")} == {
        key: value for key, value in true.items() if key not in ("diff", "outputs")
    }
    for lie in LIES:
        for place, answer in lies(true, lie):
            try:
                found = taken(name, answer)
            except SparkError as exc:
                said = str(exc)
                assert exc.where == LIAR and place.rpartition(".")[2] in said, (place, lie, said)
                assert strict.words(said) == said or len(said) > strict.MAX_WORDS, (place, lie, said)
            else:
                assert harmless(found), (place, lie)


# --- planners ---------------------------------------------------------------------------------------------------------

HOSTS = ("spark1", LIAR, "spark3")


def readable(shape: Any, host: str) -> Any:
    """What a planner's reader understands of a host."""
    if isinstance(shape, str):
        return sample(answer_type(shape), shape)
    if isinstance(shape, list):
        return {"results": [readable(shape[0], host)]}
    if isinstance(shape, Mapping):
        return {name: readable(inner, host) for name, inner in shape.items()}
    if shape in (fabric_fact.load, fabric_fact.read):
        return {**OF_PARSERS[apply._fact], "host": host}
    if shape in READ:
        return READ[shape]
    return sample(shape.__closure__[0].cell_contents, "")  # of reader_of


READ: Mapping[Any, Any] = {
    planner.ours: "x",
    node.read: {"node": sample(node.Node, "")},
    plan_document.read: PLAN.as_dict(),
    verdict._plan: PLAN.as_dict(),
    access._in_words: {"msg": "x"},
    fabric._gids: [sample(Gid, "")],
    qos._read: sample(qos.Qos, ""),
    doctor.read_observation: sample(answer_type("observation"), ""),
    cluster.read: status_said(),
}


def lied(shape: Any, value: Any) -> Iterator[Any]:
    """The value with a lie in its place, or in one of its fields; what the inventory says of a host is no lie."""
    if shape is planner.ours:
        return
    if isinstance(shape, Mapping):
        for name, inner in shape.items():
            yield from ({**value, name: lie} for lie in lied(inner, value[name]))
        return
    if isinstance(shape, list):
        yield from ({"results": [lie]} for lie in lied(shape[0], value["results"][0]))
        return
    kinds = (7, "x\n    ProxyCommand id\n#", ["x\n"])
    yield from kinds
    if isinstance(value, dict):
        yield from ({**value, name: lie} for name, lie in zip(value, itertools.cycle(kinds)))


@pytest.mark.parametrize("name", [name for name, made in PLANNERS.items() if made.gathered])
def test_a_lie_of_one_node_changes_nothing_for_the_others_and_is_told_with_its_host(name: str) -> None:
    gathered = PLANNERS[name].gathered
    known: dict[str, Any] = {}
    reading = replace(PLANNERS[name], make=lambda options: known.update(options) or {}, spec={}, same=())
    true = {host: {option: readable(shape, host) for option, shape in gathered.items()} for host in HOSTS}

    def run(hostvars: Mapping[str, Any]) -> str:
        known.clear()
        variables = {"ansible_play_hosts": HOSTS, "ansible_play_hosts_all": HOSTS, "hostvars": hostvars}
        places = {
            option: {inner: f"{option}.{inner}" for inner in shape} if isinstance(shape, Mapping) else option
            for option, shape in gathered.items()
        }
        return str(planner.run(name, reading, places, variables).get("msg", ""))

    assert run(true) == ""
    read = dict(known)
    for option, shape in gathered.items():
        for lie in lied(shape, true[LIAR][option]):
            said = run({**true, LIAR: {**true[LIAR], option: lie}})
            told = re.findall(r"^  \d+\. (\S+?):? ", said, re.MULTILINE)
            assert told == ([LIAR] if said else []), (lie, said)
            if not said:
                assert [known[option][host] == read[option][host] for host in HOSTS if host != LIAR] == [True] * 2, lie


@pytest.mark.parametrize("name", calls.CALLS)
def test_the_summary_of_a_run_can_read_every_answer(name: str) -> None:
    """It reads what layers registered, whichever call that was: no field means two things."""
    document.load_known(collect.Told, sample(answer_type(name), ""))
