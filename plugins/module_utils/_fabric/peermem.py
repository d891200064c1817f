# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Loading ``nvidia-peermem``, or seeing to it that nothing does.

GB10 has no GPUDirect RDMA; NVIDIA's porting guide for the DGX Spark names nvidia-peermem, dma-buf and GDRCopy as not
supported. There ``modprobe nvidia-peermem`` fails with "Invalid argument", and the CUDA attributes
GPU_DIRECT_RDMA_SUPPORTED and DMA_BUF_SUPPORTED are 0 (NVIDIA daqiri, CUDA 13.1, driver 580.142). A line that an older
guide left in /etc/modules-load.d makes systemd-modules-load.service fail at every boot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, sentence
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.hardware import hardware
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Diff, Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import leftover_units
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import (
    File,
    apply_set,
    known,
    remove_set,
)

SET = "fabric_peermem"
FILE = "/etc/modules-load.d/sparkmatrix-peermem.conf"
MODULE = "nvidia-peermem"
CHOICES = ("auto", "true", "false")
_LOAD_DIRECTORIES = ("/etc/modules-load.d", "/etc/modprobe.d")
_LOAD_FILES = ("/etc/modules",)


@dataclass(frozen=True)
class Request:
    """``true`` loads the kernel module now and at every boot; ``false`` takes that back and warns about lines of others
    that load or configure it; ``auto`` is ``false``, but warns on GB10 only."""

    load: str = field(default="auto", metadata=document.one_of(*CHOICES))


@dataclass
class Outcome:
    """What was done, or in check mode would be."""

    changed: Flag = False
    loaded: Flag = False
    diff: Diff = field(default_factory=list)
    warnings: list[Words] = field(default_factory=list)


def ensure(request: Request, check: bool) -> Outcome:
    return reconcile(Machine(), request.load, check_mode=check)


def reconcile(machine: Machine, load: str, *, check_mode: bool = False) -> Outcome:
    """``load``: ``auto``, ``true`` or ``false``. Raises :class:`SparkError` when it cannot be loaded."""
    outcome = Outcome(loaded=is_loaded(machine))
    if load == "true":
        if not outcome.loaded:
            outcome.changed = True
            if not check_mode:
                _modprobe(machine)
                outcome.loaded = True
        content = f"# Managed by sparkmatrix.cluster (role fabric). Undo: fabric_peermem: auto\n{MODULE}\n"
        # After modprobe: a module that does not load must not be tried again at every boot.
        result = apply_set(SET, [File(FILE, content=content.encode())], check_mode=check_mode, root=machine.root)
    else:
        result = remove_set(SET, check_mode=check_mode, root=machine.root)
        if result.changed and outcome.loaded and not check_mode:
            done = machine.runner(["modprobe", "-r", MODULE])
            outcome.loaded = is_loaded(machine)
            if done.rc != 0:
                outcome.warnings.append(
                    sentence(f"{MODULE} stays loaded ({done.complaint})", FILE, "It is gone after the next reboot")
                )
        if load == "false" or hardware(machine).is_gb10:
            outcome.warnings += [
                sentence(
                    f"{line!r} loads or configures {MODULE}, which GB10 cannot use: modprobe fails with 'Invalid "
                    "argument', and systemd-modules-load.service with it",
                    f"{path}:{number}",
                    "Delete the line; older guides have put it there and nothing needs it",
                )
                for path, number, line in stale_lines(machine)
            ]
            outcome.warnings += [
                sentence(
                    f"{one.unit or 'it'} loads {MODULE} at every boot ({one.line!r}), which GB10 cannot use",
                    one.file,
                    f"sudo systemctl disable --now {one.unit}, or take that line out where the rest of it is needed"
                    if one.unit
                    else "Take that line out",
                )
                for one in loading_units(machine)
            ]
    outcome.changed = outcome.changed or result.changed
    outcome.diff = result.diff
    outcome.warnings += result.warnings
    return outcome


def quiet(machine: Machine) -> bool:
    """Whether nothing loads the module: with ``auto`` and ``false`` there is then nothing to do and nothing to say."""
    left = is_loaded(machine) or known(SET, root=machine.root) or any(stale_lines(machine))
    return not (left or loading_units(machine))


def is_loaded(machine: Machine) -> bool:
    """Whether /proc/modules lists it (the kernel writes names with underscores)."""
    return bool(re.search(r"^nvidia_peermem ", machine.text("/proc/modules") or "", re.M))


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
    return [one for one in leftover_units.leftovers(machine, ()) if one.peermem]


def _modprobe(machine: Machine) -> None:
    done = machine.runner(["modprobe", MODULE])
    if done.rc == 0:
        return
    if "Invalid argument" in done.complaint:
        raise SparkError(
            f"{MODULE} refuses to load ({done.complaint}): this GPU has no GPUDirect RDMA, as on every GB10. RDMA "
            "works without it, through memory that CPU and GPU share",
            "fabric_peermem",
            "fabric_peermem: auto",
        )
    remedy = "Install the module's package for the running kernel and driver, or fabric_peermem: auto"
    raise SparkError(f"{MODULE} does not load ({done.complaint})", "fabric_peermem", remedy)
