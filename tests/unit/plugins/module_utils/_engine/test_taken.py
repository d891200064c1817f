# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan, taken
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Taken
from engine_plans import PLAN

GIB = 1024**3
UNIT = "sparkmatrix-engine.service"


@pytest.fixture
def memory(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "run/sparkmatrix").mkdir(parents=True)

    def available(gib):
        (tmp_path / "proc/meminfo").write_text(f"MemAvailable: {gib * 1024**2} kB\n")

    available(110)
    return available


def test_what_a_node_gives_up_for_a_service(tmp_path, memory):
    machine = Machine(str(tmp_path))
    assert taken.by(UNIT, machine) == 0
    taken.note([UNIT], machine)
    memory(30)
    taken.note(["another.service"], machine)
    assert taken.by(UNIT, machine) == 80 * GIB
    assert taken.forget(machine, check_mode=True) and taken.by(UNIT, machine)
    memory(120)  # somebody else has ended meanwhile
    assert taken.by(UNIT, machine) == 0
    assert taken.forget(machine) and not taken.forget(machine)


@pytest.mark.parametrize("damaged", ["[", "[]", '{"sparkmatrix-engine.service": "much"}', '{"x": -1}'])
def test_a_damaged_note_tells_nothing(tmp_path, memory, damaged):
    (tmp_path / taken.NOTED.lstrip("/")).write_text(damaged)
    assert taken.by(UNIT, Machine(str(tmp_path))) == 0


def test_it_is_kept_with_the_plan_as_it_was_first(tmp_path):
    root = str(tmp_path)
    service = PLAN.here[0]
    kept_plan.keep(kept_plan.replace(PLAN, took={service.instance: 7}), root)
    kept_plan.keep(kept_plan.replace(PLAN, took={service.instance: 9}, image_ids={"x": "sha256:2"}), root)
    assert kept_plan.taken_here(root) == (Taken(service.recipe, service.image, service.nodes, 7),)
    assert kept_plan.taken_here(f"{root}/none") == ()
