# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""mpirun's order finds its way to a rank that waits, and nobody else's does."""

from __future__ import annotations

import json
import os
import re
import socket
import threading

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import mpi
from module_runner import arguments, run_program

SECRET = b"a-secret-of-the-test"
# As Open MPI 4.1.8 gives it to its agent: one word up to the program if a prefix is set, the rest quoted for a shell.
PREFIXED = (
    "   OPAL_PREFIX=/opt/hpcx/ompi ; export OPAL_PREFIX;    PATH=/opt/hpcx/ompi/bin:$PATH ; export PATH ; "
    "LD_LIBRARY_PATH=/opt/hpcx/ompi/lib:${LD_LIBRARY_PATH:-} ; export LD_LIBRARY_PATH ;   /opt/hpcx/ompi/bin/orted"
)
REST = (
    *(
        "-mca",
        "ess",
        '"env"',
        "-mca",
        "ess_base_vpid",
        "1",
        "-mca",
        "orte_node_regex",
        '"spark[1:1],[3:192].0.2.7@0(2)"',
    ),
    *("-mca", "orte_hnp_uri", '"1047658496.0;tcp://192.168.100.10:34701"'),
    *(
        "-mca",
        "plm_rsh_agent",
        '"/usr/local/lib/sparkmatrix/sparkmatrix-node mpi order --port 29501 --source 192.168.100.10"',
    ),
)
WANTED = [
    *("orted", "-mca", "ess", "env", "-mca", "ess_base_vpid", "1"),
    *("-mca", "orte_node_regex", "spark[1:1],[3:192].0.2.7@0(2)"),
    *("-mca", "orte_hnp_uri", "1047658496.0;tcp://192.168.100.10:34701"),
    *(
        "-mca",
        "plm_rsh_agent",
        "/usr/local/lib/sparkmatrix/sparkmatrix-node mpi order --port 29501 --source 192.168.100.10",
    ),
]


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (PREFIXED, ()),
        ("orted", ()),
        (" /usr/bin/orted", ()),
        (f"( test ! -r ./.profile || . ./.profile; {PREFIXED}", (")",)),  # where root's shell is sh
    ],
)
def test_the_daemon_in_what_is_meant_for_a_shell(first, last):
    assert mpi.daemon_words([first, *REST, *last]) == WANTED


@pytest.mark.parametrize(
    ("words", "says"),
    [(["prted", "--daemonize"], "has no orted"), (["orted", '"open'], "cannot be read"), ([], "has no orted")],
)
def test_what_is_no_order(words, says):
    with pytest.raises(SparkError, match=says):
        mpi.daemon_words(words)


def test_the_secret(tmp_path):
    path = tmp_path / "mpi.token"
    with pytest.raises(SparkError, match="cannot be read"):
        mpi.shared(str(path))
    path.write_text("short\n")
    with pytest.raises(SparkError, match="no usable secret"):
        mpi.shared(str(path))
    path.write_text(f"{SECRET.decode()}\n")
    assert mpi.shared(str(path)) == SECRET


@pytest.fixture
def rank():
    """A rank that waits: its port, what it said, and what it took."""
    said: list[str] = []
    taken: list[list[str]] = []
    server = socket.create_server(("127.0.0.1", 0))

    def follow():
        words, connection = mpi.wait(server, SECRET, said.append)
        taken.append(words)
        connection.close()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    yield server.getsockname()[1], said, taken, thread
    if thread.is_alive():
        mpi.order("127.0.0.1", server.getsockname()[1], ["orted"], SECRET)
        thread.join(5)
    server.close()


def test_an_order_is_taken_and_lasts_as_long_as_the_daemon(rank):
    port, said, taken, thread = rank
    mpi.order("127.0.0.1", port, WANTED, SECRET)
    thread.join(5)
    assert (taken, said) == ([WANTED], [])


@pytest.mark.parametrize(("secret", "words"), [(b"another-secret", WANTED), (SECRET, ["sh", "-c", "id"]), (SECRET, [])])
def test_who_does_not_know_the_secret_or_wants_something_else(rank, secret, words):
    port, said, taken, _thread = rank
    with pytest.raises(SparkError, match="has not taken its order \\(refused\\)"):
        mpi.order("127.0.0.1", port, words, secret)
    assert not taken and "127.0.0.1: refused" in said[0]


@pytest.mark.parametrize(
    "line", ["no json", "[]", '{"words": "orted", "proof": ""}', '{"words": ["orted"]}', "", "\u00e4", "[" * 12000]
)
def test_what_is_not_an_order_at_all(rank, line):
    port, said, taken, _thread = rank
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"{line}\n".encode())
        connection.makefile("rb").read()
    assert said and not taken


def test_a_proof_is_good_once(rank):
    """Whoever has listened cannot use it again."""
    port, _said, taken, thread = rank
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as between:

        def relay():
            sock, _address = between.accept()
            with sock, socket.create_connection(("127.0.0.1", port)) as other:
                sock.sendall(other.makefile("rb").readline())
                heard.append(sock.makefile("rb").readline())

        listening = threading.Thread(target=relay, daemon=True)
        listening.start()
        with pytest.raises(SparkError):
            mpi.order("127.0.0.1", between.getsockname()[1], WANTED, SECRET, appear_s=0.0)
        listening.join(5)
    assert json.loads(heard[0])["words"] == WANTED
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        stream = connection.makefile("rb")
        assert re.fullmatch(rb"[0-9a-f]{64}\n", stream.readline())
        connection.sendall(heard[0])
        assert stream.readline() == b"refused\n"
    assert thread.is_alive() and not taken


def test_a_rank_that_does_not_appear():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    now = [0.0]
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    with pytest.raises(SparkError, match="no rank has taken its order there for 2 s"):
        mpi.order("127.0.0.1", port, WANTED, SECRET, appear_s=2.0, clock=lambda: now[0], sleep=sleep)
    assert len(slept) > 2


def test_a_listener_that_is_no_rank():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def close():
            server.accept()[0].close()

        threading.Thread(target=close, daemon=True).start()
        with pytest.raises(SparkError, match="no rank has taken its order there"):
            mpi.order("127.0.0.1", server.getsockname()[1], WANTED, SECRET, appear_s=0.0)


def test_an_order_is_for_one_rank(rank):
    """Who passes on the order that another rank is to have gets nothing by it."""
    port, _said, taken, thread = rank
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        stream = connection.makefile("rb")
        nonce = stream.readline().decode().strip()
        proof = mpi.sign(SECRET, "192.168.100.12:29501", nonce, WANTED)
        connection.sendall(f"{json.dumps({'words': WANTED, 'proof': proof})}\n".encode())
        assert stream.readline() == b"refused\n"
    assert thread.is_alive() and not taken


def test_who_says_little_is_not_waited_for(rank, monkeypatch):
    port, said, taken, thread = rank
    monkeypatch.setattr(mpi, "PATIENCE_S", 0.3)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as slow:
        slow.makefile("rb").readline()
        slow.sendall(b"[")
        # It is tried again when the first attempt was not listened to.
        mpi.order("127.0.0.1", port, WANTED, SECRET)
    thread.join(5)
    assert taken == [WANTED] and "no order (timed out)" in said[0]


def test_nobody_but_the_head_is_listened_to():
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        got: list[list[str]] = []
        thread = threading.Thread(
            target=lambda: got.append(mpi.wait(server, SECRET, said.append, "127.0.0.2")[0]), daemon=True
        )
        thread.start()
        with pytest.raises(SparkError):
            mpi.order("127.0.0.1", port, WANTED, SECRET, appear_s=0.0)
        assert said and "127.0.0.1: not the head" in said[0] and not got
        mpi.order("127.0.0.1", port, WANTED, SECRET, "127.0.0.2")
        thread.join(5)
    assert got == [WANTED]


def test_the_command_of_the_agent(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(mpi, "shared", lambda: SECRET)
    monkeypatch.setattr(mpi, "order", lambda *words: asked.append(words))
    given = arguments(mpi, "order", "--port", "29501", "--source", "192.168.100.10", "192.168.100.11", PREFIXED, *REST)
    assert mpi.run(given) == 1
    assert asked == [("192.168.100.11", 29501, WANTED, SECRET, "192.168.100.10")]
    assert run_program(mpi, "order", "--port", "1", "--source", "::1", "spark2", "prted") == 1
    assert "has no orted" in capsys.readouterr().err


def test_the_rank_becomes_the_daemon(monkeypatch, capsys):
    became = []
    left, right = socket.socketpair()

    def become(program, words):
        became.append((program, words, os.get_inheritable(left.fileno())))

    monkeypatch.setattr(mpi, "shared", lambda: SECRET)
    monkeypatch.setattr(mpi, "wait", lambda *_: (WANTED, left))
    monkeypatch.setattr(os, "execvp", become)
    run_program(mpi, "wait", "--head", "127.0.0.1", "--listen", "127.0.0.1:0")
    assert became == [("orted", WANTED, True)]
    assert "waiting for the head" in capsys.readouterr().err
    left.close()
    right.close()


def test_an_address_that_is_not_here(monkeypatch, capsys):
    monkeypatch.setattr(mpi, "shared", lambda: SECRET)
    for listen in ("192.0.2.1:29501", "127.0.0.1:70000"):
        assert run_program(mpi, "wait", "--head", "192.0.2.2", "--listen", listen) == 1
        assert "cannot wait for the head" in capsys.readouterr().err
