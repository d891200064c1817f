# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How a configuration of netplan becomes effective on single interfaces: systemd-networkd or NetworkManager.

NetworkManager leaves an interface alone in two ways. ``nmcli device set … managed no`` lets go of it now, and leaves
its addresses. A file in its ``conf.d`` keeps it so when NetworkManager or the interface comes anew; the udev rule of
netplan is not enough, because it yields to what netplan writes for a profile of any interface (``managed=1``).

``netplan apply`` and ``netplan try`` are never called: both restart NetworkManager, and with it the management network.
NetworkManager does not apply a changed profile (not even its MTU) before the connection is activated again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import POLL_S, Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import (
    Effective,
    effective,
    write_sysctl,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.networkd_files import MADE
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.reading import PROFILES

NETWORKD = "networkd"
NETWORKMANAGER = "networkmanager"
RENDERERS = {NETWORKD: "networkd", NETWORKMANAGER: "NetworkManager"}
UP_WAIT_S = 20
# Read last, so that no other file's "unmanaged-devices=" takes the place of what ours adds.
UNMANAGED = "/etc/NetworkManager/conf.d/zz-sparkmatrix-fabric.conf"
DAEMON = "/etc/systemd/networkd.conf.d/90-sparkmatrix-fabric.conf"
DAEMON_TEXT = """\
# Written by the role fabric of sparkmatrix.cluster, which started systemd-networkd: without this it removes the routing
# rules and routes of VPNs.
[Network]
ManageForeignRoutingPolicyRules=no
ManageForeignRoutes=no
"""


def networkd_runs(machine: Machine) -> bool:
    return machine.works("systemctl", "is-active", "--quiet", "systemd-networkd.service")


def networkmanager_runs(machine: Machine) -> bool:
    return machine.works("systemctl", "is-active", "--quiet", "NetworkManager.service")


def choose(machine: Machine, asked: str, remembered: str) -> str:
    """``auto``: what is in use, else networkd, unless the machine's owner has masked it or it is not installed."""
    if asked != "auto":
        return asked
    if remembered:
        return remembered
    state = machine.runner(("systemctl", "is-enabled", "systemd-networkd.service")).out.strip()
    return NETWORKMANAGER if state in ("masked", "masked-runtime", "not-found") else NETWORKD


def by_networkd(machine: Machine, netdev: str) -> bool:
    return any(name.endswith(f"netplan-{netdev}.network") for name in machine.names(MADE))


def by_networkmanager(machine: Machine, netdev: str) -> bool:
    return f"netplan-{netdev}.nmconnection" in machine.names(PROFILES)


def unmanaged_text(netdevs: Iterable[str]) -> str:
    names = ";".join(f"interface-name:{netdev}" for netdev in netdevs)
    return (
        "# Written by the role fabric of sparkmatrix.cluster: systemd-networkd configures these interfaces.\n"
        f"[keyfile]\nunmanaged-devices+={names}\n"
    )


def generate(machine: Machine, what: str = "the network configuration") -> None:
    machine.command("netplan", "generate", step=f"generating {what}")
    if os.path.exists(machine.real("/run/udev/control")):
        machine.works("udevadm", "control", "--reload")


def reload_networkmanager(machine: Machine) -> None:
    """What :data:`UNMANAGED` says now."""
    machine.works("nmcli", "general", "reload", "conf")


def activate(machine: Machine, backend: str, netdevs: Sequence[str]) -> None:
    """Make the generated configuration of ``netdevs`` effective, and of nothing else."""
    running = networkd_runs(machine)
    if backend == NETWORKMANAGER:
        if running:
            machine.command("networkctl", "reload", step="reloading systemd-networkd")
        reload_networkmanager(machine)
        for netdev in netdevs:
            # netplan's udev rule says the same, but is not read again before the device appears anew.
            machine.command("nmcli", "device", "set", netdev, "managed", "yes", step="telling NetworkManager")
        machine.command("nmcli", "connection", "reload", step="reloading NetworkManager's connections")
        for netdev in netdevs:
            machine.command(
                *("nmcli", "-w", str(UP_WAIT_S), "connection", "up", f"netplan-{netdev}", "ifname", netdev),
                step="configuring the interface",
                remedy="See journalctl -u NetworkManager",
            )
        return
    if networkmanager_runs(machine):
        # Profiles that were disabled are forgotten before the interface is let go.
        machine.works("nmcli", "connection", "reload")
        for netdev in netdevs:
            machine.command("nmcli", "device", "set", netdev, "managed", "no", step="telling NetworkManager")
        if netdevs:
            reload_networkmanager(machine)
    if not running and netdevs:
        machine.command(
            "systemctl",
            "start",
            "systemd-networkd.service",
            step="starting systemd-networkd",
            remedy="See journalctl -u systemd-networkd",
        )
    if running or netdevs:
        machine.command("networkctl", "reload", step="reloading systemd-networkd")
    if netdevs:
        machine.command("networkctl", "reconfigure", *netdevs, step="configuring the interfaces")


def release(machine: Machine, netdev: str, before: Mapping[str, Any]) -> None:
    """Give one interface back; ``before`` is as in the memory. It may have left the machine: then nothing is to do.

    ``addresses`` in ``before`` are those that have to go.
    """
    now = effective(machine).get(netdev)
    if now is None:
        return
    for key, value in before["sysctls"].items():
        if os.path.exists(machine.real(f"/proc/sys/net/ipv4/conf/{netdev}")):
            write_sysctl(machine, netdev, key, value)
    if by_networkd(machine, netdev):
        # Another netplan file configures it as well: that one counts now.
        machine.command("networkctl", "reconfigure", netdev, step="configuring the interface as before")
    else:
        take_addresses(machine, netdev, before["addresses"])
        if before["mtu"] and before["mtu"] != now.mtu:
            machine.command("ip", "link", "set", netdev, "mtu", str(before["mtu"]), step="restoring the MTU")
        if not before["up"]:
            machine.command("ip", "link", "set", netdev, "down", step="restoring the state")
    reload_networkmanager(machine)
    machine.works("nmcli", "device", "set", netdev, "managed", "yes" if before["nm_managed"] else "no")
    if before["nm_managed"] and by_networkmanager(machine, netdev):
        # Without a cable it cannot come up; NetworkManager does it when there is one.
        machine.works("nmcli", "-w", str(UP_WAIT_S), "connection", "up", f"netplan-{netdev}", "ifname", netdev)


def take_addresses(machine: Machine, netdev: str, addresses: Sequence[str]) -> None:
    """networkd takes its addresses back in the background, or leaves them, depending on its version."""
    for _attempt in range(int(3 / POLL_S)):
        left = [a for a in effective(machine).get(netdev, Effective()).addresses if a in addresses]
        if not left:
            return
        for address in left:
            machine.works("ip", "addr", "del", address, "dev", netdev)
        machine.sleep(POLL_S)
    raise SparkError(f"cannot remove {', '.join(left)}", netdev, "Remove it by hand: ip addr del")


def stop_networkd(machine: Machine) -> None:
    """It was not running before us; it stops unless somebody else has given it work by now."""
    if not any(name.endswith(".network") for name in machine.names(MADE)):
        machine.works("systemctl", "stop", "systemd-networkd.socket", "systemd-networkd.service")
