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
import subprocess
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
    stamp, environment = cache / f".{NAME}.stamp", cache / NAME
    if stamp.exists() and stamp.read_text() == fingerprint():
        print(f"The environment of the chat page in {cache} is up to date")
        return
    stamp.unlink(missing_ok=True)
    shutil.rmtree(environment, ignore_errors=True)
    engine_env.run(
        [str(cache / f"python/bin/python{engine_env.VERSION}"), "-m", "venv", "--symlinks", str(environment)]
    )
    engine_env.step(f"Install {package()}", lambda: install(environment))
    engine_env.step("Compile", lambda: compile_all(environment))
    relocate(cache, environment)
    stamp.write_text(fingerprint())


def install(environment: pathlib.Path) -> None:
    """PyTorch first, and held: its build on PyPI pulls gigabytes of CUDA libraries."""
    pip = [
        str(environment / f"bin/python{engine_env.VERSION}"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--no-input",
    ]
    pip += ["install", "--no-compile", "--no-warn-script-location", "--only-binary", ":all:", "--quiet"]
    torch = engine_env.requirements()[0]
    try:
        engine_env.run([*pip, "--no-index", torch, "--no-deps"])
    except engine_env.BuildError:
        engine_env.run([*pip, "--index-url", engine_env.TORCH_INDEX, torch])
    held = environment / "held.txt"
    held.write_text(f"{torch}\n")
    engine_env.run([*pip, "--constraint", str(held), package()])


def compile_all(environment: pathlib.Path) -> None:
    """The nodes cannot write beside the sources. Templates of other languages among them are no valid Python."""
    python = str(environment / f"bin/python{engine_env.VERSION}")
    words = [python, "-m", "compileall", "-q", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    # Some files of packages are for other Pythons, and do not compile.
    subprocess.run(
        [*words, str(environment / "lib")], env=engine_env.clean_environment(), check=False, capture_output=True
    )


def relocate(cache: pathlib.Path, environment: pathlib.Path) -> None:
    """What names the place of the environment names the one on the nodes."""
    link = environment / f"bin/python{engine_env.VERSION}"
    link.unlink()
    link.symlink_to(f"../../python/bin/{link.name}")
    for path in (environment / "bin/open-webui", environment / "pyvenv.cfg"):
        path.write_text(path.read_text().replace(str(cache), engine_env.NODE_ROOT))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
