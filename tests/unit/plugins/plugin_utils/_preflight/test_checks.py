# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

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
from hypothesis import given
from hypothesis import strategies as st
from preflight_inputs import ALL, NODE, context, fact, inventory, nodes

ROOT = Path(__file__).resolve().parents[5]
DIGEST = f"ghcr.io/open-webui/open-webui@sha256:{'a' * 64}"
OVER_RAY = {"engine_launch": "ray"}


def found(checks, ctx):
    return [(rule.id, str(finding)) for rule, finding in pf.run(checks, ctx)]


def judge(ctx):
    return found(pf.INVENTORY, ctx)


def examine(ctx):
    return found(pf.HOSTS, ctx)


# -- the inventory


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_good_inventory_has_no_findings(count):
    assert judge(context(hosts=inventory(count))) == []


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([None, 1], ["spark1: spark_rank is not set"]),
        (["0", 1], ["spark1: spark_rank is the text '0', not a number"]),
        ([True, 0], ["spark1: spark_rank is True, expected a whole number"]),
        ([-1, 0], ["spark1: spark_rank is -1, expected a whole number"]),
        ([0.0, 1], ["spark1: spark_rank is 0.0, expected a whole number"]),
        ([0, 0], ["spark1, spark2: spark_rank 0 is given 2 times"]),
        ([0, 2], []),
        ([1, 2], ["inventory: no machine is the head (spark_rank 0)"]),
        ([0, 0, "x"], ["spark3: spark_rank is 'x'", "spark1, spark2: spark_rank 0"]),
    ],
)
def test_ranks(ranks, expected):
    hosts = {f"spark{n + 1}": {"spark_rank": rank} for n, rank in enumerate(ranks)}
    texts = [text for name, text in judge(context(hosts=hosts)) if name == "ranks"]
    assert len(texts) == len(expected)
    for text, start in zip(texts, expected):
        assert text.startswith(start)


@given(st.lists(st.integers(-2, 6) | st.none() | st.text(max_size=3), min_size=1, max_size=6))
def test_ranks_are_accepted_when_each_is_given_once_and_one_is_the_head(ranks):
    hosts = {f"spark{n}": {"spark_rank": rank} for n, rank in enumerate(ranks)}
    accepted = not list(inventory_checks.check_ranks(context(hosts=hosts)))
    numbers = [rank for rank in ranks if isinstance(rank, int)]
    assert accepted == (0 in numbers and min(numbers) >= 0 and len(set(numbers)) == len(ranks))


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("spark1", True),
        ("spark1.example.net", True),
        ("198.51.100.1", True),
        ("spark_1", False),
        ("-spark", False),
        ("spark 1", False),
        ("a" * 64, False),
        ("a." * 127 + "ab", False),
    ],
)
def test_names(name, good):
    assert (judge(context(hosts={name: {"spark_rank": 0}})) == []) == good


def test_addresses():
    hosts = inventory(3)
    hosts["spark2"]["ansible_host"] = "SPARK1.local"
    hosts["spark3"]["ansible_host"] = "spark1.local"
    assert judge(context(hosts=hosts))[0][1].startswith("spark2, spark3: ansible_host is spark1.local for 2 machines")
    hosts["spark3"]["ansible_port"] = 2222
    assert judge(context(hosts=hosts)) == []
    hosts = {"spark1": {"spark_rank": 0}, "alias": {"spark_rank": 1, "ansible_host": "spark1"}}
    assert "for 2 machines" in judge(context(hosts=hosts))[0][1]


def test_unknown_variables():
    hosts = inventory(2, fabric_mtuu=1, my_own=2, engine_zzz=3)
    hosts["spark1"]["spark_rnak"] = 1
    texts = [text for _, text in judge(context(hosts=hosts))]
    assert texts[0].startswith("all 2 sparks: there is no variable engine_zzz. A misspelled")
    assert "fabric_mtuu. A misspelled variable changes nothing, silently. Did you mean fabric_mtu?" in texts[1]
    assert "Did you mean spark_rank?" in texts[2]
    assert len(texts) == 3
    settings = base.Settings(ignored_variables=("engine_*", "fabric_mtuu", "spark_rnak"))
    assert judge(context(hosts=hosts, settings=settings)) == []
    # a run looks only at the variables of its layers, and of roles that document theirs
    assert [name for name, _ in judge(context({"os_stabilization"}, hosts))] == ["unknown_variables"]
    assert judge(context({"verify"}, inventory(1, verify_odd=1))) == []


def test_a_key_of_a_service_is_no_variable():
    hosts = inventory(1, engine="sglang", gpu_memory_utilization=0.8, port=1, image="x")
    texts = [text for _, text in judge(context(hosts=hosts))]
    assert ["engine_name" in texts[0], "engine_gpu_memory_utilization" in texts[1], len(texts)] == [True, True, 2]


def test_a_slip_in_the_prefix_is_found_too():
    """Or the default serves, and nobody knows why."""
    hosts = inventory(2, engin_recipe="a", my_own_port=1, ansible_become_pass="x", inventory_dir="/x")
    hosts["spark1"]["ansible_usr"] = "nvidia"
    texts = [text for _, text in judge(context(hosts=hosts))]
    assert [text.partition(". ")[0] for text in texts] == [
        "spark1: there is no variable ansible_usr",
        "all 2 sparks: there is no variable engin_recipe",
    ]
    assert "Did you mean ansible_user?" in texts[0]
    assert "Did you mean engine_recipe?" in texts[1]
    settings = base.Settings(ignored_variables=("engin_recipe", "ansible_usr"))
    assert judge(context(hosts=hosts, settings=settings)) == []


def test_types_and_templates():
    hosts = inventory(2, fabric_mtu="nine", engine_port=None)
    ctx = context(hosts=hosts, broken={"spark2": {"engine_port": "'x' is undefined", "engine_zzz": "odd"}})
    texts = [text for _, text in judge(ctx)]
    assert any(t.startswith("all 2 sparks: fabric_mtu is the text 'nine', expected a whole number. ") for t in texts)
    assert any(t.startswith("spark2: engine_port cannot be evaluated: 'x' is undefined. ") for t in texts)
    assert any(t.startswith("spark2: there is no variable engine_zzz") for t in texts)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, ""),
        ({"fabric_mtu": "9000"}, ""),
        ({"fabric_mtu": "large"}, ""),  # said by the check of types
        ({"fabric_mtu": 12000}, "fabric_mtu is 12000"),
        ({"fabric_mtu": 1500}, ""),  # a warning of the fabric's own
        ({"fabric_topology": "ring"}, "it takes three nodes, and there are 2"),
        ({"fabric_topology": "mesh"}, "fabric_topology is 'mesh'"),
        ({"fabric_subnets": ["192.168.100.0/24"]}, "lists 1 subnet, and a cable has 2 halves"),
        ({"fabric_subnets": ["192.168.100.0/24", "192.168.100.128/25"]}, "fabric_subnets overlap"),
        ({"fabric_subnets": ["192.168.100.0/24", "192.168.101.1/24"]}, "is no IPv4 subnet"),
        ({"fabric_qos": "roce", "fabric_transport": "socket"}, "which sends no RoCE"),
    ],
)
def test_the_fabric_is_judged_before_any_machine_is_read(values, message):
    texts = [str(finding) for finding in inventory_checks.check_fabric_plan(context(hosts=inventory(2, **values)))]
    assert (message in texts[0]) if message else texts == []


@pytest.mark.parametrize(("mode", "found"), [(0o600, ""), (0o640, ""), (0o644, "every user of this controller")])
def test_the_token_of_the_hub_is_for_its_owner(tmp_path, monkeypatch, mode, found):
    (tmp_path / "token").write_text("hf_x")
    (tmp_path / "token").chmod(mode)
    monkeypatch.setenv("HOME", str(tmp_path))

    def said(name):
        ctx = context(hosts=inventory(2, artifacts_hub_token_file=name))
        return [str(one) for one in inventory_checks.check_hub_token(ctx)]

    assert found in said("~/token")[0] if found else said("~/token") == []
    assert said("") == [] and "no whole path" in said("token")[0]


def test_sources_of_models_on_this_controller_are_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "name").mkdir()

    def said(source):
        ctx = context(hosts=inventory(2, artifacts_sources={"org/name": source}))
        return [str(one) for one in inventory_checks.check_model_sources(ctx)]

    assert said("controller:~/name") == said("/on/a/node") == said(7) == []
    assert "no such directory" in said("controller:~/other")[0] and "no whole path" in said("controller:name")[0]


def test_a_word_that_is_none_is_told_once():
    ctx = replace(context(hosts=inventory(2, fabric_topology="rign")), variables=variables.load())
    made = [
        str(found)
        for check in (inventory_checks.check_types, inventory_checks.check_fabric_plan)
        for found in check(ctx)
    ]
    assert [text.partition(", expected")[0] for text in made] == ["all 2 sparks: fabric_topology is 'rign'"]
    assert "Correct fabric_topology in the inventory" in made[0]  # the choices say more than a description


def planned(layers=ALL, count=2, **values):
    """What the check of the engine says, with the documented defaults of all variables."""
    ctx = replace(context(hosts=inventory(count, **values), layers=layers), variables=variables.load())
    return [str(finding) for finding in inventory_checks.check_engine_plan(ctx)]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"engine_recipe": "qwen3-235b-a22b"}, "engine_recipe: there is no recipe 'qwen3-235b-a22b'"),
        ({"engine_options": {"max-num-seq": 2}}, "Write --max-num-seqs in full"),
        ({"engine_options": {"foo_bar": 2}}, "has no option --foo-bar"),
        ({"engine_tensor_parallel_size": 3}, "Tensor parallel sizes that work on 2 nodes: 1, 2"),
        ({"engine_context": "32768", "engine_concurrency": 900}, "does not fit"),
        ({"engine_port": "6379", **OVER_RAY}, "6379 is ray_port, too"),
        ({"engine_services": [{"name": "a", "recipe": "qwen3-8b", "nodes": ["spark9"]}]}, "spark9 is no host of the"),
        (
            {"engine_services": [{"name": "a", "recipe": "qwen3-9b", "nodes": ["spark1"]}]},
            "no recipe 'qwen3-9b'",
        ),
        ({"engine_image": "x/y:latest", "engine_runtime": "container"}, "engine_allow: [moving-image]"),
        ({"engine_environment": {"HF_TOKEN": "x"}}, "looks like a secret"),
        ({"engine_recipe_paths": ["/nowhere"]}, "there is no directory /nowhere"),
        ({"engine_model_files": "/nowhere"}, "/nowhere"),
    ],
)
def test_the_engine_is_judged_before_any_machine_is_read(values, message):
    assert message in "\n".join(planned(**values))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"engine_expert_parallel": False},
        {"engine_free_memory_gib": 117, "engine_gpu_memory_utilization": "0.8"},
        {"engine_services": [{"name": "a", "recipe": "qwen3-8b", "nodes": ["spark2"]}]},
        # A wrong type is said by the check of types.
        {"engine_context": "long"},
        {"engine_options": 7},
        {"preflight_require_gb10": False, "engine_context": "32768", "engine_concurrency": 900},
    ],
)
def test_what_only_machines_can_tell_is_for_the_plan(values):
    assert planned(**values) == []


@pytest.mark.parametrize("layers", [{"fabric"}, {"ray", "engine", "gateway"}, {"os_stabilization", "fabric"}])
def test_runs_that_plan_no_engine_judge_none(layers):
    assert planned(frozenset(layers), engine_recipe="none") == []


def test_templates_that_fail_are_told_once():
    ctx = context(hosts=inventory(2, engine_recipe="x"))
    assert list(inventory_checks.check_engine_plan(ctx))
    assert not list(inventory_checks.check_engine_plan(replace(ctx, broken={"spark1": {"engine_port": "undefined"}})))
    assert not list(inventory_checks.check_engine_plan(context(hosts={})))


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
        node[key] = None
    assert examine(context(nodes=read)) == []


def test_other_hardware_when_allowed():
    read = nodes()
    for node in read.values():
        node["machine"] = {"is_gb10": False}
        node["arch"] = "x86_64"
    assert examine(context(nodes=read, settings=base.Settings(require_gb10=False))) == []


def test_a_layer_makes_only_its_own_checks():
    read = nodes(1)
    read["spark1"].update(memory={"total": 1}, commands={})
    names = {name for name, _ in examine(context({"os_stabilization"}, inventory(1), nodes=read))}
    assert names == {"commands"}
    assert examine(context(frozenset(), inventory(1), nodes=read)) == []


@pytest.mark.parametrize(
    ("listener", "message"),
    [
        ({"port": 8000, "unit": "sparkmatrix-engine.service"}, ""),
        ({"port": 8001, "unit": "odd.service"}, ""),
        (
            {"port": 8000, "address": "0.0.0.0", "process": "nginx", "unit": "nginx.service"},
            "spark1: port 8000 (engine_port) is taken by nginx of nginx.service at 0.0.0.0",
        ),
        (
            {"port": 6379, "address": "::", "process": None, "unit": None},
            "port 6379 (ray_port) is taken by an unknown process at ::",
        ),
    ],
)
def test_ports_of_the_head(listener, message):
    read = nodes()
    read["spark1"]["listening"] = [listener]
    texts = [text for _, text in examine(context(nodes=read))]
    assert (message in texts[0]) if message else texts == []
    read["spark1"]["listening"], read["spark2"]["listening"] = [], [listener]
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


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"web_ui_enabled": "yes", "web_ui_state": "absent"}, []),
        ({"web_ui_enabled": "yes"}, ["there is no gateway"]),
        ({"web_ui_enabled": True, "gateway_listen": ["lo"], "web_ui_image": DIGEST}, []),
        ({"web_ui_enabled": True, "gateway_listen": ["lo"], "web_ui_image": "A B"}, ["is no image"]),
        (
            {"web_ui_enabled": True, "gateway_listen": ["lo"], "web_ui_runtime": "venv", "web_ui_port": "8081"},
            ["is 8081"],
        ),
        ({"web_ui_enabled": True, "gateway_listen": ["lo"], "web_ui_runtime": "venv", "web_ui_port": 80}, ["is 80"]),
    ],
)
def test_the_page_needs_a_gateway_and_a_port_of_its_own(settings, expected):
    asked = context({"web_ui"}, inventory(2, **{"web_ui_image": DIGEST, **settings}))
    found = [finding.found for finding in inventory_checks.check_web_ui(asked)]
    assert len(found) == len(expected) and all(want in one for want, one in zip(expected, found, strict=True))


def test_the_port_of_the_page_counts_where_it_is_wanted():
    read = nodes()
    own = "system-sparkmatrix_web_ui.slice"  # its container
    wanted = {"web_ui_enabled": True, "web_ui_image": DIGEST}
    for settings, unit, expected in (({}, None, []), (wanted, None, ["ports"]), (wanted, own, [])):
        read["spark1"]["listening"] = [{"port": 8080, "address": "127.0.0.1", "unit": unit}]
        hosts = inventory(4, gateway_listen=["lo"], **settings)
        assert [name for name, _ in examine(context({"web_ui"}, hosts, nodes=read))] == expected


def test_ports_of_the_gateway_count_where_there_is_one():
    read = nodes()
    read["spark1"]["listening"] = [
        {"port": 8443, "address": "127.0.0.1"},
        {"port": 8081, "unit": "sparkmatrix-gateway.service"},
    ]
    for settings, expected in (
        ({}, []),
        ({"gateway_listen": ["lo"]}, ["ports"]),
        ({"gateway_listen": ["lo"], "gateway_state": "absent"}, []),
        ({"gateway_listen": ["lo"], "gateway_port": 9443}, []),
    ):
        assert [name for name, _ in examine(context({"gateway"}, inventory(4, **settings), nodes=read))] == expected


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
    told = [str(one) for one in machine_checks.check_ports(context({"gateway"}, inventory(2, **settings), nodes=read))]
    assert len(told) == bool(taken) and all(f"({taken}) is taken by caddy at {address}" in one for one in told)


@pytest.mark.parametrize(
    ("followed", "managed", "settings", "found"),
    [
        ((), [], OPEN, ["ports"]),  # gateway.yml and site.yml open it
        (("gateway",), [], OPEN, []),  # upgrade.yml and rollback.yml do not
        (("gateway",), ["gateway_nginx", "engine"], OPEN, []),
        (("gateway",), ["gateway"], OPEN, ["ports"]),
        (("gateway",), ["gateway"], {}, []),
        (("gateway",), ["gateway"], {**OPEN, "gateway_state": "absent"}, []),
    ],
)
def test_the_ports_of_a_gateway_that_is_only_followed(followed, managed, settings, found):
    read = nodes()
    read["spark1"].update(managed=managed, listening=[{"port": 443, "address": "::"}])
    hosts = inventory(2, **settings)
    assert [name for name, _ in examine(context({"gateway"}, hosts, nodes=read, followed=frozenset(followed)))] == found
    # Before the head has been read nobody knows: they are asked for.
    wanted = settings.get("gateway_listen") and "gateway_state" not in settings
    asked = pf.request(context({"gateway"}, hosts, followed=frozenset(followed)))["ports"]
    assert asked == ([443, 8081] if wanted else [])


def test_everything_that_is_wrong_with_ports_is_told_at_once():
    hosts = inventory(2, gateway_listen=["lo"], gateway_port=6379, gateway_local_port=8000)
    found = [str(finding) for finding in inventory_checks.check_gateway(context({"gateway"}, hosts))]
    assert len(found) == 2 and "ray_port" in found[1] and "the engine's own port" in found[0]


def test_ports_of_services_count_where_they_listen():
    services = [{"name": "chat"}, {"name": "embedding", "port": 8001, "nodes": ["spark3", "spark2"]}, "wrong"]
    hosts = inventory(4, engine_services=services)
    read = nodes()
    for name in read:
        read[name]["listening"] = [{"port": 8001, "process": "x", "address": "::"}, {"port": 8000, "unit": "x.service"}]
    told = [text for _, text in examine(context({"engine"}, hosts, nodes=read))]
    assert len(told) == 2 and any(
        "spark3: port 8001 (port of the service embedding) is taken by x" in one for one in told
    )
    assert any(one.startswith("spark1: port 8000 (port of the service chat) is taken") for one in told)
    assert pf.request(context({"engine"}, hosts, nodes=read))["ports"] == [8000, 8001]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"gateway_keys": [{"name": "a"}, {"name": "a"}]}, "gateway_keys has a more than once"),
        ({"gateway_keys": ["alice"]}, "gateway_keys is no list of {name, key}"),
        ({"gateway_keys": [{"key": "x" * 20}]}, "gateway_keys is no list of {name, key}"),
        ({"gateway_port": "8000"}, "gateway_port is 8000, the engine's own port"),
        ({"gateway_tls": "files"}, "gateway_tls_certificate is ''"),
        ({"gateway_port": "6379"}, "gateway_port is 6379, which is ray_port, too"),
        ({"gateway_local_port": "8265"}, "gateway_local_port is 8265, which is ray_dashboard_port, too"),
        ({"gateway_port": 29501}, "gateway_port is 29501, which is engine_rendezvous_port, too"),
        ({"gateway_port": 29550}, "gateway_port is 29550, which is the port of vLLM's data parallel ranks, too"),
        ({"gateway_port": 7000, "fabric_bandwidth_port": 7000}, "gateway_port is 7000, which is fabric_bandwidth_port"),
        ({"engine_services": [{"name": "a"}, {"name": "b", "port": 8081}]}, "gateway_local_port is 8081, the engine's"),
    ],
)
def test_settings_of_the_gateway(settings, says):
    hosts = inventory(2, gateway_listen=["lo"], **settings)
    assert says in " ".join(str(finding) for finding in inventory_checks.check_gateway(context({"gateway"}, hosts)))
    assert not list(inventory_checks.check_gateway(context({"gateway"}, {"a": {}})))


def test_a_service_of_another_node_is_not_in_the_way_of_the_gateway():
    services = [{"name": "a"}, {"name": "b", "port": 8081, "nodes": ["spark2"]}]
    hosts = inventory(2, gateway_listen=["lo"], engine_services=services)
    assert not list(inventory_checks.check_gateway(context({"gateway"}, hosts)))


def test_an_interface_of_the_earlier_fabric_may_have_its_subnet():
    read = nodes()
    read["spark1"]["network"]["interfaces"].append(
        {"name": "renamed0", "addresses": [{"address": "10.100.1.1", "prefix": 24, "scope": "global"}]}
    )
    assert [name for name, _ in examine(context({"fabric"}, nodes=read))] == ["subnets"]
    earlier = {"spark1": {"rails": [{"netdev": "renamed0"}]}}
    assert examine(context({"fabric"}, nodes=read, earlier=earlier)) == []


@pytest.mark.parametrize(
    ("local", "message"),
    [
        (None, "there is no fabric fact"),
        ("torn {", "not valid JSON"),
        (fact(state="applying"), "in state 'applying'"),
        (fact(count=2), "made for rank 0 of 2, the inventory says 0 of 4"),
        (fact("spark7"), "made for rank 0 of 4 and the name spark7, the inventory says 0 of 4"),
        (fact(rank=1), "made for rank 1 of 4, the inventory says 0 of 4"),
    ],
)
def test_fabric_fact(local, message):
    facts = {f"spark{n + 1}": fact(f"spark{n + 1}", n) for n in range(4)}
    facts["spark1"] = local
    text = dict(examine(context({"plan"}, nodes=nodes(), earlier=facts)))["fabric_fact"]
    assert message in text
    assert "--tags fabric" in text
    assert "fabric_fact" not in dict(examine(context({"plan", "fabric"}, nodes=nodes(), earlier=facts)))
    del facts["spark1"]  # not asked
    assert examine(context({"plan"}, nodes=nodes(), earlier=facts)) == []


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
