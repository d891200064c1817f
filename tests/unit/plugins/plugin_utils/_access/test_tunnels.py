# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What is forwarded: what the inventory asks for, and nothing else."""

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import planners, tunnels

ONE, TWO = ["spark1"], ["spark1", "spark2"]
API = "127.0.0.1:8000: API"
SEVERAL = [
    {"name": "chat", "recipe": "qwen3-8b", "nodes": ["spark1"]},
    {"name": "other", "recipe": "qwen3-8b", "nodes": ["spark2"], "port": 8001, "served_model_name": "other"},
]


def made(hosts=TWO, named=None, **variables):
    options = {"hosts": hosts, "login": "spark1.local", "variables": variables, "named": named or {}, "logins": {}}
    found = planners.forwards(options)
    return found["lines"], [f"{forward['local']} {forward['target']}" for forward in found["forwards"]]


@pytest.mark.parametrize(
    ("variables", "lines"),
    [
        ({}, [API]),
        ({"engine_port": 8100}, ["127.0.0.1:8100: API"]),
        ({"engine_launch": "ray"}, [API, "127.0.0.1:8265: Ray dashboard"]),
        ({"engine_launch": "ray", "ray_dashboard_port": "8300"}, [API, "127.0.0.1:8300: Ray dashboard"]),
        ({"gateway_listen": ["enP7s7"]}, [API, "127.0.0.1:8443: gateway"]),
        ({"gateway_listen": []}, [API]),
        ({"observability_enabled": "yes"}, [API, "127.0.0.1:3000: Grafana", "127.0.0.1:9090: Prometheus"]),
        ({"observability_enabled": True, "observability_grafana_image": ""}, [API, "127.0.0.1:9090: Prometheus"]),
        ({"web_ui_enabled": True}, [API, "127.0.0.1:8080: chat page"]),
    ],
)
def test_only_what_is_there_is_forwarded(variables, lines):
    assert made(engine_recipe="minimax-m2.7-awq", **variables)[0] == lines


def test_on_one_machine_there_is_no_ray():
    assert made(ONE, engine_recipe="qwen3-8b") == ([API], ["8000 127.0.0.1:8000"])


@pytest.mark.parametrize(
    ("listen", "port", "forward"),
    [
        (["enP7s7"], 8443, "8443 spark1.local:8443"),  # the address of an interface is not known here
        (["enP7s7", "192.168.1.10"], 8443, "8443 192.168.1.10:8443"),
        (["192.168.1.10", "127.0.0.1"], 8443, "8443 127.0.0.1:8443"),
        (["0.0.0.0"], 8443, "8443 127.0.0.1:8443"),
        (["fd00::1"], 8443, "8443 [fd00::1]:8443"),
        (["127.0.0.1"], 443, "8443 127.0.0.1:443"),  # what only root may listen at is moved
        (["127.0.0.1"], 8000, "8001 127.0.0.1:8000"),  # taken here
    ],
)
def test_the_gateway_is_reached_where_it_listens(listen, port, forward):
    found = made(ONE, engine_recipe="qwen3-8b", gateway_listen=listen, gateway_port=port)[1]
    assert found == ["8000 127.0.0.1:8000", forward]


def test_a_service_of_another_machine_is_reached_from_the_head():
    lines, forwards = made(engine_services=SEVERAL)
    assert lines == ["127.0.0.1:8000: API of chat", "127.0.0.1:8001: API of other"]
    assert forwards == ["8000 127.0.0.1:8000", "8001 spark2-fabric:8001"]
    assert made(engine_services=SEVERAL, fabric_topology="ring")[1][1] == "8001 spark2.local:8001"


def test_what_the_user_names_stands_instead():
    assert made(named={9000: "127.0.0.1:8000"}, observability_enabled=True) == (
        ["127.0.0.1:9000: 127.0.0.1:8000"],
        ["9000 127.0.0.1:8000"],
    )


def test_where_the_plan_is_refused_there_is_no_api():
    lines, forwards = made(engine_recipe="no-such-recipe", observability_enabled=True)
    assert lines[-1] == tunnels.REFUSED and forwards == ["3000 127.0.0.1:3000", "9090 127.0.0.1:9090"]
    # On other machines no model is refused for memory that is not known.
    huge = "llama-3.1-405b-awq"
    assert made(engine_recipe=huge)[0] == [tunnels.REFUSED]
    assert made(engine_recipe=huge, preflight_require_gb10=False)[0] == [API]


def test_every_variable_of_the_table_is_one_that_a_user_may_set():
    known = planners.variables.load()
    assert [part.port for part in tunnels.PARTS if part.port not in known] == []
