# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the plan of the access layer needs to know of one node, and the node's own key.

The private key is made on the node and never leaves it: ``/etc/sparkmatrix/ssh/id_ed25519`` (0600, root). Its public
half and the host keys travel over Ansible's own, authenticated connection; nothing is scanned.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from typing import Annotated, Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import fail2ban, sshd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, kinds, paths, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import canonical
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, is_account
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Network, ssh_connection
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import management
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import on_disk
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import settings as managed_settings

DIRECTORY = paths.SSH
KEY = f"{DIRECTORY}/id_ed25519"
KNOWN_HOSTS = f"{DIRECTORY}/known_hosts"
USER = "sparkmatrix-peer"  # the account that other nodes log in to
_REMEDY = "Install openssh-client"


@dataclass(frozen=True)
class Request:
    """``absent`` removes the key; ``rotate``: make a new one, whatever is there; ``known_hosts``: tell them, too."""

    state: str = field(default="present", metadata=document.one_of("present", "absent"))
    user: str = USER
    rotate: bool = False
    known_hosts: bool = False


def _end(value: Any) -> str:
    """Of a connection: an address, which may not be known, or a port."""
    return value if isinstance(value, str) and re.fullmatch("([0-9]{1,5})?", value) else strict.address(value)


def left_out(value: Any) -> None:
    """Not read with the rest: the fabric fact has a reader of its own, and one that is damaged must not hide all."""


@dataclass
class Look:
    """``connection``: SSH_CONNECTION, or empty. ``public_key`` without comment; empty in check mode where none is."""

    host_keys: list[kinds.PublicKey]
    public_key: kinds.PublicKeyOrEmpty = ""
    connection: list[Annotated[str, _end]] = field(default_factory=list)
    ssh_ports: list[kinds.Port] = field(default_factory=list)
    network: Network = field(default_factory=Network)
    fact: Annotated[Any, left_out] = None  # as it is on disk
    account: kinds.Flag = False
    jail: kinds.Flag = False  # fail2ban was switched on by an earlier run
    known_hosts: kinds.KnownHosts = ""
    changed: kinds.Flag = False


def ensure(request: Request, check: bool) -> Look:
    machine = Machine()
    if request.state == "absent":
        return Look([], changed=remove_key(machine, check_mode=check))
    found = look(machine, request.user, rotate=request.rotate, check_mode=check)
    found.known_hosts = known_hosts(machine) if request.known_hosts else ""
    return found


def look(machine: Machine, user: str, *, rotate: bool = False, check_mode: bool = False) -> Look:
    """Read, and make the key where there is none that works, or where a new one is asked for."""
    found = Look(
        host_keys=host_keys(machine),
        # A zone (fe80::1%eth0) means something here only.
        connection=[end if end.isdigit() else canonical(end) for end in ssh_connection(machine) or ()],
        ssh_ports=sorted(sshd.ports(machine)),
        network=management.read(machine),
        fact=on_disk(machine),
        account=is_account(user),
        jail=machine.exists(managed_settings.record_path(fail2ban.SETTINGS)),
    )
    found.public_key = "" if rotate and not check_mode else public_key(machine)
    if rotate or not found.public_key:
        found.changed = True
        if not check_mode:
            make_key(machine)
            found.public_key = public_key(machine)
    return found


def known_hosts(machine: Machine) -> str:
    """Of the last run: who was a node then, with which host keys."""
    return machine.read(KNOWN_HOSTS) or ""


def public_key(machine: Machine) -> str:
    """``ssh-ed25519 AAAA…``, from the private half; empty when there is none, or it is damaged."""
    if machine.read(KEY) is None:
        return ""
    done = machine.runner(("ssh-keygen", "-y", "-P", "", "-f", machine.real(KEY)))
    words = done.out.split()
    return " ".join(words[:2]) if done.rc == 0 and len(words) >= 2 else ""


def make_key(machine: Machine) -> None:
    """Beside the old one, and into its place in one step."""
    real = machine.real(DIRECTORY)
    try:
        os.makedirs(real, mode=0o755, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=".new-", dir=real)
    except OSError as exc:
        raise SparkError(f"cannot be made ({exc.strerror})", DIRECTORY, "Make /etc writable for root") from exc
    try:
        path = f"{scratch}/key"
        machine.command(
            "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path, step="making the key", remedy=_REMEDY
        )
        os.chmod(path, 0o600)
        os.rename(path, machine.real(KEY))
    except OSError as exc:
        raise SparkError(f"cannot be made ({exc.strerror})", KEY, "Make /etc writable for root") from exc
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def remove_key(machine: Machine, *, check_mode: bool = False) -> bool:
    """True when there was one."""
    there = os.path.lexists(machine.real(KEY))
    if there and not check_mode:
        os.unlink(machine.real(KEY))
    if not check_mode:
        for directory in (DIRECTORY, os.path.dirname(DIRECTORY)):
            with contextlib.suppress(OSError):  # not there, or something else lives in it
                os.rmdir(machine.real(directory))
    return there


def host_keys(machine: Machine) -> list[str]:
    """Public host keys without comment, in the order of their file names."""
    found = []
    for path in sorted(glob.glob(machine.real("/etc/ssh/ssh_host_*_key.pub"))):
        with open(path, encoding="ascii", errors="replace") as stream:
            words = stream.read().split()
        if len(words) >= 2 and words[0] in strict.KEY_TYPES:
            found.append(" ".join(words[:2]))
    if not found:
        raise SparkError(
            "there is no public host key", "/etc/ssh/ssh_host_*_key.pub", "Make the host keys: sudo ssh-keygen -A"
        )
    return found
