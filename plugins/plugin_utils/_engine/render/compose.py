# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One rank as a Docker Compose file: everything that a container needs to use a Spark's GPU and fabric, and no more.

Not privileged. Host network, since ranks open ports of their own choosing to each other and RDMA has no ports at all;
the host's shared memory, since ranks on one node meet there; IPC_LOCK and unlimited locked memory, without which NCCL
falls back to sockets without a word. Secrets are not in the file: Compose reads them from files of mode 0600.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names

SERVICE = "engine"
RAY_PROJECT = "sparkmatrix-ray"
RAY_SERVICE = "ray"
SLICE = "sparkmatrix-engine.slice"  # what tells its processes from those of other containers
RAY_DIRECTORY = f"{paths.ETC}/ray"
RAY_FILE = f"{RAY_DIRECTORY}/compose.yml"
RAY_NCCL_CONF = f"{RAY_DIRECTORY}/nccl.conf"
RAY_ENVIRONMENT = f"{paths.ETC}/ray.env"
GPUS = ("all", "cdi", "none")
STACK = 67108864  # bytes; what NVIDIA's images ask for
INFINITY = -1
# What these images do before the engine (CUDA's compatibility libraries) has to be done; others start something else.
_ENTRYPOINT_KEPT = "nvcr.io/"
_TITLE = "# Managed by sparkmatrix.cluster (role {}). By hand: systemctl start {}\n"


def command(project: str, file: str) -> str:
    """``docker compose`` for a unit: what is said goes to the journal, without colours."""
    return f"/usr/bin/docker compose --ansi never --project-name {project} --file {file}"


def up(compose: str, service: str) -> str:
    """``compose`` in the foreground, as long as ``service`` runs, with its exit code."""
    return f"{compose} up --no-color --no-log-prefix --pull never --abort-on-container-exit --exit-code-from {service}"


@dataclass(frozen=True)
class ContainerWishes:
    """What a user may change."""

    gpus: str = "all"
    devices: Sequence[str] = ("/dev/infiniband",)
    memlock: str = "infinity"
    nofile: str = "65536"
    nccl_conf: str = ""
    stop_timeout_s: int = 60


@dataclass(frozen=True)
class Place:
    """What the container of a service, alone or one of several, is called, and where its files are."""

    names: Names

    @property
    def project(self) -> str:
        """Of Compose; the container is called so, too."""
        return f"sparkmatrix-engine{self.names.suffix}"

    @property
    def directory(self) -> str:
        return f"{paths.ETC}/engine{self.names.suffix}"

    @property
    def file(self) -> str:
        return f"{self.directory}/compose.yml"

    @property
    def nccl_conf(self) -> str:
        return f"{self.directory}/nccl.conf"


def document(
    place: Place,
    wishes: ContainerWishes,
    image: str,
    argv: Sequence[str],
    mounts: Sequence[Mapping[str, Any]],
    *,
    head: bool,
    beside_ray: bool = False,
) -> dict[str, Any]:
    """A rank; ``beside_ray``: the driver of the ranks that Ray's own container on this node, and others, hold."""
    service = _service(wishes, image, argv, mounts, place.project)
    service["env_file"] = [place.names.environment, *([paths.ENGINE_KEY] if head else [])]
    if beside_ray:
        # Ray's client finds the node's Ray among the processes that it sees (since 2.55); its init is that container's.
        service["pid"] = f"container:{RAY_PROJECT}"
        del service["init"]
    return {"name": place.project, "services": {SERVICE: service}}


def ray_document(
    wishes: ContainerWishes, image: str, argv: Sequence[str], mounts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """``ray start --block`` of one node. The ranks are its children, so it has all that a rank has."""
    service = _service(wishes, image, argv, mounts, RAY_PROJECT)
    service["env_file"] = [RAY_ENVIRONMENT]
    return {"name": RAY_PROJECT, "services": {RAY_SERVICE: service}}


def _service(
    wishes: ContainerWishes, image: str, argv: Sequence[str], mounts: Sequence[Mapping[str, Any]], name: str
) -> dict[str, Any]:
    nofile = _limit(wishes.nofile)
    service: dict[str, Any] = {
        "image": image,
        "container_name": name,
        "cgroup_parent": SLICE,
        "network_mode": "host",
        "ipc": "host",
        "init": True,
        "cap_add": ["IPC_LOCK"],
        "ulimits": {
            "memlock": _limit(wishes.memlock),
            "nofile": {"soft": nofile, "hard": nofile},
            "stack": STACK,
        },
        "volumes": [_bind(mount) for mount in mounts],
        "restart": "no",
        "stop_grace_period": f"{wishes.stop_timeout_s}s",
        # The journal has it all; Docker's own copy would grow without end.
        "logging": {"driver": "local", "options": {"max-size": "20m", "max-file": "2"}},
    }
    if image.startswith(_ENTRYPOINT_KEPT):
        service["command"] = list(argv)
    else:
        service["entrypoint"], service["command"] = [argv[0]], list(argv[1:])
    devices = [*wishes.devices, *(["nvidia.com/gpu=all"] if wishes.gpus == "cdi" else [])]
    if devices:
        service["devices"] = devices
    if wishes.gpus == "all":
        gpu = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [gpu]}}}
    return service


def text(made: Mapping[str, Any]) -> str:
    """The file. Compose takes ``$`` for a variable of its own, so it is written twice."""
    role = RAY_SERVICE if made["name"] == RAY_PROJECT else SERVICE
    return _TITLE.format(role, made["name"]) + yaml.safe_dump(_doubled(made), sort_keys=False, width=10000)


def _doubled(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$", "$$")
    if isinstance(value, Mapping):
        return {name: _doubled(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_doubled(item) for item in value]
    return value


def _bind(mount: Mapping[str, Any]) -> dict[str, Any]:
    """A source that is not there is an error, not a new empty directory."""
    made = {"type": "bind", "source": mount["source"], "target": mount["target"]}
    return {**made, "read_only": bool(mount["read_only"]), "bind": {"create_host_path": False}}


def _limit(value: str) -> int:
    """systemd's word for a limit, as Docker's number."""
    return INFINITY if value == "infinity" else int(value)
