# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a user may ask of a service: one dataclass, made from variables of the roles and from keys of an entry.

A new option is a field here, and its documentation (``roles/engine``: defaults and argument specification).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Taken
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import VARIABLES, OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Container
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import image_build as image_builds
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.image_build import Build
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.ray import RaySettings

MERGED = ("options", "environment")  # key by key over the common ones
_BUILD = {"dockerfile": {"type": "str"}, "arguments": {"type": "dict"}}


def _option(
    kind: str,
    default: Any = None,
    *,
    key: str = "",
    variable: str = "",
    read: Callable[[Any], Any] | None = None,
    **spec: Any,
) -> Any:
    """A field that a user sets.

    Args:
        kind: its type, by the names of argument specifications.
        key: the key of ``engine_services`` that stands for it, where it is not called the same.
        variable: the variable that stands for it, where an entry has no key for it.
        read: makes the field's value from what was given.
    """
    # pylint: disable=invalid-field-call  # its callers are the fields of a dataclass
    usual = {} if spec.get("required") else {"default": default}
    metadata = {"spec": {"type": kind, **usual, **spec}, "key": key, "variable": variable, "read": read}
    if read:
        return field(default_factory=lambda: read(default), metadata=metadata)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class UserSettings:
    """0, ``None`` and empty mean: from the recipe, or computed."""

    recipe: str = _option("str", "", required=True)
    model_files: str = _option("path", "")
    engine: str = _option("str", "")
    launch: str = _option("str", "auto")
    runtime: str = _option("str", "")
    image: str = _option("str", "")
    image_build: Build = _option("dict", {}, options=_BUILD, read=image_builds.parse)  # noqa: RUF009
    profile: str = _option("str", "")
    context: int = _option("int", 0)
    concurrency: int = _option("int", 0)
    gpu_memory_utilization: float = _option("float", 0.0)
    free_memory_gib: float = _option("float", 0.0, variable="engine_free_memory_gib")  # on an idle node, by the user
    prefix_cache_gb: int = _option("int", 0)
    tensor_parallel_size: int = _option("int", 0)
    pipeline_parallel_size: int = _option("int", 0)
    data_parallel_size: int = _option("int", 0)
    expert_parallel: bool | None = _option(
        "str", "auto", choices=["auto", "true", "false"], read={"auto": None, "true": True, "false": False}.__getitem__
    )
    served_model_name: str = _option("str", "")
    model: str = _option("str", "", key="model_path")
    port: int = _option("int", ports.API)
    rendezvous_port: int = _option("int", ports.RENDEZVOUS)
    options: Mapping[str, Any] = _option("dict", {})
    environment: Mapping[str, str] = _option(
        "dict", {}, read=lambda given: {name: str(value) for name, value in given.items()}
    )
    allow: Sequence[str] = _option("list", [], elements="str", read=tuple)
    media_domains: Sequence[str] = _option("list", [], elements="str", read=tuple)
    mount_directories: Sequence[str] = _option(
        "list", ["/opt/sparkmatrix/models"], variable="engine_mount_directories", elements="path", read=tuple
    )
    requirements: Sequence[str] = _option("list", [], key="venv_requirements", elements="str", read=tuple)
    venv_path: str = _option("path", "/opt/sparkmatrix/engine")
    hf_home: str = _option("path", "/opt/sparkmatrix/models/huggingface", variable="engine_model_cache")
    ray_port: int = _option("int", ports.RAY_GCS, variable="ray_port")
    ray_dashboard_port: int = _option("int", ports.RAY_DASHBOARD, variable="ray_dashboard_port")
    gpus: str = _option("str", "all", variable="engine_container_gpus")
    memlock: str = _option("str", "infinity", variable="engine_limit_memlock")
    nofile: str = _option("str", "65536", variable="engine_limit_nofile")
    only_print: bool = _option("bool", False, variable="engine_plan_only")  # nothing will be started from this plan
    details: bool = _option("bool", False, variable="engine_plan_details")  # are printed, too
    # What the planner adds for one of several services.
    names: OptionNames = VARIABLES  # what the user calls an option here
    available: Mapping[str, int] = field(default_factory=dict)  # MemAvailable in bytes, where no engine is installed
    taken: Mapping[str, Sequence[Taken]] = field(default_factory=dict)  # by host, of services that have served
    instance: str = ""  # name of the service where there are several
    api_host: str = kinds_base.API_HOST
    memory_share: float = 1.0  # of what engines may have on a node
    others: int = 0  # services beside it on the fullest of its nodes, and their shares
    others_share: float = 0.0

    @property
    def ray(self) -> RaySettings:
        return RaySettings(
            f"{self.venv_path}/bin/ray",
            self.ray_port,
            self.ray_dashboard_port,
        )

    @property
    def container(self) -> Container:
        """Without the verbs devices NCCL falls back to sockets; a container without a GPU has no ranks of NCCL."""
        devices = () if self.gpus == "none" else Container.devices
        return Container(self.gpus, devices, self.memlock, self.nofile)


_OPTIONS = [item for item in fields(UserSettings) if "spec" in item.metadata]
SPEC: dict[str, dict[str, Any]] = {item.name: dict(item.metadata["spec"]) for item in _OPTIONS}
# Keys of an entry of engine_services, with the option that they stand for; what an entry leaves out is as the
# engine_* variables say.
ENTRY: dict[str, str] = {
    item.metadata["key"] or item.name: item.name for item in _OPTIONS if not item.metadata["variable"]
}
_VARIABLES = {item.name: item.metadata["variable"] for item in _OPTIONS if item.metadata["variable"]}
_VARIABLES |= {option: VARIABLES[key] for key, option in ENTRY.items()}


def given(value: Callable[[str], Any]) -> dict[str, Any]:
    """All options, not checked yet. ``value``: of a variable by its name, ``None`` where it has none."""
    made: dict[str, Any] = {name: spec.get("default") for name, spec in SPEC.items()}
    made |= {name: found for name, variable in _VARIABLES.items() if (found := value(variable)) is not None}
    for name in MERGED:
        made[name] = dict(made[name]) if isinstance(made[name], Mapping) else {}
    return made


def read(options: Mapping[str, Any]) -> UserSettings:
    """From options that :data:`SPEC` has accepted."""
    return UserSettings(**{item.name: (item.metadata["read"] or _same)(options[item.name]) for item in _OPTIONS})


def _same(value: Any) -> Any:
    return value
