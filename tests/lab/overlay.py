# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The generated inventory overlay and ssh configuration: how to log in to the nodes of a lab."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import shutil
from collections.abc import Mapping

import gpu
import nodes
from labstate import HERE, Lab, Record, cache_dir, write_atomically


def state(record: Record) -> pathlib.Path:
    return pathlib.Path(record.state)


def client_key(record: Record) -> pathlib.Path:
    return state(record) / "ssh/id_ed25519"


@dataclasses.dataclass(frozen=True)
class Login:
    """Where sshd of a node answers, and with which key: the text of its ``.pub`` file."""

    address: str
    port: int
    host_key: str

    @property
    def known_as(self) -> str:
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"


def write(lab: Lab, record: Record) -> None:
    # Sockets of shared ssh connections: a short path of the lab's own, so that they go with it.
    sockets = lab.run / "ssh"
    sockets.mkdir(mode=0o700, exist_ok=True)
    logins = {
        node: Login(record.address(node), 22, nodes.host_key(lab, node).with_suffix(".pub").read_text())
        for node in record.names
    }
    publish(state(record), logins, sockets, group_vars(record))


def group_vars(record: Record) -> str:
    """What the playbooks are told otherwise than on a Spark."""
    shared, own = ((HERE / f"overlay_vars{part}.yml").read_text() for part in ("", "_gpu" if record.gpus else "_cpu"))
    text = shared.replace("@CHECKOUT@", record.checkout) + own.removeprefix("---")
    if record.gpus:
        text += f"engine_recipe: {gpu.served().recipe}\n"
        there = gpu.requirements(cache_dir() / "gpu/engine")
        text += f"engine_venv_requirements: {json.dumps(there)}\n" if there else ""
    return text


def publish(base: pathlib.Path, logins: Mapping[str, Login], sockets: pathlib.Path, group_vars: str) -> None:
    """The files below ``base``: known hosts, ssh configuration and the inventory overlay. The client key is there."""
    key, known_hosts = base / "ssh/id_ed25519", base / "ssh/known_hosts"
    write_atomically(known_hosts, "".join(_known_host(node, login) for node, login in logins.items()))
    write_atomically(base / "ssh_config", ssh_config(logins, key, known_hosts))
    # For whoever asks a node many things in a row; a login of its own takes ten times as long.
    shared = f'# Generated.\nInclude "{base / "ssh_config"}"\nHost *\n  ControlPath "{sockets}/%C"\n'
    write_atomically(base / "ssh_config_shared", shared)
    variables = {
        "ansible_user": "dgx",
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": f'-F "{base / "ssh_config"}"',
        "ansible_control_path_dir": str(sockets),
    }
    lines = ["# Generated: the addresses of this lab.", "all:", "  children:", "    sparks:"]
    lines.append("      hosts:")
    for node, login in logins.items():
        lines.append(f"        {node}:")
        for name, value in {"ansible_host": login.address, "ansible_port": login.port, **variables}.items():
            lines.append(f"          {name}: {json.dumps(value)}")  # JSON is YAML
    write_atomically(base / "overlay/hosts.yml", "\n".join(lines) + "\n")
    write_atomically(base / "overlay/group_vars/sparks.yml", group_vars)


def _known_host(node: str, login: Login) -> str:
    kind, key = login.host_key.split()[:2]
    return f"{node},{login.known_as} {kind} {key}\n"


def ssh_config(logins: Mapping[str, Login], key: pathlib.Path, known_hosts: pathlib.Path) -> str:
    hosts = "".join(f"Host {node}\n  HostName {login.address}\n  Port {login.port}\n" for node, login in logins.items())
    return f"""# Generated. ssh -F {known_hosts.parent.parent}/ssh_config spark1
{hosts}
Host *
  User dgx
  IdentityFile "{key}"
  IdentitiesOnly yes
  UserKnownHostsFile "{known_hosts}"
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  PasswordAuthentication no
  ConnectTimeout 10
  ServerAliveInterval 10
  ServerAliveCountMax 3
"""


def remove(record: Record) -> None:
    base = state(record)
    withdraw(base)
    if base.name == record.id:  # a lab beside another has a directory of its own
        with contextlib.suppress(OSError):
            base.rmdir()


def withdraw(base: pathlib.Path) -> None:
    for name in ("overlay", "ssh"):
        shutil.rmtree(base / name, ignore_errors=True)
    for name in ("ssh_config", "ssh_config_shared"):
        (base / name).unlink(missing_ok=True)
