# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

"""A recipe of somebody else is code: what it brings is printed, and what is dangerous needs a word."""

from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import (
    catalogue,
    consent,
    option_tables,
    report,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from engine_plans import foreign as planned
from engine_plans import required

HOSTILE = {
    "options": {
        "trust-remote-code": True,
        "middleware": "evil.module.Thing",
        "allowed-local-media-path": "/",
        "enable-prompt-embeds": True,
        "tool-server": "demo",
        "ec-transfer-config": {"ec_connector": "X", "ec_connector_module_path": "evil"},
        "compilation-config": '{"backend": "evil.compile"}',
    },
    "environment": {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": 1,
        "LD_PRELOAD": "/tmp/evil.so",
        "PYTHONPATH": "/tmp",
        "HF_ENDPOINT": "https://evil.example",
        "https_proxy": "http://evil.example",
    },
}
WORDS = {
    "trust-remote-code",
    "middleware",
    "allowed-local-media-path",
    "enable-prompt-embeds",
    "tool-server",
    "ec-transfer-config.ec_connector",
    "ec-transfer-config.ec_connector_module_path",
    "compilation-config.backend",
    *HOSTILE["environment"],
}


def errors(result):
    return [finding for finding in result.findings if finding.severity == "error"]


def brought(result):
    (line,) = [line for line in result.summary if line.startswith("This recipe brings: ")]
    return line


def test_every_danger_of_a_recipe_is_refused_by_its_name():
    refused = errors(planned(HOSTILE))
    assert {finding.remedy.partition("engine_allow: [")[2].partition("]")[0] for finding in refused} == WORDS
    assert all(finding.host == "recipe foreign" for finding in refused)


def test_a_word_allows_one_thing():
    rest = errors(planned(HOSTILE, allow=("trust-remote-code", "LD_PRELOAD")))
    assert len(rest) == len(WORDS) - 2
    result = planned(HOSTILE, allow=tuple(WORDS))
    assert result.plans, result.findings
    line = brought(result)
    assert "with your consent" in line and "trust-remote-code (runs Python files from the model's repository)" in line
    assert all(word in line for word in WORDS)


def test_what_is_off_is_no_danger():
    off = {"options": {"trust-remote-code": False}, "environment": {"VLLM_SERVER_DEV_MODE": "0"}}
    assert planned(off).plans


def test_what_the_user_writes_is_named_by_that():
    own = {"options": {"trust_remote_code": True}, "environment": {"HF_ENDPOINT": "https://mirror.example"}}
    assert planned({}, **own).plans
    taken_away = {"options": {"trust-remote-code": None}}
    assert planned({"options": {"trust-remote-code": True}}, **taken_away).plans


# What loads code or a library, runs a program, reads a file, or asks another machine; none of it is in our tables.
LEADING = (
    *(
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "LD_AUDIT",
        "GLIBC_TUNABLES",
        "GCONV_PATH",
        "LOCPATH",
        "BASH_ENV",
        "PATH",
        "HOME",
    ),
    *("OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "SSL_CERT_FILE", "SSLKEYLOGFILE", "GIO_MODULE_DIR"),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "PYTHONSTARTUP", "PYTHONBREAKPOINT", "PYTHONWARNINGS"),
    *("NVTX_INJECTION64_PATH", "CUDA_INJECTION64_PATH", "NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_CONF_FILE"),
    *("RAY_RUNTIME_ENV_HOOK", "RAY_RUNTIME_ENV_PLUGINS", "OMPI_MCA_plm_rsh_agent", "PMIX_MCA_mca_base_component_path"),
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "VLLM_CACHE_ROOT", "HF_MODULES_CACHE", "TRITON_PTXAS_PATH"),
    *("CC", "CXX", "CUDA_HOME", "NVCC_APPEND_FLAGS", "HF_ENDPOINT", "https_proxy", "AWS_ENDPOINT_URL", "NO_SUCH_THING"),
)


@pytest.mark.parametrize("value", ["/opt/sparkmatrix/models/x", "evil", "1"])
@pytest.mark.parametrize("name", LEADING)
def test_a_variable_that_is_not_known_to_choose_or_count_needs_its_name(name, value):
    values = {"environment": {name: value}}
    (finding,) = errors(planned(values))
    assert f"engine_allow: [{name}]" in finding.remedy
    allowed = planned(values, allow=(name,))
    assert not [finding for finding in errors(allowed) if finding.host == "recipe foreign"]


@pytest.mark.parametrize(
    "value", ["/x", "~/x", "evil.module", "tcp://*:5557", "file:///x", "a=/x", '{"a": 1}', "x y/z"]
)
def test_what_only_counts_may_be_no_name_of_anything(value):
    """Of every variable that a recipe may set. A word names no module where the variable knows a few words only."""
    for engine in ENGINES.values():
        tables = [option_tables.load(engine.name, version) for version in option_tables.versions(engine.name)]
        known = {name for table in tables for name in table.environment} | engine.counting_environment
        choosing = engine.choosing_environment | {"PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES"}
        for name in known | choosing | {"MAX_JOBS"}:
            assert consent.variable_doubt(engine, name, value) or (name in choosing and value == "evil.module")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_MARLIN_USE_ATOMIC_ADD", "1"),
        ("VLLM_FLOAT32_MATMUL_PRECISION", "high"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("TORCH_CUDA_ARCH_LIST", "12.1a"),
        ("OMP_NUM_THREADS", "8"),
        ("HF_HUB_OFFLINE", "true"),
    ],
)
def test_what_chooses_or_counts_needs_no_word(name, value):
    assert planned({"environment": {name: value}}).plans


def test_no_recipe_of_ours_needs_a_word_for_a_variable():
    lab = Path(__file__).resolve().parents[4] / "lab/recipes"
    assert lab.is_dir()
    for made, findings in catalogue.recipes([str(lab)]):
        for name, engine in ENGINES.items():
            settings = required(made, findings).settings(name)
            for variable, value in (settings.environment if settings else {}).items():
                assert not consent.variable_doubt(engine, variable, value)


def test_paths_in_variables_are_host_files():
    values = {"environment": {"TRITON_PTXAS_PATH": "/opt/a/ptxas", "NVCC_APPEND_FLAGS": "-I ~/x --pre=file:///y"}}
    line = brought(planned(values, allow=tuple(values["environment"])))
    assert "host files ~/x (NVCC_APPEND_FLAGS), file:///y (NVCC_APPEND_FLAGS), /opt/a/ptxas (TRITON_PTXAS_PATH)" in line


@pytest.mark.parametrize(
    ("engine", "values", "word"),
    [
        ("sglang", {"options": {"enable-custom-logit-processor": True}}, "enable-custom-logit-processor"),
        ("sglang", {"environment": {"LD_PRELOAD": "/x.so"}}, "LD_PRELOAD"),
        ("sglang", {"options": {"delete-ckpt-after-loading": True}}, "delete-ckpt-after-loading"),
        ("sglang", {"options": {"disaggregation-mode": "prefill"}}, "disaggregation-mode"),
        ("sglang", {"options": {"rl-quant-profile": "profile.pt"}}, "rl-quant-profile"),
        ("vllm", {"environment": {"VLLM_V1_USE_OUTLINES_CACHE": "1"}}, "VLLM_V1_USE_OUTLINES_CACHE"),
        ("vllm", {"environment": {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}}, "VLLM_ENABLE_RESPONSES_API_STORE"),
        ("vllm", {"environment": {"VLLM_NO_USAGE_STATS": "0"}}, "VLLM_NO_USAGE_STATS"),
        ("vllm", {"environment": {"OMP_NUM_THREADS": "\u0661"}}, "OMP_NUM_THREADS"),
        ("sglang", {"environment": {"HF_HUB_DISABLE_TELEMETRY": "false"}}, "HF_HUB_DISABLE_TELEMETRY"),
        ("tensorrt-llm", {"options": {"trust_remote_code": True}}, "trust_remote_code"),
        ("tensorrt-llm", {"options": {"custom_tokenizer": "evil.Thing"}}, "custom_tokenizer"),
    ],
)
def test_each_engine_has_its_own(engine, values, word):
    (finding,) = errors(planned({"engine": engine, **values}))
    assert f"engine_allow: [{word}]" in finding.remedy


def test_an_abbreviation_is_no_way_around_where_no_table_looks():
    made = {"options": {"trust-remote": True}, "image": "x/y@sha256:" + 64 * "a", "runtime": "container"}
    assert "engine_allow: [trust-remote-code]" in "".join(finding.remedy for finding in errors(planned(made)))


def test_names_of_dangers_are_names_of_options():
    """A word that no version knows protects from nothing."""
    for engine in ENGINES.values():
        tables = [option_tables.load(engine.name, version) for version in option_tables.versions(engine.name)]
        known = {name[2:] for table in tables for name in table.options} | engine.file_options
        assert {word.partition(".")[0] for word in engine.dangerous} <= known
        variables = {name for table in tables for name in table.environment}
        assert not variables or set(engine.dangerous_environment) <= variables


PATCH = {"target": "/usr/lib/fix.py", "why": "a fix"}
IMAGE = {"runtime": "container", "image": "x/y:v0.33.0"}


@pytest.mark.parametrize(
    "values",
    [
        {"model": "/etc"},
        {"model": "/opt/sparkmatrix/models/../../../etc"},
        {"model": "/opt/sparkmatrix/modelsandmore"},
        {"patches": [{"source": "/root/.ssh/id_rsa", **PATCH}]},
        {"patches": [{"source": "relative", **PATCH}]},
        {"environment": {"HF_TOKEN_PATH": "/etc/shadow"}},
    ],
)
def test_a_recipe_takes_files_from_its_directories_only(values):
    (finding,) = errors(planned({**IMAGE, **values}, allow=("patches",)))
    assert "not below /opt/sparkmatrix/models" in finding.found and "engine_mount_directories" in finding.remedy


def test_files_that_a_recipe_may_take():
    values = {"model": "/srv/models/a", "patches": [{"source": "/opt/sparkmatrix/models/fix.py", **PATCH}]}
    directories = ("/srv/models", "/opt/sparkmatrix/models/")
    (finding,) = errors(planned({**IMAGE, **values}, mount_directories=directories))
    assert finding.remedy.endswith("engine_allow: [patches] (in a command line: -e engine_allow=patches)")
    result = planned({**IMAGE, **values}, mount_directories=directories, allow=("patches",))
    assert result.plans, result.findings
    files = "/srv/models/a (the model), /opt/sparkmatrix/models/fix.py (a fix)"
    assert f"host files {files}; no outside addresses; with your consent patches" in brought(result)
    assert "image x/y:v0.33.0, which runs as root of a container; no packages" in brought(result)
    own = {"model": "/anywhere", "environment": {"HF_TOKEN_PATH": "/etc/hf"}}
    assert planned(IMAGE, **own).plans


def test_what_a_recipe_brings_is_printed():
    assert brought(planned({}, details=True)) == report.NOTHING
    assert not any("This recipe brings" in line for line in planned({}).summary)
    result = planned({"requirements": ["evil-package==1.0"]})
    assert "packages evil-package==1.0;" in brought(result)


def domains(result):
    words = list(next(iter(result.plans.values())).here[0].engine.command.options)
    rest = words[words.index("--allowed-media-domains") + 1 :]
    return rest[: next(number for number, word in enumerate(rest) if word.startswith("--"))]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_images_are_fetched_from_nowhere_unless_allowed(engine):
    result = planned({"engine": engine})
    assert domains(result) == ["nothing.invalid"]
    assert domains(planned({"engine": engine}, media_domains=("a.example", "b.example"))) == ["a.example", "b.example"]
    (finding,) = errors(planned({"engine": engine, "options": {"allowed-media-domains": ["evil.example"]}}))
    assert "Set engine_media_domains" in finding.remedy


def test_fetched_images_lead_nowhere_else():
    environment = planned({}).plans["spark1"].here[0].engine.env
    assert environment["VLLM_MEDIA_URL_ALLOW_REDIRECTS"] == "0"
    (finding,) = errors(planned({"environment": {"VLLM_MEDIA_URL_ALLOW_REDIRECTS": "1"}}))
    assert "VLLM_MEDIA_URL_ALLOW_REDIRECTS" in finding.found
