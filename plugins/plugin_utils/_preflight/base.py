# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What all checks before a run share: what they see, and how it is read."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import NetworkInterface
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import Rdma, RdmaPort
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Neighbors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Environment, Node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.reach import Unreached
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.management import (
    Management,
    choose,
    fabric_ports,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.variables import Variable

GIB = 2**30
# How a finding counts, as the user writes it, and as Finding.severity has it. skip: the check is not made.
FAIL, WARN, INFO, SKIP = "fail", "warn", "info", "skip"
SEVERITIES: Mapping[str, str] = {FAIL: "error", WARN: "warning", INFO: "info"}
LEVELS = (*SEVERITIES, SKIP)

LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")  # RFC 1123

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


@dataclass(frozen=True)
class Settings:
    """The role's own variables, see roles/preflight/defaults/main.yml."""

    require_gb10: bool = True
    severity: Mapping[str, Any] = field(default_factory=dict)  # {id of a check: fail, warn, info or skip}
    settled: Mapping[str, str] = field(default_factory=dict)  # the same of the playbook, which knows why; comes first


@dataclass(frozen=True, eq=False)
class Context:
    """What the checks see; a key of caches, which equals only itself.

    ``hosts`` maps every host of the group ``sparks`` to its variables, those outside ``--limit`` too; ``broken`` holds
    variables that could not be evaluated, as ``{host: {name: message}}``. ``nodes``: what was read of
    each host; ``failures`` to the message where there is none. ``earlier``: the fabric facts on disk, not
    validated. ``reach``: what each host says of the others' management addresses (call ``reach``).
    ``neighbors``: what each host heard over its cables, where it was asked.
    ``followed``: layers that the playbook leaves alone where no earlier run has set them up.
    """

    layers: frozenset[str]
    hosts: Mapping[str, Mapping[str, Any]]
    play_hosts: Sequence[str] = ()
    settings: Settings = field(default_factory=Settings)
    variables: Mapping[str, Variable] = field(default_factory=dict)
    broken: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    nodes: Mapping[str, Node] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    earlier: Mapping[str, Any] = field(default_factory=dict)
    followed: frozenset[str] = frozenset()
    reach: Mapping[str, Sequence[Unreached]] = field(default_factory=dict)
    neighbors: Mapping[str, Neighbors] = field(default_factory=dict)

    def value(self, host: str, name: str, fallback: Any = None) -> Any:
        """A variable as the role will see it: what the inventory says, else the documented default."""
        if name in self.hosts.get(host, {}):
            return self.hosts[host][name]
        documented = self.variables.get(name)
        return fallback if documented is None or documented.default is None else documented.default

    def fact(self, host: str) -> fabric_fact.FabricFact | None:
        """The fabric fact of an earlier run; None where there is none, or none that can be read."""
        return self._facts.get(host)

    @functools.cached_property
    def _facts(self) -> Mapping[str, fabric_fact.FabricFact]:
        """Read once, since many checks ask."""
        found = {}
        for host, document in self.earlier.items():
            with contextlib.suppress(SparkError):
                found[host] = fabric_fact.load(document, host)
        return found

    def node(self, host: str) -> Node:
        """One of which nothing is known where the host was not read."""
        return self.nodes.get(host) or Node()

    def rdma_ports(self, host: str) -> Sequence[RdmaPort]:
        """Empty where they were not asked for."""
        return (self.node(host).rdma or Rdma()).devices

    def interfaces(self, host: str) -> Sequence[NetworkInterface]:
        return self.node(host).network.interfaces or ()

    def management(self, host: str) -> Management:
        """The address at which the other nodes reach it, as access and fabric choose it."""
        return choose(host, self.node(host).network, str(self.value(host, "fabric_management_address", "") or ""))

    @property
    def head(self) -> str | None:
        return next((host for host, values in self.hosts.items() if values.get("spark_rank") == 0), None)

    def who(self, hosts: Iterable[str]) -> str:
        named = list(hosts)
        if len(named) > 1 and len(named) == len(self.hosts):
            return f"all {len(named)} sparks"
        return ", ".join(named)


Judge = Callable[[Context], Iterable[Finding]]

# -- small helpers


def versions_by_host(context: Context, value: Callable[[str, Node], str | None]) -> dict[str, list[str]]:
    """``{version: [hosts]}`` of the hosts for which ``value(host, node)`` is known."""
    found: dict[str, list[str]] = {}
    for host, node in context.nodes.items():
        version = value(host, node)
        if version:
            found.setdefault(version, []).append(host)
    return found


def environment_path(context: Context, host: str) -> str | None:
    """The engine's Python environment (venv) on a node."""
    value = context.value(host, "engine_venv_path", "/opt/sparkmatrix/engine")
    return value if isinstance(value, str) and value.startswith("/") else None


def nccl_version(context: Context, host: str) -> str | None:
    """The NCCL that the engine loads: that of its environment, else the package; None when neither is there."""
    system = context.node(host).nccl
    return environment(context, host).nccl or (system.system if system else None)


def environment(context: Context, host: str) -> Environment:
    return context.node(host).environments.get(environment_path(context, host) or "") or Environment()


def fabric_interfaces(context: Context, host: str) -> set[str]:
    """Interfaces of the fabric: those in the fact of an earlier run, and those of the ConnectX-7."""
    document = context.earlier.get(host)
    rails = document.get("rails") if isinstance(document, Mapping) else None
    named = {str(rail.get("netdev")) for rail in as_list(rails) if isinstance(rail, Mapping)}
    return named | fabric_ports(context.node(host).network)


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def whole(value: Any) -> int:
    """The value as a positive whole number, 0 for everything else."""
    return strict.digits(str(value).strip()) or 0


def as_version(text: str, parts: int = 2) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:parts])


def as_network(text: Any) -> Network | None:
    """A network from ``10.0.0.0/24``, ``10.0.0.7/24`` or one address; None for ``default`` and everything else."""
    try:
        return ipaddress.ip_network(str(text), strict=False)
    except ValueError:
        return None
