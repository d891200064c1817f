# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The summary from what the layers of a run have registered."""

from __future__ import annotations

import json
from unittest.mock import MagicMock

import engine_plans
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.action import summary
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import services
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings

HOSTS = ("spark1", "spark2")
PLANS = services.plan(
    [
        services.Service(
            services.Entry(services.ALONE, (), 1.0, {}),
            engine_plans.required(*engine_recipe.find("qwen3-8b", ())),
            UserSettings(requirements=engine_plans.REQUIREMENTS, launch="ray", only_print=True),
        )
    ],
    engine_plan.assumed_facts(HOSTS),
    {},
).plans
SKIPPED = {"changed": False, "skipped": True, "skip_reason": "Conditional result was False"}
NETWORK = {
    "rdma_interfaces": [],
    "interfaces": [{"name": "enP7s7", "addresses": [{"address": "10.0.0.11"}, {"address": "fe80::1"}]}],
}
ANSWER = {"model": "qwen3-8b", "tokens_per_s": 12.34, "text": "a story"}


def site():
    """By host."""
    common = {
        "spark_access_compared": {"changes": []},
        "spark_os_settings": {"actions": ["vm.swappiness"], "reboot": []},
    }
    head = {
        "spark_ray_cluster": {"alive": list(HOSTS), "complete": True},
        "spark_first_token": {"results": [{"ready": True, "answer": ANSWER, "waited_s": 41.2}]},
        "spark_answers": {"results": [{"ready": True, "answer": ANSWER}]},
        "spark_node_info": {"node": {"network": NETWORK}},
    }
    return {
        host: {
            "ansible_host": f"10.0.0.{11 + rank}",
            "ansible_user": "nvidia",
            "spark_rank": rank,
            **common,
            "spark_plan": PLANS[host].as_dict(),
            "spark_ray_service": {"changed": rank == 1},
            **(head if rank == 0 else {"spark_ray_cluster": SKIPPED, "spark_answers": {**SKIPPED, "results": []}}),
        }
        for rank, host in enumerate(HOSTS)
    }


def act(hostvars, playbook="site", **variables):
    task = MagicMock(args={"playbook": playbook}, async_val=0)
    action = summary.ActionModule(task, MagicMock(), MagicMock(check_mode=False), MagicMock(), MagicMock(), MagicMock())
    known = {"ansible_play_hosts_all": list(hostvars), "ansible_play_hosts": list(hostvars), "hostvars": hostvars}
    result = action.run(task_vars={**known, "ansible_run_tags": ["all"], **variables})
    json.dumps(result)
    return result


def lines(*arguments, **variables):
    heading, *rest = act(*arguments, **variables)["lines"]
    return {"heading": heading, **{line[:10].strip(): line[10:] for line in rest}}


def test_a_run_says_what_it_knows():
    found = lines(site())
    assert found["heading"] == "site.yml: 2 nodes serve qwen3-8b"
    assert found["layers"] == (
        "access ok, os_stabilization ok, ray ok (2 of 2 nodes), engine ok (first token after 41 s),"
        " verify ok (12.3 tokens/s)"
    )
    assert found["changed"] == "os_stabilization on all 2 nodes; ray on spark2"
    assert found["URL"].startswith("http://127.0.0.1:8000/v1  (on spark1 only")
    assert "12.3 tokens/s for one stream; the plan expects" in found["speed"]


@pytest.mark.parametrize(
    ("settings", "url", "trust"),
    [
        ({"gateway_listen": ["enP7s7"]}, "https://10.0.0.11:8443/v1", True),
        ({"gateway_listen": ["0.0.0.0"], "gateway_tls": "off", "gateway_port": 80}, "http://10.0.0.11:80/v1", False),
    ],
)
def test_where_the_gateway_is_is_known_without_its_layer(settings, url, trust):
    known = site()
    known["spark1"].update(settings)
    found = lines(known, "verify")
    assert found["URL"] == url
    assert ("--cacert" in found["try it"]) == trust


def test_a_start_plans_nothing_and_says_where_it_answers():
    known = {
        "spark1": {
            "spark_rank": 0,
            "spark_engine_units": {"changed": True},
            "spark_first_token": {
                "results": [
                    {"ready": True, "answer": ANSWER, "endpoint": "http://127.0.0.1:8000/v1", "task": "generate"}
                ]
            },
        }
    }
    found = lines(known, "start")
    assert found["heading"] == "start.yml: 1 node serves qwen3-8b"
    assert found["changed"] == "engine on spark1"
    assert found["URL"].startswith("http://127.0.0.1:8000/v1")
    known["spark1"]["spark_first_token"]["results"][0]["endpoint"] = "http://127.0.0.1:8000/v1 $(reboot)"
    assert act(known, "start")["failed"]


def test_an_upgrade_says_where_the_time_of_its_start_went():
    known = site()
    del known["spark1"]["spark_answers"]  # no layer verify
    (first,) = known["spark1"]["spark_first_token"]["results"]
    first["start_parts"] = {"stop": 3.0, "memory": 0.2, "ranks": 1.0, "weights": 20.4, "other": 15.0, "more": 9.0}
    assert lines(known, "upgrade")["start"] == (
        "40 s: stop 3 s, memory 0 s, ranks 1 s, processes not told, weights 20 s, compile not told, warm-up not told,"
        " other 15 s"
    )
    first["start_load"] = "weights at 0.31 GB/s"
    assert lines(known, "upgrade")["start"].endswith("other 15 s; weights at 0.31 GB/s")
    assert "start" not in lines(known, "site")
    first["waited_s"] = 0.4  # it served already
    assert "start" not in lines(known, "upgrade")
    first["start_parts"] = {"stop": "$(reboot)"}
    assert act(known, "upgrade")["failed"]


def test_programs_get_the_summary_as_set_stats_gives_it():
    stats = act(site())["ansible_stats"]
    assert (stats["per_host"], stats["aggregate"]) == (False, False)
    found = stats["data"]["sparkmatrix"]
    assert (found["playbook"], found["nodes"], found["failed"], found["check"]) == ("site", 2, [], False)
    assert found["url"].startswith("http://") and found["changed"]["ray"] == ["spark2"]
    (service,) = found["services"]
    assert (service["model"], service["tokens_per_s"]) == ("qwen3-8b", 12.34)
    assert service["verdict"] == ("slow" if service["expected"][0] > 12.34 else "ok")
    json.dumps(found)


@pytest.mark.parametrize(
    ("wanted", "check", "fails"), [("fail", True, True), ("fail", False, False), ("", True, False)]
)
def test_a_check_for_drift_fails_where_something_differs(wanted, check, fails):
    found = act(site(), spark_drift=wanted, ansible_check_mode=check)
    assert bool(found.get("failed")) is fails
    if fails:
        assert found["msg"].startswith("The machines differ from the inventory: ") and "ray on spark2" in found["msg"]
    calm = {host: {**values, "spark_ray_service": {"changed": False}} for host, values in site().items()}
    for values in calm.values():
        values["spark_os_settings"] = {"actions": [], "reboot": []}
    assert not act(calm, spark_drift=wanted, ansible_check_mode=check).get("failed")


def test_what_a_machine_answers_is_not_trusted():
    known = site()
    known["spark2"]["spark_ray_cluster"] = {"alive": [{"not": "a name"}], "complete": True}
    found = act(known)
    assert found["failed"]
    assert "1. spark2" in found["msg"] and "alive[0]" in found["msg"]
    known["spark2"]["spark_ray_cluster"] = SKIPPED
    for own in known.values():
        del own["spark_ray_cluster"], own["spark_ray_service"]
    known["spark1"]["spark_answers"]["ray"] = {"alive": list(HOSTS), "complete": True}
    assert "ray ok (2 of 2 nodes)" in lines(known)["layers"]  # the layer verify has counted
    # It stands in lines that people copy into a shell.
    known["spark1"]["spark_gateway"] = {"changed": True, "endpoints": ["https://a:8443/v1;reboot"]}
    assert "endpoints[0] is" in act(known)["msg"]
    known["spark1"]["spark_gateway"] = {"changed": True, "endpoints": ["https://[2001:db8::5]:8443/v1"]}
    asked = lines(known)["try it"]
    assert asked.startswith("curl --cacert sparkmatrix-ca.crt 'https://[2001:db8::5]:8443/v1/chat/completions' ")
    known["spark2"]["spark_os_settings"] = {"actions": [], "reboot": ["\x1b[2J"]}
    assert "\x1b" not in "".join(act(known).get("lines", ()))
