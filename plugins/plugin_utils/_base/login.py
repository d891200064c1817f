# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How somebody at this computer gets to a machine: every ssh command that is printed, and the settings in the file of
``playbooks/ssh_config.yml``. By the variables that Ansible's own connection goes by, so a jump host is on the way, too.
"""

from __future__ import annotations

import getopt
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ansible import constants
from ansible.plugins.loader import connection_loader
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict

ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")  # in the order of ssh's argv
KEYS = ("ansible_ssh_private_key_file", "ansible_private_key_file")
VARIABLES = ("ansible_connection", "ansible_host", "ansible_port", "ansible_user", *KEYS, *ARGUMENTS)
# Options of ssh(1), OpenSSH 10.
_OPTIONS = "46AaCfGgKkMNnqsTtVvXxYyB:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"
_WAYS = {"proxyjump": "ProxyJump", "proxycommand": "ProxyCommand"}


@dataclass(frozen=True)
class Login:
    """``to``: of ssh; empty where this computer is the machine. ``way``: the setting of ssh that leads there, and its
    value; ``file``: the configuration that ssh is to read; ``key``: the file of the private key."""

    host: str
    to: str = ""
    port: int = 0
    way: tuple[str, str] = ("", "")
    file: str = ""
    key: str = ""

    @property
    def ssh(self) -> str:
        name, value = self.way
        words = ["-F", self.file] if self.file else []
        words += ["-i", self.key] if self.key else []
        words += ["-J", value] if name == "ProxyJump" else ["-o", f"{name}={value}"] if name else []
        return shlex.join(["ssh", *words, *(["-p", str(self.port)] if self.moved else [])])

    @property
    def moved(self) -> bool:
        return self.port not in (0, 22)

    @property
    def address(self) -> str:
        return self.to.rpartition("@")[2]

    @property
    def known(self) -> str:
        """What the machine is called in known_hosts."""
        return f"[{self.address}]:{self.port}" if self.moved else self.address

    def command(self, words: str) -> str:
        return f"{self.ssh} {self.to} '{words}'" if self.to else words

    def tunnel(self, port: str) -> str:
        return f"{self.ssh} -fNL {port}:127.0.0.1:{port} {self.to}"

    @property
    def copy_key(self) -> str:
        """ssh-copy-id knows no ``-J``."""
        return f"{self.ssh.replace('ssh', 'ssh-copy-id', 1).replace(' -J ', ' -o ProxyJump=', 1)} {self.to}"

    @property
    def settings(self) -> list[str]:
        """Lines of an ssh configuration."""
        key = [f'IdentityFile "{self.key}"'] if self.key else []
        return [*key, *([" ".join(self.way)] if self.way[0] else [])]

    @property
    def asks(self) -> list[str]:
        """What says how ssh itself gets there: its own configuration may know the machine by its address. Under the
        machine's name it is read anyway."""
        if self.way[0] or not self.to or self.address == self.host:
            return []
        return ["ssh", "-G", *(["-F", self.file] if self.file else []), self.to]


def configured() -> dict[str, str]:
    """:data:`ARGUMENTS` of ansible.cfg and of the environment, for hosts that have none of their own."""
    connection_loader.get("ssh", class_only=True)  # it knows its settings once it is loaded
    names = {name: name.removeprefix("ansible_") for name in ARGUMENTS}
    read = constants.config.get_config_value
    return {name: read(own, plugin_type="connection", plugin_name="ssh") or "" for name, own in names.items()}


def login(host: str, own: Mapping[str, Any]) -> Login:
    """``own``: :data:`VARIABLES` of the inventory."""
    if own.get("ansible_connection") == "local":
        return Login(host)
    user = f"{own['ansible_user']}@" if own.get("ansible_user") else ""
    port = str(own.get("ansible_port") or "0")
    given = list(_given(own))
    way = next(((name, value) for name, value in given if name != "-F"), ("", ""))
    file = next((value for name, value in given if name == "-F"), "")
    # Either setting, of whichever machine: the first that ssh reads counts.
    way = way if way[1].lower() != "none" else ("", "")
    key = next((" ".join(str(own[name]).split()) for name in KEYS if own.get(name)), "")
    return Login(host, f"{user}{own.get('ansible_host') or host}", strict.digits(port) or 0, way, file, key)


def asked(text: str) -> list[str]:
    """The lines of an ssh configuration, from what ``ssh -G`` printed."""
    found = [line.strip().partition(" ") for line in text.splitlines()]
    return [f"{_WAYS[name]} {value}" for name, _blank, value in found if name in _WAYS and value not in ("", "none")]


def _given(own: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings that lead somewhere, and the file, in their order."""
    try:
        words = [word for name in ARGUMENTS for word in shlex.split(str(own.get(name) or ""))]
        options = getopt.getopt(words, _OPTIONS)[0]
    except (ValueError, getopt.GetoptError):
        return  # ssh refuses that, too
    for option, value in options:
        name, rest = "", ""
        if option == "-o":
            name, _sign, rest = re.sub(r"\s*=\s*|\s+", "=", value.strip(), count=1).partition("=")
        elif option in ("-J", "-F"):
            name, rest = {"-J": "proxyjump"}.get(option, option), value
        rest = " ".join(rest.split())  # a setting is one line
        if rest and (name == "-F" or name.lower() in _WAYS):
            yield _WAYS.get(name.lower(), name), rest
