# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The locks of the engines' Python environments against what the role asks pip for."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOCKS = ROOT / "roles/engine/files/locks"
SOURCES = sorted(ROOT.glob("requirements/engine-*.in"))


def lines(path):
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


def test_every_lock_has_its_source():
    assert len(SOURCES) == len(list(LOCKS.iterdir())) >= 2


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_lock_holds_what_it_was_made_for_and_pins_the_rest(source):
    wanted = lines(source)
    # Named as the role looks for it.
    pinned = lines(LOCKS / f"{wanted[0].replace('==', '-')}.txt")
    assert {re.sub(r"\[.*\]", "", requirement) for requirement in wanted} <= set(pinned)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[A-Za-z0-9.+!]+", line) for line in pinned)
    names = [line.partition("==")[0] for line in pinned]
    assert names == sorted(set(names)) and len(names) > 100
    assert "certifi" not in names


def test_the_default_environment_has_a_lock():
    defaults = yaml.safe_load((ROOT / "roles/engine/defaults/main.yml").read_text())["engine_venv_requirements"]
    assert defaults == lines(ROOT / "requirements/engine-vllm.in")
