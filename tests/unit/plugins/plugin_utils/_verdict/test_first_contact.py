# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.first_contact import collect, redact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import first_contact

HALVES = {"enp1s0f0np0": "p0", "enP2p1s0f0np0": "p0", "enp1s0f1np1": "p1", "enP2p1s0f1np1": "p1"}


def spark(**changed):
    """What a Spark is assumed to print, before the fabric layer has run; one cage has a cable."""
    outputs = {
        "nvidia_smi": "| NVIDIA-SMI 580.95.05 |\n|   0  NVIDIA GB10  On |\n",
        "nvidia_smi_clock": "    Clocks\n        SM                                : 2405 MHz\n",
        "/sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark",
        "/proc/meminfo": "MemTotal:       127535432 kB\n",
        "kernel_journal": "[    1.2] host kernel: mlx5_core 0000:01:00.0: firmware version: 28.45.4028\n",
        "nmcli": "enP7s7:ethernet:connected\nenp1s0f0np0:ethernet:connected\n",
        "networkctl": "  1 lo loopback carrier unmanaged\n  2 enp1s0f0np0 ether carrier unmanaged\n",
        "boots": " -1 a x\n  0 b y\n",
        "grub": "",
        "/boot/grub": "fonts\ngrub.cfg\ngrubenv",
        "/etc/netplan": "01-network-manager-all.yaml",
        "/etc/avahi/avahi-daemon.conf": "[server]\n#deny-interfaces=eth1\n",
    }
    for name, port in HALVES.items():
        place = f"/sys/class/net/{name}"
        cabled = port == "p0"
        outputs |= {f"{place}/carrier": str(int(cabled)), f"{place}/phys_port_name": port}
        outputs[f"{place}/speed"] = "200000" if cabled else "-1"
    return {**outputs, **changed}


def outcomes(*machines):
    found = first_contact.judge({f"spark{number}": one for number, one in enumerate(machines, 1)})
    return {one.check: one.outcome for one in found}


SEEN = {"product", "memory", "names", "cages", "down_speed", "avahi", "journal", "persistent", "grub", "clock"}


def test_a_spark_as_it_is_assumed():
    found = outcomes(spark(), spark())
    assert {name for name, outcome in found.items() if outcome == "pass"} == SEEN
    assert {outcome for name, outcome in found.items() if name not in SEEN} == {"unknown"}


def test_nothing_is_held_of_a_machine_that_prints_nothing():
    assert set(outcomes({}).values()) == {"unknown"}
    assert first_contact.judge({})[0].outcome == "unknown"


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("product", {"nvidia_smi": "NVIDIA H200"}),
        ("memory", {"/proc/meminfo": "MemTotal:       32535432 kB\n"}),
        ("names", {"/sys/class/net/eth7/carrier": "0", "/sys/class/net/eth7/speed": "-1"}),
        ("cages", {"/sys/class/net/enP2p1s0f1np1/phys_port_name": "p2"}),
        ("down_speed", {"/sys/class/net/enp1s0f1np1/speed": "200000"}),
        ("networkd", {"networkctl": "  2 enp1s0f0np0 ether routable configured\n"}),
        ("avahi", {"/etc/avahi/avahi-daemon.conf": "allow-interfaces=enP7s7\n"}),
        ("journal", {"kernel_journal": "mlx5_core 0000:01:00.0: Unable to change power state, device inaccessible\n"}),
        ("grub", {"/boot/grub": "grub.cfg"}),
        ("clock", {"nvidia_smi_clock": "N/A"}),
    ],
)
def test_an_assumption_that_does_not_hold_on_one_machine(name, changed):
    found = first_contact.judge({"spark1": spark(), "spark2": spark(**changed)})
    (wrong,) = [one for one in found if one.check == name]
    assert (wrong.outcome, wrong.cause, wrong.hosts) == ("warn", "assumption_wrong", ("spark2",))


def test_after_the_fabric_layer_and_with_nvidia_sync():
    done = spark(
        networkctl="  2 enp1s0f0np0 ether routable configured\n",
        nmcli="enp1s0f0np0:ethernet:unmanaged\n",
        **{"/etc/netplan": "40-cx7.yaml"},
    )
    found = outcomes(done)
    assert (found["networkd"], found["sync"]) == ("pass", "pass")


def test_the_file_to_send_can_be_read_back():
    made = first_contact.make({"seen": {"desk-7": {"outputs": spark()}, "off": {}}, "release": "0.1.0"})
    read = json.loads(made["archive"])
    assert list(read["nodes"]) == ["spark1"]
    assert outcomes(read["nodes"]["spark1"])["cages"] == "pass"
    assert "desk-7" not in made["archive"]


SECRETS = (
    "3: enp1s0f0np0 UP 4c:bb:47:2e:10:4f\n   inet6 2a02:8071:1234:5600:4ebb:47ff:fe2e:104f/64 scope global\n"
    "inet 93.184.216.34/24 inet 192.168.100.10/24\nsys_image_guid: 4cbb:4703:002e:104f\n"
    "gid fe80:0000:0000:0000:4ebb:47ff:fe2e:104f 0000:0000:0000:0000:0000:ffff:c0a8:640a\n"
    "Serial Number: 1582024900123\n\t\t[SN] Serial number: MT2445X01234\n"
    "root=UUID=0a1b2c3d-0000-1111-2222-333344445555\n"
    " -1 4f5e6d7c8b9a4f5e6d7c8b9a4f5e6d7c Mon\nspark-1a2b kernel: mlx5_core 0000:01:00.0: 32.0 GT/s\n"
)


def test_what_tells_whose_machine_it_is_is_left_out():
    told = redact(SECRETS, "spark-1a2b")
    for secret in (
        "2e:10:4f",
        "2a02:8071",
        "93.184",
        "002e:104f",
        "fe2e:104f",
        "15820",
        "MT2445",
        "0a1b2c3d",
        "4f5e6d7c",
    ):
        assert secret not in told, told
    assert "spark-1a2b" not in told
    for kept in ("4c:bb:47:", "192.168.100.10/24", "0000:01:00.0", "32.0 GT/s", "ffff:c0a8:640a", "enp1s0f0np0"):
        assert kept in told, told


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (
            "Capabilities: [180 v1] Device Serial Number 4c-bb-47-03-00-2c-b7-d6",
            "Capabilities: [180 v1] Device Serial Number (left out)",
        ),
        (
            "90-NM-0a1b2c3d-0000-1111-2222-333344445555-MyHome.yaml",
            "90-NM-00000000-0000-0000-0000-000000000000-(left out).yaml",
        ),
        ("host-name=alice", "host-name=(left out)"),
        ("domain-name=alice.example", "domain-name=(left out)"),
        ("desk-7.alice.example kernel: up", "host kernel: up"),
        ("0x4cbb4703002cb7d6", "0000000000000001"),
        ("from 84.1.2.3, via 84.1.2.3:53.", "from 203.0.113.1, via 203.0.113.1:53."),
        ("to 2a02:810::abcd:1.", "to 2001:db8::1."),
        ("0000:0000:0000:0000:0000:ffff:5401:0203 v2", "0000:0000:0000:0000:0000:ffff:cb00:7101 v2"),
        (
            "BOOT_IMAGE=/vmlinuz root=ZFS=rpool/alice iommu.passthrough=0 ds=nocloud;s=http://alice.example/ quiet",
            "BOOT_IMAGE=/vmlinuz root=(left out) iommu.passthrough=0 ds=(left out) quiet",
        ),
        ("3c:6d:66:01:02:03 UP", "3c:6d:66:00:00:01 UP"),
        ("firmware 28.45.4028, vbios 5.36", "firmware 28.45.4028, vbios 5.36"),
    ],
)
def test_where_else_an_owner_shows(said, left):
    assert redact(said, "desk-7.lan") == left


def test_what_is_not_there_is_left_out(tmp_path):
    port = tmp_path / "sys/class/net/enp1s0f0np0"
    (port / "device").mkdir(parents=True)
    (port / "device/vendor").write_text("0x15b3\n")
    (port / "carrier").write_text("1\n")
    (tmp_path / "sys/class/net/lo").mkdir()
    found = collect(Machine(str(tmp_path), lambda argv: Completed(0, "x") if argv[0] == "ip" else Completed(127)))
    assert {name for name in found if not name.startswith("/sys")} == {"ip_link", "ip_addr"}
    assert found["/sys/class/net/enp1s0f0np0/carrier"] == "1"
    assert found["/sys/class/net/enp1s0f0np0/speed"] == "(not readable)"
