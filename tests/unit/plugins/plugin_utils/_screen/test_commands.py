# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import commands
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen.commands import Commands

HERE = Commands(".venv/bin/ansible-playbook", "", "-i inventories/mine -K", ("site", "verify"), ("start", "site"))


def test_commands_are_as_this_run_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [f"{tmp_path}/venv/bin/ansible-playbook"])
    made = commands.typed([f"{tmp_path}/inventories/mine", "10.0.0.1,"], ask_sudo=True)
    assert made.program == "venv/bin/ansible-playbook"
    assert made.options == "-i inventories/mine -i 10.0.0.1, -K"
    assert (
        made.folder.endswith("/") and {"site", "verify"} <= set(made.top) and {"start", "preflight"} <= set(made.others)
    )
    monkeypatch.setattr("shutil.which", lambda _name: f"{tmp_path}/venv/bin/ansible-playbook")
    assert commands.typed([]).program == "ansible-playbook"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Run the fabric layer again: ansible-playbook site.yml --tags fabric.",
            "Run the fabric layer again: .venv/bin/ansible-playbook site.yml -i inventories/mine -K --tags fabric.",
        ),
        (
            "Start it: ansible-playbook playbooks/start.yml",
            "Start it: .venv/bin/ansible-playbook playbooks/start.yml -i inventories/mine -K",
        ),
        ("or run start.yml", "or run .venv/bin/ansible-playbook playbooks/start.yml -i inventories/mine -K"),
        (
            "then: ansible-playbook playbooks/start.yml -i new",
            "then: .venv/bin/ansible-playbook playbooks/start.yml -i new",
        ),
        *(
            (text, text)
            for text in (
                "site.yml: 2 nodes serve",
                "the next site.yml brings what it says",
                ".venv/bin/ansible-playbook site.yml -i other",
                "ansible-playbook mine.yml",
                "playbooks/start.yml starts it",
            )
        ),
    ],
)
def test_what_is_told_can_be_typed(said: str, told: str) -> None:
    assert HERE.whole(said) == told
    assert HERE.whole(told) == told


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ansible-playbook site.yml qwen3-8b", "sparkmatrix -i two up qwen3-8b"),
        ("Undo: ansible-playbook playbooks/reset.yml", "Undo: sparkmatrix -i two undo"),
        ("again: ansible-playbook site.yml --tags fabric.", "again: sparkmatrix -i two ansible site --tags fabric."),
        ("or run start.yml", "or run sparkmatrix -i two start"),
        ("all of it: add -e engine_plan_details=true", "all of it: add --details"),
        ("More of some: -e recipes_search=coding, or", "More of some: sparkmatrix -i two models coding, or"),
        ("ansible-playbook playbooks/plan.yml -i INVENTORY -e engine_recipe=NAME", "sparkmatrix -i two plan NAME"),
        (
            "ansible-playbook playbooks/plan.yml -i inventories/3spark_ring -e x=1",
            "sparkmatrix -i two plan --nodes 3 -e x=1",
        ),
        ("ansible-playbook playbooks/node_add.yml -e x=1", "sparkmatrix -i two ansible node_add -e x=1"),
        ("playbooks/recipes.yml says which fit", "'sparkmatrix -i two models' says which fit"),
        ("or playbooks/bootstrap.yml --ask-pass", "or sparkmatrix -i two ansible bootstrap --ask-pass"),
        ("~/clone/playbooks/plan.yml is a file", "~/clone/playbooks/plan.yml is a file"),
    ],
)
def test_the_command_is_told_by_its_verbs(monkeypatch: pytest.MonkeyPatch, said: str, told: str) -> None:
    monkeypatch.setenv("SPARKMATRIX_COMMAND", "sparkmatrix -i two")
    assert commands.typed(["/home/me/sparkmatrix/two"], ask_sudo=True).whole(said) == told
