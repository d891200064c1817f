# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What is refused before a machine is asked for anything."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Engine, Key, Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._gateway import checks as g

KEY = "abcdefghijklmnop"
TINY = Engine("chat", "tiny")
BGE = Engine("embedding", "bge-m3", "10.10.0.2", 8001, task="embed")
PLAIN = Settings(("192.0.2.1",), (TINY,))
SEVERAL = dataclasses.replace(PLAIN, engines=(TINY, BGE))


def wanted(**changes: Any) -> Settings:
    return dataclasses.replace(PLAIN, **changes)


def problems(settings: Settings) -> str:
    return " ".join(str(finding) for check in g.CHECKS for finding in check(settings))


def test_a_plain_gateway_is_accepted():
    assert problems(PLAIN) == ""
    assert problems(wanted(max_request_mib=200)) == ""
    # The port of an engine on another node is free here.
    assert problems(dataclasses.replace(SEVERAL, local_port=8001)) == ""
    assert (
        problems(wanted(listen=("lo", "::"), tls="own_ca", tls_names=("api.lab", "10.0.0.1"), allow_from=("10/8",)[:0]))
        == ""
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"listen": ("300.1.1.1",)}, "gateway_listen has '300.1.1.1'"),
        ({"port": 0}, "gateway_port is 0, expected 1 to 65535"),
        ({"port": 8000}, "gateway_port is 8000, the engine's own port"),
        ({"port": 9, "local_port": 9}, "gateway_port and gateway_local_port are both 9"),
        ({"keys": (Key("probe", ""),)}, "taken by the cluster's own probes"),
        ({"keys": (Key("A B", ""),)}, "gateway_keys has the name 'A B'"),
        ({"keys": (Key("a", "short"),)}, "the key of a in gateway_keys is shorter than 16"),
        (
            {
                "keys": (
                    Key("a", KEY),
                    Key("b", KEY),
                )
            },
            "two names in gateway_keys have the same key",
        ),
        ({"paths": ("/metrics",)}, "gateway_paths has '/metrics'"),
        ({"paths": ("/v1/load_lora_adapter",)}, "gateway_paths has '/v1/load_lora_adapter'"),
        ({"paths": ("/v1/a/../b",)}, "gateway_paths has '/v1/a/../b'"),
        ({"paths": ("/v1/a;b",)}, "gateway_paths has '/v1/a;b'"),
        ({"max_request_mib": 0}, "gateway_max_request_mib is 0, expected 1 to 1024"),
        ({"tls": "files"}, "gateway_tls has ''"),
        ({"tls_names": ("a b",)}, "gateway_tls_names has 'a b'"),
        ({"allow_from": ("x",)}, "gateway_allow_from has 'x'"),
        ({"allow_from": ("fe80::1% 0; } x",)}, "gateway_allow_from has 'fe80::1% 0; } x'"),
        ({"keys_per_address": -1}, "gateway_keys_per_address is -1, expected 0 to 1000"),
        ({"max_request_mib": 300}, "gateway_memory_mib is 1024, too little for two requests"),
        ({"hold": 3001}, "gateway_hold is 3001, expected 0 to 3000"),
        ({"engines": ()}, "there is no engine to lead to"),
        (
            {"engines": (TINY, dataclasses.replace(BGE, host="127.0.0.1")), "local_port": 8001},
            "gateway_local_port is 8001, the engine's own port",
        ),
        ({"engines": (TINY, Engine("b", "tiny"))}, "several engines have the model tiny"),
        ({"engines": (TINY, Engine("chat", "b"))}, "several engines have the name chat"),
        ({"engines": (Engine("A b", "tiny"),)}, "an engine has the name 'A b'"),
        ({"engines": (Engine("a", "tiny", "x;y"),)}, "the engine a is at 'x;y', port 8000, which is no address"),
        ({"engines": (Engine("a", "tiny", port=0),)}, "the engine a is at '127.0.0.1', port 0"),
    ],
)
def test_what_cannot_work_is_refused(changes, says):
    assert says in problems(wanted(**changes))


def test_a_problem_never_shows_a_key():
    assert "s$cret" not in problems(wanted(keys=(Key("a", "s$cret-of-somebody-else"),)))


def test_all_problems_come_at_once():
    assert problems(wanted(port=0, keys_per_address=-1, paths=("/x", "/y"))).count("gateway_") == 4


def test_options_as_they_are_written():
    engines = [{"name": "chat", "model": "tiny"}, {"name": "b", "model": "bge", "port": "8001", "key": "no"}]
    tls = {"certificate": "/c.pem", "key": "/k.pem"}
    settings, findings = g.read(
        {"listen": "lo", "port": "443", "engines": engines, "keys": [{"name": "a"}], "tls": tls}
    )
    assert settings is not None and not findings
    assert (settings.listen, settings.port, settings.keys) == (("lo",), 443, (Key("a"),))
    assert (settings.tls, settings.certificate_paths) == ("files", ("/c.pem", "/k.pem"))
    assert [(engine.key, engine.port) for engine in settings.engines] == [(True, 8000), (False, 8001)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"port": "x"}, "port"),
        ({"keys": ["secret-of-alice"]}, "gateway_keys is no list of {name, key}"),
        ({"keys": [{"key": "secret-of-alice"}]}, "gateway_keys is no list"),
        ({"tls": "acme"}, "gateway.tls is 'acme', expected one of"),
        ({"tls": {"certificate": "/etc/x/cert.pem"}}, "gateway_tls is no mapping of certificate and key"),
        ({"tsl": "off"}, "tsl"),
    ],
)
def test_options_of_another_shape(options, says):
    settings, findings = g.read({"engines": [], **options})
    text = " ".join(map(str, findings))
    assert settings is None and says in text and "secret-of-alice" not in text


def test_two_keys_of_one_name():
    assert "gateway_keys has a more than once" in problems(wanted(keys=(Key("a"), Key("a", KEY))))
