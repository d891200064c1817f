# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import http.client
import json
import os
import pathlib
import re
import socket
import ssl

import pytest

NODES = 2
HEAD = "spark1"
STRANGER = "spark2"
# Module executions on one node in a run of site.yml that changes nothing, with firewall and gateway: each costs a second.
MAX_EXECUTIONS = 40
STATS = pathlib.Path(os.environ["MOLECULE_PROJECT_DIRECTORY"], ".lab/site.stats.json")


def name(host):
    return host.backend.host.name


def fact(host):
    return json.loads(host.file("/etc/ansible/facts.d/sparkmatrix.fact").content_string)


def test_every_node_runs_ray(host):
    assert host.service("sparkmatrix-ray").is_running


def test_the_engine_runs_on_the_head_only(host):
    assert host.service("sparkmatrix-engine").is_running == (name(host) == HEAD)


def starts_at_boot(host, unit):
    """Testinfra calls a unit that nothing starts at boot, "static", enabled."""
    return host.run("systemctl is-enabled %s", unit).stdout.strip() == "enabled"


def test_only_the_keeper_starts_ranks_at_boot(host):
    head = name(host) == HEAD
    assert host.service("sparkmatrix-keeper").is_running == head
    assert starts_at_boot(host, "sparkmatrix-keeper") == head
    assert not starts_at_boot(host, "sparkmatrix-ray")
    assert not starts_at_boot(host, "sparkmatrix-engine")


def test_the_keeper_knows_of_no_failure(host):
    if name(host) == HEAD:
        status = json.loads(host.check_output("/usr/local/lib/sparkmatrix/sparkmatrix-node status --json"))
        assert status["serving"]
        assert status["failures"] == 0


def test_the_api_and_the_dashboard_listen_on_loopback_only(host):
    listening = host.check_output("ss -Hltn").splitlines()
    addresses = {line.split()[3] for line in listening}
    for port in (8000, 8265):
        found = {address for address in addresses if address.endswith(f":{port}")}
        assert found <= {f"127.0.0.1:{port}", f"[::1]:{port}"}
        if name(host) == HEAD:
            assert found


def test_secrets_are_readable_by_nobody_else(host):
    found = host.check_output("find /etc/sparkmatrix -type f \\( -name '*token*' -o -name '*key*' \\)").split()
    assert found
    for path in found:
        assert host.file(path).mode == 0o600


def test_no_secret_is_in_a_command_line_or_a_unit(host):
    files = host.check_output("find /etc/sparkmatrix -type f -perm 0600").split()
    content = " ".join(host.file(path).content_string for path in files)
    secrets = {word for word in re.split(r"[\s=\"']+", content) if len(word) > 24}
    assert secrets
    visible = host.check_output(
        "ps axww -o args; systemctl cat 'sparkmatrix-*'; systemctl show -p Environment 'sparkmatrix-*';"
        " journalctl --no-pager -u 'sparkmatrix-*'"
    )
    for secret in secrets:
        assert secret not in visible


def test_the_fabric_fact_is_applied_and_names_both_halves(host):
    document = fact(host)
    assert document["state"] == "applied"
    assert document["nodes"] == NODES
    assert len(document["rails"]) == 2
    assert document["cluster_address"] == document["rails"][0]["address"]
    for rail in document["rails"]:
        octets = rail["address"].split(".")
        hexadecimal = "".join(f"{int(octet):02x}" for octet in octets)
        assert rail["gid"].replace(":", "").endswith("ffff" + hexadecimal)


def test_ray_was_started_in_the_environment_of_its_own_node(host):
    pid = host.check_output("systemctl show -p MainPID --value sparkmatrix-ray")
    environment = host.check_output(f"tr '\\0' '\\n' < /proc/{pid}/environ")
    assert f"VLLM_HOST_IP={fact(host)['cluster_address']}" in environment
    assert "RAY_memory_monitor_refresh_ms=0" in environment
    assert "RAY_AUTH_MODE=token" in environment


def test_a_run_that_changes_nothing_asks_little_of_a_node(host):
    """The run before this one was Molecule's second."""
    stats = json.loads(STATS.read_text())
    assert not stats["changed_tasks"]
    assert 0 < stats["module_executions"][name(host)] <= MAX_EXECUTIONS, stats["modules"]


@pytest.fixture
def management(host):
    if name(host) != HEAD:
        pytest.skip("the gateway is on the head")
    return next(one for one in host.interface("enP7s7").addresses if "." in one)


def test_a_client_of_another_machine_gets_an_answer_through_the_gateway(host, management):
    """From this machine, with the key that the gateway made and its authority."""
    context = ssl.create_default_context(cadata=host.file("/etc/sparkmatrix/gateway/tls/ca.crt").content_string)
    key = host.file("/etc/sparkmatrix/gateway/keys/default.key").content_string.strip()
    answers = {}
    for shown in (key, "wrong"):
        connection = http.client.HTTPSConnection(management, 8443, timeout=60, context=context)
        body = {"model": "tiny-llama", "messages": [{"role": "user", "content": "fox"}], "max_tokens": 4}
        headers = {"Authorization": f"Bearer {shown}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        answers[shown] = response.status, json.loads(response.read())
    assert answers[key][0] == 200, answers
    assert answers[key][1]["usage"]["completion_tokens"] > 0
    assert answers["wrong"][0] == 401


def test_the_firewall_keeps_another_machine_from_ray_and_the_engine(host, management):
    open_ports = set()
    for port in (22, 8443, 6379, 8000, 8265):
        with socket.socket() as client:
            client.settimeout(2)
            if client.connect_ex((management, port)) == 0:
                open_ports.add(port)
    assert open_ports == {22, 8443}
    assert "Status: active" in host.check_output("ufw status")


def test_ray_refuses_who_has_no_token(host):
    """From another node, over the fabric. With the token the keeper comes in, or nothing would be served."""
    if name(host) != STRANGER:
        return
    address = re.search(r"--address[ =]([\d.:]+)", host.check_output("systemctl cat sparkmatrix-ray"))[1]
    for proof in ("RAY_AUTH_MODE=disabled", "RAY_AUTH_MODE=token RAY_AUTH_TOKEN=none-of-yours"):
        done = host.run(
            f"env -i HOME=/tmp {proof} timeout 60 /opt/sparkmatrix/engine/bin/ray status --address {address}"
        )
        assert done.rc != 0
        assert "AuthenticationError" in done.stderr
