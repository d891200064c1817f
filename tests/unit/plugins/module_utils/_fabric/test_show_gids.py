# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import show_gids
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import (
    Gid,
    active_ports,
    nccl_choice,
    parse,
    read,
    select,
)
from hypothesis import given
from hypothesis import strategies as st
from sysfs_tree import SysfsTree, gid_of, link_local_gid, mac

LOCAL = "fe80:0000:0000:0000:4ebb:47ff:fe2e:104f"
MAPPED = "0000:0000:0000:0000:0000:ffff:0a0b:0c0d"
NETDEV = "enp1s0f0np0"


def gid(index: int, address: str = "10.11.12.13", version: int | None = 2, **more: object) -> Gid:
    """``address`` is an IP address, or a GID in full."""
    text = address if address.count(":") == 7 else gid_of(address)
    return replace(Gid("rocep1s0f0", 1, index, text, version, NETDEV), **more)  # type: ignore[arg-type]


def table(*addresses: str, **more: object) -> list[Gid]:
    """What the mlx5 driver shows: two default entries, then every address as v1 and v2."""
    entries = [LOCAL, *addresses]
    return [gid(2 * i + v - 1, address, v, **more) for i, address in enumerate(entries) for v in (1, 2)]


# --- one entry -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ipv4", "family", "link_local"),
    [
        (MAPPED, "10.11.12.13", "ipv4", False),
        ("0000:0000:0000:0000:0000:ffff:ffff:ffff", "255.255.255.255", "ipv4", False),
        ("0000:0000:0000:0000:0000:ffff:0001:0000", "0.1.0.0", "ipv4", False),
        ("0000:0000:0000:0000:0000:0000:c0a8:0101", None, "ipv6", False),
        ("0000:0000:0000:0001:0000:ffff:c0a8:0101", None, "ipv6", False),
        (LOCAL, None, "ipv6", True),
        ("fe80:0000:0000:0001:4ebb:47ff:fe2e:104f", None, "ipv6", False),
        ("fd00:0000:0000:0000:0000:0000:0000:0001", None, "ipv6", False),
    ],
)
def test_what_a_gid_means(text: str, ipv4: str | None, family: str, link_local: bool) -> None:
    entry = gid(3, text)
    assert (entry.ipv4, entry.family, entry.link_local) == (ipv4, family, link_local)
    assert entry.address == ipaddress.ip_address(ipv4 or text)


def test_an_entry_as_mapping_and_text() -> None:
    assert gid(3).as_dict() == {
        "device": "rocep1s0f0",
        "port": 1,
        "index": 3,
        "gid": MAPPED,
        "version": 2,
        "netdev": NETDEV,
        "ipv4": "10.11.12.13",
    }
    assert str(gid(3)) == f"3 = 10.11.12.13 (RoCE v2, {NETDEV})"
    assert str(gid(0, LOCAL, None, netdev=None)) == f"0 = {LOCAL} (version unknown, no netdev)"


# --- sysfs -----------------------------------------------------------------------------------------------------------


def test_the_tables_of_a_spark(sysfs: SysfsTree) -> None:
    sysfs.spark(cabled={0}).address("rocep1s0f0", 2, "10.11.12.13", NETDEV)
    gids = read(sysfs.root)
    assert [g for g in gids if g.device == "rocep1s0f0"] == table("10.11.12.13")
    assert [(g.device, g.index, g.version) for g in gids if g.device != "rocep1s0f0"] == [
        (device, index, index + 1) for device in ("roceP2p1s0f0", "roceP2p1s0f1", "rocep1s0f1") for index in (0, 1)
    ]
    assert read(sysfs.root, ["rocep1s0f0"]) == table("10.11.12.13")
    assert read(sysfs.root, ["rocep1s0f9"]) == []


def test_long_tables_in_numeric_order(sysfs: SysfsTree) -> None:
    length = 1024
    sysfs.table = length
    sysfs.rxe("rxe0", "eth1")
    for index in (length - 1, 100, 11, 10, 9, 2):
        sysfs.gid("rxe0", index, f"10.0.{index // 256}.{index % 256}", "v2", "eth1")
    assert [g.index for g in read(sysfs.root)] == [0, 2, 9, 10, 11, 100, length - 1]
    assert read(sysfs.root)[-1].ipv4 == f"10.0.{(length - 1) // 256}.{(length - 1) % 256}"
    assert read(sysfs.root)[0] == Gid("rxe0", 1, 0, link_local_gid(mac(7)), 2, "eth1")


def test_attributes_are_read_for_used_entries_only(sysfs: SysfsTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an empty entry fail with EINVAL; so may those of an entry that was just emptied."""
    sysfs.mlx5("0000:01:00.0", "rocep1s0f0", NETDEV, "p0", 0x4F)
    opened: list[str] = []
    real = os.open

    def spy(path: str, *args: int) -> int:
        opened.append(str(path))
        if "gid_attrs" in str(path) and str(path).endswith("/1"):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, *args)

    monkeypatch.setattr(os, "open", spy)
    assert read(sysfs.root) == [gid(0, LOCAL, 1), gid(1, LOCAL, None, netdev=None)]
    assert sum("gid_attrs" in path for path in opened) == 4
    assert sum("/gids/" in path for path in opened) == 8


@pytest.mark.parametrize(
    ("kind", "version"),
    [("IB/RoCE v1", 1), ("RoCE v1", 1), ("RoCE v2", 2), ("RoCE v3", None), ("", None), (None, None), ("2", None)],
)
def test_types(sysfs: SysfsTree, kind: str | None, version: int | None) -> None:
    sysfs.rdma("mlx5_0", "devices/virtual")
    sysfs.gid("mlx5_0", 0, "10.0.0.1", kind)
    (entry,) = read(sysfs.root)
    assert (entry.version, entry.netdev) == (version, None)


def test_vlans_and_several_ports(sysfs: SysfsTree) -> None:
    directory = sysfs.rdma("mlx5_0", "devices/virtual")
    for port in (2, 10):
        sysfs.rdma_port("mlx5_0", directory, port, up=port == 10)
    sysfs.write(f"{directory}/ports/readme", "x")
    sysfs.gid("mlx5_0", 4, "10.0.0.1", "v2", "eth0.100", port=10)
    sysfs.gid("mlx5_0", 0, "10.0.0.2", "v2", "eth1", port=2)
    assert [(g.port, g.index, g.netdev) for g in read(sysfs.root)] == [(2, 0, "eth1"), (10, 4, "eth0.100")]
    assert active_ports(sysfs.root) == {("mlx5_0", 1), ("mlx5_0", 10)}
    sysfs.write(f"{directory}/ports/1/link_layer", "InfiniBand")
    assert active_ports(sysfs.root) == {("mlx5_0", 10)}
    sysfs.remove(f"{directory}/ports/10/link_layer")
    assert active_ports(sysfs.root) == {("mlx5_0", 10)}
    sysfs.write(f"{directory}/ports/10/state", "5: ACTIVE_DEFER")
    assert active_ports(sysfs.root) == set()


# --- the tool's text -------------------------------------------------------------------------------------------------

DIALECTS = {
    "tabs.txt": [
        gid(0, LOCAL, 1),
        gid(1, LOCAL, 2),
        gid(2, version=1),
        gid(3),
        gid(10, "fd00::9", 1, netdev="enp1s0f0np0.77"),
        Gid("mlx5_9", 2, 0, "fe80:0000:0000:0000:9440:c9ff:ff8c:a09d", 1, None),
    ],
    "empty.txt": [],
    "false_ipv4.txt": [gid(4, "0000:0000:0000:0000:0000:0000:c0a8:0101")],
}


@pytest.mark.parametrize("name", DIALECTS)
def test_dialects(fixtures: Path, name: str) -> None:
    assert parse((fixtures / "show_gids" / name).read_bytes().decode()) == DIALECTS[name]


ROW = f"rocep1s0f0\t1\t3\t{MAPPED}\t10.11.12.13  \tv2\t{NETDEV}"


@pytest.mark.parametrize(
    "text",
    [
        "bash: show_gids: command not found",
        f"{ROW}\nn_gids_found=2",
        f"GID 3 {MAPPED}",
        ROW.replace("\tv2\t", "\t\t"),
        ROW[: ROW.index(MAPPED) + 20],
    ],
)
def test_text_that_cannot_be_read(text: str) -> None:
    with pytest.raises(SparkError, match="cannot read") as raised:
        parse(text)
    assert raised.value.where == "output of show_gids"


# --- selection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "criteria", "index"),
    [
        (table("10.11.12.13"), {}, 3),
        (table("10.11.12.13"), {"roce_version": 1}, 2),
        (table("fe80::9c1d:5b7e:2a44:8f10", "10.11.12.13"), {}, 5),
        (table("fd00::1", "10.11.12.13"), {}, 5),
        (table("fd00::1", "10.11.12.13"), {"family": "ipv6"}, 3),
        (table("10.11.12.13", "192.168.1.1"), {"cidrs": ["192.168.0.0/16"]}, 5),
        (table("10.11.12.13", "192.168.1.1"), {"cidrs": ["172.16.0.0/12", "192.168.1.0/30"]}, 5),
        (table("fd00::1", "fd01::1"), {"family": "ipv6", "cidrs": ["fd01::/16"]}, 5),
        (table("169.254.7.9"), {}, 3),
        # Soft RoCE: one default entry, v2 only.
        ([gid(0, LOCAL), gid(1)], {}, 1),
        ([gid(0)], {}, 0),
        # The same address twice, on the netdev and on a VLAN: one content, the first one stays.
        ([*table("10.11.12.13"), gid(4, version=1, netdev="v.7"), gid(5, netdev="v.7")], {}, 3),
        ([*table("10.11.12.13"), gid(4, "10.0.0.9", 1, netdev="v.7"), gid(5, "10.0.0.9", netdev="v.7")],
         {"netdevs": ["v.7"]}, 5),
        ([*table("10.11.12.13"), gid(4, "10.0.0.9", 1, netdev="v.7"), gid(5, "10.0.0.9", netdev="v.7")],
         {"netdevs": [NETDEV]}, 3),
        # Holes and disorder.
        ([gid(9), gid(8, version=1), gid(0, LOCAL, 1)], {}, 9),
    ],
)  # fmt: skip
def test_the_index_that_nccl_takes(entries: list[Gid], criteria: dict[str, object], index: int) -> None:
    selected = select(entries, **criteria)  # type: ignore[arg-type]
    assert {name: g.index for name, g in selected.items()} == {"rocep1s0f0:1": index}
    assert selected["rocep1s0f0:1"] in entries


def two_halves() -> list[Gid]:
    return [
        *table("10.0.1.1", device="rocep1s0f0", netdev="enp1s0f0np0"),
        *table("fd00::1", "10.0.2.1", device="roceP2p1s0f0", netdev="enP2p1s0f0np0"),
        *table(device="rocep1s0f1", netdev="enp1s0f1np1"),
    ]


UP = [("rocep1s0f0", 1), ("roceP2p1s0f0", 1), ("other", 1)]


@pytest.mark.parametrize(
    "criteria",
    [
        {"active": UP},
        {"devices": ["rocep1s0f0", "roceP2p1s0f0"]},
        {"netdevs": ["enp1s0f0np0", "enP2p1s0f0np0"]},
        {"active": UP, "cidrs": ["10.0.1.0/24", "10.0.2.0/24"]},
    ],
)
def test_both_halves(criteria: dict[str, object]) -> None:
    selected = select(two_halves(), **criteria)  # type: ignore[arg-type]
    assert {name: (g.index, g.ipv4) for name, g in selected.items()} == {
        "rocep1s0f0:1": (3, "10.0.1.1"),
        "roceP2p1s0f0:1": (5, "10.0.2.1"),
    }


@pytest.mark.parametrize(
    ("criteria", "found"),
    [
        (
            {},
            "cannot select one GID per port (ipv4, RoCE v2): rocep1s0f1:1: no GID fits; candidates: "
            f"0 = {LOCAL} (RoCE v1, enp1s0f1np1), 1 = {LOCAL} (RoCE v2, enp1s0f1np1)."
            " Give the netdev an address of this family, or name the ports that count: netdev or device.",
        ),
        (
            {"active": UP, "cidrs": ["10.0.1.0/24"]},
            "(ipv4, RoCE v2, in 10.0.1.0/24): roceP2p1s0f0:1: no GID fits; candidates: 0 = ",
        ),
        (
            {"active": UP, "family": "ipv6"},
            "(RoCE v1, enp1s0f0np0), 3 = 10.0.1.1 (RoCE v2, enp1s0f0np0)",
        ),
        ({"active": UP, "cidrs": ["10.9.0.0/24"]}, "enp1s0f0np0); roceP2p1s0f0:1: no GID fits; "),
        ({"active": UP, "cidrs": ["10.0.8.0/24", "10.0.9.0/24"]}, "in 10.0.8.0/24 or 10.0.9.0/24"),
        ({"active": UP, "roce_version": 1, "family": "ipv6"}, "(ipv6, RoCE v1): rocep1s0f0:1: no GID fits"),
        ({"devices": ["mlx5_0", "x"]}, "RDMA device mlx5_0, x has no GID table; known: roceP2p1s0f0, rocep1s0f0, "),
        ({"netdevs": ["eth9"]}, "netdev eth9 has no GID table; known: enP2p1s0f0np0, enp1s0f0np0, enp1s0f1np1"),
        (
            {"devices": ["rocep1s0f0"], "netdevs": ["enp1s0f1np1"]},
            f"rocep1s0f0:1: no GID fits; candidates: 0 = {LOCAL} (RoCE v1, enp1s0f0np0)",
        ),
        ({"active": []}, "no active RDMA port to select a GID for (ipv4, RoCE v2); ports with GIDs: rocep1s0f0:1, r"),
        ({"active": [("rocep1s0f0", 2)]}, "no active RDMA port"),
        ({"cidrs": ["10.0.0.0/33"]}, "cidr '10.0.0.0/33' is no network"),
        ({"cidrs": ["fd00::/8"]}, "cidr 'fd00::/8' is not ipv4. Make family and cidr agree"),
        ({"cidrs": ["10.0.0.0/8"], "family": "ipv6"}, "cidr '10.0.0.0/8' is not ipv6"),
    ],
)  # fmt: skip
def test_selection_fails_closed(criteria: dict[str, object], found: str) -> None:
    with pytest.raises(SparkError) as raised:
        select(two_halves(), **criteria)  # type: ignore[arg-type]
    assert found in str(raised.value)
    assert raised.value.remedy


def test_nccl_would_take_another_one() -> None:
    """Entry 0 has the wanted family and version but not the wanted prefix: NCCL never leaves it."""
    with pytest.raises(SparkError, match=r"only 1 = 192\.168\.1\.1 .* fits, but NCCL's walk ends on 0 = 10\.0\.0\.1"):
        select([gid(0, "10.0.0.1"), gid(1, "192.168.1.1")], cidrs=["192.168.1.0/24"])


def reference_walk(
    entries: dict[int, tuple[str, int | None]], length: int, family: str, version: int, cidr: str
) -> int:
    """NCCL's ncclIbGetGidIndex, transcribed step by step over a whole table with its empty entries."""

    def family_of(text: str) -> str:
        return "ipv4" if ipaddress.IPv6Address(text).ipv4_mapped else "ipv6"

    def valid(text: str) -> bool:
        number = int(ipaddress.IPv6Address(text))
        return number not in (0, 0xFE80 << 112) and number >> 64 != 0xFE80 << 48

    def matches(text: str) -> bool:
        if not cidr:
            return True
        address = ipaddress.IPv6Address(text)
        return (address.ipv4_mapped if family == "ipv4" else address) in ipaddress.ip_network(cidr)

    def entry(index: int) -> tuple[str, int | None]:
        return entries.get(index, ("::", None))

    current = 0
    for candidate in range(1, length):
        (text, its_version), (now, now_version) = entry(candidate), entry(current)
        if family_of(text) != family_of(now) and family_of(text) == family and matches(text):
            current = candidate
        elif family_of(text) != family or not valid(text) or not matches(text):
            continue
        elif (now_version != its_version or not valid(now)) and its_version == version:
            current = candidate
    return current


POOL = ["fe80::1", "fe80::2", "10.0.0.1", "10.0.0.2", "192.168.1.1", "fd00::1", "fd01::1"]
ENTRIES = st.dictionaries(st.integers(0, 9), st.tuples(st.sampled_from(POOL), st.sampled_from([1, 2])), max_size=8)


@given(ENTRIES, st.sampled_from([("ipv4", ""), ("ipv4", "10.0.0.0/24"), ("ipv6", ""), ("ipv6", "fd01::/16")]),
       st.sampled_from([1, 2]))  # fmt: skip
def test_the_walk_is_that_of_nccl(entries: dict[int, tuple[str, int]], wanted: tuple[str, str], version: int) -> None:
    family, cidr = wanted
    full = {index: (gid_of(address), its) for index, (address, its) in entries.items()}
    gids = [gid(index, address, its) for index, (address, its) in entries.items()]
    networks = [ipaddress.ip_network(cidr)] if cidr else []
    expected = full.get(reference_walk(full, 10, family, version, cidr))
    picked = nccl_choice(gids, family, version, networks)
    # Both may rest on an entry that nobody wants; where that is, does not matter to select(), which refuses.
    good = [g for g in gids if g.version == version and not g.link_local and show_gids._fits(g, family, networks)]
    if good:
        assert picked is not None
        assert expected == (picked.gid, picked.version)
    with contextlib.suppress(SparkError):
        (selected,) = select(gids, family=family, roce_version=version, cidrs=[cidr] if cidr else []).values()
        assert (selected.gid, selected.version) == expected
        assert selected in good
