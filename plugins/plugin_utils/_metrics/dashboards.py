# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Grafana's dashboards: one of the machines (fabric, memory, keeper), one of the engines.

Lists of panels with their queries; Grafana's own JSON is made of them. Names of metrics: node_exporter 1.5 to 1.9, vLLM
0.20 to 0.33 (v1/metrics/loggers.py), SGLang 0.5 (metrics collector). A panel shows the same of either engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import counters

DATASOURCE = {"type": "prometheus", "uid": "sparkmatrix"}
WIDTH = 24  # columns of Grafana
COLUMNS, HEIGHT = 3, 8
SCHEMA = 39  # Grafana 10.4 and later


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """``unit``: of Grafana's list. ``why``: what it is good for, shown with the title."""

    title: str
    unit: str
    queries: Sequence[Query]
    why: str = ""
    kind: str = "timeseries"


@dataclass(frozen=True)
class Dashboard:
    uid: str
    title: str
    rows: Mapping[str, Sequence[Panel]]

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows.values() for panel in row]


def _one(
    title: str, unit: str, expr: str, legend: str = "{{node}}", why: str = "", *, kind: str = "timeseries"
) -> Panel:
    return Panel(title, unit, (Query(expr, legend),), why, kind)


def _either(name: str, sglang: str) -> str:
    return f'{{__name__=~"vllm:{name}|sglang:{sglang}"}}'


def _quantile(share: float, name: str, sglang: str = "") -> str:
    buckets = _either(f"{name}_bucket", f"{sglang or name}_bucket")
    return f"histogram_quantile({share}, sum by (le, service) (rate({buckets}[5m])))"


_HALF = "{{node}} {{interface}}"
_LOST = "|".join((*counters.REPEATED, *counters.DROPPED))

MACHINES = Dashboard(
    "sparkmatrix-machines",
    "Sparks: fabric, memory, keeper",
    {
        "Now": (
            _one("Serving", "bool_yes_no", 'sparkmatrix_keeper_phase{phase="serving"}', "{{service}}", kind="stat"),
            _one("Warnings", "none", 'sum(ALERTS{alertstate="firing"}) or vector(0)', "", kind="stat"),
            _one("Nodes that answer", "none", 'sum(up{job="node"})', "", kind="stat"),
        ),
        "Keeper": (
            _one("Phase", "none", "sparkmatrix_keeper_phase == 1", "{{service}} {{phase}}"),
            _one("Last token of the keeper", "s", "sparkmatrix_probe_seconds", "{{service}}", "Until one token came"),
            _one(
                "Time since the last restart",
                "s",
                "time() - sparkmatrix_keeper_last_restart_seconds",
                "{{service}} {{event}} {{host}}: {{reason}}",
                "And why it was restarted",
            ),
            _one("Processes of ranks", "none", "sparkmatrix_rank_processes", "{{node}} {{unit}}"),
            _one("Units of ranks that run", "bool_yes_no", "sparkmatrix_rank_unit_up", "{{node}} {{unit}}"),
            _one("Models that are here", "bool_yes_no", "sparkmatrix_model_present", "{{node}} {{model}}"),
        ),
        "Memory": (
            _one(
                "Memory in use",
                "bytes",
                "node_memory_MemTotal_bytes - node_memory_MemAvailable_bytes",
                why="Of CPU and GPU together: they share it",
            ),
            _one("Memory available", "bytes", "node_memory_MemAvailable_bytes"),
            _one(
                "All wait for memory",
                "percentunit",
                "rate(node_pressure_memory_stalled_seconds_total[5m])",
                why="Share of time in which no program ran since all waited: the machine is about to stand still",
            ),
            _one("Swap in use", "bytes", "node_memory_SwapTotal_bytes - node_memory_SwapFree_bytes"),
            _one("Page cache", "bytes", "node_memory_Cached_bytes", why="The GPU does not get what is full of files"),
            _one("Disk free", "bytes", 'node_filesystem_avail_bytes{mountpoint="/"}'),
        ),
        "GPU and processor": (
            _one("GPU busy", "percentunit", "sparkmatrix_gpu_utilization_ratio"),
            _one(
                "Clock under load",
                "hertz",
                "sparkmatrix_gpu_sm_clock_hertz and on (node) sparkmatrix_gpu_utilization_ratio > 0.5",
                why="A Spark that is stuck in its slow state is busy and far below 2 GHz",
            ),
            _one("Temperature", "celsius", "sparkmatrix_gpu_temperature_celsius"),
            _one("Power", "watt", "sparkmatrix_gpu_power_watts"),
            _one("Clock held down", "bool_yes_no", "sparkmatrix_gpu_slowed", "{{node}} {{reason}}"),
            _one("Processor busy", "percentunit", '1 - avg by (node) (rate(node_cpu_seconds_total{mode="idle"}[5m]))'),
        ),
        "Fabric": (
            _one(
                "RDMA",
                "Bps",
                "rate(sparkmatrix_rdma_bytes_total[1m])",
                _HALF,
                "Both halves of a cable should carry the same; none moves while a model serves: it is on TCP",
            ),
            _one("TCP", "Bps", 'rate(node_network_receive_bytes_total{device!="lo"}[1m])', "{{node}} {{device}}"),
            _one("Links", "bool_yes_no", "sparkmatrix_half_up", _HALF),
            _one("MTU", "bytes", "sparkmatrix_half_mtu_bytes", _HALF),
            _one(
                "Losses and repeats",
                "cps",
                f'sum by (node, interface) (rate(sparkmatrix_rdma_events_total{{counter=~"{_LOST}"}}[5m]))',
                _HALF,
            ),
            _one(
                "Pauses",
                "percentunit",
                "max by (node, interface) (rate(sparkmatrix_rdma_events_total"
                f'{{counter=~"{counters.PAUSED.pattern}"}}[5m])) / 1e6',
                _HALF,
                "Share of time in which a half had to be silent",
            ),
            _one(
                "Congestion",
                "cps",
                'rate(sparkmatrix_rdma_events_total{counter=~"np_cnp_sent|rp_cnp_handled|np_ecn_marked_roce_packets"}[5m])',
                f"{_HALF} {{{{counter}}}}",
            ),
            _one(
                "Not as it was verified",
                "none",
                "sum by (node, interface, kind) (sparkmatrix_fabric_drift)",
                f"{_HALF} {{{{kind}}}}",
            ),
        ),
        "Gateway and what this costs": (
            _one("Requests of the gateway", "reqps", "rate(sparkmatrix_gateway_requests_total[1m])"),
            _one("Connections of the gateway", "none", "sparkmatrix_gateway_connections", "{{state}}"),
            _one("Requests that wait for their engine", "none", "sparkmatrix_gateway_held"),
            Panel(
                "Requests that an engine's end has touched",
                "none",
                (
                    Query("increase(sparkmatrix_gateway_held_total[5m])", "waited"),
                    Query("increase(sparkmatrix_gateway_held_lost_total[5m])", "not sent: {{how}}"),
                    Query("increase(sparkmatrix_gateway_broken_total[5m])", "broken"),
                ),
            ),
            _one("Last checks", "none", "sparkmatrix_verdicts", "{{playbook}} {{outcome}}"),
            _one("Processor for metrics", "percentunit", "rate(sparkmatrix_metrics_cpu_seconds_total[5m])"),
            _one("Time of a scrape", "s", "scrape_duration_seconds", "{{job}} {{node}}{{service}}"),
            _one("Ray: nodes", "none", 'count(up{job="ray"} == 1)', "with metrics"),
        ),
    },
)

ENGINES = Dashboard(
    "sparkmatrix-engines",
    "Engines: requests, tokens, KV cache",
    {
        "Requests": (
            _one("Running", "none", _either("num_requests_running", "num_running_reqs"), "{{service}}"),
            _one("Waiting", "none", _either("num_requests_waiting", "num_queue_reqs"), "{{service}}"),
            _one(
                "Finished",
                "reqps",
                "sum by (service, finished_reason)"
                f" (rate({_either('request_success_total', 'num_requests_total')}[1m]))",
                "{{service}} {{finished_reason}}",
            ),
        ),
        "Tokens": (
            _one(
                "Generated",
                "none",
                f"sum by (service) (rate({_either('generation_tokens_total', 'generation_tokens_total')}[1m]))",
                "{{service}}",
                "Tokens a second of all requests together",
            ),
            _one(
                "Prompts",
                "none",
                f"sum by (service) (rate({_either('prompt_tokens_total', 'prompt_tokens_total')}[1m]))",
                "{{service}}",
            ),
            _one(
                "Between two tokens",
                "s",
                _quantile(0.5, "inter_token_latency_seconds"),
                "{{service}}",
                "The median; with a draft several tokens come at once",
            ),
        ),
        "Time": (
            Panel(
                "To the first token",
                "s",
                (
                    Query(_quantile(0.5, "time_to_first_token_seconds"), "{{service}} median"),
                    Query(_quantile(0.95, "time_to_first_token_seconds"), "{{service}} one in twenty"),
                ),
            ),
            _one("Whole request", "s", _quantile(0.95, "e2e_request_latency_seconds"), "{{service}} one in twenty"),
            _one(
                "In the queue", "s", _quantile(0.95, "request_queue_time_seconds", "queue_time_seconds"), "{{service}}"
            ),
        ),
        "KV cache": (
            _one("In use", "percentunit", _either("kv_cache_usage_perc", "token_usage"), "{{service}}"),
            _one(
                "Prefixes found again",
                "percentunit",
                "sum by (service) (rate(vllm:prefix_cache_hits_total[5m]))"
                " / sum by (service) (rate(vllm:prefix_cache_queries_total[5m])) or sglang:cache_hit_rate",
                "{{service}}",
            ),
            _one(
                "Interrupted for want of room",
                "cps",
                f"sum by (service) (rate({_either('num_preemptions_total', 'num_retracted_requests_total')}[5m]))",
                "{{service}}",
                "More than now and then: fewer requests at a time, or a shorter context",
            ),
        ),
        "Speculation": (
            _one(
                "Drafted tokens that were taken",
                "percentunit",
                "sum by (service) (rate(vllm:spec_decode_num_accepted_tokens_total[5m]))"
                " / sum by (service) (rate(vllm:spec_decode_num_draft_tokens_total[5m]))",
                "{{service}}",
                "Only with a draft; below a fifth it costs more than it saves",
            ),
        ),
    },
)
DASHBOARDS = (MACHINES, ENGINES)


def document(dashboard: Dashboard) -> dict[str, Any]:
    """As Grafana's provisioning reads it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, members in dashboard.rows.items():
        panels.append(
            _at({"type": "row", "title": row, "collapsed": False, "panels": []}, len(panels), (0, top, WIDTH, 1))
        )
        top += 1
        width = WIDTH // COLUMNS
        for number, panel in enumerate(members):
            left, down = number % COLUMNS * width, number // COLUMNS * HEIGHT
            panels.append(_at(_panel(panel), len(panels), (left, top + down, width, HEIGHT)))
        top += -(-len(members) // COLUMNS) * HEIGHT
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["sparkmatrix"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "panels": panels,
    }


def _at(panel: Mapping[str, Any], number: int, place: Sequence[int]) -> dict[str, Any]:
    return {**panel, "id": number + 1, "gridPos": dict(zip("xywh", place))}


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + number), "datasource": DATASOURCE, "expr": query.expr, "legendFormat": query.legend}
        for number, query in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.why,
        "datasource": DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {},
    }
