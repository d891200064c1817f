# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Files as netplan 0.106 has made them; and those of others beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import networkd_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.netplan import Interface, Nic
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.reading import Reading

IF = "enp1s0f0np0"
NIC = Nic(IF, "4c:bb:47:00:00:01", "mlx5_core")
OURS = Interface(NIC, "192.168.100.10/24", 9000)

NETWORK = f"""\
[Match]
Name={IF}

[Link]
RequiredForOnline=no
MTUBytes=9000

[Network]
LinkLocalAddressing=no
Address=192.168.100.10/24
IPv6AcceptRA=no
"""
LINK = f"[Match]\nOriginalName={IF}\n\n[Link]\nWakeOnLan=off\nMTUBytes=9000\n"
ALL_EN = "[Match]\nName=en*\n\n[Network]\nDHCP=ipv4\nLinkLocalAddressing=ipv6\n\n[DHCP]\nRouteMetric=100\nUseMTU=true\n"
PROFILE = f"""\
[connection]
id=netplan-{IF}
type=ethernet
interface-name={IF}

[ethernet]
wake-on-lan=0
mtu=9000

[ipv4]
method=manual
address1=192.168.100.10/24
"""
OWN = {f"10-netplan-{IF}.network": NETWORK, f"10-netplan-{IF}.link": LINK}


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        ("Path=pci-0000:01:00.0", True),
        ("Path=pci-0000:*", True),
        ("Path=pci-0007:01:00.0", False),  # the management port's
    ],
)
def test_a_match_by_the_place_of_the_port(match: str, fits: bool) -> None:
    assert networkd_files.fits(f"[Match]\n{match}\n", replace(NIC, place="pci-0000:01:00.0")) is fits


@pytest.mark.parametrize(
    ("networkd", "profiles", "same"),
    [
        # Another port, and a pattern that sorts after ours: the first file counts.
        ({"10-netplan-enP7s7.network": NETWORK.replace(IF, "enP7s7"), "10-netplan-zz-all.network": ALL_EN}, {}, True),
        # cloud-init's match by MAC address and set-name: the same interface in other words.
        (
            {
                f"10-netplan-{IF}.network": NETWORK.replace("Name=", "PermanentMACAddress=4C:BB:47:00:00:01\nName="),
                f"10-netplan-{IF}.link": LINK.replace("OriginalName", "PermanentMACAddress=4c:bb:47:00:00:01\n#")
                + f"Name={IF}\n",
            },
            {},
            True,
        ),
        ({f"10-netplan-{IF}.network": NETWORK + "Address=fd00::1/64\n"}, {}, True),
        ({}, {"netplan-any.nmconnection": "[connection]\n[ipv4]\nmethod=auto\n"}, True),
        ({"10-netplan-all-en.network": ALL_EN}, {}, False),
        ({f"10-netplan-{IF}.network": NETWORK.replace("LocalAddressing=no", "LocalAddressing=ipv4")}, {}, False),
        ({f"10-netplan-{IF}.network": NETWORK.replace("[Link]", "[Link]\nActivationPolicy=manual")}, {}, False),
        ({f"10-netplan-{IF}.link": LINK.replace("=off", "=magic")}, {}, False),
        ({f"10-netplan-{IF}.network": ""}, {f"netplan-{IF}.nmconnection": PROFILE}, False),
    ],
)
def test_what_counts_for_an_interface(networkd: Mapping[str, str], profiles: Mapping[str, str], same: bool) -> None:
    changed = Reading({**OWN, **networkd}, profiles)
    assert (changed.of(NIC, manager=False) == Reading(OWN, {}).of(NIC, manager=False)) is same


def test_with_networkmanager_its_profile_counts() -> None:
    name = f"netplan-{IF}.nmconnection"
    alone, other = Reading({}, {name: PROFILE}), Reading({}, {name: PROFILE.replace("mtu=9000", "mtu=1500")})
    assert "address1=192.168.100.10/24" in alone.of(NIC, manager=True) != other.of(NIC, manager=True)


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        (f"Name={IF}", True),
        ("Name=eth0 enp*", True),
        ("Name=!enP* wl*", True),
        ("Name=!enp*", False),
        ("Name=enP7s7", False),
        ("MACAddress=4C-BB-47-00-00-01", True),
        ("PermanentMACAddress=4cbb.4700.0001 02:00:00:00:00:01", True),
        ("MACAddress=4c:bb:47:00:00:02", False),
        ("Driver=mlx5*", True),
        ("Driver=r8*", False),
        ("Type=ether", True),
        ("Type=wlan", False),
        ("Kind=veth\nName=*", False),
        ("Virtualization=no\nName=en*", True),
        ("# Name=en*", False),
        ("", False),
    ],
)
def test_match(match: str, fits: bool) -> None:
    assert networkd_files.fits(f"; a comment\n[Match]\n{match}\n[Network]\nName={IF}\n", NIC) is fits


CX7 = f"[Match]\nName={IF}\n[Network]\nAddress=10.9.0.1/24\n"


@pytest.mark.parametrize(
    ("path", "text", "remedy"),
    [
        ("/etc/systemd/network/10-cx7.network", CX7, "mv /etc/systemd/network/10-cx7.network /root/"),
        ("/run/systemd/network/00-rdma.network", CX7.replace(f"Name={IF}", f"MACAddress={NIC.mac}"), "mv /run/"),
        ("/usr/lib/systemd/network/10-a.network", "[Match]\nDriver=mlx5_core\n", "Narrow its [Match]"),
        ("/etc/systemd/network/05-lan.network", "[Match]\nName=en*\n[Network]\nDHCP=yes\n", "Narrow its [Match]"),
        ("/etc/systemd/network/05-lan.network", CX7.replace(IF, f"{IF} enP7s7"), "Narrow its [Match]"),
        ("/etc/systemd/network/05-lan.network", "[Match]\nType=ether\n", "Narrow its [Match]"),
        (f"/etc/systemd/network/10-netplan-{IF}.network", CX7, "mv /etc/"),
        (f"/etc/systemd/network/10-netplan-{IF}.network.d/mtu.conf", "[Link]\nMTUBytes=1500\n", "mv /etc/"),
        ("/etc/systemd/network/20-cx7.network", CX7, ""),
        ("/etc/systemd/network/10-cx7.network", CX7.replace(IF, "enP7s7"), ""),
        ("/etc/systemd/network/10-cx7.link", CX7, ""),
        ("/etc/systemd/network/10-cx7.network", "", ""),  # or a link to /dev/null: switched off
        ("/run/systemd/network/10-netplan-all.network", CX7, ""),  # netplan's own: netplan is asked
        ("/etc/systemd/network/10-netplan-enP7s7.network.d/mtu.conf", "[Link]\nMTUBytes=1500\n", ""),
    ],
)
def test_files_of_networkd_that_come_before_ours(tmp_path: Path, path: str, text: str, remedy: str) -> None:
    place = tmp_path / path.lstrip("/")
    place.parent.mkdir(parents=True)
    place.write_text(text)
    found = networkd_files.conflicts(networkd_files.foreign(Machine(str(tmp_path))), [OURS])
    assert [(conflict.netdev, conflict.file) for conflict in found] == [(IF, path)] * bool(remedy)
    assert all(remedy in conflict.remedy for conflict in found)


def test_a_file_in_etc_hides_one_of_the_same_name(tmp_path: Path) -> None:
    for directory, text in (("etc", ""), ("usr/lib", CX7)):
        place = tmp_path / directory / "systemd/network/10-cx7.network"
        place.parent.mkdir(parents=True)
        place.write_text(text)
    assert networkd_files.foreign(Machine(str(tmp_path))) == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (CX7, ""),
        (CX7.replace(IF, f"{IF} enP7s7"), "may be that of other interfaces"),
        (CX7.replace(IF, "en*"), "may be that of other interfaces"),
        (CX7 + "Gateway=10.9.0.254\n", "sets Gateway"),
        (CX7 + "Bond=bond0\nVLAN=a\n", "sets Bond, VLAN"),
    ],
)
def test_what_of_it_may_be_adopted(text: str, why: str) -> None:
    nics: Sequence[Nic] = [NIC]
    said = networkd_files.not_adoptable("/etc/systemd/network/10-cx7.network", text, nics)
    assert why in said and bool(why) == bool(said)
