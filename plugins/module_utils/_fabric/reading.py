# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What netplan makes of files, tried in a scratch directory: its own reading, and not ours, says whether a file of
somebody else changes anything."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import netplan, networkd_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.netplan import Nic

PROFILES = "/run/NetworkManager/system-connections"


@dataclass(frozen=True)
class Reading:
    """What netplan has made: text by name."""

    networkd: Mapping[str, str]  # .network and .link
    profiles: Mapping[str, str]

    def of(self, nic: Nic, manager: bool) -> list[str]:
        """Everything that counts for an interface, one line each; ``manager``: NetworkManager configures it."""
        names = [networkd_files.first(self.networkd, nic, ending) for ending in (".network", ".link")]
        texts = [self.networkd[name] for name in names if name]
        if manager:
            texts += [text for text in self.profiles.values() if netplan.profile_fits(text, nic) == netplan.EXACTLY]
        # A name that it has anyway, and IPv6 addresses, which are no business of ours.
        said = {
            f"{key}={value}"
            for text in texts
            for section, key, value in netplan.ini_lines(text)
            if section != "Match" and (section, key, value) != ("Link", "Name", nic.netdev)
            if key != "Address" or ":" not in value
        }
        return sorted(said)


def read(machine: Machine, files: Mapping[str, str]) -> Reading:
    """``files``: text of netplan's files by path. Raises :class:`SparkError` where netplan refuses them."""
    with tempfile.TemporaryDirectory(prefix="sparkmatrix-fabric-") as scratch:
        os.makedirs(f"{scratch}/usr/lib")
        os.symlink("usr/lib", f"{scratch}/lib")  # releases of netplan differ in which of the two they read
        for path, text in files.items():
            os.makedirs(os.path.dirname(scratch + path), exist_ok=True)
            with open(scratch + path, "w", encoding="utf-8", errors="surrogateescape", opener=_private) as stream:
                stream.write(text)
        done = machine.runner(("netplan", "generate", "--root-dir", scratch))
        if done.rc != 0:
            complaint = done.complaint.replace(scratch, "")
            named = re.search(r"/(?:lib|etc|run)/netplan/[^/]+?\.yaml", complaint)
            remedy = netplan.remedy_of_broken(named[0]) if named else "Install netplan.io, or correct what it names"
            raise SparkError(
                f"validating the netplan configuration failed: {complaint}", "", f"{remedy}; nothing was changed"
            )
        made = Machine(scratch)
        return Reading(
            {**texts(made, networkd_files.MADE, ".network"), **texts(made, networkd_files.MADE, ".link")},
            texts(made, PROFILES, ".nmconnection"),
        )


def changes(machine: Machine, ours: str, more: Mapping[str, str], own: Nic, manager: bool) -> bool:
    """Whether netplan makes something else of our file for an interface when these are there as well. What it reads
    with others only counts as a change."""
    alone = read(machine, {netplan.FILE: ours})
    try:
        both = read(machine, {**more, netplan.FILE: ours})
    except SparkError:
        return True
    return alone.of(own, manager) != both.of(own, manager)


def texts(machine: Machine, directory: str, ending: str) -> dict[str, str]:
    """By name, of what netplan makes in a directory."""
    names = [name for name in machine.names(directory) if "netplan-" in name and name.endswith(ending)]
    return {name: machine.read(f"{directory}/{name}") or "" for name in names}


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
