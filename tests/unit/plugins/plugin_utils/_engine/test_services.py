# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Several services side by side."""

from __future__ import annotations

import re
import string
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import errors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe as engine_probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Cluster,
    Environment,
    Image,
    NodePlan,
    Offer,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.probe import PATHS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import image_build, images
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import services as engine_services
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import service_files as render_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.services import Service
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import ENTRY, UserSettings
from engine_asked import GPU, facts
from engine_asked import recipe as big

HOSTS = ["spark1", "spark2", "spark3", "spark4"]
CHAT = {"name": "chat", "nodes": ["spark1", "spark2"], "served_model_name": "chat"}
CODE = {"name": "code", "nodes": ["spark3", "spark4"], "served_model_name": "code", "port": 8001}
SMALL = {"name": "small", "served_model_name": "small", "port": 8002}


def recipe(**values):
    """A model that fits a pair of nodes beside others."""
    return big(**{"weights_gb": 20, "context": 4096, "concurrency": 2, **values})


def made(*entries, count=4, firewall=True, fabric=None, memory=None, **of_recipe):
    read, findings = engine_services.read(entries, HOSTS[:count])
    assert not findings
    services = []
    for entry in read:
        given = engine_services.over({"requirements": GPU, "launch": "ray"}, entry)
        settings = UserSettings(**{**given, "image_build": image_build.parse(given.get("image_build"))})
        services.append(Service(entry, recipe(**of_recipe), settings))
    return engine_services.plan(services, fabric or facts(count), memory or {}, firewall=firewall, given=len(entries))


def problems(*entries, **options):
    result = made(*entries, **options)
    assert not result.plans
    return [str(finding) for finding in result.findings if finding.severity == "error"]


def test_one_service_is_the_list_with_one_entry():
    plain = made().plans
    listed = made({"name": "chat"}).plans
    assert plain["spark1"].here[0].names.unit == listed["spark1"].here[0].names.unit == "sparkmatrix-engine.service"
    for host in HOSTS:
        assert replace(plain[host], heads=(), services=()) == replace(listed[host], heads=(), services=())
    assert plain["spark1"].services == (
        Offer(
            name="engine",
            model="big",
            host="127.0.0.1",
            port=8000,
            key=True,
            task="generate",
            key_file="/etc/sparkmatrix/engine-key.env",
        ),
    )
    assert not plain["spark1"].here[1:]
    assert [plan.heads != () for plan in plain.values()] == [True, False, False, False]


def test_ranks_of_all_nodes_keep_their_gaps():
    fabric = {host: fact for host, fact in facts(4, nodes=3).items() if host != "spark2"}
    assert [plan.here[0].rank for plan in made(fabric=fabric).plans.values()] == [0, 2, 3]


def test_two_and_two():
    result = made(CHAT, CODE)
    plans = result.plans
    assert [plans[host].here[0].role for host in HOSTS] == ["head", "worker", "head", "worker"]
    assert [plans[host].here[0].rank for host in HOSTS] == [0, 1, 0, 1]
    assert plans["spark4"].ray.address == "192.168.100.12:6379"
    assert plans["spark3"].here[0].head == "spark3"
    assert plans["spark3"].cluster == Cluster("spark1", 4, False)
    assert plans["spark1"].here[0].names.unit == "sparkmatrix-engine-chat.service"
    assert plans["spark3"].here[0].names.description == "/etc/sparkmatrix/engine-code.json"
    assert all(plan.open_to_peers for plan in plans.values())
    assert result.summary[0] == "Service chat"
    assert any(line.startswith("  Endpoint: http://192.168.100.12:8001/v1 on spark3") for line in result.summary)


def test_a_head_elsewhere_listens_on_the_fabric():
    plans = made(CHAT, CODE).plans
    argv = plans["spark3"].here[0].engine.command.words
    assert argv[argv.index("--host") + 1] == "192.168.100.12"
    assert [(offer.name, offer.host, offer.port, offer.key) for offer in plans["spark1"].services] == [
        ("chat", "127.0.0.1", 8000, True),
        ("code", "192.168.100.12", 8001, True),
    ]
    assert plans["spark3"].heads[0].host == "192.168.100.12"
    assert plans["spark3"].heads[0].keeper == "sparkmatrix-keeper-code.service"


def test_the_first_of_its_nodes_is_the_head():
    plans = made({**CHAT, "nodes": ["spark2", "spark1"]}, CODE).plans
    assert plans["spark2"].here[0].role == "head"
    assert plans["spark1"].ray.address == "192.168.100.11:6379"
    assert plans["spark1"].heads == ()
    assert plans["spark1"].cluster.is_head


def test_a_node_without_a_service():
    plans = made({**CHAT, "nodes": ["spark1"]}).plans
    idle = plans["spark2"]
    assert idle == NodePlan(
        "spark2", cluster=Cluster("spark1", 4, False), services=idle.services, identity=idle.identity
    )
    assert not plans["spark2"].open_to_peers
    assert not plans["spark1"].open_to_peers


def test_beside_each_other():
    wide = {**CHAT, "memory_share": 0.6}
    plans = made({**SMALL, "nodes": ["spark2"], "memory_share": 0.4}, wide).plans
    assert plans["spark2"].here[0].backend == "ray"  # the one that spans nodes comes first
    (small,) = plans["spark2"].here[1:]
    assert (small.backend, small.names.instance) == ("single", "small")
    budgets = [plans["spark2"].here[0].memory, small.memory]
    assert [round(budget.utilization, 2) for budget in budgets] == [0.48, 0.32]
    argv = small.engine.command.words
    assert argv[argv.index("--gpu-memory-utilization") + 1] == "0.32"
    # Two that start at once would measure each other.
    assert "--kv-cache-memory-bytes" in argv
    assert plans["spark2"].environments == (Environment("/opt/sparkmatrix/engine", tuple(GPU)),)
    assert [head.name for head in plans["spark2"].heads] == ["small"]


def test_the_cache_is_pinned_unless_that_is_switched_off():
    for entry, pinned in ((CHAT, True), ({**CHAT, "pin_kv_cache": False}, False)):
        words = made(entry, CODE).plans["spark1"].here[0].engine.command.words
        assert ("--kv-cache-memory-bytes" in words) == pinned


def test_a_share_that_is_too_small_is_refused_with_numbers():
    entries = ({**SMALL, "nodes": ["spark1"], "memory_share": 0.1}, {**CODE, "nodes": ["spark1"], "memory_share": 0.9})
    (problem,) = problems(*entries)
    assert problem.startswith("small: recipe big: the model does not fit: 9.7 GiB of 121.6 GiB (assumed) at 0.08")
    assert problem.endswith("Or give it a larger memory_share than 0.1.")


def test_findings_name_the_key_of_the_entry():
    architecture = {"layers": 94, "attention_heads": 64, "kv_heads": 4, "head_dim": 128, "max_context": 4096}
    found = problems({**CHAT, "context": 9999}, {**CODE, "engine": "other"}, architecture=architecture)
    assert found[0] == "chat: context: 9999 is above the model's 4096 tokens. Use at most 4096."
    assert found[1].startswith("code: engine: 'other' is not known")
    (alone,) = problems({"name": "chat", "context": 9999}, architecture=architecture)
    assert alone.startswith("chat: context: 9999 is above")


def test_without_entries_findings_name_the_variables():
    (service,) = [Service(engine_services.read([], HOSTS)[0][0], recipe(), UserSettings(engine="other"))]
    (problem,) = engine_services.plan([service], facts(4), {}).findings
    assert str(problem).startswith("engine_name: 'other' is not known")


def test_what_messages_name_is_an_option_of_a_service():
    """In an entry it is a key, else a variable of the role."""
    keys, roles = (
        set(ENTRY),
        Path(engine_services.__file__).parents[3] / "roles/engine/defaults/main.yml",
    )
    variables = set(yaml.safe_load(roles.read_text(encoding="utf-8")))
    assert {engine_names.VARIABLES[key] for key in keys} <= variables
    texts = [path.read_text(encoding="utf-8") for path in Path(engine_services.__file__).parent.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"""\bnames\[["'](\w+)["']\]""", text)}
    tables = [dict(engine.planned, **engine.file_planned) for engine in ENGINES.values()]
    templates = [
        *(text for table in tables for text in table.values()),
        *(remedy for *_, remedy in engine_probe.CAUSES),
    ]
    named |= {name for text in templates for _text, name, *_ in string.Formatter().parse(text) if name}
    assert {"context", "port", "options", "gpu_memory_utilization"} <= named <= keys


def test_all_findings_at_once():
    entries = (
        {**CHAT, "nodes": ["spark1", "spark2"]},
        {**CODE, "nodes": ["spark2", "spark3"], "port": 8000},
        {**SMALL, "nodes": ["spark4"], "served_model_name": "chat", "port": 6379},
        {"name": "last", "nodes": ["spark4"], "port": 80, "served_model_name": "last", "requirements": GPU},
    )
    entries = tuple({key: value for key, value in entry.items() if key != "requirements"} for entry in entries)
    assert [problem.split(". ")[0] for problem in problems(*entries)] == [
        "spark2: its services have more than its memory: chat 1 + code 1 = 2",
        "spark2: 2 of its services span several nodes: chat, code",
        "spark4: its services have more than its memory: small 1 + last 1 = 2",
        "engine_services code: port 8000 is that of chat too",
        "engine_services small: port 6379 is the one of Ray",
        "last: port: 80 is out of its range",
        "engine_services small: it serves the model chat, and so does chat: clients could not tell them apart",
    ]


def test_where_ranks_meet_nobody_serves():
    """The head of one service may be a node of another, whose ranks meet at its address."""
    entries = (
        {**CHAT, "nodes": ["spark1", "spark2"], "rendezvous_port": 8001},
        {**CODE, "nodes": ["spark3"], "port": 8001},
        {**SMALL, "nodes": ["spark4"], "port": 29550, "rendezvous_port": 70000},
    )
    assert [problem.split(". ")[0] for problem in problems(*entries)] == [
        "engine_services code: port 8001 is the one where the ranks of chat meet (rendezvous_port)",
        "engine_services small: port 29550 is the one of vLLM's data parallel ranks",
        "small: rendezvous_port: 70000 is out of its range",
    ]


def test_ports_of_ray_are_no_ports_of_a_service():
    entries = ({**CHAT, "nodes": ["spark1", "spark2"]}, {**SMALL, "nodes": ["spark4"], "port": 21001})
    assert [problem.split(". ")[0] for problem in problems(*entries)] == [
        "engine_services small: port 21001 is one of Ray's"
    ]


def test_one_environment_has_one_list_of_packages():
    entries = (
        {**CHAT, "nodes": ["spark1"], "memory_share": 0.5},
        {**CODE, "nodes": ["spark1"], "memory_share": 0.5, "venv_requirements": ["vllm==0.32.0"]},
    )
    (problem,) = problems(*entries)
    assert "on spark1 it needs other packages in /opt/sparkmatrix/engine than chat" in problem
    plans = made(entries[0], {**entries[1], "venv_path": "/opt/other"}).plans
    assert [item.path for item in plans["spark1"].environments] == ["/opt/sparkmatrix/engine", "/opt/other"]


BESIDE = (
    {**CHAT, "nodes": ["spark1"], "memory_share": 0.5},
    {**CODE, "nodes": ["spark1"], "memory_share": 0.5, "runtime": "container"},
)


def test_sglang_and_tensorrt_llm_are_kept_to_their_part():
    """Their share is one of what is free, which depends on who was there first; the size of the cache does not."""
    sglang = made(BESIDE[0], {**BESIDE[1], "engine": "sglang", "image": "lmsysorg/sglang:v0.5.23"}).plans["spark1"]
    (part,) = sglang.here[1:]
    memory = part.memory
    argv = part.engine.command.words
    tokens = int(argv[argv.index("--max-total-tokens") + 1])
    assert tokens * memory.kv_bytes_per_token <= memory.kv_available < (tokens + 16) * memory.kv_bytes_per_token
    # Where all the others are there, their share of the rest is what the plan gives them.
    fraction = float(argv[argv.index("--mem-fraction-static") + 1])
    assert fraction * (memory.total - memory.host) >= memory.budget - memory.overhead

    image = "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"
    (part,) = made(BESIDE[0], {**BESIDE[1], "engine": "tensorrt-llm", "image": image}).plans["spark1"].here[1:]
    (path,) = part.engine.files
    assert path == "/etc/sparkmatrix/engine-code/trtllm.yml"
    assert f"max_tokens: {tokens}\n" in part.engine.files[path]


def test_alone_they_take_their_share():
    argv = made({"name": "chat", "engine": "sglang", "runtime": "container", "nodes": ["spark1"]}).plans["spark1"]
    assert "--max-total-tokens" not in argv.here[0].engine.command.words


def test_a_cache_that_is_not_a_number_of_tokens_cannot_be_limited():
    shape = {"layers": 94, "attention_heads": 64, "kv_heads": 4, "head_dim": 128}
    entries = (BESIDE[0], {**BESIDE[1], "engine": "sglang"})
    found = problems(*entries, architecture={**shape, "sliding_layers": 47, "sliding_window": 1024})
    assert any("sglang takes a share" in problem and "cannot be given a part" in problem for problem in found)


def test_without_a_key_nothing_listens_on_the_network():
    found = problems(
        CHAT,
        {**CODE, "engine": "sglang", "runtime": "venv", "venv_path": "/opt/s", "venv_requirements": ["sglang==0.5.23"]},
    )
    assert any("sglang asks for no key, and on spark3 it would listen on the network" in problem for problem in found)


def test_containers_beside_each_other():
    image = {"runtime": "container", "launch": "native", "image": "x/y:v0.33.0"}
    plans = made({**BESIDE[0], **image}, {**BESIDE[1], **image, "image": "x/z:v0.33.0"}).plans
    assert plans["spark1"].images == (Image("x/y:v0.33.0", gpus="all"), Image("x/z:v0.33.0", gpus="all"))
    assert plans["spark2"].images == ()
    files = render_files.node(plans["spark1"], render_files.Settings(), render_files.Marks()).files
    for name in ("chat", "code"):
        made_file = yaml.safe_load(files[f"/etc/sparkmatrix/engine-{name}/compose.yml"])
        assert made_file["name"] == f"sparkmatrix-engine-{name}"
        (service,) = made_file["services"].values()
        assert service["container_name"] == f"sparkmatrix-engine-{name}"
        assert service["env_file"] == [f"/etc/sparkmatrix/engine-{name}.env", "/etc/sparkmatrix/engine-key.env"]
        assert f"/etc/sparkmatrix/engine-{name}/nccl.conf" in {mount["source"] for mount in service["volumes"]}


def test_a_model_that_ranks():
    plan = made({"name": "rank", "nodes": ["spark1"]}, task="rank").plans["spark1"]
    argv = plan.here[0].engine.command.words
    assert argv[argv.index("--runner") + 1] == "pooling"
    assert PATHS[plan.here[0].engine.task] == "/v1/rerank"
    assert plan.services[0].task == "rank"
    (problem,) = problems({"name": "rank", "nodes": ["spark1"], "engine": "sglang"}, task="rank")
    assert "SGLang is started for tokens only" in problem


def test_containers_with_ray():
    image = {"runtime": "container", "launch": "ray", "image": "x/y:v0.33.0"}
    plans = made(
        {**CHAT, **image, "memory_share": 0.6}, {**SMALL, "nodes": ["spark2"], "memory_share": 0.4, **image}, CODE
    ).plans
    assert [plans[host].images for host in HOSTS] == [
        (Image("x/y:v0.33.0", ray=True, nccl=True, gpus="all"),),
        (Image("x/y:v0.33.0", ray=True, nccl=True, gpus="all"),),
        (),
        (),
    ]


IMAGE = {"runtime": "container", "launch": "native", "image": "x/y:v0.33.0"}


@pytest.mark.parametrize(
    "services,ids,named",
    [
        # Ranks of one service; the other one is alone on its node, where nobody has to fit it.
        ([CHAT, {**CODE, "nodes": ["spark3"]}], "1222", ["chat"]),
        ([CHAT, {**CODE, "nodes": ["spark3"]}], "1123", []),
        # One name, two services: each is the same on its own nodes.
        ([CHAT, CODE], "1122", []),
        ([CHAT, CODE], "1212", ["chat", "code"]),
        # Not there yet, in check mode.
        ([CHAT, CODE], "1-2-", []),
        # Beside another service of the node.
        ([CHAT, {**SMALL, "nodes": ["spark2"], "memory_share": 0.4}], "12--", ["chat"]),
    ],
)
def test_one_image_for_the_ranks_of_a_service(services, ids, named):
    if services[1]["name"] == "small":
        services = [{**services[0], "memory_share": 0.6}, services[1]]
    plans = made(*({**service, **IMAGE} for service in services)).plans
    seen = {host: {"x/y:v0.33.0": "" if mark == "-" else f"sha256:{mark}"} for host, mark in zip(HOSTS, ids)}
    findings = images.judge(plans, seen, seen)
    assert [finding.host for finding in findings] == [f"engine_services {name}" for name in named]
    for finding in findings:
        assert "docker image rm x/y:v0.33.0" in finding.remedy and "sha256:" in finding.found
        assert "is not the same image on all of its nodes" in finding.found  # molecule/launch looks for it


def test_images_of_a_service_alone():
    plans = made({**CHAT, **IMAGE}, count=2).plans
    seen = {"spark1": {"x/y:v0.33.0": "sha256:1"}, "spark2": {}}
    assert not images.judge(plans, seen, seen)
    seen = {"spark1": {"x/y:v0.33.0": "sha256:1"}, "spark2": {"x/y:v0.33.0": "sha256:2"}}
    (finding,) = images.judge(plans, seen, seen)
    assert str(finding.host) == "engine"
    assert "spark1 sha256:1, spark2 sha256:2" in finding.found


def test_a_plan_is_served_again_from_the_images_that_it_had():
    name = "x/y:v0.33.0"
    fresh = made({**CHAT, **IMAGE}, count=2).plans
    seen = {"spark1": {name: "sha256:2"}, "spark2": {name: "sha256:2"}}
    assert not images.judge(fresh, seen, seen)
    kept = {
        host: replace(plan, image_ids={name: f"sha256:{number}"})
        for number, (host, plan) in enumerate(fresh.items(), 1)
    }
    (finding,) = images.judge(kept, seen, seen)
    assert (finding.host, finding.severity) == ("spark1", "warning")
    assert "that was sha256:1, which is gone, and this is sha256:2" in finding.found
    # Not there yet: it is fetched, and seen then.
    assert not images.judge(kept, {"spark1": {name: ""}}, {"spark1": {name: ""}})


def test_without_a_firewall():
    (warning,) = [str(finding) for finding in made(CHAT, CODE, firewall=False).findings]
    assert "its API listens on 192.168.100.12 of spark3 (fabric) without a firewall" in warning
    fabric = dict(facts(4))
    fabric["spark3"] = facts(4, cluster_address="10.0.0.3")["spark3"]
    (problem,) = problems(CHAT, CODE, firewall=False, fabric=fabric)
    assert "the management network, without a firewall" in problem
    assert made(CHAT, CODE, fabric=fabric).plans


def test_open_mpi_needs_a_firewall():
    def over_mpi(only_print=False, **values):
        (entry,), _findings = engine_services.read([], HOSTS)
        settings = UserSettings(engine="tensorrt-llm", only_print=only_print)
        return engine_services.plan([Service(entry, recipe(), settings)], facts(2), {}, **values)

    refused = over_mpi()
    assert not refused.plans
    (finding,) = errors(refused.findings)
    assert "listen on all interfaces" in str(finding) and "spark_port_filter: true" in str(finding)
    assert over_mpi(firewall=True).plans and over_mpi(only_print=True).plans


def test_facts_of_another_cluster():
    fabric = facts(4, nodes=5)
    assert len(problems(CHAT, CODE, fabric=fabric)) == 4


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        ("chat", "'chat' is no mapping"),
        ({"name": "Chat"}, "'Chat' is no name of a service"),
        ({}, "'' is no name of a service"),
        ({"name": "key"}, "'key' is taken"),
        ({"name": "a", "node": ["spark1"]}, "it has no key 'node'. Did you mean 'nodes'?"),
        ({"name": "a", "nodes": []}, "nodes is []"),
        ({"name": "a", "nodes": "spark1"}, "nodes is the text 'spark1'. Write a list: [spark1]."),
        ({"name": "a", "nodes": ["spark9"]}, "spark9 is no host of the group 'sparks'"),
        ({"name": "a", "nodes": ["spark1", "spark1"]}, "spark1 is named 2 times"),
        ({"name": "a", "memory_share": 0}, "memory_share is 0"),
        ({"name": "a", "memory_share": True}, "memory_share is True"),
        ({"name": "a", "memory_share": 1.5}, "memory_share is 1.5"),
    ],
)
def test_entries(entry, wanted):
    read, findings = engine_services.read([entry], HOSTS)
    assert not read
    assert any(wanted in str(finding) for finding in findings)


def test_names_are_unique():
    _read, findings = engine_services.read([{"name": "a"}, {"name": "a"}], HOSTS)
    assert "2 services are called 'a'" in str(findings[0])


def test_an_entry_over_the_common_options():
    (entry,), _findings = engine_services.read([{"name": "a", "options": {"x": 1}, "port": 9000}], HOSTS)
    common = {"options": {"x": 0, "y": 2}, "port": 8000, "environment": {"E": "1"}}
    assert engine_services.over(common, entry) == {
        "options": {"x": 1, "y": 2},
        "port": 9000,
        "environment": {"E": "1"},
    }


def test_two_services_of_one_name_are_one_finding():
    entries = [{"name": "chat", "recipe": "a"}, {"name": "chat", "recipe": "b"}, {"name": "code"}]
    read, findings = engine_services.read(entries, HOSTS)
    assert [(entry.name, entry.values) for entry in read] == [("chat", {"recipe": "a"}), ("code", {})]
    assert [finding.found for finding in findings] == ["2 services are called 'chat'"]
