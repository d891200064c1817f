# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Netplan files, NetworkManager profiles and networkd files of others: what is in the way of ours, and what is adopted.

What an adopted file says of the fabric is disabled; its content comes back at a reset, as that of every file that we
replace. Nobody is asked about one that holds nothing to lose: it asks DHCP at most, for interfaces of the fabric only.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import netplan, networkd_files, reading
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import SET
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.netplan import Nic
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File, originals

PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def files_in(machine: Machine, directories: Iterable[str], ending: str) -> dict[str, str]:
    """The files of these directories by path."""
    paths = (f"{d}/{name}" for d in directories for name in machine.names(d) if name.endswith(ending))
    return {path: text for path in paths for text in [machine.read(path)] if text is not None}


def nic(machine: Machine, netdev: str) -> Nic:
    path = machine.sysfs / "class/net" / netdev
    place = sysfs.link_name(path / "device") or ""
    return Nic(
        netdev,
        sysfs.read_text(path / "address") or "",
        sysfs.link_name(path / "device/driver") or "",
        f"pci-{place}" if PCI.fullmatch(place) else "",
    )


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class Foreign:
    """What others say about ``interfaces``; ``foreign`` is refuse or adopt."""

    def __init__(
        self,
        machine: Machine,
        interfaces: Sequence[netplan.Interface],
        foreign: str,
        renderer: str = "networkd",
    ) -> None:
        self.machine = machine
        self.interfaces = interfaces
        self.foreign = foreign
        self.renderer = renderer

    def check(self, adopted: Iterable[File]) -> None:
        """Everything that still is in the way, and why it cannot be adopted where that was asked for."""
        found = self._left(adopted)
        if found:
            text = "; ".join(f"{item.file}: {item.found}" for item in found)
            remedies = dict.fromkeys(item.remedy for item in found)
            held = self._held()
            why = sorted(filter(None, {self._not_adoptable(item.file, held) for item in found}))
            choice = "Set fabric_foreign: adopt to have it disabled until a reset. Or by hand"
            if why:
                choice = f"It cannot be adopted ({'; '.join(why)})"
            remedies = dict.fromkeys([choice, *remedies])
            raise SparkError(
                text, ", ".join(dict.fromkeys(item.netdev for item in found)), f"{'. '.join(remedies)}. Then run again"
            )

    def waiting(self, adopted: Iterable[File]) -> list[str]:
        """What is in the way and has no effect yet: one line each."""
        return [
            f"{item.netdev}: {item.file}: {item.found}; from the next boot on, if not before. {item.remedy}"
            for item in self._left(adopted)
        ]

    def _left(self, adopted: Iterable[File]) -> list[netplan.Conflict]:
        gone = [item.path for item in adopted]
        return [item for item in self._conflicts(self._files()) if item.file not in gone and not item.needless]

    def names(self, netdev: str, address: str) -> bool:
        """It is in a netplan or NetworkManager file, which then is named with a better message."""
        return any(address in text and netdev in text for text in self._files().values())

    def adopt(self) -> list[File]:
        """Foreign files that are disabled: same path, and their content is kept for the reset as that of every
        other file that we replace. What was adopted before stays so while its original would be in the way."""
        held, on_disk = self._held(), self._files()
        # Its original is still there where a run was cut off before it replaced it.
        kept = {p: text for p, text in held.items() if on_disk.get(p, text) in (text, self._out_of_force(p, text))}
        contents = {**on_disk, **kept}
        paths = dict.fromkeys(item.file for item in self._conflicts(contents, kept))
        return [
            File(
                path,
                content=encoded(self._out_of_force(path, contents[path])),
                mode=0o600 if path.endswith((".yaml", ".nmconnection")) else 0o644,  # networkd is not root
                secret=netplan.beyond_adapters(path, contents[path]),
            )
            for path in paths
            if path in kept or (self._may_go(path) and not self._not_adoptable(path, held))
        ]

    def unasked(self, adopted: Iterable[File]) -> list[str]:
        """Those of ``adopted`` that are disabled now without having been asked for: one line each."""
        if self.foreign == "adopt":
            return []
        held, names = self._held(), ", ".join(item.netdev for item in self.interfaces)
        return [
            f"{item.path}: asks DHCP at most, on interfaces of the fabric only ({names}); it is disabled until a reset"
            for item in adopted
            if item.path not in held
        ]

    def _may_go(self, path: str) -> bool:
        if self.foreign == "adopt":
            return True
        if not path.endswith(".yaml"):
            return False
        return netplan.nothing_to_lose(
            path, self.machine.read(path) or "", [item.netdev for item in self.interfaces], self._nics()
        )

    def _files(self) -> dict[str, str]:
        """Text of everything that may be in the way, by path."""
        return {
            **files_in(self.machine, netplan.DIRECTORIES, ".yaml"),
            **files_in(self.machine, (netplan.KEYFILES,), ".nmconnection"),
            **networkd_files.foreign(self.machine),
        }

    def _conflicts(self, files: Mapping[str, str], sure: Container[str] = ()) -> list[netplan.Conflict]:
        """``sure``: netplan need not be asked about these."""
        kinds: list[dict[str, str]] = [{}, {}, {}]
        for path, text in files.items():
            kinds[0 if path.endswith(".yaml") else 1 if path.endswith(".nmconnection") else 2][path] = text
        found = netplan.conflicts(kinds[0], self.interfaces)
        ours = netplan.render(self.interfaces, self.renderer)
        own, manager = {item.netdev: item.nic for item in self.interfaces}, self.renderer == "NetworkManager"
        return [
            *(
                item
                for item in found
                if not item.asked
                or item.file in sure
                or reading.changes(self.machine, ours, {item.file: files[item.file]}, own[item.netdev], manager)
            ),
            *netplan.keyfile_conflicts(kinds[1], self.interfaces),
            *networkd_files.conflicts({} if manager else kinds[2], self.interfaces),
        ]

    def _held(self) -> dict[str, str]:
        """The originals of adopted files."""
        places = tuple(f"{place}/" for place in (*netplan.DIRECTORIES, netplan.KEYFILES, *networkd_files.DIRECTORIES))
        found = originals(SET, root=self.machine.root)
        return {
            path: state.content.decode("utf-8", "surrogateescape")
            for path, state in found.items()
            if state.kind == "file" and path.startswith(places) and path != netplan.FILE
        }

    def _not_adoptable(self, path: str, held: Mapping[str, str]) -> str:
        """Why it is not disabled, or nothing."""
        if path in held:
            return f"{path} was adopted before and has been changed since"
        if not path.startswith("/etc/"):
            return f"{path} belongs to a package or to the running system"
        text = self.machine.read(path) or ""
        if path.endswith(".nmconnection"):
            return netplan.keyfile_not_adoptable(path, text)
        if not path.endswith(".yaml"):
            return networkd_files.not_adoptable(path, text, [nic(self.machine, name) for name in self.card()])
        return netplan.not_adoptable(path, text, self.card(), self._nics())

    def _out_of_force(self, path: str, text: str) -> str:
        return netplan.out_of_force(path, text, self.card(), self._nics())

    def _nics(self) -> list[Nic]:
        """All interfaces of the machine."""
        present = {*self.card(), *(sysfs.names(self.machine.sysfs / "class/net") or ())}
        return [nic(self.machine, netdev) for netdev in sorted(present)]

    def card(self) -> set[str]:
        """The interfaces of the RDMA NIC, cabled or not: a guide's file names all four."""
        root = self.machine.sysfs
        return {path.name for path in root.glob("class/infiniband/*/device/net/*")} | {
            item.netdev for item in self.interfaces
        }
