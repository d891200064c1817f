# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which RDMA device belongs to which netdev, and which of them share a QSFP cage.

:func:`read` takes everything from sysfs, :func:`parse` reads what the vendor's script ``ibdev2netdev`` prints.

A DGX Spark has one ConnectX-7 with two QSFP cages and four PCI functions: every cage is reached over two PCIe paths
(PCI domains 0000 and 0002, x4 each), its two halves. Names do not say which functions are twins: the ``f0`` functions
of both domains lead to cage 0. The hardware says it: twins have the same ``sys_image_guid`` and ``phys_port_name``.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import kinds, strict, sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

NVIDIA_NETWORK_VENDOR = "0x15b3"
HOTPLUG_RULE = "90-mtk-hotplug.rules"  # package dgx-spark-mlnx-hotplug
HOTPLUG_DRIVER = "cx7-pcie-hotplug"


def _address(value: Any) -> str:
    text = strict.word(value)
    strict.pci_domain(text.split(":", 1)[0])
    return text


@dataclass(frozen=True)
class PciFunction:
    """The PCI function under an RDMA device. Speeds are per lane in GT/s, widths in lanes; None: not told."""

    PART = True  # what the module returns has what follows from these fields as well, as with the other classes here

    address: Annotated[str, _address]  # "0002:01:00.1"
    vendor: Optional[kinds.Word] = None  # "0x15b3"
    device: Optional[kinds.Word] = None  # "0x1021"
    numa_node: Optional[kinds.Whole] = None  # None also where the platform says -1
    link_speed_gts: Optional[kinds.Number] = None
    link_width: Optional[kinds.Count] = None
    max_link_speed_gts: Optional[kinds.Number] = None
    max_link_width: Optional[kinds.Count] = None

    @property
    def path(self) -> str:
        """The PCI domain. The halves of a cage differ in it."""
        return self.address.split(":", 1)[0]

    @property
    def bandwidth_gbps(self) -> float | None:
        """What the link carries after line coding, in Gb/s: 126.0 for 32 GT/s x4."""
        if self.link_speed_gts is None or self.link_width is None:
            return None
        coding = 8 / 10 if self.link_speed_gts < 8 else 128 / 130
        return round(self.link_speed_gts * self.link_width * coding, 1)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "bandwidth_gbps": self.bandwidth_gbps}


@dataclass(frozen=True)
class RdmaPort:
    """One port of one RDMA device and the netdev that goes with it. None: this source does not tell."""

    PART = True

    rdma_device: kinds.RdmaDevice
    port: kinds.Octet
    driver: Optional[kinds.Word] = None  # "mlx5_core", "rdma_rxe", "siw"
    link_layer: Optional[kinds.Word] = None  # "Ethernet", "InfiniBand"
    rdma_state: Optional[kinds.Word] = None  # "ACTIVE", "DOWN", "INIT", "ARMED", …
    phys_state: Optional[kinds.Word] = None  # "LinkUp", "Disabled", "Polling", …
    rate_gbps: Optional[kinds.Number] = None  # only while ACTIVE: a down mlx5 port claims 40 Gb/s
    netdev: Optional[kinds.Interface] = None
    netdev_source: Optional[kinds.Word] = None  # "gid", "pci", "parent" or "tool"
    carrier: Optional[kinds.Flag] = None
    admin_up: Optional[kinds.Flag] = None
    operstate: Optional[kinds.Word] = None
    speed_gbps: Optional[kinds.Number] = None
    mtu: Optional[kinds.Count] = None  # bytes
    mac: Optional[kinds.Mac] = None
    phys_port_name: Optional[kinds.Word] = None  # "p0", "p1": the cage
    phys_switch_id: Optional[kinds.Word] = None
    firmware: Optional[kinds.Word] = None
    board_id: Optional[kinds.Words] = None
    hca_type: Optional[kinds.Words] = None
    node_guid: Optional[kinds.Guid] = None
    sys_image_guid: Optional[kinds.Guid] = None
    part_id: Optional[kinds.Words] = None  # the tool's -v only
    description: Optional[kinds.Words] = None  # the tool's -v only
    pci: Optional[PciFunction] = None

    @property
    def active(self) -> bool:
        """The RDMA port is ACTIVE; where only the tool's plain text is known, its netdev has a carrier."""
        return self.rdma_state == "ACTIVE" if self.rdma_state else bool(self.carrier)

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "pci": self.pci.as_dict() if self.pci else None,
            "pci_address": self.pci.address if self.pci else None,
            "pcie_path": self.pcie_path,
        }

    @property
    def pcie_path(self) -> str | None:
        return self.pci.path if self.pci else None


@dataclass(frozen=True)
class Cage:
    """One QSFP cage with its halves, ordered by PCIe path."""

    cage: int
    port_name: str
    sys_image_guid: str
    halves: tuple[RdmaPort, ...]

    @property
    def cabled(self) -> bool:
        """A half has a link. A cable whose other end is dark looks like no cable."""
        return any(half.rdma_state == "ACTIVE" or half.carrier for half in self.halves)

    @property
    def admin_down(self) -> bool:
        """All halves are administratively down: the carrier cannot be read, so ``cabled`` says nothing."""
        return all(half.admin_up is False for half in self.halves)

    def as_dict(self) -> dict[str, Any]:
        return {
            "cage": self.cage,
            "port_name": self.port_name,
            "sys_image_guid": self.sys_image_guid,
            "cabled": self.cabled,
            "admin_down": self.admin_down,
            "halves": [half.as_dict() for half in self.halves],
        }


@dataclass(frozen=True)
class Rdma:
    """The RDMA devices of a machine, as the module ``ibdev2netdev`` returns them. ``reason`` and ``message``: why there
    is none."""

    PART = True

    devices: tuple[RdmaPort, ...] = ()
    message: Optional[kinds.Words] = None
    reason: Optional[kinds.Word] = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "devices": [port.as_dict() for port in self.devices],
            "cages": [cage.as_dict() for cage in self.cages],
            "source": "sysfs",
            "reason": self.reason,
            "message": self.message,
        }

    @property
    def cages(self) -> list[Cage]:
        return cages(self.devices)


# --- sysfs -----------------------------------------------------------------------------------------------------------


def read(sysfs_root: Path = Path("/sys")) -> list[RdmaPort]:
    """Every port of every RDMA device, ordered by PCI address, then name. Needs no privilege.

    No ``/sys/class/infiniband`` or an empty one gives an empty list; :func:`explain_absence` says why.
    Format: Linux 6.12 drivers/infiniband/core/sysfs.c and Documentation/ABI/testing/sysfs-class-infiniband.
    """
    found = []
    for device in sysfs.names(sysfs_root / "class/infiniband") or []:
        base = sysfs_root / "class/infiniband" / device
        common = _read_device(device, base)
        for port in sysfs.numbers(base / "ports"):
            found.append(_read_port(replace(common, port=port), base, sysfs_root))
    return sorted(found, key=_order)


def _order(port: RdmaPort) -> tuple[bool, str, Any, int]:
    return (port.pci is None, port.pci.address if port.pci else "", sysfs.natural(port.rdma_device), port.port)


def _read_device(device: str, base: Path) -> RdmaPort:
    def attribute(name: str) -> str | None:
        return sysfs.read_text(base / name) or None

    return RdmaPort(
        rdma_device=device,
        port=0,
        driver=_driver(base),
        firmware=attribute("fw_ver"),
        board_id=attribute("board_id"),
        hca_type=attribute("hca_type"),
        node_guid=attribute("node_guid"),
        sys_image_guid=attribute("sys_image_guid"),
        pci=_read_pci(base / "device"),
    )


def _driver(base: Path) -> str | None:
    # A software device may hang below the PCI function of its netdev (siw on older kernels), so its own marks go first.
    if sysfs.exists(base / "parent"):
        return "rdma_rxe"
    if (sysfs.read_text(base / "node_desc") or "").startswith("Software iWARP"):
        return "siw"
    driver = sysfs.link_name(base / "device/driver") or _uevent(base / "device").get("DRIVER")
    if driver is None and (sysfs.read_text(base / "node_type") or "").endswith("RNIC"):
        return "siw"
    return driver


def _uevent(device: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in (sysfs.read_text(device / "uevent") or "").splitlines())
    return {key: value for key, _equals, value in pairs}


_PCI_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


def _read_pci(device: Path) -> PciFunction | None:
    address = _uevent(device).get("PCI_SLOT_NAME") or sysfs.link_name(device)
    if not address or not _PCI_ADDRESS.fullmatch(address):
        return None
    node = sysfs.read_int(device / "numa_node")
    return PciFunction(
        address=address,
        vendor=sysfs.read_text(device / "vendor"),
        device=sysfs.read_text(device / "device"),
        numa_node=node if node is not None and node >= 0 else None,
        link_speed_gts=_leading_number(sysfs.read_text(device / "current_link_speed")),
        link_width=_width(device / "current_link_width"),
        max_link_speed_gts=_leading_number(sysfs.read_text(device / "max_link_speed")),
        max_link_width=_width(device / "max_link_width"),
    )


def _width(path: Path) -> int | None:
    # 255 is what the kernel prints for a link that it cannot read; 0 for one that is down.
    width = sysfs.read_int(path)
    return width if width is not None and 0 < width < 255 else None


def _leading_number(text: str | None) -> float | None:
    """``"32.0 GT/s PCIe"`` and ``"200 Gb/sec (2X NDR)"`` start with what we want; "Unknown" does not."""
    match = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9})?(?= )", text or "")
    return float(match.group()) if match else None


def _read_port(port: RdmaPort, base: Path, sysfs_root: Path) -> RdmaPort:
    directory = base / "ports" / str(port.port)
    state = _name_of(sysfs.read_text(directory / "state"))
    port = replace(
        port,
        link_layer=sysfs.read_text(directory / "link_layer") or None,
        rdma_state=state,
        phys_state=_name_of(sysfs.read_text(directory / "phys_state")),
        rate_gbps=_leading_number(sysfs.read_text(directory / "rate")) if state == "ACTIVE" else None,
    )
    own = _own_netdev(base / "device/net", port.port)
    for netdev, source in (
        (sysfs.read_text(directory / "gid_attrs/ndevs/0"), "gid"),
        (own, "pci"),
        (sysfs.read_text(base / "parent"), "parent"),
    ):
        if netdev:
            return _read_netdev(port, netdev, source, base / "device/net" / (own or netdev), sysfs_root)
    return port


def _name_of(text: str | None) -> str | None:
    """``"4: ACTIVE"`` is ``ACTIVE``."""
    return (text or "").rpartition(":")[2].strip() or None


def _own_netdev(directory: Path, port: int) -> str | None:
    """The netdev of this port below its PCI function; None when that cannot be told.

    Port n belongs to ``dev_port`` n-1. A switchdev function has representors with the same ``dev_port``: of several
    the one that is a physical port (``p<n>``) counts.
    """
    candidates = []
    for name in sysfs.names(directory) or []:
        dev_port = sysfs.read_int(directory / name / "dev_port")
        if dev_port is None or dev_port == port - 1:
            candidates.append(name)
    if len(candidates) > 1:
        port_names = {name: sysfs.read_text(directory / name / "phys_port_name") for name in candidates}
        candidates = [name for name in candidates if _cage_number(port_names[name]) is not None]
    return candidates[0] if len(candidates) == 1 else None


def _cage_number(phys_port_name: str | None) -> int | None:
    """``p1`` is cage 1; ``pf0vf3`` (a representor) and ``p0s1`` (a split port) are no cage."""
    match = re.fullmatch(r"p([0-9]{1,3})", phys_port_name or "")
    return int(match[1]) if match else None


def _read_netdev(port: RdmaPort, netdev: str, source: str, own: Path, sysfs_root: Path) -> RdmaPort:
    """Fill in the netdev's attributes.

    What belongs to the hardware (speed, port name) is read below the PCI function (``own``) first, since GID entry 0
    may name a bond or VLAN. What is live (carrier, MTU, address) is that of the named netdev.
    """
    named = sysfs_root / "class/net" / netdev
    live = named if sysfs.exists(named) else own

    def first(name: str, *places: Path) -> str | None:
        values = (sysfs.read_text(place / name) for place in places)
        return next((value for value in values if value), None)

    speed = next((s for s in (sysfs.read_int(place / "speed") for place in (own, named)) if _is_speed(s)), None)
    flags = sysfs.read_int(live / "flags")
    return replace(
        port,
        netdev=netdev,
        netdev_source=source,
        # An unreadable carrier is that of a netdev which is administratively down.
        carrier=(sysfs.read_text(live / "carrier") == "1") if sysfs.exists(live) else None,
        admin_up=bool(flags & 1) if flags is not None else None,
        operstate=first("operstate", live),
        speed_gbps=speed / 1000 if speed else None,
        mtu=sysfs.read_int(live / "mtu"),
        mac=first("address", live),
        phys_port_name=first("phys_port_name", own, named),
        phys_switch_id=first("phys_switch_id", own, named),
    )


def _is_speed(speed: int | None) -> bool:
    """Down or unknown links report -1, as signed or unsigned 32-bit number (ethtool SPEED_UNKNOWN)."""
    return speed is not None and 0 < speed < 0xFFFFFFFF


# --- derived views ---------------------------------------------------------------------------------------------------


def cages(ports: Iterable[RdmaPort]) -> list[Cage]:
    """The QSFP cages: ports grouped by ``(sys_image_guid, phys_port_name)``, ordered by GUID and cage number.

    Ports without a physical port name (virtual functions, soft RoCE, the tool's text) belong to no cage.
    """
    groups: dict[tuple[str, int], list[RdmaPort]] = {}
    for port in ports:
        number = _cage_number(port.phys_port_name)
        guid = port.sys_image_guid or ""
        if number is not None and guid.strip("0:"):
            groups.setdefault((guid, number), []).append(port)
    return [
        Cage(number, f"p{number}", guid, tuple(sorted(halves, key=_order)))
        for (guid, number), halves in sorted(groups.items())
    ]


def select(
    ports: Iterable[RdmaPort], driver: str | None = None, state: str | None = None, name: str | None = None
) -> list[RdmaPort]:
    """Filter by driver (exact), ``state`` (``active`` or ``down``) and name (shell pattern on device or netdev)."""
    return [
        port
        for port in ports
        if (driver is None or port.driver == driver)
        and (state is None or port.active == (state == "active"))
        and (name is None or any(fnmatch.fnmatchcase(n, name) for n in (port.rdma_device, port.netdev) if n))
    ]


def _absent(reason: str, message: str) -> Rdma:
    return Rdma((), message, reason)


def explain_absence(sysfs_root: Path = Path("/sys")) -> Rdma:
    """Why no RDMA device was found: ``driver_not_loaded``, ``nic_removed``, ``class_missing`` or ``not_listed``."""
    devices = sysfs.names(sysfs_root / "class/infiniband")
    if devices:
        return _absent(
            "not_listed",
            f"The kernel has the RDMA device(s) {', '.join(devices)}, but the tool lists none: it only knows NVIDIA "
            "adapters. Use source: sysfs.",
        )
    functions = [
        address
        for address in sysfs.names(sysfs_root / "bus/pci/devices") or []
        if sysfs.read_text(sysfs_root / "bus/pci/devices" / address / "vendor") == NVIDIA_NETWORK_VENDOR
    ]
    if functions:
        return _absent(
            "driver_not_loaded",
            f"The NVIDIA network function(s) {', '.join(functions)} are on the PCI bus, but no driver has registered "
            "an RDMA device. Load it (modprobe mlx5_ib) and look for mlx5 messages in dmesg.",
        )
    if devices is not None or _removes_nics(sysfs_root):
        return _absent(
            "nic_removed",
            "No NVIDIA network function is on the PCI bus. A DGX Spark removes all four of them 5 to 20 seconds after "
            "boot when no QSFP cable is plugged. Power off both machines, plug the cable at both ends, then switch "
            "them on: a cable that is plugged while they run brings the functions back with a tenth of their speed. "
            "If the cable is in, and they are removed all the same, switch the hot-plug feature off (sudo mv "
            "/etc/nvidia/cx7-hotplug-enabled /etc/nvidia/cx7-hotplug-disabled) and reboot with the cable in.",
        )
    return _absent(
        "class_missing",
        f"{sysfs_root / 'class/infiniband'} does not exist and there is no NVIDIA network function on the PCI bus: "
        "this kernel has no RDMA device and no sign that one was ever there.",
    )


def _removes_nics(sysfs_root: Path) -> bool:
    """Signs of a machine that had, or takes away, its network functions: the driver is loaded, or DGX hot-plug."""
    etc = sysfs_root.parent
    return any(
        sysfs.exists(path)
        for path in (
            sysfs_root / "module/mlx5_core",
            sysfs_root / "bus/platform/drivers" / HOTPLUG_DRIVER,
            *(etc / folder / "udev/rules.d" / HOTPLUG_RULE for folder in ("etc", "lib", "usr/lib")),
            etc / "etc/dgx-release",
        )
    )


# --- the tool's text -------------------------------------------------------------------------------------------------

# A row is one of
#   <dev> port <n> ==> <netdev> (<Up|Down|NA|>)
#   <pci> <dev> (MT<decimal id> - <part id>) <description> fw <version> port <n> (<STATE>) ==> <netdev> (<Up|Down|NA|>)
#   <dev> port <n> <===> <netdev>                                       (its branch for kernels without dev_id)
# Source: mlnx-tools before commit 290a843, ofed_scripts/ibdev2netdev.
_ROW = re.compile(
    r"""
    (?:(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) \s+)?
    (?P<device>[A-Za-z_][\w.-]*) \s+
    (?:\( (?P<hca>\w+) \s+-\s+ (?P<part>[^()]*?) \s*\) \s (?P<description>.*) \s fw \s (?P<firmware>\S*) \s+)?
    port \s+ (?P<port>[0-9]{1,3}) \s+
    (?(hca)\( \s* (?P<rdma>\w+) \s*\) \s+)
    (?: ==> \s* (?P<netdev>[^\s()]+)?? \s* \( (?P<state>Up|Down|NA|) \) | <===> \s+ (?P<old>[^\s()<>]+) )
    """,
    re.VERBOSE | re.ASCII,
)
_CARRIER = {"Up": True, "Down": False}


def parse(text: str) -> list[RdmaPort]:
    """What ``ibdev2netdev`` or ``ibdev2netdev -v`` printed, one entry per row; it prints none without NVIDIA netdevs.

    Raises :class:`SparkError` for a row that cannot be read.
    """
    ports = []
    for line in filter(None, map(str.strip, text.splitlines())):
        match = _ROW.fullmatch(line)
        if match is None:
            raise SparkError(
                f"cannot read the row {line[:160]!r}",
                "output of ibdev2netdev",
                "Use source: sysfs, which needs no tool",
            )
        ports.append(_from_row(match))
    return ports


def _from_row(match: re.Match[str]) -> RdmaPort:
    def known(group: str) -> str | None:
        value = (match[group] or "").strip()
        return value if value and value != "NA" else None

    netdev = match["netdev"] or match["old"]
    return RdmaPort(
        rdma_device=match["device"],
        port=int(match["port"]),
        rdma_state=known("rdma"),
        netdev=netdev,
        netdev_source="tool" if netdev else None,
        carrier=_CARRIER.get(match["state"] or ""),
        firmware=known("firmware"),
        hca_type=known("hca"),
        part_id=known("part"),
        description=known("description"),
        pci=PciFunction(match["pci"]) if match["pci"] else None,
    )
