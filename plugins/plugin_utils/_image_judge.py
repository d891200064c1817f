# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judges the container images of all nodes together: the ranks of a service are made from the same one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _engine_services


def judge(plans: Mapping[str, Mapping[str, Any]], ids: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """``plans``: each host's part of the engine plan. ``ids``: per host image name: id, empty where it is not there.

    Services that share no rank may have different images under one name: only their own ranks have to fit together.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    for host, document in plans.items():
        for plan in (document, *document["beside"]):
            image_id = ids.get(host, {}).get(plan["image"], "")
            if image_id and _engine_services.in_container(plan):
                found.setdefault((plan["names"]["instance"], plan["image"]), {})[host] = image_id
    return [
        Finding(
            f"engine_services {instance}" if instance else "engine",
            f"{image} is not the same image on all of its nodes, so its ranks would not fit together: "
            + ", ".join(f"{host} {image_id}" for host, image_id in sorted(by_host.items())),
            f"Name it with its digest (image: name@sha256:...), or remove it where it is old: docker image rm {image}",
        )
        for (instance, image), by_host in found.items()
        if len(set(by_host.values())) > 1
    ]
