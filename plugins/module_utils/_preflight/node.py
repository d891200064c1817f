# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""**What a node is**: read there by :mod:`_preflight.node_info`, judged on the controller.

What cannot be read is None. Of what is read only where it is asked for, ``parts`` tells what was: None of such a part
means that it cannot be read (:meth:`Node.unread`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls, document, json_text, kinds, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.gpu import Clocks, Cuda
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.hardware import Hardware, Memory
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.journal import KernelLine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.listening import Listener
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Network
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Taken
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import Rdma
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.leftover_units import Leftover
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import Gid

# What is read only where it is asked for: each costs time, or is nobody's business outside its layers.
PARTS = ("rdma", "gids", "kernel_log", "gpu", "clocks", "nccl", "session", "settled")
Limit = Annotated[int, strict.whole(-1)]


@dataclass(frozen=True)
class Python:
    version: kinds.Word = ""
    executable: kinds.Words = ""


@dataclass(frozen=True)
class Disk:
    """Space for a path in bytes, or for the nearest directory above it that exists (``at``)."""

    exists: kinds.Flag = False
    at: kinds.Words = ""
    total: Optional[kinds.Count] = None
    free: Optional[kinds.Count] = None
    read_only: Optional[kinds.Flag] = None


@dataclass(frozen=True)
class Account:
    home: kinds.Words
    shell: kinds.Words
    has_home: kinds.Flag


@dataclass(frozen=True)
class UnitState:
    load: kinds.Words = ""
    active: kinds.Words = ""
    sub: kinds.Words = ""
    enabled: kinds.Words = ""


@dataclass(frozen=True)
class Environment:
    """A Python environment. ``exists`` also where its ``bin/python`` leads nowhere any more; ``nccl`` is the version of
    NVIDIA's wheel in it; ``distrusted``: why root, or who serves, must not run what is in it."""

    exists: kinds.Flag = False
    nccl: Optional[kinds.Word] = None
    distrusted: kinds.Words = ""


@dataclass(frozen=True)
class Limits:
    """Hard limits of the init system, -1 for none: ``memlock`` in bytes, ``nofile`` in files. ``can_raise``: whether it
    may raise them; no service or login gets more than that."""

    memlock: Optional[Limit] = None
    nofile: Optional[Limit] = None
    can_raise: Optional[kinds.Flag] = None


@dataclass(frozen=True)
class Nccl:
    """``system``: version of the package libnccl2; ``settings``: by file."""

    system: Optional[kinds.Word] = None
    settings: Mapping[kinds.Words, Mapping[kinds.Words, kinds.Words]] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    """The NetworkManager profile behind Ansible's connection: ``users`` it belongs to, ``secret``: its password is kept
    by a user's session."""

    interface: kinds.Interface
    uuid: kinds.Word
    users: tuple[kinds.Word, ...] = ()
    secret: kinds.Flag = False


@dataclass(frozen=True)
class Node:
    hostname: kinds.Words = ""
    machine: Hardware = field(default_factory=Hardware)
    machine_id: Optional[kinds.Words] = None
    boot_id: Optional[kinds.Words] = None
    kernel: kinds.Words = ""
    arch: kinds.Words = ""
    os: Mapping[kinds.Words, kinds.Words] = field(default_factory=dict)  # os-release
    dgx: Optional[Mapping[kinds.Words, kinds.Words]] = None  # dgx-release
    nvidia_driver: Optional[kinds.Word] = None
    python: Python = Python()
    memory: Memory = field(default_factory=Memory)
    paths: Mapping[kinds.Words, Disk] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    listening: Optional[tuple[Listener, ...]] = None
    commands: Mapping[kinds.Words, Optional[kinds.Words]] = field(default_factory=dict)  # where a program is
    units: Mapping[kinds.Words, Optional[UnitState]] = field(default_factory=dict)
    managed: tuple[kinds.Word, ...] = ()  # sets of files (_managed/files.py)
    accounts: Mapping[kinds.Word, Account] = field(default_factory=dict)  # ours by their names
    engine_units: tuple[kinds.Word, ...] = ()  # of engine and keepers, that are installed
    taken: tuple[Taken, ...] = ()  # what services took of its memory
    verdicts: kinds.Count = 0  # runs that are kept
    netplan_modes: Mapping[kinds.Words, Optional[kinds.FileMode]] = field(
        default_factory=dict
    )  # of all files that netplan reads
    netplan_bonds: Mapping[kinds.Words, tuple[kinds.Words, ...]] = field(
        default_factory=dict
    )  # interfaces in bonds, by file
    leftover_units: tuple[Leftover, ...] = ()
    environments: Mapping[kinds.Words, Environment] = field(default_factory=dict)
    interpreters: Mapping[kinds.Words, Optional[kinds.Word]] = field(default_factory=dict)
    systemd: kinds.Flag = False  # is the init system
    limits: Limits = Limits()
    uid: Optional[kinds.Count] = None
    sudo_user: Optional[kinds.Words] = None
    time: Optional[kinds.Number] = None  # of the machine, seconds since 1970
    clock_offset: Optional[kinds.Number] = None  # against the controller
    parts: tuple[kinds.Word, ...] = ()
    rdma: Optional[Rdma] = None
    gids: Optional[tuple[Gid, ...]] = None
    kernel_log: Optional[tuple[KernelLine, ...]] = None
    gpu: Optional[Cuda] = None
    clocks: Optional[Clocks] = None
    nccl: Optional[Nccl] = None
    session: Optional[Session] = None
    settled: Optional[kinds.Plain] = None  # by plugin_utils/_base/settled.py

    def unread(self, part: str) -> bool:
        """It was asked for, and cannot be read."""
        return part in self.parts and getattr(self, part) is None


@dataclass(frozen=True)
class Info:
    """What the module ``node_info`` returns. ``fact``: the fabric fact on disk, not validated."""

    node: Node
    fact: Any = None


def read(result: Any, host: str) -> Info | None:
    """The only reader; None where the machine was not read.

    Raises:
        SparkError: A field is not of its kind.
    """
    if not isinstance(result, Mapping) or not result.get("node"):
        return None
    with json_text.Reading("what this machine answered (node_info) cannot be used", host, calls.REMEDY):
        return Info(document.load_known(Node, result["node"]), result.get("fact"))
