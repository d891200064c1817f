# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The action plugins preflight and node_tool, with a stand-in for Ansible's host variables."""

from __future__ import annotations

import base64
import hashlib

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.sparkmatrix.cluster.plugins.action import (
    node_tool,
    preflight,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables as preflight_variables
from module_runner import action


class Lazy(dict):
    """Evaluates on access; what cannot be evaluated raises."""

    def __getitem__(self, name):
        value = super().__getitem__(name)
        if isinstance(value, Exception):
            raise value
        return value


def act(module, args, variables=None):
    return action(module, args).run(task_vars=variables or {})


def judge(hosts, group=None, **args):
    variables = {
        "hostvars": {h: Lazy(v) for h, v in hosts.items()},
        "groups": {"sparks": group or list(hosts)},
    }
    return act(preflight, {"phase": "inventory", "play_hosts": list(hosts), **args}, variables)


def test_a_good_inventory():
    result = judge({"spark1": {"spark_rank": 0}}, run_tags=["os_stabilization"])
    assert not result.get("failed")
    assert result["layers"] == ["os_stabilization"]
    assert result["findings"] == []
    assert result["request"]["commands"] == ["sysctl", "systemctl"]


def test_a_bad_inventory_is_refused_with_every_finding():
    result = judge({
        "spark_1": {"spark_rank": 0, "preflight_severty": 1, "my_own": ValueError("never read")},
        "spark2": {"spark_rank": 0, "preflight_contact_timeout_s": ValueError("'x' is  undefined")},
    })  # fmt: skip
    assert result["failed"]
    lines = result["msg"].splitlines()
    assert lines[0] == "Preflight refused this run, and nothing has been changed:"
    assert lines[1].startswith("  1. spark_1: the inventory name")
    assert lines[2].startswith("  2. spark_1, spark2: spark_rank 0 is given 2 times")
    assert "Did you mean preflight_severity?" in lines[3]
    assert "preflight_contact_timeout_s cannot be evaluated: 'x' is undefined" in lines[4]
    assert lines[5].startswith(
        "Some of this must be mended; to run in spite of the others, add this line to group_vars/"
    )
    assert lines[6] == "  preflight_severity: {names: warn, unknown_variables: warn}"
    assert "findings" not in result


def test_all_that_is_refused_may_be_overruled():
    lines = judge({"spark_1": {"spark_rank": 0}}, layers=["fabric"])["msg"].splitlines()
    assert lines[-2] == "To run in spite of this, add this line to group_vars/sparks.yml of your inventory:"
    assert lines[-1] == "  preflight_severity: {names: warn}"


def test_a_recipe_that_is_not_there_cannot_be_overruled():
    text = judge({"spark1": {"spark_rank": 0, "engine_recipe": "qwen"}}, layers=["plan", "engine"])["msg"]
    assert "there is no recipe 'qwen'" in text and "in spite of" not in text


def test_doctor_gets_every_finding_with_its_check_and_no_refusal():
    host = {"spark_rank": 0, "__preflight_answer": {"unreachable": True, "msg": "No route to host"}}
    hosts = {"spark1": host, "spark2": {"spark_rank": 1, "spark_node_info": {"msg": "sudo: a password is required"}}}
    result = judge(hosts, phase="hosts", layers=["verify"], report=True)
    assert not result.get("failed") and "warnings" not in result
    found = [(finding["rule"], finding["host"], finding["severity"]) for finding in result["findings"]]
    assert found == [("not_answering", "spark1", "error"), ("not_answering", "spark2", "error")]
    assert result["checks"] > 20
    assert judge(hosts, phase="hosts", layers=["verify"])["failed"]


def test_a_refusal_tells_the_notes_too():
    hosts = {"spark_1": {"spark_rank": 5}}
    result = judge(hosts, severity={"names": "info"}, layers=["fabric"])
    assert result["msg"].splitlines()[-2] == "Noted besides:"
    assert result["msg"].splitlines()[-1].startswith("  - spark_1: the inventory name is no valid host name")


def test_the_request_alone():
    assert judge({"spark_1": {}}, phase="request", run_tags=["ray"]) | {"changed": False} == {
        "changed": False,
        "layers": ["plan", "ray"],
    }
    refused = judge({"spark_1": {}}, phase="request", run_tags=["rai"])
    assert refused["failed"]
    assert refused["msg"].startswith("This run was refused before any machine was contacted:")
    job = {"awx_job_id": 7, "awx_job_template_name": "x", "awx_workflow_job_name": "x"}
    of_awx = {"hostvars": {"spark_1": {}}, "groups": {"sparks": ["spark_1"]}, **job}
    sliced = act(preflight, {"phase": "request"}, of_awx)
    assert sliced["failed"] and "job template x: its jobs are sliced" in sliced["msg"]
    told = act(preflight, {"phase": "request"}, {**of_awx, "awx_workflow_job_name": "y"})
    assert not told.get("failed") and "spark_1: AWX checks no host key" in told["warnings"][0]
    variables = {"hostvars": {}, "groups": {}}
    empty = act(preflight, {"phase": "request", "inventory_sources": ["x.yml"]}, variables)
    assert "inventory x.yml: there is no such file or folder" in empty["msg"]


def test_whom_to_reach_and_who_was_reached():
    def hosts(rank, address, **values):
        interfaces = [{"name": "enP7s7", "addresses": [{"address": address, "prefix": 24}]}]
        read = {"node": {"network": {"interfaces": interfaces}, "memory": {}}}
        return {"spark_rank": rank, "spark_node_info": read, **values}

    two = {"spark1": hosts(0, "10.0.0.1"), "spark2": hosts(1, "10.0.0.2", fabric_management_address="10.9.0.2")}
    assert judge(two, phase="peers", layers=["access"])["peers"] == [
        {"name": "spark1", "address": "10.0.0.1"},
        {"name": "spark2", "address": "10.9.0.2"},
    ]
    lost = {"name": "spark2", "address": "10.9.0.2", "reason": "timed out"}
    two["spark1"]["spark_reached"] = {"unreached": [lost]}
    refused = judge(two, phase="hosts", layers=["access"])["msg"]
    assert "spark2: its management address 10.9.0.2 is not reached from spark1 (timed out)" in refused


def test_a_broken_checkout(monkeypatch):
    def refuse():
        raise SparkError("the argument specification cannot be read", "x")

    monkeypatch.setattr(preflight_variables, "load", refuse)
    with pytest.raises(AnsibleError, match="argument specification"):
        judge({"spark1": {"spark_rank": 0}})


def install(monkeypatch, state, earlier=None):
    called = {}

    def execute(self, module_name, module_args, task_vars):
        called.update(name=module_name, args=module_args)
        return {"changed": True, "changed_paths": [node_tool.NODE_PROGRAM], "invocation": {"module_args": module_args}}

    monkeypatch.setattr(node_tool.ActionModule, "_execute_module", execute)
    variables = {node_tool.REGISTERED: earlier} if earlier else {}
    return act(node_tool, {"state": state} if state else {}, variables), called


def test_node_tool(monkeypatch):
    result, called = install(monkeypatch, None)
    assert called["name"] == "sparkmatrix.cluster.managed_files"
    file, link, *_units = called["args"]["files"]
    assert (link["path"], link["link_to"]) == ("/usr/local/bin/sparkmatrix", node_tool.NODE_PROGRAM)
    assert link["refuse_foreign"]
    assert (called["args"]["name"], file["path"], file["mode"]) == ("node_tool", node_tool.NODE_PROGRAM, "0755")
    assert result["sha256"] == hashlib.sha256(base64.b64decode(file["content_b64"])).hexdigest()
    assert result["changed"]
    assert "invocation" not in result


def test_node_tool_absent(monkeypatch):
    _, called = install(monkeypatch, "absent")
    assert called["args"] == {"name": "node_tool", "state": "absent", "only_when_last": True}


def test_one_run_installs_the_node_tool_once(monkeypatch):
    first, _ = install(monkeypatch, "present")
    again, called = install(monkeypatch, "present", first)
    assert called == {}
    assert not again["changed"]
    assert again["changed_paths"] == [node_tool.NODE_PROGRAM]
    for earlier in ({"skipped": True}, install(monkeypatch, "absent")[0]):
        assert install(monkeypatch, "present", earlier)[1]
    assert install(monkeypatch, "absent", first)[1]


def test_node_tool_of_a_broken_checkout(monkeypatch):
    def refuse():
        raise SparkError("cannot be packed", "x")

    monkeypatch.setattr(_node_program, "build", refuse)
    with pytest.raises(AnsibleError, match="cannot be packed"):
        install(monkeypatch, "present")


def test_a_gateway_that_a_playbook_only_follows():
    node = {"uid": 0, "systemd": True, "managed": [], "listening": [{"port": 443, "address": "::"}], "memory": {}}
    head = {"spark_rank": 0, "gateway_listen": ["10.0.0.1"], "gateway_port": 443, "spark_node_info": {"node": node}}
    asked = {"phase": "hosts", "layers": ["gateway"], "require_gb10": False, "severity": {"commands": "skip"}}
    assert "port 443 (gateway_port) is taken" in judge({"spark1": head}, **asked)["msg"]
    accepted = judge({"spark1": head}, followed_layers=["gateway"], **asked)
    assert not accepted.get("failed") and accepted["alike"] == {"qos": False, "secrets": {}}
    node["managed"] = ["gateway"]
    assert "port 443" in judge({"spark1": head}, followed_layers=["gateway"], **asked)["msg"]


ROLES = preflight_variables.ROLES


@pytest.mark.parametrize(
    ("rank", "settings", "here"),
    [
        (0, {"gateway_listen": ["lo"]}, True),
        (0, {"gateway_listen": []}, False),
        (1, {"gateway_listen": ["lo"]}, False),
    ],
)
def test_which_machine_has_the_gateway(rank, settings, here):
    loader = DataLoader()
    variables = loader.load_from_file(str(ROLES / "gateway/vars/main.yml"), trusted_as_template=True)
    assert Templar(loader, {**variables, **settings, "spark_rank": rank}).template(variables["__gateway_here"]) is here


@pytest.mark.parametrize(
    ("name", "services", "says"),
    [
        ("", [["chat"], []], ""),
        ("chat", [["chat"], ["embedding"]], ""),
        ("chatt", [["embedding", "chat"], ["chat"]], "no node has a service called chatt; there are chat, embedding."),
        ("chat", [[], []], "there is one alone, without a name: leave engine_service out."),
    ],
)
@pytest.mark.parametrize("entry", ["stop", "start", "upgrade", "rollback"])
def test_a_service_that_is_named(entry, name, services, says):
    loader = DataLoader()
    named, tasks = (
        loader.load_from_file(str(ROLES / f"engine/tasks/{one}.yml"), trusted_as_template=True)
        for one in ("check_service_name", entry)
    )
    # Which result has the names follows from who includes the check.
    (variables,) = (
        task["vars"] for task in tasks if task.get("ansible.builtin.import_tasks") == "check_service_name.yml"
    )
    (check,) = named
    hosts = {f"spark{n}": {variables["__engine_told"]: {"services": told}} for n, told in enumerate(services)}
    told = {**check["vars"], **variables, "engine_service": name, "hostvars": hosts, "ansible_play_hosts": list(hosts)}
    templar = Templar(loader, told)
    assert templar.evaluate_conditional(check["ansible.builtin.assert"]["that"]) is (not says)
    assert says in templar.template(check["ansible.builtin.assert"]["fail_msg"])
