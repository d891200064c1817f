#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Build the chat page of the lab once: the real package open-webui, on the Python of the engine environment.

``web_ui_env.py --cache DIR`` makes ``DIR/web-ui``, beside what ``engine_env.py`` has made, and leaves it alone when
nothing has changed since. It is mounted read-only into every node at ``/opt/sparkmatrix/web-ui``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import shutil
import sys

import engine_env
import yaml

NAME = "web-ui"
ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULTS = ROOT / "roles/web_ui/defaults/main.yml"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cache", required=True, type=pathlib.Path, help="directory for the result")
    cache = parser.parse_args(argv).cache.resolve()
    os.umask(0o022)
    try:
        with engine_env.lock(cache):
            build(cache)
    except engine_env.BuildError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


def package() -> str:
    """The release that the role has by default."""
    return f"open-webui=={yaml.safe_load(DEFAULTS.read_text())['web_ui_image'].rpartition(':v')[2]}"


def fingerprint() -> str:
    """The Python that it stands on is another one after each build of the engine environment."""
    parts = (package(), engine_env.requirements()[0], engine_env.fingerprint())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def build(cache: pathlib.Path) -> None:
    stamp, place = cache / f".{NAME}.stamp", engine_env.on_cpus(cache, NAME)
    if stamp.exists() and stamp.read_text() == fingerprint():
        print(f"The environment of the chat page in {cache} is up to date")
        return
    stamp.unlink(missing_ok=True)
    shutil.rmtree(place.engine, ignore_errors=True)
    engine_env.run([place.interpreter, "-m", "venv", "--symlinks", place.engine])
    engine_env.step(f"Install {package()}", lambda: install(place))
    engine_env.step("Compile", lambda: engine_env.compile_all(place))
    engine_env.relocate(place)
    stamp.write_text(fingerprint())


def install(place: engine_env.Place) -> None:
    """PyTorch first, and held: its build on PyPI pulls gigabytes of CUDA libraries."""
    pip = engine_env.pip(place)
    torch = engine_env.requirements()[0]
    try:
        engine_env.run([*pip, "--no-index", torch, "--no-deps"])
    except engine_env.BuildError:
        engine_env.run([*pip, "--index-url", engine_env.TORCH_INDEX, torch])
    held = place.engine / "held.txt"
    held.write_text(f"{torch}\n")
    engine_env.run([*pip, "--constraint", held, package()])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
