# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What site.yml does not ask a node again, since preflight has found it as it should be; and when it does."""

from __future__ import annotations

import copy
import importlib
from unittest import mock

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.apply import marks
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File, fingerprint
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _settled_calls
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import settled
from module_runner import action

ACTIONS = "ansible_collections.sparkmatrix.cluster.plugins.action"
FILES = [{"path": "/etc/x", "content": "text"}, {"path": "/etc/y", "link_to": "x"}]
RULES = 'comment "@STATE@"'
UNIT = "sparkmatrix-ray.service"
PEER = {"public_key": "ssh-ed25519 AAAA", "host_keys": [], "connection": [], "account": True}
NODE = {
    "time": 5.0,
    "network": {"default_gateway": None},
    "rdma": {"devices": [], "cages": []},
    "gids": [],
    "settled": {
        "files": {
            "ray": fingerprint([File.from_params(item) for item in FILES]),
            "port_filter_services": fingerprint(port_filter.wanted("services", RULES, [995])),
        },
        "units": {UNIT: {"enabled": True, "config_hash": "abc", "serving": False}},
        "filters": {"services": True, "fabric": False},
        "accounts": {"sparkmatrix": 995},
        "plan": {"identity": "one", "image_ids": {"x": "sha256:1"}},
        "peermem": True,
        "secrets": {"ray_token": {"mark": "abc", "owner": "sparkmatrix:sparkmatrix"}},
        "bandwidth": {"tool": None, "verbs": True},
        "peer": PEER,
    },
}
FILTER = {"name": "services", "rules": RULES, "users": ["sparkmatrix"]}
LAYER = {"layer": "ray", "rules": ["allow from 192.0.2.2", "allow from 192.0.2.3"]}
PLAN = {"identity": "one", "image_ids": {}}
TOKEN = {"name": "ray_token", "path": "/etc/sparkmatrix/ray.token", "owner": "sparkmatrix", "group": "sparkmatrix"}
# The module, what it is asked for, and what it returns without asking the node.
KNOWN = {
    "managed_files": ({"name": "ray", "files": FILES}, {"changed_paths": []}),
    "managed_service": ({"name": UNIT, "config_hash": "abc", "enabled": "yes"}, {"due": False, "action": "none"}),
    "port_filter": (FILTER, {"changes": []}),
    "firewall": (LAYER, {"changes": [], "previous": LAYER["rules"]}),
    "kept_plan": ({"plan": PLAN, "images": {"x": "sha256:1"}}, {}),
    "peermem": ({}, {}),
    "rdma_look": ({}, {"tool": None, "verbs": True, "ports": [], "gids": []}),
    "secret": (TOKEN, {"secret": "", "replaced": False, "fingerprint": "abc"}),
    "peer": ({}, {**PEER, "network": NODE["network"], "fact": {"state": "applied"}}),
}
BY_NAME = ("managed_files", "managed_service", "port_filter")
# Anything else is the node's to say.
ASKED = [
    *((name, args, {}) for name, (args, _said) in KNOWN.items()),
    # A change of the fabric marks the fact on the node as not applied yet.
    *((name, KNOWN[name][0], {"spark_fabric_compared": {"changes": ["mtu"]}}) for name in BY_NAME),
    *((name, KNOWN[name][0], {"spark_access_compared": {"changes": ["port"]}}) for name in BY_NAME),
    ("managed_files", {"name": "ray", "state": "absent"}, None),
    ("managed_files", {"name": "other", "files": FILES}, None),
    ("managed_files", {"name": "ray", "files": FILES[:1]}, None),
    ("managed_files", {"name": "ray", "files": [{**FILES[0], "mode": "0600"}, FILES[1]]}, None),
    ("managed_files", {"name": "ray", "files": [{"path": "/etc/x"}]}, None),
    ("managed_files", {"name": "ray", "files": "no list"}, None),
    ("managed_service", {"name": UNIT, "config_hash": "abd"}, None),
    ("managed_service", {"name": UNIT}, None),
    ("managed_service", {"name": UNIT, "config_hash": "abc", "enabled": False}, None),
    ("managed_service", {"name": UNIT, "config_hash": "abc", "state": "stopped"}, None),
    ("managed_service", {"name": "other.service", "config_hash": "abc"}, None),
    ("port_filter", {**FILTER, "rules": RULES + " "}, None),
    ("port_filter", {**FILTER, "rules": ""}, None),
    ("port_filter", {**FILTER, "users": ["somebody"]}, None),
    ("port_filter", {**FILTER, "name": "fabric"}, None),
    ("port_filter", {"state": "in_force"}, None),
    ("firewall", {**LAYER, "layer": "engine"}, None),
    ("firewall", {**LAYER, "rules": LAYER["rules"][:1]}, None),
    ("firewall", {**LAYER, "rules": "allow from 192.0.2.2 allow from 192.0.2.3"}, None),
    ("firewall", {"layer": "ray"}, None),
    ("firewall", LAYER, {"spark_access_compared": {"changes": ["port"], "settled": {}}}),
    ("firewall", LAYER, {"spark_access_compared": {}}),
    ("firewall", LAYER, {"spark_node_info": {}}),
    ("kept_plan", {"plan": PLAN}, None),
    ("kept_plan", {"plan": {**PLAN, "identity": "two"}, "images": {"x": "sha256:1"}}, None),
    ("kept_plan", {"state": "read"}, None),
    ("rdma_look", {}, {"spark_fabric_compared": {"changes": ["mtu"]}}),
    ("secret", {**TOKEN, "name": "engine_key"}, None),
    ("secret", {**TOKEN, "owner": "root"}, None),
    ("secret", {**TOKEN, "state": "absent"}, None),
    ("peer", {"rotate": True}, None),
    ("peer", {"user": "somebody"}, None),
    ("peer", {"known_hosts": True}, None),
    ("peer", {}, {"spark_fabric_compared": {"changes": ["address"]}}),
    ("peer", {}, {"spark_access_compared": {"changes": ["port"]}}),
]


def act(name, args, variables, answer=None):
    """What the action returns, and what it asked the node."""
    if name in _settled_calls.ANSWERS:
        args, name = {"call": name, "request": args}, "node"
    module = importlib.import_module(f"{ACTIONS}.{name}")
    plugin = action(module, args)
    with mock.patch.object(plugin, "_execute_module", return_value=answer or {"changed": False}) as asked:
        return plugin.run(task_vars=variables), asked


def after_preflight(**more):
    """Of one of two nodes of which preflight has found the same."""
    node = copy.deepcopy(NODE)
    access = {"changes": [], "settled": marks({LAYER["layer"]: LAYER["rules"], "none": []})}
    found = {"spark_node_info": {"node": node, "fact": {"state": "applied"}}, "spark_access_compared": access}
    return {**found, **judged(node, NODE), **more}


def judged(*nodes):
    return {"spark_preflight": {"alike": settled.alike((node or {}).get("settled") for node in nodes)}}


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_settled_is_not_asked_again(name):
    args, said = KNOWN[name]
    result, asked = act(name, args, after_preflight())
    assert not asked.called
    assert result == {"changed": False, **said}


@pytest.mark.parametrize(("name", "args", "variables"), ASKED)
def test_everything_else_is_asked(name, args, variables):
    """Also where preflight has not looked (an empty mapping)."""
    told = after_preflight() if variables is None else {**after_preflight(), **variables} if variables else {}
    result, asked = act(name, args, told, {"changed": False, "said": "by the node"})
    assert asked.call_count == 1
    assert result["said"] == "by the node"


@pytest.mark.parametrize("name", BY_NAME)
def test_what_this_run_has_changed_is_asked_again(name):
    """Ray's role stops a keeper that preflight has seen running; a way back places the files of before."""
    args = KNOWN[name][0]
    first, _asked = act(name, {**args, "state": "absent"}, after_preflight(), {"changed": True})
    facts = {"ansible_facts": first["ansible_facts"]}
    _result, asked = act(name, args, after_preflight(**facts))
    assert asked.called
    # Another thing of the same kind, and the first one still.
    another = {**args, "name": "another", "state": "absent"}
    other, _asked = act(name, another, after_preflight(**facts), {"changed": True})
    # Both in one loop: no entry knows of the others, and Ansible puts their facts over each other, the last one on top.
    merged = {**first["ansible_facts"], **act(name, another, after_preflight(), {"changed": True})[0]["ansible_facts"]}
    for known in ({**facts["ansible_facts"], **other["ansible_facts"]}, merged):
        _result, asked = act(name, args, after_preflight(ansible_facts=known))
        assert asked.called
    # The next preflight has looked after that.
    later = after_preflight(**facts)
    later["spark_node_info"]["node"]["time"] = 6.0
    _result, asked = act(name, args, later)
    assert not asked.called


def test_rules_that_this_run_has_changed_are_changed_back():
    """A fabric that is not kept: the rules of before are those that the role access has found."""
    more = {**LAYER, "rules": [*LAYER["rules"], "allow from 192.0.2.4"]}
    first, _asked = act("firewall", more, after_preflight(), {"changed": True, "previous": LAYER["rules"]})
    _result, asked = act("firewall", LAYER, after_preflight(ansible_facts=first["ansible_facts"]))
    assert asked.called
    # Of another layer, too: the firewall has a rule once, and the first layer may have been its owner. And still when
    # preflight has read the machine again, which does not read rules.
    other = {"layer": "none", "rules": []}
    later = after_preflight(ansible_facts=first["ansible_facts"])
    later["spark_node_info"]["node"]["time"] = 6.0
    for told in (after_preflight(ansible_facts=first["ansible_facts"]), later):
        _result, asked = act("firewall", other, told)
        assert asked.called
    _result, asked = act("firewall", other, after_preflight())
    assert not asked.called


@pytest.mark.parametrize("another", [{"mark": "abd", "owner": "sparkmatrix:sparkmatrix"}, {"mark": "abc"}, None, 7])
def test_a_secret_that_one_node_has_not_is_asked_for_on_all(another):
    """The head too: it has to tell the secret that the other one needs."""
    other = copy.deepcopy(NODE)
    other["settled"]["secrets"]["ray_token"] = another
    for nodes in ((NODE, other), (other, NODE), (NODE, None), (NODE, {})):
        _result, asked = act("secret", TOKEN, after_preflight(**judged(*nodes)))
        assert asked.called


def test_the_api_key_is_asked_for_where_another_node_needs_it():
    """A head of another service gets the key itself from the head of the cluster."""
    key = {"name": "engine_key", "path": "/etc/sparkmatrix/engine-key.env", "variable": "VLLM_API_KEY"}
    told = after_preflight()
    told["spark_node_info"]["node"]["settled"]["secrets"]["engine_key"] = {"mark": "abd", "owner": "root:root"}
    one, two = ({"heads": [{}], "services": [{}] * count} for count in (1, 2))
    result, asked = act("secret", key, {**told, "spark_plan": one})
    assert not asked.called and result["fingerprint"] == "abd"
    for plan in (two, {"heads": [], "services": []}, {}):
        assert act("secret", key, {**told, "spark_plan": plan})[1].called


def test_a_qos_profile_is_looked_for_unless_no_node_has_any_of_it():
    none = {"qos": True}
    assert settled.alike([none, none])["qos"] is True
    for other in (None, {}, {"qos": False}, {"qos": "yes"}):
        assert settled.alike([none, other])["qos"] is False


def test_only_preflight_reads_all_nodes():
    """Each node that asked all others would make this grow with the square of the nodes."""
    result, asked = act("secret", TOKEN, {**after_preflight(), "hostvars": None})
    assert not asked.called and result["fingerprint"] == "abc"


def test_tables_that_preflight_has_found_in_the_kernel_are_not_looked_for_again():
    """A node without a head has nothing else to be asked in the layer verify."""
    told = after_preflight()
    verify = {"plan": {"heads": []}, "filters": True}
    node = told["spark_node_info"]["node"]["settled"]
    node["filters"]["fabric"], node["files"]["port_filter_fabric"] = True, "x"
    for change, asks in (({}, False), ({"spark_fabric_compared": {"changes": ["mtu"]}}, True)):
        _result, asked = act("port_filter", {"state": "in_force"}, {**told, **change})
        assert asked.called == asks
        assert act("verify", verify, {**told, **change})[1].called == asks
    for more in ({"plan": {"heads": [{}]}}, {"ray": True}, {"gateway_port": 8081}):
        assert act("verify", {**verify, **more}, told)[1].called
    node["filters"]["gateway"] = False  # a table that only some nodes keep
    assert act("port_filter", {"state": "in_force"}, told)[1].called
    assert act("verify", verify, told)[1].called and not act("verify", {**verify, "filters": False}, told)[1].called


HEARD = {"heard": [], "interfaces": {}, "notes": [], "complete": True, "seconds": 0.5}
ALL = {"nodes": ["spark1", "spark2"], "cluster": "spark1 spark2"}


@pytest.mark.parametrize(
    ("heard", "listened", "asks"),
    [
        (HEARD, ALL, False),
        ({**HEARD, "complete": False}, ALL, True),
        ({**HEARD, "notes": ["enp1s0f0np0: switched off"]}, ALL, True),  # the layer fabric switches it on
        (HEARD, {**ALL, "nodes": ["spark1"]}, True),
        (HEARD, {**ALL, "cluster": "another"}, True),
        (None, ALL, True),
        ("x", ALL, True),
    ],
)
def test_what_preflight_has_heard_is_not_listened_for_again(heard, listened, asks):
    told = {**after_preflight(), "spark_reached": {"heard": heard}}
    told["spark_preflight"]["listened"] = listened
    result, asked = act("neighbors", {"node": "spark1", **ALL, "timeout_s": 10}, told)
    assert asked.called is asks
    assert asks or result["complete"]


NONSENSE = {
    "secrets": ["ray_token"],
    "files": 7,
    "units": "x",
    "plan": [],
    "accounts": None,
    "peer": 1,
    "bandwidth": 0,
    "filters": ["services"],
}


@pytest.mark.parametrize("lie", [None, "x", [], 7, NONSENSE])
def test_a_node_that_answers_nonsense_is_asked(lie):
    for name, (args, _said) in KNOWN.items():
        told = after_preflight()
        told["spark_node_info"]["node"]["settled"] = told["spark_access_compared"]["settled"] = lie
        told.update(judged(told["spark_node_info"]["node"], NODE))
        _result, asked = act(name, args, told)
        assert asked.called, name
