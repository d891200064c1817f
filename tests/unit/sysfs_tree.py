# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Synthetic sysfs trees for tests.

Shaped like Linux 6.12: real directories below ``devices``, symbolic links everywhere else. One thing cannot be built
from files: attributes that exist and fail with EINVAL. A missing file stands for them, except where a test patches
``os.read``.

    tree = SysfsTree(tmp_path / "sys").spark(cabled={0})
    tree.gid("rocep1s0f0", 2, "192.168.100.10", "v1")
"""

from __future__ import annotations

import ipaddress
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

ZERO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
TYPES = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}

# (PCI address, RDMA device, netdev, phys_port_name, last byte of the MAC), in no helpful order.
SPARK = (
    ("0002:01:00.1", "roceP2p1s0f1", "enP2p1s0f1np1", "p1", 0x54),
    ("0000:01:00.0", "rocep1s0f0", "enp1s0f0np0", "p0", 0x4F),
    ("0002:01:00.0", "roceP2p1s0f0", "enP2p1s0f0np0", "p0", 0x53),
    ("0000:01:00.1", "rocep1s0f1", "enp1s0f1np1", "p1", 0x50),
)


def mac(last: int) -> str:
    return f"4c:bb:47:2e:10:{last:02x}"


def gid_of(address: str) -> str:
    """The GID of an IPv4 or IPv6 address, as the kernel prints it."""
    ip = ipaddress.ip_address(address)
    return ipaddress.IPv6Address(f"::ffff:{ip}" if ip.version == 4 else str(ip)).exploded


def link_local_gid(hardware_address: str) -> str:
    """The default GID that the kernel builds from the MAC (EUI-64)."""
    octets = [int(part, 16) for part in hardware_address.split(":")]
    octets = [octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]]
    digits = "".join(f"{octet:02x}" for octet in octets)
    return "fe80:0000:0000:0000:" + ":".join(digits[i : i + 4] for i in range(0, 16, 4))


class SysfsTree:
    """``table`` is the length of the GID tables: 256 on mlx5, short by default because tests build many trees."""

    def __init__(self, root: Path, table: int = 8) -> None:
        self.root = root
        self.table = table
        root.mkdir(parents=True, exist_ok=True)

    # --- primitives

    def path(self, name: str) -> Path:
        return self.root / name

    def write(self, name: str, content: str | bytes) -> Path:
        """Write one attribute, through symbolic links, with the newline that the kernel adds."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
        return path

    def write_all(self, directory: str, attributes: Mapping[str, object]) -> None:
        for name, value in attributes.items():
            if value is not None:
                self.write(f"{directory}/{name}", str(value))

    def remove(self, name: str) -> None:
        path = self.root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

    def link(self, name: str, target: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(os.path.relpath(self.root.resolve() / target, path.parent.resolve()))

    # --- devices

    def pci(self, address: str, vendor: str = "0x15b3", device: str = "0x1021", driver: str = "mlx5_core") -> str:
        """A PCI function; returns its directory."""
        directory = f"devices/pci{address[:7]}/{address[:5]}00:00.0/{address}"
        uevent = f"DRIVER={driver}\nPCI_CLASS=20000\nPCI_SLOT_NAME={address}" if driver else f"PCI_SLOT_NAME={address}"
        self.write_all(
            directory,
            {
                "vendor": vendor,
                "device": device,
                "numa_node": -1,
                "current_link_speed": "32.0 GT/s PCIe",
                "current_link_width": 4,
                "max_link_speed": "32.0 GT/s PCIe",
                "max_link_width": 4,
                "uevent": uevent,
            },
        )
        self.link(f"bus/pci/devices/{address}", directory)
        if driver:
            self.path(f"bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
            self.link(f"{directory}/driver", f"bus/pci/drivers/{driver}")
        return directory

    def netdev(self, name: str, parent: str = "devices/virtual", **attributes: object) -> str:
        """A netdev below ``parent``; ``up=False`` gives one without carrier. Returns its directory."""
        up = attributes.pop("up", True)
        directory = f"{parent}/net/{name}"
        values: dict[str, object] = {
            "carrier": int(bool(up)),
            "operstate": "up" if up else "down",
            "speed": 200000 if up else -1,
            "mtu": 9000 if up else 1500,
            "flags": "0x1003",
            "address": mac(1),
            "dev_port": 0,
        }
        self.write_all(directory, {**values, **attributes})
        self.link(f"class/net/{name}", directory)
        if parent != "devices/virtual":
            self.link(f"{directory}/device", parent)
        return directory

    def rdma(self, name: str, parent: str, up: bool = True, **attributes: object) -> str:
        """An RDMA device with one Ethernet port and an empty GID table; returns its directory."""
        directory = f"{parent}/infiniband/{name}"
        self.write_all(directory, {"node_type": "1: CA", "node_desc": f"spark {name}", **attributes})
        self.rdma_port(name, directory, 1, up)
        self.link(f"class/infiniband/{name}", directory)
        return directory

    def rdma_port(self, name: str, directory: str, port: int, up: bool = True) -> None:
        ports = f"{directory}/ports/{port}"
        self.write_all(
            ports,
            {
                "state": "4: ACTIVE" if up else "1: DOWN",
                "phys_state": "5: LinkUp" if up else "3: Disabled",
                "rate": "200 Gb/sec (2X NDR)" if up else "40 Gb/sec (4X QDR)",
                "link_layer": "Ethernet",
                "lid": "0x0",
            },
        )
        for index in range(self.table):
            self.write(f"{ports}/gids/{index}", ZERO_GID)

    def mlx5(
        self,
        address: str,
        device: str,
        netdev: str,
        port_name: str | None,
        last: int,
        *,
        up: bool = True,
        adapter: int = 0x4F,
    ) -> str:
        """One ConnectX-7 function with netdev, RDMA device and its two default GIDs; returns the RDMA directory."""
        pci = self.pci(address)
        self.netdev(
            netdev,
            pci,
            up=up,
            address=mac(last),
            phys_port_name=port_name,
            phys_switch_id=f"{adapter:02x}102e0047bb4c",
        )
        directory = self.rdma(
            device,
            pci,
            up,
            fw_ver="28.45.4028",
            board_id="NVD0000000087",
            hca_type="MT4129",
            hw_rev=0,
            node_guid=f"4cbb:4703:002e:10{last:02x}",
            sys_image_guid=f"4cbb:4703:002e:10{adapter:02x}",
        )
        self.link(f"{directory}/device", pci)
        for index, version in enumerate(("v1", "v2")):
            self.gid(device, index, link_local_gid(mac(last)), version, netdev)
        self.path("module/mlx5_core").mkdir(parents=True, exist_ok=True)
        return directory

    def spark(self, cabled: Collection[int] = (0,), names: Mapping[str, tuple[str, str]] | None = None) -> SysfsTree:
        """All four functions of a DGX Spark. ``names`` maps PCI addresses to other (RDMA device, netdev) names."""
        for address, device, netdev, port_name, last in SPARK:
            device, netdev = (names or {}).get(address, (device, netdev))  # noqa: PLW2901
            self.mlx5(address, device, netdev, port_name, last, up=int(port_name[1:]) in cabled)
        self.pci("0007:01:00.0", vendor="0x10ec", device="0x8127", driver="r8127")
        self.netdev("enP7s7", "devices/pci0007:01/0007:00:00.0/0007:01:00.0", address=mac(0x4E), speed=10000, mtu=1500)
        return self

    def rxe(self, device: str = "rxe0", netdev: str = "eth1") -> SysfsTree:
        """Soft RoCE: no PCI function, a ``parent`` file, one default GID."""
        self.netdev(netdev, address=mac(7), speed=None, mtu=1500)
        directory = f"devices/virtual/infiniband/{device}"
        guid = "4ebb:47ff:fe2e:1007"
        self.write_all(
            directory,
            {"node_type": "1: CA", "node_desc": "rxe", "fw_ver": "", "node_guid": guid, "sys_image_guid": guid},
        )
        self.write(f"{directory}/parent", netdev)
        self.rdma_port(device, directory, 1)
        self.write(f"{directory}/ports/1/rate", "2.5 Gb/sec (1X SDR)")
        self.link(f"class/infiniband/{device}", directory)
        self.gid(device, 0, link_local_gid(mac(7)), "v2", netdev)
        return self

    def gid(
        self, device: str, index: int, address: str, version: str | None, netdev: str | None = None, *, port: int = 1
    ) -> SysfsTree:
        """Fill one entry; ``address`` is a GID in full or an IP address."""
        base = f"class/infiniband/{device}/ports/{port}"
        self.write(f"{base}/gids/{index}", address if address.count(":") == 7 else gid_of(address))
        if version:
            self.write(f"{base}/gid_attrs/types/{index}", TYPES.get(version, version))
        if netdev:
            self.write(f"{base}/gid_attrs/ndevs/{index}", netdev)
        return self

    def address(self, device: str, index: int, address: str, netdev: str) -> SysfsTree:
        """What the kernel does for one IP address: two entries, v1 before v2."""
        return self.gid(device, index, address, "v1", netdev).gid(device, index + 1, address, "v2", netdev)
