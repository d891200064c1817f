# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether this node reaches the others at their management addresses.

An echo is enough. Where none comes back, which some firewalls see to, the greeting of sshd is. A mere connection is
not, since some gateways accept or refuse it in the name of machines that are not there.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Runner, run

SSH_PORT = 22
SSH_S = 3
ECHO_S = 2
MAX_PARALLEL = 32

Greeting = Callable[[str], bytes]


def greeting(address: str) -> bytes:
    """The first bytes that sshd sends."""
    with socket.create_connection((address, SSH_PORT), SSH_S) as connection:
        return connection.recv(4)


def unreached(
    peers: Sequence[Mapping[str, str]], runner: Runner = run, greeting: Greeting = greeting
) -> list[dict[str, Any]]:
    """Those with a ``name`` and an ``address`` that do not answer: both, and the ``reason``. All are asked at once."""
    if not peers:
        return []
    with ThreadPoolExecutor(max_workers=min(len(peers), MAX_PARALLEL)) as pool:
        reasons = pool.map(lambda peer: _try(str(peer["address"]), runner, greeting), peers)
        return [
            {"name": peer["name"], "address": peer["address"], "reason": reason}
            for peer, reason in zip(peers, reasons)
            if reason
        ]


def _try(address: str, runner: Runner, greeting: Greeting) -> str:
    """Nothing where it answers, else why not."""
    done = runner(("ping", "-n", "-c", "1", "-W", str(ECHO_S), address))
    if done.rc == 0:
        return ""
    echo = "ping is not installed" if done.rc == NOT_FOUND else "no answer to ping"
    try:
        return "" if greeting(address).startswith(b"SSH-") else f"{echo}; what answers at port {SSH_PORT} is no sshd"
    except OSError as exc:
        return f"{echo}; ssh: {exc.strerror or exc}"
