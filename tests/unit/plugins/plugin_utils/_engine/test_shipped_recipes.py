# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""Every shipped recipe on 1, 2, 3, 4 and 8 nodes with every engine: a plan that the version takes, or a reason."""

import json
import re
from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.api_paths import PROBED
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import errors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document as documents
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import job, option_tables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.plan import assumed_facts, plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from engine_plans import required
from exploring import EXPLORE

RECIPES = {path.stem: required(*engine_recipe.read(path)) for path in sorted(engine_recipe.SHIPPED.glob("*.yml"))}
OWN = {name for name, recipe in RECIPES.items() if recipe.engine not in ENGINES}  # with a command of their own
CONSENT = OWN | {"mimo-v2.6-flash"}  # the other brings code of the model
NODES = (1, 2, 3, 4, 8)
INVENTORIES = sorted(path.parent for path in (Path(__file__).resolve().parents[5] / "inventories").glob("*/hosts.yml"))
ALLOWED = (
    "the model does not fit",
    "is for ",
    "cannot serve it",
    "speculative decoding by EAGLE only",
    "is started for tokens only here",
    "Tensor parallel sizes that work on 3 nodes: 1",
)
# Models that came after NVIDIA's image of May 2026: its vLLM has no parser of theirs.
YOUNGER = {
    "command-a-plus-w4a4",
    "deepseek-v4.1-flash",
    "laguna-s-2.1-nvfp4",
    "muse-glimmer-30b-nvfp4",
    "qwen3.8-flash-next-nvfp4",
}


def hosts(count):
    return [f"spark{number + 1}" for number in range(count)]


def made(name, count, **settings):
    settings.setdefault("allow", ("command", "trust-remote-code") if name in CONSENT else ())
    settings.setdefault("requirements", ("vllm==0.33.0", "ray[default]==2.60.0"))
    return plan(RECIPES[name], assumed_facts(hosts(count)), UserSettings(only_print=True, **settings), {})


def hold_against_tables(result):
    """Of the head and of the last: workers differ in what ``hold_together`` holds of all."""
    nodes = list(result.plans.values())
    for node in (*nodes[:1], *nodes[1:][-1:]):
        (service,) = node.here
        engine = service.engine
        assert documents.load(json.loads(json.dumps(node.as_dict()))) == node
        if service.backend == "mpi" and not service.is_head:
            assert engine.command.program[1:3] == ("mpi", "wait")  # the engine's own words come from the head
            continue
        assert option_tables.load(engine.name, engine.version), engine.version
        words = engine.command.options
        assert list(kinds_base.check_words(ENGINES[engine.name], engine.version, words, "plan")) == []
        ray = option_tables.load("ray", "2.60.0")
        assert list(option_tables.check(node.ray.command.options, ray, {}, "Ray")) == []


def hold_together(plans):
    """What is true of the nodes of every plan, whatever it is for."""
    documents_ = list(plans.values())
    services = [node.here[0] for node in documents_]
    head, several = services[0], len(services) > 1
    assert [(service.rank, service.role) for service in services] == [
        (rank, "worker" if rank else "head") for rank in range(len(services))
    ]
    assert head.parallel.tensor * head.parallel.pipeline * head.parallel.data == len(services)
    addresses = {member.address for member in head.members}
    assert len(addresses) == len(services) and all(service.members == head.members for service in services)
    if head.memory.verdict != "not computed":
        memory = head.memory
        assert memory.verdict in {"fits", "tight"}
        assert memory.budget + memory.host <= memory.total and memory.load_peak + memory.host <= memory.total
        assert memory.weights + memory.overhead + memory.kv_needed <= memory.budget
    for node, service in zip(documents_, services):
        words, env = node.ray.command.options, {**service.engine.env, **service.engine.starter_env}
        listening = [*service.engine.ports.values()]
        listening += [int(words[number + 1]) for number, word in enumerate(words) if word.endswith("-port")]
        assert len(set(listening)) == len(listening) and all(1024 <= port <= 65535 for port in listening)
        assert "HF_HOME" in env or service.model_cache == ""
        assert (env.get("NCCL_NET") == env.get("NCCL_SOCKET_IFNAME") is None) != several
        assert ("HOME" in env) == (service.runtime == "venv")
        assert [value for value in env.values() if not isinstance(value, str)] == []
    own = [service.engine.env.get("VLLM_HOST_IP") for service in services]
    assert not any(own) or set(own) == addresses


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_on_every_number_of_nodes(name, engine):
    """Every second number of nodes, the others with the next recipe or engine; all of them in `unit-explore`."""
    place = sorted(RECIPES).index(name) + list(ENGINES).index(engine)
    for count in NODES if EXPLORE else NODES[place % 2 :: 2]:
        result = made(name, count, engine=engine)
        if result.plans:
            assert set(result.plans) == set(hosts(count)), count
            hold_together(result.plans)
            hold_against_tables(result)
        else:
            assert all(any(text in str(finding) for text in ALLOWED) for finding in errors(result.findings)), count


def test_the_catalogue_has_what_people_ask_for():
    assert len(RECIPES) >= 30
    assert {recipe.task for recipe in RECIPES.values()} == {"generate", "embed", "rank"}
    assert {recipe.draft.method for recipe in RECIPES.values() if recipe.draft} == set(engine_recipe.METHODS)
    assert any("cod" in recipe.description for recipe in RECIPES.values())
    assert any("speech" in recipe.description for recipe in RECIPES.values())
    assert any("limit-mm-per-prompt" in recipe.options for recipe in RECIPES.values())


def test_a_revision_is_one_or_is_not_there():
    for recipe in RECIPES.values():
        assert re.fullmatch(r"([0-9a-f]{40})?", recipe.revision)


def test_a_format_that_may_compile_at_a_start_says_so():
    contained = {"runtime": "container", "image": "x/y:v0.33.0"}

    def told(name, **settings):
        return [line for line in made(name, 2, **settings).summary if "compiled at its first start" in line]

    (line,) = told("minimax-m2.7-nvfp4", **contained)
    assert line.startswith("Known problem: ") and re.search(r" [1-4] at a time", line)
    assert told("minimax-m2.7-nvfp4") == told("minimax-m2.7-awq", **contained) == []


def test_as_many_at_once_as_the_guide_had():
    """Qwen3-VL-235B on two Sparks at 0.75, 4096 tokens, 256 requests: 299 tokens/s (lessons learned, January 2026)."""
    settings = {"gpu_memory_utilization": 0.75, "context": 4096, "options": {"kv-cache-dtype": "fp8"}}
    service = made("qwen3-vl-235b-a22b-awq", 2, **settings).plans["spark1"].here[0]
    words = service.engine.command.words
    assert words[words.index("--max-num-seqs") + 1] == "256"
    assert service.memory.sequences == 256 and service.memory.concurrency == 4
    assert "the scheduler runs up to 256" in service.memory.at_once


def test_eight_times_the_whole_context_as_peers_run_it():
    """Qwen3.8-27B with DFlash at 0.7 (eugr/spark-vllm-docker): room for one whole request, and eight may come."""
    service = made("qwen3.8-27b-dflash", 1, gpu_memory_utilization=0.7).plans["spark1"].here[0]
    assert (service.memory.context, service.memory.sequences) == (262144, 8)
    assert "preempted" in service.memory.at_once


def test_ranking():
    words = made("qwen3-reranker-0.6b", 1).plans["spark1"].here[0].engine.command.words
    assert json.loads(words[words.index("--hf-overrides") + 1])["classifier_from_token"] == ["no", "yes"]


def test_embeddings():
    node = made("qwen3-embedding-0.6b", 1).plans["spark1"]
    assert node.here[0].engine.command.words[node.here[0].engine.command.words.index("--runner") + 1] == "pooling"
    assert (node.here[0].engine.task, PROBED[node.here[0].engine.task]) == ("embed", "/v1/embeddings")


@pytest.mark.parametrize(("name", "count"), [("llama-3.1-405b-awq", 2), ("qwen3.5-397b-a17b-fp8", 4)])
def test_recipes_that_are_kept_for_their_verdict(name, count):
    result = made(name, count)
    assert "does not fit" in str(errors(result.findings)[0])
    assert result.summary[0].startswith("Does not fit: ")


@pytest.mark.parametrize("launch", ["ray", "native"])
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_both_ways_to_start_vllm(name, launch):
    result = made(name, 4, launch=launch, engine="vllm")
    hold_against_tables(result)


@pytest.mark.parametrize("profile", ["", "batch"])
@pytest.mark.parametrize("inventory", INVENTORIES, ids=lambda path: path.name)
def test_every_recipe_in_the_shipped_inventories(inventory, profile):
    """Those of several nodes ask for Ray, which must refuse no recipe."""
    settings = yaml.safe_load((inventory / "group_vars/sparks.yml").read_text())
    count = len(yaml.safe_load((inventory / "hosts.yml").read_text())["all"]["children"]["sparks"]["hosts"])
    launch = settings.get("engine_launch", "auto")
    assert launch == ("ray" if count > 1 else "auto")
    for name in sorted(RECIPES):
        result = made(name, count, launch=launch, profile=profile)
        refused = [str(finding) for finding in errors(result.findings)]
        assert all(any(text in one for text in ALLOWED) for one in refused), (name, refused)
        assert bool(result.plans) != bool(refused)
    (own,) = made(settings["engine_recipe"], count, launch=launch).plans["spark1"].here
    assert own.backend == ("ray" if count > 1 else "single")


@pytest.mark.parametrize("image", ["nvcr.io/nvidia/vllm:26.05-py3", "nvcr.io/nvidia/vllm:26.10-py3"])
@pytest.mark.parametrize("name", sorted(set(RECIPES) - OWN))
def test_nvidias_images(name, image):
    result = made(name, 8, engine="vllm", runtime="container", image=image)
    refused = {finding.rule for finding in errors(result.findings)}
    if RECIPES[name].settings("vllm") and RECIPES[name].settings("vllm").unsupported:
        assert refused == {"unsupported"}
    elif image.endswith("26.05-py3") and name in YOUNGER:
        assert refused == {"options"}
    else:
        assert result.plans
        hold_against_tables(result)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_profiles_overlay_every_recipe(name, engine):
    names = sorted(job.PROFILES)
    place = sorted(RECIPES).index(name) + list(ENGINES).index(engine)
    for profile in names if EXPLORE else [names[place % len(names)]]:
        result = made(name, 8, engine=engine, profile=profile)
        if result.plans:
            hold_against_tables(result)
        else:
            assert all(any(text in str(finding) for text in ALLOWED) for finding in errors(result.findings)), profile


def test_recipes_keep_to_the_schema():
    known = set(engine_recipe.schema()["properties"])
    for path in engine_recipe.SHIPPED.glob("*.yml"):
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert set(document) <= known
        assert set(engine_recipe.schema()["required"]) <= set(document)


def test_figures_say_where_they_are_from():
    for recipe in RECIPES.values():
        assert recipe.sources
        assert all(item.source and not item.measured_here for item in recipe.expected)
