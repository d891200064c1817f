#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Prometheus and node_exporter of Debian beside a cluster that serves, with real Ray and vLLM.

Usage: test_observability.py [--beside ID] [--keep] [--only STEP[,STEP]]

The layer is looked at (--check), set up, and changes nothing the second time; all targets answer; every query of every
panel is asked; an injected fault warns with its cause; nothing listens on the management network; what it costs; and a
reset takes all of it back. Rules are tested by promtool. Grafana itself is not there. Prints one JSON line.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "collections"))

import cluster
import node_image
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._metrics import dashboards
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import RULES
from cluster import LabError, run_steps
from test_staying_up import HEAD, WORKER, Cluster

SETTINGS = {"observability_enabled": True, "observability_grafana_image": ""}
OPTIONS = ("-e", json.dumps({**SETTINGS, "gateway_listen": ["127.0.0.1"]}))
PLAYBOOK = "playbooks/observability.yml"
HALF = "enP2p1s0f0np0"
PACKAGES = ("prometheus", "prometheus-node-exporter")
PROMETHEUS = "http://127.0.0.1:9090"
# The lab has no GPU, no draft model, no disk of its own (overlays are left out), no counters of bytes and pauses; and
# nothing was restarted yet.
EMPTY = {
    "GPU busy",
    "Clock under load",
    "Temperature",
    "Power",
    "Clock held down",
    "RDMA",
    "Pauses",
    "Disk free",
    "Time since the last restart",
    "Drafted tokens that were taken",
}
# What a run of the layer may leave nowhere.
TRACES = (
    "dpkg-query -W -f '${Package} ${db:Status-Status}\\n' | grep -E '^prometheus' | grep -v ' not-installed';"
    " systemctl list-unit-files --no-legend | grep -E 'prometheus|sparkmatrix-(metrics|node|grafana)' | cut -d' ' -f1;"
    " ls -d /etc/sparkmatrix/prometheus /etc/sparkmatrix/grafana /var/lib/sparkmatrix/prometheus"
    " /var/lib/sparkmatrix/metrics /usr/bin/prometheus* 2>/dev/null;"
    " sudo ss -Hltn | grep -oE ':(9090|9100) '; true"
)

# -- rules, by promtool: what makes each of them warn, and what must not

HALF_OF = 'node="spark2",interface="net0",device="roce0",cage="0"'
ENGINE = 'node="spark1",service="engine"'
EVENTS = f"sparkmatrix_rdma_events_total{{{HALF_OF},counter="
# Rule, and sign of the alert: series with their values at each minute, and after how many minutes.
CASES: dict[str, tuple[dict[str, str], int]] = {
    "not_answering": ({'up{job="node",node="spark2"}': "0x9"}, 3),
    "not_answering metrics_old": ({'node_textfile_mtime_seconds{node="spark2",file="/a/node.prom"}': "0x9"}, 6),
    "not_looked_at metrics": ({'sparkmatrix_metrics_part_ok{node="spark2",part="fabric"}': "0x9"}, 6),
    "fabric_fact": ({'sparkmatrix_fabric_applied{node="spark2"}': "0x40"}, 32),
    "not_looked_at drift_old": ({'sparkmatrix_drift_checked_seconds{node="spark1"}': "0x2900"}, 2890),
    "not_serving keeper_stopped": ({f"sparkmatrix_keeper_running{{{ENGINE}}}": "0x9"}, 3),
    "not_serving keeper_gave_up": ({f'sparkmatrix_keeper_phase{{{ENGINE},phase="gave_up"}}': "1x9"}, 1),
    "not_serving keeper_silent": ({f"sparkmatrix_keeper_silent_seconds{{{ENGINE}}}": "70x9"}, 3),
    "not_serving starting": (
        {
            f'sparkmatrix_keeper_phase{{{ENGINE},phase="serving"}}': "0x60",
            f"sparkmatrix_keeper_running{{{ENGINE}}}": "1x60",
        },
        32,
    ),
    "not_serving probe": (
        {
            f'sparkmatrix_keeper_phase{{{ENGINE},phase="serving"}}': "1x9",
            f"sparkmatrix_probe_answered{{{ENGINE}}}": "0x9",
        },
        6,
    ),
    "not_serving restarts": ({f"sparkmatrix_keeper_failures{{{ENGINE}}}": "3x9"}, 1),
    "gateway_silent": ({'sparkmatrix_gateway_answers{node="spark1"}': "0x9"}, 3),
    "one_half_only link": ({f"sparkmatrix_half_up{{{HALF_OF}}}": "0x9"}, 2),
    "one_half_only drift": ({f'sparkmatrix_fabric_drift{{{HALF_OF},kind="one_half_only"}}': "1x9"}, 2),
    **{
        kind: ({f'sparkmatrix_fabric_drift{{{HALF_OF},kind="{kind}"}}': "1x9"}, 2)
        for kind in ("wrong_mtu", "gid_missing", "gid_mismatch", "foreign_address")
    },
    "link_flaps": ({f"sparkmatrix_half_up{{{HALF_OF}}}": "1 0 1 0 1 0 1 0 1 0 1 1"}, 11),
    "loss_storm": ({f'{EVENTS}"out_of_sequence"}}': "0+6000x20"}, 15),
    "pause_storm": ({f'{EVENTS}"rx_prio3_pause_duration"}}': "0+12000000x20"}, 15),
    "gpu_slow slowed": ({'sparkmatrix_gpu_slowed{node="spark1",reason="hardware thermal slowdown"}': "1x9"}, 6),
    "gpu_slow clock": (
        {
            'sparkmatrix_gpu_utilization_ratio{node="spark1"}': "0.96x20",
            'sparkmatrix_gpu_sm_clock_hertz{node="spark1"}': "513000000x20",
        },
        11,
    ),
    "out_of_memory": ({'node_vmstat_oom_kill{node="spark1"}': "0 0 1x9"}, 5),
    "no_memory_journal watchdog": ({'sparkmatrix_watchdog_stopped_seconds{node="spark1",reason="x"}': "60x9"}, 2),
    "no_memory_journal pressure": ({'node_pressure_memory_stalled_seconds_total{node="spark1"}': "0+12x20"}, 12),
    "dangling_weights": ({'sparkmatrix_model_present{node="spark1",model="m"}': "0x20"}, 11),
    "below_expectation": (
        {
            'vllm:time_to_first_token_seconds_bucket{service="engine",le="80"}': "0x60",
            'vllm:time_to_first_token_seconds_bucket{service="engine",le="320"}': "0+10x60",
            'vllm:time_to_first_token_seconds_bucket{service="engine",le="+Inf"}': "0+10x60",
        },
        32,
    ),
    **{
        f"{kind}{sign}": ({f'sparkmatrix_drift{{host="spark1",kind="{kind}",node="spark1"}}': "1x9"}, 1)
        for kind, sign in (
            *(("port_filter_off", ""), ("environment_differs", ""), ("option_ignored", ""), ("image_differs", "")),
            *(("dangling_weights", " drift"), ("firmware_differs", ""), ("peers_unreachable", "")),
            ("not_looked_at", " drift"),
        )
    },
}
HEALTHY = {
    'up{job="node",node="spark2"}': "1x40",
    'sparkmatrix_metrics_part_ok{node="spark2",part="fabric"}': "1x40",
    'sparkmatrix_fabric_applied{node="spark2"}': "1x40",
    'sparkmatrix_drift_checked_seconds{node="spark1"}': "0x40",
    f"sparkmatrix_keeper_running{{{ENGINE}}}": "1x40",
    f'sparkmatrix_keeper_phase{{{ENGINE},phase="serving"}}': "1x40",
    f'sparkmatrix_keeper_phase{{{ENGINE},phase="gave_up"}}': "0x40",
    f"sparkmatrix_keeper_silent_seconds{{{ENGINE}}}": "2x40",
    f"sparkmatrix_keeper_failures{{{ENGINE}}}": "1x40",
    f"sparkmatrix_probe_answered{{{ENGINE}}}": "1x40",
    f'sparkmatrix_fabric_drift{{{HALF_OF},kind="wrong_mtu"}}': "0x40",
    f"sparkmatrix_half_up{{{HALF_OF}}}": "1x40",
    f'{EVENTS}"out_of_sequence"}}': "7x40",
    'sparkmatrix_gpu_slowed{node="spark1",reason="hardware thermal slowdown"}': "0x40",
    'sparkmatrix_gpu_utilization_ratio{node="spark1"}': "0.96x40",
    'sparkmatrix_gpu_sm_clock_hertz{node="spark1"}': "2405000000x40",
    'node_vmstat_oom_kill{node="spark1"}': "3x40",
    'sparkmatrix_model_present{node="spark1",model="m"}': "1x40",
    'sparkmatrix_drift{host="spark1",kind="image_differs",node="spark1"}': "0x40",
}


def rule_tests() -> dict[str, Any]:
    """A file for ``promtool test rules``."""

    def case(series: dict[str, str], minutes: int, expr: str, count: int) -> dict[str, Any]:
        found = [{"labels": "{}", "value": count}] if count else []
        return {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [{"expr": expr, "eval_time": f"{minutes}m", "exp_samples": found}],
        }

    alerts = {f"{rule.id} {alert.sign}".strip() for rule in RULES.values() for alert in rule.alerts}
    missing = alerts ^ set(CASES)
    if missing:
        raise LabError(f"rules without a test, or tests without a rule: {missing}")
    fires = 'count(ALERTS{alertname="%s",sign="%s",alertstate="firing"})'
    return {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            *(
                case(series, minutes, fires % (name.partition(" ")[::2]), 1)
                for name, (series, minutes) in CASES.items()
            ),
            case(HEALTHY, 40, "count(ALERTS)", 0),
        ],
    }


# -- the lab


class Here(Cluster):
    def ask(self, path: str, **words: str) -> Any:
        """Prometheus, as a person at the end of an ssh forward does."""
        query = f"?{urllib.parse.urlencode(words)}" if words else ""
        said = json.loads(self.node(HEAD, f"curl -sf -m 20 '{PROMETHEUS}/api/v1/{path}{query}'"))
        return said["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("query", query=expr)["result"]
        return found

    def until_nothing(self, what: str, look: Callable[[], Any], most_s: float = 180) -> float:
        began = time.monotonic()
        while True:
            found = look()
            if not found:
                return time.monotonic() - began
            if time.monotonic() - began > most_s:
                raise LabError(f"{what}: after {most_s:.0f} s still {found}")
            time.sleep(2)

    def source(self) -> None:
        """The packages as a source on each node: the nodes have no network."""
        place = cluster.cache() / "prometheus-packages"
        if not (place / "Packages").exists():
            self.fetch(place)
        for host in self.launch.hosts:
            tar = subprocess.run(["tar", "-C", str(place), "-c", "."], capture_output=True, check=True).stdout
            words = "sudo mkdir -p /srv/source && sudo tar -C /srv/source -x --no-same-owner && sudo rm -rf"
            words += " /etc/apt/sources.list /etc/apt/sources.list.d && echo 'deb [trusted=yes] file:/srv/source ./' |"
            words += " sudo tee /etc/apt/sources.list > /dev/null && sudo apt-get -qq update"
            self.node(host, words, data=tar)

    def fetch(self, place: pathlib.Path) -> None:
        """From the mirror of this machine, for the system of the nodes, with what it lacks."""
        shutil.rmtree(place, ignore_errors=True)
        with tempfile.TemporaryDirectory() as name:
            scratch = pathlib.Path(name)
            for folder in ("state/lists/partial", "cache/archives/partial"):
                (scratch / folder).mkdir(parents=True)
            scratch.chmod(0o755)
            (scratch / "status").write_text(self.node(HEAD, "cat /var/lib/dpkg/status"))
            source = f"deb [trusted=yes] {node_image.mirror()} {node_image.SUITE} main\n"
            (scratch / "sources.list").write_text(source)
            options = {
                "Dir::State": scratch / "state",
                "Dir::State::status": scratch / "status",
                "Dir::Cache": scratch / "cache",
                "Dir::Etc::sourcelist": scratch / "sources.list",
                "Dir::Etc::sourceparts": "-",
                "APT::Sandbox::User": "root",
            }
            apt = ["apt-get", "-q", "-y", *(f"-o{option}={value}" for option, value in options.items())]
            for words in (["update"], ["--download-only", "--no-install-recommends", "install", *PACKAGES]):
                done = subprocess.run([*apt, *words], capture_output=True, text=True, check=False)
                if done.returncode:
                    raise LabError(f"apt-get {words[0]}: {done.stdout[-500:]}{done.stderr[-500:]}")
            place.mkdir(parents=True)
            lines = []
            for file in sorted((scratch / "cache/archives").glob("*.deb")):
                shutil.copy(file, place)
                control = subprocess.run(
                    ["dpkg-deb", "-f", str(file)], capture_output=True, text=True, check=True
                ).stdout
                digest = subprocess.run(["sha256sum", str(file)], capture_output=True, text=True, check=True).stdout
                lines.append(
                    f"{control}Filename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest[:64]}\n\n"
                )
            (place / "Packages").write_text("".join(lines))

    def traces(self) -> dict[str, str]:
        return {host: self.node(host, TRACES) for host in self.launch.hosts}


def set_up(here: Here) -> dict[str, Any]:
    """Beside a cluster that serves: looked at, set up, and set up again."""
    here.site("observability-site", "site.yml", *OPTIONS, "-e", "observability_enabled=false")
    here.source()
    before = here.traces()
    if "".join(before.values()):
        raise LabError(f"something of it is there before: {before}")
    here.site("observability-check", PLAYBOOK, *OPTIONS, "--check")
    if here.traces() != before:
        raise LabError(f"a check has changed the nodes: {here.traces()}")
    first = here.site("observability", PLAYBOOK, *OPTIONS)
    again = here.site("observability-again", PLAYBOOK, *OPTIONS).unchanged()
    # Ray lets Prometheus in, which is an account of its own, once the layer is wanted.
    here.site("observability-ray", "playbooks/ray.yml", *OPTIONS)
    return {"first_s": round(first.seconds), "second_s": round(again.seconds), "second_changed": again.changed}


def targets(here: Here) -> dict[str, Any]:
    """Every target answers."""

    def down() -> list[str]:
        active = here.ask("targets", state="active")["activeTargets"]
        jobs = {one["labels"]["job"] for one in active}
        missing = {"node", "engine", "ray", "prometheus"} - jobs
        return [*missing, *(f"{one['scrapeUrl']}: {one['lastError']}" for one in active if one["health"] != "up")]

    seconds = here.until_nothing("targets that do not answer", down)
    health = here.query("up")
    return {"targets": len(health), "seconds": round(seconds)}


def panels(here: Here) -> dict[str, Any]:
    """Every query of every panel is answered; those that have nothing to show are known."""
    key = "KEY=$(sudo cat /etc/sparkmatrix/gateway/keys/default.key)"
    ask = "curl -sSfk -m 100 -H \"Authorization: Bearer $KEY\" -H 'Content-Type: application/json'"
    model = json.loads(here.node(HEAD, f"{key}; {ask} https://127.0.0.1:8443/v1/models"))["data"][0]["id"]
    body = json.dumps({"model": model, "prompt": "Hello", "max_tokens": 16, "ignore_eos": True})
    for _time in range(6):  # rates need two looks
        here.node(HEAD, f"{key}; {ask} -d '{body}' https://127.0.0.1:8443/v1/completions")
        time.sleep(3)
    shown: dict[str, int] = {}
    for dashboard in dashboards.DASHBOARDS:
        for panel in dashboard.panels:
            found = [sample for query in panel.queries for sample in here.query(query.expr)]
            shown[panel.title] = sum(sample["value"][1] != "NaN" for sample in found)
    empty = {title for title, count in shown.items() if not count}
    if empty != EMPTY:
        raise LabError(f"panels that show nothing: {sorted(empty)}; expected {sorted(EMPTY)}")
    return {"panels": len(shown), "with_data": len(shown) - len(empty)}


def rules(here: Here) -> dict[str, Any]:
    """promtool reads configuration and rules as they lie on the head, and each rule warns when it should."""
    place = "/etc/sparkmatrix/prometheus"
    here.node(HEAD, f"promtool check config {place}/prometheus.yml")
    text = yaml.safe_dump(rule_tests(), sort_keys=False)
    words = f"d=$(mktemp -d) && cp {place}/rules.yml $d && cat > $d/tests.yml && promtool test rules $d/tests.yml"
    here.node(HEAD, words, data=text.encode())
    return {"rules": len(CASES), "tests": len(CASES) + 1}


def warns(here: Here) -> dict[str, Any]:
    """An MTU that somebody has changed warns with its cause and remedy, and no longer when it is repaired."""
    if here.query('ALERTS{alertstate="firing"}'):
        raise LabError(f"it warns of a healthy cluster: {here.query('ALERTS')}")
    here.node(WORKER, f"sudo ip link set {HALF} mtu 1500")
    fired = here.until_nothing(
        "no warning", lambda: not here.query('ALERTS{alertname="wrong_mtu",alertstate="firing"}')
    )
    (alert,) = [one for one in here.ask("alerts")["alerts"] if one["labels"]["alertname"] == "wrong_mtu"]
    told = alert["annotations"]
    if f"{WORKER} {HALF}" not in told["summary"] or not told["remedy"]:
        raise LabError(f"the warning does not say what and where: {alert}")
    here.node(WORKER, f"sudo ip link set {HALF} mtu 9000")
    ended = here.until_nothing("still warned of", lambda: here.query('ALERTS{alertname="wrong_mtu"}'))
    return {"fires_s": round(fired), "ends_s": round(ended)}


def strangers(here: Here) -> dict[str, Any]:
    """Nothing of it listens on the management network."""
    found = {}
    for host in here.launch.hosts:
        listening = here.node(host, "sudo ss -Hltn | awk '{print $4}' | grep -E ':(9090|9100)$'").split()
        management = here.node(host, "ip -4 -o addr show enP7s7 | awk '{print $4}'").strip().partition("/")[0]
        found[host] = listening
        if not all(one.startswith(("127.0.0.1:", "192.168.")) for one in listening) or not listening:
            raise LabError(f"{host} listens at {listening}")
        for port in (9090, 9100):
            code = subprocess.run(
                ["curl", "-s", "-m", "3", f"http://{management}:{port}/metrics"], capture_output=True, check=False
            ).returncode
            if code == 0:
                raise LabError(f"{host} answers at {management}:{port}")
    return found


def costs(here: Here) -> dict[str, Any]:
    """Processor and memory of each service, over half a minute."""
    units = ("metrics", "node-exporter", "prometheus")

    def used(host: str) -> dict[str, tuple[float, int]]:
        found = {}
        for unit in units if host == HEAD else units[:2]:
            words = f"systemctl show -P MainPID sparkmatrix-{unit}"
            pid = here.node(host, words).strip()
            stat = here.node(host, f"sudo cat /proc/{pid}/stat").rpartition(")")[2].split()
            memory = here.node(host, f"sudo grep VmRSS /proc/{pid}/status").split()[1]
            found[unit] = (sum(map(int, stat[11:15])) / 100, int(memory) // 1024)  # children that ended, too
        return found

    before = {host: used(host) for host in here.launch.hosts}
    began = time.monotonic()
    time.sleep(30)
    after = {host: used(host) for host in here.launch.hosts}
    seconds = time.monotonic() - began
    return {
        f"{host} {unit}": {"percent": round(100 * (spent - before[host][unit][0]) / seconds, 2), "mib": mib}
        for host, members in after.items()
        for unit, (spent, mib) in members.items()
    }


def reset(here: Here) -> dict[str, Any]:
    """All of it is taken back, and the model goes on."""
    here.site("observability-reset", "reset.yml", "--tags", "observability")
    left = "".join(here.traces().values())
    if left:
        raise LabError(f"this is left: {left}")
    again = here.site("observability-reset-again", "reset.yml", "--tags", "observability")
    if again.changed:
        raise LabError(f"the second reset changed {again.changed}")
    here.site("observability-verify", "verify.yml", *OPTIONS, "-e", "observability_enabled=false")
    return {}


STEPS: dict[str, Callable[[Here], dict[str, Any]]] = {
    one.__name__: one for one in (set_up, targets, panels, rules, warns, strangers, costs, reset)
}


def main() -> int:
    chosen = cluster.options(__doc__, STEPS).parse_args()
    return run_steps("observability", Here(chosen.beside, "ray"), STEPS, chosen)


if __name__ == "__main__":
    sys.exit(main())
