# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a run asks of a node: one function per question, with a typed request and a typed answer.

A function takes its request (a dataclass) and whether this is check mode, changes nothing in check mode, returns its
answer (a dataclass) and raises :class:`SparkError`. What an answer calls ``changed``, ``diff``, ``warnings``,
``failed`` or ``msg`` is what Ansible knows by that name. The module ``node`` runs it on the node; the controller reads
answers by :func:`read` and in no other way.
"""

from __future__ import annotations

import importlib
import typing
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

PACKAGE = "ansible_collections.sparkmatrix.cluster.plugins.module_utils"
# Name of the call -> file and function. The module ``node`` carries these files and all that they import.
CALLS: Mapping[str, str] = {
    "engine_inputs": "_artifacts.inputs:find",
    "engine_probe": "_keeper.wait:answer",
    "engine_units": "_keeper.units:ensure",
    "engine_version": "_engine.version:versions",
    "fabric_change": "_fabric.apply:change",
    "fabric_remove": "_fabric.apply:remove",
    "fabric_settle": "_fabric.rollback:settle",
    "access": "_access.apply:ensure",
    "discover": "_access.discover:look",
    "fail2ban": "_access.fail2ban:ensure",
    "firewall": "_access.apply:ensure_rules",
    "gateway": "_gateway.apply:ensure",
    "image_fetch": "_artifacts.image_copy:fetch",
    "image_look": "_engine.image:look",
    "image_offer_end": "_artifacts.image_copy:end_offer",
    "image_receive": "_artifacts.image_copy:get",
    "kept_plan": "_engine.kept_plan:ensure",
    "model_listing": "_artifacts.look:listing",
    "model_manifest": "_artifacts.look:manifest",
    "model_offer": "_artifacts.from_node:offer",
    "model_work": "_artifacts.work:ensure",
    "models": "_artifacts.look:models",
    "models_remove": "_artifacts.look:remove",
    "nccl_look": "_nccl.run:look",
    "nccl_test": "_nccl.run:test",
    "neighbors": "_fabric.neighbor_sockets:find",
    "host_key": "_access.host_key:ask",
    "os_settings": "_os.stabilization:ensure",
    "os_update": "_os.update:act",
    "packages": "_managed.packages:ensure",
    "observation": "_status.observed:observation",
    "peer": "_access.node:ensure",
    "peermem": "_fabric.peermem:ensure",
    "pings": "_fabric.ping:ping",
    "ray_cluster": "_engine.ray_cluster:wait",
    "rdma_look": "_fabric.bandwidth:look",
    "rdma_rates": "_fabric.bandwidth:rates",
    "rdma_traffic": "_fabric.traffic:traffic",
    "port_filter": "_firewall.port_filter:ensure",
    "golden": "_keeper.golden_check:compare",
    "reach": "_preflight.reach:look",
    "serving_bench": "_bench.serving:measure",
    "smoke": "_engine.smoke:ask",
    "secret": "_managed.secret:act",
    "verify": "_keeper.verify:verify",
    "web_ui_data": "_web_ui.data:move",
    "support": "_support.capture:support",
    "verdicts": "_verdict.store:verdicts",
}
REMEDY = "Find out what runs on this machine: it never answers like this"


def function(name: str) -> Callable[[Any, bool], Any]:
    """The function of a call; only its file and what that imports is loaded."""
    if name not in CALLS:
        raise SparkError(f"there is no call {name!r:.60}", "node", f"Calls are {', '.join(sorted(CALLS))}")
    file, _colon, called = CALLS[name].partition(":")
    return getattr(importlib.import_module(f"{PACKAGE}.{file}"), called)  # type: ignore[no-any-return]  # by name; a test holds that it is one


def run(name: str, request: Mapping[str, Any], check: bool) -> dict[str, Any]:
    """On the node: the answer as Ansible returns it.

    Args:
        name: One of :data:`CALLS`.
        request: What the task says, by name of the field.
        check: Change nothing.

    Raises:
        SparkError: The call cannot be done, or the request does not fit, which names the field.
    """
    return {"changed": False, **document.plain(function(name)(load_request(name, request), check))}


def load_request(name: str, values: Mapping[str, Any]) -> Any:
    """Of a task. Raises :class:`SparkError`, which names the field that does not fit."""
    first = next(iter(typing.get_type_hints(function(name)).values()))
    try:
        return document.load(first, values, spoken=True)
    except (TypeError, ValueError) as exc:
        raise SparkError(f"{exc}", name, "Give the whole collection the same release") from exc


def answer_type(name: str) -> type[Any]:
    """The dataclass that a call returns."""
    return typing.cast("type[Any]", typing.get_type_hints(function(name))["return"])


def read(name: str, result: Any, host: str) -> Any:
    """On the controller: the result of a task as the answer of the call; fields that Ansible adds are left out.

    Raises:
        SparkError: A field is missing, or is not of its kind.
    """
    answer = answer_type(name)
    with json_text.Reading(f"what this machine answered ({name}) cannot be used", host, REMEDY):
        if not isinstance(result, Mapping):
            raise ValueError(f"it is {strict.quoted(result)}, expected a mapping")
        return document.load_known(answer, {**result, "diff": ()})
