# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of the door, and what is refused before there are any."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import nginx as g
from hypothesis import given
from hypothesis import strategies as st

KEY = "abcdefghijklmnop"
TINY = g.Engine("chat", "tiny")
BGE = g.Engine("embedding", "bge-m3", "10.10.0.2", 8001, task="embed")
DOOR = g.Door(("192.0.2.1",), (TINY,))
SEVERAL = dataclasses.replace(DOOR, engines=(TINY, BGE))
NETWORK = {"lo": ["127.0.0.1", "::1"], "enP7s7": ["192.0.2.1", "2001:db8::1"], "enp1s0f0np0": []}


def door(**changes: Any) -> g.Door:
    return dataclasses.replace(DOOR, **changes)


def conf(wanted: g.Door) -> str:
    return g.nginx_conf(wanted, g.resolve(wanted, NETWORK), "abc")


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


def test_a_plain_door_is_accepted():
    assert g.problems(DOOR) == []
    # The port of an engine on another node is free here.
    assert g.problems(dataclasses.replace(SEVERAL, local_port=8001)) == []
    assert (
        g.problems(door(listen=("lo", "::"), tls="own_ca", tls_names=("api.lab", "10.0.0.1"), allow_from=("10/8",)[:0]))
        == []
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"listen": ("300.1.1.1",)}, "gateway_listen has '300.1.1.1'"),
        ({"port": 0}, "gateway_port is 0, expected 1 to 65535"),
        ({"port": 8000}, "gateway_port is 8000, the engine's own port"),
        ({"port": 9, "local_port": 9}, "gateway_port and gateway_local_port are both 9"),
        ({"keys": {"probe": ""}}, "taken by the cluster's own probes"),
        ({"keys": {"A B": ""}}, "gateway_keys has the name 'A B'"),
        ({"keys": {"a": "short"}}, "the key of a in gateway_keys is shorter than 16"),
        ({"keys": {"a": KEY, "b": KEY}}, "two names in gateway_keys have the same key"),
        ({"paths": ("/metrics",)}, "gateway_paths has '/metrics'"),
        ({"paths": ("/v1/load_lora_adapter",)}, "gateway_paths has '/v1/load_lora_adapter'"),
        ({"paths": ("/v1/a/../b",)}, "gateway_paths has '/v1/a/../b'"),
        ({"paths": ("/v1/a;b",)}, "gateway_paths has '/v1/a;b'"),
        ({"max_request_mib": 0}, "gateway_max_request_mib is 0, expected 1 to 1024"),
        ({"timeout_s": 1}, "gateway_timeout_s is 1, expected 60 to 86400"),
        ({"tls": "both"}, "gateway_tls is 'both', expected one of off, own_ca, files"),
        ({"tls": "files"}, "gateway_tls_certificate is ''"),
        ({"tls_names": ("a b",)}, "gateway_tls_names has 'a b'"),
        ({"allow_from": ("x",)}, "gateway_allow_from has 'x'"),
        ({"engines": ()}, "there is no engine to lead to"),
        (
            {"engines": (TINY, dataclasses.replace(BGE, host="127.0.0.1")), "local_port": 8001},
            "gateway_local_port is 8001, the engine's own port",
        ),
        ({"engines": (TINY, g.Engine("b", "tiny"))}, "several engines have the model tiny"),
        ({"engines": (TINY, g.Engine("chat", "b"))}, "several engines have the name chat"),
        ({"engines": (g.Engine("A b", "tiny"),)}, "an engine has the name 'A b'"),
        ({"engines": (g.Engine("a", "tiny", "x;y"),)}, "the engine a is at 'x;y', port 8000, which is no address"),
        ({"engines": (g.Engine("a", "tiny", port=0),)}, "the engine a is at '127.0.0.1', port 0"),
    ],
)
def test_what_cannot_work_is_refused(changes, says):
    assert says in " ".join(g.problems(door(**changes)))


def test_a_problem_never_shows_a_key():
    assert "s$cret" not in " ".join(g.problems(door(keys={"a": "s$cret-of-somebody-else"})))


def test_all_problems_come_at_once():
    assert len(g.problems(door(port=0, timeout_s=1, paths=("/x", "/y")))) == 4


def test_two_keys_of_one_name():
    params = {"keys": [{"name": "a"}, {"name": "a", "key": KEY}]}
    with pytest.raises(SparkError, match="gateway_keys has a more than once"):
        g.door(params)


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
    assert [item.where for item in g.resolve(door(listen=listen), NETWORK)] == expected


def test_only_the_outer_listeners_have_tls():
    assert [item.tls for item in g.resolve(door(listen=("enP7s7",), tls="own_ca"), NETWORK)] == [False, True, True]


def test_addresses_that_are_not_there_are_all_named():
    with pytest.raises(SparkError) as caught:
        g.resolve(door(listen=("enp1s0f0np0", "wlan0", "192.0.2.9")), NETWORK)
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
    assert g.interfaces({"not": "a list"}) == {}


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
    wanted = door(**changes)
    assert g.firewall(g.resolve(wanted, NETWORK), wanted.allow_from) == expected


def test_keys_in_the_open_are_warned_of():
    wide = door(listen=("enP7s7",))
    assert "without TLS" in g.warnings(wide, g.resolve(wide, NETWORK))[0]
    for quiet in (door(listen=("lo",)), door(listen=("enP7s7",), tls="own_ca")):
        assert g.warnings(quiet, g.resolve(quiet, NETWORK)) == []


def test_the_configuration_opens_the_listed_paths_only():
    text = conf(door(paths=("/v1/models",)))
    assert re.findall(r"location (\S+ ?\S*) \{", text).count("= /v1/models") == 1
    assert re.findall(r"proxy_pass (\S+);", text) == ["http://engine/v1/models"]
    # No location hands the client's own spelling of a path to the engine.
    assert all(target.count("/") > 2 for target in re.findall(r"proxy_pass (\S+);", text))


def test_every_open_path_asks_for_a_key():
    text = conf(DOOR)
    blocks = re.findall(r"location = (/v1/\S+) \{(.*?)\n        \}", text, re.S)
    assert [name for name, _body in blocks] == list(g.PATHS)
    assert all('if ($gateway_client = "")' in body for _name, body in blocks)


def test_one_engine_needs_no_look_into_requests():
    text = conf(DOOR)
    for part in ("load_module", "js_", "@engine0", "$uri$is_args"):
        assert part not in text
    assert text.count("proxy_pass") == len(g.PATHS)
    assert f"include {g.ETC}/engine-key-chat.conf;" in text


def test_several_engines_are_told_apart_by_the_script():
    text = conf(SEVERAL)
    assert text.index("load_module") < text.index("events")
    blocks = dict(re.findall(r"location = (/v1/\S+) \{(.*?)\n        \}", text, re.S))
    assert list(blocks) == list(g.PATHS)
    for path, body in blocks.items():
        assert 'if ($gateway_client = "")' in body and "proxy_pass" not in body
        assert f"js_content route.{'models' if path == '/v1/models' else 'pick'};" in body
    assert "upstream engine1 { server 10.10.0.2:8001 max_fails=0; }" in text
    for number, engine in enumerate(SEVERAL.engines):
        own = re.findall(rf"location (@engine{number}|= \S+/models/{number}) \{{(.*?)\n        \}}", text, re.S)
        assert len(own) == 2
        assert all(f"engine-key-{engine.name}.conf" in body for _name, body in own)
        assert "internal;" in own[1][1] and "proxy_pass_request_body off;" in own[1][1]
    assert text.count("engine-key-") == 4  # none at the server, where it would go to both


def test_the_script_has_the_models_in_the_order_of_the_engines():
    text = g.route_js(dataclasses.replace(SEVERAL, engines=(BGE, g.Engine("q", 'it\'s "q"\u2028'))))
    assert 'const MODELS = ["bge-m3", "it\'s \\"q\\"\\u2028"];' in text
    assert "@MODELS@" not in text and "@INSIDE@" not in text
    assert "const INSIDE = '/.sparkmatrix/models/';" in text


def test_the_key_of_a_client_never_goes_to_an_engine():
    assert 'Authorization "Bearer secret";' in g.engine_key_conf("secret")
    assert 'Authorization "";' in g.engine_key_conf("")


def test_limits_can_be_switched_off():
    text = conf(door(requests_per_minute=0, concurrent=0))
    assert "zone=requests" not in text and "limit_conn streams" not in text
    assert "limit_req zone=requests nodelay" not in conf(door(burst=0))
    assert "limit_req zone=requests;" in conf(door(burst=0))


def test_an_engine_with_an_ipv6_address():
    assert "server [::1]:8000 " in conf(door(engines=(g.Engine("chat", "tiny", "::1"),)))


@given(st.text(alphabet="abcXYZ019._~+/=-", min_size=16, max_size=60), st.text(min_size=0, max_size=60))
def test_a_key_matches_itself_and_nothing_else(key, other):
    line = re.search(r'"~(.*)" alice;', g.keys_conf({"alice": key}))
    assert line
    assert re.search(line[1], f"Bearer {key}")
    assert bool(re.search(line[1], f"Bearer {other}")) == (other == key) or other == f"{key}\n"


def test_a_key_that_is_not_there_yet_opens_nothing():
    assert "alice" not in g.keys_conf({"alice": ""})


@pytest.mark.parametrize("text", ["it's", "costs $1", "a\\b"])
def test_messages_that_nginx_would_read_differently(text):
    with pytest.raises(ValueError, match="read differently"):
        g.error(text, "x", "y")


def test_what_the_door_says_is_json():
    for status, _header, body in g.answers(DOOR).values():
        assert 400 <= status < 600
        assert set(json.loads(body.strip("'"))["error"]) == {"message", "type", "param", "code"}


def test_the_unit_tells_what_it_was_made_of():
    text, other = g.unit_text(DOOR), g.unit_text(door(port=443))
    assert g.unit_mark(text) and g.unit_mark(text) != g.unit_mark(other)
    assert "CAP_NET_BIND_SERVICE" in other and "CAP_NET_BIND_SERVICE" not in text
    assert g.unit_mark("nginx: master process") == ""
    assert "install" not in text


def test_certificates_of_others_are_copied_and_watched():
    wanted = door(tls="files", certificate="/etc/x/cert.pem", certificate_key="/etc/x/key.pem")
    text = g.unit_text(wanted)
    assert text.count("/etc/x/key.pem /run/sparkmatrix-gateway/tls.key") == 2
    assert "PathChanged=/etc/x/cert.pem\nPathChanged=/etc/x\n" in g.watch_units(wanted)[f"{g.WATCH}.path"]
    assert f"Wants=network-online.target {g.WATCH}.path\n" in text
    assert g.watch_units(DOOR) == {} and g.WATCH not in g.unit_text(DOOR)


def test_names_of_the_certificate():
    wanted = door(listen=("enP7s7", "::"), tls="own_ca", tls_names=("api.lab",))
    names = g.certificate_names(wanted, g.resolve(wanted, NETWORK), "Spark1")
    assert names == ["spark1", "api.lab", "localhost", "127.0.0.1", "192.0.2.1", "2001:db8::1"]
    assert "IP:192.0.2.1" in g.openssl_conf(names) and "DNS:api.lab" in g.openssl_conf(names)
    assert g.certificate_names(wanted, [], "not a name") == ["api.lab", "localhost"]


def test_the_description_is_one_that_the_probe_reads(tmp_path):
    wanted = door(listen=("enP7s7",), tls="own_ca")
    document = json.loads(g.description(wanted, g.resolve(wanted, NETWORK)))
    assert document["endpoints"] == ["https://192.0.2.1:8443/v1", "https://[2001:db8::1]:8443/v1"]
    assert (document["host"], document["port"], document["model"]) == ("127.0.0.1", 8081, "tiny")
    assert (document["models"], document["task"]) == (["tiny"], "generate")
    assert json.loads(g.description(SEVERAL, []))["models"] == ["tiny", "bge-m3"]
    only = door(listen=())
    assert json.loads(g.description(only, g.resolve(only, NETWORK)))["endpoints"] == ["http://127.0.0.1:8081/v1"]
