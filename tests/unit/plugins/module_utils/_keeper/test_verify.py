# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.ray_cluster import Counted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import verify
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.wait import Answered
from engine_plans import cluster_plans

ASKED = {"max_tokens": 8, "user": "sparkmatrix"}
OFF = SparkError("the kernel lacks the table", "port filter", "Run the fabric layer")


@pytest.fixture
def asked(monkeypatch):
    """What is asked, in turn; ``wrong``: names of what fails."""
    seen, wrong = [], set()

    def answer(request, _check):
        name = "gateway" if request.unit == "sparkmatrix-gateway.service" else "service"
        seen.append((name, request))
        return Answered(failed=name in wrong, msg=f"no {name}" if name in wrong else "", warnings=["slow"])

    def wait(query, _check):
        seen.append(("ray", query))
        return Counted("ray" not in wrong, failed="ray" in wrong, msg="no ray" if "ray" in wrong else "")

    def ensure(_request, _check):
        seen.append(("filters", None))
        if "filters" in wrong:
            raise OFF

    monkeypatch.setattr(verify.wait, "answer", answer)
    monkeypatch.setattr(verify.ray_cluster, "wait", wait)
    monkeypatch.setattr(verify.port_filter, "ensure", ensure)
    return seen, wrong


def made(host="spark1", **more):
    plan = cluster_plans(2, launch="ray")[host].as_dict()
    request = calls.load_request("verify", {"plan": plan, **ASKED, **more})
    return verify.verify(request, False)


def test_the_head_is_asked_for_all_of_it_the_service_first(asked):
    seen, _wrong = asked
    found = made(ray=True, gateway_port=8081)
    assert [name for name, _request in seen] == ["service", "ray", "filters", "gateway"]
    service, through = seen[0][1], seen[3][1]
    assert service.description.endswith("engine.json")
    assert service.model == through.model == "qwen3-8b"
    assert (service.max_tokens, service.check_keeper, service.check_rdma) == (8, True, True)
    assert service.expected[0] > 0 and service.check_access
    assert (through.port, through.key_file) == (8081, "/etc/sparkmatrix/gateway/keys/probe.key")
    assert seen[1][1].nodes and not found.failed
    assert found.warnings == ["slow", "slow"]


def test_a_node_without_a_head_is_asked_for_its_port_filter(asked):
    seen, _wrong = asked
    assert made("spark2").filters == verify.Checked()
    assert [name for name, _request in seen] == ["filters"]
    assert made("spark2", filters=False) == verify.Verified()


@pytest.mark.parametrize(("wrong", "left"), [("service", 1), ("ray", 2), ("filters", 3), ("gateway", 4)])
def test_what_fails_ends_it_unless_everything_is_judged(asked, wrong, left):
    seen, failing = asked
    failing.add(wrong)
    found = made(ray=True, gateway_port=8081)
    assert found.failed and len(seen) == left
    assert found.msg == (str(OFF) if wrong == "filters" else f"no {wrong}")
    seen.clear()
    found = made(ray=True, gateway_port=8081, everything=True)
    assert found.failed and len(seen) == 4
    assert [bool(one) for one in (found.results, found.ray, found.filters, found.gateway)] == [True] * 4
