# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planners of QoS: what speaks against a change on any node, and whether all nodes have the profile after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import QOS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.port import Qos
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner, judged
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.planners import FACTS, load_facts
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._qos import verdict

REFUSED = "The QoS of the fabric cannot be changed like this; no QoS setting was changed:"
UNEVEN = "The QoS of the fabric is not what was asked for:"
PROFILE = {"type": "str", "choices": list(QOS), "required": True}


def before(options: Options) -> dict[str, Any]:
    findings = verdict.before(options["nodes"], load_facts(options), options["profile"], confirm=options["confirm"])
    return {**judged(REFUSED, findings), "changes": verdict.changes(options["nodes"])}


def after(options: Options) -> dict[str, Any]:
    return judged(UNEVEN, verdict.after(options["nodes"], load_facts(options), options["profile"]))


def _read(result: Any, _host: str) -> Qos:
    return document.load_known(Qos, {**result, "diff": ()} if isinstance(result, Mapping) else result)


NODES = _read  # the results of mlnx_qos in check mode
PLANNERS = {
    "qos_before": Planner(
        before,
        {"facts": FACTS, "profile": PROFILE, "confirm": {"type": "bool", "default": False}},
        gathered={"nodes": NODES},
    ),
    "qos_after": Planner(after, {"facts": FACTS, "profile": PROFILE}, gathered={"nodes": NODES}),
}
