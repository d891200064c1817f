# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Recipes of sparkrun, of all versions: with a command, or with defaults that it makes one from."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import (
    container,
    facts,
    placement,
    spark_vllm_docker,
    sparkrun_options,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.facts import (
    Loss,
    PeerRecipe,
    shown,
    texts,
    value_text,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.spark_vllm_docker import filled

FORMAT = "sparkrun"
_READ = spark_vllm_docker.READ | {
    *("model_revision", "runtime", "min_nodes", "max_nodes", "pre_exec", "executor_config", "metadata"),
    *("sparkrun_version", "min_sparkrun_version"),
}
_BRINGS = "what the tool does around its command"
# Further keys, and what each means for what is served.
_MEANS = {
    "post_exec": "runs in the container of the head once it serves; run it by hand, or leave it",
    "post_commands": "runs on their control machine once it serves",
    "stop_after_post": "stops what it has started",
    "builder": "how their image comes to the machines",
    "builder_config": "how their image comes to the machines",
    "executor": "what starts their container; Docker does here",
    "distribution_config": "which weights go where; name a second model in engine_services or fetch it before",
    "runtime_version": "a note on the engine in their image",
    "runtime_cache": "where their caches are kept",
    "readiness": "how long its start may take; engine_ready_timeout_s does that here",
    "patches": "no tool of theirs reads it; where it changes the engine, build it into the image",
    "variants": "further settings; write the recipe of the one that you want",
    "overrides": "further settings for some machines; write the recipe of the one that you want",
    "draft_model": "no tool of theirs reads it beside the command; the command names its draft",
    "layout": "which machines take part; the inventory says it here",
    "scheduler": "which machines take part; the inventory says it here",
    "containers": "another image for some machines; all ranks have one here",
    "benchmark": "how they measure it; sparkmatrix bench has its own way",
    "capabilities": "a note on what the model can do",
    "unsupported_capabilities": "a note on what the model can do",
    "include": "another file is read with it, and only one is taken here: put both into one",
    "mode": "whether one or several machines serve; its sizes say it here",
    "cluster_config": "where their weights are",
}
_LAUNCHER = {
    "vllm": "NCCL_CUMEM_ENABLE=0, OMP_NUM_THREADS=4",
    "sglang": "NCCL_CUMEM_ENABLE=0, SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0",
}  # on several machines; on each of them:
_PLATFORM = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_LAUNCH = {
    "num_nodes": placement.NODES,
    "node_rank": placement.RANK,
    "node_host": placement.ADDRESS,
    "cluster_id": "sparkmatrix",
    "runtime_cache_dir": "/cache/runtime",
}
_LISTENS = {"port": placement.PORT, "host": "@host@"}
_TEMPLATE = re.compile(r"\{(config|launch)\.(\w+)\}")


def matches(document: Mapping[str, Any]) -> bool:
    return isinstance(document.get("command"), (str, list)) or ("runtime" in document and "model" in document)


def read(document: Mapping[str, Any], path: str) -> PeerRecipe:
    peer = PeerRecipe(FORMAT, path, caches=["/cache/huggingface"])
    spark_vllm_docker.begin(peer, document, path)
    runtime = str(document.get("runtime") or "")
    given = document.get("defaults") or {}
    defaults = {str(key): filled(value, {}) if isinstance(value, str) else value for key, value in given.items()}
    values = {**defaults, "model": peer.model, "resolved_model_path": peer.model}
    if peer.revision:
        values["model_revision"] = peer.revision
    peer.put_environment(_environment(peer, document.get("env") or {}, defaults))
    _container(peer, document.get("executor_config") or {})
    if isinstance(document.get("command"), (str, list)):
        spark_vllm_docker.command(peer, document, values, path)
    else:
        without_command(peer, runtime, defaults, path)
    ray = runtime == "vllm-ray" or defaults.get("distributed_executor_backend") == "ray"
    if ray:
        peer.placed.append(Loss("vllm-ray", "ranks find each other without Ray, in the engine's own way"))
    spark_vllm_docker.finish(peer, document)
    _served(peer, defaults)
    _replicas(peer)
    engine, _rest = placement.start(peer)
    if engine and engine.name in _LAUNCHER:
        several = [_LAUNCHER[engine.name]] if peer.min_nodes > 1 else []
        spark_vllm_docker.launcher(peer, ", ".join([*several, _PLATFORM]))
    _pre_exec(peer, document.get("pre_exec"), values)
    for key, value in document.items():
        if key in _READ or value is None or value in ([], {}, ""):
            continue
        peer.lose(f"{key} ({shown(str(key), value)})", _MEANS.get(str(key), f"{_BRINGS}, and nothing here is like it"))
    peer.keys = {key: document.get(key) for key in ("executor_config", "pre_exec", "metadata") if document.get(key)}
    if set(peer.keys.get("metadata", ())) <= {"description"}:
        peer.keys.pop("metadata", None)
    else:
        said = shown("metadata", peer.keys["metadata"])
        peer.placed.append(Loss(f"metadata ({said})", "what they estimate its memory from; it is measured here"))
    return peer


def _environment(peer: PeerRecipe, given: Mapping[Any, Any], defaults: Mapping[str, Any]) -> dict[str, str]:
    def put(match: re.Match[str]) -> str:
        if match[1] == "config":
            place = _LISTENS.get(match[2])
            return (place or str(defaults[match[2]])) if match[2] in defaults else match.group()
        of_model = {"model_path": placement.MODEL, "model_revision": peer.revision}
        return {**_LAUNCH, **of_model}.get(match[2], match.group())

    made, room = {}, facts.MAX_TEXT
    for name, value in given.items():
        made[str(name)] = facts.put(_TEMPLATE, put, "" if value is None else str(value), room)
        room -= len(made[str(name)])
    return made


def _served(peer: PeerRecipe, defaults: Mapping[str, Any]) -> None:
    """The tool appends the name where the command does not say one."""
    name = str(defaults.get("served_model_name") or "")
    engine, _begins = placement.program(peer.argv)
    if engine and name and not peer.served:
        peer.served = (name,)
        words = [engine.served[0], name]
        if peer.script:
            peer.script = f"{peer.script.rstrip()} {shlex.join(words)}"
        peer.argv += words


def _replicas(peer: PeerRecipe) -> None:
    engine, rest = placement.start(peer)
    copies = placement.value_of(rest, ("-dp", "--data-parallel-size")) if engine and engine.worker else ""
    if copies not in ("", "1") and peer.appended:
        peer.lose(
            f"{copies} replicas",
            f"{FORMAT} gives each its own rank words (--data-parallel-rank, --data-parallel-address)",
            "compare the words at the end of command with what the engine takes",
        )


def _container(peer: PeerRecipe, given: Mapping[str, Any]) -> None:
    entrypoint = given.get("entrypoint")
    peer.entrypoint = entrypoint is None
    for key, value in given.items():
        if key == "volumes":
            for text in texts(value):
                container.mount(peer, text)
        elif key == "entrypoint":
            if value:
                instead = "name it at the beginning of command.words"
                peer.lose(f"executor_config.entrypoint ({value})", "their image starts by another program", instead)
        else:
            container.option(peer, str(key), value)


def _pre_exec(peer: PeerRecipe, given: Any, values: Mapping[str, Any]) -> None:
    """Commands in the container before the engine: at the beginning of what it runs."""
    before = []
    for item in [given] if isinstance(given, (str, Mapping)) else given or []:
        if isinstance(item, Mapping):
            peer.lose(
                f"pre_exec ({shown('copy', item)})",
                "a file of their machine in the container",
                "put it on every node and add it to mounts",
            )
        else:
            before.append(f"(\n{spark_vllm_docker.put_in(str(item), values).strip()}\n) || exit 1")
    if before:
        peer.script = "\n".join([*before, peer.script or shlex.join(peer.argv)])
        peer.placed.append(Loss("pre_exec", "runs at the beginning of the command, in every container"))


def without_command(peer: PeerRecipe, runtime: str, defaults: Mapping[str, Any], path: str) -> None:
    """Its map of names makes the command; what the map does not have, the tool drops, and we say."""
    table = sparkrun_options.of(runtime)
    if table is None:
        known = ", ".join(sparkrun_options.RUNTIMES)
        raise SparkError(
            f"it has no command, and what its runtime {runtime} makes of its defaults is not known",
            path,
            f"Known without a command: {known}. Write the command into it",
        )
    argv = [*table.program, *table.model, peer.model]
    if peer.revision and table.revision:
        argv += ["--revision", peer.revision]
    for key in [*table.options, *(key for key in defaults if key not in table.options)]:
        if key not in defaults:
            continue
        value, name = defaults[key], table.flag(str(key))
        if not name:
            peer.lose(
                f"{key} ({shown(str(key), value)})", f"{FORMAT} drops it: its {runtime} has no option of that name"
            )
        elif value is True:
            argv += [name, table.words[True]] if key in table.worded else [name]
        elif value is False or value is None:
            if value is False and key in table.negated:
                argv.append(f"--no-{name[2:]}")
            elif value is False and key in table.worded:
                argv += [name, table.words[False]]
            else:
                peer.placed.append(Loss(f"{key} ({value_text(value)})", f"{FORMAT} leaves it out, too"))
        elif isinstance(value, (list, Mapping)):
            argv += [name, json.dumps(value, separators=(",", ":"))]
        else:
            argv += [name, value_text(value)]
    peer.argv = argv
