# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Real NVIDIA cards for the nodes of a lab: one each, with the driver's libraries and an engine environment with CUDA.

The driver's user-space files belong to its kernel module, so a node takes this machine's, into a directory where the
loader looks by itself: services of systemd have no LD_LIBRARY_PATH. Below ``$SPARKMATRIX_CACHE/gpu``: ``python`` and
``engine`` (``engine_env.py --cuda``, or unpacked by ``gpu_payload.py``), ``models`` (``make_gpu_models.py``), and
``mounts.txt``, further directories of this machine that the environment refers to.
"""

from __future__ import annotations

import os
import pathlib
import platform
import re
from collections.abc import Iterator
from typing import NamedTuple

import engine_env
from labstate import LabError, cache_dir, run

HOST = pathlib.Path("/")
# What CUDA, NVML and the compiler of PTX load; nothing of graphics.
LIBRARY = re.compile(r"lib(cuda|nvidia-(ml|cfg|ptxjitcompiler|nvvm\d*|gpucomp|allocator))\.so\.[\d.]+")
NEEDED = "libcuda.so.1", "libnvidia-ml.so.1"
PROGRAM = "nvidia-smi"
# Beside the loader's own directories: where machines without a package of the driver have it.
DRIVER = "usr/local/nvidia"
CONTROL = "dev/nvidiactl", "dev/nvidia-uvm"
OF_CUDA_13 = 580  # NVIDIA's table of minor version compatibility, read 2026-11-26
OF_BFLOAT16 = 8


class Served(NamedTuple):
    """A recipe of the lab, what it needs, and the models to make where it is the one."""

    recipe: str
    card_mib: int
    machine_gib: int  # the plan takes a machine's memory for the card's, as on a Spark
    models: tuple[str, ...]


# The card of the small one is an assumption: 1.2 GB of weights, 4 of cache, and what vLLM takes beside.
RECIPES = (
    Served("gpu-dense", 80_000, 78, ("qwen8b", "qwen06b")),
    Served("gpu-small", 12_000, 27, ("qwen06b",)),
)


def cards(host: pathlib.Path = HOST) -> list[int]:
    """Numbers of the cards of this machine, as in /dev/nvidia0."""
    return sorted(int(path.name[6:]) for path in host.glob("dev/nvidia*") if path.name[6:].isdigit())


def served(program: pathlib.Path | None = None) -> Served:
    """The largest that there is room for. ``program``: nvidia-smi."""
    (card, driver, capability), machine = cards_have(program or driver_files()[PROGRAM]), machine_gib()
    if driver < OF_CUDA_13:
        raise LabError(f"The NVIDIA driver is {driver}; the engine, built for CUDA 13, needs {OF_CUDA_13} or later.")
    if capability < OF_BFLOAT16:
        raise LabError(f"A card here has compute capability {capability}; the models, in bfloat16, need {OF_BFLOAT16}.")
    for one in RECIPES:
        if card >= one.card_mib and machine >= one.machine_gib:
            return one
    raise LabError(
        f"The smallest card here has {card} MiB and the machine {machine} GiB of memory; the smallest model of the lab"
        f" needs {one.card_mib} MiB and {one.machine_gib} GiB."
    )


def cards_have(program: pathlib.Path) -> tuple[int, int, int]:
    """The least of all cards, in whole numbers: MiB, driver, compute capability."""
    beside = f"LD_LIBRARY_PATH=/{DRIVER}/lib64:/{DRIVER}/lib"
    query = "--query-gpu=memory.total,driver_version,compute_cap"
    said = run(["env", beside, program, query, "--format=csv,noheader,nounits"])
    rows = re.findall(r"(?m)^(\d+), (\d+)\S*, (\d+)", said)
    if not rows:
        raise LabError(f"nvidia-smi tells neither memory nor driver of a card: {said.strip() or 'nothing'}")
    mib, driver, capability = (min(map(int, column)) for column in zip(*rows, strict=True))
    return mib, driver, capability


def machine_gib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30


def missing(host: pathlib.Path = HOST, cached: str | None = None) -> list[str]:
    """What a machine lacks to give a card to a node; nothing where it can."""
    files = driver_files(host, cached)
    problems = []
    if not cards(host):
        problems.append("No NVIDIA card is there (/dev/nvidia0): install the driver, or load it (nvidia-modprobe).")
    elif absent := [f"/{name}" for name in CONTROL if not (host / name).exists()]:
        problems.append(f"{' and '.join(absent)} are not there: run nvidia-modprobe -c 0 -u as root.")
    if absent := [name for name in (*NEEDED, PROGRAM) if name not in files]:
        problems.append(
            f"{', '.join(absent)} of the NVIDIA driver: neither where the loader looks (ldconfig -p) nor below "
            f"/{DRIVER}. Install its packages (Ubuntu: nvidia-utils-VERSION and libnvidia-compute-VERSION)."
        )
    if not problems:
        try:
            served(files[PROGRAM])
        except LabError as exc:
            problems.append(str(exc))
    return problems + unbuilt()


def unbuilt() -> list[str]:
    """What building the environment lacks, until there is one."""
    place = engine_env.on_gpus(cache_dir())
    if (place.top / ".engine.stamp").exists():
        return []
    try:
        headers = engine_env.find_python(place.version).include / "Python.h"
    except engine_env.BuildError as exc:
        return [str(exc)]
    told = (
        f"{headers} is not there, and Triton compiles against it at the first start on a GPU. Install Python's headers"
    )
    return [] if headers.is_file() else [f"{told} (apt-get install python{place.version}-dev)."]


def driver_files(host: pathlib.Path = HOST, cached: str | None = None) -> dict[str, pathlib.Path]:
    """Libraries by the name that they are loaded by, and nvidia-smi. ``cached``: what ``ldconfig -p`` prints."""
    found = {path.name: path for path in _folder(host)}
    if cached is None:
        cached = run(["ldconfig", "-p"], check=False)
    for name, path in reversed([*_loaded(cached)]):  # of the same name the loader takes the first
        found[name] = path
    for place in (host / DRIVER / "bin", host / "usr/bin"):  # where both are, the second may only call the first
        if (place / PROGRAM).is_file():
            found.setdefault(PROGRAM, place / PROGRAM)
    return found


def _loaded(cached: str) -> Iterator[tuple[str, pathlib.Path]]:
    kind = {"x86_64": "x86-64", "aarch64": "AArch64"}[platform.machine()]
    for name, kinds, path in re.findall(r"(?m)^\s*(\S+) \(([^)]*)\) => (/.*)$", cached):
        if LIBRARY.fullmatch(name) and kind in kinds:
            yield name, pathlib.Path(path)


def _folder(host: pathlib.Path) -> Iterator[pathlib.Path]:
    for place in ("lib", "lib64"):
        yield from (path for path in sorted((host / DRIVER / place).glob("lib*")) if LIBRARY.fullmatch(path.name))


def driver_mounts(nodes: int, host: pathlib.Path = HOST, cached: str | None = None) -> list[str]:
    """Volumes of every node."""
    problems, there = missing(host, cached), cards(host)
    if there and nodes > len(there):
        problems.append(f"{nodes} nodes need a card each, and this machine has {len(there)}.")
    if problems:
        raise LabError("\n".join(problems))
    libraries = f"/usr/lib/{platform.machine()}-linux-gnu"
    return [
        f"{path.resolve()}:{'/usr/bin' if name == PROGRAM else libraries}/{name}:ro"
        for name, path in sorted(driver_files(host, cached).items())
    ]


def environment_mounts(place: pathlib.Path) -> list[str]:
    """The environment with CUDA, where there is one."""
    if not (place / ".engine.stamp").exists():
        return []
    parts = [("engine", place / "engine"), ("python", place / "python")]
    # Each for itself: the product keeps models beside them.
    parts += [(f"models/{path.name}", path) for path in sorted((place / "models").glob("*")) if path.is_dir()]
    made = [f"{path}:/opt/sparkmatrix/{target}:ro" for target, path in parts if path.is_dir()]
    listed = place / "mounts.txt"
    further = listed.read_text().split("\n") if listed.exists() else []
    return made + [f"{path}:{path}:ro" for path in map(str.strip, further) if path]


def hidden(node: int, there: list[int]) -> list[str]:
    """Volumes that leave node 1, 2 ... one card. A device file that is only left out is made again by libcuda."""
    return [f"/dev/null:/dev/nvidia{card}" for card in there if card != there[node - 1]]


def requirements(engine: pathlib.Path) -> list[str]:
    """What the environment has of what the product asks for, without a build's own suffix (+cu130)."""
    made = []
    for name, asked in (("vllm", "vllm"), ("ray", "ray[default]")):
        for path in sorted(engine.glob(f"lib/python3*/site-packages/{name}-*.dist-info")):
            made.append(f"{asked}=={path.name.removesuffix('.dist-info').partition('-')[2].partition('+')[0]}")
    return made
