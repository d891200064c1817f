# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What Prometheus warns of: a cause of the verdicts each, with its words, and how it is seen in what is scraped.

The only place of titles and remedies is :mod:`_verdict.causes`, that of thresholds :mod:`_verdict.limits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import counters
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import limits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict.causes import BY_NAME

GUIDE = "docs/troubleshooting.md"
NODE = "{{ $labels.node }}"
HALF = f"{NODE} {{{{ $labels.interface }}}}"
SERVICE = "{{ $labels.service }}"
DRIFT_OLD_S = 2 * 86400  # longer than anybody lets the timer wait
FAIL, WARN = "critical", "warning"
_LIMIT = limits.limits()
_LOST = "|".join((*counters.REPEATED, *counters.DROPPED))


@dataclass(frozen=True)
class Alert:
    """``cause``: of the verdicts. ``where``: what it is about, as Prometheus fills it in. ``wait``: for so long."""

    name: str
    cause: str
    expr: str
    where: str
    wait: str = "2m"
    severity: str = FAIL


def _drift(kind: str) -> str:
    return f'sparkmatrix_fabric_drift{{kind="{kind}"}} == 1'


ALERTS: tuple[Alert, ...] = (
    Alert("NodeSilent", "not_answering", 'up{job="node"} == 0', NODE),
    # A node whose file is old looks healthy for ever.
    Alert(
        "NodeMetricsOld",
        "not_answering",
        'time() - node_textfile_mtime_seconds{file=~".*/node.prom"} > 120',
        f"{NODE}: its metrics are old (systemctl status sparkmatrix-metrics)",
        severity=WARN,
    ),
    # Of a part that cannot be read no other rule says anything.
    Alert(
        "MetricsPart",
        "not_looked_at",
        "sparkmatrix_metrics_part_ok == 0",
        f"{NODE}: {{{{ $labels.part }}}} (journalctl -u sparkmatrix-metrics)",
        "5m",
        WARN,
    ),
    Alert(
        "FabricNotApplied",
        "not_looked_at",
        "sparkmatrix_fabric_applied == 0",
        f"{NODE}: its fabric is not verified; run ansible-playbook site.yml --tags fabric",
        "30m",
        WARN,
    ),
    Alert(
        "DriftOld",
        "not_looked_at",
        f"time() - sparkmatrix_drift_checked_seconds > {DRIFT_OLD_S}",
        f"{NODE}: nobody has looked for drift (systemctl status sparkmatrix-drift.timer)",
        severity=WARN,
    ),
    Alert("KeeperStopped", "not_serving", "sparkmatrix_keeper_running == 0", f"{NODE} {SERVICE}"),
    Alert("KeeperGaveUp", "not_serving", 'sparkmatrix_keeper_phase{phase="gave_up"} == 1', f"{NODE} {SERVICE}", "0s"),
    Alert(
        "KeeperSilent",
        "not_serving",
        "sparkmatrix_keeper_silent_seconds > 60",
        f"{NODE} {SERVICE}: the keeper gives no sign of life",
    ),
    Alert(
        "NotServing",
        "not_serving",
        'sparkmatrix_keeper_phase{phase="serving"} == 0 and on (node, service) sparkmatrix_keeper_running == 1',
        f"{NODE} {SERVICE}: it loads, waits or is started anew",
        "30m",
    ),
    Alert(
        "ProbeFails",
        "not_serving",
        'sparkmatrix_probe_answered == 0 and on (node, service) sparkmatrix_keeper_phase{phase="serving"} == 1',
        f"{NODE} {SERVICE}: it gives no token",
        "5m",
    ),
    Alert(
        "RestartsOften",
        "not_serving",
        "sparkmatrix_keeper_failures >= 3",
        f"{NODE} {SERVICE}: three failures in a row",
        "0s",
        WARN,
    ),
    Alert("GatewaySilent", "gateway_silent", "sparkmatrix_gateway_answers == 0", NODE),
    Alert("HalfMtu", "wrong_mtu", "sparkmatrix_half_mtu_bytes != sparkmatrix_half_mtu_verified_bytes", HALF, "1m"),
    Alert("HalfDown", "one_half_only", "sparkmatrix_half_up == 0", HALF, "1m"),
    Alert("HalfAddress", "one_half_only", _drift("address"), HALF, "1m"),
    Alert("HalfGidMissing", "gid_missing", _drift("no_gid"), HALF, "1m"),
    Alert("HalfGidMoved", "gid_mismatch", _drift("gid"), HALF, "1m"),
    Alert("HalfForeignAddress", "foreign_address", _drift("foreign"), HALF, "1m", WARN),
    Alert(
        "LinkFlaps",
        "link_flaps",
        f"changes(sparkmatrix_half_up[1d]) > {2 * _LIMIT['links_down_per_day'].value:g}",  # down and up again
        HALF,
        "0s",
        WARN,
    ),
    Alert(
        "RdmaLosses",
        "loss_storm",
        f'sum by (node, interface) (rate(sparkmatrix_rdma_events_total{{counter=~"{_LOST}"}}[5m])) > 10',
        HALF,
        "5m",
        WARN,
    ),
    Alert(
        "RdmaPauses",
        "pause_storm",
        "max by (node, interface) (rate(sparkmatrix_rdma_events_total"
        f'{{counter=~"{counters.PAUSED.pattern}"}}[5m])) > {_LIMIT["pause_share"].value * 1e6:g}',  # microseconds
        HALF,
        "5m",
        WARN,
    ),
    Alert(
        "GpuSlowed",
        "gpu_slow",
        "sparkmatrix_gpu_slowed == 1",
        f"{NODE}: {{{{ $labels.reason }}}}",
        "5m",
        WARN,
    ),
    Alert(
        "GpuClockLow",
        "gpu_slow",
        "avg_over_time(sparkmatrix_gpu_utilization_ratio[10m]) > 0.9"
        " and on (node) max_over_time(sparkmatrix_gpu_sm_clock_hertz[10m]) < 1e9",
        f"{NODE}: busy below 1 GHz",
        "0s",
        WARN,
    ),
    Alert("OutOfMemory", "out_of_memory", "increase(node_vmstat_oom_kill[1h]) > 0", NODE, "0s"),
    Alert(
        "WatchdogStopped",
        "no_memory_journal",
        "time() - sparkmatrix_watchdog_stopped_seconds < 3600",
        f"{NODE}: the memory watchdog has stopped the engine",
        "0s",
    ),
    Alert(
        "MemoryPressure",
        "no_memory_journal",
        "rate(node_pressure_memory_stalled_seconds_total[5m]) > 0.1",
        f"{NODE}: all its programs wait for memory for a tenth of the time",
        "5m",
        WARN,
    ),
    Alert(
        "ModelMissing",
        "dangling_weights",
        "sparkmatrix_model_present == 0",
        f"{NODE} {{{{ $labels.model }}}}",
        "10m",
        WARN,
    ),
    Alert(
        "SlowToFirstToken",
        "below_expectation",
        "histogram_quantile(0.95, sum by (le, service)"
        ' (rate({__name__=~"(vllm|sglang):time_to_first_token_seconds_bucket"}[15m]))) > 120',
        f"{SERVICE}: one request in twenty waits for two minutes",
        "15m",
        WARN,
    ),
    # What `sparkmatrix drift` has found, where its timer runs.
    *(
        Alert(
            f"Drift{''.join(word.title() for word in kind.split('_'))}",
            cause,
            f'max by (host, kind) (sparkmatrix_drift{{kind="{kind}"}}) > 0',
            "{{ $labels.host }} (there: sudo sparkmatrix drift)",
            "0s",
            WARN,
        )
        for kind, cause in (
            ("port_filter", "port_filter_off"),
            ("environment", "environment_differs"),
            ("options", "option_ignored"),
            ("image", "image_differs"),
            ("weights", "dangling_weights"),
            ("versions", "firmware_differs"),
            ("silent", "peers_unreachable"),
            ("unseen", "not_looked_at"),
        )
    ),
)


def rules() -> dict[str, Any]:
    """The file of rules."""
    return {"groups": [{"name": "sparkmatrix", "rules": [dict(_rule(alert)) for alert in ALERTS]}]}


def _rule(alert: Alert) -> Iterator[tuple[str, Any]]:
    cause = BY_NAME[alert.cause]
    yield "alert", alert.name
    yield "expr", alert.expr
    if alert.wait != "0s":
        yield "for", alert.wait
    yield "labels", {"severity": alert.severity, "cause": alert.cause}
    notes: Mapping[str, str] = {
        "summary": f"{cause.title}: {alert.where}",
        "why": cause.why,
        "remedy": cause.remedy,
        "otherwise": cause.otherwise,
        "guide": GUIDE,
    }
    yield "annotations", {name: text for name, text in notes.items() if text}
