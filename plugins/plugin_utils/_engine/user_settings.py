# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a user may ask of a service: one dataclass, which gives the options of ``engine_plan`` and the keys of an entry.

A new option is a field here, an argument in ``roles/engine/tasks/plan.yml``, and its documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths, ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import VARIABLES, OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Container
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import image_build as image_builds
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.image_build import Build
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.ray import RaySettings

_RAY = {
    "port": {"type": "int"},
    "dashboard_port": {"type": "int"},
    "object_store_bytes": {"type": "int"},
    "num_cpus": {"type": "int"},
    "temp_dir": {"type": "path"},
    "token_path": {"type": "path", "no_log": False},
}
_CONTAINER = {
    "gpus": {"type": "str"},
    "devices": {"type": "list", "elements": "path"},
    "memlock": {"type": "str"},
    "nofile": {"type": "str"},
    "nccl_conf": {"type": "path"},
    "stop_timeout_s": {"type": "int"},
}
_BUILD = {"dockerfile": {"type": "str"}, "arguments": {"type": "dict"}}


def _option(
    kind: str, default: Any = None, *, entry: str | bool = True, read: Callable[[Any], Any] | None = None, **spec: Any
) -> Any:
    """A field that is an option of ``engine_plan``.

    ``entry``: the key of ``engine_services`` that stands for it, where it is not called the same; ``False``: there is
    none. ``read`` makes the field's value from the option's.
    """
    # pylint: disable=invalid-field-call  # its callers are the fields of a dataclass
    usual = {} if spec.get("required") else {"default": default}
    metadata = {"spec": {"type": kind, **usual, **spec}, "entry": entry, "read": read}
    if read:
        return field(default_factory=lambda: read(default), metadata=metadata)
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def _given(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Without what was left out; as values that are not changed any more."""
    given = {name: value for name, value in (values or {}).items() if value is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}


def _ray(given: Mapping[str, Any] | None) -> RaySettings:
    return RaySettings(**_given(given))


def _container(given: Mapping[str, Any] | None) -> Container:
    return Container(**_given(given))


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
    pin_kv_cache: bool = _option("bool", True)
    free_memory_gib: float = _option("float", 0.0, entry=False)  # measured on an idle node, by the user
    tensor_parallel_size: int = _option("int", 0)
    pipeline_parallel_size: int = _option("int", 0)
    data_parallel_size: int = _option("int", 0)
    expert_parallel: bool | None = _option(
        "str", "auto", choices=["auto", "true", "false"], read={"auto": None, "true": True, "false": False}.__getitem__
    )
    served_model_name: str = _option("str", "")
    model: str = _option("str", "", entry="model_path")
    port: int = _option("int", ports.API)
    rendezvous_port: int = _option("int", ports.RENDEZVOUS)
    options: Mapping[str, Any] = _option("dict", {})
    environment: Mapping[str, str] = _option(
        "dict", {}, read=lambda given: {name: str(value) for name, value in given.items()}
    )
    allow: Sequence[str] = _option("list", [], elements="str", read=tuple)
    media_domains: Sequence[str] = _option("list", [], elements="str", read=tuple)
    mount_directories: Sequence[str] = _option(
        "list", ["/opt/sparkmatrix/models"], entry=False, elements="path", read=tuple
    )
    requirements: Sequence[str] = _option("list", [], entry="venv_requirements", elements="str", read=tuple)
    venv_path: str = _option("path", "/opt/sparkmatrix/engine")
    home: str = _option("path", paths.HOME, entry=False)
    hf_home: str = _option("path", "/opt/sparkmatrix/models/huggingface", entry=False)
    # ruff takes _option() for a value that all instances share; it is a field.
    ray: RaySettings = _option("dict", {}, entry=False, options=_RAY, read=_ray)  # noqa: RUF009
    container: Container = _option("dict", {}, entry=False, options=_CONTAINER, read=_container)  # noqa: RUF009
    only_print: bool = _option("bool", False, entry=False)  # nothing will be started from this plan
    details: bool = _option("bool", False, entry=False)  # are printed, too
    # What the planner adds for one of several services.
    names: OptionNames = VARIABLES  # what the user calls an option here
    available: Mapping[str, int] = field(default_factory=dict)  # MemAvailable in bytes, where no engine is installed
    instance: str = ""  # name of the service where there are several
    api_host: str = kinds_base.API_HOST
    memory_share: float = 1.0  # of what engines may have on a node
    others: int = 0  # services beside it on the fullest of its nodes, and their shares
    others_share: float = 0.0


_OPTIONS = [item for item in fields(UserSettings) if "spec" in item.metadata]
# Options of engine_plan that are of one service.
SPEC: dict[str, dict[str, Any]] = {item.name: dict(item.metadata["spec"]) for item in _OPTIONS}
# Keys of an entry of engine_services, with the option that they stand for; what an entry leaves out is as the
# engine_* variables say.
ENTRY: dict[str, str] = {
    item.name if item.metadata["entry"] is True else item.metadata["entry"]: item.name
    for item in _OPTIONS
    if item.metadata["entry"]
}


def read(given: Mapping[str, Any]) -> UserSettings:
    """From options that :data:`SPEC` has accepted."""
    values = {item.name: (item.metadata["read"] or _same)(given[item.name]) for item in _OPTIONS}
    made = UserSettings(**values)
    return replace(made, ray=replace(made.ray, executable=f"{made.venv_path}/bin/ray"))


def _same(value: Any) -> Any:
    return value
