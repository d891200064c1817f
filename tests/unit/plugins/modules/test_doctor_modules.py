# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""node_observation and support_capture as Ansible calls them."""

from __future__ import annotations

import argparse

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.capture import Captured
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import drifting, gpu
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.drifting import Drift
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observation import Observation
from ansible_collections.sparkmatrix.cluster.plugins.modules import node_observation, support_capture
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._support.bundle import unpacked
from module_runner import run_module


def test_a_node_without_an_engine_says_so(monkeypatch):
    asked = []

    def collect(_asked, here):
        asked.append(here)
        raise SparkError("no engine is set up on this node")

    def observe(_machine, wanted):
        asked.append((wanted.days, wanted.gpu, wanted.ask))
        return Observation("spark1")

    monkeypatch.setattr(node_observation, "observe", observe)
    monkeypatch.setattr(node_observation.node, "collect", collect)
    result, failed = run_module(node_observation, {"days": 1, "gpu": True, "here": False})
    assert not failed and not result["changed"]
    assert asked == [(1.0, gpu.measure, True), False]
    assert result["observation"]["host"] == "spark1"
    assert result["status"] == {"schema": 1, "problem": "no engine is set up on this node."}


def test_outputs_leave_the_machine_without_secrets(monkeypatch):
    def capture(_machine, redactor, logs, name):
        return Captured({"ip_link": redactor.redact(f"{name} {logs} hf_abcdefghijklmnop desk-7")}, redactor.counts)

    monkeypatch.setattr(support_capture, "capture", capture)
    wanted = {
        "logs": True,
        "anonymous": True,
        "names": {"desk-7": "spark2"},
        "name": "spark1",
        "key": "a key of the run",
    }
    result, failed = run_module(support_capture, wanted, check=True)
    assert not failed and not result["changed"]
    assert unpacked(result["packed"]) == {"ip_link": "spark1 True (left out) spark2"}
    assert result["counts"] == {"tokens": 1, "names": 1}


@pytest.mark.parametrize("found", [[], [Drift("spark1", "fabric", "the MTU is 1500")]])
def test_the_program_of_a_timer(found, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(drifting, "collect", lambda _machine, _ask: (found, "spark1"))
    monkeypatch.setattr(drifting.os, "geteuid", lambda: 0)
    parser = argparse.ArgumentParser()
    drifting.configure(parser)
    path = tmp_path / "drift.prom"
    assert drifting.run(parser.parse_args(["--metrics", str(path)])) == len(found)
    said = "drift fabric spark1: the MTU is 1500\n" if found else "nothing has drifted\n"
    assert capsys.readouterr().out == said
    assert f'kind="fabric"}} {len(found)}' in path.read_text()
    assert drifting.run(parser.parse_args(["--metrics", str(tmp_path / "no/drift.prom")])) == drifting.NOT_LOOKED
    monkeypatch.setattr(drifting.os, "geteuid", lambda: 1000)
    assert drifting.run(parser.parse_args([])) == drifting.NOT_LOOKED
