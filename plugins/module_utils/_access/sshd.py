# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""sshd: its effective settings, the ports that it answers at, and our drop-in.

sshd takes the first value that it reads, and /etc/ssh/sshd_config includes sshd_config.d before it says anything itself
(Debian and Ubuntu), so a low number in the name of the drop-in wins over 50-cloud-init.conf.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

SET = "access_sshd"
FILE = "/etc/ssh/sshd_config.d/01-sparkmatrix.conf"
SERVICES = ("ssh.service", "sshd.service")  # Debian and Ubuntu; others
SOCKET = "ssh.socket"
_LISTEN = re.compile(r"(?:\S*?[:\]])?(\d+) \(Stream\)")


def parse_effective(text: str) -> dict[str, str]:
    """The output of ``sshd -T``: settings in lower case, the values of repeated ones joined by a comma."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, _blank, value = line.strip().partition(" ")
        if name:
            found[name] = f"{found[name]},{value}" if name in found else value
    return found


def listening(listeners: Sequence[str]) -> set[int]:
    """Ports of a socket unit's TCP listeners: ``22 (Stream)``, ``[::]:22 (Stream)``."""
    return {int(found[1]) for found in map(_LISTEN.fullmatch, listeners) if found}


def text_of(settings: Mapping[str, str]) -> str:
    lines = [
        "# Managed by sparkmatrix.cluster (role access). Undo: access_sshd_hardening: false",
        *(f"{name} {value}" for name, value in settings.items()),
    ]
    return "\n".join(lines) + "\n"


def differing(effective: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Settings of ours that are not active, with the value that is."""
    found = {}
    for name, value in settings.items():
        now = effective.get(name.lower(), "")
        if _canonical(now) != _canonical(str(value)):
            found[name] = now
    return found


def _canonical(value: str) -> str:
    # sshd prints "without-password" for what is written "prohibit-password".
    text = " ".join(value.lower().split())
    return {"without-password": "prohibit-password"}.get(text, text)


def ports(machine: Machine) -> set[int]:
    """Where new logins arrive. With ssh.socket systemd listens, and ``Port`` in sshd_config says nothing."""
    socket = machine.unit(SOCKET)
    if socket.active == "active":
        return listening(socket.listen)
    return {int(port) for port in effective(machine).get("port", "22").split(",")}


def effective(machine: Machine) -> dict[str, str]:
    return parse_effective(machine.command("sshd", "-T", step="reading the settings of sshd").out)


def complaint(machine: Machine) -> str:
    """What ``sshd -t`` has against the configuration on disk; empty: nothing."""
    done = machine.runner(("sshd", "-t"))
    return "" if done.rc == 0 else done.complaint


def check(machine: Machine) -> None:
    """Refuse to build on a configuration that sshd itself does not accept."""
    found = complaint(machine)
    if found:
        raise SparkError(
            f"sshd does not accept its configuration as it is ({found}); after its next restart nobody could log in. "
            "Nothing was changed",
            "/etc/ssh/sshd_config",
            "Correct it at the machine until sudo sshd -t is silent, and run again",
        )


def reload(machine: Machine) -> None:
    """New logins get the settings on disk; running sessions go on. Never a restart."""
    for service in SERVICES:
        if machine.works("systemctl", "is-active", "--quiet", service):
            machine.command(
                "systemctl", "reload", service, step="reloading sshd", remedy=f"See systemctl status {service}"
            )
            return
    # Started by its socket for the next login, sshd reads its configuration then.
