# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a run already knows, for its last lines: the results that the layers have registered. No node is asked again."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls, document, json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import (
    Flag,
    Number,
    Url,
    UrlOrEmpty,
    Word,
    Words,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan, ServicePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import start_times
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node as Machine
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._status.summary import (
    Layer,
    Service,
    Start,
    Way,
)


@dataclass(frozen=True)
class Tokens:
    PART: ClassVar[bool] = True
    model: Words = ""
    tokens_per_s: Number = 0.0


@dataclass(frozen=True)
class Probed:
    """What asking one service has brought."""

    PART: ClassVar[bool] = True
    ready: Flag = False
    answer: Optional[Tokens] = None
    waited_s: Number = 0.0
    start_parts: Mapping[Word, Number] = field(default_factory=dict)
    start_load: Words = ""
    endpoint: UrlOrEmpty = ""
    task: Words = ""


@dataclass(frozen=True)
class Ping:
    PART: ClassVar[bool] = True
    ok: Flag


@dataclass(frozen=True)
class Pings:
    PART: ClassVar[bool] = True
    probes: list[Ping] = field(default_factory=list)


@dataclass(frozen=True)
class Brought:
    PART: ClassVar[bool] = True
    name: Words


@dataclass(frozen=True)
class Ray:
    PART: ClassVar[bool] = True
    alive: Optional[list[Words]] = None


@dataclass(frozen=True)
class Told:
    """What a layer may say of itself in a result, whichever it is."""

    changed: Flag = False
    skipped: Flag = False
    changes: list[Words] = field(default_factory=list)
    actions: list[Words] = field(default_factory=list)
    reboot: list[Words] = field(default_factory=list)
    hosts: list[Words] = field(default_factory=list)
    bring: list[Brought] = field(default_factory=list)
    probes: list[Ping] = field(default_factory=list)
    pings: Optional[Pings] = None  # with the comparison, where nothing was to be changed
    alive: Optional[list[Words]] = None
    ray: Optional[Ray] = None  # where the layer verify has counted
    endpoints: list[Url] = field(default_factory=list)
    results: list[Probed] = field(default_factory=list)

    def did(self, host: str) -> bool:
        return self.changed or bool(self.changes or self.actions) or host in self.hosts


@dataclass(frozen=True)
class Node:
    """What one node has left in a run: its fact and plan, and by name of the variable what the layers say."""

    told: Mapping[str, Told]
    fact: FabricFact | None = None
    plan: NodePlan | None = None


TOLD = (
    *("spark_access_compared", "spark_peer_files", "spark_os_settings", "spark_fabric_compared", "spark_fabric_pings"),
    *("spark_artifacts", "spark_artifacts_here", "spark_ray_service", "spark_ray_cluster", "spark_engine_files"),
    *("spark_engine_keeper", "spark_engine_units", "spark_first_token", "spark_web_ui", "spark_observability"),
    *("spark_answers", "spark_gateway", "spark_update"),
)


def read(variables: Mapping[str, Any], host: str) -> Node:
    """Of a host's variables.

    Raises:
        SparkError: Something in them cannot be used.
    """
    with json_text.Reading("what this machine answered cannot be used", host, calls.REMEDY):
        told = {name: document.load_known(Told, variables[name]) for name in TOLD if variables.get(name)}
        plan = variables.get("spark_plan")
        return Node(
            told,
            fabric_fact.read(variables.get("spark_fabric"), host),
            plan_document.read(plan, host) if plan else None,
        )


# Read of the head; of the user, so believed.
OWN = (
    "ansible_host",
    "spark_port_filter",
    "gateway_listen",
    "gateway_port",
    "gateway_tls",
    "gateway_keys",
)
SLOW_S = 5.0  # an engine that serves already answers sooner

Known = Mapping[str, Node]  # by host


def layers(known: Known, settings: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Those that ran, in their order."""
    # A Ray that nothing was started of is counted by the layer verify.
    counted = Layer("ray", _ray(known)) if _ray(known) else None
    found = [
        _layer("access", known, ("spark_access_compared", "spark_peer_files")),
        _layer("os_stabilization", known, ("spark_os_settings",), _reboot(known)),
        _layer("fabric", known, ("spark_fabric_compared",), _fabric(known)),
        _layer("artifacts", known, ("spark_artifacts", "spark_artifacts_here"), _models(known)),
        _layer("ray", known, ("spark_ray_service", "spark_ray_cluster"), _ray(known)) or counted,
        _layer(
            "engine",
            known,
            ("spark_engine_files", "spark_engine_keeper", "spark_engine_units", "spark_first_token"),
            _first_token(known),
        ),
        _layer("gateway", known, ("spark_gateway",), _gateway(known, settings)),
        _layer("web_ui", known, ("spark_web_ui",)),
        _layer("observability", known, ("spark_observability",)),
        _layer("verify", known, ("spark_answers",), _verified(known)),
    ]
    return tuple(layer for layer in found if layer)


def _layer(name: str, known: Known, variables: Sequence[str], figure: str = "") -> Layer | None:
    ran = [(host, one) for variable in variables for host, one in _told(known, variable) if not one.skipped]
    changed = [host for host in known if any(of == host and one.did(host) for of, one in ran)]
    return Layer(name, figure, tuple(changed)) if ran else None


def _told(known: Known, variable: str) -> list[tuple[str, Told]]:
    return [(host, node.told[variable]) for host, node in known.items() if variable in node.told]


def reboot(known: Known) -> tuple[str, ...]:
    return tuple(host for host, one in _told(known, "spark_os_settings") if one.reboot)


def _reboot(known: Known) -> str:
    waiting = reboot(known)
    return f"a reboot is due on {len(waiting)}" if waiting else ""


def _fabric(known: Known) -> str:
    facts = [node.fact for node in known.values() if node.fact]
    rails = [rail for fact in facts for rail in fact.rails]
    if not rails:
        return "one node" if facts else ""
    speeds = {rail.link_gbps for rail in rails} - {0}
    probes = [probe for _host, one in _told(known, "spark_fabric_pings") for probe in one.probes] or [
        probe for _host, one in _told(known, "spark_fabric_compared") if one.pings for probe in one.pings.probes
    ]
    parts = [
        facts[0].topology,
        f"{min(speeds):g} Gb/s" if speeds else "",
        f"MTU {min(rail.mtu for rail in rails)}",
        f"{sum(probe.ok for probe in probes)} of {len(probes)} pings" if probes else "",
    ]
    return " ".join(part for part in parts if part)


def _models(known: Known) -> str:
    """What was found before anything was brought."""
    brought = [len(one.bring) for _host, one in _told(known, "spark_artifacts") if one.bring]
    return f"{brought[0]} brought" if brought else ""


def _ray(known: Known) -> str:
    for host, one in [*_told(known, "spark_ray_cluster"), *_told(known, "spark_answers")]:
        alive = one.ray.alive if one.ray else one.alive
        if alive is not None:
            plan = known[host].plan
            return f"{len(alive)} of {len(plan.ray.members) if plan else len(alive)} nodes"
    return ""


def _first_token(known: Known) -> str:
    took = [probe.waited_s for probe in _results(known, "spark_first_token") if probe.ready]
    return f"first token after {max(took):.0f} s" if took and max(took) >= SLOW_S else ""


def starts(known: Known) -> tuple[Start, ...]:
    """Where the time of the starts of this run went: an engine that served already was started by another one."""
    return tuple(
        Start(
            probe.answer.model,
            {name: probe.start_parts[name] for name in start_times.PARTS if name in probe.start_parts},
            probe.start_load,
        )
        for probe in _results(known, "spark_first_token")
        if probe.answer and probe.start_parts and probe.waited_s >= SLOW_S
    )


def _gateway(known: Known, settings: Mapping[str, Any]) -> str:
    if not any(one.endpoints for _host, one in _told(known, "spark_gateway")):
        return ""
    keys = settings.get("gateway_keys")
    count = len(keys) if isinstance(keys, list) else 1
    return f"{count} key{'s' if count != 1 else ''}"


def _verified(known: Known) -> str:
    rates = [probe.answer.tokens_per_s for probe in _results(known, "spark_answers") if probe.answer]
    return f"{rates[0]:.1f} tokens/s" if len(rates) == 1 and rates[0] else ""


def _results(known: Known, variable: str) -> list[Probed]:
    return [probed for _host, one in _told(known, variable) for probed in one.results]


def services(known: Known) -> tuple[Service, ...]:
    """By the plan of this run; where none was made, what has answered."""
    rates = {
        probe.answer.model: probe.answer.tokens_per_s for probe in _results(known, "spark_answers") if probe.answer
    }
    found = []
    for plan in [node.plan for node in known.values() if node.plan]:
        own = {service.instance: service for service in plan.here}
        for head in plan.heads:
            found.append(_service(own[head.instance], rates.get(head.model)))
    if found:
        return tuple(found)
    return tuple(
        Service(probe.answer.model, probe.task or "generate")
        for probe in _results(known, "spark_first_token")
        if probe.answer
    )


def _service(plan: ServicePlan, measured: float | None) -> Service:
    expected, engine, memory = plan.expectation, plan.engine, plan.memory
    words = f"{engine.name} on {plan.nodes} node{'s' if plan.nodes != 1 else ''}"
    if memory.context:
        words += f", context {memory.context} x {memory.concurrency} requests"
    return Service(engine.served_model_name, engine.task, words, expected.low, expected.high, measured)


def way(known: Known, head: str, own: Mapping[str, Any], interfaces: Mapping[str, Sequence[str]]) -> Way | None:
    """Through the gateway where there is one, else to the engine."""
    urls = [url for _host, one in _told(known, "spark_gateway") for url in one.endpoints]
    urls = urls or _configured(own, interfaces)
    if urls:
        keys = own.get("gateway_keys")
        name = keys[0].get("name", "default") if isinstance(keys, list) and keys else "default"
        url = _reachable(urls[0], str(own.get("ansible_host") or head))
        return Way(
            url,
            f"{paths.GATEWAY}/keys/{name}.key",
            own_ca=url.startswith("https:") and str(own.get("gateway_tls") or "own_ca") == "own_ca",
            private="//127." in url or "//[::1]" in url,
        )
    for node in known.values():
        for one in node.plan.heads if node.plan else ():
            return Way(one.endpoint, paths.ENGINE_KEY if one.key else "", private="//127." in one.endpoint)
    for answer in _results(known, "spark_first_token"):
        if answer.endpoint:
            return Way(answer.endpoint, paths.ENGINE_KEY, private="//127." in answer.endpoint)
    return None


def _configured(own: Mapping[str, Any], interfaces: Mapping[str, Sequence[str]]) -> list[str]:
    """Where the inventory says that the gateway is; the layer itself has not run."""
    listen = own.get("gateway_listen")
    if not isinstance(listen, list):
        return []
    addresses = [address for item in listen for address in interfaces.get(str(item), [str(item)])]
    scheme = "http" if str(own.get("gateway_tls")) == "off" else "https"
    shown = [f"[{address}]" if ":" in address else address for address in addresses]
    return [f"{scheme}://{address}:{own.get('gateway_port') or 8443}/v1" for address in shown]


def _reachable(url: str, host: str) -> str:
    """All addresses is none that a client could call."""
    for everywhere in ("//0.0.0.0:", "//[::]:"):
        url = url.replace(everywhere, f"//{host}:")
    return url


def interfaces(node: Machine) -> dict[str, list[str]]:
    """IPv4 addresses by interface."""
    return {
        link.name: [
            interface_address.address
            for interface_address in link.addresses
            if ipaddress.ip_address(interface_address.address).version == 4
        ]
        for link in node.network.interfaces or ()
    }
