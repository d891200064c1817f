# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""One rank as a Docker Compose file: everything that a container needs to use a Spark's GPU and fabric, and no more.

Not privileged. Host network, since ranks open ports of their own choosing to each other and RDMA has no ports at all;
the host's shared memory, since ranks on one node meet there; IPC_LOCK and unlimited locked memory, without which NCCL
falls back to sockets without a word. Secrets are not in the file: Compose reads them from files of mode 0600.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import folders
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import local_name
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    MODEL,
    Command,
    Container,
    Mount,
    RayPlan,
    ServicePlan,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import engine_sandbox

SERVICE = "engine"
RAY_SERVICE = "ray"
STACK = 67108864  # bytes; what NVIDIA's images ask for
INFINITY = -1
# What these images do before the engine (CUDA's compatibility libraries) has to be done; others start something else.
_ENTRYPOINT_KEPT = "nvcr.io/"
_TITLE = "# Managed by sparkmatrix.cluster (role {}). By hand: systemctl start {}\n"


def compose(project: str, file: str) -> str:
    """``docker compose`` for a unit: what is said goes to the journal, without colours."""
    return f"/usr/bin/docker compose --ansi never --project-name {project} --file {file}"


def up(command: str, service: str) -> str:
    """It in the foreground, as long as ``service`` runs, with its exit code."""
    return f"{command} up --no-color --no-log-prefix --pull never --abort-on-container-exit --exit-code-from {service}"


def document(service: ServicePlan, sandboxed: bool = True) -> dict[str, Any]:
    """A rank; over Ray the driver of the ranks that Ray's own container on this node, and others, hold."""
    names = service.names
    made = _service(service.container, service.image, service.engine.command, service.mounts, names.project)
    made.update(engine_sandbox.container() if sandboxed else {})
    if service.prefixes.base:
        made.update({"ipc": "private", "shm_size": service.prefixes.shared})
    with_key = service.is_head and service.engine.key
    made["env_file"] = [names.environment, *([paths.ENGINE_KEY] if with_key else [])]
    if service.over_ray:
        # Ray's client finds the node's Ray among the processes that it sees (since 2.55); its init is that container's.
        made["pid"] = f"container:{engine_names.RAY_PROJECT}"
        del made["init"]
    return {"name": names.project, "services": {SERVICE: made}}


def ray_document(ray: RayPlan, container: Container, sandboxed: bool = True) -> dict[str, Any]:
    """``ray start --block`` of one node. The ranks are its children, so it has all that a rank has."""
    made = _service(container, ray.image, ray.command, ray.mounts, ray.container)
    made.update(engine_sandbox.container() if sandboxed else {})
    made["env_file"] = [engine_names.RAY_ENVIRONMENT]
    return {"name": ray.container, "services": {RAY_SERVICE: made}}


def _service(settings: Container, image: str, command: Command, mounts: Sequence[Mount], name: str) -> dict[str, Any]:
    nofile = _limit(settings.nofile)
    service: dict[str, Any] = {
        "image": local_name(image),
        "container_name": name,
        "user": "0:0",  # whatever the image says: the port filter lets in connections of root and the service user
        "cgroup_parent": port_filter.SLICE,
        "network_mode": "host",
        "ipc": "host",
        "init": True,
        "cap_add": ["IPC_LOCK"],
        "ulimits": {
            "memlock": _limit(settings.memlock),
            "nofile": {"soft": nofile, "hard": nofile},
            "stack": STACK,
        },
        "volumes": [_bind(mount) for mount in mounts],
        "restart": "no",
        "stop_grace_period": f"{settings.stop_timeout_s}s",
        # The journal has it all; Docker's own copy would grow without end.
        "logging": {"driver": "local", "options": {"max-size": "20m", "max-file": "2"}},
    }
    if image.startswith(_ENTRYPOINT_KEPT) or command.entrypoint:
        service.update({"command": command.words} if command.words else {})
    else:
        service["entrypoint"] = [*command.starter, *command.program]
        service["command"] = list(command.options)
    caches = [mount.target for mount in mounts if mount.why == MODEL and not mount.read_only]
    if caches:  # what root notes there of models, and believes: the container's root could write it as well
        service["tmpfs"] = [f"{cache}/{folders.OWN}:ro" for cache in caches]
    devices = [*settings.devices, *(["nvidia.com/gpu=all"] if settings.gpus == "cdi" else [])]
    if devices:
        service["devices"] = devices
    if settings.gpus == "all":
        gpu = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [gpu]}}}
    return service


def text(made: Mapping[str, Any]) -> str:
    """The file. Compose takes ``$`` for a variable of its own, so it is written twice."""
    role = RAY_SERVICE if made["name"] == engine_names.RAY_PROJECT else SERVICE
    return _TITLE.format(role, made["name"]) + yaml.safe_dump(_doubled(made), sort_keys=False, width=10000)


def _doubled(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {name: _doubled(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_doubled(item) for item in value]
    return value


def _bind(mount: Mount) -> dict[str, Any]:
    """A source that is not there is an error, not a new empty directory."""
    made = {"type": "bind", "source": mount.source, "target": mount.target}
    return {**made, "read_only": mount.read_only, "bind": {"create_host_path": False}}


def _limit(value: str) -> int:
    """systemd's word for a limit, as Docker's number."""
    return INFINITY if value == "infinity" else int(value)
