# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""From the plan of a cluster to the files of Prometheus, node_exporter and Grafana on its nodes.

All listens on loopback or on the fabric: the head asks the others at an address of a cable or switch that both share.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths, ports, unit_sandbox
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import is_id, local_name
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall.port_filter import OBSERVABILITY, slice_of
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._metrics import collect
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import templates
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.addresses import network_of
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._firewall.port_filter import layer
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._metrics import dashboards
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import FAIL, Alert, Rule
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import RULES

ROLE = "observability"
MANAGED = "Managed by sparkmatrix.cluster (role observability)."
LOOPBACK = "127.0.0.1"
COLLECTOR, EXPORTER, PROMETHEUS, GRAFANA = (
    f"sparkmatrix-{name}.service" for name in ("metrics", "node-exporter", "prometheus", "grafana")
)
ETC_PROMETHEUS = f"{paths.ETC}/prometheus"
ETC_GRAFANA = f"{paths.ETC}/grafana"
USER = "prometheus"  # made by Debian's packages
# What a page may have at most: an engine that goes wild must not fill the head's memory.
SCRAPE_LIMITS = {"sample_limit": 50000, "label_limit": 200, "label_value_length_limit": 1000, "body_size_limit": "20MB"}
# Without a digest another image may come tomorrow.
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._:/-]*@sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Settings:
    prometheus_port: int = ports.PROMETHEUS
    exporter_port: int = ports.NODE_EXPORTER
    grafana_port: int = ports.GRAFANA
    grafana_image: str = ""


@dataclass(frozen=True)
class Service:
    """An engine as the head reaches it."""

    name: str
    engine: str
    host: str
    port: int
    path: str = "/metrics"


@dataclass(frozen=True)
class Cluster:
    """``ray``: address of each node that has one. ``grafana``: id of its image, where the head has it."""

    head: str
    facts: Mapping[str, FabricFact]
    services: Sequence[Service] = ()
    ray: Mapping[str, str] = field(default_factory=dict)
    grafana: str = ""


@dataclass(frozen=True)
class Node:
    """``units``: hash of the configuration by unit, in the order in which they start. ``ask``: pages that answer when
    all is up."""

    files: Mapping[str, str]
    units: Mapping[str, str]
    ask: Sequence[str] = ()
    filter: str = ""  # rules by which nobody else answers at their ports


def check(settings: Settings, cluster: Cluster) -> Iterator[Finding]:
    for name, low, high in (*((f"{name}_port", 1024, 65535) for name in ("prometheus", "exporter", "grafana")),):
        value = getattr(settings, name)
        if not low <= value <= high:
            yield Finding(cluster.head, f"observability_{name} is {value}", f"Set it to {low} to {high}")
    if settings.grafana_image and not _IMAGE.fullmatch(settings.grafana_image):
        yield Finding(
            cluster.head,
            f"observability_grafana_image {settings.grafana_image!r:.200} names no digest",
            "Write it as name@sha256:…, or leave it empty for no Grafana",
        )
    if cluster.grafana and not is_id(cluster.grafana):
        yield Finding(cluster.head, f"{cluster.grafana!r:.100} is no id of an image", "Look at: docker image ls")
    for host, fact in cluster.facts.items():
        if not _address(cluster, host):
            far = f"it has no address on the fabric that {cluster.head} reaches"
            words = f"{far} (a ring of four and more), so it is not asked"
            yield Finding(fact.host, words, "Look at it with sparkmatrix status", severity="warning")


def _address(cluster: Cluster, host: str) -> str:
    """Where the head asks a node; empty where only the management network leads there."""
    if host == cluster.head:
        return LOOPBACK
    own = {network_of(rail) for rail in cluster.facts[cluster.head].rails}
    return next((rail.address for rail in cluster.facts[host].rails if network_of(rail) in own), "")


def make(settings: Settings, cluster: Cluster, tool: str) -> dict[str, Node]:
    """``tool``: digest of the node program, which the collector has to run with."""
    return {host: _node(settings, cluster, host, tool) for host in cluster.facts}


def _node(settings: Settings, cluster: Cluster, host: str, tool: str) -> Node:
    # So the folder is there, and goes with the rest where nobody else writes into it.
    words = f"{os.path.basename(collect.FILE)} is written by {COLLECTOR}, for node_exporter's textfile collector.\n"
    files = {f"{paths.METRICS}/README.node": words}
    units: dict[str, str] = {}
    address = _address(cluster, host)

    def add(unit: str, *parts: str, **values: object) -> None:
        values = {
            "settings": settings,
            "every_s": f"{collect.EVERY_S:g}",
            "paths": paths,
            "sandbox": unit_sandbox,
            "slice": slice_of(OBSERVABILITY),
            "user": USER,
            "managed": MANAGED,
            **values,
        }
        body = templates.render(ROLE, f"{unit}.j2", **values, hash="")
        units[unit] = config_hash(body, *parts)
        files[f"{paths.UNITS}/{unit}"] = templates.render(ROLE, f"{unit}.j2", **values, hash=units[unit])

    add(COLLECTOR, tool)
    ports = [(address, settings.exporter_port)] if address else []
    if address:
        add(EXPORTER, listen=f"{address}:{settings.exporter_port}")
    if host != cluster.head:
        return Node(files, units, filter=layer(OBSERVABILITY, ports) if ports else "")
    own = {
        f"{ETC_PROMETHEUS}/prometheus.yml": _yaml(prometheus(settings, cluster)),
        f"{ETC_PROMETHEUS}/rules.yml": _yaml(_alerts()),
    }
    add(PROMETHEUS, *own.values(), etc=ETC_PROMETHEUS, address=LOOPBACK)
    ask = [f"http://{LOOPBACK}:{settings.prometheus_port}/-/ready"]
    ports.append((LOOPBACK, settings.prometheus_port))
    if settings.grafana_image:
        shown = _grafana(settings)
        image = cluster.grafana or local_name(settings.grafana_image)
        add(GRAFANA, *shown.values(), etc=ETC_GRAFANA, address=LOOPBACK, image=image)
        own |= shown
        ask.append(f"http://{LOOPBACK}:{settings.grafana_port}/api/health")
        ports.append((LOOPBACK, settings.grafana_port))
    return Node({**files, **own}, units, ask, layer(OBSERVABILITY, ports))


def _yaml(document: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(document))  # names of the inventory are no plain texts to Ansible
    return f"# {MANAGED}\n{yaml.safe_dump(plain, sort_keys=False, width=120, allow_unicode=True)}"


def prometheus(settings: Settings, cluster: Cluster) -> dict[str, Any]:
    jobs: dict[str, list[dict[str, Any]]] = {
        "node": [
            _target(f"{address}:{settings.exporter_port}", node=host)
            for host in cluster.facts
            for address in [_address(cluster, host)]
            if address
        ],
        "engine": [
            _target(
                f"{service.host}:{service.port}",
                service=service.name,
                engine=service.engine,
                __metrics_path__=service.path,
            )
            for service in cluster.services
        ],
        "ray": [_target(f"{address}:{ports.RAY_METRICS}", node=host) for host, address in cluster.ray.items()],
        "prometheus": [_target(f"{LOOPBACK}:{settings.prometheus_port}", node=cluster.head)],
    }
    if settings.grafana_image:
        jobs["grafana"] = [_target(f"{LOOPBACK}:{settings.grafana_port}", node=cluster.head)]
    every = f"{collect.EVERY_S:g}s"
    return {
        "global": {"scrape_interval": every, "evaluation_interval": every},
        "rule_files": ["rules.yml"],
        "scrape_configs": [
            {"job_name": name, **SCRAPE_LIMITS, "static_configs": targets} for name, targets in jobs.items() if targets
        ],
    }


def _target(address: str, **labels: str) -> dict[str, Any]:
    return {"targets": [address], "labels": labels}


def _grafana(settings: Settings) -> dict[str, str]:
    """All that its container reads."""
    source = {
        "apiVersion": 1,
        "datasources": [
            {
                "name": "Prometheus",
                "type": dashboards.DATASOURCE["type"],
                "uid": dashboards.DATASOURCE["uid"],
                "access": "proxy",
                "url": f"http://{LOOPBACK}:{settings.prometheus_port}",
                "isDefault": True,
                "jsonData": {"timeInterval": f"{collect.EVERY_S:g}s"},
            }
        ],
    }
    provider = {
        "apiVersion": 1,
        "providers": [{"name": "sparkmatrix", "type": "file", "options": {"path": "/etc/grafana/dashboards"}}],
    }
    return {
        f"{ETC_GRAFANA}/provisioning/datasources/sparkmatrix.yml": _yaml(source),
        f"{ETC_GRAFANA}/provisioning/dashboards/sparkmatrix.yml": _yaml(provider),
        **{
            f"{ETC_GRAFANA}/dashboards/{dashboard.uid}.json": json.dumps(dashboards.document(dashboard), indent=1)
            + "\n"
            for dashboard in dashboards.DASHBOARDS
        },
    }


def _alerts() -> dict[str, Any]:
    """What Prometheus warns of: the rules that have an expression, with their words."""
    made = [dict(_alert(rule, alert)) for rule in RULES.values() for alert in rule.alerts]
    return {"groups": [{"name": "sparkmatrix", "rules": made}]}


def _alert(rule: Rule, alert: Alert) -> Iterator[tuple[str, Any]]:
    yield "alert", rule.id
    yield "expr", alert.expr
    if alert.wait != "0s":
        yield "for", alert.wait
    severity = "critical" if (alert.severity or rule.severity) == FAIL else "warning"
    yield "labels", {"severity": severity, **({"sign": alert.sign} if alert.sign else {})}
    notes = {
        "summary": f"{rule.title}: {alert.where}",
        "why": rule.why,
        "remedy": rule.remedy,
        "otherwise": rule.otherwise,
        "guide": "docs/troubleshooting.md",
    }
    yield "annotations", {name: text for name, text in notes.items() if text}
