# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The gateway as a client on another machine meets it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import ssl
import statistics
import threading
import time

import pytest
import testinfra

PORT = 8443
ETC = "/etc/sparkmatrix/gateway"
PATHS = {"tiny": "/v1/chat/completions", "embed": "/v1/embeddings"}
PROMPT = [{"role": "user", "content": "hello"}]


class Gateway:
    """HTTP to the gateway of a node, with the role's own authority as the only one that is trusted."""

    def __init__(self, host):
        self.host = host
        self.address = next(address for address in host.interface("enP7s7").addresses if "." in address)
        self.context = ssl.create_default_context(cadata=host.file(f"{ETC}/tls/ca.crt").content_string)
        self.keys = {name: host.file(f"{ETC}/keys/{name}.key").content_string.strip() for name in ("alice", "bob")}

    def connect(self):
        return http.client.HTTPSConnection(self.address, PORT, timeout=20, context=self.context)

    def ask(self, path="/v1/models", body=None, key="alice", **headers):
        """Status, headers and the JSON of an answer; ``key`` is a name, or what is sent after Authorization."""
        connection = self.connect()
        sent = {"Content-Type": "application/json", **headers}
        if key is not None:
            sent["Authorization"] = f"Bearer {self.keys[key]}" if key in self.keys else key
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST" if body is not None else "GET", path, content, sent)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        assert response.headers["Content-Type"].startswith("application/json"), text
        return response.status, response.headers, json.loads(text)

    def stream(self, tokens, key="alice", model="tiny", until=None, prompt=PROMPT):
        """(seconds since the start, line) of each line of a streamed answer, which ends no sooner than a file comes."""
        connection, started = self.connect(), time.monotonic()
        body = {"model": model, "messages": prompt, "stream": True, "max_tokens": tokens, "until": until}
        headers = {"Authorization": f"Bearer {self.keys[key]}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        while line := response.readline():
            if line.strip():
                yield time.monotonic() - started, line.decode().strip()
        connection.close()


@pytest.fixture(scope="module")
def gateway(host):
    return Gateway(host)


def test_a_key_opens_it_and_the_engine_never_sees_it(gateway):
    status, headers, document = gateway.ask(**{"X-Forwarded-For": "1.2.3.4"})
    assert status == 200
    assert headers["Server"] == "nginx"
    seen = json.dumps(document["data"])
    assert gateway.keys["alice"] not in seen and "1.2.3.4" not in seen
    assert [(one["id"], one["seen"]["authorization"].split("-")[4]) for one in document["data"]] == [
        ("tiny", "chat"),
        ("tiny-lora", "chat"),
        ("embed", "embedding"),
        ("embed-lora", "embedding"),
    ]
    assert gateway.ask("/v1/models?limit=1", key="bob")[0] == 200


@pytest.mark.parametrize(
    "key",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Bearer {alice}x",
        "Bearer x{alice}",
        "Bearer {ALICE}",
        "Basic {alice}",
        "{alice}",
    ],
)
def test_other_keys_do_not(gateway, key):
    sent = key and key.format(alice=gateway.keys["alice"], ALICE=gateway.keys["alice"].swapcase())
    status, headers, document = gateway.ask(key=sent)
    assert (status, document["error"]["code"]) == (401, "invalid_api_key")
    assert headers["WWW-Authenticate"] == "Bearer"


def test_a_key_may_be_shown_as_anthropics_clients_do(gateway):
    alice = gateway.keys["alice"]
    assert gateway.ask(key=None, **{"X-Api-Key": alice})[0] == 200
    assert gateway.ask(key=None, **{"X-Api-Key": f"{alice}x"})[0] == 401
    assert gateway.ask(key="Bearer wrong", **{"X-Api-Key": alice})[0] == 401
    seen = json.dumps(gateway.ask(key=None, **{"X-Api-Key": alice})[2])
    assert alice not in seen


def test_a_given_key_is_taken_literally(gateway):
    assert gateway.keys["bob"] == "key-that-bob-gave-us-1+2.3"
    assert gateway.ask(key="Bearer key-that-bob-gave-us-1+2x3")[0] == 401
    assert gateway.ask(key="Bearer key-that-bob-gave-us-112.3")[0] == 401


@pytest.mark.parametrize(
    "path",
    [
        "/", "/invocations", "/tokenize", "/metrics", "/metrics/", "/version", "/health", "/docs", "/V1/models",
        "/v1/load_lora_adapter", "/v1/../metrics", "/v1/models/", "/.sparkmatrix/unauthorized", "/configuration",
        "/.sparkmatrix/status",
    ],
)  # fmt: skip
def test_closed_paths(gateway, path):
    for key in ("alice", None):
        status, _headers, document = gateway.ask(path, key=key)
        assert (status, document["error"]["code"]) == (404, "unknown_path"), key


@pytest.mark.parametrize("path", ["/metrics/../v1/models", "//v1/models", "/metrics/%2e%2e/v1/models"])
def test_what_a_path_looks_like_does_not_reach_the_engine(gateway, path):
    status, _headers, document = gateway.ask(path)
    assert "secret" not in document
    assert status in (200, 404)


def test_errors_of_an_engine_pass(gateway):
    status, _headers, document = gateway.ask("/v1/completions", {"model": "tiny", "prompt": "hello"})
    assert (status, document["error"]["message"]) == (404, "not here")


DEEP = {"model": "tiny"}
for _level in range(60):
    DEEP = {"model": "tiny", "nested": [DEEP]}


@pytest.mark.parametrize(
    ("body", "engine"),
    [
        (b'{"model": "tiny"}', "tiny"),
        (b'{"model": "embed"}', "embed"),
        (b'{"messages": [{"model": "tiny"}], "model": "\\u0065mbe\\u0064"}', "embed"),
        (b'{"model": "tiny", "model": "embed"}', "embed"),  # the last one, as the engine itself reads it
        (b'{"mod\\u0065l": "embed", "messages": [{"content": "\\"model\\": \\"tiny\\""}]}', "embed"),
        (b'{"model": "embed-lora"}', "embed"),  # not in the plan: the engine lists it
        (json.dumps({**DEEP, "model": "embed", "text": '"}]\\'}).encode(), "embed"),
    ],
)
def test_the_model_decides(gateway, body, engine):
    for path in (PATHS[engine], "/v1/score"):
        status, _headers, document = gateway.ask(path, body)
        assert (status, document.get("engine"), document.get("bytes")) == (200, engine, len(body)), document


@pytest.mark.parametrize(
    ("path", "model", "says"),
    [
        ("/v1/embeddings", "tiny", "no embeddings. It makes text: use /v1/chat/completions"),
        ("/v1/embeddings", "tiny-lora", "no embeddings"),  # the engine lists it
        ("/v1/chat/completions", "embed", "no text. It makes embeddings: use /v1/embeddings."),
    ],
)
def test_a_model_that_a_path_is_not_for(gateway, path, model, says):
    status, _headers, document = gateway.ask(path, {"model": model})
    assert (status, document["error"]["code"], document["error"]["param"]) == (404, "wrong_task", "model")
    assert says in document["error"]["message"]


@pytest.mark.parametrize("model", ["other", "Tiny", "tiny ", "", "tiny\u0000", 'x`"$uri<b>', "constructor"])
def test_an_unknown_model(gateway, model):
    status, _headers, document = gateway.ask("/v1/chat/completions", {"model": model, "messages": PROMPT})
    assert (status, document["error"]["code"], document["error"]["param"]) == (404, "model_not_found", "model")
    assert f"`{model}`" in document["error"]["message"] and "tiny, embed" in document["error"]["message"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{}", "model_required"),
        (b'{"model": 1}', "model_required"),
        (b'{"model": ["tiny"]}', "model_required"),
        (b'{"model": "tiny", "model": null}', "model_required"),
        (b'["tiny"]', "invalid_json"),
        (b"null", "invalid_json"),
        (b"", "invalid_json"),
        (b'{"model": "tiny"', "invalid_json"),
        (b"--boundary", "invalid_json"),
    ],
)
def test_a_request_that_names_no_model(gateway, body, code):
    status, _headers, document = gateway.ask("/v1/chat/completions", body)
    assert (status, document["error"]["code"]) == (400, code)
    assert "Several models are served here" in document["error"]["message"]


def test_a_wrong_key_is_told_before_anything_is_read(gateway):
    status, _headers, document = gateway.ask("/v1/chat/completions", {"model": "other"}, key="Bearer wrong")
    assert (status, document["error"]["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("model", ["tiny", "tiny-lora"])
def test_a_stream_arrives_as_it_is_written(gateway, model):
    lines = list(gateway.stream(10, model=model))
    assert [line for _seconds, line in lines][-1] == "data: [DONE]"
    words = [seconds for seconds, line in lines if '"content"' in line]
    assert len(words) == 10
    assert words[-1] - words[0] > 0.5  # the engine needs 0.9 s for the nine after the first
    gaps = [later - sooner for sooner, later in zip(words, words[1:], strict=False)]
    assert statistics.median(gaps) > 0.02, gaps  # the engine writes one every 0.1 s


def test_a_prompt_of_10_mb_passes_and_a_larger_one_is_refused(gateway):
    body = {"messages": [{"role": "user", "content": 'x"\n\u20ac ' * 1_200_000}], "model": "embed"}
    text = json.dumps(body, ensure_ascii=False).encode()
    assert len(text) > 10_000_000
    status, _headers, document = gateway.ask("/v1/embeddings", text)
    assert (status, document.get("engine"), document.get("bytes")) == (200, "embed", len(text)), document
    status, _headers, document = gateway.ask("/v1/embeddings", text + b" " * 3_000_000)
    assert (status, document["error"]["code"]) == (413, "request_too_large")
    assert "12 MiB" in document["error"]["message"]


def in_chunks(gateway, text, size):
    connection = gateway.connect()
    headers = {"Authorization": f"Bearer {gateway.keys['alice']}", "Content-Type": "application/json"}
    parts = (text[at : at + size] for at in range(0, len(text), size))
    connection.request("POST", "/v1/embeddings", parts, headers, encode_chunked=True)
    response = connection.getresponse()
    document = json.loads(response.read())
    connection.close()
    return response.status, document


def test_a_request_in_chunks(gateway):
    text = json.dumps({"messages": [{"role": "user", "content": "x" * 10_000_000}], "model": "embed"}).encode()
    status, document = in_chunks(gateway, text, 100_000)
    assert (status, document.get("bytes")) == (200, len(text)), document


def test_a_request_in_chunks_that_are_mostly_lengths(gateway):
    body = b"".join(b"1\r\n%c\r\n" % byte for byte in b'{"model": "tiny", "x": "') + b"1\r\nx\r\n" * 4_500_000
    connection = gateway.connect()
    connection.putrequest("POST", "/v1/chat/completions")
    connection.putheader("Authorization", f"Bearer {gateway.keys['alice']}")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    connection.send(body + b'2\r\n"}\r\n0\r\n\r\n')
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["bytes"]) == (200, 24 + 4_500_000 + 2)
    connection.close()


def test_who_tries_many_keys_has_to_wait(gateway):
    seen = [gateway.ask(key="Bearer wrong-key-number-1")[0] for _ in range(50)]
    assert set(seen) == {401, 429}
    assert gateway.ask()[0] == 200


def at_once(host, gateway, count, prompt, meanwhile):
    """Answers to bob, which end when all have begun or are refused and ``meanwhile`` is over: so they overlap."""
    enough = "/root/enough-of-bob"
    begun, ended, refused = [], [], []

    def run():
        try:
            lines = gateway.stream(1, "bob", until=enough, prompt=prompt)
            begun.append(next(lines))
            ended.append([line for _seconds, line in lines][-1])
        except AssertionError as exc:
            refused.append(str(exc))

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while len(begun) + len(refused) < len(threads) and time.monotonic() < deadline:
        time.sleep(0.1)
    said = meanwhile()
    host.check_output(f"touch {enough}")
    for thread in threads:
        thread.join()
    host.check_output(f"rm {enough}")
    assert all("rate_limit_exceeded" in text for text in refused)
    assert ended == ["data: [DONE]"] * len(begun)
    return len(begun), len(refused), said


def from_the_node(host, url, key="$(cat /etc/sparkmatrix/gateway/keys/alice.key)"):
    """The error code of an answer to the node itself, None where there is no error."""
    said = host.check_output(f'curl -s --cacert {ETC}/tls/ca.crt -H "Authorization: Bearer {key}" {url}/v1/models')
    return json.loads(said).get("error", {}).get("code")


def test_neither_one_key_nor_one_address_can_take_all_of_the_engine(host, gateway):
    def others():
        return gateway.ask(key="alice")[0], from_the_node(host, "http://127.0.0.1:8081")

    # Another key does not help an address that has as much as one key may have.
    assert at_once(host, gateway, 70, PROMPT, others) == (64, 70 - 64, (429, None))


def test_one_key_cannot_take_all_of_the_memory(host, gateway):
    large = [{"role": "user", "content": "x" * 1_000_000}]

    def others():
        small = gateway.ask("/v1/chat/completions", {"model": "tiny", "messages": PROMPT}, key="bob")
        return small[0], gateway.ask("/v1/chat/completions", {"model": "tiny", "messages": large})[0]

    assert at_once(host, gateway, 3, large, others) == (2, 1, (200, 200))


def test_silent_connections_of_one_address_leave_the_gateway_to_others(host, gateway):
    """Twice as many as the 64 requests that it may have."""
    shared = f"{os.environ['MOLECULE_PROJECT_DIRECTORY']}/.lab/ssh_config_shared"
    other = testinfra.get_host("ssh://spark2", ssh_config=shared, sudo=True)
    held = []
    for _ in range(160):
        with contextlib.suppress(ConnectionRefusedError):
            held.append(socket.create_connection((gateway.address, PORT), 5))
    try:
        assert 100 < len(held) <= 128
        said = other.check_output(f"curl -sk --max-time 10 https://{gateway.address}:{PORT}/v1/models")
        assert json.loads(said)["error"]["code"] == "address_not_allowed"
        assert from_the_node(host, "http://127.0.0.1:8081") is None
        with pytest.raises(ConnectionRefusedError):
            gateway.ask()
    finally:
        for one in held:
            one.close()
    time.sleep(1)
    assert gateway.ask()[0] == 200


def test_who_takes_its_port_while_it_is_down_gets_nothing(host, gateway):
    taken = "import socket; one = socket.create_server(('127.0.0.1', 8081)); one.settimeout(5); one.accept()"
    ask = "sleep 1; ss -Hltn 'sport = 8081'; curl -s --max-time 3 http://127.0.0.1:8081/v1/models; echo curl $?"
    host.check_output("systemctl stop sparkmatrix-gateway")
    try:
        said = host.run(f'cd /; runuser -u nobody -- timeout 6 python3 -c "{taken}" & {ask}; wait').stdout
    finally:
        host.check_output("systemctl start sparkmatrix-gateway")
    assert "127.0.0.1:8081" in said and "curl 7" in said  # refused
    host.check_output("curl -s --retry 30 --retry-delay 1 --retry-connrefused http://127.0.0.1:8081/v1/models")


def test_an_address_that_is_not_listed_is_told_so_whatever_its_key(host, gateway):
    """The node's own, without a firewall: only the machine of the tests is listed."""
    url = f"https://{gateway.address}:{PORT}"
    assert from_the_node(host, url) == from_the_node(host, url, "wrong") == "address_not_allowed"


def test_plain_http_is_told_to_use_tls(gateway):
    connection = http.client.HTTPConnection(gateway.address, PORT, timeout=20)
    connection.request("GET", "/v1/models")
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["error"]["code"]) == (400, "tls_required")
    connection.close()


def test_only_the_gateway_reaches_the_relay(host, gateway):
    socket_of = "/run/sparkmatrix-relay.sock"
    assert host.check_output(f"stat -c '%U %a' {socket_of}") == "sparkmatrix-gateway 600"
    asked = f"curl -s --max-time 5 --unix-socket {socket_of} http://x/.sparkmatrix/status"
    assert json.loads(host.check_output(asked))["requests"] > 10
    assert host.run(f"runuser -u nobody -- {asked}").rc == 7
    assert host.check_output("systemctl show -p User --value sparkmatrix-relay") == "sparkmatrix-relay"
    assert host.check_output(f"stat -c '%U %a' {ETC}/relay.json") == "sparkmatrix-relay 600"


def test_a_relay_that_is_killed_is_not_noticed(host, gateway):
    for _ in range(3):
        host.check_output("systemctl kill -s KILL sparkmatrix-relay")
        status, _headers, document = gateway.ask("/v1/chat/completions", {"model": "tiny", "messages": PROMPT})
        assert (status, document["engine"]) == (200, "tiny")


def test_it_listens_where_it_was_told_to(host, gateway):
    listening = {line.split()[3] for line in host.check_output("ss -Hltn").splitlines()}
    assert {one for one in listening if one.endswith((":8443", ":8081"))} == {
        f"{gateway.address}:8443",
        "127.0.0.1:8081",
    }


def test_the_nginx_of_somebody_else_is_left_alone(host, gateway):
    assert "Welcome to nginx" in host.check_output("curl -s http://127.0.0.1/")
    assert host.file("/etc/nginx/sites-enabled/default").is_symlink


def test_secrets_are_in_no_log_and_no_command_line(host, gateway):
    visible = host.check_output("ps axww -o args; systemctl cat 'sparkmatrix-*'; journalctl --no-pager -b")
    assert "alice GET /v1/models 200" in visible
    for secret in (*gateway.keys.values(), "key-of-the-engine"):
        assert secret not in visible
    unreadable = host.check_output(f"find {ETC} /run/sparkmatrix-gateway -type f -perm /077 -path '*key*'")
    assert unreadable == ""


def test_the_probe_of_the_cluster_comes_in_through_it(host, gateway):
    told = host.check_output(
        "/usr/local/lib/sparkmatrix/sparkmatrix-node probe --json --config /etc/sparkmatrix/gateway.json"
    )
    assert json.loads(told)["ok"] is True
