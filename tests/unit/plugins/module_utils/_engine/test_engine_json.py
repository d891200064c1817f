# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json as d
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Settings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Member

UNIT = "sparkmatrix-engine.service"
MADE = d.Description(
    host="127.0.0.1",
    port=8000,
    model="m",
    key_file="/key",
    units=("sparkmatrix-ray.service", UNIT),
    members=(Member("spark2", 1, "b", False, True), Member("spark1", 0, "a", True, True)),
    unit=UNIT,
    ray=d.Ray("/python", "", "a:6379", {"A": "b"}, "user"),
    keeper=Settings(hang_s=7),
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    path.write_text(json.dumps(MADE.as_dict()))
    assert d.read(str(path)) == MADE
    assert [member.host for member in MADE.ordered] == ["spark1", "spark2"]


def test_a_node_without_one(tmp_path: Path) -> None:
    with pytest.raises(SparkError, match=r"takes part in no engine.*Run the engine layer"):
        d.read(str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": 2}, "schema 2, this release reads 1"),
        ({"unit": "x.service"}, "x.service is not among the units"),
        ({"members": []}, "there are no members"),
        ({"keeper": {"of_another_release": 1}}, "unknown keys: keeper.of_another_release"),
    ],
)
def test_what_does_not_fit_is_refused_with_words(changes: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError), match=says):
        d.parse({**MADE.as_dict(), **changes})
