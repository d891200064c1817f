# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a recipe brings whose engine nobody here knows: an image, a command for each rank, mounts, and a path that
answers. It is run as it is written; only its places are filled, each written ``@name@``, which neither JSON nor a shell
nor systemd takes for something of its own.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.strict import quoted
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.secret_names import GIVEN, looks_secret

# By name what stands there once a rank is planned.
PLACES: Mapping[str, str] = {
    "rank": "number of this rank, 0 on the head",
    "nodes": "how many there are",
    "head": "address of rank 0 on the fabric",
    "address": "this node's own address on the fabric",
    "interface": "the network interface that has it",
    "host": "address at which the API has to listen",
    "port": "port of the API",
    "rendezvous_port": "port on the head where the ranks meet",
    "model": "the recipe's model",
    "served": "name of the model for clients",
}
IN_MOUNTS = ("model", "rank", "nodes")  # of them; others could lead out of a directory
_PLACE = re.compile(r"@([a-z][a-z_]*)@")
SHELL = ("bash", "-lc")
# Directories that make a node another one, or its whole: a container that has them is no container. With what is below
# them, but for the first.
NEVER_MOUNTED = (
    *("/", "/bin", "/boot", "/dev", "/etc", "/lib", "/proc", "/run", "/sbin", "/sys", "/usr", "/var/run"),
    *("/var/lib/docker", "/var/lib/containerd", paths.STATE, "/root/.ssh"),
)
_RDMA = "a rank has what RDMA takes without it: /dev/infiniband, IPC_LOCK and unlimited locked memory"
_NODE = "it would reach the node itself"
# What containers of others are given and a rank is not, by the names of Compose, and why.
NOT_GIVEN: Mapping[str, str] = {
    "privileged": f"{_NODE}, and {_RDMA}",
    "cap_add": _RDMA,
    "devices": f"{_NODE}; a rank has the GPU and /dev/infiniband",
    "security_opt": f"{_NODE}; a rank gets no new privileges",
    "pid": f"with the node's processes {_NODE}",
    "userns_mode": _NODE,
    "cgroup": _NODE,
    "cgroup_parent": "the port filter knows a rank by its slice",
    "user": "the port filter lets in root and the service user alone; a rank is root of its container",
    "restart": "the keeper restarts all ranks together",
    "network_mode": "a rank has the node's network",
    "ipc": "a rank has the node's shared memory",
    "shm_size": "a rank has the node's shared memory",
    "ulimits": "a rank has unlimited locked memory; engine_limit_nofile sets its files",
}


@dataclass(frozen=True)
class OwnCommand:
    """What a rank runs: one of the two."""

    words: tuple[str, ...] = ()
    script: str = ""  # for `bash -lc`

    @property
    def texts(self) -> tuple[str, ...]:
        return (*self.words, *([self.script] if self.script else []))

    @property
    def argv(self) -> tuple[str, ...]:
        return (*SHELL, self.script) if self.script else self.words


@dataclass(frozen=True)
class HostMount:
    """A path of the nodes in the container."""

    source: str
    target: str
    why: str
    read_only: bool = True


@dataclass(frozen=True)
class OwnBuild:
    """An image that one of the nodes builds. Paths that do not begin with ``/`` or ``~`` are beside the recipe."""

    dockerfile: str = ""  # path on the controller; empty: the recipe's image, with the mods
    arguments: Mapping[str, str] = field(default_factory=dict)
    mods: tuple[str, ...] = ()  # directories of the controller with a run.sh, run in this order while it is built


@dataclass(frozen=True)
class Own:
    """What the ranks of a recipe run that brings a command of its own."""

    command: OwnCommand
    worker: OwnCommand
    entrypoint: bool  # the words, where there are any, are given to the image's own
    served: str  # name of the model for clients, where no @served@ stands in the command

    @property
    def names_served(self) -> bool:
        return any("served" in places(text) for text in (*self.command.texts, *self.worker.texts))


def fill(text: str, values: Mapping[str, str]) -> str:
    """``text`` with its places filled; what is no place stays."""
    return _PLACE.sub(lambda found: values.get(found.group(1), found.group()), text)


def secrets(texts: Iterable[str]) -> Iterator[str]:
    """Names of options and variables in a command that hold what looks like a secret."""
    for option, variable, given in GIVEN.findall(" ".join(texts)):
        name, value = option or variable, given.strip("\"'")
        if value and not value.startswith(("$", "@")) and looks_secret(name.replace("-", "_"), value):
            yield name


def places(text: str) -> list[str]:
    return _PLACE.findall(text)


def judge(where: str, command: OwnCommand, key: str, entrypoint: bool) -> Iterator[Finding]:
    """``entrypoint``: the image's own is there, and needs no words."""
    if bool(command.words) == bool(command.script) and (command.words or not entrypoint):
        found = "both words and script" if command.words else "neither words nor script"
        yield Finding(where, f"{key} has {found}", "Write one of them")
    for text in command.texts:
        yield from judge_places(where, text, key)
        if "\0" in text:
            yield Finding(where, f"{key} holds a NUL character", "Take it out")


def judge_places(where: str, text: str, key: str, allowed: Iterable[str] = PLACES) -> Iterator[Finding]:
    for name in places(text):
        if name not in allowed:
            yield Finding(
                where, f"{key} has the place @{name}@, which is not known there", f"Use: {', '.join(allowed)}"
            )


def plain(path: str) -> str:
    """Without ``..`` and doubled slashes, which POSIX keeps at the beginning."""
    return posixpath.normpath(f"/{path.lstrip('/')}") if path.startswith("/") else path


def forbidden(source: str) -> str:
    """Which of :data:`NEVER_MOUNTED` a mount would have in it; empty: none."""
    path = f"{plain(source).rstrip('/')}/"
    return next(
        (one for one in NEVER_MOUNTED if f"{one}/".startswith(path) or (one != "/" and path.startswith(f"{one}/"))), ""
    )


def judge_mounts(where: str, mounts: tuple[HostMount, ...]) -> Iterator[Finding]:
    for number, mount in enumerate(mounts):
        key = f"mounts[{number}]"
        for name, path in (("source", mount.source), ("target", mount.target)):
            yield from judge_places(where, path, f"{key}.{name}", IN_MOUNTS)
            if not path.startswith(("/", "@model@")) or not path.isprintable():
                yield Finding(where, f"{key}.{name} is {quoted(path)}", "Write an absolute path")
        if "@" in mount.source and ".." in mount.source.split("/"):
            yield Finding(where, f"{key}.source is {quoted(mount.source)}", "Write a path that leads nowhere else (..)")
        if never := forbidden(mount.source):
            found = f"{key} mounts {mount.source}: with {never} of the node in it a container can do what root can"
            yield Finding(where, found, "Take it out; models and files of your own belong into a directory for them")
    targets = [mount.target for mount in mounts]
    for target in sorted({target for target in targets if targets.count(target) > 1}):
        yield Finding(where, f"two mounts are at {target}", "Leave one out")
