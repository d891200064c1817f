# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Let netplan read a new configuration in a scratch directory, before anything is changed."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import netplan, renderer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.foreign_files import files_in
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.netplan import Interface
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File


def validate(
    machine: Machine, interfaces: Sequence[Interface], files: Sequence[File], backend: str, connection: str
) -> None:
    """Let netplan read everything in a scratch directory first, and look at what it makes of it."""
    with tempfile.TemporaryDirectory(prefix="sparkmatrix-fabric-") as scratch:
        for directory in netplan.DIRECTORIES:
            for path, text in files_in(machine, (directory,), ".yaml").items():
                _put(scratch + path, text)
        for item in files:
            if item.path.endswith(".yaml"):
                _put(scratch + item.path, (item.content or b"").decode("utf-8", "surrogateescape"))
        done = machine.runner(("netplan", "generate", "--root-dir", scratch))
        if done.rc != 0:
            complaint = done.complaint.replace(scratch, "")
            named = re.search(r"/(?:lib|etc|run)/netplan/[^/]+?\.yaml", complaint)
            remedy = netplan.remedy_of_broken(named[0]) if named else "Install netplan.io, or correct what it names"
            raise SparkError(
                f"validating the netplan configuration failed: {complaint}", "", f"{remedy}; nothing was changed"
            )
        made = Path(scratch + renderer.NETWORKS)
        by_nm = backend == renderer.NETWORKMANAGER
        place, ending = (Path(scratch + renderer.PROFILES), "nmconnection") if by_nm else (made, "network")
        for interface in interfaces:
            texts = [path.read_text() for path in place.glob(f"*netplan-{interface.netdev}.{ending}")]
            if not any(interface.address in text for text in texts):
                raise SparkError(
                    f"netplan accepts {netplan.FILE} but configures no {interface.address} from it",
                    interface.netdev,
                    "Look for another file that defines this interface: netplan get",
                )
        _check_pending(machine, made, connection)


def _check_pending(machine: Machine, made: Path, connection: str) -> None:
    """``networkctl reload`` makes every file effective, also an edit of the management network that waits there."""
    if not connection:
        return
    pending = {path.name: path.read_text() for path in made.glob(f"*netplan-{connection}.network")}
    for name, text in pending.items():
        if machine.read(f"{renderer.NETWORKS}/{name}") != text:
            raise SparkError(
                "its netplan configuration was edited and not applied yet; it would become effective now, and it "
                "carries Ansible's connection",
                connection,
                "Apply or take back that edit (sudo netplan try, at the machine), and run again",
            )


def _put(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8", errors="surrogateescape", opener=_private) as stream:
        stream.write(text)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
