# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from typing import Any

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import netplan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.netplan import Conflict, Interface, Nic
from hypothesis import given
from hypothesis import strategies as st

IF = "enp1s0f0np0"
NIC = Nic(IF, "4c:bb:47:00:00:01", "mlx5_core")
MANAGEMENT_NIC = Nic("enP7s7", "4c:bb:47:00:00:4e", "r8127")
WIFI = Nic("wlP9s9", "4c:bb:47:00:00:4f", "mt7925e")
OURS = Interface(NIC, "192.168.100.10/24", 9000)
TWIN = Interface(Nic("enP2p1s0f0np0", "4c:bb:47:00:00:05", "mlx5_core"), "192.168.101.10/24", 9000)
NICS = [NIC, TWIN.nic, MANAGEMENT_NIC, WIFI]


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
        ("/etc/netplan/01-all.yaml", PATTERN, "'all-en' also matches enp1s0f0np0", "Narrow the match of 'all-en'"),
        ("/etc/netplan/50-bond.yaml", BOND, "in a bond, a bridge", "and what stands on it, out of"),
        ("/etc/netplan/50-r.yaml", RENAMED, "it has addresses or routes of its own", "Take the interface out"),
        ("/etc/netplan/70-x.yaml", ethernet(IF, "", "dhcp4: yes"), "it sets dhcp4 yes", "mv /etc"),
        ("/etc/netplan/10-m.yaml", ethernet("x", "{macaddress: 4C:BB:47:00:00:01}"), "'x' also matches", "mv /etc"),
        ("/etc/netplan/10-d.yaml", ethernet("x", "{driver: mlx5_core}"), "'x' also matches", "Narrow the match of 'x'"),
        ("/etc/netplan/10-e.yaml", ethernet("x", "{}"), "'x' also matches", "Narrow the match of 'x'"),
        ("/etc/netplan/10-o.yaml", ethernet(IF, "{macaddress: 4c:bb:47:00:00:02}"), "does not fit", "another name"),
        ("/etc/netplan/10-s.yaml", ethernet("x", "{name: y}", f"set-name: {IF}"), "in a way", "rest of it"),
        ("/etc/netplan/10-l.yaml", ethernet(IF, "", "addresses: [10.5.0.1/24: {label: a}]"), "10.5.0.1/24", "mv /etc"),
        ("/etc/netplan/10-i.yaml", BOND_BY_ID, "'x' also matches", "Narrow the match of 'x'"),
        ("/etc/netplan/10-v.yaml", f"network: {{openvswitch: {{ports: [[a, {IF}]]}}}}", "a way that", "out of"),
    ],
)  # fmt: skip
def test_conflicts(path: str, text: str, found: str, remedy: str) -> None:
    conflicts = netplan.conflicts({path: text}, [OURS, TWIN])
    assert {conflict.file for conflict in conflicts} == {path}
    assert conflicts[0].netdev == IF
    assert found in conflicts[0].found
    assert remedy in conflicts[0].remedy


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/etc/netplan/01-nm.yaml", MANAGEMENT),
        ("/etc/netplan/70-x.yaml", ""),
        ("/etc/netplan/7.yaml", f"network:\n  ethernets:\n    o:\n      match: {{name: x*}}\n      set-name: {IF}x\n"),
        ("/etc/netplan/7.yaml", ethernet("x", "{macaddress: 4c:bb:47:00:00:02}")),
        ("/etc/netplan/7.yaml", ethernet("x", "{driver: r8127}")),
        ("/etc/netplan/90-NM-any.yaml", ethernet("NM-x", "{}", "renderer: NetworkManager")),
        ("/etc/netplan/1.yaml", "network: {renderer: NetworkManager, ethernets: {x: {match: {}, mtu: 9}}}"),
    ],
)  # fmt: skip
def test_no_conflict(path: str, text: str) -> None:
    assert netplan.conflicts({path: text}, [OURS, TWIN]) == []


# A remedy that takes the management port (enP7s7, or whatever may be it) out of force would cut the machine off.
OF_MANAGEMENT = [
    ("/etc/netplan/99-rdma.yaml", "ethernets: {%s: {addresses: [10.1.0.1/24]}, enP7s7: {dhcp4: true}}"),
    ("/run/netplan/99-rdma.yaml", "ethernets: {%s: {mtu: 1500}}, wifis: {wlP9s9: {dhcp4: true}}"),
    ("/usr/lib/netplan/10-all.yaml", "ethernets: {all: {match: {name: 'e*'}, dhcp4: true}}"),
    ("/etc/netplan/50-cloud-init.yaml", "ethernets: {all: {match: {name: '*'}, addresses: [10.1.0.1/24]}}"),
    ("/etc/netplan/70-m.yaml", "ethernets: {%s: {mtu: 1}, m: {match: {macaddress: '4c:bb:47:00:00:4e'}, dhcp4: true}}"),
    ("/etc/netplan/70-b.yaml", "ethernets: {%s: {mtu: 1500}}, bridges: {br0: {interfaces: [enP7s7], dhcp4: true}}"),
    ("/etc/netplan/70-v.yaml", "ethernets: {%s: {mtu: 1500}}, vlans: {lan: {id: 10, link: enP7s7, dhcp4: true}}"),
    ("/etc/netplan/70-b.yaml", "bonds: {bond0: {interfaces: [%s, enP7s7], dhcp4: true}}"),
    ("/etc/netplan/70-r.yaml", "renderer: NetworkManager, ethernets: {%s: {mtu: 1500}}"),
    (
        "/etc/netplan/90-NM-7e3b6cd2-1f0a-4f0e-9f0d-0a1b2c3d4e5f.yaml",
        "ethernets: {NM-7e3b6cd2-1f0a-4f0e-9f0d-0a1b2c3d4e5f: {renderer: NetworkManager, match: {name: 'en*'}, "
        "addresses: [10.1.0.1/24]}}",
    ),
]


@pytest.mark.parametrize(("path", "inside"), OF_MANAGEMENT)
def test_no_remedy_takes_the_management_network_away(path: str, inside: str) -> None:
    found = netplan.conflicts({path: f"network: {{version: 2, {inside.replace('%s', IF)}}}"}, [OURS, TWIN])
    assert found and {conflict.netdev for conflict in found} <= {IF, TWIN.netdev}
    for conflict in found:
        assert "mv " not in conflict.remedy and "connection delete" not in conflict.remedy
        assert re.search(
            r"Take '.*'( |, and what stands on it, )out of|Narrow the match of 'all'|fit its own port only",
            conflict.remedy,
        )


def test_netplan_says_whether_keys_matter_and_no_password_is_shown() -> None:
    text = f"network: {{ethernets: {{{IF}: {{mtu: 1, link-local: [ipv4], auth: {{password: p}}}}}}}}"
    (found,) = netplan.conflicts({"/etc/netplan/99-x.yaml": text}, [OURS])
    assert found.asked
    assert found.found == f"it sets mtu 1, link-local [ipv4], auth for {IF}, which netplan joins with ours"
    (found,) = netplan.conflicts({"/etc/netplan/99-x.yaml": NVIDIA}, [OURS])
    assert not found.asked


@pytest.mark.parametrize(
    ("text", "needless"),
    [
        (NM, True),
        (PATTERN, False),
        (NM + "      addresses: [10.5.0.1/24]\n", False),
        (NM + "      nameservers: {addresses: [10.5.0.1]}\n", False),
        (ethernet(IF, "", "renderer: NetworkManager\n      dhcp4: true"), False),
        (ethernet(IF, ""), False),
    ],
)
def test_what_is_without_effect_where_networkmanager_leaves_the_interface_alone(text: str, needless: bool) -> None:
    found = netplan.conflicts({"/etc/netplan/90-x.yaml": text}, [OURS])
    assert [conflict.needless for conflict in found] == [needless]


def test_every_file_and_interface_is_reported() -> None:
    found = netplan.conflicts({"/etc/netplan/50-n.yaml": NVIDIA, "/run/netplan/40-b.yaml": BOND}, [OURS, TWIN])
    assert [(c.netdev, c.file) for c in found] == [
        (IF, "/run/netplan/40-b.yaml"),
        (IF, "/etc/netplan/50-n.yaml"),
        ("enP2p1s0f0np0", "/run/netplan/40-b.yaml"),
        ("enP2p1s0f0np0", "/etc/netplan/50-n.yaml"),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("network: [", "expected the node content, but found '<stream end>' in line 1"),
        ("network: [a]\n", "network is no mapping"),
        ("network:\n", "network is no mapping"),
        ("network:\n\tx: {}\n", "found character '\\t' that cannot start any token in line 2"),
        ("network:\n  {[a]: b}\n", "a key is no text in line 2"),
        ("a: 1\nb: \udcff\n", "special characters are not allowed (line 2)"),
    ],
)
def test_a_file_that_netplan_cannot_read_is_named(text: str, why: str) -> None:
    with pytest.raises(SparkError) as raised:
        netplan.conflicts({"/etc/netplan/10-x.yaml": text}, [OURS])
    assert (raised.value.where, raised.value.found) == (
        "/etc/netplan/10-x.yaml",
        f"netplan cannot read this file: {why}",
    )
    assert raised.value.remedy == (
        "Correct it (or move it away, if it is about no port but those of the fabric): with it netplan configures no "
        "interface at the next boot. Then run again"
    )


@pytest.mark.parametrize(
    ("text", "network"),
    [
        (
            f"network:\n  ethernets:\n    {IF}: {{mtu: 1, addresses: [10.1.1.1/24]}}\n"
            f"    {IF}: {{mtu: 2, addresses: [10.1.1.2/24]}}\n  ethernets:\n    x: {{dhcp4: true}}\n",
            {"ethernets": {IF: {"mtu": "2", "addresses": ["10.1.1.1/24", "10.1.1.2/24"]}, "x": {"dhcp4": "true"}}},
        ),
        ("network: {a: {b: c}, a: d}", {"a": "d"}),
        ("network: {a: d, a: {b: c}}", {"a": {"b": "c"}}),
        ("a: b", {}),
    ],
)
def test_what_comes_twice_is_joined_as_netplan_does(text: str, network: dict[str, Any]) -> None:
    assert netplan.read("x", text) == network


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
    with pytest.raises(SparkError) as raised:
        netplan.conflicts({"/etc/netplan/10-x.yaml": ""}, [OURS])
    assert (raised.value.where, raised.value.found, raised.value.remedy) == (
        sys.executable,
        "this Python cannot read YAML, in which netplan's files are written",
        "Install python3-yaml, which netplan needs as well, or set ansible_python_interpreter: /usr/bin/python3",
    )
    assert netplan.conflicts({netplan.FILE: ""}, [OURS]) == []


@given(st.text(alphabet="ab: -[]{}#\n\"'&*" + IF, max_size=200))
def test_any_text_is_read_or_named(text: str) -> None:
    with contextlib.suppress(SparkError):
        netplan.conflicts({"/etc/netplan/x.yaml": text}, [OURS])
        netplan.not_adoptable("/etc/netplan/x.yaml", text, {IF}, [NIC])
        yaml.safe_load(netplan.out_of_force("/etc/netplan/x.yaml", text, {IF}, [NIC]))
    netplan.keyfile_conflicts({"x": text}, [OURS])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (ethernet("x", "{driver: mlx5_core}"), ""),
        (ethernet("x", "{macaddress: 4c:bb:47:00:00:05}"), ""),
        (NM, ""),
        (ethernet("x", "{name: 'en*'}"), "x.yaml also configures enP7s7"),
        (ethernet("x", "{}"), "x.yaml also configures enP7s7, wlP9s9"),
        (ethernet(IF, "") + "    enP7s7: {dhcp4: true}\n", ""),
        (ethernet(IF, "") + f"    lan: {{id: 1, link: {IF}}}\n", "x.yaml configures ethernets"),
        (ethernet(IF, "") + f"  vlans: {{lan: {{id: 1, link: {IF}}}}}\n", "x.yaml configures vlans"),
        (ethernet(IF, "") + "  wifis: {wlP9s9: {access-points: {a: {password: b}}}}\n", ""),
        (ethernet(IF, "", "gateway4: 10.0.0.1"), f"x.yaml has routes for {IF}"),
        (BOND, "x.yaml configures bonds"),
    ],
)
def test_what_a_file_says_about_the_nic_is_adopted_when_nothing_else_needs_it(text: str, why: str) -> None:
    assert netplan.not_adoptable("x.yaml", text, {IF, TWIN.netdev}, NICS) == why


DHCP_ONLY = """\
network:
  ethernets:
    x:
      renderer: NetworkManager
      match: {name: enp1s0f0np0}
      optional: true
      dhcp4: true
      dhcp6: true
      dhcp-identifier: mac
      dhcp4-overrides: {route-metric: 100}
      dhcp6-overrides: {route-metric: 100}
      accept-ra: true
      link-local: [ipv6]
      ipv6-privacy: true
      ipv6-address-generation: eui64
      wakeonlan: true
      mtu: 1500
      networkmanager: {uuid: u, name: n, passthrough: {ipv6.addr-gen-mode: eui64, connection.timestamp: 1}}
"""


def passed(key: str) -> str:
    return ethernet(IF, "", f"networkmanager: {{passthrough: {{ethernet._: '', {key}: x}}}}")


@pytest.mark.parametrize(
    ("text", "nothing"),
    [
        (DHCP_ONLY, True),
        (LINK_LOCAL, True),
        (NM, True),
        (ethernet(IF, "", "networkmanager: x"), True),
        (passed("ipv4.method"), True),
        (passed("ipv4.address1"), False),
        (passed("ipv6.dns"), False),
        (passed("802-1x.eap"), False),
        (passed("connection.master"), False),
        (passed("bridge-port.priority"), False),
        (ethernet(IF, "", "addresses: [10.5.0.1/24]"), False),
        (ethernet("enP7s7", ""), False),
        (ethernet("x", "{name: en*}"), False),
    ],
)
def test_a_file_that_asks_dhcp_at_most_is_adopted_unasked(text: str, nothing: bool) -> None:
    assert netplan.nothing_to_lose("x.yaml", text, {IF, TWIN.netdev}, NICS) is nothing


ADOPTED = """\
# Disabled by the role fabric of sparkmatrix.cluster, which configures these interfaces now.
# `ansible-playbook reset.yml --tags fabric` brings the content back.
network:
  version: 2
"""


@pytest.mark.parametrize(
    ("path", "text", "left"),
    [
        ("/etc/netplan/x.yaml", NVIDIA, ADOPTED),
        ("/etc/netplan/x.yaml", "network: {renderer: a, ethernets: {enp1s0f0np0: {}}}", f"{ADOPTED}  renderer: a\n"),
        ("/etc/systemd/network/10-cx7.network", "[Match]\nName=enp1s0f0np0\n", ADOPTED.partition("network:")[0]),
        ("a.nmconnection", "[connection]\nid=a\n", "[connection]\nautoconnect=false\nid=a\n"),
        (
            "a.nmconnection",
            "# a\n[ipv4]\nautoconnect=x\n\n [connection] \nautoconnect-priority=1\nautoconnect = true\nid=a\n[ipv6]\n",
            "# a\n[ipv4]\nautoconnect=x\n\n [connection] \nautoconnect=false\nautoconnect-priority=1\nid=a\n[ipv6]\n",
        ),
        ("a.nmconnection", "[ethernet]\nmac-address=a", "[ethernet]\nmac-address=a\n[connection]\nautoconnect=false\n"),
    ],
)  # fmt: skip
def test_what_is_left_of_an_adopted_file(path: str, text: str, left: str) -> None:
    """NetworkManager starts a profile without [connection] too: it knows its type by the other sections."""
    assert netplan.out_of_force(path, text, {IF, TWIN.netdev}, NICS) == left


def test_what_an_adopted_file_says_of_other_ports_stays() -> None:
    text = NVIDIA + "    enP7s7: {dhcp4: true, dhcp4-overrides: {use-dns: no}}\n  wifis: {wlP9s9: {optional: true}}\n"
    left = netplan.out_of_force("/etc/netplan/x.yaml", text, {IF, TWIN.netdev}, NICS)
    assert netplan.read("/etc/netplan/x.yaml", left) == {
        "version": "2",
        "ethernets": {"enP7s7": {"dhcp4": "true", "dhcp4-overrides": {"use-dns": "no"}}},
        "wifis": {"wlP9s9": {"optional": "true"}},
    }
    assert netplan.nothing_to_lose("/etc/netplan/x.yaml", text, {IF, TWIN.netdev}, NICS) is False


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[connection]\ncontroller=bond0\n", "a.nmconnection is part of bond0"),
        ("a=b\n[connection]\nid=[a]\n# x\n\nmaster = br0\n", "a.nmconnection is part of br0"),
        ("[connection]\n[match]\ninterface-name=en*;\n", "a.nmconnection may be that of other interfaces, too"),
        (f"[connection]\ninterface-name={IF}\n[match]\ninterface-name=en*;\n", ""),
    ],
)
def test_a_profile_is_adopted_when_it_is_no_member_of_something(text: str, why: str) -> None:
    assert netplan.keyfile_not_adoptable("a.nmconnection", text) == why


KEYFILE = """\
# NetworkManager
[connection]
id=it's=a
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
        (IF, "", "method=manual\naddress1=10.5.0.1/24,10.5.0.254", "gives enp1s0f0np0 10.5.0.1/24"),
        (IF, "controller=bond0", "method=auto", "makes enp1s0f0np0 a member of bond0"),
        (IF, "master=bond0", "", "makes enp1s0f0np0 a member of bond0"),
        (IF, "", "method=auto", None),
        (IF, "", "method=manual\naddress1=192.168.100.10/24", None),
        ("enP7s7", "", "method=manual\naddress1=10.5.0.1/24", None),
        ("", "\n[ethernet]\nmac-address=4C:BB:47:00:00:01", "address1=10.5.0.1/24", "gives enp1s0f0np0 10.5.0.1/24"),
        ("", "\n[match]\ninterface-name=!en*;", "method=manual\naddress1=10.5.0.1/24", None),
        ("", "\n[match]\ninterface-name=enp*;\ndriver=r8*", "method=manual\naddress1=10.5.0.1/24", None),
    ],
)
def test_networkmanager_profiles(netdev: str, more: str, ipv4: str, found: str | None) -> None:
    path, text = f"{netplan.KEYFILES}/a.nmconnection", KEYFILE.format(netdev=netdev, more=more, ipv4=ipv4)
    what = f"NetworkManager's connection \"it's=a\" {found}"
    remedy = "Delete it: nmcli connection delete " + shlex.quote("it's=a")
    wanted = [Conflict(netdev or IF, path, what, remedy)] if found else []
    assert netplan.keyfile_conflicts({path: text}, [OURS, TWIN]) == wanted


def test_a_profile_that_fits_by_a_pattern_is_not_deleted() -> None:
    text = "[connection]\nid=lan\n[match]\ninterface-name=en*;\n[ipv4]\naddress1=10.5.0.1/24\n"
    found = netplan.keyfile_conflicts({f"{netplan.KEYFILES}/lan.nmconnection": text}, [OURS, TWIN])
    assert [conflict.netdev for conflict in found] == [IF, TWIN.netdev]
    assert "delete" not in found[0].remedy and "fit its own port only" in found[0].remedy


def test_a_profile_without_a_name_or_an_ipv4_section() -> None:
    """NetworkManager names it by its file, without the ending."""
    path, text = f"{netplan.KEYFILES}/cx7.nmconnection", f"[connection]\ninterface-name={IF}\n"
    assert netplan.keyfile_conflicts({path: text}, [OURS]) == []
    (found,) = netplan.keyfile_conflicts({path: f"{text}master=bond0\n"}, [OURS])
    assert found.found == f"NetworkManager's connection 'cx7' makes {IF} a member of bond0"
    assert found.remedy == "Delete it: nmcli connection delete cx7"


@pytest.mark.parametrize("name", ["<<", "'<<'"])
def test_a_merge_key_is_refused_as_netplan_does(name: str) -> None:
    text = (
        f"network:\n  ethernets:\n    a: &a {{addresses: [10.0.0.1/24]}}\n    b:\n      {name}: *a\n      mtu: 9000\n"
    )
    with pytest.raises(SparkError, match=r"netplan cannot read this file: a merge key \(<<\) in line 5"):
        netplan.read("/etc/netplan/10-a.yaml", text)
