# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import base, variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks as pf
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import inventory as inventory_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import machines as machine_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import RULES
from preflight_inputs import ALL, NODE, context, fact, inventory, nodes
from rules import hold, of_findings

ROOT = Path(__file__).resolve().parents[5]
DIGEST = f"ghcr.io/open-webui/open-webui@sha256:{'a' * 64}"
OVER_RAY = {"engine_launch": "ray"}


def found(checks, ctx):
    return [(finding.rule, str(finding)) for finding in pf.run(checks, ctx)]


def judge(ctx):
    return found(pf.INVENTORY, ctx)


def examine(ctx):
    return found(pf.HOSTS, ctx)


def ranked(*ranks):
    return context(hosts={f"spark{n + 1}": {"spark_rank": rank} for n, rank in enumerate(ranks)})


def said(layers=ALL, count=2, **values):
    """Of all machines, with the documented defaults of all variables."""
    return replace(context(layers, inventory(count, **values)), variables=variables.load())


def own(host, count=3, rest=None, **values):
    hosts = inventory(count, **(rest or {}))
    hosts[host].update(values)
    return context(hosts=hosts)


GATEWAY = {"gateway_listen": ["lo"]}
PAGE = {"web_ui_enabled": True, "web_ui_image": DIGEST, **GATEWAY}
# What the inventory says; what is found in it is in fixtures/rules.txt.
CASES = {
    **{f"a good one of {count}": context(hosts=inventory(count)) for count in (1, 2, 4, 8)},
    **{
        f"ranks {ranks}": ranked(*ranks)
        for ranks in (
            (None, 1), ("0", 1), (True, 0), (-1, 0), (0.0, 1), (0, 0), (0, 2), (1, 2), (0, 0, "x"),
        )
    },
    **{
        f"the name {name[:24]}": context(hosts={name: {"spark_rank": 0}})
        for name in (
            "spark1", "spark1.example.net", "198.51.100.1", "spark_1", "-spark", "spark 1", "a" * 64, "a." * 127 + "ab",
        )
    },
    "one address twice, in other letters": context(hosts={
        "a": {"spark_rank": 0, "ansible_host": "SPARK1.local"}, "b": {"spark_rank": 1, "ansible_host": "spark1.local"},
    }),
    "one address, and two ports": context(hosts={
        "a": {"spark_rank": 0, "ansible_host": "x"}, "b": {"spark_rank": 1, "ansible_host": "x", "ansible_port": 2222},
    }),
    "a name that is another's address": context(hosts={
        "spark1": {"spark_rank": 0}, "alias": {"spark_rank": 1, "ansible_host": "spark1"},
    }),
    "variables that do not exist": own("spark1", spark_rnak=1, rest={"fabric_mtuu": 1, "my_own": 2, "engine_zzz": 3}),
    "variables of other layers": context({"os_stabilization"}, inventory(1, engine_zzz=3)),
    "variables of a role without documentation": context({"verify"}, inventory(1, verify_odd=1)),
    "keys of a service as variables": context(hosts=inventory(1, engine="x", gpu_memory_utilization=0.8, port=1)),
    "slips in the prefix": own("spark1", ansible_usr="nvidia", rest={"engin_recipe": "a", "ansible_become_pass": "x"}),
    "a number that is a word": context(hosts=inventory(2, fabric_mtu="nine", engine_port=None)),
    "a word that is no choice, told once": said(fabric_topology="rign"),
    "templates that fail": context(
        hosts=inventory(2), broken={"spark2": {"engine_port": "'x' is undefined", "engine_zzz": "odd"}}),
    **{
        f"fabric: {values}": context({"fabric"}, inventory(2, **values))
        for values in (
            {"fabric_mtu": "9000"}, {"fabric_mtu": "large"}, {"fabric_mtu": 12000}, {"fabric_mtu": 1500},
            {"fabric_topology": "ring"}, {"fabric_topology": "mesh"}, {"fabric_subnets": ["192.168.100.0/24"]},
            {"fabric_subnets": ["192.168.100.0/24", "192.168.100.128/25"]},
            {"fabric_subnets": ["192.168.100.0/24", "192.168.101.1/24"]},
            {"fabric_qos": "roce", "fabric_transport": "socket"},
        )
    },
    **{
        f"engine: {values}": said(**values)
        for values in (
            {}, {"engine_recipe": "qwen3-235b-a22b"}, {"engine_options": {"max-num-seq": 2}},
            {"engine_tensor_parallel_size": 3}, {"engine_context": "32768", "engine_concurrency": 900},
            {"engine_port": "6379", **OVER_RAY}, {"engine_image": "x/y:latest", "engine_runtime": "container"},
            {"engine_services": [{"name": "a", "recipe": "qwen3-8b", "nodes": ["spark9"]}]},
            {"engine_services": [{"name": "a", "recipe": "qwen3-8b", "nodes": ["spark2"]}]},
            {"engine_environment": {"HF_TOKEN": "x"}}, {"engine_recipe_paths": ["/nowhere"]},
            {"engine_model_files": "/nowhere"}, {"engine_expert_parallel": False}, {"engine_context": "long"},
            {"engine_options": 7}, {"engine_free_memory_gib": 117, "engine_gpu_memory_utilization": "0.8"},
            {"preflight_require_gb10": False, "engine_context": "32768", "engine_concurrency": 900},
        )
    },
    **{
        f"no engine is planned by {layers}": said(frozenset(layers), engine_recipe="none")
        for layers in (("fabric",), ("os_stabilization", "fabric"))
    },
    "an engine whose variables fail": replace(
        said(engine_recipe="x"), broken={"spark1": {"engine_port": "undefined"}}),
    "no machine": context({"ray", "engine", "gateway"}, {}),
    "some are left out": context({"fabric"}, play_hosts=["spark1", "spark3"]),
    "some are left out of what each has for itself": context({"os_stabilization"}, play_hosts=["spark1"]),
    **{
        f"gateway: {values}": context({"gateway"}, inventory(2, **GATEWAY, **values))
        for values in (
            {"gateway_keys": [{"name": "a"}, {"name": "a"}]}, {"gateway_keys": ["alice"]},
            {"gateway_keys": [{"key": "x" * 20}]}, {"gateway_port": "8000"}, {"gateway_tls": "files"},
            {"gateway_port": "6379"}, {"gateway_local_port": "8265"}, {"gateway_port": 29501}, {"gateway_port": 29550},
            {"gateway_port": 18515}, {"gateway_port": 6379, "gateway_local_port": 8000},
            {"engine_services": [{"name": "a"}, {"name": "b", "port": 8081}]},
            {"engine_services": [{"name": "a"}, {"name": "b", "port": 8081, "nodes": ["spark2"]}]},
        )
    },
    **{
        f"chat page: {values}": context({"web_ui"}, inventory(2, **{"web_ui_image": DIGEST, **values}))
        for values in (
            {}, {"web_ui_enabled": "no"}, {"web_ui_enabled": "yes"}, PAGE,
            {**PAGE, "web_ui_image": "A B"}, {**PAGE, "web_ui_runtime": "venv", "web_ui_port": "8081"},
            {**PAGE, "web_ui_runtime": "venv", "web_ui_port": 80},
        )
    },
}  # fmt: skip


def test_what_is_found_in_every_inventory():
    made = ((name, pf.run(pf.INVENTORY, ctx)) for name, ctx in CASES.items())
    hold(
        "inventory",
        ((name, [text for finding in found for text in of_findings([finding], finding.rule)]) for name, found in made),
    )


def listening(port, host="spark1", layers=ALL, hosts=None, unit=None, **more):
    hosts = hosts or inventory()
    read = nodes(len(hosts))
    read[host]["listening"] = [{"port": port, "address": "::", "process": "x", "unit": unit}]
    return context(layers, hosts, nodes=read, **more)


MOVED = inventory(4, engine_port="9000")
SERVICES = [{"name": "chat"}, {"name": "embedding", "port": 8001, "nodes": ["spark3", "spark2"]}, "wrong"]
LISTENING = {
    "a port of the engine that was moved": (listening(8000, layers={"engine"}, hosts=MOVED), []),
    "the port that it has now": (listening(9000, layers={"engine"}, hosts=MOVED), ["spark1"]),
    "no head": (listening(8000, layers={"engine"}, hosts={"spark1": {}}), []),
    "a service where it listens": (
        listening(8001, "spark3", {"engine"}, inventory(4, engine_services=SERVICES)), ["spark3"]),
    "a service elsewhere": (listening(8001, "spark2", {"engine"}, inventory(4, engine_services=SERVICES)), []),
    "the chat page": (listening(8080, layers={"web_ui"}, hosts=inventory(4, **PAGE)), ["spark1"]),
    "its own container": (
        listening(8080, layers={"web_ui"}, hosts=inventory(4, **PAGE), unit="system-sparkmatrix_web_ui.slice"), []),
    "no chat page": (listening(8080, layers={"web_ui"}), []),
    "no gateway": (listening(8443, layers={"gateway"}), []),
    "a gateway": (listening(8443, layers={"gateway"}, hosts=inventory(4, **GATEWAY)), ["spark1"]),
    "a gateway at another port": (
        listening(8443, layers={"gateway"}, hosts=inventory(4, **GATEWAY, gateway_port=9443)), []),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTENING)
def test_ports_that_are_taken(name):
    ctx, hosts = LISTENING[name]
    assert [finding.host for finding in machine_checks.check_ports(ctx)] == hosts


FACTS = {
    "nothing": None,
    "torn": "torn {",
    "under way": fact(state="applying"),
    "of two": fact(count=2),
    "of another machine": fact("spark7"),
    "of another rank": fact(rank=1),
}


@pytest.mark.parametrize("name", FACTS)
def test_a_fact_of_the_fabric_that_cannot_be_used(name):
    facts = {f"spark{n + 1}": fact(f"spark{n + 1}", n) for n in range(4)} | {"spark1": FACTS[name]}

    def found(layers):
        ctx = context(layers, nodes=nodes(), earlier=facts)
        return [finding.host for finding in pf.run(pf.HOSTS, ctx) if finding.rule == "fabric_fact"]

    assert (found({"plan"}), found({"plan", "fabric"})) == (["spark1"], [])


def test_an_interface_of_the_earlier_fabric_may_have_its_subnet():
    read = nodes()
    read["spark1"]["network"]["interfaces"].append(
        {"name": "renamed0", "addresses": [{"address": "10.100.1.1", "prefix": 24, "scope": "global"}]}
    )
    earlier = {"spark1": {"rails": [{"netdev": "renamed0"}]}}
    assert [name for name, _ in examine(context({"fabric"}, nodes=read, earlier=earlier))] == ["cables"]


@pytest.mark.parametrize(("mode", "found"), [(0o600, ""), (0o640, ""), (0o644, "every user of this controller")])
def test_the_token_of_the_hub_is_for_its_owner(tmp_path, monkeypatch, mode, found):
    (tmp_path / "token").write_text("hf_x")
    (tmp_path / "token").chmod(mode)
    monkeypatch.setenv("HOME", str(tmp_path))

    def said(name):
        ctx = context(hosts=inventory(2, artifacts_hub_token_file=name))
        return [str(finding) for finding in inventory_checks.check_hub_token(ctx)]

    assert found in said("~/token")[0] if found else said("~/token") == []
    assert said("") == [] and "no whole path" in said("token")[0]


def test_sources_of_models_on_this_controller_are_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "name").mkdir()

    def said(source):
        ctx = context(hosts=inventory(2, artifacts_sources={"org/name": source}))
        return [str(finding) for finding in inventory_checks.check_model_sources(ctx)]

    assert said("controller:~/name") == said("/on/a/node") == said(7) == []
    assert "no such directory" in said("controller:~/other")[0] and "no whole path" in said("controller:name")[0]


@pytest.mark.parametrize(
    ("severity", "message"),
    [
        ({"pcie_width": "warn"}, "there is no check 'pcie_width'"),
        ({"nic_degraded": "warn"}, "there is no check 'nic_degraded'"),
        ({"mtu_drift": "warn"}, "the check mtu_drift is called wrong_mtu"),
        ({"clok": "warn"}, "Did you mean clock?"),
        ({"clock": "warning"}, "clock is 'warning', expected one of fail, warn, info, skip"),
        ({"clock": False}, "clock is False, expected one of"),
        ({"ranks": "skip"}, "ranks cannot be skip: every address follows from the rank"),
        ({"management": "warn"}, "management cannot be warn: the machine would be cut off"),
    ],
)
def test_a_severity_that_cannot_be(severity, message):
    ((name, text),) = judge(context(settings=base.Settings(severity=severity)))
    assert name == "severity"
    assert message in text


def test_a_playbook_settles_checks_that_there_are():
    found = set()
    for playbook in ROOT.glob("playbooks/**/*.yml"):
        for text in re.findall(r"spark_severity: (.*)", playbook.read_text(encoding="utf-8")):
            settled = yaml.safe_load(text)
            settings = base.Settings(severity=dict.fromkeys(settled, base.FAIL), settled=settled)
            assert {name: pf.level(RULES[name], settings) for name in settled} == settled
            found.add(playbook.stem)
    assert found == {"node_remove", "os_update"}


# -- the machines


VIA = "Task failed: Failed to connect to the host via ssh: "
WAY = "-o ProxyJump=me@bastion.example"
SSH = "ssh -J me@bastion.example -p 2222 nvidia@10.0.0.11"
SCREEN = f"at its screen: {SSH}"
HAND = f"ansible_host its management address? Try it by hand: {SSH}"


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("Missing sudo password", "Add -K"),
        ("Timeout (12s) waiting for privilege escalation prompt: ", "Add -K"),
        ("Incorrect sudo password", "type it again"),
        ("nvidia is not in the sudoers file.", "usermod -aG sudo"),
        (f"{VIA}Permission denied (publickey)", f"ssh-copy-id {WAY} -p 2222 nvidia@10.0.0.11,"),
        ("Invalid/incorrect password: Permission denied, please try again.", "--ask-pass"),
        (f"{VIA}Host key verification failed.", f"accept the machine's key, and compare the fingerprint {SCREEN};"),
        (f"{VIA}No ED25519 host key is known for 10.0.0.11 and you have requested strict checking.", "accept the"),
        (
            f"{VIA}@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! Host key for 10.0.0.11 has changed and you have"
            " requested strict checking. Host key verification failed.",
            f"ssh-keygen -R 10.0.0.11; then log in once and compare the fingerprint {SCREEN}.",
        ),
        (
            f"{VIA}Host key for bastion.example has changed. Connection closed by UNKNOWN port 65535",
            "ssh-keygen -R bastion.example;",
        ),
        (f"{VIA}@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "ssh-keygen -R '[10.0.0.11]:2222';"),
        (f"{VIA}Received disconnect from 10.0.0.11 port 22:2: Too many authentication failures", "IdentitiesOnly=yes"),
        (f"{VIA}Unable to negotiate with 10.0.0.11: no matching host key type found.", "HostKeyAlgorithms=+"),
        (f"{VIA}no matching key exchange method found. Their offer: x", "KexAlgorithms"),
        (f"{VIA}WARNING: UNPROTECTED PRIVATE KEY FILE! Permission denied (publickey).", "chmod 600"),
        ("to use the 'ssh' connection type with passwords, you must install the sshpass program", "Install sshpass"),
        ("Failed to create temporary directory. You may have been able to authenticate", "ansible_remote_tmp"),
        (f"{VIA}Could not resolve hostname a: Temporary failure in name resolution", "Write the machine's address"),
        (f"{VIA}connect to host x port 22: Connection timed out", f"Is the machine on, and is {HAND};"),
        (f"{VIA}connect to host x port 22: Operation timed out", "Is the machine on"),
        (f"{VIA}connect to host x port 22: No route to host", "access to the local network"),
        (f"{VIA}connect to host x port 22: Connection refused", "no sshd at port 2222"),
        (
            f"{VIA}channel 0: open failed: connect failed: Connection refused stdio forwarding failed",
            f"or ssh not to the jump host. Try it by hand: {SSH}.",
        ),
        (
            f"{VIA}me@bastion.example: Permission denied (publickey). Connection closed by UNKNOWN port 65535",
            "jump host",
        ),
        (f"{VIA}Could not resolve hostname bastion.example: x Connection closed by UNKNOWN port 65535", "jump host"),
        (f"{VIA}kex_exchange_identification: read: Connection reset by peer", "--forks"),
        (f"{VIA}kex_exchange_identification: Connection closed by remote host", "--forks"),
        (f"{VIA}Connection closed by 10.0.0.11 port 22", "--forks"),
        (f"{VIA}client_loop: send disconnect: Broken pipe", "sudo journalctl -b -1 -n 50"),
        (f"{VIA}Connection to 10.0.0.11 closed by remote host.", "sudo journalctl -b -1 -n 50"),
        (f"{VIA}Shared connection to 10.0.0.11 closed.", "sudo journalctl -b -1 -n 50"),
        (f"{VIA}banner exchange: Connection to 10.0.0.11 port 22: invalid format", "no sshd at port 2222"),
        (
            f"{VIA}System is booting up. Unprivileged users are not permitted to log in yet. Connection closed by x",
            "Wait until it has started",
        ),
        (f"{VIA}Your password has expired. Password change required but no TTY available.", f"new password: {SSH}"),
        (f'{VIA}Load key "/a": error in libcrypto nvidia@10.0.0.11: Permission denied (publickey).', "ssh-add"),
        (f"{VIA}Warning: Identity file /a not accessible: No such file. Permission denied (publickey).", "ssh-add"),
        (f"{VIA}Bad owner or permissions on /home/me/.ssh/config", "chmod 600"),
        (f"{VIA}/home/me/.ssh/config: line 3: Bad configuration option: usekeychain", "Correct that line"),
        (f"{VIA}ControlPath too long ('/Users/me/.ansible/cp/a' >= 104 bytes)", "ANSIBLE_SSH_CONTROL_PATH_DIR"),
        (f"{VIA}tailscale: tailnet policy does not permit you to SSH. Connection closed by x", "Tailscale SSH"),
        (f"{VIA}# Tailscale SSH requires an additional check. # To authenticate, visit: https://x", "Tailscale SSH"),
        ("Unable to create remote directories: No space left on device", "df -h"),
        (
            f"{VIA}Offending RSA key in /etc/ssh/ssh_known_hosts:3 Host key for a has changed",
            "-f /etc/ssh/ssh_known_hosts -R a;",
        ),
        (f"{VIA}Offending key for IP in /Users/me/.ssh/known_hosts:3 Host key for a has changed", "ssh-keygen -R a;"),
        ("The module interpreter '/usr/bin/python3' was not found.", "Install python3"),
        ("odd", "Try it by hand: ansible"),
        ("", "no reason given"),
    ],
)
def test_machines_that_cannot_be_read(message, remedy):
    hosts = inventory()
    own = {"ansible_host": "10.0.0.11", "ansible_user": "nvidia", "ansible_port": 2222}
    hosts["spark1"].update(own, ansible_ssh_common_args="-o ProxyJump=me@bastion.example")
    ((name, text),) = examine(context({"fabric"}, hosts, failures={"spark1": message}))
    assert name == "not_answering"
    assert remedy in text
    assert "Task failed" not in text


def test_what_is_said_of_several_machines_names_all_of_them():
    lost = dict.fromkeys(("spark1", "spark2"), f"{VIA}@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @")
    (text,) = {text.partition(": ")[2] for _name, text in examine(context({"fabric"}, failures=lost))}
    both = "198.51.100.11 (and 198.51.100.12)"
    assert f"ssh-keygen -R {both}; " in text and f": ssh {both}. " in text
    off = {f"spark{n}": f"{VIA}connect to host 192.0.2.{n} port 22: No route to host" for n in (1, 2)}
    (text,) = {text.partition(": ")[2] for _name, text in examine(context({"fabric"}, failures=off))}
    assert "host 192.0.2.1 (and 192.0.2.2) port 22: No route" in text and f"by hand: ssh {both}" in text
    closed = {f"spark{n}": f"{VIA}nvidia@198.51.100.{n + 10}: Permission denied (publickey)." for n in (1, 2)}
    (text,) = {text.partition(": ")[2] for _name, text in examine(context({"fabric"}, failures=closed))}
    assert f"nvidia@{both}: Permission denied" in text and f"ssh-copy-id {both}" in text


@pytest.mark.parametrize(
    "key", sorted(set(NODE) - {"uid", "systemd", "machine", "arch", "commands", "gpu", "clocks", "kernel_log"})
)
def test_what_could_not_be_read_is_no_finding(key):
    read = nodes()
    for node in read.values():
        del node[key]
    assert examine(context(nodes=read)) == []


@pytest.mark.parametrize(
    ("host", "port", "unit", "hosts", "taken"),
    [
        ("spark2", 21003, "x.service", inventory(4, **OVER_RAY), True),
        ("spark1", 21001, None, inventory(4, **OVER_RAY), True),
        ("spark2", 21001, None, inventory(4, **OVER_RAY), False),  # Ray's client server is on the head
        ("spark2", 21003, "sparkmatrix-ray.service", inventory(4, **OVER_RAY), False),
        ("spark2", 21500, None, inventory(4, **OVER_RAY), False),  # one of its workers takes another one
        ("spark2", 21003, None, inventory(4, engine_services=[{"name": "a"}, {"name": "b", "launch": "ray"}]), True),
        ("spark2", 21003, None, inventory(4, **OVER_RAY, engine_services=[{"name": "a", "launch": "auto"}]), False),
        ("spark2", 21003, None, inventory(4), False),
        ("spark1", 21003, None, inventory(1, **OVER_RAY), False),
    ],
)
def test_the_fixed_ports_of_ray_on_every_node(host, port, unit, hosts, taken):
    read = nodes(len(hosts))
    read[host]["listening"] = [{"port": port, "address": "::", "process": "x", "unit": unit}]
    told = [str(finding) for finding in machine_checks.check_ports(context({"ray"}, hosts, nodes=read))]
    by = "x of x.service" if unit else "x"
    wanted = f"{host}: port {port} (Ray) is taken by {by} at ::. "
    assert [text[: len(wanted)] for text in told] == ([wanted] if taken else [])


OPEN = {"gateway_listen": ["10.0.0.1"], "gateway_port": 443}


@pytest.mark.parametrize(
    ("settings", "port", "address", "taken"),
    [
        (OPEN, 443, "127.0.0.1", ""),
        (OPEN, 443, "10.0.0.2", ""),
        (OPEN, 443, "10.0.0.1", "gateway_port"),
        (OPEN, 443, "0.0.0.0", "gateway_port"),
        (OPEN, 443, "::", "gateway_port"),
        (OPEN, 8081, "127.0.0.1", "gateway_local_port"),
        (OPEN, 8081, "10.0.0.1", ""),
        (OPEN, 80, "0.0.0.0", ""),
        ({**OPEN, "gateway_listen": ["0.0.0.0"]}, 443, "127.0.0.1", "gateway_port"),
        # An interface stands for its addresses; of one that is not known nothing can be said.
        ({**OPEN, "gateway_listen": ["enP7s7"]}, 443, "198.51.100.11", "gateway_port"),
        ({**OPEN, "gateway_listen": ["enP7s7"]}, 443, "127.0.0.1", ""),
        ({**OPEN, "gateway_listen": ["enP7s7"]}, 443, "fe80::1", ""),
        ({**OPEN, "gateway_listen": ["eth9"]}, 443, "127.0.0.1", "gateway_port"),
    ],
)
def test_a_port_of_the_gateway_is_taken_at_an_address(settings, port, address, taken):
    read = nodes()
    read["spark1"]["listening"] = [{"port": port, "address": address, "process": "caddy", "unit": None}]
    told = [
        str(finding)
        for finding in machine_checks.check_ports(context({"gateway"}, inventory(2, **settings), nodes=read))
    ]
    assert len(told) == bool(taken) and all(f"({taken}) is taken by caddy at {address}" in one for one in told)


@pytest.mark.parametrize(
    ("followed", "managed", "settings", "found"),
    [
        ((), [], OPEN, ["ports"]),  # gateway.yml and site.yml open it
        (("gateway",), [], OPEN, []),  # upgrade.yml and rollback.yml do not
        (("gateway",), ["gateway_nginx", "engine"], OPEN, []),
        (("gateway",), ["gateway"], OPEN, ["ports"]),
        (("gateway",), ["gateway"], {}, []),
    ],
)
def test_the_ports_of_a_gateway_that_is_only_followed(followed, managed, settings, found):
    read = nodes()
    read["spark1"].update(managed=managed, listening=[{"port": 443, "address": "::"}])
    hosts = inventory(2, **settings)
    assert [name for name, _ in examine(context({"gateway"}, hosts, nodes=read, followed=frozenset(followed)))] == found
    # Before the head has been read nobody knows: they are asked for.
    asked = pf.request(context({"gateway"}, hosts, followed=frozenset(followed)))["ports"]
    assert asked == ([443, 8081] if settings.get("gateway_listen") else [])


def test_request():
    assert pf.request(context({"fabric"})) == {
        "paths": ["/var/lib/sparkmatrix"],
        "commands": sorted([*machine_checks.COMMANDS["fabric"], "nft", "ib_write_bw", "fail2ban-client"]),
        "ports": [],
        "parts": ["gids", "kernel_log", "nccl", "rdma"],
        "units": ["lldpad.service"],
        "environments": ["/opt/sparkmatrix/engine"],
        "interpreters": [],
        "users": ["sparkmatrix"],
    }
    asked = pf.request(context({"ray", "engine"}, inventory(1, engine_venv_path="/data/venv", ray_port=7000)))
    assert asked["paths"] == ["/data/venv", "/var/lib/sparkmatrix"]
    assert asked["ports"] == [7000, 8000, 8265]
    assert asked["interpreters"] == ["/data/venv/bin/python", "python3"]
    assert "gpu" in asked["parts"]
    asked = pf.request(context({"os_stabilization"}))
    assert asked["parts"] == ["session"]
    assert asked["environments"] == asked["users"] == []


def test_what_a_skipped_check_needs_is_not_read():
    skipped = {"gid_missing": "skip", "gid_mismatch": "skip", "nccl_ring": "warn"}
    asked = pf.request(context({"fabric"}, settings=base.Settings(severity=skipped)))
    assert asked["parts"] == ["kernel_log", "nccl", "rdma"]
