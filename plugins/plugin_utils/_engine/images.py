# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Judges the container images of all nodes together.

The ranks of a service are made from the same one, and a plan that served before is served again from what it had.
"""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan

Seen = Mapping[str, Mapping[str, str]]  # per host by name of the image, empty where it is not there


def judge(plans: Mapping[str, NodePlan], ids: Seen, contents: Seen) -> list[Finding]:
    """``plans``: each host's part of the engine plan. ``contents``: what has to be the same; ids differ between stores.

    Services that share no rank may have different images under one name: only their own ranks have to fit together.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    for host, document in plans.items():
        for service in document.here:
            content = contents.get(host, {}).get(service.image, "")
            if content and service.from_image:
                found.setdefault((service.instance, service.image), {})[host] = content
    differing = [
        Finding(
            f"engine_services {instance}" if instance else "engine",
            f"{image} is not the same image on all of its nodes, so its ranks would not fit together: "
            + ", ".join(f"{host} {ids[host][image]}" for host in sorted(by_host)),
            f"Name it with its digest ({'image' if instance else 'engine_image'}: name@sha256:...), or remove it where"
            f" it is old: docker image rm {image}. Without a registry load one file on every node: docker load -i FILE",
        )
        for (instance, image), by_host in found.items()
        if len(set(by_host.values())) > 1
    ]
    return differing + _moved(plans, ids)


def _moved(plans: Mapping[str, NodePlan], ids: Seen) -> list[Finding]:
    """A kept plan holds the ids of the time when it served; an image that is gone cannot come back."""
    return [
        Finding(
            host,
            f"{image} is not the image that served before: that was {before}, which is gone, and this is"
            f" {ids[host][image]}",
            "Name images with their digest (name@sha256:...), which always means the same one",
            severity="warning",
        )
        for host, document in sorted(plans.items())
        for image, before in sorted(document.image_ids.items())
        if ids.get(host, {}).get(image) not in ("", None, before)
    ]
