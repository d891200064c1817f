# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import apply as fabric_apply
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import interfaces, netplan, renderer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.apply import (
    SYSCTL_FILE,
    Wanted,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.arp import Holder
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import MEMORY, Memory
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import avahi, etc_hosts
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from fabric_change import BEGIN, END, NICS, NOTHING, OTHER, A, B, apply, machine, verify, wanted
from fabric_inputs import spark
from fake_machine import Killed
from fake_node import FakeNode
from hypothesis import given
from hypothesis import strategies as st
from root_or_not import root_or_not
from sysfs_tree import SysfsTree

assert root_or_not  # a fixture


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "root", NICS)


# --- a change --------------------------------------------------------------------------------------------------------


def test_a_pristine_node(node: FakeNode) -> None:
    want = wanted()
    outcome = apply(node, want)
    assert outcome.changed and not outcome.fact_applied
    assert node.state()[A] == (9000, True, ["192.168.100.10/24"])
    assert node.state()[B] == (9000, True, ["192.168.101.10/24"])
    assert node.state()["enP7s7"] == (1500, True, ["10.0.0.1/24"])
    assert node.path(netplan.FILE).stat().st_mode & 0o777 == 0o600
    assert json.loads(node.read(FACT_PATH))["state"] == "applying"
    assert f"net.ipv4.conf.{A}.arp_ignore = 1\n" in node.read(SYSCTL_FILE)
    assert node.read(f"/proc/sys/net/ipv4/conf/{B}/arp_announce").strip() == "2"
    assert node.read("/etc/hosts") == (
        f"127.0.0.1 localhost\n{BEGIN}\n192.168.100.10 spark1-fabric spark1-fabric0\n"
        "192.168.101.10 spark1-fabric1\n192.168.100.11 spark2-fabric spark2-fabric0\n192.168.101.11 spark2-fabric1\n"
        f"{END}\n"
    )
    assert node.nm_managed == set(OTHER)
    assert f"networkctl reconfigure {A} {B}" in node.log
    assert not any(line.startswith(("netplan apply", "netplan try")) for line in node.log)


def test_the_second_time_nothing_is_done(node: FakeNode) -> None:
    want = wanted()
    apply(node, want)
    verify(node, want)
    before, node.log = node.tree(), []
    outcome = apply(node, want)
    assert not outcome.changed and not outcome.diff and not outcome.changes
    assert outcome.fact_applied and outcome.fact and outcome.fact.state == "applied"
    assert node.log == []
    assert node.tree() == before


def test_what_is_only_remembered_arms_no_way_back(node: FakeNode) -> None:
    want = wanted()
    apply(node, want)
    verify(node, want)
    remembered = json.loads(node.read(MEMORY))
    for entry in remembered["interfaces"].values():
        entry["addresses"] = []
    node.write(MEMORY, json.dumps(remembered))
    state, node.log = node.state(), []
    outcome = apply(node, want)
    assert (outcome.changes, outcome.transaction, node.log) == ([MEMORY], "", [])
    assert node.state() == state
    assert not apply(node, want).changes


def test_check_mode_says_what_will_happen_and_does_nothing(node: FakeNode) -> None:
    before, state = node.tree(), node.state()
    outcome = apply(node, wanted(), check=True)
    assert outcome.changed and not outcome.fact_applied and outcome.fact is None
    assert (node.tree(), node.state()) == (before, state)
    assert not any(line.startswith(("networkctl", "systemctl start", "nmcli device set")) for line in node.log)
    real = apply(node, wanted())
    assert real.changes == outcome.changes
    assert real.diff == outcome.diff
    effective = outcome.diff[0]
    assert effective["before"].splitlines()[0] == f"{A}: up, MTU 1500, no IPv4 address"
    assert effective["after"].splitlines()[1] == f"{B}: up, MTU 9000, 192.168.101.10/24"
    assert not any(MEMORY in json.dumps(entry) for entry in outcome.diff)


def test_halves_are_pinged_with_a_comparison_that_finds_nothing_to_change(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = replace(wanted(), pings=fabric_apply.ping.Request((), 3.0))
    pinged = fabric_apply.ping.Pinged()
    monkeypatch.setattr(fabric_apply, "Machine", lambda: machine(node, None))
    monkeypatch.setattr(fabric_apply.ping, "ping", lambda request, _check: pinged if request is want.pings else None)
    assert fabric_apply.change(want, True).pings is None
    apply(node, want)
    assert fabric_apply.change(want, True).pings is pinged
    assert fabric_apply.change(replace(want, pings=None), True).pings is None


def test_avahi_keeps_off_the_fabric(node: FakeNode) -> None:
    """Or `<name>.local` is an address of the fabric, from the second run on."""
    before = node.read(avahi.PATH)
    check = apply(node, wanted(), check=True)
    assert avahi.PATH in check.changes and node.read(avahi.PATH) == before
    assert [entry["before"] for entry in check.diff if entry["before_header"] == avahi.PATH] == [before]
    apply(node, wanted())
    assert node.avahi_denies == [f"deny-interfaces={A},{B}"]
    apply(node, NOTHING)
    assert (node.read(avahi.PATH), node.avahi_denies) == (before, [])


def test_avahi_keeps_off_the_ports_without_a_cable_too(node: FakeNode) -> None:
    """The halves of a cage hear each other, and avahi would go on making `<name>-2.local`."""
    for netdev in NICS:
        node.path(f"/sys/class/infiniband/roce_{netdev}/device/net/{netdev}").mkdir(parents=True)
    apply(node, wanted())
    assert node.avahi_denies == [f"deny-interfaces={A},{B},{','.join(sorted(OTHER))}"]
    verify(node, wanted())
    assert not apply(node, wanted()).changed
    apply(node, wanted(cage=1))
    assert not apply(node, wanted(cage=1)).changed
    apply(node, wanted())
    node.nics[OTHER[0]].addresses = ["10.0.7.1/24"]  # it is the machine's network
    apply(node, wanted())
    assert node.avahi_denies == [f"deny-interfaces={A},{B},{OTHER[1]}"]


def test_without_avahi_it_gets_no_file(node: FakeNode) -> None:
    node.path(avahi.PATH).unlink()
    outcome = apply(node, wanted())
    assert avahi.PATH not in outcome.changes and not node.path(avahi.PATH).exists()
    assert not any("avahi" in line for line in node.log)


def test_a_lost_manifest_does_not_make_our_files_originals(node: FakeNode) -> None:
    before, state = node.tree(), node.state()
    apply(node, wanted())
    node.path(managed_files.manifest_path("fabric")).unlink()
    apply(node, NOTHING)
    assert not node.path(netplan.FILE).exists() and not node.path(SYSCTL_FILE).exists()
    assert (node.tree(), node.state()) == (before, state)


def test_what_is_in_force_counts_not_the_file(node: FakeNode) -> None:
    want = wanted()
    apply(node, want)
    verify(node, want)
    node.nics[A].mtu = 1500
    outcome = apply(node, want)
    assert outcome.changes == [f"{A}: up, MTU 9000, 192.168.100.10/24", FACT_PATH]
    assert node.state()[A][0] == 9000
    assert json.loads(node.read(FACT_PATH))["state"] == "applying"


def test_sysctls_that_somebody_else_sets_are_left_to_them(node: FakeNode) -> None:
    node.write("/proc/sys/net/ipv4/conf/all/arp_announce", "2\n")
    node.write(f"/proc/sys/net/ipv4/conf/{A}/arp_ignore", "1\n")
    apply(node, wanted())
    lines = [line for line in node.read(SYSCTL_FILE).splitlines() if not line.startswith("#")]
    ipv6 = [f"net.ipv6.conf.{netdev}.disable_ipv6 = 1" for netdev in (B, A)]
    assert lines == [f"net.ipv4.conf.{B}.arp_ignore = 1", *ipv6]
    assert not apply(node, wanted()).changed


def test_a_sysctl_that_was_right_only_until_the_reboot_is_set_for_good(node: FakeNode) -> None:
    ipv6 = f"/proc/sys/net/ipv6/conf/{A}/disable_ipv6"
    line = f"net.ipv6.conf.{A}.disable_ipv6 = 1\n"
    node.write(ipv6, "1\n")  # a profile of NetworkManager that has been deleted, or by hand
    apply(node, wanted())
    assert line not in node.read(SYSCTL_FILE)
    node.write(ipv6, "0\n")  # the machine was started again
    outcome = apply(node, wanted())
    assert f"{A}: disable_ipv6 1" in outcome.changes and SYSCTL_FILE in outcome.changes
    assert line in node.read(SYSCTL_FILE)
    assert node.read(ipv6).strip() == "1"
    assert not apply(node, wanted()).changed
    apply(node, NOTHING)
    assert node.read(ipv6).strip() == "0"


def test_a_lost_sysctl_is_set_again(node: FakeNode) -> None:
    apply(node, wanted())
    node.write(f"/proc/sys/net/ipv4/conf/{A}/arp_ignore", "0\n")
    outcome = apply(node, wanted())
    assert outcome.changes == [f"{A}: arp_ignore 1", FACT_PATH]
    assert node.read(f"/proc/sys/net/ipv4/conf/{A}/arp_ignore").strip() == "1"
    assert not apply(node, wanted()).changed


def test_the_cable_moves_to_the_other_cage(node: FakeNode) -> None:
    apply(node, wanted())
    outcome = apply(node, wanted(cage=1))
    assert outcome.changed
    assert f"{A}: up, MTU 1500, no IPv4 address (given back)" in outcome.changes
    assert node.state()[A] == (1500, True, [])
    assert node.state()[OTHER[0]] == (9000, True, ["192.168.100.10/24"])
    assert node.read(f"/proc/sys/net/ipv4/conf/{A}/arp_ignore").strip() == "0"
    assert set(json.loads(node.read(MEMORY))["interfaces"]) == set(OTHER)
    assert not apply(node, wanted(cage=1)).changed
    assert node.nm_managed == {A, B}


def test_dhcp_and_link_local_addresses_give_way(node: FakeNode) -> None:
    node.nics[A].addresses = ["192.168.7.9/24", "169.254.3.4/16"]
    node.nics[A].dynamic = ["192.168.7.9/24"]
    apply(node, wanted())
    assert node.state()[A][2] == ["192.168.100.10/24"]


def test_one_node_needs_no_network(node: FakeNode) -> None:
    fact = plan({"spark1": spark(0, ())}, Settings()).facts["spark1"]
    outcome = apply(node, Wanted(fact))
    assert outcome.changes == [FACT_PATH]
    assert node.log == []
    verify(node, Wanted(fact))
    assert not apply(node, Wanted(fact)).changed


def test_waits_for_the_gids(node: FakeNode, tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys").spark(cabled={0})
    start = node.now
    apply(node, wanted(), sysfs=tree.root)
    assert node.now - start > 3  # they never came: the verification says so
    tree.gid("rocep1s0f0", 2, "192.168.100.10", "v1")
    tree.gid("rocep1s0f0", 3, "192.168.101.10", "v2")
    tree.gid("roceP2p1s0f0", 3, "192.168.100.10", "v2")
    node.nics[A].mtu, start = 1500, node.now
    apply(node, wanted(), sysfs=tree.root)
    assert node.now - start > 3  # neither another version nor the other half's
    tree.gid("rocep1s0f0", 3, "192.168.100.10", "v2")
    tree.gid("roceP2p1s0f0", 3, "192.168.101.10", "v2")
    node.nics[A].mtu, start = 1500, node.now
    apply(node, wanted(), sysfs=tree.root)
    assert node.now - start < 2


# --- undo ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("networkd", [False, True])
def test_everything_is_given_back(node: FakeNode, networkd: bool) -> None:
    node.networkd = networkd
    node.nics[B].mtu = 4200
    before, state, managed = node.tree(), node.state(), set(node.nm_managed)
    want = wanted()
    apply(node, want)
    verify(node, want)
    outcome = apply(node, NOTHING, check=True)
    assert outcome.changed and f"{B}: up, MTU 4200, no IPv4 address (given back)" in outcome.changes
    assert FACT_PATH in outcome.changes
    assert apply(node, NOTHING).changes == outcome.changes
    assert (node.tree(), node.state(), node.nm_managed) == (before, state, managed)
    assert node.networkd == networkd
    assert not apply(node, NOTHING).changed


def test_an_interface_that_left_the_machine_needs_nothing(node: FakeNode) -> None:
    apply(node, wanted())
    del node.nics[B]
    apply(node, NOTHING)
    assert node.state()[A] == (1500, True, [])
    assert not node.path(MEMORY).exists()


def test_the_configuration_of_another_file_comes_back(node: FakeNode) -> None:
    node.networkd = True
    text = f"network:\n  ethernets:\n    {A}:\n      addresses: [192.168.100.10/24]\n"
    node.write("/etc/netplan/40-cx7.yaml", text)
    apply(node, wanted())
    apply(node, NOTHING)
    assert node.read("/etc/netplan/40-cx7.yaml") == text
    assert f"networkctl reconfigure {A}" in node.log
    assert node.state()[A] == (9000, True, ["192.168.100.10/24"])  # the MTU is that file's business


def test_addresses_that_do_not_go_are_named(node: FakeNode) -> None:
    apply(node, wanted())
    node.fail = {"ip addr del": "Operation not permitted"}
    with pytest.raises(SparkError, match=r"cannot remove 192\.168\.10[01]\.10/24"):
        apply(node, NOTHING)
    node.fail = {}
    apply(node, NOTHING)
    assert node.state()[A] == (1500, True, [])


# --- refusals --------------------------------------------------------------------------------------------------------


def untouched(node: FakeNode, want: Wanted, match: str) -> None:
    before, state = node.tree(), node.state()
    for check in (True, False):
        with pytest.raises(SparkError) as raised:
            apply(node, want, check=check)
        assert match in str(raised.value)
        assert (node.tree(), node.state()) == (before, state)


def test_the_connections_interface_is_not_touched(node: FakeNode) -> None:
    untouched(node, replace(wanted(), connection_interface=A), f"{A}: this interface carries Ansible's connection")


def test_a_missing_interface(node: FakeNode) -> None:
    del node.nics[B]
    untouched(node, wanted(), f"{B}: the interface is gone")


def test_a_foreign_address(node: FakeNode) -> None:
    node.nics[A].addresses = ["10.77.0.1/24"]
    untouched(node, wanted(), f"{A}: has the address 10.77.0.1/24, which this collection did not place")
    untouched(node, wanted(), f"Remove it: ip addr del 10.77.0.1/24 dev {A}")


def test_an_address_that_somebody_else_has(node: FakeNode) -> None:
    stranger, own = "02:00:00:00:09:01", "02:00:00:00:00:07"
    node.write(f"/sys/class/net/{B}/address", f"{own}\n")
    node.strangers = [Holder(A, "192.168.100.10", stranger)]
    untouched(node, wanted(), f"{A}: somebody else has the address 192.168.100.10 already: {stranger} answers for it")
    untouched(node, wanted(), "other fabric_subnets, another fabric_host_offset")
    # The machine's own twin, where ARP is not set yet, and another half of the plan that is about to change, too.
    node.strangers = [Holder(A, "192.168.100.10", mac) for mac in (own, stranger)]
    assert apply(node, replace(wanted(), macs=(stranger.upper(),))).changed
    assert node.asked[-1] == {A: ["192.168.100.10"], B: ["192.168.101.10"]}
    node.asked = []
    assert not apply(node, wanted()).changed and node.asked == []  # it has its addresses


def test_netplan_does_not_accept_it(node: FakeNode) -> None:
    node.write("/etc/netplan/30-wrong.yaml", "network:\n  ethernets:\n    x: {adresses: []}\n")
    untouched(node, wanted(), "validating the netplan configuration failed: /etc/netplan/30-wrong.yaml: unknown key")


def test_another_definition_that_matches_by_what_sysfs_has(node: FakeNode, tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path / "sys").spark(cabled={0})
    mac = (tree.root / "class/net" / A / "address").read_text().strip()
    for match in (f"macaddress: {mac.upper()}", "driver: mlx5_core"):
        text = f"network:\n  ethernets:\n    qsfp:\n      match: {{{match}}}\n      addresses: [10.77.0.1/24]\n"
        node.write("/etc/netplan/20-qsfp.yaml", text)
        with pytest.raises(SparkError, match=r"/etc/netplan/20-qsfp\.yaml: it gives enp1s0f0np0 the address 10\.77"):
            apply(node, wanted(), sysfs=tree.root)
        outcome = apply(node, replace(wanted(), foreign="adopt"), sysfs=tree.root)
        assert "/etc/netplan/20-qsfp.yaml" in outcome.changes
        apply(node, NOTHING, sysfs=tree.root)
        assert node.read("/etc/netplan/20-qsfp.yaml") == text


def test_netplan_makes_something_else_of_it(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netplan, "render", lambda *_x: "network:\n  version: 2\n")
    untouched(node, wanted(), f"{A}: netplan accepts {netplan.FILE} but configures no 192.168.100.10/24 from it")


def test_a_waiting_edit_of_the_management_network_is_not_made_effective(node: FakeNode) -> None:
    node.networkd = True
    edit = "network:\n  ethernets:\n    enP7s7:\n      renderer: networkd\n      addresses: [{}/24]\n"
    node.write("/etc/netplan/10-management.yaml", edit.format("10.0.0.1"))
    node.run(["netplan", "generate"])
    apply(node, wanted())
    apply(node, NOTHING)
    node.write("/etc/netplan/10-management.yaml", edit.format("10.0.0.9"))
    untouched(node, wanted(), "enP7s7: its netplan configuration was edited and not applied yet")
    untouched(node, replace(wanted(), connection_interface=""), "it carries the management address 10.0.0.1")


RDMA = "/etc/netplan/99-rdma.yaml"


@pytest.mark.parametrize("renderer_", ["networkd", "NetworkManager"])
def test_a_definition_of_the_management_network_that_was_moved_away_is_missed(node: FakeNode, renderer_: str) -> None:
    """`networkctl reload` or NetworkManager would forget it, and the line would be cut."""
    node.networkd = True
    text = f"network: {{version: 2, renderer: {renderer_}, ethernets: {{enP7s7: {{addresses: [10.0.0.1/24]}}}}}}\n"
    node.write(RDMA, text)
    node.run(["netplan", "generate"])
    node.path(RDMA).unlink()
    found = "enP7s7: it carries Ansible's connection, and netplan's files no longer define it: /run/"
    untouched(node, wanted(), found)
    # Where Ansible runs on the machine itself, its way out and what the others reach it by.
    untouched(node, replace(wanted(), connection_interface=""), "it carries the management address 10.0.0.1, and")
    node.write(RDMA, text)
    assert apply(node, wanted()).changed


def test_an_undo_does_not_cut_the_line_either(node: FakeNode) -> None:
    text = "network: {renderer: networkd, ethernets: {enP7s7: {addresses: [10.0.0.1/24]}}}\n"
    node.networkd = True
    node.write(RDMA, text)
    node.run(["netplan", "generate"])
    apply(node, wanted())
    verify(node, wanted())
    node.path(RDMA).unlink()
    untouched(node, NOTHING, "netplan's files no longer define it")
    untouched(node, Wanted(None), "enP7s7: it carries the management address 10.0.0.1, and netplan's files no longer")
    node.write(RDMA, text)
    assert apply(node, NOTHING).changed and not node.path(netplan.FILE).exists()


def test_what_networkd_runs_with_counts_where_its_file_is_gone(node: FakeNode) -> None:
    node.write("/sys/class/net/enP7s7/ifindex", "2\n")
    node.write(
        "/run/systemd/netif/links/2",
        "ADMIN_STATE=configured\nNETWORK_FILE=/run/systemd/network/10-netplan-all.network\n",
    )
    untouched(node, wanted(), "netplan's files no longer define it: /run/systemd/network/10-netplan-all.network would")
    node.write("/run/systemd/netif/links/2", "NETWORK_FILE=/etc/systemd/network/10-lan.network\n")
    assert apply(node, wanted()).changed


def test_what_stands_on_a_half_and_carries_the_connection(node: FakeNode) -> None:
    node.path("/sys/class/net/lan/lower_br0").mkdir(parents=True)
    node.path(f"/sys/class/net/br0/lower_{A}").mkdir(parents=True)
    untouched(node, replace(wanted(), connection_interface="lan"), f"{A}: this interface carries Ansible's connection")


def test_a_second_default_route_on_a_half_stands_in_no_way(node: FakeNode) -> None:
    node.default_routes = ["enP7s7", A]
    assert apply(node, wanted()).changed
    apply(node, NOTHING)
    node.default_routes = [A]
    untouched(node, wanted(), f"{A}: this interface carries the default route")


# What is not read as ours means it: a half to the other backend, a random address, a half that stays down.
LATER = [
    ("renderer: NetworkManager, mtu: 9000", "sets renderer NetworkManager"),
    ("link-local: [ipv4]", "sets link-local [ipv4]"),
]


@pytest.mark.parametrize(("said", "found"), LATER)
def test_what_is_read_after_ours_and_holds_nothing_to_lose_is_disabled(node: FakeNode, said: str, found: str) -> None:
    before = node.tree()
    node.write(RDMA, f"network: {{version: 2, ethernets: {{{B}: {{{said}}}, {A}: {{{said}}}}}}}\n")
    mixed = f"network: {{version: 2, ethernets: {{{B}: {{{said}}}, enP7s7: {{addresses: [10.0.0.1/24]}}}}}}\n"
    outcome = apply(node, wanted())
    assert f"spark1: {RDMA}: asks DHCP at most" in outcome.warnings[0] and RDMA in outcome.changes
    assert node.state()[B] == (9000, True, ["192.168.101.10/24"]) and A not in node.read(RDMA)
    assert not apply(node, wanted()).changes
    apply(node, NOTHING)
    for _look in range(4):  # networkd works in the background
        node._show()
    # With another port in it nobody touches the file unasked.
    node.write(RDMA, mixed)
    node.run(["netplan", "generate"])
    untouched(node, wanted(), f"{RDMA}: it {found}")
    untouched(node, wanted(), f"Take '{B}' out of that file, and leave the rest of it (enP7s7) as it is")
    outcome = apply(node, replace(wanted(), foreign="adopt"))
    assert "enP7s7" in node.read(RDMA) and B not in node.read(RDMA)
    apply(node, NOTHING)
    assert node.read(RDMA) == mixed
    node.path(RDMA).unlink()
    assert node.tree() == before


@pytest.mark.parametrize(
    "said",
    [
        f"{A}: {{optional: true, dhcp4: no, link-local: []}}",
        f"{A}: {{dhcp4-overrides: {{use-dns: false}}, ipv6-privacy: true}}",
        "zz-all: {match: {name: 'en*'}, dhcp4: true}",
    ],
)
def test_what_netplan_makes_nothing_of_is_no_conflict(node: FakeNode, said: str) -> None:
    """As the stand-in for netplan reads it: options without effect are left out, and the first file counts."""
    node.ignored = {"dhcp4-overrides", "ipv6-privacy"}
    node.networkd = True
    node.write("/etc/netplan/10-x.yaml", f"network: {{version: 2, ethernets: {{{said}}}}}\n")
    node.run(["netplan", "generate"])
    outcome = apply(node, replace(wanted(), connection_interface=""))
    assert "/etc/netplan/10-x.yaml" not in outcome.changes and not outcome.warnings
    assert node.state()[A] == (9000, True, ["192.168.100.10/24"])


def test_what_only_netplan_sees_is_named_with_its_file(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.write("/etc/netplan/70-x.yaml", f"network: {{ethernets: {{{A}: {{mtu: 1500}}}}}}\n")
    node.write("/etc/netplan/71-y.yaml", "network: {version: 2}\n")
    monkeypatch.setattr(netplan, "conflicts", lambda *_a: [])
    untouched(
        node, wanted(), f"{A}: /etc/netplan/70-x.yaml: what netplan makes of our file is not the same with it: mtu=1500"
    )


def test_a_file_of_networkd_that_comes_before_ours(node: FakeNode) -> None:
    path, text = "/etc/systemd/network/10-cx7.network", f"[Match]\nName={A}\n[Network]\nAddress=10.9.0.1/24\n"
    before = node.tree()
    node.write(path, text)
    node.path(f"/sys/class/net/{A}").mkdir(parents=True)
    untouched(node, wanted(), f"{A}: {path}: systemd-networkd uses it for {A} and not ours")
    outcome = apply(node, replace(wanted(), foreign="adopt"))
    assert path in outcome.changes and "[Match]" not in node.read(path)
    assert node.path(path).stat().st_mode & 0o777 == 0o644
    assert not apply(node, wanted()).changes
    apply(node, NOTHING)
    assert node.read(path) == text
    node.path(path).unlink()
    assert node.tree() == before


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        (
            "/etc/systemd/network/10-cx7.network",
            f"[Match]\nName={A}\n",
            f"systemd-networkd uses it for {A} and not ours",
        ),
        (
            RDMA,
            f"network: {{ethernets: {{{A}: {{addresses: [10.77.0.1/24]}}}}}}\n",
            f"it gives {A} the address 10.77.0.1/24",
        ),
    ],
)
def test_what_comes_into_the_way_later_is_told_before_it_has_an_effect(
    node: FakeNode, path: str, text: str, found: str
) -> None:
    apply(node, wanted())
    verify(node, wanted())
    node.write(path, text)
    outcome = apply(node, wanted())
    assert not outcome.changed and f"spark1: {A}: {path}: {found}" in outcome.warnings[0]
    assert "from the next boot on" in outcome.warnings[0] and f"mv {path}" in outcome.warnings[0]


# --- NetworkManager had the ports, as on every new Spark -----------------------------------------------------------

UUID = "7e3b6cd2-1f0a-4f0e-9f0d-0a1b2c3d4e5f"
MIRRORED = f"/etc/netplan/90-NM-{UUID}.yaml"


def mirrored(match: str, more: str = "dhcp4: true") -> str:
    """As NetworkManager's netplan plug-in writes a profile."""
    inside = f"renderer: NetworkManager, match: {match}, {more}, networkmanager: {{uuid: {UUID}, name: Profile 1}}"
    return f"network: {{version: 2, ethernets: {{NM-{UUID}: {{{inside}}}}}}}\n"


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path / "sys").spark(cabled={0})


def test_what_asks_dhcp_on_the_cable_is_put_out_of_force_unasked(node: FakeNode, tree: SysfsTree) -> None:
    mac = (tree.root / "class/net" / B / "address").read_text().strip()
    for match in (f"{{name: {A}}}", f"{{macaddress: {mac}}}"):
        node.write(MIRRORED, mirrored(match))
        before = node.tree()
        outcome = apply(node, wanted(), sysfs=tree.root)
        said = f"asks DHCP at most, on interfaces of the fabric only ({A}, {B}); it is disabled until a reset"
        assert outcome.warnings == [f"spark1: {MIRRORED}: {said}"]
        assert "NM-" not in node.read(MIRRORED)
        verify(node, wanted())
        again = apply(node, wanted(), sysfs=tree.root)
        assert not again.changed and not again.warnings
        assert not apply(node, NOTHING, sysfs=tree.root).warnings
        assert node.tree() == before


@pytest.mark.parametrize("match", ["{}", "{name: 'en*'}"])
def test_a_profile_of_other_ports_as_well_is_left_and_does_not_get_them_back(
    node: FakeNode, tree: SysfsTree, match: str
) -> None:
    node.write(MIRRORED, mirrored(match))
    before, managed = node.tree(), set(node.nm_managed)
    assert not apply(node, wanted(), sysfs=tree.root).warnings
    assert node.read(MIRRORED) == mirrored(match)
    verify(node, wanted())
    node.reboot()
    node.start_network()
    assert node.nm_managed == set(OTHER)
    assert node.state()[A] == (9000, True, ["192.168.100.10/24"])
    apply(node, NOTHING, sysfs=tree.root)
    assert (node.tree(), node.nm_managed) == (before, managed)


def test_rules_of_a_vpn_survive_the_first_start_of_networkd(node: FakeNode) -> None:
    apply(node, wanted())
    verify(node, wanted())
    assert node.networkd and node.rules
    node.reboot()
    node.start_network()
    assert node.networkd and node.rules
    apply(node, NOTHING)
    assert not node.networkd and node.rules and not node.path(renderer.DAEMON).exists()


def test_networkd_keeps_its_settings_until_it_is_stopped(node: FakeNode) -> None:
    apply(node, wanted())
    run = node.run

    def look(argv: Any) -> Any:
        if argv[:2] in (("networkctl", "reload"), ("systemctl", "stop")):
            assert node.path(renderer.DAEMON).exists()
        return run(argv)

    node.run = look  # type: ignore[method-assign]
    apply(node, NOTHING)
    assert "systemctl stop systemd-networkd.socket systemd-networkd.service" in node.log


# --- failures --------------------------------------------------------------------------------------------------------


def test_a_change_that_does_not_take_is_taken_back(node: FakeNode) -> None:
    node.nics[B].carrier = False
    before, state = node.tree(), node.state()
    with pytest.raises(SparkError) as raised:
        apply(node, wanted())
    text = str(raised.value)
    assert f"{B}: waiting 5 s for the interfaces failed: {B}: up, MTU 9000, no IPv4 address (no link: check" in text
    assert "The previous configuration is active again" in text
    assert f"networkctl status {B}" in text
    assert (node.tree(), node.state()) == (before, state)
    assert not node.timers
    assert not node.networkd
    node.nics[B].carrier = True
    assert apply(node, wanted()).changed


STEPS = [
    ("netplan generate", "generating the network configuration failed"),
    ("nmcli device set", "telling NetworkManager failed"),
    ("systemctl start", "starting systemd-networkd failed"),
    ("networkctl reload", "reloading systemd-networkd failed"),
    ("networkctl reconfigure", "configuring the interfaces failed"),
]


@pytest.mark.parametrize(("command", "step"), STEPS)
def test_the_step_that_failed_is_named(node: FakeNode, command: str, step: str) -> None:
    run, seen = node.run, []

    def once(argv: Any) -> Any:
        line = " ".join(argv)
        if line.startswith(command) and "--root-dir" not in line and not seen:
            seen.append(line)
            return Completed(1, "", "no luck")
        return run(argv)

    node.run = once  # type: ignore[method-assign]
    state = node.state()
    with pytest.raises(SparkError) as raised:
        apply(node, wanted())
    assert f"{step}: {seen[0]}: no luck" in str(raised.value)
    assert node.state() == state
    node.run = run  # type: ignore[method-assign]
    assert apply(node, wanted()).changed
    assert node.state()[A][2] == ["192.168.100.10/24"]


def test_a_failure_on_the_way_back_is_told_too(node: FakeNode) -> None:
    node.fail = {"networkctl": "Access denied"}
    with pytest.raises(
        SparkError, match=r"reloading systemd.*Going back failed as well, the node tries again by itself: reloading"
    ):
        apply(node, wanted())
    node.fail = {}
    apply(node, wanted())
    apply(node, NOTHING)
    assert node.state()[A] == (1500, True, [])


def test_a_run_that_dies_anywhere_is_completed_by_the_next(tmp_path: Path) -> None:
    reference = FakeNode(tmp_path / "reference", NICS)
    pristine = (reference.tree(), reference.state())
    apply(reference, wanted())
    steps = reference.changing
    assert steps > 5
    expected = (reference.tree(), reference.state())
    for step in range(steps + 1):
        node = FakeNode(tmp_path / f"node{step}", NICS)
        node.kill_at = step
        try:
            apply(node, wanted())
        except Killed:
            if node.path(FACT_PATH).exists():
                assert json.loads(node.read(FACT_PATH))["state"] == "applying"
        node.kill_at = None
        apply(node, wanted())
        assert (node.tree(), node.state()) == expected, step
        # And an undo that dies.
        node.kill_at = node.changing + step
        with contextlib.suppress(Killed):
            apply(node, NOTHING)
        node.kill_at = None
        apply(node, NOTHING)
        assert (node.tree(), node.state()) == pristine, step


def test_one_run_at_a_time(node: FakeNode) -> None:
    apply(node, wanted())
    with node.path(interfaces.LOCK).open("r+") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert not apply(node, wanted(), check=True).changed
        with pytest.raises(SparkError, match="another run has been changing the fabric of this node for 90 s"):
            apply(node, wanted())
    assert not apply(node, wanted()).changed


# --- pure parts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["{", "[1]", "7"])
def test_unreadable_addresses(text: str) -> None:
    with pytest.raises(SparkError, match="Update iproute2"):
        interfaces.effective(Machine(runner=lambda _argv: Completed(0, text)))


@pytest.mark.parametrize("text", ["", "{", '{"schema": 2}', '{"schema": 1, "interfaces": {"a": {}}}', "[]"])
def test_a_damaged_memory_is_named(text: str) -> None:
    with pytest.raises(SparkError, match=MEMORY):
        Memory.parse(text)


hosts_text = st.lists(st.sampled_from(["127.0.0.1 localhost", "", "# note", "10.0.0.9 x"])).map(
    lambda lines: "".join(line + "\n" for line in lines)
)
block_lines = st.lists(st.sampled_from(["1.2.3.4 a-fabric", "1.2.3.5 b-fabric"]), min_size=1)


@given(hosts_text, hosts_text, block_lines, block_lines)
def test_the_block_in_hosts_comes_and_goes(before: str, after: str, lines: list[str], others: list[str]) -> None:
    text = etc_hosts.with_block(before, lines, "fabric")
    assert etc_hosts.with_block(text, lines, "fabric") == text
    assert etc_hosts.with_block(text, [], "fabric") == before
    # What people add around it stays.
    assert (
        etc_hosts.with_block(text + after, others, "fabric") == etc_hosts.with_block(before, others, "fabric") + after
    )
    assert etc_hosts.with_block(text + after, [], "fabric") == before + after


def test_hosts_that_is_a_mount_point_is_written_in_place(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def busy(source: str, target: str) -> None:
        if target.endswith("/etc/hosts"):
            raise OSError(errno.EBUSY, "Device or resource busy")
        rename(source, target)

    monkeypatch.setattr(os, "rename", busy)
    node.path("/etc/hosts").chmod(0o664)
    apply(node, wanted())
    assert "spark2-fabric" in node.read("/etc/hosts")
    apply(node, NOTHING)
    assert node.read("/etc/hosts") == "127.0.0.1 localhost\n"
    assert node.path("/etc/hosts").stat().st_mode & 0o777 == 0o664
    assert sorted(path.name for path in node.path("/etc").iterdir()) == ["NetworkManager", "avahi", "hosts", "netplan"]
