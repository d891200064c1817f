# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import Cable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import ufw
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import etc_hosts, secret
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File
from hypothesis import given
from hypothesis import strategies as st
from ssh_keys import ssh_key

KEY = ssh_key("a")
BLOB = KEY.split()[1]
OTHER = base64.b64encode(b"\0\0\0\7ssh-rsa" + base64.b64decode(BLOB)[15:]).decode()


@pytest.mark.parametrize(
    ("kind", "good"),
    [
        (strict.public_key, KEY),
        (strict.address, "10.0.0.1"),
        (strict.address, "fe80::1"),
        (strict.interface, "enP2p1s0f0np0"),
        (strict.interface, "br-0123456789ab"),
        (strict.interface, "eth0.100"),
        (strict.rdma_device, "roceP2p1s0f0"),
        (strict.host, "spark-1.lab"),
        (strict.host, "10.0.0.1"),
        (strict.mac, "48:21:0b:96:01:c0"),
        (strict.mac, ":".join(["00"] * 20)),
        (strict.guid, "4cbb:4703:002e:1007"),
        (strict.destination, "default"),
        (strict.destination, "fe80::/64"),
        (strict.word, "5:28.5.1-1~ubuntu.24.04~noble"),
        (strict.known_hosts, f"# ours\n[spark1]:2222,10.0.0.1 {KEY}\n"),
        (strict.switch, "mikrotik (CRS812)"),
    ],
)
def test_what_is_right_comes_in_as_it_is(kind: Callable[[Any], Any], good: str) -> None:
    assert kind(good) == good


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        (strict.public_key, f"{KEY} comment"),
        (strict.public_key, f"{KEY}\n{KEY}"),
        (strict.public_key, f"ssh-rsa {BLOB}"),
        (strict.public_key, f"ssh-ed25519 {OTHER}"),
        (strict.public_key, f"ssh-ed25519-cert-v01@openssh.com {BLOB}"),
        (strict.public_key, f"ssh-ed25519 {BLOB[:-4]}"),
        (strict.public_key, f'command="id" {KEY}'),
        (strict.public_key, "ssh-ed25519"),
        (strict.address, "fe80::1%eth0\n    ProxyCommand id"),
        (strict.address, "fe80::1%eth0"),
        (strict.address, "::ffff:10.0.0.1"),
        (strict.address, "FE80::1"),
        (strict.address, "10.0.0.1\n"),
        (strict.ipv4, "fe80::1"),
        (strict.interface, "eth0;id"),
        (strict.interface, "a" * 16),
        (strict.interface, ""),
        (strict.host, "-oProxyCommand=id"),
        (strict.host, "a b"),
        (strict.destination, "fe80::%x/64"),
        (strict.word, "a\n"),
        (strict.known_hosts, f"@cert-authority * {KEY}\n"),
        (strict.known_hosts, f"spark1 {KEY}\n* {KEY}\n"),
    ],
)
def test_what_is_wrong_is_quoted_and_harmless(kind: Callable[[Any], Any], bad: str) -> None:
    with pytest.raises(ValueError, match=r"^(is|has) ") as raised:
        kind(bad)
    assert str(raised.value).isprintable() and len(str(raised.value)) < 300


@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_any_text(text: str) -> None:
    """Of whatever comes in as a kind, nothing can begin a new line or be read as an option."""
    for kind in (strict.address, strict.interface, strict.rdma_device, strict.host, strict.word, strict.public_key):
        try:
            value = kind(text)
        except ValueError:
            continue
        assert value.isprintable() and value.isascii() and not set(value) & set("\"'`$\\#%;")
    assert strict.words(text).isprintable()
    assert strict.switch(strict.as_switch(text) or "x")


@pytest.mark.parametrize("sign", ["\n", "\r", "\0", "\x1b", "\x85", "\u2028"])
def test_writers_of_lines_take_one_line(sign: str) -> None:
    with pytest.raises(SparkError, match="control characters"):
        strict.lines(["fine", f"a{sign}b"], "/etc/x")
    with pytest.raises(SparkError, match="/etc/hosts"):
        etc_hosts.with_block("", [f"10.0.0.1 a{sign}10.0.0.2 b"], "x")
    with pytest.raises(SparkError, match="no firewall rule"):
        ufw.compare([], {"fabric": [f"allow from 10.0.0.1{sign}"]})
    assert not secret.usable("a" * 20 + sign)
    if sign != "\n":
        with pytest.raises(SparkError, match="control characters"):
            File.from_params({"path": "/etc/x", "content": f"a{sign}b\n"})
        with pytest.raises(ValueError, match=r"far_host is .*control characters"):
            document.load(Cable, {"cage": 0, "source": "lldp", "far_host": f"a{sign}"})


def test_an_address_with_a_zone_is_no_firewall_rule() -> None:
    with pytest.raises(SparkError, match="no address"):
        ufw.peer_rule("fe80::1%x from any")


def test_a_finding_does_nothing_to_a_terminal() -> None:
    assert str(Finding("a", "b\x1b[2J\rc", "d\nwide")) == "a: b?[2J?c. d\nwide."


def test_what_is_shown_does_nothing_to_a_terminal() -> None:
    assert strict.harmless("ä\ta\r\nb\x1b]52;c;Yg==\x07\x9b2J\r") == "ä\ta\nb\\x1b]52;c;Yg==\\x07\\x9b2J\\x0d"
