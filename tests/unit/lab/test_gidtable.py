# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim.gidtable import VERSIONS, ZERO, GidTable, gid_of, link_local, registration_order

NETDEV = "enp1s0f0np0"
MAC = "48:21:0b:96:04:cb"
V4 = "192.168.100.10"
V6 = "fe80::1234:5678:9abc:def0"


def table() -> GidTable:
    return GidTable(MAC, NETDEV)


def listing(found: GidTable) -> dict[int, tuple[str, str]]:
    return {index: (entry.gid, entry.kind) for index, entry in sorted(found.entries.items())}


@pytest.mark.parametrize(
    ("address", "gid"),
    [
        ("192.168.100.10", "0000:0000:0000:0000:0000:ffff:c0a8:640a"),
        ("fe80::1", "fe80:0000:0000:0000:0000:0000:0000:0001"),
        ("2001:db8::ff", "2001:0db8:0000:0000:0000:0000:0000:00ff"),
    ],
)
def test_gid_of(address: str, gid: str) -> None:
    assert gid_of(address) == gid


def test_link_local_flips_the_universal_bit() -> None:
    assert link_local(MAC) == "fe80:0000:0000:0000:4a21:0bff:fe96:04cb"
    assert len(ZERO) == len(link_local(MAC))


def test_a_new_port_has_its_two_link_local_gids() -> None:
    own = link_local(MAC)
    assert listing(table()) == {0: (own, VERSIONS[0]), 1: (own, VERSIONS[1])}


def test_the_first_ipv4_address_gets_2_and_3_v1_before_v2() -> None:
    found = table()
    found.add(V4, NETDEV)
    assert listing(found)[2] == (gid_of(V4), "IB/RoCE v1")
    assert listing(found)[3] == (gid_of(V4), "RoCE v2")


def test_the_link_local_address_of_the_mac_takes_no_further_entry() -> None:
    found = table()
    found.add("fe80::4a21:bff:fe96:4cb", NETDEV)
    assert sorted(found.entries) == [0, 1]


def test_another_ipv6_address_before_it_shifts_ipv4() -> None:
    found = table()
    found.rescan([(V6, NETDEV), (V4, NETDEV)])
    assert found.entries[5].gid == gid_of(V4)


def test_what_goes_leaves_holes_that_the_next_address_fills() -> None:
    found = table()
    found.rescan([(V6, NETDEV), (V4, NETDEV)])
    found.remove(V6, NETDEV)
    assert sorted(found.entries) == [0, 1, 4, 5]
    found.add("10.0.0.1", NETDEV)
    assert found.entries[3].gid == gid_of("10.0.0.1")


def test_a_rebuild_closes_the_holes_and_starts_with_ipv4() -> None:
    found = table()
    found.rebuild([(V6, NETDEV), (V4, NETDEV)])
    assert found.entries[3].gid == gid_of(V4)
    found.rebuild([(V4, NETDEV), (V6, NETDEV)], ipv6_first=True)
    assert found.entries[5].gid == gid_of(V4)


def test_a_vlan_has_entries_of_its_own_for_the_same_address() -> None:
    found = table()
    found.add(V4, NETDEV)
    found.add(V4, f"{NETDEV}.100")
    assert found.entries[5].netdev == f"{NETDEV}.100"
    found.remove(V4, NETDEV)
    assert sorted(found.entries) == [0, 1, 4, 5]


def test_a_full_table_drops_addresses() -> None:
    found = GidTable(MAC, NETDEV, size=4)
    found.add(V4, NETDEV)
    found.add("10.0.0.1", NETDEV)
    assert sorted(found.entries) == [0, 1, 2, 3]
    found.remove("10.0.0.1", NETDEV)
    assert sorted(found.entries) == [0, 1, 2, 3]


def test_registration_order_keeps_the_order_within_a_family() -> None:
    pairs = [("10.0.0.2", NETDEV), ("fe80::2", NETDEV), ("10.0.0.1", NETDEV), ("fe80::1", NETDEV)]
    assert [a for a, _ in registration_order(pairs)] == ["10.0.0.2", "10.0.0.1", "fe80::2", "fe80::1"]
    assert [a for a, _ in registration_order(pairs, True)] == ["fe80::2", "fe80::1", "10.0.0.2", "10.0.0.1"]


ADDRESSES = st.lists(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str), max_size=12)


@given(ADDRESSES, ADDRESSES)
def test_after_any_rescan_every_address_is_there_once_per_version(before: list[str], after: list[str]) -> None:
    found = table()
    found.rescan([(address, NETDEV) for address in before])
    kept = {index: entry for index, entry in found.entries.items() if entry.gid in map(gid_of, after)}
    found.rescan([(address, NETDEV) for address in after])
    wanted = {(gid_of(address), kind) for address in [*after] for kind in VERSIONS}
    wanted |= {(link_local(MAC), kind) for kind in VERSIONS}
    got = list(listing(found).values())
    assert sorted(got) == sorted(wanted)
    assert all(found.entries[index] == entry for index, entry in kept.items())  # nothing moves
