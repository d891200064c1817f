# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Python and NCCL of a node: environments, interpreters, the library, its settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import trusted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Environment

_WHEEL = re.compile(r"nvidia_nccl_cu\d+-(\d+(?:\.\d+)+)\.dist-info")
_LIBRARY = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)")
_LIBRARY_PLACES = ("/usr/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/local/lib", "/usr/lib64")


def environments(machine: Machine, paths: Sequence[str], users: Sequence[str] = ()) -> dict[str, Environment]:
    """Python environments (venv) by path; ``users``: who serve."""
    found = {}
    for path in paths:
        base = Path(machine.real(path))
        wheels = [
            _WHEEL.fullmatch(item.name) for item in base.glob("lib/python3*/site-packages/nvidia_nccl_cu*.dist-info")
        ]
        found[path] = Environment(
            os.path.lexists(base / "bin/python"),
            next((match.group(1) for match in wheels if match), None),
            trusted.distrusted(f"{path}/bin/python", users, machine.root),
        )
    return found


def system_nccl(machine: Machine) -> str | None:
    """The version of NVIDIA's package libnccl2, by the name of its library; the newest one of several."""
    names = (_LIBRARY.fullmatch(name) for place in _LIBRARY_PLACES for name in machine.names(place))
    versions = [match.group(1) for match in names if match]
    return max(versions, key=lambda text: [int(part) for part in text.split(".")], default=None)


def interpreters(machine: Machine, names: Sequence[str], users: Sequence[str] = ()) -> dict[str, str | None]:
    """``{program: version}`` of Python interpreters, None where a program does not run, or root must not run it."""
    found: dict[str, str | None] = {}
    for name in names:
        if name.startswith("/") and trusted.distrusted(name, users):
            found[name] = None
            continue
        text = (machine.output(name, "-c", "import sys; print('.'.join(map(str, sys.version_info[:3])))") or "").strip()
        found[name] = text if re.fullmatch(r"\d+(\.\d+)+", text) else None
    return found


def nccl_settings(machine: Machine, users: Sequence[str]) -> dict[str, dict[str, str]]:
    """``{file: {name: value}}`` of the files that NCCL reads: /etc/nccl.conf, and ~/.nccl.conf of each user.

    NCCL takes the home directory from the account of the process, not from HOME. Its own environment comes first, then
    the user's file, then /etc/nccl.conf; ``#`` begins a comment in the first column only. Source: src/misc/param.cc.
    """
    homes = _homes(machine.text("/etc/passwd") or "")
    paths = ["/etc/nccl.conf", *(f"{homes[user]}/.nccl.conf" for user in users if user in homes)]
    found = {}
    for path in dict.fromkeys(paths):
        lines = (line for line in (machine.text(path) or "").splitlines() if not line.startswith("#"))
        pairs = (line.partition("=") for line in lines if "=" in line)
        settings = {name.strip(): value.strip() for name, _equals, value in pairs if name.strip()}
        if settings:
            found[path] = settings
    return found


def _homes(passwd: str) -> Mapping[str, str]:
    rows = (line.split(":") for line in passwd.splitlines())
    return {row[0]: row[5].rstrip("/") for row in rows if len(row) > 6}
