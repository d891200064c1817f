# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a call of the module ``node`` would answer where preflight of this run has found that nothing is to be done, and
what each call changes (:mod:`_base.settled`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import apply
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import node as peer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files, secret
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.settled import (
    ACCESS,
    FABRIC,
    FILES,
    FIREWALL,
    NODE_INFO,
    PREFLIGHT,
    REACHED,
    RULES,
    entry,
    execute,
    firewall_layer,
    node,
    part,
    shared_secret,
    table,
    unchanged,
)


def _peermem(_request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {} if part(task_vars, "peermem") is True else None


def _rdma_look(_request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    known, found = node(task_vars), table(task_vars, "bandwidth")
    if not found or "rdma" not in known or known.get("gids") is None or not unchanged(task_vars, FABRIC):
        return None
    return {**found, "ports": known["rdma"]["devices"], "gids": known["gids"]}


def _peer(request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """``found``: of the account that nobody has named otherwise (``peer`` of ``_settled.py``)."""
    asked: peer.Request = calls.load_request("peer", request)
    found = table(task_vars, "peer")
    if not found.get("public_key") or asked != peer.Request() or not unchanged(task_vars, ACCESS, FABRIC):
        return None
    fact = (task_vars or {})[NODE_INFO].get("fact")
    return {**found, "network": node(task_vars)["network"], "fact": fact}


def _secret(request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Where preflight has found the same on every node of the play; of the API key on the node of all services. One
    that has another, or none, needs the secret itself, and so the head has to be asked."""
    asked: secret.Wanted = calls.load_request("secret", request)
    plan = (task_vars or {}).get("spark_plan") or {}
    alone = asked.name == "engine_key" and plan.get("heads") and len(plan["heads"]) == len(plan.get("services") or ())
    found = table(task_vars, "secrets").get(asked.name) if alone else shared_secret(task_vars, asked.name)
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


def _neighbors(request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What preflight has heard with the same machines, where all took part and nothing was odd on any of them: it
    switches no port on."""
    known = task_vars or {}
    heard, listened = (known.get(REACHED) or {}).get("heard"), (known.get(PREFLIGHT) or {}).get("listened") or {}
    same = [request.get(name) for name in ("nodes", "cluster")] == [listened.get(name) for name in ("nodes", "cluster")]
    good = isinstance(heard, Mapping) and heard.get("complete") is True and not heard.get("notes")
    return dict(heard) if heard and good and same else None


def _verify(request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Of a node where nothing else is to be asked than whether the port filter is active."""
    asked = request.get("gateway_port") or request.get("ray") or (request.get("plan") or {}).get("heads")
    wanted = boolean(request.get("filters", True))
    if asked or (wanted and _port_filter({"state": "in_force"}, task_vars) is None):
        return None
    return {"results": [], "ray": None, "filters": {"msg": ""} if wanted else None, "gateway": []}


def _kept_plan(request: Mapping[str, Any], task_vars: Mapping[str, Any] | None) -> dict[str, Any] | None:
    plan, found = request.get("plan") or {}, table(task_vars, "plan")
    images = request.get("images") or plan.get("image_ids")
    same = plan.get("identity") and (plan["identity"], images) == (found.get("identity"), found.get("image_ids"))
    return {} if same and request.get("state", "present") == "present" else None


# Call -> its answer where it is known already.
ANSWERS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any] | None], dict[str, Any] | None]] = {
    "firewall": _firewall,
    "neighbors": _neighbors,
    "peer": _peer,
    "kept_plan": _kept_plan,
    "peermem": _peermem,
    "rdma_look": _rdma_look,
    "port_filter": _port_filter,
    "secret": _secret,
    "verify": _verify,
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
