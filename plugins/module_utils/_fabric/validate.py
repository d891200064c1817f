# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Let netplan read a new configuration in a scratch directory, before anything is changed, and look at what it makes of
our interfaces and of those that are the way to the machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import netplan, networkd_files, reading
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.foreign_files import files_in, nic
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import SET
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.netplan import Interface, Nic
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.reading import Reading
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File, originals

LINKS = "/run/systemd/netif/links"


def validate(
    machine: Machine, interfaces: Sequence[Interface], new: Sequence[File], manager: bool, ways: Mapping[str, str]
) -> None:
    """``new``: the files of our set that are to be there; of the others the originals come back. ``manager``:
    NetworkManager configures ``interfaces``. ``ways``: the interfaces that lead to the machine, and what each carries.
    """
    before = {path: state.content for path, state in originals(SET, root=machine.root).items() if state.kind == "file"}
    after = {**before, **{item.path: item.content or b"" for item in new}}
    files = {
        **{
            path: text for path, text in files_in(machine, netplan.DIRECTORIES, ".yaml").items() if path != netplan.FILE
        },
        **{path: text.decode("utf-8", "surrogateescape") for path, text in after.items() if path.endswith(".yaml")},
    }
    made = reading.read(machine, files)
    alone = reading.read(machine, {netplan.FILE: files[netplan.FILE]}) if interfaces else made
    for interface in interfaces:
        wanted, found = (one.of(interface.nic, manager) for one in (alone, made))
        if not any(interface.address in line for line in wanted):
            raise SparkError(
                f"netplan accepts {netplan.FILE} but configures no {interface.address} from it",
                interface.netdev,
                "Update netplan.io, and look at what it makes of the file: netplan get",
            )
        if found != wanted:
            gone, more = (
                [line for line in one if line not in other] for one, other in ((wanted, found), (found, wanted))
            )
            said = ", ".join([*more, *(f"no {line}" for line in gone)])
            culprits = _culprits(machine, files, interface, manager)
            raise SparkError(
                f"{culprits}: what netplan makes of our file is not the same with it: {said}",
                interface.netdev,
                f"Take {interface.netdev} out of it, and run again; nothing was changed",
            )
    for netdev, carries in ways.items():
        _check_way(machine, made, nic(machine, netdev), carries)


def _culprits(machine: Machine, files: Mapping[str, str], interface: Interface, manager: bool) -> str:
    """The files that make the difference, each tried with ours alone."""
    ours, found = files[netplan.FILE], []
    for path, text in files.items():
        if path != netplan.FILE and reading.changes(machine, ours, {path: text}, interface.nic, manager):
            found.append(path)
    return ", ".join(found) or "what the other netplan files say together"


def _check_way(machine: Machine, made: Reading, own: Nic, carries: str) -> None:
    """``networkctl reload`` and ``nmcli connection reload`` make every file effective: also an edit of the management
    network that waits there, and that a file of it was moved away."""
    now = Reading(
        reading.texts(machine, networkd_files.MADE, ".network"),
        reading.texts(machine, reading.PROFILES, ".nmconnection"),
    )
    used = _used(machine, own) or networkd_files.first(now.networkd, own)
    found = networkd_files.first(made.networkd, own)
    lost = [f"{networkd_files.MADE}/{used}"] if used and found is None else []
    wireless = (machine.sysfs / "class/net" / own.netdev / "wireless").exists()
    for name, text in now.profiles.items():
        kind = "\ntype=wifi" in text
        if name not in made.profiles and netplan.profile_fits(text, own) and kind == wireless:
            lost.append(f"{reading.PROFILES}/{name}")
    if lost:
        raise SparkError(
            f"it carries {carries}, and netplan's files no longer define it: {', '.join(lost)} would vanish with the "
            "next change, and the line would be cut",
            own.netdev,
            "Put back the file that was moved away or edited, without what is about the fabric, and run again; nothing "
            "was changed",
        )
    if (used or None, now.networkd.get(used or "")) != (found, made.networkd.get(found or "")):
        raise SparkError(
            "its netplan configuration was edited and not applied yet; it would become effective now, and it "
            f"carries {carries}",
            own.netdev,
            "Apply or take back that edit (sudo netplan try, at the machine), and run again",
        )


def _used(machine: Machine, own: Nic) -> str:
    """The file of netplan that networkd has configured an interface by; it may be gone by now."""
    index = sysfs.read_text(machine.sysfs / "class/net" / own.netdev / "ifindex")
    said = re.search(rf"^NETWORK_FILE={networkd_files.MADE}/(\S+)$", machine.text(f"{LINKS}/{index}") or "", re.M)
    return said[1] if said else ""
