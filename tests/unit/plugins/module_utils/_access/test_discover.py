# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket
import threading

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
    assert [item.as_dict() for item in found] == [
        {"address": "192.168.1.2", "name": "", "banner": "SSH-2.0-OpenSSH_9.6", "likely": False}
    ]


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


def test_the_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lan_discover, "run", lambda argv, timeout_s: Completed(0, AVAHI))
    result, failed = run_module(lan_discover)
    assert not failed and len(result["candidates"]) == 3
    monkeypatch.setattr(lan_discover, "run", lambda argv, timeout_s: Completed(NOT_FOUND))
    result, failed = run_module(lan_discover)
    assert failed and "avahi-utils" in result["msg"]
    monkeypatch.setattr(lan_discover, "scan", lambda asked: [])
    assert run_module(lan_discover, {"cidr": "192.168.1.0/30"})[0]["candidates"] == []
