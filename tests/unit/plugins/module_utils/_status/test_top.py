# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix top``: rates from two samples, of nodes that are not trusted."""

from __future__ import annotations

import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.gpu import Clocks
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.hardware import Memory
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.metrics import Work
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.counters import Moved
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import Service, Snapshot
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import every_node, top
from fake_machine import Printed
from module_runner import arguments, run_program

GIB = top.GIB
GPU = Clocks(96, 71, 2405, ("hardware power brake",), 60.5)


def snapshot(at, available, moved, work):
    service = Service("", "sparkmatrix-engine.service", "m", work=work)
    memory = Memory(120 * GIB, available * GIB)
    return Snapshot("spark1", memory, (service,), at, 3.2, GPU, {"enp1s0f0np0": moved})


BEFORE = snapshot(10.0, 24, Moved(0, 10**9), Work(100.0))
NOW = snapshot(12.0, 20, Moved(10**9, 10**9), Work(147.0, running=2.0))


def test_rates_of_two_samples():
    found = top.figures(BEFORE, NOW)
    assert found["halves"] == {"enp1s0f0np0": {"in_gbps": 4.0, "out_gbps": 0.0}}
    assert found["services"] == {"engine": {"tokens_per_s": 23.5, "running": 2.0}}
    assert (found["memory_total_gib"], found["memory_available_gib"]) == (120.0, 20.0)
    restarted = top.figures(NOW, BEFORE)
    assert restarted["services"]["engine"]["tokens_per_s"] == 0.0


def test_the_frame():
    found = {"nodes": {"spark1": top.figures(BEFORE, NOW), "spark2": {"problem": "no route"}}}
    assert top.lines(found) == [
        "spark1     memory 100.0 of 120.0 GiB, load 3.2, GPU 96 % 2405 MHz 71 C 60 W (hardware power brake)",
        "           enp1s0f0np0     in    4.0  out    0.0 Gb/s",
        "           engine: 23.5 tokens/s, 2 running",
        "spark2     not known: no route",
    ]
    assert "tokens not counted" in top._service({"tokens_per_s": None, "cache": 0.5})


def test_a_node_without_anything(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text("0.50 0.4 0.3 1/2 3\n")
    machine = Machine(str(tmp_path), lambda _argv: Completed(127), clock=lambda: 7.0, sleep=lambda _s: None)
    said = []
    top.tell(machine, 2, said.append)
    assert len(said) == 2
    assert json.loads(said[0]) == {**document.plain(Snapshot("", at=7.0)), "load": 0.5}


@pytest.mark.parametrize(
    "lie",
    [
        {},
        {"host": "a", "moved": 5},
        {"host": "a", "clocks": {"busy": "\x1b[2J"}},
        {"host": "a", "load": float("nan")},
        {"host": "a", "at": 10**400},
        {"host": "a", "moved": {"a": {"received": 1, "sent": "x"}}},
    ],
)
def test_a_node_that_says_something_else_is_not_known(lie):
    stream = every_node.Stream("spark2", ["x"], lambda _argv, **_kw: Printed(json.dumps(lie) + "\n", 1))
    latest = top.Latest({"spark2": False})
    stream.read(latest.take)
    assert not latest.seen["spark2"] and stream.problem


def test_what_it_says_does_nothing_to_a_terminal():
    told = {"host": "", "moved": {"a\x1b\nb": {}}, "clocks": {"slowed": ["heat\nspark1 down"]}}
    read = document.load(Snapshot, told)
    shown = top.lines({"nodes": {"spark2": top.figures(read, read)}})
    assert len(shown) == 2 and all(line.isprintable() for line in shown)


@pytest.mark.parametrize(("words", "says"), [(("--once",), "in    4.0"), (("--json",), '"in_gbps": 4.0')])
def test_one_frame_with_a_node_that_is_silent(capsys, words, says):
    text = "".join(json.dumps(document.plain(one)) + "\n" for one in (BEFORE, NOW))
    streams = [
        every_node.Stream("spark1", ["x"], lambda _argv, **_kw: Printed(text, 1)),
        every_node.Stream("spark2", ["x"], lambda _argv, **_kw: Printed("no route\n", 1)),
    ]
    streams[0].read = lambda take: [take("spark1", document.plain(one)) for one in (BEFORE, NOW)]
    assert top.show(arguments(top, *words), {"spark1": True, "spark2": False}, streams) == 1
    shown = capsys.readouterr().out
    assert says in shown and "no route" in shown


def test_only_root(monkeypatch, capsys):
    monkeypatch.setattr(top.os, "geteuid", lambda: 1000)
    assert run_program(top) == 1
    assert "sudo sparkmatrix top" in capsys.readouterr().err
