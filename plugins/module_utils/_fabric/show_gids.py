# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The GID tables of RDMA ports, and which entry NCCL takes.

:func:`read` takes them from sysfs, :func:`parse` from what the vendor's script ``show_gids`` prints, and :func:`select`
resolves one entry per port.

The index of an address is no property of the machine: the kernel reserves the first indices for link-local GIDs and
gives the next free ones to addresses in the order in which they appear. One more IPv6 address moves IPv4 from 3 to 5,
on one node and not on the next. So the index is looked up, never assumed, and nodes are compared by GID content.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Optional, Union

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import kinds, strict, sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import Rail

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]

_EMPTY = ("0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0000")
_MAPPED = "0000:0000:0000:0000:0000:ffff:"


@dataclass(frozen=True)
class Gid:
    """One entry of a GID table. ``gid`` is written in full, eight groups of four lower-case hex digits."""

    PART = True

    device: kinds.RdmaDevice
    port: kinds.Octet
    index: Annotated[int, strict.whole(0, 65535)]
    gid: kinds.GidText
    # RoCE version; InfiniBand entries are 1, None: the kernel does not tell
    version: Optional[Annotated[int, strict.whole(1, 2)]]
    netdev: Optional[kinds.Interface]  # a VLAN of the port's netdev is possible; None on InfiniBand ports

    @property
    def ipv4(self) -> str | None:
        """The IPv4 address of a mapped GID. The script prints one for every GID that begins with 0000; this is not."""
        if not self.gid.startswith(_MAPPED):
            return None
        return str(ipaddress.IPv4Address(int(self.gid[len(_MAPPED) :].replace(":", ""), 16)))

    @property
    def family(self) -> str:
        return "ipv4" if self.gid.startswith(_MAPPED) else "ipv6"

    @property
    def link_local(self) -> bool:
        """In fe80::/64, as NCCL tests it."""
        return self.gid.startswith("fe80:0000:0000:0000:")

    @property
    def address(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        return ipaddress.ip_address(self.ipv4 or self.gid)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ipv4": self.ipv4}

    def __str__(self) -> str:
        version = f"RoCE v{self.version}" if self.version else "version unknown"
        return f"{self.index} = {self.ipv4 or self.gid} ({version}, {self.netdev or 'no netdev'})"


# --- sysfs -----------------------------------------------------------------------------------------------------------


def read(sysfs_root: Path = Path("/sys"), devices: Sequence[str] = ()) -> list[Gid]:
    """All used entries of all RDMA ports (or those of ``devices``) by device, port and index, in natural order.

    Tables have 255 or 256 entries on mlx5, 1024 on soft RoCE, most of them zero; only the others have attributes, and
    reading those of an empty entry fails with EINVAL. Needs no privilege. Format: Linux 6.12
    drivers/infiniband/core/sysfs.c; types are ``IB/RoCE v1`` and ``RoCE v2``.
    """
    found: list[Gid] = []
    for device in sysfs.names(sysfs_root / "class/infiniband") or []:
        if devices and device not in devices:
            continue
        ports = f"{sysfs_root}/class/infiniband/{device}/ports"
        for port in sysfs.numbers(ports):
            found += _read_table(f"{ports}/{port}", device, port)
    return found


def _read_table(directory: str, device: str, port: int) -> Iterable[Gid]:
    for index in sysfs.numbers(f"{directory}/gids"):
        gid = sysfs.read_text(f"{directory}/gids/{index}")
        if not gid or gid in _EMPTY:
            continue
        kind = sysfs.read_text(f"{directory}/gid_attrs/types/{index}") or ""
        netdev = sysfs.read_text(f"{directory}/gid_attrs/ndevs/{index}") or None
        yield Gid(device, port, index, gid.lower(), int(kind[-1]) if kind[-2:] in ("v1", "v2") else None, netdev)


def active_ports(sysfs_root: Path = Path("/sys")) -> set[tuple[str, int]]:
    """The ports for which NCCL chooses a GID: those in state ACTIVE, except InfiniBand, where it needs no address."""
    found = set()
    for device in sysfs.names(sysfs_root / "class/infiniband") or []:
        ports = sysfs_root / "class/infiniband" / device / "ports"
        for port in sysfs.numbers(ports):
            active = (sysfs.read_text(ports / str(port) / "state") or "").endswith(": ACTIVE")
            if active and sysfs.read_text(ports / str(port) / "link_layer") != "InfiniBand":
                found.add((device, port))
    return found


# --- the tool's text -------------------------------------------------------------------------------------------------

# <dev> <port> <index> <gid> [<IPv4>] <v1|v2> [<netdev>]: mlnx-tools, sbin/show_gids (revisions of 2016 to 2026).
_ROW = re.compile(
    r"(?P<device>\S+)\s+(?P<port>[0-9]{1,3})\s+(?P<index>[0-9]{1,5})\s+(?P<gid>[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){7})"
    r"(?:\s+[0-9.]+)?\s+v(?P<version>[12])(?:\s+(?P<netdev>\S+))?",
    re.ASCII,
)
_HEADER = re.compile(r"DEV\s+PORT\s+INDEX\s+GID\s.*|[-\s]+")
_COUNT = re.compile(r"n_gids_found=([0-9]{1,6})")


def parse(text: str) -> list[Gid]:
    """What ``show_gids`` printed: its entries by device and port in the order of the text, by index within a port.

    The script lists indices in lexical order (0, 1, 10, 11, 2) or numeric; its IPv4 column is ignored, since it is
    wrong for GIDs that begin with 0000 and are not mapped. Raises :class:`SparkError` for a row that cannot be read,
    and where the count below the table is another one.
    """
    found: list[Gid] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        row, count = _ROW.fullmatch(line), _COUNT.fullmatch(line)
        if row:
            device, port, index, gid = row["device"], int(row["port"]), int(row["index"]), row["gid"].lower()
            found.append(Gid(device, port, index, gid, int(row["version"]), row["netdev"]))
        elif not _HEADER.fullmatch(line) and not (count and int(count[1]) == len(found)):
            raise SparkError(
                f"cannot read {line[:160]!r} behind {len(found)} row(s)",
                "output of show_gids",
                "Use source: sysfs, which needs no tool",
            )
    order = {key: number for number, key in enumerate(dict.fromkeys((gid.device, gid.port) for gid in found))}
    return sorted(found, key=lambda gid: (order[gid.device, gid.port], gid.index))


# --- selection -------------------------------------------------------------------------------------------------------


def select(
    gids: Iterable[Gid],
    *,
    family: str = "ipv4",
    roce_version: int = 2,
    cidrs: Sequence[str] = (),
    netdevs: Sequence[str] = (),
    devices: Sequence[str] = (),
    active: Iterable[tuple[str, int]] | None = None,
) -> dict[str, Gid]:
    """The entry per port that NCCL >= 2.21 takes, as ``{"<device>:<port>": Gid}``.

    ``family``, ``roce_version`` and ``cidrs`` mean what NCCL_IB_ADDR_FAMILY, NCCL_IB_ROCE_VERSION_NUM and
    NCCL_IB_ADDR_RANGE mean (with several ``cidrs`` an address in any of them counts). ``netdevs`` hides the entries of
    other netdevs; NCCL has no such setting.

    Every port that is asked about must resolve: those of ``devices`` when named, else those with entries of
    ``netdevs`` when named, else the ports in ``active`` (None: all), since NCCL skips ports that are not ACTIVE.
    Raises :class:`SparkError` that lists the candidates of every port with none or with several *different* GIDs
    left: NCCL would take one, but which one depends on the order in which addresses were added. It is also raised
    where NCCL's walk ends on another entry than the only one that fits.
    """
    networks = [_network(cidr, family) for cidr in cidrs]
    tables = _tables(gids)
    shown = {key: [g for g in table if not netdevs or g.netdev in netdevs] for key, table in tables.items()}
    if devices:
        _all_known(devices, {device for device, _port in tables}, "RDMA device")
        asked = [key for key in tables if key[0] in devices]
    elif netdevs:
        _all_known(netdevs, {g.netdev for table in tables.values() for g in table if g.netdev}, "netdev")
        asked = [key for key in tables if shown[key]]
    else:
        allowed = None if active is None else set(active)
        asked = [key for key in tables if allowed is None or key in allowed]
    wanted = f"{family}, RoCE v{roce_version}" + (f", in {' or '.join(map(str, networks))}" if networks else "")
    if not asked:
        ports = ", ".join(f"{device}:{port}" for device, port in tables) or "none"
        raise SparkError(
            f"no active RDMA port to select a GID for ({wanted}); ports with GIDs: {ports}",
            remedy="Plug the cable and bring the netdev up, or name the device",
        )
    selected: dict[str, Gid] = {}
    problems, lacking = [], False
    for device, port in asked:
        table = shown[device, port]
        fitting = [g for g in table if _fits(g, family, networks) and not g.link_local and g.version == roce_version]
        picked = nccl_choice(table, family, roce_version, networks)
        name = f"{device}:{port}"
        if len({g.gid for g in fitting}) == 1 and picked and picked.gid == fitting[0].gid:
            selected[name] = picked
        elif not fitting:
            lacking = True
            problems.append(f"{name}: no GID fits; candidates: {_listed(tables[device, port])}")
        elif len({g.gid for g in fitting}) > 1:
            problems.append(f"{name}: several GIDs fit; candidates: {_listed(fitting)}")
        else:
            problems.append(f"{name}: only {fitting[0]} fits, but NCCL's walk ends on {picked}")
    if problems:
        raise SparkError(
            f"cannot select one GID per port ({wanted}): {'; '.join(problems)}",
            remedy="Give the netdev an address of this family, or name the ports that count: netdev or device"
            if lacking
            else "Give the netdev one address of this family, or narrow the choice with cidr",
        )
    return selected


def of_rail(gids: Iterable[Gid], rail: Rail, address_range: str = "") -> Gid:
    """The GID of this half: the entry that NCCL takes, and it holds the planned address. ``address_range`` is what the
    fact exports as NCCL_IB_ADDR_RANGE. Raises :class:`SparkError` where NCCL takes none or another one."""
    own = [gid for gid in gids if (gid.device, gid.port) == (rail.rdma_device, rail.rdma_port)]
    chosen = select(own, devices=[rail.rdma_device], cidrs=[address_range] if address_range else ())
    gid = next(iter(chosen.values()))  # of one port
    if gid.ipv4 != rail.address:
        raise SparkError(f"NCCL takes the one of {gid.ipv4} (index {gid.index})")
    return gid


def nccl_choice(table: Sequence[Gid], family: str, roce_version: int, networks: Sequence[Network] = ()) -> Gid | None:
    """Where NCCL's walk over one port's table ends; None when it stays on an empty entry 0.

    Source: NCCL 2.29 to 2.30, src/transport/net_ib/connect.cc, ncclIbGetGidIndex and ncclUpdateGidIndex. The walk
    starts at entry 0 and moves to a later entry of the wanted family and prefix when the current one is of the other
    family, or when the later one has the wanted version and the current one has not or is link-local. Of several that
    fit equally the *first* one stays. Empty entries never change the outcome.
    """
    entries = sorted(table, key=lambda g: g.index)
    current = entries.pop(0) if entries and entries[0].index == 0 else None
    for candidate in entries:
        if not _fits(candidate, family, networks):
            continue
        # An empty entry 0 is a zero GID: IPv6, not valid, of no version.
        other_family = (current.family if current else "ipv6") != candidate.family
        worse = current is None or current.link_local or current.version != candidate.version
        if other_family or (not candidate.link_local and worse and candidate.version == roce_version):
            current = candidate
    return current


def _fits(gid: Gid, family: str, networks: Sequence[Network]) -> bool:
    address = gid.address
    return gid.family == family and (not networks or any(address in network for network in networks))


def _tables(gids: Iterable[Gid]) -> dict[tuple[str, int], list[Gid]]:
    tables: dict[tuple[str, int], list[Gid]] = {}
    for gid in gids:
        tables.setdefault((gid.device, gid.port), []).append(gid)
    return tables


def _network(cidr: str, family: str) -> Network:
    try:
        network = ipaddress.ip_network(cidr.strip(), strict=False)
    except ValueError as exc:
        raise SparkError(f"cidr {cidr!r} is no network ({exc})", remedy="Write it like 192.168.100.0/24") from exc
    if f"ipv{network.version}" != family:
        raise SparkError(f"cidr {cidr!r} is not {family}", remedy="Make family and cidr agree")
    return network


def _all_known(names: Iterable[str], known: Iterable[str], kind: str) -> None:
    known = sorted(known, key=sysfs.natural)
    missing = [name for name in names if name not in known]
    if missing:
        raise SparkError(
            f"{kind} {', '.join(missing)} has no GID table; known: {', '.join(known) or 'none'}",
            remedy="Compare with the module ibdev2netdev",
        )


def _listed(gids: Sequence[Gid]) -> str:
    shown = [str(gid) for gid in gids[:8]]
    return ", ".join(shown + ([f"and {len(gids) - 8} more"] if len(gids) > 8 else [])) or "none"
