# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The locks of the engines' Python environments against what the role asks pip for."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("hashed_lock", ROOT / "tools/hashed_lock.py")
hashed_lock = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(hashed_lock)
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
    locked = lines(LOCKS / f"{wanted[0].replace('==', '-')}.txt")
    pinned = [line.partition(" ")[0] for line in locked]
    assert {re.sub(r"\[.*\]", "", requirement) for requirement in wanted} <= set(pinned)
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*==[A-Za-z0-9.+!]+", line) for line in pinned)
    # Else pip takes what an index has today.
    assert [line for line in locked if not re.fullmatch(r"\S+( --hash=sha256:[0-9a-f]{64})+", line)] == []
    names = [line.partition("==")[0] for line in pinned]
    assert names == sorted(set(names)) and len(names) > 100


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_locked_engine_has_its_option_table(source):
    for requirement in lines(source):
        table = re.sub(r"\[.*\]", "", requirement).replace("==", "-")
        assert (ROOT / f"plugins/plugin_utils/_engine/versions/{table}.json").exists(), "make locks"


# Distributions that own the same files: pip installs both, and the last one wins.
ONE_OF = (
    {"opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless"},
    {"pynvml", "nvidia-ml-py"},
    {"triton", "pytorch-triton", "triton-nightly"},
    {"flash-attn", "flash-attn-3"},
    {"nvidia-nccl-cu12", "nvidia-nccl-cu13"},
    {"nvidia-cudnn-cu12", "nvidia-cudnn-cu13"},
    {"nvidia-cusparselt-cu12", "nvidia-cusparselt-cu13"},
    {"nvidia-nvshmem-cu12", "nvidia-nvshmem-cu13"},
    {"jwt", "pyjwt"},
    {"crypto", "pycrypto", "pycryptodome"},
    {"dotenv", "python-dotenv"},
)


@pytest.mark.parametrize("lock", sorted(LOCKS.iterdir()), ids=lambda path: path.stem)
def test_no_two_packages_own_the_same_files(lock):
    versions = dict(line.partition(" ")[0].split("==") for line in lines(lock))
    assert [sorted(names & set(versions)) for names in ONE_OF if len(names & set(versions)) > 1] == []
    # Before 12.8 cuda-python was not made of others, and had the files of cuda-bindings itself.
    both = {name: versions.get(name, "").split(".")[:2] for name in ("cuda-python", "cuda-bindings")}
    assert "cuda-python" not in versions or both["cuda-python"] == both["cuda-bindings"]


def test_a_lock_is_made_of_wheels_alone():
    made = hashed_lock.line({"name": "a", "version": "1", "wheels": [{"hashes": {"sha256": s}} for s in ("f0", "1e")]})
    assert made == "a==1 --hash=sha256:1e --hash=sha256:f0"
    with pytest.raises(SystemExit, match=r"b 2 has no wheel"):
        hashed_lock.line({"name": "b", "version": "2", "sdist": {}})


def test_the_default_environment_has_a_lock():
    defaults = yaml.safe_load((ROOT / "roles/engine/defaults/main.yml").read_text())["engine_venv_requirements"]
    assert defaults == lines(ROOT / "requirements/engine-vllm.in")
