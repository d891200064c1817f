# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The Compose file of one rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Command, Container, Mount
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import compose
from engine_plans import PLAN
from hypothesis import given
from hypothesis import strategies as st

COMMAND = Command(("vllm", "serve", "/m"), ("--port", "8000"))
MOUNTS = (Mount("/m", "/m", True, "the model"),)
SERVICE = replace(PLAN.here[0], runtime="container", mounts=MOUNTS)


def service(settings=Container(), image="vllm/vllm-openai:v0.33.0", command=COMMAND, role="head"):  # noqa: B008
    engine = replace(SERVICE.engine, command=command)
    made = compose.document(replace(SERVICE, container=settings, image=image, engine=engine, role=role))
    return made["services"]["engine"]


def test_what_a_rank_needs_and_no_more():
    made = service()
    assert "privileged" not in made and made["user"] == "0:0"
    assert (made["network_mode"], made["ipc"]) == ("host", "host")
    assert (made["cap_drop"], made["security_opt"], made["pids_limit"]) == (["ALL"], ["no-new-privileges:true"], 16384)
    assert made["cap_add"] == ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID", "IPC_LOCK"]
    assert made["ulimits"] == {"memlock": -1, "nofile": {"soft": 65536, "hard": 65536}, "stack": 67108864}
    assert made["devices"] == ["/dev/infiniband"]
    assert made["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert made["volumes"] == [
        {"type": "bind", "source": "/m", "target": "/m", "read_only": True, "bind": {"create_host_path": False}}
    ]
    assert made["restart"] == "no"


def test_what_root_notes_of_models_is_not_in_a_container():
    """Its root could write there that a model was verified."""
    cache = Mount("/cache", "/cache", False, "the model")
    made = compose.document(replace(SERVICE, mounts=(cache,)))["services"]["engine"]
    assert made["tmpfs"] == ["/cache/sparkmatrix:ro"] and "tmpfs" not in service()


def test_without_a_sandbox_a_container_has_what_docker_gives_it():
    (made,) = compose.document(SERVICE, sandboxed=False)["services"].values()
    assert made["cap_add"] == ["IPC_LOCK"]
    assert not {"cap_drop", "security_opt", "pids_limit"} & set(made)


def test_the_key_is_a_file_that_the_head_alone_reads():
    assert service()["env_file"] == ["/etc/sparkmatrix/engine.env", "/etc/sparkmatrix/engine-key.env"]
    assert service(role="worker")["env_file"] == ["/etc/sparkmatrix/engine.env"]


@pytest.mark.parametrize(
    ("settings", "devices", "deploy"),
    [
        (Container(gpus="cdi"), ["/dev/infiniband", "nvidia.com/gpu=all"], False),
        (Container(gpus="none", devices=[]), None, False),
        (Container(devices=["/dev/x"]), ["/dev/x"], True),
    ],
)
def test_gpus_and_devices(settings, devices, deploy):
    made = service(settings)
    assert made.get("devices") == devices
    assert ("deploy" in made) == deploy


def test_limits_of_a_machine_that_may_not_raise_them():
    made = service(Container(memlock="8388608", nofile="16384"))
    assert (made["ulimits"]["memlock"], made["ulimits"]["nofile"]["soft"]) == (8388608, 16384)


def test_entry_points():
    made = service()
    assert (made["entrypoint"], made["command"]) == (["vllm", "serve", "/m"], ["--port", "8000"])
    made = service(image="nvcr.io/nvidia/vllm:26.10-py3")
    assert "entrypoint" not in made
    assert made["command"] == COMMAND.words


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"])), min_size=1))
def test_every_word_arrives(words):
    """Compose reads ``$$`` as one dollar; what is left is YAML."""
    made = compose.document(replace(SERVICE, engine=replace(SERVICE.engine, command=Command(("p",), tuple(words)))))
    read = yaml.safe_load(compose.text(made))["services"]["engine"]["command"]
    assert [word.replace("$$", "$") for word in read] == words
    assert all("$" not in word.replace("$$", "") for word in read)
