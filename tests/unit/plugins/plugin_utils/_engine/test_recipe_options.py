# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""What a recipe says is one option, whatever its value, and needs a word unless it is known to be harmless."""

import argparse
import functools
import json

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import errors
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    catalogue,
    consent,
    option_tables,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import as_engine, read
from engine_plans import FOREIGN, required
from engine_plans import foreign as planned
from hypothesis import given, settings
from hypothesis import strategies as st

ITS_OWN = "which its parser would take for an option of its own"
UNKNOWN_IMAGE = {"runtime": "container", "image": "x/y@sha256:" + 64 * "a"}


def refused(result):
    return "\n".join(f"{finding.host}: {finding.found}. {finding.remedy}" for finding in errors(result.findings))


def argv(result):
    return list(result.plans["spark1"].here[0].engine.command.options)


# --- one option, whatever its value ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ("vllm", {"cudagraph-capture-sizes": [1, 2, "--trust-remote-code"]}, ITS_OWN),
        (
            "vllm",
            {"ignore-patterns": ["*", "--allowed-media-domains", "evil.example"]},
            ITS_OWN,
        ),
        ("vllm", {"cudagraph-capture-sizes": [1, -0.5]}, ITS_OWN),
        ("vllm", {"cudagraph-capture-sizes": [1, [2]]}, "takes texts and numbers"),
        ("vllm", {"enable-lora": "--trust-remote-code"}, "--enable-lora takes no value"),
        ("vllm", {"enable-lora": "x"}, "--enable-lora takes no value"),
        ("vllm", {"enable-lora=--trust-remote-code": True}, "is no name of an option"),
        ("vllm", {"middleware=evil.module": True}, "is no name of an option"),
        ("vllm", {"seed 1 --trust-remote-code": True}, "is no name of an option"),
        ("vllm", {"no-trust-remote-code": False}, "engine_allow: [trust-remote-code]"),
        ("vllm", {"disable-prompt-embeds": False}, "engine_allow: [enable-prompt-embeds]"),
        ("vllm", {"seed": "1\0"}, "a character that no command can have"),
        ("vllm", {"seed": "\ud800"}, "a character that no command can have"),
        ("sglang", {"disable-radix-cache": "--trust-remote-code"}, "--disable-radix-cache takes no value"),
        ("sglang", {"ep": 2}, "the option ep is set by the plan"),
        ("sglang", {"gc-threshold": ["--config=x"]}, ITS_OWN),
        ("tensorrt-llm", {"reasoning_parser": ["x", "--trust_remote_code"]}, ITS_OWN),
        ("tensorrt-llm", {"hf_revision": "x"}, "the option hf_revision is set by the plan"),
    ],
)
def test_a_value_is_no_other_option(engine, options, said):
    image = {"runtime": "container", "image": "x/release:1.4.0"} if engine == "tensorrt-llm" else {}
    assert said in refused(planned({"engine": engine, "options": options, **image}))
    if "engine_allow" not in said:  # not by whoever asks for it
        assert said in refused(planned({"engine": engine, **image}, options=options))


@pytest.mark.parametrize("name", ["tensor-parallel", "max-model", "hos", "api-k"])
def test_a_beginning_of_what_the_plan_sets_is_no_way_around_where_no_table_looks(name):
    assert "is set by the plan" in refused(planned(UNKNOWN_IMAGE, options={name: "1"}))


@pytest.mark.parametrize(
    "values",
    [
        {"model": "--trust-remote-code"},
        {"model": "s3://evil/model"},
        {"model": "a/b\n--x"},
        {"revision": "--trust-remote-code"},
        {"image": "--privileged"},
        {"version": "-1"},
        {"draft": {"method": "eagle3", "tokens": 1, "model": "--trust-remote-code"}},
        {"draft": {"method": "mtp", "tokens": 1, "options": {"model": "evil.module", "moe_backend": "triton"}}},
        {"draft": {"method": "mtp", "tokens": 1, "options": {"method": "custom_class"}}},
        {"engines": {"sglang": {"image": "-x"}}},
        *(
            {"requirements": [line]}
            for line in (
                "-r==1",
                "--index-url==1",
                "x==1\n--index-url https://evil.example",
                "x==1 --hash=y",
                "x==1 @ https://evil.example/x.whl",
                "x @ https://evil.example/x.whl",
                "-e git+https://evil.example/x==1",
            )
        ),
    ],
)
def test_words_of_a_recipe_that_become_words_of_a_command(values):
    made, findings = engine_recipe.parse({**FOREIGN, **values}, "foreign.yml", "foreign")
    assert made is None and findings


def test_a_text_that_begins_with_a_dash_stays_the_value_of_its_option():
    words = argv(planned({"served_model_name": "--middleware=evil"}))
    assert "--served-model-name=--middleware=evil" in words and "--middleware=evil" not in words


@pytest.mark.parametrize(
    "name", ["x\n[Service]\nExecStartPre=+/bin/sh", "x\\", "x\0", "x\ud800", "x\x1b[2J", "x\u2028y"]
)
def test_the_name_for_clients_is_one_line_wherever_it_comes_from(name):
    """It stands in units, and on the screen."""
    assert "recipe foreign: the name for clients" in refused(planned({"served_model_name": name}))
    assert "engine_served_model_name: the name for clients" in refused(planned({}, served_model_name=name))


def test_no_option_is_in_a_command_twice():
    both = {"context-bucket": "1", "cuda-graph-prefill-max-context": "2"}
    assert "has --cuda-graph-prefill-max-context twice" in refused(planned({"engine": "sglang"}, options=both))


TABLES = [
    (engine, version, name)
    for engine in ENGINES.values()
    for version in option_tables.versions(engine.name)
    for name in option_tables.load(engine.name, version).options
]
LISTS = [one for one in TABLES if option_tables.load(one[0].name, one[1]).options[one[2]] == "list"]
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["--trust-remote-code", "--log-level=error"]),
    st.sampled_from(["--x", "-tp", "-O3", "-", "--", "-1", "-0.5", "1", "=", "--a=b", "@file"]),
    st.sampled_from(
        ["\u2013\u2013x", "\u2212\u2212x", " --x", "\t--x", "\n--x", "--x\n", "", "{", '{"a": "--x"}', "[1]"]
    ),
)
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS)
VALUES = st.one_of(
    PLAIN,
    st.lists(st.one_of(PLAIN, st.lists(PLAIN, max_size=2)), max_size=4),
    st.dictionaries(TEXTS, st.one_of(PLAIN, st.lists(PLAIN, max_size=2)), max_size=3),
)


class Noted(argparse.Action):
    def __call__(self, _parser, namespace, _values, _option=None):
        namespace.read = [*getattr(namespace, "read", []), self.dest]


@functools.cache
def parser(engine, version):
    """What vLLM and SGLang read with, abbreviations and all; click is stricter."""
    table = option_tables.load(engine.name, version)
    made = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for name, kind in table.options.items():
        spellings = [name, *(alias for alias, whole in table.aliases.items() if whole == name)]
        opposites = {f"--no-{name[2:]}", table.opposites[name]} if name in table.opposites else set()
        several = {"flag": 0, "list": "+"}.get(str(kind))
        made.add_argument(*spellings, *opposites, dest=name, action=Noted, nargs=several)
    return made


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from(TABLES) | st.sampled_from(LISTS), VALUES, st.sampled_from(["", "--", "x."]))
def test_every_option_with_every_value_is_that_option_or_is_refused(option, value, form):
    engine, version, name = option
    options = kinds_base.merge(engine, {f"{name[2:]}.key" if form == "x." else form + name[2:]: value}, {})
    if errors(kinds_base.examine(engine, version, options, {}, "x")):
        return
    written = kinds_base.in_file(engine, version, options)
    given_words = {key: item for key, item in options.items() if key not in written}
    words = kinds_base.render(given_words, option_tables.load(engine.name, version))
    read, rest = parser(engine, version).parse_known_args(words)
    assert (rest, getattr(read, "read", [])) in (([], []), ([], [name])), words
    for key, item in options.items():  # no harmless text is a path, an address or another option
        if not consent.option_doubts(engine, version, key, item) and not kinds_base.planned(engine, version, key):
            texts = [leaf for _path, leaf in consent.leaves(key, item) if isinstance(leaf, str)]
            assert not any(consent.paths(leaf) or consent.addresses_in(leaf) for leaf in texts)
            assert not any(leaf.startswith("--") for leaf in texts)


# --- consent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "options", "words"),
    [
        ("vllm", {"compilation-config": {"inductor_passes": {"post_grad_custom_pre_pass": "evil.module.f"}}},
         ["compilation-config.inductor_passes.post_grad_custom_pre_pass"]),
        ("vllm", {"compilation_config.inductor_passes.x": "evil"}, ["compilation-config.inductor_passes.x"]),
        ("vllm", {"ec-manager-config": {"encoder_cache_manager_cls": "evil"}}, ["ec-manager-config"]),
        ("vllm", {"kv-transfer-config": {"kv_connector_extra_config": {"spec_module_path": "evil", "tiers": [
            {"cache_policy_module_path": "evil"}]}}},
         ["kv-transfer-config.kv_connector_extra_config.spec_module_path",
          "kv-transfer-config.kv_connector_extra_config.tiers.cache_policy_module_path"]),
        ("vllm", {"kv-transfer-config": json.dumps({"kv_connector_extra_config": {"connectors": [
            {"kv_connector_module_path": "a"}, {"kv_connector_module_path": "b"}]}})},
         ["kv-transfer-config.kv_connector_extra_config.connectors.kv_connector_module_path"]),
        ("vllm", {"speculative-config": {"method": "custom_class", "model": "evil.module", "moe_backend": "x"}},
         ["speculative-config.method", "speculative-config.model"]),
        ("vllm", {"spec-method": "custom_class", "spec-model": "evil.module"}, ["spec-method", "spec-model"]),
        ("vllm", {"load-format": "tensorizer", "model-loader-extra-config": {"tensorizer_uri": "http://evil.example"}},
         ["model-loader-extra-config.tensorizer_uri"]),
        ("vllm", {"kv-events-config": {"endpoint": "tcp://*:5557"}}, ["kv-events-config"]),
        ("vllm", {"profiler-config": {"profiler": "torch"}}, ["profiler-config"]),
        ("vllm", {"download-dir": "/tmp/x"}, ["download-dir"]),
        ("vllm", {"ssl-keyfile": "/etc/ssl/private/x.key"}, ["ssl-keyfile"]),
        ("vllm", {"chat-template": "/etc/passwd"}, ["chat-template"]),
        ("vllm", {"allowed-origins": ["*"]}, ["allowed-origins"]),
        ("vllm", {"lora-modules": ["a=/etc"]}, ["lora-modules"]),
        ("sglang", {"kv-events-config": '{"publisher": "zmq", "endpoint": "tcp://*:5557"}'}, ["kv-events-config"]),
        ("sglang", {"chat-template": "x.jinja"}, ["chat-template"]),
        ("tensorrt-llm", {"moe_config": {"load_balancer": "/etc/x.yml", "backend": "CUTLASS"}},
         ["moe_config.load_balancer"]),
        ("tensorrt-llm", {"chat_template": "/etc/passwd"}, ["chat_template"]),
        ("tensorrt-llm", {"telemetry": True}, ["telemetry"]),
        ("tensorrt-llm", {"speculative_config": {"decoding_type": "User_Provided", "drafter": "evil"}},
         ["speculative_config.decoding_type", "speculative_config.drafter"]),
    ],
)  # fmt: skip
def test_what_is_not_known_to_be_harmless_needs_its_name(engine, options, words):
    image = {"runtime": "container", "image": "x/release:1.4.0"} if engine == "tensorrt-llm" else {}
    values = {"engine": engine, "options": options, **image}
    said = refused(planned(values))
    assert [
        line.split("engine_allow: [")[1].split("]")[0] for line in said.splitlines() if "engine_allow" in line
    ] == words
    for allow in (words, [word.partition(".")[0] for word in words]):
        assert "engine_allow" not in refused(planned(values, allow=allow))


def test_keys_of_a_draft_are_options():
    draft = {"method": "mtp", "tokens": 2, "options": {"moe_backend": "triton", "draft_load_config": {"x": "/y"}}}
    assert "engine_allow: [speculative-config.draft_load_config.x]" in refused(planned({"draft": draft}))


def test_files_and_addresses_in_options_are_printed():
    options = {"ssl-keyfile": "/etc/ssl/x.key", "kv-events-config": {"endpoint": "tcp://*:5557"}, "load-format": "auto"}
    (line,) = [
        line
        for line in planned({"options": options}, allow=list(options)[:2]).summary
        if line.startswith("This recipe brings")
    ]
    assert "host files /etc/ssl/x.key (ssl-keyfile); outside addresses tcp://*:5557 (kv-events-config.endpoint)" in line
    assert "remote code" not in line


def test_what_is_code_is_known_of_a_version_with_a_table_and_of_no_image():
    values = (UNKNOWN_IMAGE, {**UNKNOWN_IMAGE, "version": "0.33.0"}, {"requirements": ["av==1.0"]})
    unread = "no remote code that this release knows of"
    assert all(any(line.endswith(unread) for line in planned(value).summary) for value in values)
    assert not any("remote code" in line for line in planned({}).summary)
    assert "engine_allow: [brand-new]" in refused(planned({**UNKNOWN_IMAGE, "options": {"brand-new": 1}}))


@pytest.mark.parametrize("version", ["", "as pinned"])
def test_no_recipe_of_ours_needs_a_word_for_an_option(version):
    """But one, whose head says so: its configuration is code of the model's."""
    for made, findings in catalogue.recipes(()):
        for name, engine in ENGINES.items():
            own = required(made, findings).settings(name)
            for option, value in kinds_base.merge(engine, own.options if own else {}, {}).items():
                of = version and option_tables.versions(name)[-1]
                doubts = consent.option_doubts(engine, of, option, value)
                assert set(doubts) <= ({"trust-remote-code"} if made.name == "mimo-v2.6-flash" else set()), made.name
            if made.draft and engine.draft_keys:
                assert not consent.option_doubts(engine, "", engine.draft_option, dict(made.draft.options)), made.name


def test_what_is_listed_as_harmless_is_an_option_that_takes_a_word():
    for engine in ENGINES.values():
        tables = [option_tables.load(engine.name, version) for version in option_tables.versions(engine.name)]
        for entry in engine.harmless:
            name = entry.partition("=")[0].partition(".")[0]
            kinds = {str(table.options[f"--{name}"]) for table in tables if f"--{name}" in table.options}
            assert kinds - {"flag", "int", "float", "size"} or name in engine.file_options, entry
            assert name not in engine.dangerous


# --- command lines of others -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "options", "left"),
    [
        ("--enable-lora=--trust-remote-code", {}, "--enable-lora --trust-remote-code: --enable-lora takes no value"),
        (
            "--cudagraph-capture-sizes 1 2 --trust-remote-code",
            {"cudagraph-capture-sizes": [1, 2]},
            "--trust-remote-code",
        ),
        ("--middleware=evil.module", {}, "--middleware: it loads Python code"),
        ("--compilation_config.backend=evil", {}, "--compilation-config.backend: it loads Python code"),
        ("--trust-remote", {}, "--trust-remote: vLLM 0.33.0 has no option --trust-remote"),
        ("-O3", {}, "--O3: vLLM 0.33.0 has no option --O3"),
        ("--config file.yaml", {}, "--config: it reads further options"),
        ("--seed -1", {"seed": -1}, ""),
    ],
)
def test_a_command_of_others_is_read_as_the_engine_reads_it(tmp_path, words, options, left):
    path = tmp_path / "their.yaml"
    path.write_text(yaml.safe_dump({"model": "a/b", "command": f"vllm serve a/b {words}"}))
    made = as_engine.made(read.read(str(path)))
    assert made.document.get("options", {}) == options
    assert [said for said in made.left_out if left and said.startswith(left)] or not left


def test_what_stands_behind_a_switch_is_no_value_of_it(tmp_path):
    path = tmp_path / "their.yaml"
    path.write_text(yaml.safe_dump({"command": "vllm serve --enforce-eager a/b"}))
    made = as_engine.made(read.read(str(path)))
    assert (made.document["model"], made.document["options"]) == ("a/b", {"enforce-eager": True})
