# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node nosuid PATH...``: no file below these is setuid, or a device, for anybody of this machine.

A container's root is root of what it writes into a directory of the node: a setuid file there would make every account
of the node root. So the directory is mounted over itself with ``nosuid,nodev`` before a container has it. Docker could
mount it so for the container alone, which does not matter: the other way to it is the node's.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone

HELP = "mount directories that containers write into so that nothing there is setuid"
NOTE = f"{paths.RUN}/nosuid.json"  # gone after a boot, as the mounts are
MOUNTS = "/proc/self/mountinfo"
_OPTIONS = ("nosuid", "nodev")
_WHAT, _LOCK = "mounts of directories", f"{paths.RUN}/nosuid.lock"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", metavar="PATH")
    parser.add_argument("--undo", action="store_true", help="unmount what this has mounted since the boot")


def run(arguments: argparse.Namespace) -> int:
    machine = Machine()
    try:
        changed = undo(machine) if arguments.undo else guard(arguments.paths, machine)
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in changed))
    return 0


def guard(wanted: Sequence[str], machine: Machine) -> list[str]:
    """Those that were not mounted so; what is mounted below one of them is mounted so, too."""
    changed = []
    with alone(machine, _WHAT, _LOCK):
        for path in map(os.path.realpath, wanted):
            if not _lacking(path, machine):
                continue
            changed.append(path)
            _note([*_noted(machine), path], machine)
            # Over what is there already: a mount of the user's stays as it is.
            machine.command("mount", "--rbind", path, path, step=f"mounting {path} over itself")
            machine.command("mount", "--make-rprivate", path, step=f"mounting {path} over itself")
            for lacking in _lacking(path, machine):
                options = ",".join(("remount", "bind", *_OPTIONS))
                machine.command("mount", "--options", options, lacking, step=f"mounting {lacking} with {options}")
    return changed


def undo(machine: Machine) -> list[str]:
    """The last one first. Lazily: whoever still has a file open there keeps it."""
    with alone(machine, _WHAT, _LOCK):
        noted = _noted(machine)
        for path in reversed(noted):
            machine.command("umount", "--lazy", path, step=f"unmounting {path}")
        if noted:
            os.unlink(machine.real(NOTE))
    return noted


def held(path: str, machine: Machine) -> bool:
    """Whether it is a mount of its own, so that a file from beside it gets no second name in it."""
    return os.path.realpath(path) in _mounted(machine)


def _lacking(path: str, machine: Machine) -> list[str]:
    """Mounts at this path and below that let setuid files or devices through; the path where it is none."""
    mounted = _mounted(machine)
    below = {one: options for one, options in mounted.items() if one == path or one.startswith(f"{path}/")}
    lacking = [one for one, options in below.items() if not options.issuperset(_OPTIONS)]
    return lacking if path in below else [path, *lacking]


def _mounted(machine: Machine) -> dict[str, set[str]]:
    """By mount point, of what is on top, its options (proc(5): the fifth and sixth field; blanks in octal)."""
    found = {}
    for line in (machine.content(MOUNTS) or b"").decode("utf-8", "surrogateescape").splitlines():
        fields = line.split()
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        found[point] = set(fields[5].split(","))
    return found


def _noted(machine: Machine) -> list[str]:
    content = machine.content(NOTE)
    return [str(one) for one in json_text.read(content.decode())] if content else []


def _note(mounted: Sequence[str], machine: Machine) -> None:
    with open(machine.real(NOTE), "w", encoding="utf-8") as stream:
        json.dump(list(mounted), stream)
