# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The files of models that take each other's place."""

from __future__ import annotations

import argparse
import io
import json
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import at_hand, switch
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Model
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.switch import Wanted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import service_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render.service_files import Marks, Settings
from engine_plans import node_plans
from fake_machine import Killed

ONE, OTHER, CONTAINER = "qwen3-8b", "other", "contained"
UNIT = "/etc/systemd/system/sparkmatrix-engine.service"
IMAGE = "x/y:v0.33.0"


def rendered():
    plan = node_plans()["spark1"]
    other = node_plans(served_model_name=OTHER, context=4096)["spark1"].here[0]
    contained = node_plans(served_model_name=CONTAINER, runtime="container", image=IMAGE)["spark1"].here[0]
    return service_files.node(replace(plan, at_hand=(other, contained), identity="abc"), Settings(), Marks())


RENDERED = rendered()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(managed_files._Set, "_identifier", lambda *_asked: 0)
    monkeypatch.setattr(managed_files.os, "fchown", lambda *_asked: None)
    made = Machine(str(tmp_path), runner=lambda _argv: Completed(0))
    files = [File(path, text.encode()) for path, text in RENDERED.files.items()]
    managed_files.apply_set("engine", files, root=made.root)
    return made


def in_place(machine):
    """The model of which all files are where they belong; empty where that is none of them."""
    for one in at_hand.listed(machine).values():
        if all(machine.content(path) == content.encode() for path, content in one.files.items()):
            return one.model
    return ""


def wanted(model=OTHER, plan="abc"):
    return Wanted(plan, model)


def test_a_run_leaves_the_files_of_all_models_and_those_of_one_in_place(machine):
    found = at_hand.listed(machine)
    assert list(found) == [CONTAINER, OTHER, ONE]
    assert in_place(machine) == ONE
    assert {one.plan for one in found.values()} == {"abc"}
    assert found[CONTAINER].needs == (IMAGE,)
    assert found[ONE].needs == ("/opt/sparkmatrix/engine/bin/vllm",)
    # What is started is what would be started if it were the only one.
    assert found[ONE].files[UNIT] == RENDERED.files[UNIT]
    assert RENDERED.units == ["sparkmatrix-engine.service", "sparkmatrix-keeper.service"]


def test_without_models_by_name_nothing_is_there_that_was_not():
    plain = service_files.node(node_plans()["spark1"], Settings(), Marks())
    assert not any("/models/" in path for path in plain.files)


@pytest.mark.parametrize("model", [OTHER, CONTAINER])
def test_one_takes_the_place_of_the_other_and_back_and_undo_gives_everything_back(machine, tmp_path, model):
    before = managed_files.fingerprints(root=machine.root)
    assert switch.place(wanted(model), machine)
    assert in_place(machine) == model
    assert not switch.place(wanted(model), machine)
    compose = tmp_path / "etc/sparkmatrix/engine/compose.yml"
    assert compose.exists() == (model == CONTAINER)
    assert switch.place(wanted(ONE), machine)
    assert managed_files.fingerprints(root=machine.root) == before
    assert not compose.parent.exists()
    managed_files.remove_set("engine", root=machine.root)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and "run" not in path.parts]


@pytest.mark.parametrize("model", [OTHER, CONTAINER])
def test_killed_at_any_step_it_is_one_of_both_or_none_and_the_next_one_puts_it_in_place(machine, monkeypatch, model):
    """The set says at any moment what was there before it, so undo gives back everything at any moment, too."""
    steps, last = [], [10**6]

    def step(_disk, what, path):
        steps.append((what, path))
        if len(steps) > last[0]:
            raise Killed

    monkeypatch.setattr(managed_files._Disk, "step", step)
    switch.place(wanted(model), machine)
    whole = len(steps)
    assert whole >= 9
    seen = set()
    for number in range(whole):
        last[0] = 10**6
        switch.place(wanted(ONE), machine)
        steps.clear()
        last[0] = number
        with pytest.raises(Killed):
            switch.place(wanted(model), machine)
        last[0] = 10**6
        seen.add(in_place(machine))
        assert set(at_hand.listed(machine)) == {ONE, OTHER, CONTAINER}
        switch.place(wanted(ONE if number % 2 else model), machine)
        assert in_place(machine) == (ONE if number % 2 else model)
    assert {ONE, ""} <= seen <= {ONE, "", model}
    managed_files.remove_set("engine", root=machine.root)
    assert not at_hand.listed(machine)


def document(**changes):
    values = json.loads(RENDERED.files[at_hand.path(OTHER)])
    values.update(changes)
    values["digest"] = changes.get("digest", at_hand._digest(values))
    return json.dumps(values).encode()


ROOT_UNIT = {"/etc/systemd/system/other.service": "x"}
FILES = json.loads(RENDERED.files[at_hand.path(OTHER)])["files"]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "no JSON"),
        (b"[]", "no object"),
        (document(schema=2), "schema 2"),
        (document(digest="0" * 64), "not what was written"),
        (document(more=1), "unknown keys: more"),
        (document(files={**FILES, **ROOT_UNIT}), "other.service is no file of an engine"),
        (document(files={**FILES, "/etc/sparkmatrix/../passwd": "x"}), "no file of an engine"),
        (document(files={**FILES, "/etc/sparkmatrix/engine-key.env": "x"}), "no file of an engine"),
        (document(files={UNIT: "x"}), "engine.json' is missing"),
        (document(model="third"), "they are of third"),
        (document(plan="a b"), "plan"),
        (b" " * (at_hand.MAX_BYTES + 1), "more than"),
    ],
)
def test_a_document_that_was_not_written_by_a_run_is_refused(machine, tmp_path, content, found):
    where = tmp_path / at_hand.path(OTHER).lstrip("/")
    where.write_bytes(content)
    with pytest.raises(SparkError, match=found):
        switch.place(wanted(), machine)
    assert in_place(machine) == ONE
    assert OTHER not in at_hand.listed(machine)


@pytest.mark.parametrize(
    "text",
    ["", "other", '{"model": "other"}', '{"model": "a\\nb", "plan": "x"}', '{"model":"a","plan":"b","c":1}', "[]"],
)
def test_who_asks_for_a_model_names_it_and_its_plan_and_nothing_else(text):
    with pytest.raises(SparkError, match="no request for a model"):
        switch.wanted(text)
    assert switch.wanted(wanted().text) == wanted()


def test_what_is_not_there_is_found_before_anything_is_stopped(machine, tmp_path):
    with pytest.raises(SparkError, match="no files of fourth"):
        switch.check(wanted("fourth"), machine)
    with pytest.raises(SparkError, match="of another run"):
        switch.check(wanted(plan="abd"), machine)
    with pytest.raises(SparkError, match="of another run"):
        switch.place(wanted(plan="abd"), machine)
    with pytest.raises(SparkError, match="program of its environment"):
        switch.check(wanted(), machine)
    with pytest.raises(SparkError, match="not have its image"):
        switch.check(wanted(CONTAINER), replace(machine, runner=lambda _argv: Completed(1)))
    program = tmp_path / "opt/sparkmatrix/engine/bin/vllm"
    program.parent.mkdir(parents=True)
    program.write_text("")
    with pytest.raises(SparkError, match="not on this node"):  # its weights
        switch.check(wanted(), machine)
    weightless = replace(at_hand.read(OTHER, "abc", machine), reads=(Model("/nonexistent"),))
    (tmp_path / at_hand.path(OTHER).lstrip("/")).write_text(weightless.text)
    with pytest.raises(SparkError, match="nothing at this path"):
        switch.check(wanted(), machine)


def test_the_program_says_what_is_wrong(monkeypatch, capsys):
    given = io.TextIOWrapper(io.BytesIO(b"nothing"))
    monkeypatch.setattr("sys.stdin", given)
    assert switch.run(argparse.Namespace(action="check")) == 1
    assert "no request for a model" in capsys.readouterr().err
