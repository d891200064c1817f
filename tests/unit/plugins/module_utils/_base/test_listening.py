# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import listening
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine


class Node(Machine):
    def write(self, path, text):
        place = Path(self.root, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def process(self, pid, inode, cgroup, comm="python3"):
        self.write(f"proc/{pid}/comm", f"{comm}\n")
        self.write(f"proc/{pid}/cgroup", f"0::{cgroup}\n")
        Path(self.root, f"proc/{pid}/fd").mkdir()
        Path(self.root, f"proc/{pid}/fd/3").symlink_to(f"socket:[{inode}]")


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr(listening, "_ours", set())
    return Node(str(tmp_path))


def encode(address, size):
    packed = ipaddress.ip_address(address).packed
    words = [packed[start : start + 4] for start in range(0, size // 2, 4)]
    return b"".join(word[::-1] if sys.byteorder == "little" else word for word in words).hex().upper()


def row(address, port, state, inode, *, size=8, uid=0):
    return (
        f"   0: {encode(address, size)}:{port:04X} {'0' * size}:0000 {state} 00000000:00000000 00:00000000 00000000 "
        f"{uid:5d}        0 {inode} 1 0000000000000000 100 0 0 10 0\n"
    )


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def test_parse_tcp():
    text = HEAD + row("127.0.0.1", 8000, "0A", 77) + row("10.0.0.1", 22, "01", 78)
    assert listening.parse_tcp(text, 8) == [(8000, "127.0.0.1", 0, "77")]
    text = HEAD + row("::", 6379, "0A", 5, size=32) + row("::ffff:10.0.0.1", 80, "0A", 6, size=32)
    assert listening.parse_tcp(text, 32) == [(6379, "::", 0, "5"), (80, "10.0.0.1", 0, "6")]


def test_listeners_are_traced_to_their_unit(node):
    node.write("proc/net/tcp", HEAD + row("0.0.0.0", 8000, "0A", 77) + row("0.0.0.0", 22, "0A", 78))
    node.write("proc/net/tcp6", HEAD)
    node.write("proc/300/comm", "ray\n")
    node.write("proc/300/cgroup", "12:cpu:/x\n0::/system.slice/sparkmatrix-ray.service/inner\n")
    (Path(node.root) / "proc/300/fd").mkdir()
    (Path(node.root) / "proc/300/fd/3").symlink_to("socket:[77]")
    (Path(node.root) / "proc/300/fd/4").write_text("no link")
    (Path(node.root) / "proc/400/fd").mkdir(parents=True)
    found = listening.listening(node, [8000])
    assert found == [
        listening.Listener(22, "0.0.0.0"),
        listening.Listener(8000, "0.0.0.0", 300, "ray", "sparkmatrix-ray.service"),
    ]


def test_a_container_of_ours_is_known_by_its_slice(node):
    node.write("proc/301/cgroup", "0::/sparkmatrix.slice/sparkmatrix-engine.slice/docker-0f1e.scope\n")
    node.write("proc/302/cgroup", "0::/system.slice/docker-0f1e.scope\n")
    assert listening.unit_of(node, 301) == "sparkmatrix-engine.slice"
    assert listening.unit_of(node, 302) == "docker-0f1e.scope"
    node.write("proc/304/cgroup", "0::/system.slice/system-sparkmatrix_web_ui.slice/docker-0f1e.scope\n")
    assert listening.unit_of(node, 304) == "system-sparkmatrix_web_ui.slice"
    node.write("proc/303/cgroup", "0::/sparkmatrix.slice/sparkmatrix-engine.slice/sparkmatrix-ray.service\n")
    assert listening.unit_of(node, 303) == "sparkmatrix-ray.service"


# -- is it ours

OTHER = os.geteuid() + 4711
ENGINE = "/sparkmatrix.slice/sparkmatrix-engine.slice/sparkmatrix-engine.service"


@pytest.mark.parametrize(
    ("uid", "cgroup", "ours"),
    [
        (OTHER, ENGINE, True),
        (OTHER, "/sparkmatrix.slice/sparkmatrix-engine.slice/docker-0f1e.scope", True),
        (OTHER, "/system.slice/system-sparkmatrix_gateway.slice/sparkmatrix-gateway.service", True),
        (OTHER, "/system.slice/system-sparkmatrix_web_ui.slice/docker-0f1e.scope", True),
        (0, "/system.slice/docker.service", True),
        (os.geteuid(), "/user.slice/user-1000.slice/session-1.scope", True),
        (OTHER, "/user.slice/user-1001.slice/session-3.scope", False),
        (OTHER, "/system.slice/nginx.service", False),
        # A user's own systemd has units of any name.
        (OTHER, "/user.slice/user-1001.slice/user@1001.service/app.slice/sparkmatrix-engine.service", False),
    ],
)
def test_whose_the_port_is(node, uid, cgroup, ours):
    node.write("proc/net/tcp", HEAD + row("127.0.0.1", 8000, "0A", 77, uid=uid))
    node.process(300, 77, cgroup)
    said = listening.stranger(node, "127.0.0.1", 8000)
    assert (said == "") == ours
    if not ours:
        assert said == f"python3 (process 300, account {OTHER}, {cgroup.rpartition('/')[2]})"
    assert listening.stranger(node, "127.0.0.1", 8001) == ""


def test_a_stranger_whose_process_is_not_to_be_seen(node):
    node.write("proc/net/tcp", HEAD + row("127.0.0.1", 8000, "0A", 77, uid=OTHER))
    assert listening.stranger(node, "127.0.0.1", 8000) == f"a process of the account {OTHER}"


def test_whoever_was_traced_is_known(node):
    node.write("proc/net/tcp", HEAD + row("127.0.0.1", 8000, "0A", 77, uid=OTHER))
    node.process(300, 77, ENGINE)
    assert listening.stranger(node, "127.0.0.1", 8000) == ""
    Path(node.root, "proc/300/fd/3").unlink()
    assert listening.stranger(node, "127.0.0.1", 8000) == ""
    node.write("proc/net/tcp", HEAD + row("127.0.0.1", 8000, "0A", 78, uid=OTHER))  # somebody else's
    assert listening.stranger(node, "127.0.0.1", 8000) != ""


@pytest.mark.parametrize(
    ("bound", "asked", "reached"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("0.0.0.0", "127.0.0.1", True),
        ("::", "127.0.0.1", True),
        ("10.0.0.1", "127.0.0.1", False),
        ("127.0.0.1", "::1", False),
        ("0.0.0.0", "192.0.2.1", False),  # another machine's
        ("0.0.0.0", "a-name", False),
    ],
)
def test_who_is_reached(node, bound, asked, reached):
    size = 32 if ":" in bound else 8
    node.write("proc/net/tcp6" if size == 32 else "proc/net/tcp", HEAD + row(bound, 8000, "0A", 77, size=size))
    assert bool(listening.holders(node, asked, 8000)) == reached


def test_who_has_taken_a_port(node):
    assert listening.taken(node, "127.0.0.1", 8000) == ""  # nothing to be seen in /proc/net
    node.write("proc/net/tcp", HEAD + row("0.0.0.0", 8000, "0A", 77, uid=0))
    node.process(300, 77, "/system.slice/caddy.service", "caddy")
    assert listening.taken(node, "127.0.0.1", 8000) == "caddy (process 300, account root, caddy.service)"
