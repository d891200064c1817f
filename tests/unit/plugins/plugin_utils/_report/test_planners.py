# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Documents of the head or of a folder, as page and JSON."""

from __future__ import annotations

import json

import pytest
import report_samples as samples
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.store import Kept
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._report.planners import report
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import commands


def written(folder, runs):
    for number, run in enumerate(runs):
        (folder / f"{number}.json").write_text(json.dumps(run.as_dict()))


def test_the_documents_of_a_folder(tmp_path):
    written(tmp_path, samples.degraded())
    made = report({"inventories": [], "folder": str(tmp_path), "kept": {}})
    assert made["headline"] == "example: 1 problem"
    assert made["lines"] == [
        "spark3 rocep1s0f0, spark3 roceP2p1s0f0: A ConnectX-7 has not initialised properly. Reboot both machines of"
        " this cable with the cable plugged in. Do not unplug it: plugging it in while they run is what causes this"
    ]
    found = json.loads(made["json"])
    assert (found["outcome"], found["counts"]["fail"]) == ("fail", 2)
    runs = [document.load(one, "it") for one in found["runs"]]
    assert [run.playbook for run in runs] == ["benchmark", "doctor"]
    # What it has written can be read again.
    again = tmp_path / "again"
    again.mkdir()
    (again / "sparkmatrix-report.json").write_text(made["json"])
    assert report({"inventories": [], "folder": str(again), "kept": {}})["json"] == made["json"]


def test_commands_of_the_page_can_be_copied(tmp_path, monkeypatch):
    """As the screen prints them: with the inventory of this run, from where the user stands."""
    monkeypatch.setattr("sys.argv", ["ansible-playbook"])
    monkeypatch.chdir(commands.__file__.rpartition("/plugins/")[0])
    told = {"check": "mtu", "outcome": "warn", "scope": "node", "found": "MTU 1500", "cause": "wrong_mtu"}
    told |= {"remedy": "ansible-playbook site.yml --tags fabric", "otherwise": "Run playbooks/doctor.yml"}
    (tmp_path / "0.json").write_text(json.dumps({**samples.healthy()[0].as_dict(), "verdicts": [told]}))
    made = report({"inventories": ["inventories/mine"], "folder": str(tmp_path), "kept": {}})
    assert "ansible-playbook site.yml -i inventories/mine --tags fabric" in made["html"]
    assert "Run ansible-playbook playbooks/doctor.yml -i inventories/mine" in made["html"]
    assert "ansible-playbook site.yml -i inventories/mine --tags fabric" in made["lines"][0]
    assert json.loads(made["json"])["runs"][0]["verdicts"][0]["remedy"] == told["remedy"], "kept as it was found"


def test_what_the_head_keeps():
    made = report(
        {
            "inventories": [],
            "folder": "",
            "kept": {"a": Kept(runs=tuple(samples.healthy()), refused=("x.json: damaged",)), "b": Kept()},
        }
    )
    assert made["headline"] == "example: 10 checks passed, no problem" and made["warnings"] == ["x.json: damaged"]
    assert "x.json: damaged" in made["html"]


def test_files_that_are_none_are_named_and_other_clusters_left_out(tmp_path):
    runs = samples.healthy()
    written(tmp_path, runs)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text(json.dumps({**runs[0].as_dict(), "cluster": "other"}))
    (tmp_path / "old.json").write_text(json.dumps({**runs[0].as_dict(), "schema": 0}))
    (tmp_path / "deep.json").write_text("[" * 100000)
    (tmp_path / "large.json").write_text(" " * (4 * 1024 * 1024 + 1))
    warned = report({"inventories": [], "folder": str(tmp_path), "kept": {}})["warnings"]
    for words in (
        "broken.json: this is no JSON",
        "deep.json: this JSON is more than 100 levels deep",
        "4194304 bytes",
        "old.json",
        "cluster other",
    ):
        assert any(words in text for text in warned), words
    assert len(warned) == 5


def test_without_a_run_it_says_which_playbook_makes_one(tmp_path):
    with pytest.raises(
        SparkError, match=r"no run has left its verdicts. Run verify\.yml or playbooks/doctor\.yml first"
    ):
        report({"inventories": [], "folder": "", "kept": {"a": Kept(runs=()), "b": Kept()}})
    with pytest.raises(SparkError, match=r"the head, which keeps the verdicts, was not asked. Run it without --limit"):
        report({"inventories": [], "folder": "", "kept": {"b": Kept()}})
    with pytest.raises(SparkError, match="there is no such folder"):
        report({"inventories": [], "folder": str(tmp_path / "x"), "kept": {}})
