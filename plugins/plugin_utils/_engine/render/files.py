# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What lies on a node for one service: the description everywhere, a rank where one runs, the keeper on the head.

The hashes of both units change with everything that needs a restart. The ranks are restarted for their own hash only;
the keeper takes up a new description, and new code, by being restarted.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import HASH_VARIABLE
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import compose as render_compose

_MANAGED = "# Managed by sparkmatrix.cluster (role engine)."
_UNIT_TITLE = f"{_MANAGED} The last line changes with everything that needs a restart.\n"
_DOCUMENTATION = {"venv": "https://docs.vllm.ai/", "container": "https://docs.docker.com/compose/"}
_CONTAINER_GRACE_S = 15  # that systemd waits longer than Docker
_WORKER_GRACE_S = 5


@dataclass(frozen=True)
class Settings:
    """What the role's variables say; the same for all services of a node."""

    user: str = "sparkmatrix"
    group: str = "sparkmatrix"
    drop_caches: bool = True
    login_environment: bool = False
    stop_timeout_s: int = 60
    memlock: str = "infinity"
    nofile: str = "65536"
    keeper: Mapping[str, Any] | None = None  # as in the description


@dataclass(frozen=True)
class Marks:
    """What a restart depends on beside the plan: fingerprint of the key, ids of the images, digest of the node tool."""

    key: str = ""
    images: Mapping[str, str] = field(default_factory=dict)  # by name
    tool: str = ""


@dataclass(frozen=True)
class Made:
    """The files of one service on one node."""

    names: Names
    files: Mapping[str, str]  # path: content
    description: Mapping[str, Any]
    keeper_hash: str  # empty where the node is not its head


@dataclass(frozen=True)
class Node:
    """The files of all services on one node, the units among them, and the keepers that run there."""

    files: Mapping[str, str]
    units: Sequence[str]
    keepers: Sequence[Mapping[str, Any]]


def node(document: Mapping[str, Any], settings: Settings, marks: Marks) -> Node:
    """``document``: the node's part of the engine plan."""
    files: dict[str, str] = {}
    keepers = []
    plans = [] if document["role"] == "idle" else [document, *document.get("beside", ())]
    for number, plan in enumerate(plans):
        # Login shells get the environment of one service.
        made = make(plan, replace(settings, login_environment=settings.login_environment and not number), marks)
        files.update(made.files)
        if made.keeper_hash:
            keepers.append(
                {
                    "unit": made.names.keeper,
                    "config_hash": made.keeper_hash,
                    "description": made.names.description,
                    "nodes": plan["nodes"],
                }
            )
    directory = f"{paths.UNITS}/"
    return Node(files, [path[len(directory) :] for path in files if path.startswith(directory)], keepers)


def make(plan: Mapping[str, Any], settings: Settings, marks: Marks) -> Made:
    """``plan``: of one service on the node."""
    names = Names(plan["names"]["instance"])
    here = bool(plan["engine"]["runs_here"])
    container = plan["runtime"] == "container"
    unit = (_container_unit if container else _venv_unit)(plan, settings, names)
    key = marks.key if plan["role"] == "head" else ""
    unit_hash = (
        config_hash(unit, plan["engine"]["config_hash"], key, marks.images.get(plan["image"], "")) if here else ""
    )
    description = _description(plan, settings, names, unit_hash)
    files = {names.description: json.dumps(description, indent=4, sort_keys=True) + "\n"}
    if here:
        files[names.environment] = f"{_MANAGED[:-1]}\n{plan['engine']['environment_file']}"
        # vLLM copies variables that begin with VLLM_ to all ranks, where they show up in logs; the key is not for them.
        files[engine_names.NOT_CARRIED] = '["VLLM_API_KEY"]\n'
        files[f"{paths.UNITS}/{names.unit}"] = _with_hash(unit, unit_hash)
        files.update(plan["engine"]["files"])
        if container:
            files.update(_container_files(plan))
        if settings.login_environment:
            # The same file for the service, `docker compose exec` and a person.
            files[engine_names.LOGIN] = f"{_MANAGED}\nset -a\n. {names.environment}\nset +a\n"
    keeper_hash = ""
    if plan["role"] == "head":
        keeper = _keeper_unit(names)
        keeper_hash = config_hash(keeper, json.dumps(description, sort_keys=True), marks.tool)
        files[f"{paths.UNITS}/{names.keeper}"] = _with_hash(keeper, keeper_hash)
    return Made(names, files, description, keeper_hash)


def units(plan: Mapping[str, Any], names: Names) -> list[str]:
    """In the order in which they start."""
    ray = [engine_names.RAY_UNIT] if plan["ray"]["needed"] else []
    return ray + ([names.unit] if plan["engine"]["runs_here"] else [])


def _description(plan: Mapping[str, Any], settings: Settings, names: Names, unit_hash: str) -> dict[str, Any]:
    engine = plan["engine"]
    return {
        "instance": names.instance,
        "engine": engine["name"],
        "backend": plan["backend"],
        "endpoint": engine["endpoint"],
        "host": engine["host"],
        "port": engine["port"],
        "model": engine["served_model_name"],
        "task": engine["task"],
        "key": engine["key"],
        "key_file": paths.ENGINE_KEY,
        "recipe": plan["recipe"],
        "nodes": plan["nodes"],
        "role": plan["role"],
        "rank": plan["rank"],
        "runtime": plan["runtime"],
        "unit": names.unit if engine["runs_here"] else "",
        "units": units(plan, names),
        "config_hash": unit_hash,
        "stop_timeout_s": settings.stop_timeout_s,
        "health": engine["health"],
        "budget_bytes": plan["memory"].get("budget", 0),
        "weights_bytes": plan["memory"].get("weights", 0),
        "members": plan["members"],
        "ray": {
            "python": plan["ray"]["python"],
            "container": plan["ray"]["container"],
            "address": plan["ray"]["address"],
            "environment": plan["ray"]["env"],
            "user": settings.user,
        }
        if plan["ray"]["needed"]
        else {},
        "keeper": dict(settings.keeper or {}),
    }


def _head_of_unit(plan: Mapping[str, Any], names: Names, wants: Sequence[str]) -> list[str]:
    rank = f", rank {plan['rank']}" if plan["backend"] in ("native", "mpi") else ""
    return [
        "[Unit]",
        f"Description={plan['engine']['name']} serving {plan['engine']['served_model_name']}{rank}",
        f"Documentation={_DOCUMENTATION[plan['runtime']]}",
        *wants,
        f"# Started, counted and restarted by {names.keeper}, together with the other ranks; so not at boot either.",
        "StartLimitIntervalSec=0",
        "",
    ]


def _over_ray(plan: Mapping[str, Any]) -> list[str]:
    if not plan["ray"]["needed"]:
        return []
    ray = engine_names.RAY_UNIT
    return [
        "# Ranks live in Ray's processes: without Ray there is no engine, and a restarted Ray needs a restarted"
        " engine.",
        f"Requires={ray}",
        f"PartOf={ray}",
        f"After={ray}",
    ]


def _venv_unit(plan: Mapping[str, Any], settings: Settings, names: Names) -> str:
    over_ray = _over_ray(plan)
    if over_ray:
        over_ray += [
            "# The engine and the rank on this node meet at sockets in /tmp.",
            f"JoinsNamespaceOf={engine_names.RAY_UNIT}",
        ]
    with_key = plan["role"] == "head" and plan["engine"]["key"]
    drop = [
        "# As root (+), and no reason not to start (-).",
        f"ExecStartPre=-+{paths.NODE_PROGRAM} drop-caches",
    ]
    wants = ["Wants=network-online.target", "After=network-online.target"]
    lines = [
        *_head_of_unit(plan, names, [*wants, *over_ray]),
        "[Service]",
        "Type=exec",
        f"User={settings.user}",
        f"Group={settings.group}",
        f"WorkingDirectory={plan['home']}",
        f"EnvironmentFile={names.environment}",
        *([f"EnvironmentFile={paths.ENGINE_KEY}"] if with_key else []),
        *(drop if settings.drop_caches else []),
        f"ExecStart={plan['engine']['command_line']}",
        "# vLLM's main process ends its children itself; what is left after it is killed.",
        "KillMode=mixed",
        f"TimeoutStopSec={settings.stop_timeout_s}",
        "PrivateTmp=yes",
        "# Shared memory that killed processes left; done when the last service of this user has stopped.",
        "RemoveIPC=yes",
        "Restart=no",
        f"LimitMEMLOCK={settings.memlock}",
        f"LimitNOFILE={settings.nofile}",
    ]
    return _UNIT_TITLE + "\n".join(lines) + "\n"


def _container_unit(plan: Mapping[str, Any], settings: Settings, names: Names) -> str:
    container = plan["container"]
    compose = render_compose.command(container["project"], container["file"])
    grace = settings.stop_timeout_s if plan["role"] == "head" else _WORKER_GRACE_S
    wants = [
        "Wants=network-online.target",
        "Requires=docker.service",
        "After=network-online.target docker.service",
    ]
    drop = ["# No reason not to start (-).", f"ExecStartPre=-{paths.NODE_PROGRAM} drop-caches"]
    lines = [
        *_head_of_unit(plan, names, [*wants, *_over_ray(plan)]),
        "[Service]",
        "Type=exec",
        f"WorkingDirectory={posixpath.dirname(container['file'])}",
        "# A container that an interrupted start left.",
        f"ExecStartPre=-{compose} down --timeout 5",
        *(drop if settings.drop_caches else []),
        f"ExecStart={render_compose.up(compose, render_compose.SERVICE)}",
        "# A worker has no request to finish, and one of SGLang ignores SIGTERM.",
        f"ExecStop={compose} down --timeout {grace}",
        "# The container is Docker's child, not this unit's: whatever ended the unit ends it too.",
        f"ExecStopPost=-{compose} down --timeout 0",
        "KillMode=mixed",
        f"TimeoutStopSec={settings.stop_timeout_s + _CONTAINER_GRACE_S}",
        "Restart=no",
    ]
    return _UNIT_TITLE + "\n".join(lines) + "\n"


def _container_files(plan: Mapping[str, Any]) -> dict[str, str]:
    file = plan["container"]["file"]
    nothing = f"{_MANAGED} Nothing is set here: NCCL's settings are in the environment.\n"
    return {file: plan["container"]["text"], f"{posixpath.dirname(file)}/nccl.conf": nothing}


def _keeper_unit(names: Names) -> str:
    config = f" --config {names.description}" if names.instance else ""
    lines = [
        "[Unit]",
        f"Description=Start the ranks of the engine{f' {names.instance}' if names.instance else ''},"
        " and all of them again when one is lost",
        "Wants=network-online.target",
        "After=network-online.target",
        "StartLimitIntervalSec=0",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={paths.NODE_PROGRAM} keep{config}",
        "# The ranks are units of their own: stopping this one leaves them as they are.",
        "Restart=always",
        "RestartSec=5",
        "# It gave up, and has said why.",
        "RestartPreventExitStatus=3",
        "TimeoutStopSec=10",
        "# It has to act when memory is short.",
        "OOMScoreAdjust=-900",
    ]
    return _UNIT_TITLE + "\n".join(lines) + "\n"


def _with_hash(unit: str, value: str) -> str:
    return f"{unit}Environment={HASH_VARIABLE}={value}\n"
