# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import sys

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import netplan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.netplan import Interface, Nic
from hypothesis import given
from hypothesis import strategies as st

IF = "enp1s0f0np0"
NIC = Nic(IF, "4c:bb:47:00:00:01", "mlx5_core")
MANAGEMENT_NIC = Nic("enP7s7", "4c:bb:47:00:00:4e", "r8127")
OURS = Interface(NIC, "192.168.100.10/24", 9000)
TWIN = Interface(Nic("enP2p1s0f0np0", "4c:bb:47:00:00:05", "mlx5_core"), "192.168.101.10/24", 9000)


def test_our_file_is_valid_yaml_and_says_what_we_mean() -> None:
    document = yaml.safe_load(netplan.render([OURS, TWIN]))["network"]
    assert document["version"] == 2
    assert list(document["ethernets"]) == [IF, "enP2p1s0f0np0"]
    assert document["ethernets"][IF] == {
        "renderer": "networkd",
        "optional": True,
        "dhcp4": False,
        "dhcp6": False,
        "accept-ra": False,
        "link-local": [],
        "mtu": 9000,
        "addresses": ["192.168.100.10/24"],
    }


def test_with_networkmanager_ours_comes_before_profiles_that_fit_as_well() -> None:
    document = yaml.safe_load(netplan.render([OURS], "NetworkManager"))["network"]["ethernets"][IF]
    assert document["networkmanager"] == {"passthrough": {"connection.autoconnect-priority": "999"}}


NVIDIA = """\
network:
  version: 2
  ethernets:
    enp1s0f0np0:
      addresses: [192.168.200.12/24]
      dhcp4: no
    enP2p1s0f0np0:   # the twin
      addresses:
        - 192.168.101.10/24
      dhcp4: no
"""
LINK_LOCAL = """\
network:
    version: 2
    ethernets:
        enp1s0f0np0:
            link-local: [ ipv4 ]
        enP2p1s0f0np0:
            link-local: [ ipv4 ]
"""
NM = """\
network:
  version: 2
  ethernets:
    NM-7e3b6cd2-1f0a-4f0e-9f0d-0a1b2c3d4e5f:
      renderer: NetworkManager
      match:
        name: "enp1s0f0np0"
      dhcp4: true
      networkmanager:
        uuid: "7e3b6cd2-1f0a-4f0e-9f0d-0a1b2c3d4e5f"
        name: "Wired connection 2"
"""
PATTERN = """\
network:
  ethernets:
    all-en:
      match: {name: "en*"}
      dhcp4: true
"""
BOND = """\
network:
  version: 2
  bonds:
    bond0:
      interfaces: [enp1s0f0np0, enP2p1s0f0np0]
      addresses: [10.5.0.1/24]
"""
RENAMED = """\
network:
  ethernets:
    enp1s0f0np0:
      match: {macaddress: "4c:bb:47:00:00:01"}
      addresses: [192.168.100.10/24]
      routes:
        - to: 192.168.100.10/32
          scope: link
"""
MANAGEMENT = """\
# enp1s0f0np0 is the fabric
network:
  version: 2
  renderer: NetworkManager
  ethernets:
    enP7s7: {dhcp4: true}
    enp1s0f0np01: {dhcp4: true}
"""


BOND_BY_ID = """\
network:
  ethernets:
    x: {match: {driver: mlx5_core}}
  bonds:
    bond0: {interfaces: [x]}
"""


def ethernet(name: str, match: str, more: str = "dhcp4: true") -> str:
    inside = f"      match: {match}\n" if match else ""
    return f"network:\n  ethernets:\n    {name}:\n{inside}      {more}\n"


@pytest.mark.parametrize(
    ("path", "text", "found", "remedy"),
    [
        ("/etc/netplan/40-cx7.yaml", NVIDIA, "it gives enp1s0f0np0 the address 192.168.200.12/24", "mv /etc/netplan/"),
        ("/etc/netplan/90-NM-x.yaml", NM, "also matches enp1s0f0np0", "nmcli connection delete 7e3b6cd2-1f0a-4f"),
        ("/etc/netplan/01-all.yaml", PATTERN, "its definition 'all-en' also matches enp1s0f0np0", "Take the interface"),
        ("/etc/netplan/50-bond.yaml", BOND, "in a bond, a bridge", "Take the interface out"),
        ("/etc/netplan/50-r.yaml", RENAMED, "it has addresses or routes of its own", "Take the interface out"),
        ("/etc/netplan/70-x.yaml", f"network:\n  ethernets:\n    {IF}:\n      dhcp4: yes\n", "turns DHCP", "mv /etc"),
        ("/etc/netplan/70-x.yaml", f"network:\n  ethernets:\n    {IF}: {{mtu: 1500}}\n", "it sets MTU 1500", "mv /etc"),
        ("/run/netplan/70-x.yaml", f"network: {{ethernets: {{{IF}: {{mtu: 1500}}}}}}\n", "sets MTU 1500", "mv /run"),
        ("/etc/netplan/10-m.yaml", ethernet("x", "{macaddress: 4C:BB:47:00:00:01}"), "'x' also matches", "mv /etc"),
        ("/etc/netplan/10-d.yaml", ethernet("x", "{driver: mlx5_core}"), "'x' also matches", "mv /etc"),
        ("/etc/netplan/10-d.yaml", ethernet("x", "{driver: [r*, mlx*]}"), "'x' also matches", "mv /etc"),
        ("/etc/netplan/10-b.yaml", ethernet("x", "{name: 'en*', driver: mlx5_core}"), "'x' also matches", "mv /etc"),
        ("/etc/netplan/10-e.yaml", ethernet("x", "{}"), "'x' also matches", "mv /etc"),
        ("/etc/netplan/10-o.yaml", ethernet(IF, "{macaddress: 4c:bb:47:00:00:02}"), "does not fit", "mv /etc"),
        ("/etc/netplan/10-s.yaml", ethernet("x", "{name: y}", f"set-name: {IF}"), "in a way that is not", "mv /etc"),
        ("/etc/netplan/10-l.yaml", ethernet(IF, "", "addresses: [10.5.0.1/24: {label: a}]"), "10.5.0.1/24", "mv /etc"),
        ("/etc/netplan/10-i.yaml", BOND_BY_ID, "'x' also matches", "mv /etc"),
    ],
)  # fmt: skip
def test_conflicts(path: str, text: str, found: str, remedy: str) -> None:
    conflicts = netplan.conflicts({path: text}, [OURS])
    assert {conflict.file for conflict in conflicts} == {path}
    assert conflicts[0].netdev == IF
    assert found in conflicts[0].found
    assert remedy in conflicts[0].remedy


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/etc/netplan/40-cx7.yaml", LINK_LOCAL),
        ("/etc/netplan/01-nm.yaml", MANAGEMENT),
        ("/etc/netplan/40-x.yaml", f'network:\n  ethernets:\n    "{IF}":\n      dhcp4: true\n      mtu: 1500\n'),
        ("/etc/netplan/40-x.yaml", NVIDIA.replace("192.168.200.12/24", "192.168.100.10/24")),
        (netplan.FILE, NVIDIA),
        ("/etc/netplan/70-x.yaml", ""),
        ("/etc/netplan/7.yaml", f"network:\n  ethernets:\n    o:\n      match: {{name: x*}}\n      set-name: {IF}x\n"),
        ("/etc/netplan/7.yaml", ethernet("x", "{macaddress: 4c:bb:47:00:00:02}")),
        ("/etc/netplan/7.yaml", ethernet("x", "{driver: r8127}")),
        ("/etc/netplan/7.yaml", ethernet("x", "{name: 'en*', driver: r8127}")),
        ("/etc/netplan/90-NM-any.yaml", ethernet("NM-x", "{}", "renderer: NetworkManager")),
        ("/etc/netplan/1.yaml", "network: {renderer: NetworkManager, ethernets: {x: {match: {}, mtu: 9}}}"),
    ],
)  # fmt: skip
def test_no_conflict(path: str, text: str) -> None:
    assert netplan.conflicts({path: text}, [OURS, TWIN]) == []


def test_the_file_that_is_read_later_wins_whatever_its_directory() -> None:
    text = f"network:\n  ethernets:\n    {IF}:\n      mtu: 1500\n"
    assert not netplan.conflicts({"/run/netplan/10-x.yaml": text}, [OURS])
    assert netplan.conflicts({"/lib/netplan/99-x.yaml": text}, [OURS])


def test_every_file_and_interface_is_reported() -> None:
    found = netplan.conflicts({"/etc/netplan/50-b.yaml": BOND, "/etc/netplan/40-n.yaml": NVIDIA}, [OURS, TWIN])
    assert [(c.netdev, c.file) for c in found] == [
        (IF, "/etc/netplan/40-n.yaml"),
        (IF, "/etc/netplan/50-b.yaml"),
        ("enP2p1s0f0np0", "/etc/netplan/50-b.yaml"),
    ]


def test_bad_addresses_are_foreign() -> None:
    text = f"network:\n  ethernets:\n    {IF}:\n      addresses: [300.1.1.1/24]\n"
    assert "300.1.1.1/24" in netplan.conflicts({"/etc/netplan/1.yaml": text}, [OURS])[0].found


def test_an_address_of_another_definition_of_the_same_interface() -> None:
    text = ethernet("x", "{macaddress: 4c:bb:47:00:00:01}", "addresses: [10.5.0.1/24]")
    (found,) = netplan.conflicts({"/etc/netplan/10-x.yaml": text}, [OURS, TWIN])
    assert (found.netdev, found.file) == (IF, "/etc/netplan/10-x.yaml")
    assert "it gives enp1s0f0np0 the address 10.5.0.1/24" in found.found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("network: [", "expected the node content"),
        ("network: [a]\n", "network is no mapping"),
        ("network: ~\n", "network is no mapping"),
        ("network:\n", "network is no mapping"),
        ("- a\n", "network is no mapping"),
        ("network:\n\tx: {}\n", "cannot start any token in line 2"),
        ("network:\n  {[a]: b}\n", "a key is no text in line 2"),
        ("a: 1\nb: \udcff\n", "special characters are not allowed (line 2)"),
        ("a: 1\n\n# \x01\n", "special characters are not allowed (line 3)"),
    ],
)
def test_a_file_that_netplan_cannot_read_is_named(text: str, why: str) -> None:
    with pytest.raises(SparkError) as raised:
        netplan.conflicts({"/etc/netplan/10-x.yaml": text}, [OURS])
    assert str(raised.value).startswith("/etc/netplan/10-x.yaml: netplan cannot read this file: ")
    assert why in str(raised.value) and "Correct it" in str(raised.value)


def test_what_comes_twice_is_joined_as_netplan_does() -> None:
    text = f"network:\n  ethernets:\n    {IF}: {{mtu: 1, addresses: [10.1.1.1/24]}}\n"
    text += f"    {IF}: {{mtu: 2, addresses: [10.1.1.2/24]}}\n  ethernets:\n    x: {{dhcp4: true}}\n"
    assert netplan.read("x", text) == {
        "ethernets": {IF: {"mtu": "2", "addresses": ["10.1.1.1/24", "10.1.1.2/24"]}, "x": {"dhcp4": "true"}}
    }


@pytest.mark.parametrize("rest", ["network: {ethernets: {x: {}}}", "{["])
def test_what_follows_the_first_document_does_not_count(rest: str) -> None:
    assert netplan.read("x", f"network: {{version: 2}}\n---\n{rest}\n") == {"version": "2"}


def test_files_of_packages_are_shadowed_for_good_and_by_run_until_the_next_boot() -> None:
    text = ethernet(IF, "", "addresses: [10.5.0.1/24]")
    for shadow, in_the_way in (("/etc", []), ("/run", ["/lib/netplan/5.yaml"])):
        found = netplan.conflicts({"/lib/netplan/5.yaml": text, f"{shadow}/netplan/5.yaml": ""}, [OURS])
        assert [conflict.file for conflict in found] == in_the_way
    found = netplan.conflicts({"/etc/netplan/5.yaml": text, "/run/netplan/5.yaml": ""}, [OURS])
    assert [conflict.file for conflict in found] == ["/etc/netplan/5.yaml"]


def test_a_broken_file_is_not_quoted() -> None:
    text = "network:\n  wifis:\n    wlan0:\n      access-points: {home: {password: secret}}}\n"
    with pytest.raises(SparkError) as raised:
        netplan.read("/etc/netplan/10-x.yaml", text)
    assert "in line 4" in str(raised.value) and "secret" not in str(raised.value)


def test_python_without_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netplan, "yaml", None)
    with pytest.raises(SparkError, match=rf"{sys.executable}: .*Install python3-yaml"):
        netplan.conflicts({"/etc/netplan/10-x.yaml": ""}, [OURS])
    assert netplan.conflicts({netplan.FILE: ""}, [OURS]) == []


@given(st.text(alphabet="ab: -[]{}#\n\"'&*" + IF, max_size=200))
def test_any_text_is_read_or_named(text: str) -> None:
    with contextlib.suppress(SparkError):
        netplan.conflicts({"/etc/netplan/x.yaml": text}, [OURS])
        netplan.not_adoptable("/etc/netplan/x.yaml", text, {IF}, [NIC])
        yaml.safe_load(netplan.out_of_force("/etc/netplan/x.yaml", text))
    netplan.keyfile_conflicts({"x": text}, [OURS])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (ethernet("x", "{driver: mlx5_core}"), ""),
        (ethernet("x", "{macaddress: 4c:bb:47:00:00:05}"), ""),
        (ethernet("x", "{name: 'enp1s0*'}"), ""),
        (NM, ""),
        (ethernet("x", "{name: 'en*'}"), "x.yaml also configures enP7s7"),
        (ethernet("x", "{}"), "x.yaml also configures enP7s7"),
        (ethernet("x", "{macaddress: 4c:bb:47:00:00:99}"), "x.yaml also configures x"),
        (ethernet("enP7s7", ""), "x.yaml also configures enP7s7"),
        (ethernet(IF, "", "gateway4: 10.0.0.1"), f"x.yaml has routes for {IF}"),
        (BOND, "x.yaml configures bonds"),
    ],
)
def test_a_file_is_adopted_when_it_is_about_the_nic_only(text: str, why: str) -> None:
    nics = [NIC, TWIN.nic, MANAGEMENT_NIC]
    assert netplan.not_adoptable("x.yaml", text, {IF, TWIN.netdev}, nics) == why


KEYFILE = """\
# NetworkManager
[connection]
id=cx7-a
type=ethernet
interface-name={netdev}
{more}

[ipv4]
{ipv4}
may-fail=false
"""


@pytest.mark.parametrize(
    ("netdev", "more", "ipv4", "found"),
    [
        (IF, "", "method=manual\naddress1=10.5.0.1/24,10.5.0.254", "'cx7-a' gives enp1s0f0np0 10.5.0.1/24"),
        (IF, "controller=bond0", "method=auto", "makes enp1s0f0np0 a member of bond0"),
        (IF, "master=bond0", "", "a member of bond0"),
        (IF, "", "method=auto", None),
        (IF, "", "method=manual\naddress1=192.168.100.10/24", None),
        ("enP7s7", "", "method=manual\naddress1=10.5.0.1/24", None),
        ("", "\n[ethernet]\nmac-address=4C:BB:47:00:00:01", "method=manual\naddress1=10.5.0.1/24", "gives enp1s0f0np0"),
        ("", "\n[ethernet]\nmac-address=4C:BB:47:00:00:09", "method=manual\naddress1=10.5.0.1/24", None),
    ],
)
def test_networkmanager_profiles(netdev: str, more: str, ipv4: str, found: str | None) -> None:
    text = KEYFILE.format(netdev=netdev, more=more, ipv4=ipv4)
    conflicts = netplan.keyfile_conflicts({"/etc/NetworkManager/system-connections/a.nmconnection": text}, [OURS])
    assert bool(conflicts) == bool(found)
    if found:
        assert found in conflicts[0].found
        assert conflicts[0].remedy == "Delete it: nmcli connection delete 'cx7-a'"


@pytest.mark.parametrize("name", ["<<", "'<<'"])
def test_a_merge_key_is_refused_as_netplan_does(name: str) -> None:
    text = (
        f"network:\n  ethernets:\n    a: &a {{addresses: [10.0.0.1/24]}}\n    b:\n      {name}: *a\n      mtu: 9000\n"
    )
    with pytest.raises(SparkError, match=r"netplan cannot read this file: a merge key \(<<\) in line 5"):
        netplan.read("/etc/netplan/10-a.yaml", text)


def test_an_alias_is_read() -> None:
    text = "network:\n  ethernets:\n    a: &a {addresses: [10.0.0.1/24]}\n    b: *a\n"
    network = netplan.read("/etc/netplan/10-a.yaml", text)
    assert network["ethernets"]["b"] == {"addresses": ["10.0.0.1/24"]}
