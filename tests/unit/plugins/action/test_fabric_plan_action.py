# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from typing import Any
from unittest.mock import MagicMock

from ansible_collections.sparkmatrix.cluster.plugins.action.fabric_plan import ActionModule
from fabric_inputs import spark_cages
from sysfs_tree import gid_of


def run(**args: Any) -> dict[str, Any]:
    task = MagicMock(args=args, async_val=0)
    action = ActionModule(task, MagicMock(), MagicMock(check_mode=False), MagicMock(), MagicMock(), MagicMock())
    result: dict[str, Any] = action.run(task_vars={})
    json.dumps(result)  # what goes back to Ansible
    return result


def node(rank: int, **changes: Any) -> dict[str, Any]:
    address = f"10.0.0.{rank + 1}"
    interfaces = [{"name": "enP7s7", "addresses": [{"address": address, "prefix": 24}]}]
    network = {"connection_address": address, "connection_interface": "enP7s7", "interfaces": interfaces, "routes": []}
    rdma = {"cages": spark_cages(**changes), "message": None}
    return {"rank": rank, "network": network, "rdma": rdma, "cages": "auto", "environment": {}}


NODES = {"spark1": node(0), "spark2": node(1)}


def measured(result: dict[str, Any]) -> dict[str, Any]:
    return {
        host: {
            "probes": [{"rail": p["rail"], "peer": p["peer"], "ok": True} for p in result["paths"][host]],
            "gids": [
                {
                    "device": rail["rdma_device"],
                    "port": 1,
                    "index": 3,
                    "gid": gid_of(rail["address"]),
                    "version": 2,
                    "netdev": rail["netdev"],
                }
                for rail in fact["rails"]
            ],
        }
        for host, fact in result["facts"].items()
    }


def test_plan_and_seal() -> None:
    planned = run(nodes=NODES, sparks=["spark1", "spark2"], topology="switch")
    assert not planned.get("failed") and planned["changed"] is False
    assert planned["facts"]["spark2"]["cluster_address"] == "192.168.100.11"
    assert json.loads(planned["texts"]["spark1"])["state"] == "planned"
    assert planned["hosts_lines"][::2] == [
        "192.168.100.10 spark1-fabric spark1-fabric0",
        "192.168.100.11 spark2-fabric spark2-fabric0",
    ]
    assert planned["own_hosts_lines"] == {}
    assert len(planned["summary"]) == 5
    sealed = run(phase="seal", facts=planned["facts"], measured=measured(planned))
    assert sealed["refusal"] is None
    assert json.loads(sealed["texts"]["spark1"])["state"] == "applied"


def test_a_refused_plan_fails_with_all_reasons() -> None:
    result = run(nodes={"a": node(0, cabled=()), "b": node(1, cabled=())}, sparks=["a", "b"])
    assert result["failed"]
    assert result["msg"].startswith("The fabric cannot be configured like this; nothing was changed:\n  1. a cage 0")
    assert "\n  2. b cage 0" in result["msg"]


def test_a_limited_run_is_refused() -> None:
    result = run(nodes=NODES, sparks=["spark1", "spark2", "spark3"])
    assert result["failed"] and "spark3: is in the group sparks and not part of this run" in result["msg"]


def test_warnings_are_shown() -> None:
    result = run(nodes={"a": node(0), "b": node(1)}, sparks=[], mtu=1500)
    assert not result.get("failed")
    assert "fabric_mtu is 1500" in result["warnings"][0]


def test_a_refused_seal_hands_back_facts_that_nobody_accepts() -> None:
    planned = run(nodes=NODES)
    sealed = run(phase="seal", facts=planned["facts"], measured={})
    assert not sealed.get("failed")
    assert sealed["refusal"].startswith("The fabric does not work like this:\n  1. ")
    assert {json.loads(text)["state"] for text in sealed["texts"].values()} == {"applying"}


def test_what_no_module_of_ours_returns_is_named() -> None:
    assert "fabric_plan was given something unexpected" in run(nodes={"a": {"rank": "x"}})["msg"]
    assert "there is no fabric fact" in run(phase="seal", facts={"a": {}})["msg"]
