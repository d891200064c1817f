# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``make env`` on machines with other Pythons: stand-ins on PATH that note what they are asked to install."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = "bash env dirname sha256sum cut cat rm mkdir awk ls ln grep id cp chmod"
PYTHON = """#!/usr/bin/env bash
case "$*" in
  "-c import sys; sys.exit("*) case "$2" in *"'{version}'"*) exit 0 ;; *) exit 1 ;; esac ;;
  "-c import ensurepip, venv") exit {without_venv} ;;
  "-c import platform"*) echo "has {version}.9" ;;
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-m pip "*) echo "$*" >> "$NOTED" ;;
  *) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""


@pytest.fixture
def make(tmp_path: Path):
    checkout = tmp_path / "checkout"
    for name in ("tests/tools", "requirements"):
        shutil.copytree(ROOT / name, checkout / name)
    path = tmp_path / "bin"
    path.mkdir()
    for name in TOOLS.split():
        (path / name).symlink_to(shutil.which(name) or name)

    def run(*versions: str, words: tuple[str, ...] = (), venvs: bool = True) -> subprocess.CompletedProcess[str]:
        for version in versions:
            for name in (f"python{version}", "python3"):
                program = path / name
                program.write_text(PYTHON.format(version=version, without_venv=0 if venvs else 1))
                program.chmod(0o755)
        environment = {"PATH": str(path), "HOME": str(tmp_path), "NOTED": str(tmp_path / "pip")}
        command = [str(checkout / "tests/tools/make_envs"), *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


def asked(tmp_path: Path) -> list[str]:
    noted = tmp_path / "pip"
    return noted.read_text().splitlines() if noted.exists() else []


@pytest.mark.parametrize("version", ["3.13", "3.14"])
def test_a_later_python_is_enough_for_a_controller(make, tmp_path, version):
    done = make(version)
    assert done.returncode == 0, done.stderr
    assert asked(tmp_path)[0].endswith(
        "--constraint requirements/dev-py312.txt ansible click --requirement requirements.txt"
    )
    assert (tmp_path / "checkout/.venv/bin/python").is_file()
    assert "without the test tools" in done.stdout


@pytest.mark.parametrize(("version", "env"), [("3.11", ".venv"), ("3.12", ".venv-py312")])
def test_the_pythons_of_the_tests_get_their_lock(make, tmp_path, version, env):
    done = make(version)
    assert done.returncode == 0, done.stderr
    assert asked(tmp_path)[0].endswith(f"--requirement requirements/dev-py{version.replace('.', '')}.txt")
    assert (tmp_path / "checkout/.venv/bin/python").is_file()
    assert (tmp_path / "checkout" / env).is_dir()


@pytest.mark.parametrize(("versions", "has"), [(("3.10",), "has 3.10.9"), ((), "has none")])
def test_without_a_python_that_fits_one_sentence_says_what_to_install(make, tmp_path, versions, has):
    done = make(*versions)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"Ansible needs Python 3.11 or later, and this machine {has}: install it (Ubuntu 22.04"
    )
    assert len(done.stderr.splitlines()) == 1
    assert not asked(tmp_path)
