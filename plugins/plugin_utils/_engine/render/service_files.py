# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What lies on a node for one service: the description everywhere, a rank where one runs, the keeper on the head.

The hashes of both units change with everything that needs a restart. The ranks are restarted for their own hash only;
the keeper takes up a new description, and new code, by being restarted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths, strict, unit_sandbox
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import at_hand
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.at_hand import AtHand
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description, Ray
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Settings as KeeperSettings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Model,
    NodePlan,
    RayPlan,
    ServicePlan,
    fingerprint,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.pulse import WATCHDOG_S
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import HASH_VARIABLE
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot import options
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import loaders
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import KINDS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import compose as render_compose
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import (
    engine_sandbox,
    root_helpers,
    systemd_quoting,
)

_MANAGED = "# Managed by sparkmatrix.cluster (role engine)."
_UNIT_TITLE = f"{_MANAGED} The last line changes with everything that needs a restart.\n"
_DOCUMENTATION = {"venv": "https://docs.vllm.ai/", "container": "https://docs.docker.com/compose/"}
_CONTAINER_GRACE_S = 15  # that systemd waits longer than Docker
_WORKER_GRACE_S = 5
# Options of vLLM, SGLang and TensorRT-LLM with which the same weights give other log probabilities on purpose.
CHANGE_NUMBERS = frozenset({
    *("dtype", "quantization", "quantization-config", "quantization-param-path", "modelopt-quant", "rl-quant-profile"),
    *("kv-cache-dtype", "kv_cache_dtype", "kv-cache-dtype-skip-layers", "mamba-cache-dtype", "mamba-ssm-cache-dtype"),
    *("mamba-ssm-dtype", "qsa-indexer-dtype", "prefill-kv-cache-dequant-dtype", "enable-fp32-lm-head"),
    *("flashinfer-mxfp4-moe-precision", "enable-w4a4-mxfp4-megamoe", "enable-deepseek-v4-fp4-indexer", "hf-overrides"),
    *("hf-config-path", "json-model-override-args", "model-class-overrides", "load-format", "config-format"),
    *("tokenizer", "tokenizer-mode", "tokenizer-revision", "tokenizer-path", "custom_tokenizer", "chat-template"),
    *("chat_template", "hf-chat-template-name", "default-chat-template-kwargs", "lora-modules", "lora-paths"),
    *("lora-dtype", "logprobs-mode", "generation-config", "override-generation-config"),
})  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What the role's variables say; the same for all services of a node."""

    user: str = "sparkmatrix"
    group: str = "sparkmatrix"
    login_environment: bool = False
    sandbox: bool = True
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

    files: Mapping[str, str]  # path: content
    description: Mapping[str, Any]
    keeper_hash: str  # empty where the node is not its head


@dataclass(frozen=True)
class Node:
    """The files of all services on one node, the units among them, and the keepers that run there."""

    files: Mapping[str, str]
    units: Sequence[str]
    keepers: Sequence[Mapping[str, Any]]


def node(plan: NodePlan, settings: Settings, marks: Marks) -> Node:
    files: dict[str, str] = {}
    keepers = []
    for number, service in enumerate(plan.here):
        # Login shells get the environment of one service.
        own = replace(settings, login_environment=settings.login_environment and not number)
        made = make(service, plan.ray, own, marks)
        files.update(made.files)
        if made.keeper_hash:
            names = service.names
            keepers.append(
                {
                    "unit": names.keeper,
                    "config_hash": made.keeper_hash,
                    "description": names.description,
                    "nodes": service.nodes,
                }
            )
    for service in plan.all if plan.at_hand else ():
        own_files = make(service, plan.ray, settings, marks).files
        needs = at_hand.needed(service)
        one = AtHand(service.engine.served_model_name, plan.identity, own_files, service.models, needs)
        files[at_hand.path(one.model)] = one.text
    directory = f"{paths.UNITS}/"
    return Node(files, [path[len(directory) :] for path in files if path.startswith(directory)], keepers)


def make(service: ServicePlan, ray: RayPlan, settings: Settings, marks: Marks) -> Made:
    """``ray``: the node's own."""
    names = service.names
    ran = _of_rank(service, settings) if service.engine.runs_here else {}
    unit, unit_hash = "", ""
    if service.engine.runs_here:
        unit = (_container_unit if service.contained else _venv_unit)(service, settings)
        if service.prefixes.base:
            mark = marks.images.get(service.image, "")
            ran[f"{paths.UNITS}/{names.prefixes_unit}"] = _prefixes_unit(service, settings, mark)
        key = marks.key if service.is_head else ""
        parts = (*(f"{path}\n{content}" for path, content in sorted(ran.items())), *service.venv.requirements)
        unit_hash = config_hash(unit, *parts, key, marks.images.get(service.image, ""))
        ran[f"{paths.UNITS}/{names.unit}"] = _with_hash(unit, unit_hash)
        if settings.login_environment:
            # The same file for the service, `docker compose exec` and a person; not for root, whose programs would load
            # what a recipe's variables name.
            shell = f'if [ "$(id -u)" -ne 0 ]; then\n    set -a\n    . {names.environment}\n    set +a\nfi\n'
            ran[engine_names.LOGIN] = f"{_MANAGED}\n{shell}"
    description = _description(service, ray, settings, unit_hash)
    files = {names.description: json.dumps(description, indent=4, sort_keys=True) + "\n", **ran}
    keeper_hash = ""
    if service.is_head:
        keeper = _keeper_unit(names)
        keeper_hash = config_hash(keeper, json.dumps(description, sort_keys=True), marks.tool)
        files[f"{paths.UNITS}/{names.keeper}"] = _with_hash(keeper, keeper_hash)
    return Made(files, description, keeper_hash)


def _of_rank(service: ServicePlan, settings: Settings) -> dict[str, str]:
    """What a rank reads; it is restarted with every change of them."""
    names, engine = service.names, service.engine
    environment = systemd_quoting.environment_file({**engine.env, **engine.starter_env})
    files = {
        names.environment: f"{_MANAGED[:-1]}\n{environment}",
        # vLLM copies variables that begin with VLLM_ to all ranks, where they show up in logs; the key is not for them.
        engine_names.NOT_CARRIED: '["VLLM_API_KEY"]\n',
        **engine.files,
    }
    if service.contained:
        nothing = f"{_MANAGED} Nothing is set here: NCCL's settings are in the environment.\n"
        files[names.compose_file] = render_compose.text(render_compose.document(service, settings.sandbox))
        files[names.nccl_conf] = nothing
    return files


def units(service: ServicePlan) -> list[str]:
    """In the order in which they start."""
    ray = [engine_names.RAY_UNIT] if service.over_ray else []
    return ray + ([service.names.unit] if service.engine.runs_here else [])


def _description(service: ServicePlan, ray: RayPlan, settings: Settings, unit_hash: str) -> dict[str, Any]:
    engine, names = service.engine, service.names
    own = Ray(ray.python, ray.container, ray.address, ray.env, settings.user) if service.over_ray else Ray()
    return Description(
        host=engine.host,
        port=engine.port,
        model=engine.served_model_name,
        key_file=paths.ENGINE_KEY,
        units=tuple(units(service)),
        members=service.members,
        unit=names.unit if engine.runs_here else "",
        config_hash=unit_hash,
        instance=names.instance,
        engine=engine.name,
        backend=service.backend,
        runtime=service.runtime,
        endpoint=engine.endpoint,
        health=engine.health,
        task=engine.task,
        key=engine.key,
        recipe=service.recipe,
        nodes=service.nodes,
        role=service.role,
        rank=service.rank,
        stop_timeout_s=service.container.stop_timeout_s,
        budget_bytes=service.memory.budget,
        weights_bytes=service.memory.weights,
        revision=service.models[0].revision if service.models else "",
        **_marks(service),
        model_directory=engine.model if engine.model.startswith("/") else service.model_cache,
        **_loading(service),
        settings=_known(service),
        ray=own,
        keeper=KeeperSettings(**(settings.keeper or {})),
    ).as_dict()


def _loading(service: ServicePlan) -> dict[str, Any]:
    """How the weights are to be read, and how fast others have done it."""
    option = KINDS[service.engine.name].loader_option
    if not option:
        return {}
    words = service.engine.command.options
    load_format = next((value for name, value in zip(words, words[1:]) if name == f"--{option}"), "")
    loader, parts = loaders.of(load_format), service.parallel.tensor * service.parallel.pipeline
    return {"load_format": load_format, "load_gb_per_s": loader.gb_per_s / (1 if loader.divided else max(1, parts))}


def _marks(service: ServicePlan) -> dict[str, Any]:
    """What golden answers are told apart by: the same numbers, the same speed. Neither names version or image: an
    update of these is what is compared. Of a command that nobody knows every word may change both."""
    given = options.planned(service.engine.command.options)
    numbers: Any = {name: value for name, value in given.items() if name in CHANGE_NUMBERS}
    if KINDS[service.engine.name].opaque:
        numbers = service.engine.command.words
    models = sorted((model.name, model.revision) for model in service.models)
    made = {"numbers": fingerprint(service.engine.model, models, numbers, service.engine.files)}
    if service.memory.device == "gpu":  # a processor is everybody's
        hosts = [member.host for member in service.members if member.ranks]
        made["pace"] = fingerprint(service.engine.name, given, service.engine.files, hosts)
    return made


def _known(service: ServicePlan) -> dict[str, str]:
    engine, parallel, memory = service.engine, service.parallel, service.memory
    found = {
        "model": engine.model,
        "engine": f"{engine.name} {engine.version}".strip(),
        "image": service.image,
        "context": str(memory.context or ""),
        "requests at once": str(memory.concurrency or ""),
        "nodes": " ".join(member.host for member in service.members),
        "parallel": f"tensor {parallel.tensor} pipeline {parallel.pipeline} data {parallel.data}",
    }
    return {name: value for name, value in found.items() if value}


def _head_of_unit(service: ServicePlan, wants: Sequence[str]) -> list[str]:
    rank = f", rank {service.rank}" if service.backend in ("native", "mpi") else ""
    return [
        "[Unit]",
        f"Description={service.engine.name} serving {service.engine.served_model_name}{rank}",
        f"Documentation={_DOCUMENTATION[service.runtime]}",
        *wants,
        f"# Started, counted and restarted by {service.names.keeper}, together with the other ranks; so not at boot"
        " either.",
        "StartLimitIntervalSec=0",
        "",
    ]


def _over_ray(service: ServicePlan) -> list[str]:
    if not service.over_ray:
        return []
    ray = engine_names.RAY_UNIT
    return [
        "# Ranks live in Ray's processes: without Ray there is no engine, and a restarted Ray needs a restarted"
        " engine.",
        f"Requires={ray}",
        f"PartOf={ray}",
        f"After={ray}",
    ]


def _venv_unit(service: ServicePlan, settings: Settings) -> str:
    names, over_ray = service.names, _over_ray(service)
    if over_ray:
        over_ray += [
            "# The engine and the rank on this node meet at sockets in /tmp.",
            f"JoinsNamespaceOf={engine_names.RAY_UNIT}",
        ]
    kept, with_key = service.prefixes, service.is_head and service.engine.key
    wants = ["Wants=network-online.target", "After=network-online.target"]
    wants += _before(service)
    lines = [
        *_head_of_unit(service, [*wants, *over_ray]),
        "[Service]",
        "Type=exec",
        f"User={settings.user}",
        f"Group={settings.group}",
        "# What it listens on is known, and closed to strangers, by this.",
        f"Slice={port_filter.SLICE}",
        f"WorkingDirectory={service.home}",
        f"EnvironmentFile={names.environment}",
        *([f"EnvironmentFile={paths.ENGINE_KEY}"] if with_key else []),
        f"ExecStart={systemd_quoting.command(service.engine.command.words)}",
        "# vLLM's main process ends its children itself; what is left after it is killed.",
        "KillMode=mixed",
        f"TimeoutStopSec={service.container.stop_timeout_s}",
        "PrivateTmp=yes",
        *([f"TemporaryFileSystem=/dev/shm:mode=1777,size={kept.shared}"] if kept.base else []),
        "# Shared memory that killed processes left; done when the last service of this user has stopped.",
        "RemoveIPC=yes",
        "Restart=no",
        f"LimitMEMLOCK={service.container.memlock}",
        f"LimitNOFILE={service.container.nofile}",
        *(_sandbox(service) if settings.sandbox else []),
    ]
    return _UNIT_TITLE + strict.lines(lines, names.unit)


def _sandbox(service: ServicePlan) -> Sequence[str]:
    engine = service.engine
    named = [*engine.command.words, *engine.env.values(), *engine.starter_env.values()]
    return engine_sandbox.unit([service.home, service.model_cache, service.prefixes.base], named)


def _container_unit(service: ServicePlan, settings: Settings) -> str:
    names = service.names
    compose = render_compose.compose(names.project, names.compose_file)
    grace = service.container.stop_timeout_s if service.is_head else _WORKER_GRACE_S
    wants = [
        "Wants=network-online.target",
        "Requires=docker.service",
        "After=network-online.target docker.service",
        *_before(service),
    ]
    lines = [
        *_head_of_unit(service, [*wants, *_over_ray(service)]),
        "[Service]",
        "Type=exec",
        f"WorkingDirectory={names.directory}",
        "# A container that an interrupted start left.",
        f"ExecStartPre=-{compose} down --timeout 5",
        *root_helpers.nosuid(service.mounts),
        f"ExecStart={render_compose.up(compose, render_compose.SERVICE)}",
        "# A worker has no request to finish, and one of SGLang ignores SIGTERM.",
        f"ExecStop={compose} down --timeout {grace}",
        "# The container is Docker's child, not this unit's: whatever ended the unit ends it too.",
        f"ExecStopPost=-{compose} down --timeout 0",
        "KillMode=mixed",
        f"TimeoutStopSec={service.container.stop_timeout_s + _CONTAINER_GRACE_S}",
        "Restart=no",
    ]
    return _UNIT_TITLE + strict.lines(lines, names.unit)


def _before(service: ServicePlan) -> list[str]:
    """Upholds: systemd starts one that died by itself, and the engine goes on; Restart= in that unit would be passed on
    to whoever requires it."""
    words = ("Requires", "After", "Upholds") if service.prefixes.base else ()
    return [*root_helpers.before_start(), *(f"{word}={service.names.prefixes_unit}" for word in words)]


def _prefixes_unit(service: ServicePlan, settings: Settings, image: str) -> str:
    """``image``: the id of the one that its container is made from."""
    names, kept = service.names, service.prefixes
    words = [
        *(paths.NODE_PROGRAM, "prefixes", kept.base, "--key", kept.key, "--limit-gb", str(kept.disk_gb)),
        *("--unit", names.unit, *(("--mark", image) if image else ())),
        *(word for model in service.models for word in ("--model", _place(model))),
    ]
    lines = [
        "[Unit]",
        "Description=Keep what the engine has computed of prompts its own, and below a limit",
        "# Before each of its starts, and as long as it runs.",
        *(f"{word}={names.unit}" for word in ("BindsTo", "Before")),
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=notify",
        *([] if service.contained else [f"User={settings.user}", f"Group={settings.group}"]),
        f"StateDirectory={kept.base.partition('/lib/')[2]}",
        "StateDirectoryMode=0700",
        f"ExecStart={systemd_quoting.command(words)}",
        "# It may have to remove what another model has left.",
        "TimeoutStartSec=300",
        "TimeoutStopSec=30",
        *unit_sandbox.PREFIXES,
    ]
    return f"{_MANAGED}\n" + strict.lines(lines, names.prefixes_unit)


def _place(model: Model) -> str:
    """The directory with its files."""
    if model.name.startswith("/"):
        return model.name
    told = model.environment
    hub = told.get("HF_HUB_CACHE") or f"{told.get('HF_HOME') or paths.HOME + '/.cache/huggingface'}/hub"
    return f"{hub}/{caches.folder_name(model.name)}"


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
        "Type=notify",
        f"ExecStart={paths.NODE_PROGRAM} keep{config}",
        "# One that hangs gives no sign of life any more, and is started again.",
        f"WatchdogSec={WATCHDOG_S}",
        "WatchdogSignal=SIGKILL",
        "# The ranks are units of their own: stopping this one leaves them as they are.",
        "Restart=always",
        "RestartSec=5",
        "# It gave up, and has said why.",
        "RestartPreventExitStatus=3",
        "TimeoutStopSec=10",
        "# It has to act when memory is short, and must not be what makes it so: what nodes print is read with limits.",
        "OOMScoreAdjust=-900",
        "MemoryMax=1G",
        *unit_sandbox.KEEPER,
    ]
    return _UNIT_TITLE + strict.lines(lines, names.keeper)


def _with_hash(unit: str, value: str) -> str:
    return f"{unit}Environment={HASH_VARIABLE}={value}\n"
