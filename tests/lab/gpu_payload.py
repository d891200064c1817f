#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""All that `make demo GPUS=N` needs, in pieces, for a machine with GPUs and without network.

``gpu_payload.py make DIR`` builds it where there is a network, ``gpu_payload.py unpack DIR`` lays it out over there, in
a checkout of the same commit. The other machine has Linux for x86_64, the driver, root, and a Python 3.12 with PyTorch
for CUDA (``--torch``), which is used as it is: it is ten times as large as all of this.

What comes along: the node image without what nothing here uses, Python, the engine with Ray, Ansible, and the programs
that make nodes (podman, crun, iproute2, ...), each only where the machine has none.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import re
import shutil
import sys

import engine_env
import lab
import node_image
from engine_env import Place, run, step
from labstate import CHECKOUT, cache_dir

LOCK = CHECKOUT / "requirements/lab-gpu-py312.txt"
CONTROLLER_LOCK = CHECKOUT / "requirements/dev-py312.txt"
PIECE_MB = 55
WITHOUT = pathlib.Path(__file__).with_name("gpu_payload_without.txt")  # patterns of tar: what no part needs
LIBRARIES = pathlib.Path("/usr/local/lib/sparkmatrix-lab")
# Of the engine's packages: what comes with PyTorch, and what a text model on a Hopper GPU does not import.
WITH_TORCH = re.compile(
    r"(torch|torchvision|torchaudio|triton|numpy|numba|llvmlite|opencv-python-headless|pillow|sympy|mpmath|networkx"
    r"|nvidia-.*|cuda-.*|hf-xet|ninja|setuptools)$"
)
UNUSED = re.compile(
    r"(flashinfer.*|tilelang|tokenspeed.*|torchcodec|pynvvideocodec|z3-solver|fastsafetensors|quack-kernels|humming.*"
    r"|py-spy|fastapi-cloud-cli)$"
)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="action", required=True)
    making = commands.add_parser("make", help="build the pieces")
    making.add_argument("directory", type=pathlib.Path)
    making.add_argument("--piece-mb", type=int, default=PIECE_MB, help="size of a piece in MB (%(default)s)")
    unpacking = commands.add_parser("unpack", help="lay them out on the machine with the GPUs")
    unpacking.add_argument("directory", type=pathlib.Path)
    unpacking.add_argument("--torch", default="python3", metavar="PYTHON", help="the Python that has PyTorch")
    options = parser.parse_args(argv)
    os.umask(0o022)
    try:
        if options.action == "make":
            make(options.directory, options.piece_mb)
        else:
            unpack(options.directory, options.torch)
    except engine_env.BuildError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


# -- here -------------------------------------------------------------------------------------------------------------


def make(target: pathlib.Path, piece_mb: int) -> None:
    work = cache_dir() / "gpu-payload"
    place = Place(work, "3.12")
    with engine_env.lock(cache_dir()):
        stamp = work / ".stamp"
        wanted = hashlib.sha256(LOCK.read_bytes() + CONTROLLER_LOCK.read_bytes()).hexdigest()
        if not stamp.exists() or stamp.read_text() != wanted:
            shutil.rmtree(work, ignore_errors=True)
            engine_env.make_environment(place)
            step("Install the engine", lambda: install_engine(place))
            step("Install Ansible", lambda: install_controller(place))
            engine_env.relocate(place)
            stamp.write_text(wanted)
        step("Collect programs", lambda: collect_tools(work / "tools"))
        parts = {name: work / name for name in ("tools", "python", "engine", "controller")}
        parts["image"] = node_image.build()
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name, tree in parts.items():
            step(f"Pack {name}", lambda name=name, tree=tree: pack(name, tree, target, piece_mb))
    shutil.copy2(shutil.which("zstd") or "zstd", target / "zstd")
    (target / "image.name").write_text(parts["image"].name)
    pieces = sorted(target.glob("*.zst.*"))
    print(
        f"{len(pieces)} pieces of at most {piece_mb} MB, {sum(p.stat().st_size for p in pieces) / 1e6:.0f} MB: {target}"
    )


def pack(name: str, tree: pathlib.Path, target: pathlib.Path, piece_mb: int) -> None:
    command = (
        f"set -o pipefail; tar -C '{tree}' --numeric-owner --exclude-from '{WITHOUT}' -c . | zstd -q -9 --long=27 -T0"
        f" | split -b {piece_mb}MB -d - '{target / name}.tar.zst.'"
    )
    run(["bash", "-c", command])


def install_engine(place: Place) -> None:
    wanted = []
    for line in LOCK.read_text().splitlines():
        name = re.split(r"[=\[]", line)[0].lower().replace("_", "-")
        if name and not name.startswith("#") and not WITH_TORCH.match(name) and not UNUSED.match(name):
            wanted.append(line)
    run([*engine_env.pip(place), "--no-deps", *wanted])
    engine_env.set_rpath(place)


def install_controller(place: Place) -> None:
    """Ansible with the collections that this one is made on, beside the engine's environment."""
    target = place.top / "controller"
    wanted = ["--constraint", str(CONTROLLER_LOCK), "ansible", "click", "--requirement", f"{CHECKOUT}/requirements.txt"]
    run([*engine_env.pip(place), "--target", target, *wanted])
    for company in (target / "ansible_collections").iterdir():
        if company.is_dir() and company.name not in ("ansible", "community"):
            shutil.rmtree(company)
    for collection in (target / "ansible_collections/community").iterdir():
        if collection.name != "general":
            shutil.rmtree(collection)


def collect_tools(target: pathlib.Path) -> None:
    """The lab's programs and their libraries, as this machine has them."""
    shutil.rmtree(target, ignore_errors=True)
    for name in ("bin", "lib", "containers"):
        (target / name).mkdir(parents=True)
    names = [*(tool for tool in lab.TOOLS if tool != "debootstrap"), "conmon"]
    places = [found for name in names if (found := shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"))]
    if len(places) < len(names):
        raise engine_env.BuildError("The lab's programs are missing here: sudo python3 tests/lab/lab.py setup")
    binaries = [pathlib.Path(found).resolve() for found in places]
    for name, binary in zip(names, binaries):
        shutil.copy2(binary, target / "bin" / name)
    files = [pathlib.Path(path) for path, package in lab.FILES.items() if package not in lab.FOR_THE_IMAGE]
    for path in files:
        (target / "files" / path.relative_to("/")).parent.mkdir(parents=True)
        shutil.copy2(path, target / "files" / path.relative_to("/"))
    for library in engine_env.needed_libraries([*binaries, *files]):
        shutil.copy2(library, target / "lib" / library.name)
    for directory in ("/etc/containers", "/usr/share/containers"):
        for name in ("policy.json", "containers.conf", "seccomp.json"):
            if (source := pathlib.Path(directory, name)).is_file():
                shutil.copy2(source, target / "containers" / name)


# -- over there -------------------------------------------------------------------------------------------------------


def unpack(source: pathlib.Path, torch: str) -> None:
    cache = cache_dir()
    place = engine_env.on_gpus(cache)
    trees = {
        "tools": cache / "gpu-tools",
        "python": place.python,
        "engine": place.engine,
        "controller": CHECKOUT / ".venv-py312/lib/python3.12/site-packages",
        "image": node_image.path(),
    }
    pieces = {name: sorted(source.glob(f"{name}.tar.zst.*")) for name in trees}
    if missing := [name for name, found in pieces.items() if not found]:
        raise engine_env.BuildError(f"{source} has no piece of {', '.join(missing)}: bring all that `make` has made.")
    if (source / "image.name").read_text() != trees["image"].name:
        raise engine_env.BuildError("The pieces are of another commit: make them again in a checkout of this one.")
    for name, tree in trees.items():
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
        step(f"Unpack {name}", lambda tree=tree, found=pieces[name]: lay_out(source, found, tree))
    place_tools(trees["tools"])
    make_controller(place, trees["controller"])
    place_torch(place, torch)
    step("Compile", lambda: engine_env.compile_all(place))
    (place.top / ".engine.stamp").write_text(engine_env.CARRIED)


def lay_out(source: pathlib.Path, pieces: list[pathlib.Path], tree: pathlib.Path) -> None:
    command = 'tree=$1 zstd=$2; shift 2; set -o pipefail; cat "$@" | "$zstd" -q -d --long=27 | tar -x -p -C "$tree"'
    run(["bash", "-c", command, "bash", tree, shutil.which("zstd") or source / "zstd", *pieces])


def place_tools(tree: pathlib.Path) -> None:
    """What the machine has stays: only missing programs, and libraries that no directory of the loader has."""
    known = run(["ldconfig", "-p"])
    added = []
    for program in sorted((tree / "bin").iterdir()):
        if not shutil.which(program.name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin"):
            shutil.copy2(program, pathlib.Path("/usr/local/bin", program.name))
            added.append(program.name)
    for file in filter(pathlib.Path.is_file, (tree / "files").rglob("*")):
        there = pathlib.Path("/", file.relative_to(tree / "files"))
        if not there.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, there)
    LIBRARIES.mkdir(parents=True, exist_ok=True)
    for library in (tree / "lib").iterdir():
        if f"\t{library.name} " not in known:
            shutil.copy2(library, LIBRARIES / library.name)
    pathlib.Path("/etc/ld.so.conf.d/zz-sparkmatrix-lab.conf").write_text(f"{LIBRARIES}\n")
    run(["ldconfig"])
    for name, directory in (("policy.json", "/etc/containers"), ("seccomp.json", "/usr/share/containers")):
        there = pathlib.Path(directory, name)
        if not there.exists() and (tree / "containers" / name).exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / "containers" / name, there)
    print(f"Added to this machine: {' '.join(added) or 'no program'}", flush=True)


def make_controller(place: Place, site: pathlib.Path) -> None:
    """An environment as tests/tools/make_env makes it, which then finds nothing to do."""
    environment = site.parents[2]
    run([place.interpreter, "-m", "venv", "--without-pip", environment])
    for script in (site / "bin").iterdir():
        text = script.read_text()
        (environment / "bin" / script.name).write_text(f"#!{environment}/bin/python\n{text.partition(chr(10))[2]}")
        (environment / "bin" / script.name).chmod(0o755)
    lines = ["import sys", f'sys.path.insert(0, "{CHECKOUT}/cli")', "from sparkmatrix.main import program", "program()"]
    command = environment / "bin/sparkmatrix"
    command.write_text("\n".join([f"#!{environment}/bin/python", *lines, ""]))
    command.chmod(0o755)
    (environment / ".lock-sha256").write_text(hashlib.sha256(CONTROLLER_LOCK.read_bytes()).hexdigest() + "\n")
    link = CHECKOUT / ".venv"
    if not link.exists():
        link.symlink_to(environment.name)


def place_torch(place: Place, python: str) -> None:
    """The engine's environment reads the machine's PyTorch where it is; the nodes get that directory, too."""
    where = run([python, "-c", "import sys, torch; print(*sys.version_info[:2], torch.__path__[0])"]).split()
    if where[:2] != ["3", "12"]:
        raise engine_env.BuildError(
            f"PyTorch of {python} is for Python {'.'.join(where[:2])}; the engine here is for 3.12."
        )
    directory = pathlib.Path(where[2]).parent
    (place.site / "torch.pth").write_text(f"{directory}\n")
    (place.top / "mounts.txt").write_text(f"{directory}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
