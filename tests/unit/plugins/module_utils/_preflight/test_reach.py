# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Sequence

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import reach as module
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.reach import unreached
from ansible_collections.sparkmatrix.cluster.plugins.modules import management_reach
from module_runner import run_module

PEER = {"name": "spark2", "address": "10.0.0.12"}


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
        assert address == PEER["address"] and ping
        if isinstance(answer, OSError):
            raise answer
        return answer

    def runner(argv: Sequence[str]) -> Completed:
        assert argv[0] == "ping" and argv[-1] == PEER["address"]
        return Completed(ping)

    assert unreached([PEER], runner, greeting) == ([{**PEER, "reason": reason}] if reason else [])


def test_nobody_to_reach() -> None:
    assert unreached([]) == []


def test_the_greeting_of_an_sshd(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(module, "SSH_PORT", server.getsockname()[1])
        answer = threading.Thread(target=lambda: server.accept()[0].sendall(b"SSH-2.0-OpenSSH"))
        answer.start()
        assert module.greeting("127.0.0.1") == b"SSH-"
        answer.join()


def test_the_module_does_not_ask_its_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(management_reach, "unreached", lambda peers: [{**peer, "reason": "lost"} for peer in peers])
    own = {"name": "spark1", "address": "10.0.0.11"}
    result, failed = run_module(management_reach, {"node": "spark1", "peers": [own, PEER]})
    assert not failed and not result["changed"]
    assert result["unreached"] == [{**PEER, "reason": "lost"}]
