# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What lies on a node for Ray: its unit, its environment and, in containers, what the plan adds.

The hash changes with everything that needs a restart: unit, command line, environment, requirements, token and image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan, RayPlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import HASH_VARIABLE
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import compose as render_compose
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import (
    engine_sandbox,
    root_helpers,
    systemd_quoting,
)

_MANAGED = "# Managed by sparkmatrix.cluster (role ray)"
_OLD_SESSIONS = "-name session_2* -mtime +7"


@dataclass(frozen=True)
class Settings:
    """What the role's variables say."""

    user: str = "sparkmatrix"
    group: str = "sparkmatrix"
    sandbox: bool = True


@dataclass(frozen=True)
class Made:
    files: Mapping[str, str]  # path: content
    config_hash: str


def make(plan: NodePlan, settings: Settings, token_mark: str = "", image_mark: str = "") -> Made:
    """The marks: fingerprint of the token, id of the image."""
    ray, service = plan.ray, plan.here[0]
    body = _container_service(ray) if ray.container else _venv_service(plan, settings)
    unit = strict.lines([*_head_of_unit(ray), *body], engine_names.RAY_UNIT)
    files = {engine_names.RAY_ENVIRONMENT: f"{_MANAGED}\n{systemd_quoting.environment_file(ray.env)}"}
    if ray.container:
        document = render_compose.ray_document(ray, service.container, settings.sandbox)
        files[engine_names.RAY_FILE] = render_compose.text(document)
        nothing = f"{_MANAGED}. Nothing is set here: NCCL's settings are in the environment.\n"
        files[engine_names.RAY_NCCL_CONF] = nothing
    parts = (unit, *files.values(), *service.venv.requirements, token_mark, image_mark)
    made = config_hash(*parts)
    files[f"{paths.UNITS}/{engine_names.RAY_UNIT}"] = f"{unit}Environment={HASH_VARIABLE}={made}\n"
    return Made(files, made)


def _head_of_unit(ray: RayPlan) -> Sequence[str]:
    docker = " docker.service" if ray.container else ""
    return [
        f"{_MANAGED}. The last line changes with everything that needs a restart.",
        "[Unit]",
        f"Description=Ray {ray.role} of the Spark cluster",
        "Documentation=https://docs.ray.io/",
        "Wants=network-online.target",
        *(["Requires=docker.service"] if docker else []),
        f"After=network-online.target{docker}",
        "# The engine's ranks run below Ray: with unified memory a full page cache is memory that the GPU cannot get.",
        *root_helpers.before_start(),
        "# A worker tries until its head is there. At boot the engine's keeper starts it, in the right order.",
        "StartLimitIntervalSec=0",
        "",
    ]


def _venv_service(plan: NodePlan, settings: Settings) -> Sequence[str]:
    ray, service = plan.ray, plan.here[0]
    # The ranks are its children.
    writable = [service.home, service.model_cache]
    named = [*ray.command.words, *ray.env.values(), service.engine.model]
    return [
        "[Service]",
        "Type=exec",
        f"User={settings.user}",
        f"Group={settings.group}",
        "# What it listens on is known, and closed to strangers, by this.",
        f"Slice={port_filter.SLICE}",
        f"WorkingDirectory={service.home}",
        f"EnvironmentFile={engine_names.RAY_ENVIRONMENT}",
        "# Logs of earlier sessions; Ray keeps all of them.",
        f"ExecStartPre=-/usr/bin/find {ray.temp_dir} -mindepth 1 -maxdepth 1 {_OLD_SESSIONS} -exec rm -rf {{}} +",
        f"ExecStart={systemd_quoting.command(ray.command.words)}",
        "# Ray's main process ends the others in its own order (4 s; told all at once they wait 20 s for each other).",
        "# What is left is killed, so that no process of an earlier start joins the cluster a second time.",
        "KillMode=mixed",
        "# Its answer to being stopped.",
        "SuccessExitStatus=1",
        "TimeoutStopSec=30",
        "# Sockets and caches in /tmp go with the service, and no other user can be there first.",
        "PrivateTmp=yes",
        "# Shared memory that killed processes left; done when the last service of this user has stopped.",
        "RemoveIPC=yes",
        "Restart=always",
        "RestartSec=3",
        f"LimitMEMLOCK={service.container.memlock}",
        f"LimitNOFILE={service.container.nofile}",
        *(engine_sandbox.unit(writable, named) if settings.sandbox else []),
    ]


def _container_service(ray: RayPlan) -> Sequence[str]:
    compose = render_compose.compose(ray.container, engine_names.RAY_FILE)
    state = ray.temp_dir.removeprefix("/var/lib/")
    return [
        "[Service]",
        "Type=exec",
        "# Sockets and logs, which the engine's container shares.",
        f"StateDirectory={state}",
        "StateDirectoryMode=0700",
        "# A container that an interrupted start left would join the cluster a second time.",
        f"ExecStartPre=-{compose} down --timeout 5",
        *root_helpers.nosuid(ray.mounts),
        "# Sockets of processes that were killed, and logs of earlier sessions; Ray keeps all of them.",
        f"ExecStartPre=-/usr/bin/find {ray.temp_dir} -mindepth 1 -maxdepth 1 ( -type s -o {_OLD_SESSIONS} )"
        " -exec rm -rf {} +",
        f"ExecStart={render_compose.up(compose, render_compose.RAY_SERVICE)}",
        "# Ray's main process, told by Docker, takes the node out of the cluster and ends the others in its own order"
        " (4 s).",
        f"ExecStop={compose} down --timeout 20",
        "# The container is Docker's child, not this unit's: whatever ended the unit ends it too.",
        f"ExecStopPost=-{compose} down --timeout 0",
        "KillMode=mixed",
        "# Its answer to being stopped.",
        "SuccessExitStatus=1",
        "TimeoutStopSec=45",
        "Restart=always",
        "RestartSec=3",
    ]
