# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Every variable that a user may set: what the roles' ``meta/argument_specs.yml`` say, and those that roles share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.common.parameters import DEFAULT_TYPE_VALIDATORS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import VARIABLES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import spelling, yaml_text
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import ENTRY

ROLES = Path(__file__).resolve().parents[3] / "roles"

# Layers that read the variables of a role. A run looks only at variables that one of its layers reads.
ROLE_LAYERS: Mapping[str, frozenset[str]] = {
    "access": frozenset({"access", "fabric", "ray", "engine", "gateway"}),
    "peers": frozenset({"access", "fabric", "ray", "engine"}),
    "os_stabilization": frozenset({"os_stabilization"}),
    "os_update": frozenset({"os_stabilization"}),
    "fabric": frozenset({"fabric"}),
    "ray": frozenset({"plan", "ray", "engine", "gateway", "web_ui", "observability", "verify"}),
    "artifacts": frozenset({"plan", "artifacts"}),
    "engine": frozenset({"plan", "ray", "engine", "gateway", "web_ui", "observability", "verify"}),
    "gateway": frozenset({"gateway", "web_ui", "verify"}),
    "web_ui": frozenset({"gateway", "web_ui"}),
    "observability": frozenset({"ray", "engine", "observability"}),
    "verify": frozenset({"verify"}),
    "benchmark": frozenset({"verify"}),
    "doctor": frozenset({"verify"}),
}
# Of Ansible, where a slip means another login or machine.
CONNECTION = (
    "ansible_become_password",
    "ansible_connection",
    "ansible_host",
    "ansible_port",
    "ansible_ssh_private_key_file",
    "ansible_user",
)
# Keys that nobody has for something else.
KEYS = {key: VARIABLES[key] for key in ENTRY if "_" in key or key in ("engine", "recipe")}
_KEEPER = "Leave it out: the keeper's own times serve (docs/staying-up.md)"
# What earlier releases had as a variable and is the same for everybody now.
_FIXED: Mapping[str, str] = {
    "access_rollback_seconds": "150",
    "awx_approval_timeout_s": "a workflow waits",
    "benchmark_nccl_timeout_s": "600",
    "benchmark_repetitions": "3",
    "benchmark_requests": "2",
    "benchmark_seed": "other prompts in every run",
    "doctor_days": "7",
    "doctor_drift_minutes": "15",
    "doctor_first_contact_file": "first-contact.tar.gz",
    "engine_pin_kv_cache": "true",
    "fabric_bandwidth_port": "18515",
    "fabric_ipv6": "false",
    "gateway_burst": "100",
    "gateway_limit_nofile": "16384",
    "gateway_timeout_s": "3600",
    "observability_every_s": "15",
    "observability_retention_days": "15",
    "observability_retention_gib": "10",
    "os_stabilization_earlyoom_percent": "3",
    "os_stabilization_hold_packages": "kernel, driver and NVIDIA packages",
    "os_stabilization_logs_docker_files": "3",
    "os_stabilization_logs_docker_mib": "100",
    "os_stabilization_logs_journal_mib": "4096",
    "os_stabilization_watchdog_seconds": "5",
    "os_stabilization_watchdog_units": "engine, then Ray",
    "os_update_refresh": "true",
    "peers_hosts": "true",
    "peers_user": "sparkmatrix-peer",
    "preflight_max_clock_skew_s": "10",
    "ray_num_cpus": "1",
    "ray_object_store_mib": "512",
    "verify_timeout_s": "300",
    "web_ui_backup_dir": f"{paths.WEB_UI_BACKUPS}; move there what is elsewhere",
    "web_ui_data_dir": f"{paths.WEB_UI}; move there what is elsewhere",
    "web_ui_memory_mib": "4096",
    "web_ui_python": "python3",
    "web_ui_venv": "/opt/sparkmatrix/web-ui",
}
# What earlier releases took away by a variable of the role, with the tag of reset.yml that does.
_REMOVED_BY = {
    **{layer: layer for layer in ("access", "artifacts", "engine", "fabric", "gateway", "os_stabilization", "ray")},
    "engine_environment": "ray",
    "peers": "access",
}
# Of earlier releases, with what to do now, such as "It is called fabric_mtu now".
RENAMED: Mapping[str, str] = {
    "artifacts_encryption": "Leave it out: models go from node to node over ssh, always encrypted",
    "engine_probe_interval_s": "Leave it out: it follows from engine_hang_seconds",
    "engine_probe_timeout_s": "Leave it out: it follows from engine_hang_seconds",
    **dict.fromkeys(("engine_lost_seconds", "engine_memory_wait_s", "engine_start_limit", "engine_backoff_s"), _KEEPER),
    "engine_container_devices": "Leave it out: /dev/infiniband is given unless engine_container_gpus is none",
    "engine_container_nccl_conf": "Set NCCL's variables in fabric_environment",
    "engine_image_timeout_s": "Leave it out: it is two hours for each image",
    "engine_drop_caches": "Leave it out: the page cache is dropped before every start",
    "engine_stop_timeout_s": "Leave it out: requests have 60 s to end",
    **dict.fromkeys(
        ("os_stabilization_reboot_timeout_s", "os_update_reboot_timeout_s"), "Leave it out: a machine has half an hour"
    ),
    "ray_cluster_timeout_s": "Leave it out: the nodes have three minutes to find each other",
    "benchmark_nccl_smallest_mib": "Leave it out: sizes begin with 1 MiB",
    "benchmark_timeout_s": "Leave it out: one measurement has 15 minutes",
    **dict.fromkeys(
        ("fabric_apply_timeout_s", "fabric_probe_timeout_s", "fabric_qos_link_timeout_s"),
        "It follows from fabric_rollback_seconds",
    ),
    "benchmark_program_sha256": "Write it behind the address in benchmark_program: https://…#sha256=…",
    "artifacts_hub_endpoint": "Set HF_ENDPOINT in engine_environment",
    **dict.fromkeys(
        ("artifacts_hub_pip_args", "web_ui_pip_args"), "Set engine_venv_pip_args, for all Python environments"
    ),
    "awx_project_branch": "Write it behind the address in awx_project_url: https://…#branch",
    "awx_webhook": "Write it into awx_notifications",
    "benchmark_goodput": "Leave it out, or give the engine's own load generator --goodput",
    "fabric_neighbor_probe": "fabric_neighbor_timeout_s: 0 leaves the probe out",
    "fabric_peermem": "Leave it out: GB10 has no use for nvidia-peermem",
    **dict.fromkeys(
        ("gateway_tls_certificate", "gateway_tls_certificate_key"),
        "Write both files as gateway_tls: {certificate: …, key: …}",
    ),
    "os_stabilization_swappiness": "Set vm.swappiness in os_stabilization_sysctl",
    "preflight_min_disk_gib": "It is 20 GiB; preflight_severity: {disk: warn} goes on in spite of less",
    "preflight_min_memory_gib": "It follows from preflight_require_gb10; preflight_severity: {memory: warn} goes on",
    "preflight_ignored_variables": "preflight_severity: {unknown_variables: warn} goes on in spite of names of yours",
    "verify_prompt": "Leave it out; sparkmatrix ask puts a question of yours",
    "web_ui_default_role": "Set web_ui_signup: user, pending or closed",
    "web_ui_version": "Write the release as the tag of web_ui_image",
    "fabric_bandwidth_wait_s": "It follows from fabric_neighbor_timeout_s",
    "fabric_bandwidth_everything": "Set fabric_bandwidth_test: everything",
    "observability_state": "observability_enabled: false takes it away",
    "web_ui_state": "web_ui_enabled: false takes it away",
    "fabric_bandwidth_good_gbps": "Set half_good_gbps in verify_limits",
    "fabric_bandwidth_least_gbps": "Set half_least_gbps in verify_limits",
    "ray_limit_memlock": "Set engine_limit_memlock, for Ray and the engine",
    "ray_limit_nofile": "Set engine_limit_nofile, for Ray and the engine",
    "os_stabilization_caches": "Leave it out: the node tool is installed always",
    "os_stabilization_docker_limits": "os_stabilization_limits includes containers now",
    "os_stabilization_earlyoom_install": "Leave it out: os_stabilization_earlyoom installs it where it is missing",
    "os_stabilization_headless_when": 'os_stabilization_headless is boot, idle, now or "off"',
    "os_stabilization_memory_min": "os_stabilization_memory_min_mib: {} is off",
    "os_stabilization_time_sync": "Leave it out: a clock that is not synchronized is always warned of",
    "os_stabilization_watchdog": "os_stabilization_watchdog_available_mib: 0 is off",
    **{f"{role}_state": f"Leave it out: reset.yml --tags {layer} takes it away" for role, layer in _REMOVED_BY.items()},
    **{name: f"Leave it out: it is fixed now ({value})" for name, value in _FIXED.items()},
}
# Read by every run.
ALWAYS = ("preflight", "spark")

_MARKUP = re.compile(r"\b[BCIOV]\(([^()]*)\)")  # of Ansible's documentation: V(auto) is shown to people as auto
_SECRET_NAME = re.compile(r"(key|token|password|secret)s?$")


@dataclass(frozen=True)
class Variable:
    """One documented variable. ``type`` and ``elements`` are the type names of Ansible's argument specifications."""

    name: str
    role: str
    type: str = "str"
    elements: str = ""
    choices: tuple[Any, ...] = ()
    default: Any = None
    required: bool = False
    secret: bool = False
    description: str = ""


# What a role hands to others, without spark_.
HANDED_ON: Mapping[str, str] = {
    "preflight": "preflight node_info reached",
    "os_update": "update",
    "peers": "peer peers peer_files",
    "fabric": "fabric fabric_compared fabric_pings found_fabric",
    "engine": "plan plans image_ids engine_inputs engine_files engine_keeper engine_units first_token",
    "that installs the program": "node_tool",
    "access": "access_compared",
    "os_stabilization": "os_settings",
    "artifacts": "artifacts artifacts_here",
    "ray": "ray_service ray_cluster",
    "gateway": "gateway",
    "web_ui": "web_ui",
    "observability": "observability",
    "verify": "answers verdicts",
    "benchmark": "found_nccl found_serving",
    "doctor": "found_doctor found_first_contact",
}
SHARED: tuple[Variable, ...] = (
    Variable("spark_rank", "spark", "int", required=True, description="Place of a node in the cluster; 0 is the head"),
    Variable("spark_layers", "spark", "list", "str", description="Layers of a playbook, set by the playbook"),
    Variable("spark_parts", "spark", "dict", description="Tags of a playbook that are no layers, set by the playbook"),
    Variable(
        "spark_followed_layers",
        "spark",
        "list",
        "str",
        description="Layers that a playbook leaves alone where no earlier run has set them up, set by the playbook",
    ),
    Variable(
        "spark_only_report",
        "spark",
        "bool",
        default=False,
        description="Findings about the machines are collected and refuse nothing, set by playbooks/doctor.yml",
    ),
    Variable(
        "spark_severity", "spark", "dict", description="Checks that a playbook settles itself, set by the playbook"
    ),
    Variable(
        "spark_service_user",
        "spark",
        default="sparkmatrix",
        description="User that Ray and the engine run as; made where it does not exist",
    ),
    Variable("spark_service_group", "spark", default="sparkmatrix", description="Primary group of spark_service_user"),
    Variable(
        "spark_port_filter",
        "spark",
        "bool",
        default=True,
        description="Let nobody but the nodes reach Ray, the ranks and the addresses on the fabric (docs/access.md)",
    ),
    Variable(
        "spark_port_filter_from",
        "spark",
        "list",
        "str",
        default=[],
        description="Addresses and networks that may reach Ray and the ranks as well",
    ),
    Variable(
        "spark_selected_layers",
        "spark",
        "list",
        "str",
        description="Layers that the tags of the run select, found by the role preflight",
    ),
    *(
        Variable(
            f"spark_{name}", "spark", "dict", description=f"What a task has found or planned, set by the role {role}"
        )
        for role, names in HANDED_ON.items()
        for name in names.split()
    ),
    Variable("spark_drift", "spark", choices=("", "fail"), description="fail: a check that finds a difference fails"),
    Variable("spark_stopped_by", "spark", description="Who stops the engine, for its status; set by the playbook"),
    Variable("spark_summary", "spark", "dict", description="The last lines of a run, set by the playbook"),
)


def load(roles: Path = ROLES) -> dict[str, Variable]:
    """All documented variables by name. Raises :class:`SparkError` for a specification that cannot be read."""
    found = {variable.name: variable for variable in SHARED}
    for path in sorted(roles.glob("*/meta/argument_specs.yml")):
        role = path.parent.parent.name
        with json_text.Reading("the argument specification cannot be read", str(path), "Restore it with git"):
            entries = yaml_text.read(path.read_text(encoding="utf-8"))["argument_specs"].values()
            for entry in entries:
                for name, option in (entry.get("options") or {}).items():
                    # Several entry points of a role repeat what they read; the first one documents it.
                    found.setdefault(name, _variable(name, role, option))
    return found


def _variable(name: str, role: str, option: Mapping[str, Any]) -> Variable:
    description = option.get("description") or ""
    return Variable(
        name=name,
        role=role,
        type=str(option.get("type") or "str"),
        elements=str(option.get("elements") or ""),
        choices=tuple(option.get("choices") or ()),
        default=option.get("default"),
        required=bool(option.get("required")),
        secret=bool(option.get("no_log")) or bool(_SECRET_NAME.search(name)),
        description=_MARKUP.sub(
            r"\1", description if isinstance(description, str) else " ".join(map(str, description))
        ),
    )


def prefixes(layers: frozenset[str]) -> tuple[str, ...]:
    """Prefixes of the variables that these layers read, each with its underscore."""
    roles = [role for role, readers in ROLE_LAYERS.items() if readers & layers]
    return tuple(f"{name}_" for name in (*ALWAYS, *roles))


def slips(names: Iterable[str], documented: Mapping[str, Variable]) -> dict[str, str]:
    """Names without a prefix of a role that are one slip away from a variable of ours or of a connection, with it; and
    keys of a service or a recipe, which mean nothing in an inventory.

    What begins with a prefix is looked at by the layers that read it. The others belong to the user or to Ansible.
    """
    owned = tuple({f"{variable.role}_" for variable in documented.values()})
    known = (*documented, *CONNECTION)
    found = {}
    for name in set(names):
        if name not in CONNECTION and not name.startswith(owned):
            meant = KEYS.get(name) or next((one for one in known if spelling.one_slip(name, one)), "")
            if meant:
                found[name] = meant
    return found


def complaint(variable: Variable, value: Any) -> str:
    """What is wrong with ``value``, or an empty text. Only what Ansible itself could not convert either."""
    if value is None:
        return ""
    if not _fits(variable.type, value):
        shown = "" if variable.secret else f" {value!r}"
        return f"{variable.name} is {_kind(value)}{shown}, expected {_expected(variable.type)}"
    members = value if variable.type == "list" and isinstance(value, (list, tuple)) else None
    if members is not None and variable.elements:
        for member in members:
            if not _fits(variable.elements, member):
                shown = "" if variable.secret else f" {member!r}"
                return f"{variable.name} contains {_kind(member)}{shown}, expected {_expected(variable.elements)}"
    if variable.choices:
        allowed = {str(choice) for choice in variable.choices}
        for item in members if members is not None else [value]:
            if str(item) not in allowed:
                listed = ", ".join(map(str, variable.choices))
                if variable.secret:
                    return f"{variable.name} has a value that is not one of {listed}"
                return f"{variable.name} is {item!r}, expected one of {listed}"
    return ""


def typed(variable: Variable, value: Any) -> Any:
    """As Ansible converts it for a role, its default where there is none. Only where there is no :func:`complaint`."""
    return variable.default if value is None else DEFAULT_TYPE_VALIDATORS[variable.type](value)


def _fits(kind: str, value: Any) -> bool:
    """Whether Ansible converts it, and without making text of a list or a number of yes and no."""
    if kind in ("str", "path"):
        return not isinstance(value, (Mapping, list, tuple))
    if kind in ("int", "float") and isinstance(value, bool):
        return False
    try:
        DEFAULT_TYPE_VALIDATORS[kind](list(value) if isinstance(value, tuple) else value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


_NAMES: Sequence[tuple[type | tuple[type, ...], str]] = (
    (bool, "the boolean"),
    ((int, float), "the number"),
    (str, "the text"),
    (Mapping, "a mapping"),
    ((list, tuple), "a list"),
)


def _kind(value: Any) -> str:
    return next((name for kind, name in _NAMES if isinstance(value, kind)), f"a {type(value).__name__}")


def _expected(kind: str) -> str:
    names = {
        "str": "a text",
        "path": "a path",
        "int": "a whole number",
        "float": "a number",
        "bool": "true or false",
        "list": "a list",
        "dict": "a mapping",
    }
    return names.get(kind, kind)
