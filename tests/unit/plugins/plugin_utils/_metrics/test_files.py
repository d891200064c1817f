# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Rules, dashboards and files of Prometheus and Grafana. The real programs read them in tests/scenarios."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._metrics import collect
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import drift
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._metrics import dashboards, files, planners
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._metrics.files import Cluster, Service, Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import RULES
from engine_plans import cluster_plans
from fabric_rates import fabric

OURS = {**collect.METRICS, **drift.METRICS}
IMAGE = f"docker.io/grafana/grafana:12@sha256:{'a' * 64}"
PANELS = [panel for dashboard in dashboards.DASHBOARDS for panel in dashboard.panels]
EXPRESSIONS = [alert.expr for rule in RULES.values() for alert in rule.alerts]
EXPRESSIONS += [query.expr for panel in PANELS for query in panel.queries]


class Tagged(str):
    """A name of the inventory, as Ansible hands it over."""

    __slots__ = ()


@pytest.fixture
def cluster():
    services = [Service("engine", "vllm", "127.0.0.1", 8000)]
    return Cluster(
        Tagged("spark1"),
        {Tagged(host): fact for host, fact in fabric(2).items()},
        services,
        {"spark1": "10.0.0.1", "spark2": "10.0.0.2"},
    )


def test_every_metric_of_ours_that_is_asked_for_is_written():
    asked = {name for expr in EXPRESSIONS for name in re.findall(r"\bsparkmatrix_[a-z0-9_]+", expr)}
    assert asked - set(OURS) == set()
    unseen = set(OURS) - asked
    assert unseen == {
        "sparkmatrix_probe_asked_seconds",
        "sparkmatrix_keeper_restarts",
        "sparkmatrix_verdicts_seconds",
        "sparkmatrix_metrics_took_seconds",
    }, "what is written and shown nowhere is for queries by hand"


def test_a_dashboard_is_what_grafana_reads():
    for dashboard in dashboards.DASHBOARDS:
        document = json.loads(json.dumps(dashboards.document(dashboard)))
        panels = document["panels"]
        assert [panel["id"] for panel in panels] == list(range(1, len(panels) + 1))
        taken = {
            (x, y)
            for panel in panels
            for place in [panel["gridPos"]]
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert len(taken) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in panels), "two at one place"
        assert all(0 <= x < dashboards.WIDTH for x, _y in taken)
        for panel in panels:
            if panel["type"] != "row":
                assert panel["title"] and panel["targets"] and panel["datasource"] == dashboards.DATASOURCE
                assert all(target["expr"] and target["refId"] for target in panel["targets"])
    assert len({dashboard.uid for dashboard in dashboards.DASHBOARDS}) == len(dashboards.DASHBOARDS)


def test_what_lies_on_the_nodes(cluster):
    made = files.make(Settings(grafana_image=IMAGE), cluster, "tool1")
    assert list(made["spark1"].units) == [files.COLLECTOR, files.EXPORTER, files.PROMETHEUS, files.GRAFANA]
    assert list(made["spark2"].units) == [files.COLLECTOR, files.EXPORTER]
    assert made["spark1"].ask == ["http://127.0.0.1:9090/-/ready", "http://127.0.0.1:3000/api/health"]
    for node in made.values():
        for unit, its_hash in node.units.items():
            text = node.files[f"/etc/systemd/system/{unit}"]
            assert f"SPARKMATRIX_CONFIG_HASH={its_hash}\n" in text
            assert text.startswith("# Managed by sparkmatrix.cluster (role observability).")
    config = yaml.safe_load(made["spark1"].files["/etc/sparkmatrix/prometheus/prometheus.yml"])
    jobs = {job["job_name"]: job["static_configs"] for job in config["scrape_configs"]}
    address = cluster.facts["spark2"].rails[0].address
    assert jobs["node"] == [
        {"targets": ["127.0.0.1:9100"], "labels": {"node": "spark1"}},
        {"targets": [f"{address}:9100"], "labels": {"node": "spark2"}},
    ]
    assert jobs["engine"][0]["labels"]["__metrics_path__"] == "/metrics"
    assert set(jobs) == {"node", "engine", "ray", "prometheus", "grafana"}


def test_everything_listens_on_loopback_or_on_the_fabric(cluster):
    made = files.make(Settings(grafana_image=IMAGE), cluster, "tool1")
    fabric = {rail.address for fact in cluster.facts.values() for rail in fact.rails}
    listening = [
        found
        for node in made.values()
        for path, text in node.files.items()
        if path.endswith(".service")
        for found in re.findall(r"(?:listen-address=|HTTP_ADDR=)([0-9.]+)", text)
    ]
    assert len(listening) == 4 and set(listening) <= {"127.0.0.1", *fabric}


def test_a_new_node_program_starts_the_collector_anew_and_nothing_else(cluster):
    before, after = (files.make(Settings(), cluster, tool)["spark1"].units for tool in ("tool1", "tool2"))
    assert [name for name in before if before[name] != after[name]] == [files.COLLECTOR]
    other = files.make(Settings(), replace(cluster, services=()), "tool1")["spark1"].units
    assert [name for name in before if before[name] != other[name]] == [files.PROMETHEUS]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"prometheus_port": 80}, "observability_prometheus_port is 80. Set it to 1024 to 65535"),
        ({"grafana_image": "grafana/grafana:latest"}, "names no digest"),
    ],
)
def test_settings_that_cannot_be(cluster, settings, words):
    (finding,) = files.check(replace(Settings(), **settings), cluster)
    assert words in str(finding) and finding.severity == "error"
    assert list(files.check(Settings(), cluster)) == []


def test_a_node_that_only_the_management_network_leads_to_is_not_asked(cluster):
    far = replace(cluster.facts["spark2"], rails=())
    cluster = replace(cluster, facts={**cluster.facts, "spark2": far})
    (finding,) = files.check(Settings(), cluster)
    assert finding.severity == "warning" and "no address on the fabric" in str(finding)
    made = files.make(Settings(), cluster, "tool1")
    assert list(made["spark2"].units) == [files.COLLECTOR]
    assert made["spark1"].files["/etc/sparkmatrix/prometheus/prometheus.yml"].count(":9100") == 1


def test_grafana_runs_by_the_id_of_what_was_fetched_and_fetches_nothing_itself(cluster):
    known = f"sha256:{'b' * 64}"
    for image, run in (("", f"docker.io/grafana/grafana:sha256-{'a' * 64}"), (known, known)):
        made = files.make(Settings(grafana_image=IMAGE), replace(cluster, grafana=image), "tool1")
        unit = made["spark1"].files[f"/etc/systemd/system/{files.GRAFANA}"]
        assert f"    {run}\n" in unit and "--pull never" in unit
    (finding,) = files.check(Settings(), replace(cluster, grafana="x\nUser=root"))
    assert "is no id of an image" in finding.found


def test_the_planner_finds_services_and_ray_in_the_plans():
    plans = cluster_plans(2, launch="ray")
    made = planners.made(
        {
            **vars(Settings()),
            "head": "spark1",
            "grafana_id": "",
            "tool": "tool1",
            "facts": fabric(2),
            "plans": plans,
        }
    )
    text = {file["path"]: file["content"] for file in made["nodes"]["spark1"]["files"]}
    config = yaml.safe_load(text["/etc/sparkmatrix/prometheus/prometheus.yml"])
    jobs = {job["job_name"]: job["static_configs"] for job in config["scrape_configs"]}
    assert jobs["engine"][0]["targets"] == ["127.0.0.1:8000"]
    assert {one["labels"]["node"] for one in jobs["ray"]} == {"spark1", "spark2"}
    assert not any("grafana" in path for path in text)
