# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from engine_plans import required
from hypothesis import given
from hypothesis import strategies as st

SMALL = {
    "model": "someone/small",
    "architecture": {"layers": 4, "attention_heads": 8, "kv_heads": 4, "head_dim": 32},
    "weights_gb": 1.5,
    "context": 1024,
    "concurrency": 2,
}


def changed(**values):
    return {**SMALL, **values}


def sizes(**values):
    return changed(architecture={**SMALL["architecture"], **values})


OWN = {
    "model": "someone/small",
    "engine": "command",
    "image": "example.org/engine:1.0",
    "command": {"words": ["serve", "@model@", "--rank", "@rank@", "--port", "@port@"]},
}
MOUNT = {"source": "/srv/models/x", "target": "/models", "why": "the model"}


def own(**values):
    return {**OWN, **values}


def test_a_command_needs_no_sizes():
    recipe, findings = engine_recipe.parse(OWN, "own.yml", "own")
    assert findings == []
    assert recipe.command.argv == ("serve", "@model@", "--rank", "@rank@", "--port", "@port@")
    assert (recipe.weights_gb, recipe.context, recipe.health, recipe.architecture) == (
        0,
        0,
        "/health",
        engine_recipe.UNKNOWN,
    )


def test_all_that_a_command_may_bring():
    document = own(
        command={"script": "exec serve @head@:@rendezvous_port@ '{\"a\": 1}'"},
        worker={"words": ["serve", "--join"]},
        build={"mods": ["mods/one"], "arguments": {"A": 1}},
        mounts=[{**MOUNT, "read_only": False}],
        environment={"ME": "@address@", "IF": "@interface@"},
        health="",
        port=8001,
    )
    recipe, findings = engine_recipe.parse(document, "own.yml", "own")
    assert findings == []
    assert recipe.command.argv[:2] == ("bash", "-lc")
    assert recipe.build.mods == ("mods/one",)
    assert not recipe.mounts[0].read_only


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (changed(command={"words": ["a"]}), "command is set, and the engine is vllm"),
        ({**SMALL, "weights_gb": None}, "weights_gb is empty"),
        ({key: value for key, value in SMALL.items() if key != "context"}, "context is missing"),
        (changed(engines={"command": {}}), "engines.command is 'command'"),
        ({key: value for key, value in OWN.items() if key != "command"}, "command is missing"),
        (own(command={}), "command has neither words nor script"),
        (own(command={"words": ["a"], "script": "b"}), "command has both words and script"),
        (own(command={"words": ["@nods@"]}), "the place @nods@, which is not known there. Use: rank, nodes"),
        (own(command={"words": ["a\0"]}), "NUL"),
        (own(worker={"script": "x"}, entrypoint=True), "entrypoint is for words, and worker is a script"),
        (own(image=""), "neither an image nor a dockerfile"),
        (own(build={"arguments": {"A": "1"}}), "build has neither dockerfile nor mods"),
        (own(options={"tp": 2}), "options is set, and nobody would read it"),
        (own(environment={"A": "@x@"}), "environment.A has the place @x@"),
        (own(health="health"), "health is 'health'"),
        (own(port=80), "port is 80"),
        (own(privileged=True), "privileged is given to no rank: it would reach the node itself"),
        (own(pid="host"), "pid is given to no rank"),
        (own(cap_add=["SYS_ADMIN"]), "cap_add is given to no rank"),
        (own(mounts=[{**MOUNT, "source": "models"}]), "mounts[0].source is 'models'"),
        (own(mounts=[{**MOUNT, "source": "@modl@"}]), "mounts[0].source has the place @modl@"),
        # A name for clients may be any text.
        (
            own(mounts=[{**MOUNT, "source": "/srv/@served@"}]),
            "the place @served@, which is not known there. Use: model,",
        ),
        (own(mounts=[MOUNT, MOUNT]), "two mounts are at /models"),
        *(
            (own(mounts=[{**MOUNT, "source": path}]), "a container can do what root can")
            for path in ("/", "/etc", "/etc/ssh", "/srv/../etc", "/var/run/docker.sock", "/run/docker.sock", "/dev")
        ),
    ],
)
def test_what_a_command_may_not(document, expected):
    recipe, findings = engine_recipe.parse(document, "own.yml", "own")
    assert recipe is None
    assert expected in "\n".join(map(str, findings))


def test_a_small_recipe_has_defaults():
    recipe, findings = engine_recipe.parse(SMALL, "small.yml", "small")
    assert findings == []
    assert (recipe.name, recipe.engine, recipe.device, recipe.min_nodes) == ("small", "vllm", "gpu", 1)
    assert recipe.architecture.kv_heads == 4
    assert recipe.options == {}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (["a"], "not a mapping"),
        (None, "not a mapping"),
        (changed(contxt=5), "Did you mean 'context'"),
        (changed(context="long"), "context is str 'long'. It has to be a whole number"),
        (changed(context=True), "context is bool"),
        (changed(context=0), "context is 0"),
        (changed(architecture="llama"), "architecture is not a mapping"),
        (sizes(kv_head=2), "Did you mean 'kv_heads'"),
        (sizes(kv_heads=3), "no multiple"),
        (sizes(layers=-1), "layers is -1"),
        (changed(engine="vlm"), "engine is 'vlm'"),
        (changed(device="tpu"), "gpu, cpu"),
        (changed(runtime="vm"), "venv, container"),
        (changed(name="Bad Name"), "no plain word"),
        (changed(model=" "), "model is ' '. Name a model"),
        (changed(min_nodes=4, max_nodes=2), "max_nodes"),
        (changed(replicated_gb=2.5), "replicated_gb is above weights_gb"),
        (changed(lookup_gb=2.5), "lookup_gb is above weights_gb"),
        (sizes(max_context=512), "context 1024 is above the model's 512"),
        (sizes(attention="mqa"), "architecture.attention is 'mqa'"),
        (sizes(attention="mla"), "architecture.kv_lora_rank is 0"),
        (sizes(attention="listed"), "architecture.caches is empty"),
        (sizes(caches=[{"layers": 4}]), r"architecture.caches[0].values is missing"),
        (sizes(caches=[{"layers": 4, "values": 0}]), r"architecture.caches[0].values is 0"),
        (sizes(full_attention_layers=1), "architecture.linear_value_heads is 0"),
        (sizes(sliding_layers=5), "more layers of a kind than 4"),
        (changed(draft={"method": "eagle3", "tokens": 3}), "needs draft.model"),
        (changed(draft={"method": "eagle", "tokens": 3, "model": "m"}), "draft.method is 'eagle'"),
        (changed(draft={"method": "mtp"}), "draft.tokens is missing"),
        (changed(draft="mtp"), "draft is not a mapping"),
        (changed(task="classify"), "task is 'classify'"),
        (changed(task="embed", draft={"method": "mtp", "tokens": 1}), "draft is for tokens"),
        (changed(engines={"vlm": {}}), "engines.vlm is 'vlm'"),
        (changed(engines={"vllm": {"option": {}}}), "Did you mean 'options'"),
        (changed(engines=["vllm"]), "engines is list"),
        (changed(patches=[{"source": "a", "target": "b"}]), "patches[0].why is missing"),
        (changed(patches={"source": "a"}), "a list of mappings"),
        (
            changed(expected=[{"nodes": 2, "tokens_per_second": 3, "source": "x", "engine": "tgi"}]),
            "expected[0].engine",
        ),
        (changed(expected=[{"nodes": 2, "tokens_per_second": 3, "source": "x", "measured_here": 1}]), "true or false"),
        (changed(requirements=["x>=1"]), "'x>=1' is not pinned"),
        (changed(engines={"sglang": {"requirements": ["y"]}}), "'y' is not pinned"),
        (changed(expert_parallel="on"), "true or false"),
        (changed(gpu_memory_utilization=80), "share from 0 to 1"),
        (changed(hazards="slow"), "a list of texts"),
        (changed(options=["a"]), "a mapping of names"),
        (changed(environment={"A B": "x"}), "'A B'"),
        (changed(environment={"A": [1]}), "environment is dict"),
        (changed(weights_gb=None), "weights_gb is empty"),
        ({key: value for key, value in SMALL.items() if key != "model"}, "model is missing"),
    ],
)
def test_what_is_wrong_is_said(document, expected):
    recipe, findings = engine_recipe.parse(document, "some.yml", "some")
    assert recipe is None
    assert expected in "\n".join(map(str, findings))


def test_the_users_recipe_comes_first(tmp_path):
    (tmp_path / "qwen3-8b.yml").write_text(yaml.safe_dump(SMALL))
    recipe, findings = engine_recipe.find("qwen3-8b", [str(tmp_path)])
    assert findings == []
    assert recipe.model == "someone/small"
    recipe, _ = engine_recipe.find(str(tmp_path / "qwen3-8b.yml"), [])
    assert recipe.name == "qwen3-8b"


def test_an_unknown_recipe_names_the_known_ones():
    recipe, (finding,) = engine_recipe.find("qwen3-8", [])
    assert recipe is None
    assert "Did you mean 'qwen3-8b'" in str(finding)


@pytest.mark.parametrize("content", ["a: [", "\x00", b"\xff\xfe\x00"])
def test_unreadable_yaml(tmp_path, content):
    path = tmp_path / "bad.yml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    recipe, findings = engine_recipe.read(path)
    assert recipe is None
    assert len(findings) == 1


def test_a_missing_file(tmp_path):
    _, (finding,) = engine_recipe.read(tmp_path / "none.yml")
    assert "cannot be read" in str(finding)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*SMALL, "options", "environment", "engine", "other"]), ANY))
def test_any_document_gives_a_recipe_or_findings(document):
    recipe, findings = engine_recipe.parse({**SMALL, **document}, "any.yml", "any")
    assert (recipe is None) == bool(findings)


def test_parts_of_a_recipe():
    document = changed(
        draft=None,
        engines={"sglang": {"options": {"a": 1}, "environment": {"N": 2}}},
        patches=[{"source": "a", "target": "b", "why": "c"}],
        expected=[{"nodes": 2, "tokens_per_second": 17, "source": "x"}],
        expert_parallel=True,
        revision="abc",
    )
    recipe = required(*engine_recipe.parse(document, "x.yml", "x"))
    assert recipe.draft is None
    assert recipe.settings("sglang").environment == {"N": "2"}
    assert recipe.settings("vllm").options == {}
    assert recipe.settings("tensorrt-llm") is None
    assert (recipe.patches[0].why, recipe.expected[0].streams, recipe.expert_parallel) == ("c", 1, True)
    assert recipe.not_pinned("image:tag") == ["digest of image:tag"]
    assert recipe.not_pinned("image@sha256:00") == []


def test_a_directory_of_recipes_that_is_not_there(tmp_path):
    """The shipped recipe of the same name is not the one that was meant."""
    found, findings = engine_recipe.find("qwen3-8b", [str(tmp_path), str(tmp_path / "nope")])
    assert found is None
    assert [str(finding) for finding in findings] == [
        f"engine_recipe_paths: there is no directory {tmp_path}/nope. Correct it, or leave it out."
    ]


def test_what_its_author_tells_people_is_one_line_that_does_nothing_to_a_terminal():
    told = "it bites\n\x1b[2JThis recipe brings: nothing"
    made, _findings = engine_recipe.parse(changed(hazards=[told], description=told), "x.yml", "x")
    assert made.hazards == ("it bites ?[2JThis recipe brings: nothing",) and made.description == made.hazards[0]


@pytest.mark.parametrize(
    "theirs",
    [{"recipe_version": "2", "model": "a/b"}, {"command": "vllm serve a/b"}, {"services": {"vllm": {"image": "a"}}}],
)
def test_a_file_of_another_tool_is_named_once_with_the_way_to_take_it(theirs):
    recipe, (finding,) = engine_recipe.parse(theirs, "their.yaml", "their")
    assert recipe is None and "recipes_translate=their.yaml" in finding.remedy
