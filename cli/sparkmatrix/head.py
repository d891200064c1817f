# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What is asked of the head by ssh: its own ``sparkmatrix``, whether sudo asks, and the tunnel to the API."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import foreign, verbs

from sparkmatrix.play import DONE, SILENT

SSH_FAILED, SUDO_ASKS = 255, 3
SOCKETS = Path("~/.ansible/cp").expanduser()
# One connection for all that follows within a minute; a machine that is not there is told within seconds.
SHARED = ("-o", "ControlMaster=auto", "-o", "ControlPersist=60", "-o")
QUICK = ("-o", "ConnectTimeout=8", "-o", "ServerAliveInterval=15")


@dataclass
class Head:
    """``ssh``: its words before the machine's; ``to`` is empty where this computer is the head."""

    host: str
    ssh: tuple[str, ...]
    to: str
    typed: str = ""  # a password that was asked for before
    password: str | None = None  # of sudo, empty where it wants none; None: not known yet

    def __post_init__(self) -> None:
        SOCKETS.mkdir(mode=0o700, parents=True, exist_ok=True)

    def words(self, command: str, *options: str) -> list[str]:
        program, *way = self.ssh
        place = f"ControlPath={SOCKETS}/{self._name()}"
        return [program, *SHARED, place, *QUICK, *options, *way, self.to, command] if self.to else ["sh", "-c", command]

    def sudo(self) -> str:
        """The password, asked for once, at a terminal, where sudo wants one: for env, lest a rule that sudo has for one
        program alone makes the password that program's input."""
        if self.password is None:
            asks = self.words(f"sudo -k -n env true 2>/dev/null || exit {SUDO_ASKS}", "-o", "BatchMode=yes")
            none = subprocess.DEVNULL
            wanted = subprocess.call(asks, stdin=none, stdout=none, stderr=none) == SUDO_ASKS
            self.password = self.typed if wanted else ""
            if wanted and not self.typed and sys.stdin.isatty():
                self.password = click.prompt(f"Password for sudo on {self.host}", hide_input=True, err=True)
        return self.password

    def run(self, words: Sequence[str], text: str | None = None, *, capture: bool = False) -> tuple[int, str]:
        """Exit code, with ``capture``, output of the head's program as root; ``text``: its input, else the terminal."""
        if text is None and not capture and sys.stdin.isatty() and sys.stdout.isatty():
            code, said = subprocess.call(self.words(shlex.join(["sudo", paths.COMMAND, *words]), "-t")), ""
        else:
            secret, sudo = (f"{self.password}\n", ("-k", "-S", "-p", "", "env")) if self.sudo() else ("", ("-n",))
            asks = self.words(shlex.join(["sudo", *sudo, paths.COMMAND, *words]))
            code, said = foreign.run(asks, secret + (text or ""), keep=capture)
        if code == SSH_FAILED:
            click.echo(f"ssh did not get to {self.host}. Next:\n  {os.environ.get(verbs.CALLED_BY)} check", err=True)
        return SILENT if code == SSH_FAILED else code, said

    def tunnel(self, host: str, port: int) -> int:
        """The port of this computer that leads there from the head, maybe one that is open already; or it refuses."""
        if not self.to:
            return port
        for path in self._tunnels(there := f"{host}:{port}"):
            return int(path.suffix[1:])
        local = _free(port) or _free(0)
        own = ("-fNM", "-S", f"{SOCKETS}/{self._name(there)}.{local}", "-o", "ExitOnForwardFailure=yes")
        words = [self.ssh[0], *own, *QUICK, "-L", f"127.0.0.1:{local}:{there}", *self.ssh[1:], self.to]
        if code := subprocess.run(words, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode:
            raise click.ClickException(f"No tunnel to {self.host}: ssh ended with {code}; its reason stands above.")
        return local

    def close(self) -> int:
        """All tunnels to this head; says how many there were."""
        return len([self._order(path, "exit") for path in self._tunnels()])

    def _name(self, there: str = "") -> str:
        """Of a socket: short, and of one way to one machine. Behind another jump host its address is another's."""
        parts = (f"{self.ssh}{self.to}", *([there] if there else []))
        return "-".join(["sm", *(hashlib.sha256(part.encode()).hexdigest()[:12] for part in parts)])

    def _tunnels(self, there: str = "") -> list[Path]:
        found = SOCKETS.glob(f"{self._name(there)}{'' if there else '-*'}.*")
        return [path for path in found if self._order(path, "check") == DONE]

    def _order(self, path: Path, order: str) -> int:
        words = [self.ssh[0], "-S", str(path), "-O", order, self.to]
        return subprocess.run(words, capture_output=True, check=False).returncode


def _free(port: int) -> int:
    """This port, or any one for 0; 0 where it is taken."""
    with contextlib.suppress(OSError), socket.socket() as sock:
        sock.bind(("127.0.0.1", port))
        return int(sock.getsockname()[1])
    return 0


def of(inventory: Path, typed: str) -> Head:
    from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import head  # Ansible takes its time

    found = head.find(inventory)
    return Head(found.host, tuple(shlex.split(found.ssh)), found.to, typed)
