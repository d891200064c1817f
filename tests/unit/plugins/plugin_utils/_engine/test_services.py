# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Several services side by side."""

from __future__ import annotations

import re
import string
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.api_paths import MESSAGES, PROBED, PROMPTS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import causes
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import Found
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Cluster,
    Environment,
    Image,
    NodePlan,
    Offer,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import early, image_build, images
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import services as engine_services
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import service_files as render_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.services import Service
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import ENTRY, UserSettings
from engine_plans import GPU, facts
from engine_plans import recipe as big
from rules import hold, of_findings

HOSTS = ["spark1", "spark2", "spark3", "spark4"]
CHAT = {"name": "chat", "nodes": ["spark1", "spark2"], "served_model_name": "chat"}
CODE = {"name": "code", "nodes": ["spark3", "spark4"], "served_model_name": "code", "port": 8001}
SMALL = {"name": "small", "served_model_name": "small", "port": 8002}


def recipe(**values):
    """A model that fits a pair of nodes beside others."""
    return big(**{"weights_gb": 20, "context": 4096, "concurrency": 2, **values})


def made(*entries, count=4, firewall=True, fabric=None, only_print=False, **of_recipe):
    read, findings = engine_services.read(entries, HOSTS[:count])
    assert not findings
    services = []
    for entry in read:
        given = engine_services.over({"requirements": GPU, "launch": "ray", "only_print": only_print}, entry)
        settings = UserSettings(**{**given, "image_build": image_build.parse(given.get("image_build"))})
        services.append(Service(entry, recipe(**of_recipe), settings))
    return engine_services.plan(services, fabric or facts(count), {}, firewall=firewall, given=len(entries))


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
        *(remedy for *_, remedy in causes.CAUSES),
    ]
    named |= {name for text in templates for _text, name, *_ in string.Formatter().parse(text) if name}
    assert {"context", "port", "options", "gpu_memory_utilization"} <= named <= keys


def test_one_environment_has_one_list_of_packages():
    entries = (
        {**CHAT, "nodes": ["spark1"], "memory_share": 0.5},
        {**CODE, "nodes": ["spark1"], "memory_share": 0.5, "venv_requirements": ["vllm==0.32.0"]},
    )
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
    assert PROBED[plan.here[0].engine.task] == "/v1/rerank"
    assert plan.services[0].task == "rank"


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


def found(own):
    by_name = {"x/y:v0.33.0": own}
    return Found(ids=by_name, contents=by_name)


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
    findings = images.judge(
        plans, {host: found("" if mark == "-" else f"sha256:{mark}") for host, mark in zip(HOSTS, ids)}
    )
    assert [finding.host for finding in findings] == [f"engine_services {name}" for name in named]
    for finding in findings:
        assert "docker image rm x/y:v0.33.0" in finding.remedy and "sha256:" in finding.found
        assert "is not the same image on all of its nodes" in finding.found  # molecule/launch looks for it


def test_images_of_a_service_alone():
    plans = made({**CHAT, **IMAGE}, count=2).plans
    assert not images.judge(plans, {"spark1": found("sha256:1"), "spark2": Found()})
    (finding,) = images.judge(plans, {"spark1": found("sha256:1"), "spark2": found("sha256:2")})
    assert str(finding.host) == "engine"
    assert "spark1 sha256:1, spark2 sha256:2" in finding.found


def test_a_plan_is_served_again_from_the_images_that_it_had():
    name = "x/y:v0.33.0"
    fresh = made({**CHAT, **IMAGE}, count=2).plans
    seen = {"spark1": found("sha256:2"), "spark2": found("sha256:2")}
    assert not images.judge(fresh, seen)
    kept = {
        host: replace(plan, image_ids={name: f"sha256:{number}"})
        for number, (host, plan) in enumerate(fresh.items(), 1)
    }
    (finding,) = images.judge(kept, seen)
    assert (finding.host, finding.severity) == ("spark1", "warning")
    assert "that was sha256:1, which is gone, and this is sha256:2" in finding.found
    # Not there yet: it is fetched, and seen then.
    assert not images.judge(kept, {"spark1": found("")})


def test_an_entry_over_the_common_options():
    (entry,), _findings = engine_services.read([{"name": "a", "options": {"x": 1}, "port": 9000}], HOSTS)
    common = {"options": {"x": 0, "y": 2}, "port": 8000, "environment": {"E": "1"}}
    assert engine_services.over(common, entry) == {
        "options": {"x": 1, "y": 2},
        "port": 9000,
        "environment": {"E": "1"},
    }


ONE, TWO = ["spark1"], ["spark1", "spark2"]
CAPPED = {"architecture": {"layers": 94, "attention_heads": 64, "kv_heads": 4, "head_dim": 128, "max_context": 4096}}
SLIDING = {"architecture": {**CAPPED["architecture"], "sliding_layers": 47, "sliding_window": 1024}}
ON_THE_LAN = {**facts(4), "spark3": facts(4, cluster_address="10.0.0.3")["spark3"]}
SGLANG_VENV = {"engine": "sglang", "runtime": "venv", "venv_path": "/opt/s", "venv_requirements": ["sglang==0.5.23"]}
TRT = {"engine": "tensorrt-llm", "runtime": "container", "image": "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"}
# Entries, and what else is given; what is found is in the fixture.
CASES = {
    "two and two": ((CHAT, CODE), {}),
    "a share that is too small": (
        ({**SMALL, "nodes": ONE, "memory_share": 0.1}, {**CODE, "nodes": ONE, "memory_share": 0.9}),
        {},
    ),
    "what an entry says": (({**CHAT, "context": 9999}, {**CODE, "engine": "other"}), CAPPED),
    "what the only entry says": (({"name": "chat", "context": 9999},), CAPPED),
    "more than the memory, two that span nodes, ports and names twice": (
        (
            {**CHAT, "nodes": TWO},
            {**CODE, "nodes": ["spark2", "spark3"], "port": 8000},
            {**SMALL, "nodes": ["spark4"], "served_model_name": "chat", "port": 6379},
            {"name": "last", "nodes": ["spark4"], "port": 80, "served_model_name": "last"},
        ),
        {},
    ),
    "a port where ranks meet": (
        (
            {**CHAT, "nodes": TWO, "rendezvous_port": 8001},
            {**CODE, "nodes": ["spark3"], "port": 8001},
            {**SMALL, "nodes": ["spark4"], "port": 29550, "rendezvous_port": 70000},
        ),
        {},
    ),
    "a port of Ray": (({**CHAT, "nodes": TWO}, {**SMALL, "nodes": ["spark4"], "port": 21001}), {}),
    "other packages in one environment": (
        (BESIDE[0], {**BESIDE[0], **CODE, "nodes": ONE, "venv_requirements": GPU[:1]}),
        {},
    ),
    "no key on the network": ((CHAT, {**CODE, **SGLANG_VENV}), {}),
    "a cache that is not a number of tokens": ((BESIDE[0], {**BESIDE[1], "engine": "sglang"}), SLIDING),
    "a task that the engine has not": (({"name": "rank", "nodes": ONE, "engine": "sglang"},), {"task": "rank"}),
    "no firewall": ((CHAT, CODE), {"firewall": False}),
    "no firewall, on the management network": ((CHAT, CODE), {"firewall": False, "fabric": ON_THE_LAN}),
    "a firewall, on the management network": ((CHAT, CODE), {"fabric": ON_THE_LAN}),
    "Open MPI without a firewall": (({"name": "chat", **TRT},), {"firewall": False}),
    "Open MPI without a firewall, only printed": (({"name": "chat", **TRT},), {"firewall": False, "only_print": True}),
    "Open MPI": (({"name": "chat", **TRT},), {}),
    "facts of another cluster": ((CHAT, CODE), {"fabric": facts(4, nodes=5)}),
}
ENTRIES = {
    "no mapping": "chat",
    "a name in capitals": {"name": "Chat"},
    "no name": {},
    "a name that is taken": {"name": "key"},
    "a key that nobody knows": {"name": "a", "node": ONE},
    "no nodes": {"name": "a", "nodes": []},
    "nodes as a text": {"name": "a", "nodes": "spark1"},
    "a node that is not there": {"name": "a", "nodes": ["spark9"]},
    "a node twice": {"name": "a", "nodes": ["spark1", "spark1"]},
    **{f"a share of {share}": {"name": "a", "memory_share": share} for share in (0, True, 1.5)},
}


def test_what_is_found_of_services():
    told = {}
    for name, (entries, given) in CASES.items():
        result = made(*entries, **given)
        told[name] = [*of_findings(result.findings), ("planned" if result.plans else "refused", "", "")]
    for name, entry in ENTRIES.items():
        read, findings = engine_services.read([entry], HOSTS)
        assert not read
        told[f"an entry: {name}"] = of_findings(findings)
    twice = [{"name": "chat", "recipe": "a"}, {"name": "chat", "recipe": "b"}, {"name": "code"}]
    read, findings = engine_services.read(twice, HOSTS)
    assert [(entry.name, entry.values) for entry in read] == [("chat", {"recipe": "a"}), ("code", {})]
    hold("engine_services", {**told, "an entry: names twice": of_findings(findings)}.items())


# --- models in place of each other ------------------------------------------------------------------------------------


def by_name(*models, count=2, **variables):
    """What a run plans from variables."""
    given = {
        "engine_recipe": "qwen3-8b",
        "engine_venv_requirements": list(GPU),
        "engine_models": list(models),
        **variables,
    }
    plans, findings = early.planned(given.get, HOSTS[:count], None)
    return plans, [(finding.host, finding.found) for finding in findings if finding.severity == "error"]


OTHER = {"recipe": "qwen3-8b", "served_model_name": "other", "context": 4096}
SGLANG = {"engine_name": "sglang", "engine_venv_requirements": ["sglang==0.5.23"]}


def test_models_by_name_are_planned_whole_and_need_what_all_of_them_need():
    plans, findings = by_name(OTHER, {**OTHER, "served_model_name": "third", "venv_path": "/opt/third"})
    assert not findings
    for plan in plans.plans.values():
        assert [one.engine.served_model_name for one in plan.here] == ["qwen3-8b"]
        assert [one.engine.served_model_name for one in plan.at_hand] == ["other", "third"]
        assert {one.names.unit for one in plan.all} == {"sparkmatrix-engine.service"}
        assert [one.path for one in plan.environments] == ["/opt/sparkmatrix/engine", "/opt/third"]
    assert [line for line in plans.summary if line.endswith("its name: other, third")]
    (offer,) = plans.plans["spark1"].services
    assert (offer.named, offer.salted) == (("other", "third"), ())
    alone, _findings = by_name()
    assert alone.plans["spark1"].identity != plans.plans["spark1"].identity
    assert plans.plans["spark1"].identity == plans.plans["spark2"].identity


@pytest.mark.parametrize("count", [1, 2])
def test_two_that_fit_at_once_are_told(count):
    """And what is told is what engine_services takes."""
    small, large = {**OTHER, "concurrency": 1}, {**OTHER, "served_model_name": "large", "concurrency": 110}
    plans, findings = by_name(small, large, count=count, engine_context=4096)
    assert not findings
    (told,) = [line for line in plans.summary if "memory_share" in line]
    assert told.startswith("other would fit beside qwen3-8b on spark1")
    rest, share = map(float, re.search(r"memory_share of (\S+) and (\S+),", told).groups())
    wide = {"name": "wide", "recipe": "qwen3-8b", "context": 4096, "memory_share": share}
    entries = [wide, {**small, "name": "beside", "port": 8001, "nodes": ["spark1"], "memory_share": rest}]
    both, findings = by_name(count=count, engine_services=entries)
    assert not findings and len(both.plans["spark1"].here) == 2


@pytest.mark.parametrize(
    ("models", "variables", "where", "found"),
    [
        (["qwen3-8b"], {}, "engine_models qwen3-8b", "it serves the model qwen3-8b, and so does engine"),
        (["nowhere"], {}, "nowhere: ", "there is no recipe"),
        ([{"context": 4}], {}, "engine_models[0]", "names no recipe"),
        ([{**OTHER, "port": 8001}], {}, "engine_models[0]", "it has no key 'port'"),
        ([{**OTHER, "nodes": ["spark1"]}], {}, "engine_models[0]", "it has no key 'nodes'"),
        ([{**OTHER, "launch": "ray"}], {}, "engine_models", "the ranks of other would be in Ray"),
        ([OTHER], {"engine_launch": "ray"}, "engine_models", "the ranks of qwen3-8b, other would be in Ray"),
        ([{**OTHER, "venv_requirements": ["vllm==0.32.0"]}], {}, "engine_models other", "needs other packages"),
        ([{**OTHER, "context": 10**9}], {}, "other: recipe", "does not fit"),
        ([OTHER], {"engine_services": [CHAT]}, "engine_models", "1 engine_services are given, too"),
    ],
)
def test_what_a_switch_could_not_do_is_refused_before_anything_is_changed(models, variables, where, found):
    _plans, findings = by_name(*models, **variables)
    assert any(where in host and found in text for host, text in findings), findings


def test_clients_are_kept_apart_where_all_models_can():
    for variables, without in (({}, set()), (SGLANG, {MESSAGES})):
        plans, findings = by_name(OTHER, count=1, engine_prefix_cache_gb=10, **variables)
        assert not findings
        assert set(plans.plans["spark1"].services[0].salted) == {*PROMPTS} - without


def test_what_names_the_one_model_does_not_name_the_others():
    plans, findings = by_name("qwen3-8b", engine_served_model_name="chat", engine_context=4096)
    assert not findings
    (other,) = plans.plans["spark1"].at_hand
    assert (other.engine.served_model_name, other.memory.context) == ("qwen3-8b", 4096)
