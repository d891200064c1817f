# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The files of the gateway, as the templates of its role make them."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, document, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.relay_config import Config
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Engine, Key, Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._gateway import checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._gateway import render as g

TEXTS = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"]
UNIT = f"{paths.UNITS}/{names.UNIT}"
TINY = Engine("chat", "tiny")
BGE = Engine("embedding", "bge-m3", "10.10.0.2", 8001, task="embed")
PLAIN = Settings(("192.0.2.1",), (TINY,), tls="off")
SEVERAL = dataclasses.replace(PLAIN, engines=(TINY, BGE))


def wanted(**changes: Any) -> Settings:
    return dataclasses.replace(PLAIN, **changes)


def test_the_configuration_opens_the_listed_paths_only():
    text = g.nginx_conf(wanted(paths=("/v1/models",)))
    assert re.findall(r"location (\S+ ?\S*) \{", text).count("= /v1/models") == 1
    assert re.findall(r"proxy_pass (\S+);", text) == ["http://relay/v1/models"]
    # No location hands the client's own spelling of a path to the engine.
    assert all(target.count("/") > 2 for target in re.findall(r"proxy_pass (\S+);", text))


def test_every_open_path_asks_for_a_key():
    text = g.nginx_conf(PLAIN)
    blocks = re.findall(r"location = (/v1/\S+) \{(.*?)\n        \}", text, re.S)
    assert [name for name, _body in blocks] == list(Settings().paths)
    assert all('if ($gateway_client = "")' in body for _name, body in blocks)


def test_everything_that_is_let_in_goes_to_the_relay():
    text = g.nginx_conf(SEVERAL)
    assert g.nginx_conf(PLAIN) == text, "nginx does not know engines"
    assert text.count("proxy_pass http://relay/") == len(Settings().paths)
    assert text.count(f"server unix:{names.RELAY_SOCKET} max_fails=0;") == 16  # tried again while it is started anew
    assert "proxy_next_upstream error non_idempotent;" in text
    for field in ("Authorization", "X-Api-Key", "X-Forwarded-For"):
        assert f'proxy_set_header {field} "";' in text
    assert "proxy_set_header X-Sparkmatrix-Client $gateway_client;" in text


def test_a_key_may_be_shown_as_either_api_has_it():
    text = g.nginx_conf(PLAIN)
    assert text.index("map $http_authorization $gateway_shown") < text.index("keys.conf")
    assert '"" "Bearer $http_x_api_key";' in text


def test_limits_can_be_switched_off():
    text = g.nginx_conf(wanted(requests_per_minute=0, concurrent_requests=0))
    assert "zone=requests" not in text and "limit_conn streams" not in text


def test_who_may_come_in_is_decided_before_keys_and_limits():
    text = g.nginx_conf(wanted(allow_from=("192.0.2.7/24", "2001:db8::1", "192.0.2.0/24")))
    listed = re.search(r"geo \$gateway_refused \{(.*?)\}", text, re.S)
    assert listed
    assert [line.strip() for line in listed[1].strip().splitlines()] == [
        "default 1;",
        "127.0.0.0/8 0;",  # probes
        "::1/128 0;",
        "192.0.2.0/24 0;",
        "2001:db8::1/128 0;",
    ]
    # At the server, where nginx looks before it chooses a location, and so before it looks at a key or counts.
    assert re.search(r"listen\.conf;\n +if \(\$gateway_refused\) \{\n +return 403 ", text)
    assert "gateway_refused" not in g.nginx_conf(PLAIN)


def test_an_address_has_limits_whatever_its_keys():
    text = g.nginx_conf(wanted(keys_per_address=3, requests_per_minute=50, concurrent_requests=5))
    assert "limit_req_zone $gateway_address zone=address_requests:10m rate=150r/m;" in text
    assert "limit_conn address_streams 15;" in text
    # Right keys at the server, wrong ones where they end: a location with limits of its own has none of the server.
    assert text.count("limit_req zone=address_requests burst=300 nodelay;") == 2
    refused = re.search(r"location = /\.sparkmatrix/unauthorized \{(.*?)\n        \}", text, re.S)
    assert refused and "address_requests" in refused[1]
    assert "limit_conn address_streams 65535;" in g.nginx_conf(wanted(concurrent_requests=65535))
    assert "zone=address" not in g.nginx_conf(wanted(keys_per_address=0))
    off = g.nginx_conf(wanted(requests_per_minute=0, concurrent_requests=0))
    assert "address_requests" not in off and "address_streams" not in off


@pytest.mark.parametrize(("settings", "together", "one_key"), [(PLAIN, 64, 32), (wanted(max_request_mib=100), 5, 2)])
def test_large_requests_have_a_limit_in_memory(settings, together, one_key):
    text = g.nginx_conf(settings)
    assert f"limit_conn all_large {together};" in text and f"limit_conn large {one_key};" in text


@pytest.mark.parametrize(
    ("client", "length", "encoding", "large"),
    [
        ("alice", "999999", "", False),
        ("alice", "1000000", "", True),
        ("alice", "", "chunked", True),
        ("alice", "", "", False),
        ("", "1000000", "", False),  # nobody's: it is not read
        ("", "", "chunked", False),
    ],
)
def test_which_requests_are_large(client, length, encoding, large):
    found = re.search(r'"~(\S+)" \$gateway_client;', g.nginx_conf(PLAIN))
    assert found and bool(re.search(found[1], f"{client}:{length}:{encoding}")) is large


def test_tls_is_there_unless_it_is_switched_off():
    text = g.nginx_conf(Settings(("192.0.2.1",), (TINY,)))
    assert "ssl_certificate " in text and "error_page 497 = @plain;" in text
    assert "ssl" not in g.nginx_conf(PLAIN) and "497" not in g.nginx_conf(PLAIN)


@pytest.mark.parametrize("text", ["it's", "costs $1", "a\\b"])
def test_messages_that_nginx_would_read_differently(text):
    with pytest.raises(ValueError, match="read differently"):
        g.error(text, "x", "y")


def relayed(settings: Settings) -> Config:
    return document.load(Config, json.loads(g.files(settings)[names.RELAY_CONFIG]))


def test_the_relay_is_told_its_engines():
    made = relayed(dataclasses.replace(SEVERAL, engines=(BGE, Engine("q", 'it\'s "q"')), hold=30))
    assert [(one.name, one.model, one.service) for one in made.engines] == [
        ("embedding", "bge-m3", "embedding"),
        ("q", 'it\'s "q"', "q"),
    ]
    assert (made.engines[0].host, made.engines[0].port) == ("10.10.0.2", 8001)
    assert [list(one.refusals) for one in made.engines] == [TEXTS, ["/v1/embeddings"]]
    assert (made.hold_s, made.hold_mib, made.max_request_mib) == (30, 256, 8)
    assert relayed(PLAIN).engines[0].service == "", "one that is alone has the plain names"
    assert not any(one.key for one in made.engines), "keys are the node's to add"


def test_the_relay_is_told_who_may_switch_and_who_shares():
    """What a path is for is another question for each model that may be loaded."""
    keys = (Key("alice"), Key("batch", switch=False))
    chat, generates = "/v1/chat/completions", api_paths.PROMPTS
    one = Engine("chat", "tiny", named=("bge",), salted=(chat,))
    made = relayed(wanted(engines=(one,), keys=keys))
    (told,) = made.engines
    assert (made.bound, told.named, told.salted, made.salt) == (("batch",), True, (chat,), "")
    assert set(told.refusals) == {*generates} - {chat}, "several clients would share there"
    assert all(f"Use {chat}." in text for text in told.refusals.values())
    assert not relayed(wanted(engines=(one,), keys=keys[:1])).engines[0].refusals, "one client shares with nobody"
    assert relayed(PLAIN).bound == ()


def test_the_units_of_the_relay():
    made = g.files(PLAIN, "a-tool")
    unit, socket = (made[f"{paths.UNITS}/{name}"] for name in reversed(names.RELAY_UNITS))
    assert f"SocketUser={names.USER}\n" in socket and "SocketMode=0600\n" in socket
    assert (
        f"User={names.RELAY_USER}\n" in unit and "ProtectSystem=strict\n" in unit and "CapabilityBoundingSet=\n" in unit
    )
    mark = re.compile(r"^Environment=SPARKMATRIX_CONFIG_HASH=(\w+)$", re.M)
    assert mark.findall(unit) != mark.findall(g.files(PLAIN, "another-tool")[f"{paths.UNITS}/{names.RELAY_UNITS[1]}"])
    assert f"Requires={names.RELAY}.socket\n" in made[UNIT]


@pytest.mark.parametrize(
    ("task", "closed", "says"),
    [
        ("generate", ["/v1/embeddings"], "This model makes no embeddings. It makes text: use /v1/chat/completions, "),
        (
            "embed",
            TEXTS,
            "It makes embeddings: use /v1/embeddings.",
        ),
        (
            "rank",
            ["/v1/embeddings", *TEXTS],
            "It makes scores: use /v1/",
        ),
    ],
)
def test_a_path_that_is_not_for_the_model_says_so(task, closed, says):
    refusals = relayed(wanted(engines=(Engine("one", "m", task=task),))).engines[0].refusals
    assert sorted(refusals) == sorted(closed)
    assert all(says in text for text in refusals.values())


def test_sound_may_be_sent_where_its_path_is_opened():
    path = "/v1/audio/transcriptions"
    assert f"location = {path} " not in g.nginx_conf(PLAIN)
    opened = g.nginx_conf(wanted(paths=(*Settings().paths, path)))
    block = re.search(rf"location = {path} \{{(.*?)\n        \}}", opened, re.S)
    assert block and "proxy_pass" in block[1]
    assert list(checks.check_paths(wanted(paths=(path,)))) == []


def test_only_open_paths_are_named():
    narrow = wanted(paths=("/v1/embeddings",), engines=(TINY,))
    assert g.refusals(narrow, TINY) == {"/v1/embeddings": "This model makes no embeddings. It makes text."}
    units = {f"{paths.UNITS}/{name}" for name in names.RELAY_UNITS}
    assert set(g.files(PLAIN)) == {f"{names.ETC}/nginx.conf", names.RELAY_CONFIG, UNIT, *units}


def test_what_the_gateway_answers_itself_is_json():
    said = re.findall(r"return (\d+) '(.*)';", g.nginx_conf(wanted(tls="own_ca", allow_from=("192.0.2.0/24",))))
    assert {int(status) for status, _body in said} == {400, 401, 403, 404, 413, 429, 503, 504}
    for _status, body in said:
        assert json.loads(body)["type"] == "error"  # for Anthropic's clients
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


def test_every_block_of_the_configuration_is_closed():
    limitless = wanted(tls="own_ca", allow_from=("::/0",), requests_per_minute=0, concurrent_requests=0)
    for settings in (PLAIN, SEVERAL, limitless):
        text = re.sub(r"'[^']*'|\"[^\"]*\"|#.*", "", g.nginx_conf(settings))
        assert text.count("{") == text.count("}") and "{%" not in text
        assert all(line.strip()[-1:] in ("", ";", "{", "}") for line in text.splitlines())


def test_a_gateway_that_was_killed_is_back_before_clients_give_up():
    """OpenAI's and Anthropic's connect again after half a second and a second, less a quarter."""
    assert float(re.search(r"^RestartSec=(.+)$", g.unit(PLAIN), re.M)[1]) < 0.75 * (0.5 + 1.0)


def test_the_unit_tells_what_it_was_made_of():
    text, other = g.unit(PLAIN), g.unit(wanted(port=443))
    mark = re.compile(r"SPARKMATRIX_UNIT=([0-9a-f]{12});")
    assert mark.findall(text) and mark.findall(text) != mark.findall(other)
    assert "CAP_NET_BIND_SERVICE" in other and "CAP_NET_BIND_SERVICE" not in text
    assert "install" not in text


def test_certificates_of_others_are_copied_and_watched():
    made = g.files(wanted(tls="files", tls_certificate="/etc/x/cert.pem", tls_certificate_key="/etc/x/key.pem"))
    assert made[UNIT].count("/etc/x/key.pem /run/sparkmatrix-gateway/tls.key") == 2
    assert f"Wants={names.WATCH}.path\n" in made[UNIT] and names.WATCH not in g.unit(PLAIN)
    path = made[f"{paths.UNITS}/{names.WATCH}.path"]
    assert "PathChanged=/etc/x/cert.pem\nPathChanged=/etc/x\n" in path and f"PartOf={names.UNIT}" in path
    assert f"reload {names.UNIT}" in made[f"{paths.UNITS}/{names.WATCH}.service"]
