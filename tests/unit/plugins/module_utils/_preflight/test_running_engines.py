# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.running_engines import (
    engine_name,
    running,
)


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/opt/engine/bin/python3.12", "/opt/engine/bin/vllm", "serve", "model"], "vllm"),
        (["/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server"], "vllm.entrypoints.openai.api_server"),
        (["python3", "-m", "sglang.launch_server"], "sglang.launch_server"),
        (["python3", "-m", "http.server"], ""),
        (["python3", "-m"], ""),
        (["VLLM::EngineCore"], "VLLM::EngineCore"),
        (["ray::RayWorkerWrapper.execute_method"], "ray::RayWorkerWrapper.execute_method"),
        (["/opt/ray/core/src/ray/raylet/raylet", "--port=1"], "raylet"),
        (["bash", "/usr/local/bin/trtllm-serve"], "trtllm-serve"),
        (["tail", "-f", "/var/log/vllm"], ""),
        (["vim", "vllm"], ""),
        (["bash"], ""),
        ([""], ""),
        ([], ""),
    ],
)
def test_engine_name(argv, name):
    assert engine_name(argv) == name


def machine(tmp_path, commands=None, engine="inactive", ray="inactive", gpu=None):
    for pid, argv in (commands or {}).items():
        place = tmp_path / "proc" / str(pid)
        place.mkdir(parents=True)
        (place / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in argv))
    (tmp_path / "proc/9").mkdir(parents=True)  # ended meanwhile
    (tmp_path / "proc/meminfo").write_text("")

    def run(argv):
        if argv[0] == "systemctl":
            return Completed(0, f"LoadState=loaded\nActiveState={engine}\n\nLoadState=loaded\nActiveState={ray}\n")
        return Completed(127) if gpu is None else Completed(0, gpu)

    return Machine(root=str(tmp_path), runner=run)


def test_an_idle_machine(tmp_path):
    assert running(machine(tmp_path, {1: ["/sbin/init"], 5: ["sshd"]}, ray="failed", gpu="")) == []


def test_every_sign_is_named_once(tmp_path):
    reader = machine(
        tmp_path, {5: ["/x/python3", "/x/vllm", "serve"]}, engine="activating", gpu="5, /x/python3\n6, ./train\n"
    )
    assert running(reader) == [
        "unit sparkmatrix-engine.service is activating",
        "process 5 (vllm)",
        "GPU process 6 (./train)",
    ]


def test_a_machine_without_systemd(tmp_path):
    assert running(Machine(root=str(tmp_path), runner=lambda argv: Completed(1))) == []
