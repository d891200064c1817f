# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Sequence

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import neighbor_sockets
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Neighbors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import reach as module
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.reach import unreached

PEER = module.Peer("spark2", "10.0.0.12")


@pytest.mark.parametrize(
    ("ping", "answer", "reason"),
    [
        (0, b"never asked", ""),
        (1, b"SSH-", ""),  # a firewall drops the echo
        (1, b"HTTP", "no answer to ping; what answers at port 22 is no sshd"),
        (1, b"", "no answer to ping; what answers at port 22 is no sshd"),
        (1, TimeoutError("timed out"), "no answer to ping; ssh: timed out"),
        (1, OSError(errno.EHOSTUNREACH, "No route to host"), "no answer to ping; ssh: No route to host"),
        (127, OSError(errno.ECONNREFUSED, "Connection refused"), "ping is not installed; ssh: Connection refused"),
        (127, b"SSH-", ""),
    ],
)
def test_what_counts_as_reached(ping: int, answer: bytes | OSError, reason: str) -> None:
    def greeting(address: str) -> bytes:
        assert address == PEER.address and ping
        if isinstance(answer, OSError):
            raise answer
        return answer

    def runner(argv: Sequence[str]) -> Completed:
        assert argv[0] == "ping" and argv[-1] == PEER.address
        return Completed(ping)

    lost = [module.Unreached(PEER.name, PEER.address, reason)] if reason else []
    assert unreached([PEER], runner, greeting) == lost


def test_nobody_to_reach() -> None:
    assert unreached([]) == []


def test_the_greeting_of_an_sshd(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(module, "SSH_PORT", server.getsockname()[1])
        answer = threading.Thread(target=lambda: server.accept()[0].sendall(b"SSH-2.0-OpenSSH"))
        answer.start()
        assert module.greeting("127.0.0.1") == b"SSH-"
        answer.join()


def test_a_node_does_not_ask_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "unreached", list)
    asked = module.Request((module.Peer("spark1", "10.0.0.11"), PEER), "spark1")
    assert module.look(asked, False).unreached == [PEER]


def test_it_listens_over_the_cables_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    heard, asked = Neighbors(complete=True), neighbor_sockets.Request("spark1", ("spark1", "spark2"))

    def find(request: neighbor_sockets.Request, check: bool) -> Neighbors:
        assert request is asked and check  # ports that are switched off stay so
        return heard

    monkeypatch.setattr(neighbor_sockets, "find", find)
    monkeypatch.setattr(
        module, "unreached", lambda peers: [module.Unreached(peer.name, peer.address, "x") for peer in peers]
    )
    own = module.Peer("spark1", "10.0.0.11")
    found = module.look(module.Request((own, PEER), "spark1", asked), False)
    assert found.heard is heard and [one.name for one in found.unreached] == ["spark2"]
    assert module.look(module.Request((own,), "spark1"), False) == module.Reach()


@pytest.mark.parametrize("error", [SparkError("no permission", "enp1s0f0np0", "x"), OSError(errno.ENODEV, "gone")])
def test_who_cannot_listen_says_whom_it_reaches(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(_request: neighbor_sockets.Request, _check: bool) -> Neighbors:
        raise error

    monkeypatch.setattr(neighbor_sockets, "find", find)
    unreached = [module.Unreached(PEER.name, PEER.address, "x")]
    monkeypatch.setattr(module, "unreached", lambda _peers: unreached)
    asked = neighbor_sockets.Request("spark1", ("spark1", "spark2"))
    assert module.look(module.Request((PEER,), "spark1", asked), False) == module.Reach(unreached)
