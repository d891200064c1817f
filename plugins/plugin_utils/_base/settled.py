# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What preflight has found settled on a node: an action whose part of it is as wanted does not ask the node again.

Preflight of site.yml reads it (``module_utils/_preflight/settled.py``), since that playbook brings each thing into its
state once. What this run has changed since counts no more. A machine that lies here is left as it is, no more: it could
as well lie to the module that is not run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import apply, port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import node as peer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files, secret

FILES, UNITS, FIREWALL = "files", "units", "firewall"
RULES = "rules"  # of all layers: the firewall has a rule once
# Facts of the host: that this run has changed something, and by this name and more, what.
CHANGED = "sparkmatrix_changed"
NODE_INFO, ACCESS, FABRIC = "spark_node_info", "spark_access_compared", "spark_fabric_compared"
PREFLIGHT = "spark_preflight"


def node(task_vars: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What preflight of this run has read of the host; empty where it has not."""
    return _mapping(_mapping((task_vars or {}).get(NODE_INFO)).get("node"))


def part(task_vars: Mapping[str, Any] | None, name: str) -> Any:
    return _mapping(node(task_vars).get("settled")).get(name)


def table(task_vars: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    return _mapping(part(task_vars, name))


def alike(nodes: Iterable[Any]) -> dict[str, Any]:
    """What is the same on all of them, found out once: each node that asked all others would make this grow with their
    square. ``qos``: none has anything left of a QoS profile."""
    found = [_mapping(_mapping(known).get("settled")) for known in nodes]
    secrets = [_mapping(one.get("secrets")) for one in found] or [{}]
    return {
        "qos": all(one.get("qos") is True for one in found),
        "secrets": {
            name: mark for name, mark in secrets[0].items() if mark and all(one.get(name) == mark for one in secrets)
        },
    }


def shared_secret(task_vars: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    """Mark and owner, where preflight has found the same on every node of the play."""
    known = _mapping(_mapping((task_vars or {}).get(PREFLIGHT)).get("alike"))
    return _mapping(_mapping(known.get("secrets")).get(name))


def entry(task_vars: Mapping[str, Any] | None, kind: str, name: str) -> Any:
    """What was found of one set of files or unit, unless this run has changed it: by that name, or with the fabric or
    sshd and firewall, whose changes write facts and bring back manifests."""
    if _changed(task_vars, kind, name) or not unchanged(task_vars, ACCESS, FABRIC):
        return None
    return table(task_vars, kind).get(name)


def firewall_layer(task_vars: Mapping[str, Any] | None, layer: str) -> Any:
    """The mark of a layer's rules that the role access has found in this run (call ``access``), unless the run has
    changed rules since: two layers may want the same one, which the firewall has once. Preflight does not read rules,
    so a change still counts when it has looked again."""
    if not node(task_vars) or _fact(FIREWALL, RULES) in _mapping((task_vars or {}).get("ansible_facts")):
        return None
    return _mapping(_mapping((task_vars or {}).get(ACCESS)).get("settled")).get(layer)


def execute(
    ask: Callable[..., dict[str, Any]], task_vars: Mapping[str, Any] | None, kind: str, name: str, **call: Any
) -> dict[str, Any]:
    """Run the module (``ActionBase._execute_module``), and remember for this run whether it has changed something."""
    result = ask(task_vars=task_vars, **call)
    if result.get("changed") and node(task_vars):
        # One fact for each: of a loop, Ansible keeps those of the last entry that have the same name.
        when = {"at": node(task_vars).get("time")}
        result["ansible_facts"] = {CHANGED: when, _fact(kind, name): when}
    return result


def unchanged(task_vars: Mapping[str, Any] | None, *variables: str) -> bool:
    """Whether these comparisons of the run, as far as they were made, have found nothing to change."""
    return not any(_mapping((task_vars or {}).get(name)).get("changes") for name in variables)


def _fact(kind: str, name: str) -> str:
    return f"{CHANGED}_{kind}_{re.sub('[^a-zA-Z0-9]', '_', name)}"


def _changed(task_vars: Mapping[str, Any] | None, kind: str, name: str) -> bool:
    noted = _mapping(_mapping((task_vars or {}).get("ansible_facts")).get(_fact(kind, name)))
    # Facts may be kept from run to run, and preflight may have looked again since.
    return bool(noted) and noted.get("at") == node(task_vars).get("time")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


# --- calls of the module ``node`` ------------------------------------------------------------------------------------


def _peermem(request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    quiet = str(request.get("load", "auto")).lower() in ("auto", "false") and part(task_vars, "peermem") is True
    return {"loaded": False} if quiet else None


def _rdma_look(_request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    known, found = node(task_vars), table(task_vars, "bandwidth")
    if not found or "rdma" not in known or known.get("gids") is None or not unchanged(task_vars, FABRIC):
        return None
    return {**found, "ports": known["rdma"]["devices"], "gids": known["gids"]}


def _peer(request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """``found``: of the account that nobody has named otherwise (:func:`_preflight.settled.peer`)."""
    asked: peer.Request = calls.load_request("peer", request)
    found = table(task_vars, "peer")
    if not found.get("public_key") or asked != peer.Request() or not unchanged(task_vars, ACCESS, FABRIC):
        return None
    fact = _mapping((task_vars or {}).get(NODE_INFO)).get("fact")
    return {**found, "network": node(task_vars)["network"], "fact": fact}


def _secret(request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Where preflight has found the same on every node of the play. One that has another, or none, needs the secret
    itself, and so the head has to be asked."""
    asked: secret.Wanted = calls.load_request("secret", request)
    found = shared_secret(task_vars, asked.name)
    if asked.state != "present" or not found or found.get("owner") != f"{asked.owner}:{asked.group}":
        return None
    return {"secret": "", "replaced": False, "fingerprint": str(found["mark"])}


def _firewall(request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Where the layer has exactly these rules."""
    asked: apply.Layer = calls.load_request("firewall", request)
    same = apply.marks({asked.layer: asked.rules})[asked.layer] == firewall_layer(task_vars, asked.layer)
    return {"changes": [], "previous": list(asked.rules)} if same else None


def _port_filter(request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Where the table is active and as it should be; or all that a node keeps, and the run has loaded none since."""
    asked: port_filter.Request = calls.load_request("port_filter", request)
    active, accounts = table(task_vars, "filters"), table(task_vars, "accounts")

    def kept(name: str) -> Any:
        return active.get(name) is True and entry(task_vars, FILES, port_filter.file_set(name))

    if asked.state == "in_force":
        names = {port_filter.FABRIC, port_filter.SERVICES, *active} & {*port_filter.NAMES}
        return {"changes": []} if all(map(kept, names)) else None
    numbers = [accounts[user] for user in asked.users if user in accounts]
    if asked.state != "present" or not asked.rules or len(numbers) != len(asked.users):
        return None
    wanted = files.fingerprint(port_filter.wanted(asked.name, asked.rules, numbers))
    return {"changes": []} if kept(asked.name) == wanted else None


def _kept_plan(request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    plan, found = _mapping(request.get("plan")), table(task_vars, "plan")
    images = request.get("images") or plan.get("image_ids")
    same = plan.get("identity") and (plan["identity"], images) == (found.get("identity"), found.get("image_ids"))
    return {} if same and request.get("state", "present") == "present" else None


# Call -> its answer where it is known already.
ANSWERS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any] | None], dict[str, Any] | None]] = {
    "firewall": _firewall,
    "peer": _peer,
    "kept_plan": _kept_plan,
    "peermem": _peermem,
    "rdma_look": _rdma_look,
    "port_filter": _port_filter,
    "secret": _secret,
}
# Call -> what it changes (:func:`entry`): kind, and the name that its request gives it.
CHANGES: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "firewall": (FIREWALL, lambda _request: RULES),
    "port_filter": (FILES, lambda request: port_filter.file_set(str(request.get("name")))),
}


def answer(call: str, request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the call would answer, where preflight of this run has found that nothing is to be done; else None."""
    try:
        return ANSWERS[call](request, task_vars) if call in ANSWERS and node(task_vars) else None
    except SparkError:
        return None  # the node says what is wrong with the request


def note(
    call: str, request: Mapping[str, Any], result: dict[str, Any], task_vars: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Remember for this run what the call has changed."""
    if call in CHANGES:
        kind, name = CHANGES[call]
        execute(lambda **_call: result, task_vars, kind, name(request))
    return result
