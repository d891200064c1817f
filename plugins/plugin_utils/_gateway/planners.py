# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planners of the gateway: its settings, checked and rendered; and the rules by which nobody else answers there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall.port_filter import GATEWAY
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.apply import Answer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner, judged
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._firewall import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._gateway import checks, render

REFUSED = "These settings of the gateway cannot work:"


def _read(options: Options) -> Settings:
    settings, findings = checks.read(options["settings"])
    judged(REFUSED, findings)
    return settings or Settings()


def rendered(options: Options) -> dict[str, Any]:
    """The request of the call ``gateway``, without the keys that were given: those are no result of a task."""
    settings = _read(options)
    told = {**document.plain(settings), "keys": [{"name": key.name} for key in settings.keys]}
    return {"request": {"settings": told, "rendered": render.files(settings, options["tool"])}}


def rules(options: Options) -> dict[str, Any]:
    settings = _read(options)
    answers: Mapping[str, Answer] = options["gateway"]
    return {
        "rules": {
            host: port_filter.layer(
                GATEWAY, [(place.address, place.port) for place in answer.ports], settings.port, settings.connections
            )
            for host, answer in answers.items()
        }
    }


_SPEC = {"settings": {"type": "dict", "required": True}}
PLANNERS = {
    "gateway": Planner(rendered, {**_SPEC, "tool": {"type": "str", "default": ""}}),
    "gateway_rules": Planner(rules, _SPEC, gathered={"gateway": "gateway"}, partly=("gateway",)),
}
