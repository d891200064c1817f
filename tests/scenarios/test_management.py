#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The way in changes nothing: one cluster over names of mDNS, over IPv6 and over a tunnel has one set of addresses.

Two nodes on one cable, the layers access and fabric. First Ansible runs on the head, which finds the other node by
avahi, and again once the fabric has addresses, which avahi has to keep to itself; after a reset it runs elsewhere,
over link-local IPv6, and then at the address of a tunnel, while one node has another network that would be chosen
today.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
import test_head_controller as head
import yaml
from cluster import LabError, inside, say

HOSTS = ("spark1", "spark2")
# A change of sshd is confirmed by the other node where Ansible runs on the node itself.
SETTINGS = {"fabric_bandwidth_test": "never", "access_sshd_hardening": True}
LAYERS = ("--tags", "access,fabric", "-e", json.dumps(SETTINGS))
TUNNEL = "100.64.0.{number}"
# What tailscaled does: an interface of kind tun, up for as long as somebody holds it.
HOLD = """
import fcntl, os, struct, time
device = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", b"tailscale0", 0x1001))
time.sleep(10**6)
"""
MAKE_TUNNEL = """
set -eu
mkdir -p /dev/net
test -c /dev/net/tun || mknod /dev/net/tun c 10 200
cat > /run/tunnel.py
systemd-run --quiet --unit=lab-tunnel python3 /run/tunnel.py
until ip link show tailscale0 > /dev/null 2>&1; do sleep 0.1; done
ip addr add {address}/32 dev tailscale0
ip link set tailscale0 up
"""
# A network that would be chosen before the one that the fact keeps.
SECOND_LAN = """
set -eu
ip link add wlP9s9 type veth peer name other
ip addr add 10.99.0.2/24 dev wlP9s9
ip link set other up
ip link set wlP9s9 up
gateway=$(ip route show default dev enP7s7 | cut -d' ' -f3)
ip route del default dev enP7s7
ip route add default via $gateway dev enP7s7 metric 100
ip route add default via 10.99.0.1 dev wlP9s9 metric 50
"""
# Everything that says where a node is; keys are made anew after a reset.
WHERE = (
    "sudo cat /etc/hosts; sudo grep -h HostName /etc/sparkmatrix/ssh/config;"
    " sudo grep -o 'from=\"[^\"]*\"' /var/lib/sparkmatrix-peer/.ssh/authorized_keys; cut -d' ' -f1"
    " /etc/sparkmatrix/ssh/known_hosts | sort -u"
)


def sparks() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load((cluster.STATE / "overlay/hosts.yml").read_text())["all"][
        "children"
    ]["sparks"]["hosts"]
    return found


def overlay(logins: dict[str, str]) -> str:
    """The inventory of the lab with other addresses to log in; the host keys are known by name."""
    hosts = sparks()
    for host, login in logins.items():
        hosts[host] |= {"ansible_host": login}
        hosts[host]["ansible_ssh_common_args"] += f" -o HostKeyAlias={host}"
    place = cluster.STATE / "management"
    (place / "group_vars").mkdir(parents=True, exist_ok=True)
    (place / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": {"sparks": {"hosts": hosts}}}}))
    group = (cluster.STATE / "overlay/group_vars/sparks.yml").read_text()
    (place / "group_vars/sparks.yml").write_text(group)
    return str(place.relative_to(cluster.ROOT))


def on_the_head() -> None:
    files = head.overlay()
    hosts = yaml.safe_load(files["overlay/hosts.yml"])
    for host, variables in hosts["all"]["children"]["sparks"]["hosts"].items():
        variables["ansible_host"] = f"{host}.local"
        variables["ansible_ssh_common_args"] += f" -o HostKeyAlias={host}"
    head.carry({**files, "overlay/hosts.yml": yaml.safe_dump(hosts)})


def from_here(name: str, playbook: str, logins: dict[str, str] | None = None, unchanged: bool = False) -> None:
    say(f"-- {name}")
    path = overlay(logins or {})
    run = cluster.play(
        f"management-{name}", *LAYERS, playbook=playbook, inventory="inventories/2spark", overlay=path, show=False
    )
    if run.code or (unchanged and run.changed):
        said = f"ended with {run.code}, {run.changed} changes: {run.stats.get('changed_tasks')}"
        raise LabError(f"{name}: {said}\n{cluster.log_tail(f'management-{name}')}")
    say(f"   {name}: {run.seconds:.0f} s, {run.changed} changes")


def state() -> dict[str, Any]:
    """The facts, and what the nodes have about each other."""
    facts = {host: json.loads(inside(host, "cat /etc/ansible/facts.d/sparkmatrix.fact")) for host in HOSTS}
    for fact in facts.values():
        for rail in fact["rails"]:
            del rail["gid_index"]  # measured
    return {"facts": facts, "where": {host: cluster.ssh(host, WHERE).stdout for host in HOSTS}}


def expect_same(name: str, before: dict[str, Any]) -> None:
    now = state()
    if now != before:
        raise LabError(f"{name} made other addresses:\n{json.dumps(before, indent=1)}\n{json.dumps(now, indent=1)}")


def resolved(command: str, wanted: tuple[str, ...], title: str, limit_s: float = 40) -> None:
    deadline = time.monotonic() + limit_s
    while not (said := cluster.ssh("spark1", command).stdout.strip()).startswith(wanted):
        if time.monotonic() > deadline:
            raise LabError(f"{title}: {said or 'nothing'} instead of {' or '.join(wanted)}")
        time.sleep(0.5)
    say(f"   {title}: {said}")


def link_local() -> dict[str, str]:
    """Addresses as the resolver of a Mac gives them, with the interface of the own machine."""
    found = {}
    for host, variables in sparks().items():
        route = json.loads(subprocess.check_output(["ip", "-j", "route", "get", variables["ansible_host"]]))
        shown = json.loads(inside(host, "ip -j -6 addr show dev enP7s7 scope link"))
        found[host] = f"{shown[0]['addr_info'][0]['local']}%{route[0]['dev']}"
    return found


def tunnel() -> dict[str, str]:
    found = {}
    for number, (host, variables) in enumerate(sparks().items(), start=1):
        found[host] = TUNNEL.format(number=number)
        inside(host, MAKE_TUNNEL.format(address=found[host]), HOLD)
        subprocess.run(["ip", "route", "replace", found[host], "via", variables["ansible_host"]], check=True)
    return found


def check(address: dict[str, str]) -> None:
    for host in HOSTS:
        inside(host, "systemctl start avahi-daemon.service")
    shipped = {host: inside(host, "cat /etc/avahi/avahi-daemon.conf") for host in HOSTS}
    on_the_head()
    plain = "getent ahostsv4 spark2.local | cut -d' ' -f1 | head -1"
    resolved(plain, (address["spark2"],), "spark2.local on the head, at first contact")
    head.play("Access and fabric from the head by names of mDNS", "site.yml", *LAYERS)
    before = state()
    for host in HOSTS:
        shown = inside(host, "cat /etc/avahi/avahi-daemon.conf")
        if not all(rail["netdev"] in shown for rail in before["facts"][host]["rails"]):
            raise LabError(f"{host}: avahi is not kept off the fabric:\n{shown}")
        kept = before["facts"][host]["management_address"], before["facts"][host]["management_interface"]
        if kept != (address[host], "enP7s7"):
            raise LabError(f"{host}: the management address is {kept}, expected {address[host]} on enP7s7")
        inside(host, "systemctl restart avahi-daemon.service")
    asked = "avahi-resolve -4 -n spark2.local | cut -f2"
    resolved(asked, (address["spark2"],), "spark2.local, asked of avahi")
    resolved(plain, (address["spark2"],), "spark2.local for every program on the head")
    output, _seconds = head.play("Once more from the head", "site.yml", *LAYERS)
    if head.changes(output):
        raise LabError(f"The second run changed something: {head.changes(output)}")
    expect_same("The second run", before)
    from_here("reset", "reset.yml")
    for host in HOSTS:
        if inside(host, "cat /etc/avahi/avahi-daemon.conf") != shipped[host]:
            raise LabError(f"{host}: avahi's configuration did not come back with the reset")
    from_here("ipv6", "site.yml", link_local())
    expect_same("A first run over IPv6", before)
    logins = tunnel()
    inside("spark2", SECOND_LAN)
    from_here("tunnel", "site.yml", logins, unchanged=True)
    told = f"management address stays {address['spark2']}, while 10.99.0.2 on wlP9s9 would be chosen today"
    if told not in " ".join((cluster.STATE / "management-tunnel.log").read_text().split()):
        raise LabError(f"Nobody was told: {told}")
    expect_same("A run over the tunnel", before)


def main() -> int:
    try:
        cluster.build()
        cluster.boot("direct", 2)
        check({host: variables["ansible_host"] for host, variables in sparks().items()})
    except LabError as exc:
        print(f"FAILED: {exc}")
        return 1
    finally:
        for number in range(1, len(HOSTS) + 1):
            subprocess.run(["ip", "route", "del", TUNNEL.format(number=number)], capture_output=True, check=False)
        cluster.step("Remove the lab", cluster.lab("down"), "down.log")
    return 0


if __name__ == "__main__":
    sys.exit(main())
