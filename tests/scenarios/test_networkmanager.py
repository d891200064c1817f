#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The step that every new Spark takes first: the ports of the cable go from NetworkManager to networkd, and back.

Two nodes on one cable, where NetworkManager asks DHCP on all ports and systemd-networkd never ran. Their profiles find
the ports by name and by MAC address, by driver and by nothing; those of netplan are written as Ubuntu's NetworkManager
mirrors them, because Debian's does not. Shown are a first run, a boot, a card that goes and comes back, a run that
changes nothing, and a reset, with the real NetworkManager, netplan, udev and networkd.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import LabError, inside, lab, say

HOSTS = ("spark1", "spark2")
PORTS = ("enp1s0f0np0", "enP2p1s0f0np0")
HANDS_OFF = "unmanaged"
RULES = "9000:\tfrom 10.99.0.0/16 lookup 99"
OPTIONS = ("--diff", "-e", "fabric_bandwidth_test=never")
UUIDS = [f"3f0a7c52-6d1e-4c3b-9a51-0d8e4b7f1a0{number}" for number in (1, 2)]
MIRRORED = (
    "network: {{version: 2, ethernets: {{NM-{uuid}: {{renderer: NetworkManager, match: {match}, dhcp4: true,"
    " dhcp6: true, wakeonlan: true, networkmanager: {{uuid: {uuid}, name: Wired connection}}}}}}}}\n"
)
BY_DRIVER = "[connection]\nid=by-driver\ntype=ethernet\n[ipv4]\nmethod=auto\n[match]\ndriver=veth;\n"
# Management is the lab's own business. NetworkManager leaves virtual interfaces alone unless it is told otherwise.
FACTORY = """
set -eu
printf '[keyfile]\\nunmanaged-devices=interface-name:enP7s7\\n' > /etc/NetworkManager/conf.d/50-lab.conf
rm -f /usr/lib/udev/rules.d/85-nm-unmanaged.rules
chmod 600 /etc/netplan/*.yaml
systemctl unmask systemd-networkd-wait-online.service
systemctl disable systemd-networkd.service systemd-networkd.socket
cat > /etc/systemd/system/vpn-rules.service <<'UNIT'
[Unit]
After=NetworkManager.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=ip rule add from 10.99.0.0/16 table 99 priority 9000
[Install]
WantedBy=multi-user.target
UNIT
systemctl enable vpn-rules.service
"""
FILES = "find /etc/netplan /etc/NetworkManager /etc/systemd /etc/sysctl.d -type f -exec sha256sum {} + | sort -k2"


def put(host: str, path: str, text: str) -> None:
    inside(host, f"cat > {path}; chmod 600 {path}", text)


def act(*words: str) -> None:
    done = subprocess.run(lab(*words), cwd=cluster.ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(words)}: {done.stdout}{done.stderr}")


def boot_again() -> None:
    for host in HOSTS:
        act("restart", host)


def factory() -> None:
    """Profiles as a desktop leaves them, and the order of the boot."""
    mac = inside("spark1", f"cat /sys/class/net/{PORTS[1]}/address").strip()
    for uuid, match in zip(UUIDS, (f"{{name: {PORTS[0]}}}", f"{{macaddress: '{mac}'}}"), strict=True):
        put("spark1", f"/etc/netplan/90-NM-{uuid}.yaml", MIRRORED.format(uuid=uuid, match=match))
    put("spark2", f"/etc/netplan/90-NM-{UUIDS[0]}.yaml", MIRRORED.format(uuid=UUIDS[0], match="{}"))
    put("spark2", "/etc/NetworkManager/system-connections/by-driver.nmconnection", BY_DRIVER)
    for host in HOSTS:
        inside(host, FACTORY)
    boot_again()


def state(host: str) -> dict[str, str]:
    # "10 (unmanaged)"; between two attempts at DHCP it has other numbers.
    states = [inside(host, f"nmcli -g GENERAL.STATE device show {port} || true") for port in PORTS]
    return {
        "networkmanager": " ".join(HANDS_OFF if text.startswith("10 ") else "managed" for text in states),
        "networkd": inside(host, "systemctl is-active systemd-networkd.service || true").strip(),
        "mtu": inside(host, f"cat /sys/class/net/{PORTS[0]}/mtu /sys/class/net/{PORTS[1]}/mtu").replace("\n", " "),
        "rules": inside(host, "ip rule list priority 9000").strip(),
        "files": inside(host, FILES),
    }


def expect(title: str, limit_s: float = 60, **wanted: str) -> None:
    """On both nodes; nothing is waited for longer than a boot."""
    deadline = time.monotonic() + limit_s
    for host in HOSTS:
        while any((now := state(host))[key] != value for key, value in wanted.items()):
            if time.monotonic() > deadline:
                raise LabError(f"{title}: {host}: { ({key: now[key] for key in wanted}) }, expected {wanted}")
            time.sleep(1)
    say(f"   {title}: as expected")


def expect_fabric(title: str) -> None:
    expect(title, networkmanager=f"{HANDS_OFF} {HANDS_OFF}", networkd="active", mtu="9000 9000 ", rules=RULES)
    for subnet in (100, 101):
        inside("spark1", f"ping -c 1 -W 2 -M do -s 8972 192.168.{subnet}.11")


def play(name: str, playbook: str, *options: str, may_change: str = "", says: str = "") -> None:
    """``may_change``: the one task that may change something."""
    say(f"-- {name}")
    run = cluster.play(
        f"networkmanager-{name}", *OPTIONS, *options, playbook=playbook, inventory="inventories/2spark", show=False
    )
    log = (cluster.STATE / f"networkmanager-{name}.log").read_text()
    changed = run.stats.get("changed_tasks", [])
    if (
        run.code
        or (may_change and any(may_change not in task for task in changed))
        or says not in " ".join(log.split())
    ):
        said = f"ended with {run.code}, {run.changed} changes: {changed}; expected: {says}"
        raise LabError(f"{name}: {said}\n{cluster.log_tail(f'networkmanager-{name}')}")
    say(f"   {name}: {run.seconds:.0f} s, {run.changed} changes")


def check() -> None:
    factory()
    expect("NetworkManager asks DHCP on the ports", networkmanager="managed managed", networkd="inactive", rules=RULES)
    before = {host: state(host) for host in HOSTS}
    adopted = f"/etc/netplan/90-NM-{UUIDS[1]}.yaml: asks DHCP at most, on interfaces of the fabric only"
    play("first", "playbooks/fabric.yml", says=adopted)
    expect_fabric("after the first run")
    boot_again()
    expect_fabric("after a boot")
    act("fault", "spark1", "nic_removed")
    act("fault", "spark1", "clear", "nic_removed")
    # An interface that changes its namespace is announced before its sysctls are there, unlike that of a new card.
    inside("spark1", "udevadm trigger --settle --action=add --subsystem-match=net")
    expect_fabric("after the card was away")
    # Indices of GIDs are measured: those of the first run were shifted by NetworkManager's IPv6 addresses.
    play("again", "playbooks/fabric.yml", may_change="publish | Write the fabric fact")
    play("reset", "reset.yml", "--tags", "fabric")
    expect("NetworkManager has the ports again", networkmanager="managed managed", networkd="inactive", rules=RULES)
    for host in HOSTS:
        now = state(host)
        if now != before[host]:
            raise LabError(f"{host} is not as before:\n{before[host]}\n{now}")


def main() -> int:
    try:
        cluster.build()
        cluster.boot("direct", 2)
        check()
    except LabError as exc:
        print(f"FAILED: {exc}")
        return 1
    finally:
        cluster.step("Remove the lab", cluster.lab("down"), "down.log")
    return 0


if __name__ == "__main__":
    sys.exit(main())
