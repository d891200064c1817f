# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What ``<head>-tunnel`` of ``playbooks/ssh_config.yml`` forwards: what the inventory asks for, and nothing else.

Decided without any machine; where the engine's API and Ray are follows from the engine plan. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import early, services
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.plan import Plans
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.hosts_names import labels

LOOPBACK = "127.0.0.1"
PRIVILEGED = 1024  # below, only root of the user's own computer may listen
MOVED = 8000
REFUSED = "The engine plan is refused, so no API is forwarded; playbooks/plan.yml says why"


@dataclass(frozen=True)
class Asked:
    """``value``: of a variable by its name, ``None`` where it has none. ``hosts``: by rank. ``login``: where the head
    is logged in to."""

    value: Callable[[str], Any]
    hosts: Sequence[str]
    login: str = ""
    plans: Plans | None = None

    def on(self, name: str) -> bool:
        return bool(boolean(self.value(name) or False, strict=False))

    def kept(self, role: str) -> bool:
        return str(self.value(f"{role}_state")) != "absent"

    @property
    def ray(self) -> bool:
        return any(plan.ray.needed for plan in self.plans.plans.values()) if self.plans else False

    @property
    def listens(self) -> list[str]:
        found = self.value("gateway_listen")
        return list(map(str, found)) if isinstance(found, (list, tuple)) else []

    @property
    def observed(self) -> bool:
        return self.on("observability_enabled") and self.kept("observability")


def _loopback(_asked: Asked) -> str:
    return LOOPBACK


def _gateway(asked: Asked) -> str:
    """An address of the gateway, as the head itself reaches it; of an interface the address is not known here."""
    found = []
    for item in asked.listens:
        try:
            found.append(ipaddress.ip_address(item))
        except ValueError:
            continue
    if any(address.is_loopback or address.is_unspecified for address in found):
        return LOOPBACK
    return _bracketed(str(found[0]) if found else asked.login)


@dataclass(frozen=True)
class Part:
    """Something with a page or an API on the head."""

    what: str
    port: str  # the variable
    there: Callable[[Asked], bool]
    at: Callable[[Asked], str] = _loopback


# What the head has beside the APIs; a further one is a line here.
PARTS = (
    Part("gateway", "gateway_port", lambda asked: bool(asked.listens) and asked.kept("gateway"), _gateway),
    Part("Ray dashboard", "ray_dashboard_port", lambda asked: asked.ray),
    Part(
        "Grafana",
        "observability_grafana_port",
        lambda asked: asked.observed and bool(asked.value("observability_grafana_image")),
    ),
    Part("chat page", "web_ui_port", lambda asked: asked.on("web_ui_enabled") and asked.kept("web_ui")),
    Part("Prometheus", "observability_prometheus_port", lambda asked: asked.observed),
)


@dataclass(frozen=True)
class Tunnel:
    """``target``: address and port, as the head reaches them."""

    what: str
    local: int
    target: str

    @property
    def line(self) -> str:
        return f"127.0.0.1:{self.local}: {self.what}"


def tunnels(
    value: Callable[[str], Any], hosts: Sequence[str], login: str, named: Mapping[Any, Any] | None = None
) -> tuple[list[Tunnel], list[str]]:
    """What is forwarded, and what is to be said about it. ``named``: by the user, instead of what is there: local port
    and target."""
    if named:
        return [Tunnel(str(target), int(local), str(target)) for local, target in named.items()], []
    asked = Asked(value, hosts, login)
    memory = None if asked.on("preflight_require_gb10") else dict.fromkeys(hosts, early.ANY_MODEL)
    asked = replace(asked, plans=early.planned(value, hosts, memory)[0])
    found = _apis(asked)
    wanted = [*found, *((part.what, int(value(part.port)), part.at(asked)) for part in PARTS if part.there(asked))]
    taken: set[int] = set()
    made = []
    for what, port, address in wanted:
        local = port if port >= PRIVILEGED else port + MOVED
        while local in taken:
            local += 1
        taken.add(local)
        made.append(Tunnel(what, local, f"{address}:{port}"))
    return made, [] if found else [REFUSED]


def _apis(asked: Asked) -> list[tuple[str, int, str]]:
    """Of each service: on loopback of the head, and otherwise at the name by which the head knows the other machine."""
    made = []
    names = labels(list(asked.hosts))
    # In a ring it listens on the management network.
    end = ".local" if asked.value("fabric_topology") == "ring" else "-fabric"
    for host, plan in asked.plans.plans.items() if asked.plans else ():
        for head in plan.heads:
            what = "API" if head.name == services.ALONE else f"API of {head.name}"
            made.append((what, head.port, LOOPBACK if host == asked.hosts[0] else f"{names[host]}{end}"))
    return made


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
