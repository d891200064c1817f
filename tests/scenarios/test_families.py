#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A tiny model of each architecture family that a recipe ships, served by the lab's vLLM on this machine's processors.

Usage: test_families.py [FAMILY ...]

No nodes take part. What the CPU build cannot serve is refused by it, in words that tests/lab/families.py holds.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
import engine_env
from cluster import ROOT


def vision() -> pathlib.Path:
    """torchvision of the lock, which the engine environment does without: only models that see import it."""
    (wanted,) = re.findall(r"^torchvision==\S+", engine_env.LOCK.read_text(), re.MULTILINE)
    target: pathlib.Path = cluster.cache() / wanted.replace("==", "-")
    if not target.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
        made = target.with_suffix(".new")
        subprocess.run(
            [*pip, "--python-version", engine_env.on_cpus(cluster.cache()).version, "--target", str(made), wanted],
            check=True,
        )
        made.rename(target)
    return target


def main() -> int:
    cache = cluster.cache()
    subprocess.run([sys.executable, str(ROOT / "tests/lab/engine_env.py"), "--cache", str(cache)], check=True)
    with tempfile.TemporaryDirectory() as directory:
        environment = {**os.environ, "HOME": directory, "PYTHONPATH": str(vision()), "PYTHONDONTWRITEBYTECODE": "1"}
        python = str(cache / "engine/bin/python")
        command = [python, str(ROOT / "tests/lab/families.py"), str(cache / "models/tiny-llama"), directory]
        done = subprocess.run([*command, *sys.argv[1:]], cwd=directory, env=environment, check=False)
        if done.returncode:
            for log in sorted(pathlib.Path(directory).glob("*.log")):
                print(f"-- {log.stem}\n" + "".join(log.read_text(errors="replace").splitlines(keepends=True)[-15:]))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
