# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether this node reaches the others at their management addresses, and whom it hears over its cables meanwhile.

An echo is enough. Where none comes back, which some firewalls see to, the greeting of sshd is. A mere connection is
not, since some gateways accept or refuse it in the name of machines that are not there.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Host, Ipv4, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import neighbor_sockets
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Neighbors

SSH_PORT = 22
SSH_S = 3
ECHO_S = 2
MAX_PARALLEL = 32

Greeting = Callable[[str], bytes]


@dataclass(frozen=True)
class Peer:
    name: str
    address: str


@dataclass(frozen=True)
class Request:
    """``node``: the name of this one, which is left out of ``peers``. ``listen``: who is at the other end of its
    cables, with whom all listen at the same time; ports that are switched off stay so."""

    peers: tuple[Peer, ...]
    node: str = ""
    listen: Optional[neighbor_sockets.Request] = None


@dataclass(frozen=True)
class Unreached:
    name: Host
    address: Ipv4
    reason: Words


@dataclass(frozen=True)
class Reach:
    """It does not fail where a node is not reached, so that the answers of all nodes can be judged together."""

    unreached: list[Unreached] = field(default_factory=list)
    heard: Optional[Neighbors] = None


def look(request: Request, check: bool) -> Reach:
    peers = [peer for peer in request.peers if peer.name != request.node]
    with ThreadPoolExecutor(max_workers=1) as pool:
        reached = pool.submit(unreached, peers)
        heard = None
        # A node that cannot listen tells the layer fabric why, which asks again; whom it reaches is told all the same.
        with contextlib.suppress(SparkError, OSError):
            heard = neighbor_sockets.find(request.listen, True) if request.listen else None
        return Reach(reached.result(), heard)


def greeting(address: str) -> bytes:
    """The first bytes that sshd sends."""
    with socket.create_connection((address, SSH_PORT), SSH_S) as connection:
        return connection.recv(4)


def unreached(peers: Sequence[Peer], runner: Runner = run, greeting: Greeting = greeting) -> list[Unreached]:
    """Those that do not answer. All are asked at once."""
    if not peers:
        return []
    with ThreadPoolExecutor(max_workers=min(len(peers), MAX_PARALLEL)) as pool:
        reasons = pool.map(lambda peer: _try(peer.address, runner, greeting), peers)
        return [Unreached(peer.name, peer.address, reason) for peer, reason in zip(peers, reasons) if reason]


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
