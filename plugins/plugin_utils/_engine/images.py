# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Judges the container images of all nodes together.

The ranks of a service are made from the same one, and a plan that served before is served again from what it had.
"""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import Found, local_name
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan

# NCCL before it loses messages of its own threads on aarch64; before the second, it cannot route in a ring.
MIN_SEVERAL, MIN_RING = (2, 29, 3), (2, 30, 7)
OLD_NCCL = "Older ones hang on aarch64 now and then (vLLM issues 41725, 42354), on rings always"
Images = Mapping[str, Found]  # by host; one that was not asked has none


def judge(plans: Mapping[str, NodePlan], images: Images) -> list[Finding]:
    """Contents have to be the same; ids differ between stores.

    Services that share no rank may have different images under one name: only their own ranks have to fit together.
    """
    found: dict[tuple[str, str], dict[str, str]] = {}
    for host, document in plans.items():
        for service in document.all:
            content = images[host].contents.get(service.image, "") if host in images else ""
            if content and service.from_image:
                found.setdefault((service.instance, service.image), {})[host] = content
    differing = [
        Finding(
            f"engine_services {instance}" if instance else "engine",
            f"{image} is not the same image on all of its nodes, so its ranks would not fit together: "
            + ", ".join(f"{host} {images[host].ids[image]}" for host in sorted(by_host)),
            f"Name it with its digest ({'image' if instance else 'engine_image'}: name@sha256:...), or remove it where"
            f" it is old: docker image rm {local_name(image)}. Then the others get it from one node",
        )
        for (instance, image), by_host in found.items()
        if len(set(by_host.values())) > 1
    ]
    return [*differing, *_moved(plans, images), *_old_nccl(plans, images)]


def foreign(images: Images) -> list[Finding]:
    """Images for machines of another kind than the nodes are."""
    hosts: dict[tuple[str, str, str], list[str]] = {}
    for host, found in images.items():
        for image, platform in found.platforms.items():
            if platform and found.platform and platform != found.platform:
                hosts.setdefault((image, platform, found.platform), []).append(host)
    return [
        Finding(
            ", ".join(concerned),
            f"{image} is for {platform}, and these machines are {node}; no program of it would start",
            f"Name an image for {node} (engine_image), and remove this one: docker image rm {local_name(image)}",
        )
        for (image, platform, node), concerned in hosts.items()
    ]


def no_archive(path: str, seen: Mapping[str, bool]) -> list[Finding]:
    """A file that was named, and that no node has, where it is needed."""
    if not path or any(seen.values()):
        return []
    remedy = "Copy it to one of them, or correct engine_image_archive"
    return [Finding(", ".join(seen), f"there is no file {path}", remedy)]


def _old_nccl(plans: Mapping[str, NodePlan], images: Images) -> list[Finding]:
    """Of images from which ranks of several nodes start, where they speak over RDMA."""
    made: dict[tuple[str, str, str], list[str]] = {}
    for host, document in plans.items():
        for service in document.all:
            version = images[host].nccl.get(service.image, "") if host in images else ""
            env = service.engine.env
            wanted = MIN_RING if "NCCL_IB_SUBNET_AWARE_ROUTING" in env else MIN_SEVERAL
            old = version and tuple(map(int, version.split("."))) < wanted
            if old and service.nodes > 1 and env.get("NCCL_NET") == "IB":
                made.setdefault((service.image, version, ".".join(map(str, wanted))), []).append(host)
    return [
        Finding(
            ", ".join(hosts),
            f"{image} has NCCL {version}; ranks of several nodes need {wanted} or newer",
            "Name a newer image (engine_image)",
            severity="warning",
            why=OLD_NCCL,
        )
        for (image, version, wanted), hosts in made.items()
    ]


def _moved(plans: Mapping[str, NodePlan], images: Images) -> list[Finding]:
    """A kept plan holds the ids of the time when it served; an image that is gone cannot come back."""
    return [
        Finding(
            host,
            f"{image} is not the image that served before: that was {before}, which is gone, and this is"
            f" {images[host].ids[image]}",
            "Name images with their digest (name@sha256:...), which always means the same one",
            severity="warning",
        )
        for host, document in sorted(plans.items())
        for image, before in sorted(document.image_ids.items())
        if host in images and images[host].ids.get(image) not in ("", None, before)
    ]
