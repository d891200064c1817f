# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Runs in a virtual machine at boot: soft RoCE devices under a Spark's names, with the few attributes they lack.

Devices, ports, states and GID tables are the kernel's. What only a ConnectX-7 has is laid over sysfs: the PCI function
(``device``, its path and link) and ``sys_image_guid``, equal for both halves, by an overlay on each device's directory;
``phys_port_name`` and ``speed`` of the netdevs by bind mounts.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from sim import rtnl, spark, sysfs
from sim.daemon import bind, mount, write_in_place

RUN = pathlib.Path("/run/sparkvm")
NET = pathlib.Path("/sys/class/net")
RDMA = pathlib.Path("/sys/class/infiniband")
WAIT_S = 60


def wait_for(paths: list[pathlib.Path], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while missing := [str(path) for path in paths if not path.exists()]:
        if time.monotonic() > deadline:
            raise SystemExit(f"not there after {seconds:.0f} s: {', '.join(missing)}")
        time.sleep(0.1)


def dress(nic: spark.Nic, image_mac: str) -> None:
    """Lay what soft RoCE cannot know over the device of one half."""
    mac = (NET / nic.netdev / "address").read_text().strip()
    link = rtnl.Link(index=0, name=nic.netdev, mac=mac, mtu=1500, up=True, carrier=True, below=0, kind="")
    function = RUN / "pci" / nic.pci
    for name, value in sysfs.pci(nic, link, image_mac, sysfs.PciLink()).items():
        # The netdev's own attributes are those of the kernel.
        if isinstance(value, str) and not name.startswith("net/"):
            write_in_place(function / name, f"{value}\n")
    upper = RUN / "rdma" / nic.rdma
    upper.mkdir(parents=True)
    (upper / "device").symlink_to(function)
    write_in_place(upper / "sys_image_guid", f"{spark.guid(image_mac)}\n")
    target = (RDMA / nic.rdma).resolve()
    mount("overlay", str(target), "overlay", 0, f"lowerdir={upper}:{target}")
    for name in ("phys_port_name", "speed"):
        source = RUN / "net" / nic.netdev / name
        write_in_place(source, f"{sysfs.overrides(nic, link, image_mac)[name]}\n")
        bind(source, NET / nic.netdev / name)


def main() -> int:
    nics = [nic for nic in spark.NICS if nic.cage == 0]
    wait_for([NET / nic.netdev / "address" for nic in nics], WAIT_S)
    image_mac = (NET / nics[0].netdev / "address").read_text().strip()
    for nic in nics:
        # As on a Spark, where a NetworkManager profile without addresses brings them up.
        subprocess.run(["ip", "link", "set", nic.netdev, "up"], check=True)
        subprocess.run(["rdma", "link", "add", nic.rdma, "type", "rxe", "netdev", nic.netdev], check=True)
        dress(nic, image_mac)
    return 0


if __name__ == "__main__":
    sys.exit(main())
