# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Every unit of ours: what somebody else's variables reach is never root, and what is root reads nobody's variables.

systemd gives the environment of a unit to all of its commands, those with a privileged prefix too.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import names as gateway_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Engine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Settings as GatewaySettings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import (
    ray_files,
    root_helpers,
    service_files,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._gateway import render as gateway
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._web_ui import files as web_ui
from engine_plans import node_plans

ROOT = Path(__file__).resolve().parents[2]
HELPERS = [root_helpers.DROP_CACHES, root_helpers.GPU_DEVICES]
PLANS = {
    "vllm": {},
    "vllm over ray": {"launch": "ray"},
    "sglang": {"engine": "sglang"},
    "vllm in containers": {"runtime": "container", "image": "x/y:v0.33.0"},
    "vllm over ray in containers": {"launch": "ray", "runtime": "container", "image": "nvcr.io/nvidia/vllm:26.10-py3"},
    "tensorrt-llm": {"engine": "tensorrt-llm", "recipe": "llama-3.1-70b-fp8"},
}
# + and !, alone or among the other prefixes.
PRIVILEGED = re.compile(r"Exec\w+=[-@:|]*[+!]")
HASH = re.compile(r"^Environment=SPARKMATRIX_CONFIG_HASH=\w*$", re.MULTILINE)


def ranks(settings, sandbox=True):
    settings = dict(settings)
    plan = node_plans(2, settings.pop("recipe", "qwen3-235b-a22b-gptq-int4"), **settings)["spark1"]
    made = dict(
        service_files.make(
            plan.here[0],
            plan.ray,
            service_files.Settings(sandbox=sandbox),
            service_files.Marks(),
        ).files
    )
    if plan.ray.needed:
        made.update(ray_files.make(plan, ray_files.Settings(sandbox=sandbox)).files)
    return made


def all_units():
    made = {}
    for name, settings in PLANS.items():
        for sandbox in (True, False):
            made |= {f"{name}, sandbox {sandbox}: {path}": text for path, text in ranks(settings, sandbox).items()}
    for runtime in ("venv", "container"):
        settings = web_ui.Settings(runtime=runtime, image=f"ghcr.io/open-webui/open-webui@sha256:{'a' * 64}")
        made |= {
            f"{runtime}: {path}": text for path, text in web_ui.make(settings, web_ui.Gateway(8081), "").files.items()
        }
    for tls in ("own_ca", "off"):
        wanted = GatewaySettings(("192.0.2.1",), (Engine("chat", "tiny"),), tls=tls)
        made[f"{tls}: {gateway_names.UNIT}"] = gateway.files(wanted)[f"{paths.UNITS}/{gateway_names.UNIT}"]
    made |= {file["path"]: file["content"] for file in _node_program.files() if "content" in file}
    return {name: text for name, text in made.items() if name.endswith(".service")}


@pytest.mark.parametrize(("name", "text"), all_units().items(), ids=lambda value: value if len(value) < 120 else "text")
def test_nobodys_variables_reach_root(name, text):
    own = HASH.sub("", text)
    variables = re.findall(r"^(?:Environment|EnvironmentFile|PassEnvironment)=.*", own, re.MULTILINE)
    if variables:
        assert not PRIVILEGED.findall(own), f"{name}: root runs with {variables}"
        assert re.search(r"^User=(?!root|0)\S+$", own, re.MULTILINE), f"{name}: root runs with {variables}"
    else:
        assert not PRIVILEGED.findall(own) or "gateway" in name


@pytest.mark.parametrize("name", ["vllm", "vllm in containers"])
def test_no_value_is_a_further_line_of_a_unit(name):
    plan = node_plans(2, "qwen3-235b-a22b-gptq-int4", **PLANS[name])["spark1"]
    service = plan.here[0]
    foreign = replace(service.engine, served_model_name="x\n[Service]\nExecStartPre=+/bin/sh")
    with pytest.raises(SparkError, match="would not be one line"):
        service_files.make(replace(service, engine=foreign), plan.ray, service_files.Settings(), service_files.Marks())


def test_no_other_source_of_a_unit_has_a_line_for_root():
    """The gateway's own unit has no variables; all else that is root is a unit of its own."""
    sources = [*ROOT.glob("plugins/**/*.py"), *ROOT.glob("roles/**/*.j2"), *ROOT.glob("roles/**/*.yml")]
    found = {path.name for path in sources if PRIVILEGED.search(path.read_text())}
    assert found <= {"sparkmatrix-gateway.service.j2"}
    assert PRIVILEGED.search("ExecStartPre=-+/usr/bin/x") and PRIVILEGED.search("ExecStop=@:!!/usr/bin/x")


@pytest.mark.parametrize("settings", PLANS.values(), ids=PLANS)
def test_every_start_of_ray_and_engine_has_its_root_work_done_before(settings):
    """A oneshot unit that does not stay active is started again by each start and restart of the unit that wants it."""
    for path, text in ranks(settings).items():
        if not re.search(r"/sparkmatrix-(engine|ray)\.service$", path):
            continue
        for setting in ("Wants", "After"):
            lines = re.findall(rf"^{setting}=(.*)$", text, re.MULTILINE)
            assert [unit for line in lines for unit in line.split() if unit in HELPERS] == HELPERS
    helpers = {file["path"].rpartition("/")[2]: file["content"] for file in _node_program.files() if "content" in file}
    assert sorted(helpers) == sorted(HELPERS)
    for text in helpers.values():
        assert "\nType=oneshot\n" in text and "RemainAfterExit" not in text and "\nStartLimitIntervalSec=0\n" in text


@pytest.mark.parametrize("name", [name for name in PLANS if "in containers" in name or "tensorrt" in name])
def test_what_a_container_writes_into_is_mounted_nosuid_before(name):
    """Every directory of its Compose file that is not read-only; a start without it fails (no -)."""
    made = ranks(PLANS[name])
    for unit, compose in (("engine", "engine"), ("ray", "ray")):
        if f"/etc/sparkmatrix/{compose}/compose.yml" not in made:
            continue
        (service,) = yaml.safe_load(made[f"/etc/sparkmatrix/{compose}/compose.yml"])["services"].values()
        written = [volume["source"] for volume in service["volumes"] if not volume["read_only"]]
        text = made[f"/etc/systemd/system/sparkmatrix-{unit}.service"]
        assert f"\nExecStartPre={paths.NODE_PROGRAM} nosuid {' '.join(written)}\n" in text
        assert text.index(" nosuid ") < text.index("\nExecStart=")
