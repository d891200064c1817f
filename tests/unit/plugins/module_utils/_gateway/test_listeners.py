# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Where the gateway listens, and what a firewall has to open for it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import listeners as g
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Engine, Settings

PLAIN = Settings(("192.0.2.1",), (Engine("chat", "tiny"),))
NETWORK = {"lo": ["127.0.0.1", "::1"], "enP7s7": ["192.0.2.1", "2001:db8::1"], "enp1s0f0np0": []}


def wanted(**changes: Any) -> Settings:
    return dataclasses.replace(PLAIN, **changes)


@pytest.mark.parametrize(
    ("one", "other", "collide"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("127.0.0.1", "10.0.0.1", False),
        ("0.0.0.0", "10.0.0.1", True),
        ("::", "10.0.0.1", True),
        ("10.0.0.1", "::", True),
        ("::1", "127.0.0.1", False),
        ("fd00::1", "fd00::1", True),
    ],
)
def test_sockets_of_one_port(one: str, other: str, collide: bool) -> None:
    assert g.collide(one, other) is g.collide(other, one) is collide


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ((), ["127.0.0.1:8081"]),
        (("enP7s7",), ["127.0.0.1:8081", "192.0.2.1:8443", "[2001:db8::1]:8443"]),
        (("192.0.2.1", "enP7s7"), ["127.0.0.1:8081", "192.0.2.1:8443", "[2001:db8::1]:8443"]),
        (("0.0.0.0",), ["127.0.0.1:8081", "0.0.0.0:8443"]),
        (("::",), ["127.0.0.1:8081", "[::]:8443"]),
    ],
)
def test_listeners(listen, expected):
    assert [item.where for item in g.resolve(wanted(listen=listen), NETWORK)] == expected


def test_only_the_outer_listeners_have_tls_and_have_it_unless_it_is_switched_off():
    assert [item.tls for item in g.resolve(wanted(listen=("enP7s7",)), NETWORK)] == [False, True, True]
    assert [item.tls for item in g.resolve(wanted(listen=("enP7s7",), tls="off"), NETWORK)] == [False, False, False]


def test_addresses_that_are_not_there_are_all_named():
    with pytest.raises(SparkError) as caught:
        g.resolve(wanted(listen=("enp1s0f0np0", "wlan0", "192.0.2.9")), NETWORK)
    for part in (
        "interface enp1s0f0np0 has no address",
        "wlan0 is not there (there are enP7s7, ",
        "no address 192.0.2.9",
    ):
        assert part in str(caught.value)


def test_addresses_of_the_node():
    links = [
        {"ifname": "lo", "addr_info": [{"local": "127.0.0.1", "scope": "host"}]},
        {
            "ifname": "enP7s7",
            "addr_info": [
                {"local": "192.0.2.1", "scope": "global"},
                {"local": "fe80::1", "scope": "link"},
                {"local": "2001:db8::2", "scope": "global", "deprecated": True},
            ],
        },
        {},
    ]
    assert g.interfaces(links) == {"lo": ["127.0.0.1"], "enP7s7": ["192.0.2.1"]}
    assert g.interfaces([{"ifname": "lo", "addr_info": ["odd", None]}]) == {"lo": []}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"listen": ("lo",)}, []),
        ({}, ["allow to 192.0.2.1 port 8443 proto tcp"]),
        ({"listen": ("0.0.0.0",)}, ["allow 8443/tcp"]),
        (
            {"allow_from": ("10.0.0.0/8", "192.0.2.7", "2001:db8::/32")},
            [
                "allow from 10.0.0.0/8 to 192.0.2.1 port 8443 proto tcp",
                "allow from 192.0.2.7 to 192.0.2.1 port 8443 proto tcp",
            ],
        ),
        ({"listen": ("0.0.0.0",), "allow_from": ("10.1.2.3/8",)}, ["allow from 10.0.0.0/8 to any port 8443 proto tcp"]),
    ],
)
def test_firewall(changes, expected):
    settings = wanted(**changes)
    assert g.firewall(g.resolve(settings, NETWORK), settings.allow_from) == expected


def test_keys_in_the_open_are_warned_of():
    wide = wanted(listen=("enP7s7",), tls="off")
    assert "without TLS" in g.warnings(wide, g.resolve(wide, NETWORK))[0]
    for quiet in (wanted(listen=("lo",), tls="off"), wanted(listen=("enP7s7",))):
        assert g.warnings(quiet, g.resolve(quiet, NETWORK)) == []


def test_what_nginx_includes():
    text = g.conf(g.resolve(wanted(listen=("enP7s7",), tls="own_ca"), NETWORK))
    assert text.splitlines()[1:] == [
        "listen 127.0.0.1:8081;",
        "listen 192.0.2.1:8443 ssl;",
        "listen [2001:db8::1]:8443 ssl;",
    ]


def test_where_clients_reach_it():
    settings = wanted(listen=("enP7s7",), tls="own_ca")
    addresses = ["https://192.0.2.1:8443/v1", "https://[2001:db8::1]:8443/v1"]
    assert g.endpoints(settings, g.resolve(settings, NETWORK), "Spark1") == addresses
    named = dataclasses.replace(settings, tls_names=("*.lab.example", "api.lab.example"))
    assert g.endpoints(named, g.resolve(named, NETWORK), "Spark1") == ["https://api.lab.example:8443/v1", *addresses]
    only = wanted(listen=())
    assert g.endpoints(only, g.resolve(only, NETWORK), "Spark1") == ["http://127.0.0.1:8081/v1"]


def test_an_address_that_means_all_is_not_shown_to_clients():
    everywhere = wanted(listen=("0.0.0.0", "::"), tls="own_ca")
    listeners = g.resolve(everywhere, NETWORK)
    assert g.endpoints(everywhere, listeners, "Spark1") == ["https://spark1.local:8443/v1"]
    named = dataclasses.replace(everywhere, tls_names=("api.lab.example",))
    assert g.endpoints(named, listeners, "Spark1") == ["https://api.lab.example:8443/v1"]
