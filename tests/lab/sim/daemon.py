# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The RDMA simulator: runs on a lab node, keeps /sys/class/infiniband in step with the node's real interfaces.

Below /run/sim (a tmpfs): infiniband/ is mounted at /sys/class/infiniband, pci/ at /sys/bus/pci/devices, files of net/
over the attributes of the netdevs, files of sysctl/ over host-wide settings in /proc/sys. ctl/ comes from the host:
faults.json, and a socket on which "sync" is answered with "ok" when everything is up to date.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import pathlib
import select
import shutil
import socket
import sys
from dataclasses import dataclass
from typing import Any

from sim import gidtable, rtnl, spark, sysfs

RUN = pathlib.Path("/run/sim")
CTL = RUN / "ctl"
CLASS = pathlib.Path("/sys/class")
# Reading the speed of the loopback device fails with EINVAL, and so does what links to it: as the entry of an
# empty GID does.
EINVAL_FILE = "/sys/class/net/lo/speed"
# Settings of the whole machine, not of a network namespace: each node gets its own, so that a role cannot change the
# host's. Values are Ubuntu's.
SYSCTLS = {
    "vm/swappiness": "60",
    "vm/drop_caches": "0",
    "vm/vfs_cache_pressure": "100",
    "vm/min_free_kbytes": "90112",
    "vm/max_map_count": "65530",  # plain Linux: Ubuntu and DGX OS have more, and a role that raises it has work to do
}
MEMINFO = pathlib.Path("/proc/meminfo")
MS_BIND = 4096
STATIC_PCI = {
    "0007:01:00.0": {"vendor": "0x10ec", "device": "0x8127", "class": "0x020000", "numa_node": "-1"},
    "000f:01:00.0": {"vendor": "0x10de", "device": "0x2e12", "class": "0x030000", "numa_node": "-1"},
}

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    def raw(text: str | None) -> bytes | None:
        return text.encode() if text is not None else None

    if _libc.mount(raw(source), raw(target), raw(kind), ctypes.c_ulong(flags), raw(options)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


def mounted() -> set[str]:
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        return {line.split()[4].replace("\\040", " ") for line in lines}


def bind(source: pathlib.Path, target: pathlib.Path) -> None:
    """Mount once. A target that does not exist (a netdev that just left) is passed over."""
    if os.path.realpath(target) in mounted():
        return
    try:
        mount(str(source), str(target), flags=MS_BIND)
    except OSError as exc:
        if exc.errno not in (errno.ENOENT, errno.ESTALE, errno.ENODEV):
            raise


def write_in_place(path: pathlib.Path, text: str) -> None:
    """Change a file that is mounted elsewhere: same inode, no moment at which it is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(descriptor, text.encode(), 0)
        os.ftruncate(descriptor, len(text.encode()))
    finally:
        os.close(descriptor)


class Tree:
    """A directory of simulated attributes; writes only what differs from what it wrote before."""

    def __init__(self, path: pathlib.Path, links: dict[str, str]) -> None:
        self.path = path
        self.links = links
        self.written: dict[str, sysfs.Value] = {}

    def update(self, files: dict[str, sysfs.Value]) -> None:
        if self.written:
            self._write(self.path, files)
        else:  # appear at once, complete
            shutil.rmtree(self.path, ignore_errors=True)
            fresh = RUN / f"new-{self.path.name}"
            shutil.rmtree(fresh, ignore_errors=True)
            self._write(fresh, files)
            for name, target in self.links.items():
                (fresh / name).symlink_to(target)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh.rename(self.path)
        self.written = files

    def _write(self, base: pathlib.Path, files: dict[str, sysfs.Value]) -> None:
        for name, value in files.items():
            if self.written.get(name) == value:
                continue
            path = base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.parent / ".new"
            if isinstance(value, sysfs.NoValue):
                draft.symlink_to(EINVAL_FILE)
            else:
                draft.write_text(value + "\n")
            draft.rename(path)
        for name in self.written.keys() - files.keys():
            (base / name).unlink()

    def remove(self) -> None:
        if self.written:
            gone = RUN / f"gone-{self.path.name}"
            shutil.rmtree(gone, ignore_errors=True)
            self.path.rename(gone)
            shutil.rmtree(gone)
            self.written = {}


@dataclass
class Port:
    """One function with what is known about its netdev."""

    nic: spark.Nic
    rdma: Tree
    pci: Tree
    table: gidtable.GidTable | None = None
    mounted_for: int = 0  # ifindex of the netdev whose attributes are covered


class Simulator:
    def __init__(self) -> None:
        self.host = socket.gethostname()
        self.links: dict[int, rtnl.Link] = {}
        self.addresses: dict[tuple[int, str], None] = {}  # in the order of arrival
        self.faults: dict[str, Any] = {}
        self.ports = [
            Port(
                nic,
                Tree(RUN / "infiniband" / nic.rdma, {"device": f"../../../bus/pci/devices/{nic.pci}"}),
                Tree(RUN / "pci" / nic.pci, {"driver": "../../drivers/mlx5_core"}),
            )
            for nic in spark.NICS
        ]

    # --- what the kernel says -----------------------------------------------------------------------------------

    def load(self) -> None:
        """Read everything anew: at the start, and when events were lost."""
        links, addresses = rtnl.dump()
        self.links = {link.index: link for link in links}
        self.addresses = {(found.index, found.address): None for found in addresses}

    def event(self, event: rtnl.Event) -> None:
        what = event.what
        if isinstance(what, rtnl.Link):
            if event.gone:
                self.links.pop(what.index, None)
                self.addresses = {key: None for key in self.addresses if key[0] != what.index}
            else:
                self.links[what.index] = what
        elif event.gone:
            self.addresses.pop((what.index, what.address), None)
        else:
            self.addresses[what.index, what.address] = None

    # --- what follows from it -----------------------------------------------------------------------------------

    def present(self, link: rtnl.Link) -> list[tuple[str, str]]:
        """Addresses of a netdev and of the VLANs on it, with the name of the device that has them."""
        names = {link.index: link.name}
        names |= {up.index: up.name for up in self.links.values() if up.below == link.index and up.kind == "vlan"}
        blind = link.name in self.faults.get("gid_missing", [])
        return [(a, names[index]) for index, a in self.addresses if index in names and not (blind and ":" not in a)]

    def publish(self, rebuild: frozenset[str] = frozenset()) -> None:
        """Bring the simulated files in line. ``rebuild`` names netdevs whose driver is to be loaded anew."""
        by_name = {link.name: link for link in self.links.values()}
        first = by_name.get(spark.NICS[0].netdev)
        image_mac = first.mac if first else spark.mac(spark.node_number(self.host), 0)
        for port in self.ports:
            link = by_name.get(port.nic.netdev)
            if link is None:
                port.rdma.remove()
                port.pci.remove()
                port.table, port.mounted_for = None, 0
                continue
            present = self.present(link)
            if port.table is None or port.table.mac != link.mac or link.name in rebuild:
                port.table = gidtable.GidTable(link.mac, link.name)
                port.table.rebuild(present, ipv6_first=link.name in self.faults.get("ipv6_first", []))
            else:
                port.table.rescan(present)
            pcie = sysfs.PciLink(**self.faults.get("pcie", {}).get(link.name, {}))
            speed = self.faults.get("speed", {}).get(link.name, sysfs.CABLE_MBPS)
            port.pci.update(sysfs.pci(port.nic, link, image_mac, pcie, speed))
            port.rdma.update(sysfs.rdma(port.nic, link, port.table, image_mac, self.host, speed=speed))
            for name, value in sysfs.overrides(port.nic, link, image_mac, speed).items():
                write_in_place(RUN / "net" / link.name / name, f"{value}\n")
                if port.mounted_for != link.index:
                    bind(RUN / "net" / link.name / name, CLASS / "net" / link.name / name)
            port.mounted_for = link.index

    def control(self) -> None:
        """Read the faults that the host set, and everything else too: nothing may be pending after a sync."""
        before = self.faults
        try:
            self.faults = json.loads((CTL / "faults.json").read_text())
        except FileNotFoundError:
            self.faults = {}
        changed = set(before.get("ipv6_first", [])) ^ set(self.faults.get("ipv6_first", []))
        self.load()
        self.publish(frozenset(changed))
        leak_cma(bool(self.faults.get("cma_leak")))


def leak_cma(leak: bool) -> None:
    """Show another /proc/meminfo, or the real one again."""
    if leak and str(MEMINFO) not in mounted():
        kept = [line for line in MEMINFO.read_text().splitlines() if not line.startswith("Cma")]
        write_in_place(
            RUN / "meminfo", "\n".join([*kept, "CmaTotal:              0 kB", "CmaFree:          913408 kB"]) + "\n"
        )
        bind(RUN / "meminfo", MEMINFO)
    elif not leak and str(MEMINFO) in mounted() and _libc.umount(str(MEMINFO).encode()):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(MEMINFO))


def prepare() -> None:
    """Mount points and the parts that never change. Safe to repeat."""
    (RUN / "class/infiniband").mkdir(parents=True, exist_ok=True)
    for name in ("infiniband", "pci"):
        (RUN / name).mkdir(exist_ok=True)
        for left_over in (RUN / name).iterdir():
            shutil.rmtree(left_over)
    if str(CLASS) not in mounted():
        mount("overlay", str(CLASS), "overlay", 0, f"lowerdir={RUN / 'class'}:{CLASS}")
    bind(RUN / "infiniband", CLASS / "infiniband")
    bind(RUN / "pci", pathlib.Path("/sys/bus/pci/devices"))
    for address, files in STATIC_PCI.items():
        Tree(RUN / "pci" / address, {}).update({**files, "uevent": f"PCI_SLOT_NAME={address}"})
    for key, value in SYSCTLS.items():
        source = RUN / "sysctl" / key
        if not source.exists():
            write_in_place(source, f"{value}\n")
        bind(source, pathlib.Path("/proc/sys") / key)


def notify_ready() -> None:
    path = os.environ.get("NOTIFY_SOCKET")
    if path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.connect("\0" + path[1:] if path.startswith("@") else path)
            notify.send(b"READY=1")


def serve(simulator: Simulator) -> None:
    events = rtnl.listen()  # before the first dump: nothing is missed between the two
    (CTL / "socket").unlink(missing_ok=True)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    control.bind(str(CTL / "socket"))
    control.listen()
    simulator.control()
    notify_ready()
    while True:
        ready, _, _ = select.select([events, control], [], [])
        if events in ready:
            try:
                for event in rtnl.parse(events.recv(rtnl.BUFFER)):
                    if event:
                        simulator.event(event)
            except OSError as exc:
                if exc.errno != errno.ENOBUFS:
                    raise
                simulator.load()
            simulator.publish()
        if control in ready:
            client, _ = control.accept()
            with client:
                client.settimeout(5)
                client.recv(64)
                simulator.control()
                client.sendall(b"ok\n")


def main() -> int:
    prepare()
    serve(Simulator())
    return 0


if __name__ == "__main__":
    sys.exit(main())
