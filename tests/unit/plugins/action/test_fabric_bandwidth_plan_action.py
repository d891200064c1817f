# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from typing import Any
from unittest.mock import MagicMock

from ansible_collections.sparkmatrix.cluster.plugins.action import fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.action.fabric_bandwidth_plan import ActionModule
from fabric_inputs import spark_cages

READY = {"tool": "/usr/bin/ib_write_bw", "verbs": True, "busy": [], "software": [], "record": None}


def run(action_class: Any, **args: Any) -> dict[str, Any]:
    task = MagicMock(args=args, async_val=0)
    action = action_class(task, MagicMock(), MagicMock(check_mode=False), MagicMock(), MagicMock(), MagicMock())
    result: dict[str, Any] = action.run(task_vars={})
    json.dumps(result)  # what goes back to Ansible
    return result


def node(rank: int) -> dict[str, Any]:
    address = f"10.0.0.{rank + 1}"
    interfaces = [{"name": "enP7s7", "addresses": [{"address": address, "prefix": 24}]}]
    network = {"connection_address": address, "connection_interface": "enP7s7", "interfaces": interfaces, "routes": []}
    rdma = {"cages": spark_cages(), "message": None}
    return {"rank": rank, "network": network, "rdma": rdma, "cages": "auto", "environment": {}}


def planned() -> dict[str, Any]:
    nodes = {f"spark{rank + 1}": node(rank) for rank in range(2)}
    return run(fabric_plan.ActionModule, nodes=nodes, sparks=list(nodes), topology="direct")


def test_schedule_and_judge() -> None:
    plan = planned()
    ready = dict.fromkeys(plan["facts"], READY)
    made = run(ActionModule, facts=plan["facts"], paths=plan["paths"], ready=ready)
    assert made["reason"] == ""
    assert [len(made["tests"][host]) for host in ("spark1", "spark2")] == [2, 2]
    outcomes = {"spark1": [], "spark2": [{"slot": 0, "gbps": 98.0}, {"slot": 1, "gbps": 60.0}]}
    options = {"facts": plan["facts"], "tests": made["tests"]}
    judged = run(ActionModule, phase="judge", outcomes=outcomes, **options)
    assert judged["refusal"] is None and len(judged["warnings"]) == 1 and len(judged["summary"]) == 2
    assert set(judged["records"]) == {"spark1", "spark2"}
    outcomes["spark2"][1]["gbps"] = 13.0
    judged = run(ActionModule, phase="judge", outcomes=outcomes, **options)
    assert "1. spark2" in judged["refusal"] and judged["records"] == {}


def test_a_node_that_was_not_looked_at_is_not_measured() -> None:
    plan = planned()
    assert "is missing" in run(ActionModule, facts=plan["facts"], paths=plan["paths"])["reason"]


def test_what_is_not_a_fact_is_named() -> None:
    result = run(ActionModule, facts={"spark1": {"schema": 0}})
    assert result["failed"] and "spark1" in result["msg"]
