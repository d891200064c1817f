# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.capture import Answer
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import first_contact
from rules import hold, of_verdicts

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


def test_a_machine_that_could_not_tell_anything_is_no_witness():
    made = first_contact.make({"seen": {"spark1": Answer(spark()), "off": Answer()}})
    (cages,) = [verdict for verdict in made["part"]["verdicts"] if verdict["check"] == "cages"]
    assert (cages["outcome"], cages["hosts"]) == ("pass", ["spark1"])


def without(*names):
    return {name: text for name, text in spark().items() if not name.startswith(names)}


PORT = "/sys/class/net/enp1s0f0np0"
NETWORKD = "  2 enp1s0f0np0 ether routable configured\n  3 enP2p1s0f0np0 ether routable configured\n"
# What machines print; what is found in it is in the fixtures.
PRINTED = {
    "as assumed": [spark(), spark()],
    "nothing": [{}],
    "no machine": [],
    "one that contradicts and one that does not": [spark(), spark(nvidia_smi="NVIDIA H200")],
    "two that contradict": [spark(nvidia_smi="NVIDIA H200"), spark(nvidia_smi="NVIDIA GB100")],
    "one that shows nothing beside one that does": [{}, spark()],
    "no product name": [without("/sys/class/dmi")],
    "no nvidia-smi": [without("nvidia_smi")],
    "no ConnectX port": [without("/sys/class/net")],
    "one half of each cage": [without("/sys/class/net/enP2")],
    "another name of a port": [spark(**{f"{PORT}/phys_port_name": "p9"})],
    "another interface": [spark(**{"/sys/class/net/eth7/carrier": "0", "/sys/class/net/eth7/speed": ""})],
    "no link at all": [spark(**{f"/sys/class/net/{name}/carrier": "0" for name in HALVES})],
    "all have a link": [spark(**{f"/sys/class/net/{name}/carrier": "1" for name in HALVES})],
    "no speed can be read": [
        spark(**{"/sys/class/net/enp1s0f1np1/speed": "(not readable)", "/sys/class/net/enP2p1s0f1np1/speed": "100000"})
    ],
    "networkd has them": [spark(networkctl=NETWORKD, nmcli="enp1s0f0np0:ethernet:unmanaged\n")],
    "both have them": [spark(networkctl=NETWORKD, nmcli="enp1s0f0np0:ethernet:connected\nenP2p1s0f0np0:wifi:x\n")],
    "networkd waits": [spark(networkctl="  2 enp1s0f0np0 ether routable configuring\n 3 enp1s0f0np0 ether\n")],
    "NVIDIA Sync": [spark(**{"/etc/netplan": "60-dgx-interconnect.yaml 01-x.yaml 40-cx7.yaml"})],
    "no files of netplan": [without("/etc/netplan")],
    "no avahi": [without("/etc/avahi")],
    "avahi as the layer sets it": [spark(**{"/etc/avahi/avahi-daemon.conf": "deny-interfaces=enp1s0f0np0\n"})],
    "avahi of the user's own": [
        spark(**{"/etc/avahi/avahi-daemon.conf": "allow-interfaces=eth0\n deny-interfaces=x\n"})
    ],
    "a fatal line": [spark(kernel_journal="a\n  pcieport: severity=Uncorrectable (Fatal), type=x \nb\n")],
    "a card that has gone": [spark(kernel_journal="a\nmlx5_core: device inaccessible\n")],
    "no journal": [spark(kernel_journal="")],
    "one boot": [spark(boots="  0 b y\n")],
    "three boots": [spark(boots="IDX\n -2 a x\n -1 a x\n  0 b y\n")],
    "no tool of GRUB": [without("grub")],
    "no GRUB": [spark(**{"/boot/grub": ""})],
    "GRUB without an environment": [spark(**{"/boot/grub": "fonts"})],
    "no clock": [spark(nvidia_smi_clock="N/A")],
    **{
        f"{gib} GiB": [spark(**{"/proc/meminfo": f"MemTotal:       {int(gib * 2**20)} kB\n"})]
        for gib in (51.9, 52, 64, 64.1, 109.9, 110, 128, 128.1)
    },
}


def test_what_is_found_in_what_machines_print():
    usual = first_contact.judge({"spark1": spark(), "spark2": spark()})
    told = {}
    for name, machines in PRINTED.items():
        found = first_contact.judge({f"spark{number}": machine for number, machine in enumerate(machines, 1)})
        known = (
            {(verdict.check, verdict.outcome, verdict.found) for verdict in usual}
            if name not in ("as assumed", "no machine")
            else ()
        )
        told[name] = [verdict for verdict in found if (verdict.check, verdict.outcome, verdict.found) not in known]
    hold("first_contact", ((name, of_verdicts(found)) for name, found in told.items()))
