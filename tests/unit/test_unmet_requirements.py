# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a node's Python environment is asked before it is used as it is."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import runpy
import subprocess
import sys
from unittest import mock

import packaging.requirements
import packaging.utils
import pytest

assert packaging.requirements and packaging.utils  # loaded
ROLE = pathlib.Path(__file__).resolve().parents[2] / "roles/engine"


def asked(site: pathlib.Path, installed: dict[str, str], *words: str, sources: dict[str, str] | None = None) -> str:
    for name, version in installed.items():
        place = site / f"{name}-{version}.dist-info"
        place.mkdir(parents=True)
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if name in (sources or {}):
            (place / "direct_url.json").write_text(sources[name])
    # Isolated from what this interpreter has itself, but for the library, which is loaded.
    said, program = io.StringIO(), str(ROLE / "files/unmet_requirements.py")
    with (
        contextlib.redirect_stdout(said),
        mock.patch.object(sys, "path", [p for p in sys.path if "site-packages" not in p] + [str(site)]),
        mock.patch.object(sys, "argv", [program, *words]),
    ):
        runpy.run_path(program)
    return said.getvalue().strip()


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


@pytest.mark.parametrize("text", [None, "", "Metadata-Version: 2.1\n"])
def test_what_an_interrupted_pip_left_counts_as_nothing(tmp_path, text):
    for left in ("ray-2.60.0.dist-info", "~llm-0.32.0.dist-info"):
        (tmp_path / left).mkdir()
        if text is not None:
            (tmp_path / left / "METADATA").write_text(text)
    told = asked(tmp_path, {"vllm": "0.33.0"}, json.dumps(["vllm==0.33.0", "ray"]))
    assert told == "ray (installed: none)"


def test_the_version_that_pip_moved_aside_does_not_count(tmp_path):
    aside = tmp_path / "~llm-0.32.0.dist-info"
    aside.mkdir()
    (aside / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    assert asked(tmp_path, {"vllm": "0.33.0"}, json.dumps(["vllm==0.33.0"])) == "complete"


WHEEL = "vllm-0.33.0-cp312-abi3-linux_aarch64.whl"
FROM_GIT = (
    '{"url": "https://host/vllm.git", "vcs_info": {"vcs": "git", "requested_revision": "v0.33", "commit_id": "a1"}}'
)
FROM_DIRECTORY = '{"url": "file:///srv/vllm", "dir_info": {}}'


@pytest.mark.parametrize(
    ("requirement", "says"),
    [
        ("vllm>=0.30", "complete"),
        ("vLLM ~= 0.33", "complete"),
        ("vllm>=0.30,!=0.33.0", "vllm>=0.30,!=0.33.0 (installed: 0.33.0)"),
        ('vllm==0.33.0; python_version >= "3.9"', "complete"),
        ('nowhere; python_version < "3"', "complete"),
        ('nowhere; python_version >= "3.9"', 'nowhere; python_version >= "3.9" (installed: none)'),
        (f"/srv/wheels/{WHEEL}", "complete"),
        (f"/srv/wheels/{WHEEL.replace('0.33.0', '0.34.0')}", "/srv/wheels/vllm-0.34.0-cp312-abi3-linux_aarch64.whl"),
        (f"https://user@host/{WHEEL.replace('0.33.0', '0.33.0%2Bcu13')}#sha256=1f", "complete"),
        (f"vllm @ file:///srv/{WHEEL}", "complete"),
        ("vllm @ file:///vllm-0.34-py3-none-any.whl", "vllm @ file:///vllm-0.34-py3-none-any.whl (installed: 0.33.0)"),
        ("vllm @ git+https://token@host/vllm.git@v0.33", "complete"),
        ("git+https://host/vllm.git@v0.33", "complete"),
        ("git+https://host/vllm.git@v0.34", "git+https://host/vllm.git@v0.34"),
        ("/srv/vllm", "complete"),
        ("/srv/vllm/", "complete"),
        ("/srv/ray", "/srv/ray"),
        ("--pre", "complete"),
    ],
)  # fmt: skip
def test_every_form_that_pip_takes(tmp_path, requirement, says):
    """Else a second run installs again, and reports a change."""
    installed = {"vllm": "0.33.0+cu13" if "%2B" in requirement else "0.33.0"}
    source = FROM_DIRECTORY if requirement.startswith("/srv/vllm") else FROM_GIT
    assert asked(tmp_path, installed, json.dumps([requirement]), sources={"vllm": source}) == says


def test_an_environment_whose_making_was_interrupted(tmp_path):
    source = "import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]\n"
    source += (ROLE / "files/unmet_requirements.py").read_text()
    done = subprocess.run([sys.executable, "-I", "-c", source, '["vllm"]'], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "pip"
