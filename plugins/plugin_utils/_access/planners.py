# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The planners of ssh between the nodes and from the user's computer, and of what was discovered."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.discover import Candidate
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls, document, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import Network
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import read as read_node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import (
    discovered,
    entry,
    membership,
    proposal,
    tunnels,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._access import plan as access_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import login
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import (
    Options,
    Planner,
    RefusedError,
    judged,
    ours,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import management
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import layers, variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.base import Context
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.reached import reason

NOT_CHANGED = "The change of the cluster was refused, and nothing has been changed:"
NOT_LET_IN = "These machines do not let this computer in; nothing was changed:"
NOT_TAKEN = "These machines cannot be taken; nothing was written:"
REFUSED = "ssh between the nodes cannot be set up like this; nothing was changed:"


def plan(options: Options) -> dict[str, Any]:
    settings = Settings(subnets=options["subnets"], host_offset=options["host_offset"])
    unknown = [host for host, raw in options["nodes"].items() if "rank" not in raw or "look" not in raw]
    if unknown:
        raise SparkError(
            "spark_rank, or what the machine says of its ssh, is not known",
            ", ".join(unknown),
            "Run the whole layer for all machines",
        )
    nodes, findings = access_plan.node_inputs(options["nodes"], settings)
    shown = judged(REFUSED, findings)
    made = access_plan.plan(nodes, options["user"])
    return {
        **shown,
        "files": made.files,
        "hosts_lines": made.hosts_lines,
        "rules": made.rules,
        "ignore": made.ignore,
    }


def host_keys(options: Options) -> dict[str, Any]:
    refused = entry.strangers(options["shown"])
    if refused:
        raise RefusedError(refused)
    return {}


def leaving(options: Options) -> dict[str, Any]:
    """Whether these may leave, and names of variables that the group ``sparks`` has given to members only."""
    judged(NOT_CHANGED, membership.check_request(options["members"], options["leaving"]))
    names = membership.inherited(options["given"], variables.prefixes(frozenset(layers.LAYERS)))
    return {
        "departing": [
            {"name": host, "variables": [name for name in names if name not in own]}
            for host, own in options["own"].items()
        ]
    }


def compared(options: Options) -> dict[str, Any]:
    read = {host: membership.member(int(node["rank"]), node["look"]) for host, node in options["nodes"].items()}
    found = membership.compare(options["change"], read, options["leaving"], options["members"])
    return {**judged(NOT_CHANGED, found.findings), "summary": list(found.summary)}


def _in_words(value: Any, _host: str) -> dict[str, Any]:
    """What Ansible says of a login, of which only texts are shown."""
    known = value if isinstance(value, Mapping) else {}
    return {str(key): strict.words(item) if isinstance(item, str) else item for key, item in known.items()}


def first_login(options: Options) -> dict[str, Any]:
    said = {host: reason(answer) for host, answer in options["answers"].items() if "ping" not in answer}
    hosts = {host: {**login.configured(), **own} for host, own in options["logins"].items()}
    return judged(NOT_LET_IN, list(entry.logins(Context(frozenset(), hosts, failures=said))))


def machines(options: Options) -> dict[str, Any]:
    read, warned = _looked(options)
    candidates = _candidates(options)
    known = {address: calls.read("host_key", shown, address) for address, shown in options["known"].items() if shown}
    found = discovered.machines(candidates, read, require_gb10=options["require_gb10"])
    spare = {address for one in found if one["taken"] for address in one["others"]}  # nobody will log in there
    refused = entry.asked(
        [candidate for candidate in candidates if candidate.address not in spare],
        options["looks"],
        known,
        read,
        confirmed=_confirmed(options),
        user=options["user"],
        require_gb10=options["require_gb10"],
    )
    shown = judged(NOT_TAKEN, [*refused, *warned])
    at = [
        {"name": name, **{key: one[key] for key in ("address", "own")}} for name, one in proposal.named(found).items()
    ]
    return {**shown, "sparks": at}


def _confirmed(options: Options) -> list[str]:
    return [word.strip() for word in options["confirmed"] if word.strip()]


def _candidates(options: Options) -> list[Candidate]:
    return calls.read("discover", {"candidates": options["candidates"]}, "localhost").candidates  # type: ignore[no-any-return]


def propose(options: Options) -> dict[str, Any]:
    """``existing``: the text of an inventory that is there, which is compared and never replaced."""
    read, _said_before = _looked(options)
    heard: dict[str, Any] = {}
    for name, told in options["heard"].items():
        with contextlib.suppress(SparkError):
            if told.get("heard") is not None:
                heard[name] = calls.read("neighbors", told, name)
    found = discovered.machines(_candidates(options), read, require_gb10=options["require_gb10"])
    more = {"folder": options["folder"], "user": options["user"], "confirmed": _confirmed(options)}
    made = proposal.propose(found, read, heard, **more)
    differs = proposal.difference(options["existing"], found) if options["existing"] else []
    return {"hosts": made.hosts, "variables": made.variables, "summary": list(made.summary), "differs": differs}


def _looked(options: Options) -> tuple[dict[str, Node], list[Finding]]:
    read: dict[str, Node] = {}
    warned: list[Finding] = []
    for address, look in options["looks"].items():
        try:
            found = read_node(look, address)
        except SparkError as exc:
            # A stranger that says odd things is listed as one that was not looked at.
            warned.append(Finding(address, exc.found, exc.remedy, severity="warning"))
            continue
        if found:
            read[address] = found.node
    return read, warned


def managed_at(options: Options) -> dict[str, Any]:
    try:
        network = document.load_known(Network, options["network"])
    except ValueError as exc:
        raise SparkError(f"the network of this machine {exc}", options["host"], calls.REMEDY) from exc
    chosen = management.choose(options["host"], network, options["setting"])
    return {**judged(REFUSED, list(filter(None, [chosen.refusal]))), "address": chosen.address}


def forwards(options: Options) -> dict[str, Any]:
    given, defaults = options["variables"], variables.load()

    def value(name: str) -> Any:
        return given[name] if name in given else defaults[name].default if name in defaults else None

    made, said = tunnels.tunnels(value, options["hosts"], options["login"], options["named"])
    configured = login.configured()
    logins = {host: login.login(host, {**configured, **own}) for host, own in options["logins"].items()}
    return {
        "forwards": [{"local": tunnel.local, "target": tunnel.target} for tunnel in made],
        "lines": [*(tunnel.line for tunnel in made), *said],
        "ways": {host: one.settings for host, one in logins.items()},
        "asks": [{"host": host, "argv": one.asks} for host, one in logins.items() if one.asks],
    }


def asked(options: Options) -> dict[str, Any]:
    """``ways`` with what ssh said of those that were asked for."""
    said = {answer["item"]["host"]: login.asked(answer["stdout"]) for answer in options["answers"]}
    return {"ways": {**options["ways"], **said}}


# looks: the result of node_info by address.
FOUND: dict[str, Any] = {
    "candidates": {"type": "list", "elements": "dict", "required": True},
    "looks": {"type": "dict", "required": True},
    "confirmed": {"type": "list", "elements": "str", "default": []},
    "require_gb10": {"type": "bool", "default": True},
    "user": {"type": "str", "default": ""},
}
# address: fabric_management_address; login: ansible_host; addresses: fabric_addresses; look: the answer of peer.
# Of the inventory: what a play sets for itself is not seen.
NODE = {**dict.fromkeys(("rank", "address", "login", "addresses"), ours), "look": "peer", "fact": fabric_fact.read}
PLANNERS = {
    "management": Planner(
        managed_at,
        {
            "host": {"type": "str", "required": True},
            "network": {"type": "dict", "required": True},  # of node_info or peer
            "setting": {"type": "str", "default": ""},  # fabric_management_address
        },
    ),
    "forwards": Planner(
        forwards,
        {
            "hosts": {"type": "list", "elements": "str", "required": True},  # by rank
            "login": {"type": "str", "required": True},  # where the head is logged in to
            "variables": {"type": "dict", "required": True},  # of the inventory
            "named": {"type": "dict", "default": {}},  # access_client_forwards
        },
        gathered={"logins": dict.fromkeys(login.VARIABLES, ours)},
    ),
    "ways": Planner(
        asked,
        {
            "ways": {"type": "dict", "required": True},  # as the planner forwards returns them
            "answers": {"type": "list", "elements": "dict", "required": True},  # of its asks
        },
    ),
    "peers": Planner(
        plan,
        {
            "user": {"type": "str", "default": "sparkmatrix-peer"},
            "subnets": {"type": "list", "elements": "str", "default": list(Settings.subnets)},
            "host_offset": {"type": "int", "default": Settings.host_offset},
        },
        gathered={"nodes": NODE},
    ),
    "host_keys": Planner(host_keys, {}, gathered={"shown": "host_key"}),
    "leaving": Planner(
        leaving,
        {
            "members": {"type": "dict", "required": True},  # spark_rank by host, of the group sparks
            "leaving": {"type": "dict", "required": True},  # of the group sparks_leaving
            "given": {"type": "list", "elements": "str", "required": True},  # names of a member's variables
            "own": {"type": "dict", "required": True},  # of each that leaves
        },
    ),
    "membership": Planner(
        compared,
        {
            "change": {"type": "str", "required": True, "choices": list(membership.CHANGES)},
            "members": {"type": "list", "elements": "str", "required": True},
            "leaving": {"type": "list", "elements": "str", "default": []},
        },
        gathered={"nodes": {"rank": ours, "look": "peer"}},
    ),
    "first_login": Planner(
        first_login, {}, gathered={"answers": _in_words, "logins": dict.fromkeys(login.VARIABLES, ours)}
    ),
    # known: the answer of host_key by address.
    "discovered": Planner(machines, {**FOUND, "known": {"type": "dict", "default": {}}}),
    # heard: the result of the call neighbors by name.
    "proposal": Planner(
        propose,
        {
            **FOUND,
            "heard": {"type": "dict", "default": {}},
            "folder": {"type": "str", "required": True},
            "existing": {"type": "str", "default": ""},
        },
    ),
}
