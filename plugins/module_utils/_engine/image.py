# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The engine's container image on this node: is Docker there, is the image there, which one is it; fetch it.

What is compared between nodes is the content: the same name may mean another image tomorrow, or on another node, and
the id of the same image differs between Docker's two stores (a digest of its configuration, or of its manifest).
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Completed, Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import run as run_program
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Word, WordOrEmpty
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import drop_state, write_state

_VERSION = re.compile(r"\d+(?:\.\d+)+")
_ID = re.compile(r"sha256:[0-9a-f]{64}")
MIN_COMPOSE = (2, 20)  # `up --no-log-prefix --pull never` as they are used here
MIN_RAY = (2, 52)  # the first with tokens; without one, who reaches the port can run code
MIN_RAY_TEXT = ".".join(map(str, MIN_RAY))
ANSWERS = f"{paths.STATE}/images/answers.json"
_CONTAINER = "sparkmatrix-question"
_MEMORY = "16g"
_MAX_IMAGES = 50  # of which something is kept
_DAY_S = 86400
USED = "used"
_ASK_NCCL = """
import ctypes, glob, sys
places = [found for path in sys.path for found in glob.glob(path + "/nvidia/nccl/lib/libnccl.so.2")]
for place in [*places, "libnccl.so.2"]:
    try:
        library = ctypes.CDLL(place)
    except OSError:
        continue
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    print(number.value)
    break
"""
GPUS = {"all": ("--gpus", "all"), "cdi": ("--device", "nvidia.com/gpu=all"), "none": ()}  # words of docker run
_NATIVE = f"Set engine_launch: native, which needs no Ray, or name an image with Ray {MIN_RAY_TEXT} or newer"


@dataclass(frozen=True)
class Image:
    """``id`` is empty where the image is not there."""

    id: str = ""
    content: str = ""  # the same for the same image, whichever store it is in
    platform: str = ""
    nccl: str = ""  # version, where it was asked for; empty where there is none


@dataclass(frozen=True)
class Request:
    """``ids``: of images by name when a plan served; one that is still here is given its name back, in case the name
    means another image by now. ``archive``: a file of this node from which images may come."""

    images: tuple[plan_document.Image, ...]
    ids: Mapping[str, str] = field(default_factory=dict)
    archive: str = ""


@dataclass
class Found:
    """By the name of an image, empty where it is not there. ``contents``: the same for the same image on every node.
    ``nccl``: versions, where an image was asked. ``archive``: whether it is on this node."""

    changed: Flag = False
    ids: Mapping[Word, WordOrEmpty] = field(default_factory=dict)
    contents: Mapping[Word, WordOrEmpty] = field(default_factory=dict)
    nccl: Mapping[Word, WordOrEmpty] = field(default_factory=dict)
    platforms: Mapping[Word, WordOrEmpty] = field(default_factory=dict)
    platform: WordOrEmpty = ""  # of this node
    archive: Flag = False


def look(request: Request, check: bool) -> Found:
    """Which images are here, and what is in them; fetches nothing.

    Raises:
        SparkError: Docker or its Compose plug-in cannot be used, an image lacks the Ray that is started from it, or a
            container sees no GPU.
    """
    platform, of_driver, changed = check_docker(), driver(), False
    images: dict[str, Image] = {}
    for wanted in request.images:
        name, before = wanted.name, request.ids.get(wanted.name) or ""
        image = find(name)
        back = ""
        if before not in ("", image.id) and inspect(before).id:
            back = before
        elif image.id and not inspect(local_name(name)).id:
            back = image.id
        changed = changed or bool(back)
        if back and not check:
            image = give_back(name, back)
        # Of another platform, no program of it starts.
        here = image.id and (not platform or image.platform == platform)
        images[name] = _asked(wanted, image, of_driver, check) if here else image
    return Found(
        changed=changed,
        ids={name: image.id for name, image in images.items()},
        contents={name: image.content for name, image in images.items()},
        nccl={name: image.nccl for name, image in images.items() if image.nccl},
        platforms={name: image.platform for name, image in images.items()},
        platform=platform,
        archive=bool(request.archive) and Path(request.archive).is_file(),
    )


def _asked(wanted: plan_document.Image, image: Image, of_driver: str, check: bool) -> Image:
    name = wanted.name

    def version(question: str, ask_it: Callable[[], str]) -> str:
        told = remembered(image.id, question, lambda: {"version": ask_it()}, check_mode=check)
        return str(told.get("version") or "")

    note(image.id, name, check_mode=check)
    if wanted.gpus != "none":
        version(f"gpu {wanted.gpus} {of_driver}", partial(check_gpu, name, wanted.gpus))
    if wanted.ray:
        ask_ray = partial(ray_version, name, wanted.patches)
        # Files of the node that lie over those of the image may change what it says.
        if wanted.patches:
            ask_ray()
        else:
            version("ray", ask_ray)
    return replace(image, nccl=version("nccl", partial(nccl_version, name))) if wanted.nccl else image


def check_docker(runner: Runner = run_program) -> str:
    """The platform that Docker runs on, like linux/arm64. Raises where Docker or its Compose plug-in cannot be used."""
    server = runner(["docker", "version", "--format", "{{.Server.Os}}/{{.Server.Arch}}"])
    if server.rc == NOT_FOUND:
        raise SparkError("Docker is not installed", "docker", "Install docker-ce, or set engine_runtime: venv")
    if server.rc != 0:
        raise SparkError(
            f"Docker does not answer ({server.complaint})", "docker", "Look at: systemctl status docker containerd"
        )
    driver = runner(["docker", "info", "--format", "{{.CgroupDriver}}"]).out.strip()
    if driver != "systemd":
        raise SparkError(
            f"Docker makes control groups by {driver or 'nothing that it names'} and not by systemd, so containers"
            " would not be in the slice by which strangers are kept from Ray and the ranks",
            "docker",
            "Take native.cgroupdriver out of /etc/docker/daemon.json, and restart Docker (control groups of version 2)",
        )
    compose = runner(["docker", "compose", "version", "--short"])
    found = _VERSION.search(compose.out)
    if compose.rc != 0 or not found:
        raise SparkError(
            f"Docker's Compose plug-in is not there ({compose.complaint})",
            "docker compose",
            "Install docker-compose-plugin, or set engine_runtime: venv",
        )
    if tuple(int(part) for part in found.group().split(".")[:2]) < MIN_COMPOSE:
        wanted = ".".join(map(str, MIN_COMPOSE))
        raise SparkError(
            f"Docker's Compose plug-in is {found.group()}, and {wanted} is needed",
            "docker compose",
            "Update docker-compose-plugin",
        )
    return server.out.strip()


def local_name(name: str) -> str:
    """What it is called on the nodes. Docker knows an image by a digest only where it has fetched it from there, and
    lets nobody give such a name: a tag stands for it."""
    before, at, digest = name.partition("@")
    folder, slash, last = before.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}:{digest.replace(':', '-')}" if at else name


def is_id(text: str) -> bool:
    """What Docker calls an image by its content. A node says it, and it may go into a unit."""
    return bool(_ID.fullmatch(text))


def find(name: str, runner: Runner = run_program) -> Image:
    """It under its name on the nodes, or under the one with a digest that Docker itself has given it."""
    found = inspect(local_name(name), runner)
    return found if found.id or local_name(name) == name else inspect(name, runner)


def inspect(name: str, runner: Runner = run_program) -> Image:
    done = runner(["docker", "image", "inspect", name])
    if done.rc != 0:
        if "no such image" in done.complaint.casefold():
            return Image()
        raise SparkError(
            f"Docker gives no information about it ({done.complaint})", f"image {name}", "Look at: docker info"
        )
    with json_text.Reading("what Docker says about it is damaged", f"image {name}", "Look at: docker info"):
        first = json_text.mappings(done.out)[0]
        return Image(
            id=str(first["Id"]),
            content=_content(first),
            platform=f"{first.get('Os')}/{first.get('Architecture')}",
        )


def _content(told: Mapping[str, Any]) -> str:
    """Of layers, platform and what is started from them; of the id where Docker does not tell the layers."""
    layers = (told.get("RootFS") or {}).get("Layers")
    if not layers:
        return str(told["Id"])
    settings = told.get("Config") or {}
    started = [settings.get(name) or "" for name in ("Env", "Entrypoint", "Cmd", "User", "WorkingDir")]
    parts = [layers, told.get("Os"), told.get("Architecture"), started]
    return "content:" + hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def pull(name: str, runner: Runner, options: Sequence[str] = ()) -> Image:
    """``runner`` has the time limit. Docker resumes by layers, so a run that was cut off is not lost."""
    done = runner(["docker", *options, "pull", "--quiet", name])
    if done.rc != 0:
        raise SparkError(
            f"it cannot be fetched ({done.complaint})",
            f"image {name}",
            "Check name, network and login (engine_image_login), or name a file that has it (engine_image_archive)",
        )
    return inspect(name, runner)


def give_back(name: str, before: str, runner: Runner = run_program) -> Image:
    """The image ``before`` (an id), under its name of that time again; what has the name now stays, under its id."""
    done = runner(["docker", "tag", before, local_name(name)])
    if done.rc != 0:
        raise SparkError(
            f"{before}, which had this name before, cannot have it again ({done.complaint})",
            f"image {name}",
            "Look at: docker image ls --all --no-trunc",
        )
    return inspect(local_name(name), runner)


def ask(name: str, program: Sequence[str], runner: Runner, more: Sequence[str] = ()) -> Completed:
    """What a program of the image says, in a container without network. One at a time, without the memory of what
    serves; a client that is killed leaves its container behind, so it is removed by its name."""
    remove = ["docker", "rm", "--force", _CONTAINER]
    start = ["docker", "run", "--rm", "--name", _CONTAINER, "--memory", _MEMORY, "--network", "none", *more]
    runner(remove)  # of a run that was interrupted
    try:
        return runner([*start, "--entrypoint", program[0], local_name(name), *program[1:]])
    finally:
        runner(remove)


def remembered(
    image: str, question: str, ask_it: Callable[[], dict[str, Any]], root: str = "/", check_mode: bool = False
) -> dict[str, Any]:
    """What an image (its id) has said, asked once: the same id always says the same."""
    answer = known(root).get(image, {}).get(question)
    if not isinstance(answer, dict):
        answer = ask_it()
        keep(image, question, answer, root, check_mode)
    return answer


def note(image: str, name: str, root: str = "/", check_mode: bool = False) -> None:
    """A plan makes containers from this image by this name, today: so what is unused later can be told from images of
    others."""
    used = known(root).get(image, {}).get(USED) or {}
    names, day = sorted({*used.get("names", ()), local_name(name)}), int(time.time() // _DAY_S * _DAY_S)
    if (used.get("names"), used.get("day")) != (names, day):
        keep(image, USED, {"names": names, "day": day}, root, check_mode)


def known(root: str = "/") -> dict[str, dict[str, Any]]:
    """By id: what images have said, and when a plan used them."""
    try:
        found = json_text.mapping(Path(root, ANSWERS.lstrip("/")).read_bytes())
    except (OSError, SparkError):
        return {}
    return {key: said for key, said in found.items() if isinstance(said, dict)}


def keep(image: str, question: str, answer: Mapping[str, Any], root: str = "/", check_mode: bool = False) -> None:
    others = known(root)
    own = {**others.pop(image, {}), question: answer}
    if not check_mode:
        kept = {**dict(list(others.items())[-_MAX_IMAGES:]), image: own}
        write_state(ANSWERS, (json.dumps(kept, indent=1) + "\n").encode(), root=root)


def forget(root: str = "/", check_mode: bool = False) -> bool:
    there = Path(root, ANSWERS.lstrip("/")).exists()
    if there and not check_mode:
        drop_state(ANSWERS, root=root)
    return there


def nccl_version(name: str, runner: Runner = run_program) -> str:
    """Which NCCL the image's Python would load; empty where it finds none."""
    done = ask(name, ["python3", "-c", _ASK_NCCL], runner)
    words = done.out.split()
    number = strict.digits(words[-1]) or 0 if done.rc == 0 and words else 0
    # ncclGetVersion since 2.9: 23007 is 2.30.7.
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number >= 20900 else ""


def driver(root: str = "/") -> str:
    """Version of the GPU's driver; empty where there is none."""
    try:
        return Path(root, "sys/module/nvidia/version").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def check_gpu(name: str, gpus: str, runner: Runner = run_program) -> str:
    """The GPU that a container of this image sees, given to it like to a rank. Raises where there is none."""
    done = ask(name, ["nvidia-smi", "-L"], runner, GPUS[gpus])
    if done.rc != 0 or "GPU 0" not in done.out:
        raise SparkError(
            f"a container of it sees no GPU ({done.complaint})",
            f"image {name}",
            "Check the NVIDIA Container Toolkit: docker run --rm --gpus all IMAGE nvidia-smi; or set"
            " engine_container_gpus, to cdi or none",
        )
    return done.out.splitlines()[0]


def ray_version(name: str, mounts: Sequence[plan_document.Patch], runner: Runner = run_program) -> str:
    """Which Ray a container of this image finds, asked in one without network.

    ``mounts``: files of this node over files of the image. Raises where there is none, or one that lacks tokens.
    """
    binds = []
    for mount in mounts:
        binds += ["--mount", f"type=bind,source={mount.source},target={mount.target},readonly"]
    # Not the version of a Python package: which Python starts, and what it finds, is the program's own business.
    done = ask(name, ["ray", "--version"], runner, binds)
    found = _VERSION.search(done.out)
    if done.rc != 0 or not found:
        raise SparkError(
            f"the backend is Ray, but no Ray starts in the image ({done.complaint})",
            f"image {name}",
            _NATIVE,
        )
    if tuple(int(part) for part in found.group().split(".")[:2]) < MIN_RAY:
        raise SparkError(
            f"its Ray {found.group()} has no tokens: anyone who reaches its port could run code",
            f"image {name}",
            _NATIVE,
        )
    return found.group()
