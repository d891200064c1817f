# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The Compose file of one rank."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import compose
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render.compose import ContainerWishes
from hypothesis import given
from hypothesis import strategies as st

ARGV = ["vllm", "serve", "/m", "--port", "8000"]
PLACE = compose.Place(Names())
MOUNTS = [{"source": "/m", "target": "/m", "read_only": True, "why": "the model"}]


def service(wishes=ContainerWishes(), image="vllm/vllm-openai:v0.33.0", argv=ARGV, head=True):  # noqa: B008
    return compose.document(PLACE, wishes, image, argv, MOUNTS, head=head)["services"]["engine"]


def test_what_a_rank_needs_and_no_more():
    made = service()
    assert "privileged" not in made
    assert (made["network_mode"], made["ipc"], made["cap_add"]) == ("host", "host", ["IPC_LOCK"])
    assert made["ulimits"] == {"memlock": -1, "nofile": {"soft": 65536, "hard": 65536}, "stack": 67108864}
    assert made["devices"] == ["/dev/infiniband"]
    assert made["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert made["volumes"] == [
        {"type": "bind", "source": "/m", "target": "/m", "read_only": True, "bind": {"create_host_path": False}}
    ]
    assert made["restart"] == "no"


def test_the_key_is_a_file_that_the_head_alone_reads():
    assert service()["env_file"] == ["/etc/sparkmatrix/engine.env", "/etc/sparkmatrix/engine-key.env"]
    assert service(head=False)["env_file"] == ["/etc/sparkmatrix/engine.env"]


@pytest.mark.parametrize(
    ("wishes", "devices", "deploy"),
    [
        (ContainerWishes(gpus="cdi"), ["/dev/infiniband", "nvidia.com/gpu=all"], False),
        (ContainerWishes(gpus="none", devices=[]), None, False),
        (ContainerWishes(devices=["/dev/x"]), ["/dev/x"], True),
    ],
)
def test_gpus_and_devices(wishes, devices, deploy):
    made = service(wishes)
    assert made.get("devices") == devices
    assert ("deploy" in made) == deploy


def test_limits_of_a_machine_that_may_not_raise_them():
    made = service(ContainerWishes(memlock="8388608", nofile="16384"))
    assert (made["ulimits"]["memlock"], made["ulimits"]["nofile"]["soft"]) == (8388608, 16384)


def test_entry_points():
    made = service()
    assert (made["entrypoint"], made["command"]) == (["vllm"], ARGV[1:])
    made = service(image="nvcr.io/nvidia/vllm:26.10-py3")
    assert "entrypoint" not in made
    assert made["command"] == ARGV


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"])), min_size=1))
def test_every_word_arrives(words):
    """Compose reads ``$$`` as one dollar; what is left is YAML."""
    text = compose.text(compose.document(PLACE, ContainerWishes(), "i", ["p", *words], MOUNTS, head=True))
    read = yaml.safe_load(text)["services"]["engine"]["command"]
    assert [word.replace("$$", "$") for word in read] == words
    assert all("$" not in word.replace("$$", "") for word in read)
