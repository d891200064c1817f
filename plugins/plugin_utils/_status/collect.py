# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a run already knows, for its last lines: the results that the layers have registered. No node is asked again."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.strict import flag, number, url, words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan, ServicePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import start_times
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import answers
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.border import Each, Maybe, Only, Shape
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._status.summary import (
    Layer,
    Service,
    Start,
    Way,
)

CHANGED = Only({"changed": flag, "skipped": flag})
CHANGES = Only({"changes": Each(words)})
PROBED = Only(
    {
        "results": Each(
            Only(
                {
                    "ready": flag,
                    "answer": Maybe(Only({"model": words, "tokens_per_s": number})),
                    "waited_s": number,
                    "start_parts": Only(dict.fromkeys(start_times.PARTS, number)),
                    "endpoint": answers.or_empty(url),
                    "task": words,
                }
            )
        )
    }
)
# What a layer leaves in a run, and how it is read.
READ: Mapping[str, Shape] = {
    "spark_access_compared": CHANGES,
    "spark_peer_files": CHANGED,
    "spark_os_settings": Only({"actions": Each(words), "reboot": Each(words)}),
    "spark_fabric": answers.FACT,
    "spark_fabric_compared": CHANGES,
    "spark_fabric_pings": Only({"probes": answers.PROBES}),
    "spark_artifacts": Only({"lines": Each(words), "bring": Each(Only({"name": words}))}),
    "spark_artifacts_here": Only({"hosts": Each(words)}),
    "spark_ray_service": CHANGED,
    "spark_ray_cluster": Only({"alive": Each(words), "complete": flag}),
    "spark_plan": Maybe(answers.PLAN),
    "spark_engine_files": CHANGED,
    "spark_engine_keeper": CHANGED,
    "spark_engine_units": CHANGED,
    "spark_first_token": PROBED,
    "spark_web_ui": CHANGED,
    "spark_observability": CHANGED,
    "spark_answers": PROBED,
    "spark_gateway": Only({"endpoints": Each(url), "changed": flag}),
    "spark_update": Only({"anywhere": flag}),
}
# Read of the head; of the user, so believed.
OWN = (
    "ansible_host",
    "spark_port_filter",
    "gateway_listen",
    "gateway_state",
    "gateway_port",
    "gateway_tls",
    "gateway_keys",
)
SLOW_S = 5.0  # an engine that serves already answers sooner

Known = Mapping[str, Mapping[str, Any]]  # host -> variable of READ -> value


def layers(known: Known, settings: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Those that ran, in their order."""
    found = [
        _layer("access", known, ("spark_access_compared", "spark_peer_files")),
        _layer("os_stabilization", known, ("spark_os_settings",), _reboot(known)),
        _layer("fabric", known, ("spark_fabric_compared",), _fabric(known)),
        _layer("artifacts", known, ("spark_artifacts", "spark_artifacts_here"), _models(known)),
        _layer("ray", known, ("spark_ray_service", "spark_ray_cluster"), _ray(known)),
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
    results = [
        (host, values[variable]) for host, values in known.items() for variable in variables if variable in values
    ]
    ran = [(host, result) for host, result in results if result and not result.get("skipped")]
    return (
        Layer(name, figure, tuple(dict.fromkeys(host for host, result in ran if _did(host, result)))) if ran else None
    )


def _did(host: str, result: Mapping[str, Any]) -> bool:
    told = any(result.get(name) for name in ("changed", "changes", "actions"))
    return told or host in result.get("hosts", ())


def reboot(known: Known) -> tuple[str, ...]:
    return tuple(host for host, values in known.items() if (values.get("spark_os_settings") or {}).get("reboot"))


def _reboot(known: Known) -> str:
    waiting = reboot(known)
    return f"a reboot is due on {len(waiting)}" if waiting else ""


def _fabric(known: Known) -> str:
    facts = [values["spark_fabric"] for values in known.values() if values.get("spark_fabric")]
    rails = [rail for fact in facts for rail in fact["rails"]]
    if not rails:
        return "one node" if facts else ""
    speeds = {rail["link_gbps"] for rail in rails} - {0}
    probes = [
        probe for values in known.values() for probe in (values.get("spark_fabric_pings") or {}).get("probes", ())
    ]
    parts = [
        str(facts[0]["topology"]),
        f"{min(speeds):g} Gb/s" if speeds else "",
        f"MTU {min(rail['mtu'] for rail in rails)}",
        f"{sum(bool(probe['ok']) for probe in probes)} of {len(probes)} pings" if probes else "",
    ]
    return " ".join(part for part in parts if part)


def _models(known: Known) -> str:
    """What was found before anything was brought."""
    for values in known.values():
        found = values.get("spark_artifacts") or {}
        if found.get("bring"):
            return f"{len(found['bring'])} brought"
    return ""


def _ray(known: Known) -> str:
    for values in known.values():
        found = values.get("spark_ray_cluster") or {}
        if "alive" in found:
            plan = _plan(values)
            return f"{len(found['alive'])} of {len(plan.ray.members) if plan else len(found['alive'])} nodes"
    return ""


def _first_token(known: Known) -> str:
    took = [one.get("waited_s", 0.0) for one in _results(known, "spark_first_token") if one.get("ready")]
    return f"first token after {max(took):.0f} s" if took and max(took) >= SLOW_S else ""


def starts(known: Known) -> tuple[Start, ...]:
    """Where the time of the starts of this run went: an engine that served already was started by another one."""
    return tuple(
        Start(one["answer"]["model"], one["start_parts"])
        for one in _results(known, "spark_first_token")
        if one.get("answer") and one.get("start_parts") and one.get("waited_s", 0.0) >= SLOW_S
    )


def _gateway(known: Known, settings: Mapping[str, Any]) -> str:
    if not any((values.get("spark_gateway") or {}).get("endpoints") for values in known.values()):
        return ""
    keys = settings.get("gateway_keys")
    count = len(keys) if isinstance(keys, list) else 1
    return f"{count} key{'s' if count != 1 else ''}"


def _verified(known: Known) -> str:
    rates = [_rate(one) for one in _results(known, "spark_answers") if one.get("answer")]
    return f"{rates[0]:.1f} tokens/s" if len(rates) == 1 and rates[0] else ""


def _rate(result: Mapping[str, Any]) -> float:
    return float((result.get("answer") or {}).get("tokens_per_s") or 0.0)


def _results(known: Known, variable: str) -> list[Mapping[str, Any]]:
    return [one for values in known.values() for one in (values.get(variable) or {}).get("results", ())]


def _plan(values: Mapping[str, Any]) -> NodePlan | None:
    return values.get("spark_plan")


def services(known: Known) -> tuple[Service, ...]:
    """By the plan of this run; where none was made, what has answered."""
    rates = {one["answer"]["model"]: _rate(one) for one in _results(known, "spark_answers") if one.get("answer")}
    found = []
    for values in known.values():
        plan = _plan(values)
        own = {service.instance: service for service in plan.here} if plan else {}
        for head in plan.heads if plan else ():
            found.append(_service(own[head.instance], rates.get(head.model)))
    if found:
        return tuple(found)
    return tuple(
        Service(one["answer"]["model"], str(one.get("task") or "generate"))
        for one in _results(known, "spark_first_token")
        if one.get("answer")
    )


def _service(plan: ServicePlan, measured: float | None) -> Service:
    expected, engine, memory = plan.expectation, plan.engine, plan.memory
    words = f"{engine.name} on {plan.nodes} node{'s' if plan.nodes != 1 else ''}"
    if memory.context:
        words += f", context {memory.context} x {memory.concurrency} requests"
    return Service(engine.served_model_name, engine.task, words, expected.low, expected.high, measured)


def way(known: Known, head: str, own: Mapping[str, Any], interfaces: Mapping[str, Sequence[str]]) -> Way | None:
    """Through the gateway where there is one, else to the engine."""
    urls = [url for values in known.values() for url in (values.get("spark_gateway") or {}).get("endpoints", ())]
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
    for values in known.values():
        plan = _plan(values)
        for one in plan.heads if plan else ():
            return Way(one.endpoint, paths.ENGINE_KEY if one.key else "", private="//127." in one.endpoint)
    for answer in _results(known, "spark_first_token"):
        if answer.get("endpoint"):
            return Way(answer["endpoint"], paths.ENGINE_KEY, private="//127." in answer["endpoint"])
    return None


def _configured(own: Mapping[str, Any], interfaces: Mapping[str, Sequence[str]]) -> list[str]:
    """Where the inventory says that the gateway is; the layer itself has not run."""
    listen = own.get("gateway_listen")
    if not isinstance(listen, list) or own.get("gateway_state") == "absent":
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


def interfaces(node: Node) -> dict[str, list[str]]:
    """IPv4 addresses by interface."""
    return {
        link.name: [one.address for one in link.addresses if ipaddress.ip_address(one.address).version == 4]
        for link in node.network.interfaces or ()
    }
