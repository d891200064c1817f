# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node's Python environment is asked before it is used as it is."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

ROLE = pathlib.Path(__file__).resolve().parents[2] / "roles/ray"


def asked(site: pathlib.Path, installed: dict[str, str], *words: str) -> str:
    for name, version in installed.items():
        place = site / f"{name}-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    # Isolated from what this interpreter has itself.
    start = f"import sys; sys.path = [p for p in sys.path if 'site-packages' not in p] + [{str(site)!r}]\n"
    source = (ROLE / "files/missing_requirements.py").read_text()
    command = [sys.executable, "-I", "-c", start + source, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


GPU = ["vllm==0.33.0", "ray[default]==2.60.0"]


@pytest.mark.parametrize(
    ("installed", "requirements", "oldest", "says"),
    [
        ({"vllm": "0.33.0", "ray": "2.60.0"}, GPU, ["2.52"], "complete"),
        ({"vllm": "0.33.0+cpu", "ray": "2.52.0"}, ["vllm==0.33.0", "ray"], ["2.52"], "complete"),
        ({"vllm": "0.33.0", "ray": "3.0"}, ["vllm==0.33.0"], ["2.52"], "complete"),
        ({"vllm": "0.33.0"}, ["vllm==0.33.0"], [""], "complete"),
        ({"vllm": "0.33.0", "ray": "2.40.0"}, ["vllm==0.33.0"], [], "complete"),
        ({"vllm": "0.33.0", "ray": "2.40.0"}, ["vllm==0.33.0", "ray"], ["2.52"], "ray>=2.52 (installed: 2.40.0)"),
        ({"ray": "2.9.3"}, [], ["2.52"], "ray>=2.52 (installed: 2.9.3)"),
        ({"vllm": "0.33.0"}, ["vllm==0.33.0"], ["2.52"], "ray>=2.52 (installed: none)"),
        ({"ray": "2.60.0"}, GPU, ["2.52"], "vllm==0.33.0 (installed: none)"),
        (
            {"vllm": "0.33.0", "ray": "2.40.0"},
            GPU,
            ["2.52"],
            "ray[default]==2.60.0 (installed: 2.40.0)\nray>=2.52 (installed: 2.40.0)",
        ),
    ],
)
def test_an_environment_that_is_there(tmp_path, installed, requirements, oldest, says):
    assert asked(tmp_path, installed, json.dumps(requirements), *oldest) == says
