# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import http.client
import inspect
import json
import os
import pathlib
import re
import socket
import ssl
import subprocess
import sys
from concurrent import futures

import pytest

sys.path.insert(0, f"{os.environ['MOLECULE_PROJECT_DIRECTORY']}/tests")
import guide_examples
import guide_tables

NODES = 2
HEAD = "spark1"
STRANGER = "spark2"
SLICE = "/sparkmatrix.slice/sparkmatrix-engine.slice"
# Module executions on one node in an unchanged run of site.yml with firewall and gateway: each costs a second.
MAX_EXECUTIONS = 8
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
        status = json.loads(host.check_output("sparkmatrix status --json"))
        assert status["serving"]
        assert status["services"][""]["failures"] == 0


def test_status_asks_every_part_of_the_cluster(host):
    done = host.run("sparkmatrix status --json")
    status = json.loads(done.stdout)
    if name(host) != HEAD:
        assert (done.rc, status["head"]) == (1, HEAD)
        return
    assert done.rc == 0, status
    assert {node["host"]: (node["answers"], node["fabric"]) for node in status["nodes"]} == {
        HEAD: (True, "verified"),
        STRANGER: (True, "verified"),
    }
    assert status["ray"] == {"nodes": NODES, "running": NODES}
    assert status["gateway"]["answers"]
    assert re.match(r"20\d\d-", status["gateway"]["certificate_until"])
    assert status["services"][""]["verified"]["tokens_per_s"] > 0
    assert len(host.run("sparkmatrix status").stdout.splitlines()) <= 24
    refused = host.run("runuser -u nobody -- sparkmatrix status")
    assert refused.rc == 1
    assert "needs root: sudo sparkmatrix status" in refused.stdout
    assert "Traceback" not in refused.stdout + refused.stderr


def test_a_question_on_the_head_is_answered_as_it_comes(host):
    """Not in any list of processes: the question comes in from standard input."""
    done = host.run("echo fox | sparkmatrix ask --model tiny-llama")
    if name(host) != HEAD:
        assert (done.rc, done.stdout) == (1, "")
        assert f"Ask on {HEAD}" in done.stderr
        return
    assert done.rc == 0, done.stderr
    assert done.stdout.strip()
    assert re.match(r"-- tiny-llama: \d+ tokens? in [\d.]+ s, [\d.]+ tokens/s, the first after ", done.stderr)
    refused = host.run("runuser -u nobody -- sparkmatrix ask fox")
    assert (refused.rc, refused.stdout) == (1, "")
    assert "sudo sparkmatrix ask" in refused.stderr


def test_a_shell_on_the_head_is_told_where_the_model_is(host):
    asked = 'printf \'header = "Authorization: Bearer %s"\' "$OPENAI_API_KEY" | curl -sf -K - "$OPENAI_BASE_URL/models"'
    done = host.run("bash -c %s", f'told=$(sparkmatrix env) && eval "$told" && {asked} && echo "$OPENAI_MODEL"')
    if name(host) != HEAD:
        assert (done.rc, done.stdout) == (1, "")
        return
    assert done.rc == 0, done.stderr
    assert '"tiny-llama"' in done.stdout and done.stdout.endswith("tiny-llama\n")
    told = json.loads(host.check_output("sparkmatrix env --json"))
    assert (told["base_url"], told["task"]) == ("http://127.0.0.1:8000/v1", "generate")


def listeners(host):
    """(address, port, control group) of every TCP socket that listens, also on loopback."""
    lines = host.check_output("ss -Hltn --cgroup").splitlines()
    found = [(*line.split()[3].rsplit(":", 1), line.partition("cgroup:")[2].strip()) for line in lines]
    # IPv4 at a socket that could do both is written as IPv6.
    return [(one.strip("[]").removeprefix("::ffff:"), int(port), group) for one, port, group in found]


# Programs of the table that the control group of their sockets shows; others are outside of our slice.
GROUPS = {
    "gateway": "/system.slice/system-sparkmatrix_gateway.slice/sparkmatrix-gateway.service",
    **dict.fromkeys(("engine", "Ray", "Ranks", "Ranks without Ray"), SLICE),
}


def test_nothing_listens_that_the_guide_does_not_list(host):
    """docs/access.md, What listens."""
    node = {"own": fact(host)["cluster_address"], "head": name(host) == HEAD}
    rows = guide_tables.listeners()

    def listed(address, port, group):
        ours = [row for row in rows if row.admits(address, port, **node)]
        wanted = [GROUPS.get(row.program) for row in ours]
        return any(group.startswith(one) if one else not group.startswith(SLICE) for one in wanted)

    assert [listener for listener in listeners(host) if not listed(*listener)] == []


@pytest.mark.parametrize("unit", ["sparkmatrix-ray", "sparkmatrix-engine"])
def test_ray_and_the_engine_have_no_privileges(host, unit):
    if not host.service(unit).is_running:
        assert name(host) != HEAD
        return
    pid = host.check_output("systemctl show -P MainPID %s", unit)
    status = dict(line.split(":", 1) for line in host.file(f"/proc/{pid}/status").content_string.splitlines())
    assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip(), int(status["CapBnd"], 16)) == ("1", "2", 0)
    mounts = host.file(f"/proc/{pid}/mountinfo").content_string.splitlines()
    options = {fields[4]: fields[5].split(",")[0] for fields in map(str.split, mounts)}
    assert (options["/"], options["/var/lib/sparkmatrix/home"]) == ("ro", "rw")


def test_what_root_does_before_each_start_has_no_variables_of_the_engine(host):
    planted = "OPENSSL_CONF=/opt/sparkmatrix/models/huggingface/planted.cnf"
    units = ["sparkmatrix-ray", *(["sparkmatrix-engine"] if name(host) == HEAD else [])]
    begun, drop = [], "sparkmatrix-drop-caches"
    for unit in units:
        pid = host.check_output("systemctl show -P MainPID %s", unit)
        assert planted in host.file(f"/proc/{pid}/environ").content_string.split("\0")
        begun.append(int(host.check_output("systemctl show -P ExecMainStartTimestampMonotonic %s", unit)))
        assert "privileged" not in host.check_output("systemctl show -p ExecStartPreEx -p ExecStartEx %s", unit)
    # Of the last start; the one before was Ray's.
    assert 0 < int(host.check_output("systemctl show -P ExecMainExitTimestampMonotonic %s", drop)) <= max(begun)
    dropped = host.check_output("journalctl -q -b -o cat -u %s --grep 'Caches dropped'", drop).splitlines()
    assert len(dropped) >= len(units)
    for unit in (drop, "sparkmatrix-gpu-devices"):
        variables = ("Environment", "EnvironmentFiles", "PassEnvironment")
        assert [host.check_output("systemctl show -P %s %s", variable, unit) for variable in variables] == ["", "", ""]


def test_the_api_and_the_dashboard_listen_on_loopback_only(host):
    for port in (8000, 8265):
        assert {address for address, own, _group in listeners(host) if own == port} <= {"127.0.0.1", "::1"}
        assert (name(host) == HEAD) == any(own == port for _address, own, _group in listeners(host))


def test_secrets_are_readable_by_nobody_else(host):
    found = host.check_output("find /etc/sparkmatrix -type f \\( -name '*token*' -o -name '*key*' \\)").split()
    assert found
    for path in found:
        assert host.file(path).mode == 0o600


def test_every_file_that_is_kept_secret_has_a_row_in_the_guide(host):
    """docs/security.md, Secrets."""
    found = host.check_output("find /etc/sparkmatrix -type f -perm 0600").split()
    assert found
    known = guide_tables.secrets()
    assert [path for path in found if not any(one.fullmatch(path) for one in known)] == []


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


def test_the_run_that_started_the_engine_keeps_its_verdicts_and_one_without_a_change_adds_none(host):
    """So that the report has something to show after a first run. Molecule's second run changed nothing."""
    kept = host.run("ls /var/lib/sparkmatrix/verdicts").stdout.split()
    assert [one.endswith("-site.json") for one in kept] == ([True] if name(host) == HEAD else [])


@pytest.fixture
def management(host):
    if name(host) != HEAD:
        pytest.skip("the gateway is on the head")
    return next(address for address in host.interface("enP7s7").addresses if "." in address)


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


ENGINE_PYTHON = pathlib.Path.home() / ".cache/sparkmatrix/engine/bin/python3.11"


@pytest.mark.parametrize("page", guide_examples.pages("run=site"))
def test_the_examples_of_a_guide_work_on_the_computer_of_a_user(host, management, page, tmp_path):
    """As they are written there, but for names and addresses. OpenAI's client is the one that vLLM brings."""
    state = pathlib.Path(os.environ["MOLECULE_PROJECT_DIRECTORY"], ".lab")
    text = guide_examples.script(page, management, tmp_path, ENGINE_PYTHON, state / "ssh_config")
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    # curl ends well whatever it was answered.
    assert "curl" not in text or ('"choices"' in done.stdout and '"error"' not in done.stdout), done.stdout


def test_the_examples_of_the_guides_work_on_the_head(host, management):
    for block in guide_examples.blocks("console"):
        for command in guide_examples.commands(block) if block.marks == "run=head" else ():
            done = host.run("cd / && " + command.text)
            assert done.rc == 0, f"{command.place}: {command.text}\n{done.stdout}\n{done.stderr}"


def answering(addresses, ports):
    """Which of them let a connection in, from where this runs; all are tried at once."""

    def ask(place):
        try:
            # Who lets in answers at once; the second SYN, after 1 s, is for a lost one.
            socket.create_connection(place, 2).close()
        except OSError:
            return None
        return place[1]

    places = [(address, port) for address in addresses for port in ports]
    with futures.ThreadPoolExecutor(len(places)) as pool:
        return set(pool.map(ask, places)) - {None}


@pytest.fixture
def without_ufw(host):
    assert "Status: active" in host.check_output("ufw status")
    host.check_output("ufw disable")
    yield
    host.check_output("ufw --force enable")


def test_another_machine_of_the_lan_reaches_ssh_and_the_gateway_only(host, without_ufw):
    """Not even by way of an address on the fabric, for which Linux answers on all interfaces."""
    address = next(one for one in host.interface("enP7s7").addresses if "." in one)
    rails = [rail["address"] for rail in fact(host)["rails"]]
    ports = sorted({port for _address, port, _group in listeners(host)})
    assert len(ports) > 5
    assert answering([address], ports) == ({22, 8443} if name(host) == HEAD else {22})
    here = subprocess.run(["ip", "-4", "-brief", "address"], check=True, capture_output=True, text=True).stdout
    assert not [rail for rail in rails if f" {rail}/" in here], f"this machine has that address itself:\n{here}"
    for rail in rails:
        subprocess.run(["ip", "route", "replace", f"{rail}/32", "via", address], check=True)
    try:
        assert answering(rails, ports) == {22}
    finally:
        for rail in rails:
            subprocess.run(["ip", "route", "delete", f"{rail}/32"], check=True)


ASK = f"""import json, socket, sys
from concurrent import futures
{inspect.getsource(answering)}
print(json.dumps(sorted(answering(*json.load(sys.stdin)))))
"""


@pytest.mark.parametrize(("account", "reached"), [("nobody", False), ("root", True)])
def test_an_account_of_a_node_reaches_the_api_and_nothing_else_of_ours(host, account, reached):
    """The other node's ranks, where they listen, and those of its own node, where everybody listens: loopback."""
    ports = sorted({port for _address, port, group in listeners(host) if group.startswith(SLICE)})
    other = {HEAD: STRANGER, STRANGER: HEAD}[name(host)]
    over = re.search(rf"^([\d.]+)\s+{other}-fabric\b", host.file("/etc/hosts").content_string, re.MULTILINE)[1]
    own = fact(host)["cluster_address"]
    # The head listens at a fixed one, the others at one of theirs.
    for addresses, asked in ((["127.0.0.1", own], ports), ([over], [6379, 21002, 21003])):
        text = json.dumps([addresses, asked])
        found = json.loads(host.check_output("cd / && echo %s | runuser -u %s -- python3 -c %s", text, account, ASK))
        assert bool(set(found) - {8000, 8265}) == reached, (account, addresses, found)
        assert {8000, 8265} <= set(found) or name(host) != HEAD or addresses == [over]


def test_the_tables_are_in_force_at_every_boot(host):
    for table in ("services", "fabric"):
        assert starts_at_boot(host, f"sparkmatrix-port-filter-{table}")
        assert f"table inet sparkmatrix_{table}" in host.check_output("nft list tables")


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
