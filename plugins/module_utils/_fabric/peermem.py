# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Seeing to it that nothing loads ``nvidia-peermem``.

GB10 has no GPUDirect RDMA; NVIDIA's porting guide for the DGX Spark names nvidia-peermem, dma-buf and GDRCopy as not
supported. There ``modprobe nvidia-peermem`` fails with "Invalid argument", and the CUDA attributes
GPU_DIRECT_RDMA_SUPPORTED and DMA_BUF_SUPPORTED are 0 (NVIDIA daqiri, CUDA 13.1, driver 580.142). A line that an older
guide left in /etc/modules-load.d makes systemd-modules-load.service fail at every boot.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import sentence
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.hardware import hardware
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Diff, Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import leftover_units
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import known, remove_set

SET = "fabric_peermem"
FILE = "/etc/modules-load.d/sparkmatrix-peermem.conf"
MODULE = "nvidia-peermem"
_LOAD_DIRECTORIES = ("/etc/modules-load.d", "/etc/modprobe.d")
_LOAD_FILES = ("/etc/modules",)


@dataclass(frozen=True)
class Request:
    """Nothing to say: GB10 cannot use the module."""


@dataclass
class Answer:
    """What was taken back, or in check mode would be, and what loads the module."""

    changed: Flag = False
    diff: Diff = field(default_factory=list)
    warnings: list[Words] = field(default_factory=list)


def ensure(_request: Request, check: bool) -> Answer:
    return reconcile(Machine(), check_mode=check)


def reconcile(machine: Machine, *, check_mode: bool = False) -> Answer:
    """What an earlier release has placed to load the module goes; lines of others are named, on GB10."""
    result = remove_set(SET, check_mode=check_mode, root=machine.root)
    warnings = list(result.warnings)
    if hardware(machine).is_gb10:
        warnings += [
            sentence(
                f"{line!r} loads or configures {MODULE}, which GB10 cannot use: modprobe fails with 'Invalid "
                "argument', and systemd-modules-load.service with it",
                f"{path}:{number}",
                "Delete the line; older guides have put it there and nothing needs it",
            )
            for path, number, line in stale_lines(machine)
        ]
        warnings += [
            sentence(
                f"{leftover.unit or 'it'} loads {MODULE} at every boot ({leftover.line!r}), which GB10 cannot use",
                leftover.file,
                f"sudo systemctl disable --now {leftover.unit}, or take that line out where the rest of it is needed"
                if leftover.unit
                else "Take that line out",
            )
            for leftover in loading_units(machine)
        ]
    return Answer(result.changed, result.diff, warnings)


def quiet(machine: Machine) -> bool:
    """Whether nothing loads the module, so that there is nothing to do and nothing to say."""
    return not (known(SET, root=machine.root) or any(stale_lines(machine)) or loading_units(machine))


def stale_lines(machine: Machine) -> Iterator[tuple[str, int, str]]:
    """Path, number and text of every line that loads or configures the module, ours left out.

    modules-load.d(5): comments begin with ``#`` or ``;``. A ``blacklist`` in modprobe.d(5) keeps it from loading, which
    is no harm.
    """
    paths = [*_LOAD_FILES]
    for directory in _LOAD_DIRECTORIES:
        paths += [f"{directory}/{name}" for name in machine.names(directory) if name.endswith(".conf")]
    for path in paths:
        if path == FILE:
            continue
        for number, line in enumerate((machine.text(path) or "").splitlines(), start=1):
            text = line.strip()
            if (
                text
                and text[0] not in "#;"
                and not text.startswith("blacklist")
                and leftover_units.PEERMEM.search(text)
            ):
                yield path, number, text


def loading_units(machine: Machine) -> list[leftover_units.Leftover]:
    """The enabled units of others that load it."""
    return [leftover for leftover in leftover_units.leftovers(machine, ()) if leftover.peermem]
