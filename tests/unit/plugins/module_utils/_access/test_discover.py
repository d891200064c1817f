# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import discover
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.modules import lan_discover
from module_runner import run_module

AVAHI = r"""+;eno1;IPv4;spark-1a2b;SSH Remote Terminal;local
=;eno1;IPv6;spark-1a2b;_ssh._tcp;local;spark-1a2b.local;fe80::1;22;
=;eno1;IPv4;spark-1a2b;_ssh._tcp;local;spark-1a2b.local;192.168.1.20;22;
=;wlan0;IPv4;spark-1a2b;_ssh._tcp;local;spark-1a2b.local;192.168.1.20;22;
=;eno1;IPv4;Ann\039s\032box;_ssh._tcp;local;ann\045s\.box.local;192.168.1.9;22;"model=x"
=;eno1;IPv4;gx10-77;_ssh._tcp;local;gx10-77.local;192.168.1.21;22;
torn;line
"""


def test_what_avahi_prints() -> None:
    found = discover.parse_avahi(AVAHI)
    assert [(item.address, item.name, item.likely) for item in found] == [
        ("192.168.1.9", "ann-s.box", False),
        ("192.168.1.21", "gx10-77", True),
        ("192.168.1.20", "spark-1a2b", True),
    ]
    assert discover.parse_avahi("") == []
    assert discover.parse_avahi('=;lo;IPv4;spark;_ssh._tcp;local;spark.local;127.0.0.1;22;""\n') == []


@pytest.mark.parametrize(
    ("name", "address", "kept"),
    [
        (r"spark-1\010      ansible_host\058 evil", "192.168.1.20", [""]),  # a line break, and a variable behind it
        (r"spark-1\032x", "192.168.1.20", [""]),
        ("{{ 7 * 7 }}", "192.168.1.20", [""]),
        ("-spark", "192.168.1.20", [""]),
        ("spark-1a2b.local", "192.168.1.20", ["spark-1a2b"]),
        ("spark-1", "192.168.1.20 -o ProxyCommand=x", []),
        ("spark-1", "fe80::1", []),
    ],
)
def test_what_anybody_may_announce(name: str, address: str, kept: list[str]) -> None:
    found = discover.parse_avahi(f'=;eth0;IPv4;spark;_ssh._tcp;local;{name};{address};22;""\n')
    assert [item.name for item in found] == kept


@pytest.mark.parametrize(
    ("cidr", "says"),
    [("home", "no IPv4 network"), ("8.8.8.0/24", "not a private one"), ("10.0.0.0/8", "more than 1024")],
)
def test_networks_that_are_not_asked(cidr: str, says: str) -> None:
    with pytest.raises(SparkError, match=says):
        discover.addresses(cidr)


def test_a_network_is_asked_address_by_address() -> None:
    said = {"192.168.1.2": "SSH-2.0-OpenSSH_9.6"}
    found = discover.scan(discover.addresses("192.168.1.0/29"), lambda address: said.get(address, ""))
    assert found == [discover.Candidate("192.168.1.2", banner="SSH-2.0-OpenSSH_9.6")]
    assert found[0].as_dict()["likely"] is False


@pytest.mark.parametrize(("says", "heard"), [(b"SSH-2.0-X\r\n", "SSH-2.0-X"), (b"HTTP/1.1 400\r\n", ""), (b"", "")])
def test_the_banner(says: bytes, heard: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _address = server.accept()
            with connection:
                connection.sendall(says)

        thread = threading.Thread(target=answer)
        thread.start()
        assert discover.banner("127.0.0.1", server.getsockname()[1]) == heard
        thread.join()
        port = server.getsockname()[1]
    assert discover.banner("127.0.0.1", port) == ""


# The key of a test, and the fingerprint that ssh-keygen -lf prints for it.
KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIEVKn7UdAGCDVTEIvgYWiFEl0qjTUqZzIDRYg4Nuk0O7"
FINGERPRINT = "SHA256:6TdwafL52qVd8XH32caUAGBHFo7TCZUA/BRK5DytPlg"
KEYS = f"""# 192.168.1.20:22 SSH-2.0-OpenSSH_9.6
192.168.1.20 ssh-rsa AAAAB3NzaC1yc2E=
192.168.1.20 ssh-ed25519 {KEY}
192.168.1.20 ssh-ed25519 no/base64*
192.168.1.20 ssh-dss AAAA
192.168.1.99 ssh-ed25519 {KEY}
torn
"""


def test_host_keys_are_read_and_the_best_one_is_shown() -> None:
    asked: list[Sequence[str]] = []

    def runner(argv: Sequence[str]) -> Completed:
        asked.append(argv)
        return Completed(0, KEYS)

    plain = [discover.Candidate("192.168.1.20", interface="eno1"), discover.Candidate("192.168.1.21")]
    seen, silent = discover.with_host_keys(plain, runner)
    assert asked == [("ssh-keyscan", "-T", "5", "-t", "ed25519,ecdsa,rsa", "192.168.1.20", "192.168.1.21")]
    assert (seen.fingerprint, seen.kind) == (FINGERPRINT, "ED25519")
    assert seen.known_hosts == ("192.168.1.20 ssh-rsa AAAAB3NzaC1yc2E=", f"192.168.1.20 ssh-ed25519 {KEY}")
    assert silent == discover.Candidate("192.168.1.21")
    assert discover.with_host_keys([], runner) == []
    with pytest.raises(SparkError, match="ssh-keyscan is not on this machine"):
        discover.with_host_keys(plain, lambda argv: Completed(NOT_FOUND))


def test_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(argv: Sequence[str], timeout_s: float = 0) -> Completed:
        asked.append(argv[0])
        return Completed(0, AVAHI if argv[0] == "avahi-browse" else KEYS)

    monkeypatch.setattr(lan_discover, "run", run)
    result, failed = run_module(lan_discover)
    assert not failed and asked == ["avahi-browse", "ssh-keyscan"]
    assert [bool(item["fingerprint"]) for item in result["candidates"]] == [False, False, True]
    monkeypatch.setattr(lan_discover, "run", lambda argv, timeout_s=0: Completed(NOT_FOUND))
    result, failed = run_module(lan_discover)
    assert failed and "avahi-utils" in result["msg"]
    monkeypatch.setattr(lan_discover, "scan", lambda asked: [])
    assert run_module(lan_discover, {"cidr": "192.168.1.0/30"})[0]["candidates"] == []
