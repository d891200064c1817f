# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What lies on a node for Ray."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import ray_files
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render.ray_files import Settings
from engine_plans import node_plans, with_service

UNIT = "/etc/systemd/system/sparkmatrix-ray.service"
COMPOSE = "/etc/sparkmatrix/ray/compose.yml"
CONTAINERS = {"runtime": "container", "image": "x/y:v0.33.0"}


def plans(**settings):
    return node_plans(2, "qwen3-235b-a22b-gptq-int4", launch="ray", **settings)


def test_a_unit_in_full():
    plan = plans(nofile="4096")["spark1"]
    made = ray_files.make(plan, Settings(sandbox=False))
    assert set(made.files) == {UNIT, "/etc/sparkmatrix/ray.env"}
    assert (
        made.files[UNIT]
        == f"""\
# Managed by sparkmatrix.cluster (role ray). The last line changes with everything that needs a restart.
[Unit]
Description=Ray head of the Spark cluster
Documentation=https://docs.ray.io/
Wants=network-online.target
After=network-online.target
# The engine's ranks run below Ray: with unified memory a full page cache is memory that the GPU cannot get.
Wants=sparkmatrix-drop-caches.service sparkmatrix-gpu-devices.service
After=sparkmatrix-drop-caches.service sparkmatrix-gpu-devices.service
# A worker tries until its head is there. At boot the engine's keeper starts it, in the right order.
StartLimitIntervalSec=0

[Service]
Type=exec
User=sparkmatrix
Group=sparkmatrix
# What it listens on is known, and closed to strangers, by this.
Slice=sparkmatrix-engine.slice
WorkingDirectory=/var/lib/sparkmatrix/home
EnvironmentFile=/etc/sparkmatrix/ray.env
# Logs of earlier sessions; Ray keeps all of them.
ExecStartPre=-/usr/bin/find /var/lib/sparkmatrix/home/ray -mindepth 1 -maxdepth 1 -name session_2* -mtime +7 \
-exec rm -rf {{}} +
ExecStart={" ".join(plan.ray.command.words)}
# Ray's main process ends the others in its own order (4 s; told all at once they wait 20 s for each other).
# What is left is killed, so that no process of an earlier start joins the cluster a second time.
KillMode=mixed
# Its answer to being stopped.
SuccessExitStatus=1
TimeoutStopSec=30
# Sockets and caches in /tmp go with the service, and no other user can be there first.
PrivateTmp=yes
# Shared memory that killed processes left; done when the last service of this user has stopped.
RemoveIPC=yes
Restart=always
RestartSec=3
LimitMEMLOCK=infinity
LimitNOFILE=4096
Environment=SPARKMATRIX_CONFIG_HASH={made.config_hash}
"""
    )


def test_in_containers_ray_is_what_docker_runs():
    for host, role in (("spark1", "head"), ("spark2", "worker")):
        plan = plans(**CONTAINERS)[host]
        made = ray_files.make(plan, Settings())
        text = made.files[UNIT]
        assert set(made.files) == {UNIT, "/etc/sparkmatrix/ray.env", COMPOSE, "/etc/sparkmatrix/ray/nccl.conf"}
        compose = f"/usr/bin/docker compose --ansi never --project-name {plan.ray.container} --file "
        assert f"\nExecStart={compose}{COMPOSE} up " in text
        assert " --abort-on-container-exit --exit-code-from ray\n" in text
        assert "\nRequires=docker.service\n" in text and f"Description=Ray {role} of" in text
        assert "\nStateDirectory=sparkmatrix/ray\n" in text
        # The container has its own user and limits.
        assert "\nUser=" not in text and "\nLimit" not in text and "\nEnvironmentFile=" not in text


@pytest.mark.parametrize("settings", [{}, CONTAINERS], ids=["venv", "container"])
def test_the_hash_changes_with_everything_that_needs_a_restart(settings):
    plan = plans(**settings)["spark1"]
    other = replace(plan, ray=replace(plan.ray, env={**plan.ray.env, "NCCL_DEBUG": "INFO"}))
    newer = with_service(plan, venv=replace(plan.here[0].venv, requirements=("ray==2.61.0",)))
    renamed = replace(plan, ray=replace(plan.ray, role="worker"))
    made = [
        ray_files.make(plan, Settings()),
        ray_files.make(plan, Settings(), token_mark="f00"),
        ray_files.make(plan, Settings(), image_mark="sha256:abc"),
        ray_files.make(other, Settings()),
        ray_files.make(newer, Settings()),
        ray_files.make(renamed, Settings()),
    ]
    assert len({each.config_hash for each in made}) == len(made)
    assert ray_files.make(plans(**settings)["spark1"], Settings()) == made[0]
    # What is only the engine's is no reason.
    longer = plans(**settings, context=8192)["spark1"]
    assert ray_files.make(longer, Settings()) == made[0]
