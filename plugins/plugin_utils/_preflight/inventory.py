# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Checks of the inventory alone: no machine is contacted."""

from __future__ import annotations

import os
import shlex
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import canonical
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import listeners
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import names as gateway_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Settings as GatewaySettings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._artifacts.plan import CONTROLLER
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import spelling
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import early as engine_early
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.planners import PLANNERS as FABRIC_PLANNERS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings as FabricSettings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._gateway import checks as gateway_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._keeper import ranges
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import ranks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables as preflight_variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.base import (
    LABEL,
    Context,
    Judge,
    as_list,
    as_network,
    whole,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import WHOLE
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._web_ui import files as web_ui_files

GATEWAY = GatewaySettings()
FABRIC_SPEC = FABRIC_PLANNERS["fabric"].spec


def check_names(context: Context) -> Iterator[Finding]:
    for host in context.hosts:
        labels = host.rstrip(".").split(".")
        if not canonical(host) and (len(host) > 253 or not all(LABEL.fullmatch(label) for label in labels)):
            yield Finding(host, "the inventory name is no valid host name")


def check_addresses(context: Context) -> Iterator[Finding]:
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host, values in context.hosts.items():
        address = str(values.get("ansible_host") or host).lower()
        owners[address, str(values.get("ansible_port") or 22)].append(host)
    for (address, _port), hosts in owners.items():
        if len(hosts) > 1:
            yield Finding(", ".join(hosts), f"ansible_host is {address} for {len(hosts)} machines")


def check_renamed(context: Context) -> Iterator[Finding]:
    for name, hosts in sorted(_hosts_by_name(context).items()):
        if name in preflight_variables.RENAMED:
            yield Finding(context.who(hosts), f"there is no variable {name}", preflight_variables.RENAMED[name])


def check_unknown(context: Context) -> Iterator[Finding]:
    # A role without a specification documents nothing, so nothing can be said about its names.
    documented = {f"{variable.role}_" for variable in context.variables.values()}
    prefixes = tuple(prefix for prefix in preflight_variables.prefixes(context.layers) if prefix in documented)
    given = _hosts_by_name(context)
    slips = preflight_variables.slips(given, context.variables)
    for name, hosts in sorted(given.items()):
        ours = name.startswith(prefixes) and name not in context.variables
        if name in preflight_variables.RENAMED or not (ours or name in slips):
            continue
        hint = f"Did you mean {slips[name]}?" if name in slips else ""
        role = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        near = [known for known in context.variables if known.startswith(role)]
        hint = hint or spelling.did_you_mean(name, near, prefix=role)
        hint = hint or spelling.did_you_mean(name, context.variables, cutoff=0.75)
        yield Finding(
            context.who(hosts),
            f"there is no variable {name}",
            hint or "See the README of the role for its variables",
        )


def _hosts_by_name(context: Context) -> dict[str, list[str]]:
    """Which machines have a variable, also one whose template fails."""
    found: dict[str, list[str]] = defaultdict(list)
    for host, values in context.hosts.items():
        for name in {**values, **context.broken.get(host, {})}:
            found[name].append(host)
    return found


def check_types(context: Context) -> Iterator[Finding]:
    prefixes = preflight_variables.prefixes(context.layers)
    where: dict[str, list[str]] = defaultdict(list)
    for host, values in context.hosts.items():
        for name, message in context.broken.get(host, {}).items():
            where[f"{name} cannot be evaluated: {message}"].append(host)
        for name, value in values.items():
            variable = context.variables.get(name)
            # spark_rank has a check of its own.
            if variable is None or name == "spark_rank" or not name.startswith(prefixes):
                continue
            complaint = preflight_variables.complaint(variable, value)
            if complaint:
                where[complaint].append(host)
    for complaint, hosts in where.items():
        name = complaint.split(" ", 1)[0]
        known = context.variables.get(name)
        # Where the choices are listed, a description adds nothing.
        text = known.description if known and not known.choices else ""
        yield Finding(context.who(hosts), complaint, f"It says: {text}" if text else f"Correct {name} in the inventory")


def check_engine_plan(context: Context) -> Iterator[Finding]:
    """Upgrades and rollbacks that take what a node keeps plan nothing."""
    hosts = sorted(context.hosts, key=lambda host: whole(context.hosts[host].get("spark_rank")))
    first = hosts[0] if hosts else ""
    if "plan" not in context.layers or context.value(first, "engine_recipe") is None:
        return
    if any(name.startswith(("engine_", "ray_")) for name in context.broken.get(first, {})):
        return  # said by the check of types
    gb10 = boolean(context.value(first, "preflight_require_gb10", True), strict=False)
    yield from engine_early.findings(lambda name: context.value(first, name), hosts, gb10=gb10)


def _given(context: Context, host: str, role: str, names: Iterable[str]) -> dict[str, Any] | None:
    """The variables of a role that have a value; None where one is not of its type, which the check ``types`` says."""
    given = {}
    for name in names:
        value, variable = context.value(host, f"{role}_{name}"), context.variables.get(f"{role}_{name}")
        if variable and preflight_variables.complaint(variable, value):
            return None
        if value is not None:
            given[name] = value
    return given


def check_fabric_plan(context: Context) -> Iterator[Finding]:
    first = next(iter(context.hosts), "")
    spec = {field.name: FABRIC_SPEC[field.name] for field in fields(FabricSettings)}
    given = _given(context, first, "fabric", spec)
    if given is None:
        return
    checked = ArgumentSpecValidator(spec).validate(given)
    if not checked.error_messages:
        yield from fabric_plan.judge_settings(len(context.hosts), FabricSettings(**checked.validated_parameters))


def check_keeper(context: Context) -> Iterator[Finding]:
    for allowed in ranges.RANGES:
        where: dict[str, list[str]] = defaultdict(list)
        for host, values in context.hosts.items():
            found = ranges.outside(values.get(allowed.variable), allowed)
            if found:
                where[found].append(host)
        for found, hosts in where.items():
            yield Finding(context.who(hosts), found, f"Choose {allowed.variable} in this range, or leave it out")


def check_port_filter(context: Context) -> Iterator[Finding]:
    where: dict[str, list[str]] = defaultdict(list)
    for host in context.hosts:
        for item in as_list(context.value(host, "spark_port_filter_from", [])):
            if as_network(item) is None or "%" in str(item):
                where[repr(item)].append(host)
    for item, hosts in where.items():
        found = f"spark_port_filter_from: {item} is no address and no network"
        yield Finding(context.who(hosts), found)


def check_hub_token(context: Context) -> Iterator[Finding]:
    """On this controller: the task that copies it says nothing of it, and so not why it failed."""
    named = {host: context.value(host, "artifacts_hub_token_file") for host in context.hosts}
    for name in sorted({name for name in named.values() if isinstance(name, str) and name}):
        path, found = os.path.expanduser(name), ""
        remedy = "Correct artifacts_hub_token_file: the whole path, or one that begins with ~/"
        if not os.path.isabs(path):
            found = "it is no whole path"
        elif not os.path.isfile(path):
            found = "there is no such file on this controller"
        elif not os.access(path, os.R_OK):
            found = "the user who runs Ansible may not read it"
        elif os.stat(path).st_mode & stat.S_IROTH:
            found, remedy = "every user of this controller can read it", f"chmod 600 {shlex.quote(path)}"
        if found:
            yield Finding(
                context.who(host for host in context.hosts if named[host] == name),
                f"artifacts_hub_token_file {name}: {found}",
                remedy,
            )


def check_model_sources(context: Context) -> Iterator[Finding]:
    """Those on this controller. A warning, for a model that is on the nodes already needs none."""
    named: dict[tuple[str, str], list[str]] = {}
    for host in context.hosts:
        sources = context.value(host, "artifacts_sources")
        for model, source in sources.items() if isinstance(sources, dict) else ():
            if isinstance(source, str) and source.startswith(CONTROLLER):
                named.setdefault((str(model), source), []).append(host)
    for (model, source), hosts in sorted(named.items()):
        path = os.path.expanduser(source.removeprefix(CONTROLLER))
        found = "there is no such directory on this controller"
        if not os.path.isabs(path):
            found = "it is no whole path"
        elif os.path.isdir(path):
            found = "" if os.access(path, os.R_OK | os.X_OK) else "the user who runs Ansible may not read it"
        if found:
            yield Finding(context.who(hosts), f"artifacts_sources, {model}: {source}: {found}")


def check_limit(context: Context) -> Iterator[Finding]:
    missing = [host for host in context.hosts if host not in context.play_hosts]
    if missing and context.play_hosts:
        layers = ", ".join(sorted(context.layers & WHOLE))
        yield Finding(", ".join(missing), f"left out by --limit, but {layers} must see every machine")


def gateway_wanted(context: Context) -> bool:
    """Whether the head gets a gateway: without gateway_listen there is none, and upgrade and rollback open none."""
    head = context.head
    if head is None:
        return False
    # Nothing is known of the head before it has been read.
    node = context.nodes.get(head)
    if "gateway" in context.followed and node is not None and gateway_names.SET not in node.managed:
        return False
    return bool(context.value(head, "gateway_listen", []))


def gateway_listeners(context: Context) -> list[tuple[int, str, list[str]]]:
    """(port, variable, addresses) where the gateway listens, as far as the head's interfaces are known."""
    head = context.head or ""
    interfaces = {
        item.name: [
            interface_address.address for interface_address in item.addresses if interface_address.scope != "link"
        ]
        for item in context.interfaces(head)
    }
    addresses: list[str] = []
    for item in map(str, as_list(context.value(head, "gateway_listen", []))):
        own = canonical(item)
        addresses += [own] if own else interfaces.get(item) or [listeners.EVERYWHERE[0]]
    found = []
    for name, where in (("port", addresses), ("local_port", [listeners.LOOPBACK])):
        usual = getattr(GATEWAY, name)
        found.append((whole(context.value(head, f"gateway_{name}", usual)), f"gateway_{name}", where))
    return found


def services(context: Context) -> list[Mapping[str, Any]]:
    """Entries of engine_services; a wrong one is for the plan to refuse."""
    entries = as_list(context.value(context.head or "", "engine_services", []))
    return [entry for entry in entries if isinstance(entry, Mapping)]


def ray_asked_for(context: Context) -> bool:
    usual = context.value(context.head or "", "engine_launch")
    return "ray" in [entry.get("launch", usual) for entry in services(context) or [{}]]


def service_ports(context: Context) -> list[tuple[str, int, str]]:
    """(node that listens, port, what) of every service."""
    head = context.head or ""
    port = whole(context.value(head, "engine_port", ports.API))
    entries = services(context)
    if not entries:
        return [(head, port, "engine_port")]
    found = []
    for entry in entries:
        nodes = [str(node) for node in as_list(entry.get("nodes")) if str(node) in context.hosts]
        number = whole(entry.get("port", port))
        found.append((nodes[0] if nodes else head, number, f"port of the service {entry.get('name')}"))
    return found


def cluster_ports(context: Context) -> dict[int, str]:
    """``{port: what}`` of everything on the head but the gateway and the engines' API."""
    head = context.head or ""
    variables = {
        "ray_port": ports.RAY_GCS,
        "ray_dashboard_port": ports.RAY_DASHBOARD,
        "engine_rendezvous_port": UserSettings.rendezvous_port,
    }
    found = {whole(context.value(head, name, usual)): name for name, usual in variables.items()}
    replicas = {engine.replica_port: engine.label for engine in ENGINES.values() if engine.replica_port}
    usual = {ports.FABRIC_BANDWIDTH: "the port of ib_write_bw"}
    return {
        **usual,
        **{port: f"the port of {label}'s data parallel ranks" for port, label in replicas.items()},
        **found,
    }


def check_gateway(context: Context) -> Iterator[Finding]:
    if not gateway_wanted(context):
        return
    head = context.head or ""
    given = _given(context, head, "gateway", vars(GATEWAY))
    if given is None:
        return
    given["engines"] = [
        {
            "name": f"engine{number}",
            "model": str(number),
            "port": port,
            "host": "127.0.0.1" if node == head else node,
        }
        for number, (node, port, _what) in enumerate(service_ports(context))
    ]
    settings, findings = gateway_checks.read(given)
    for finding in findings:
        yield replace(finding, host=head)
    if settings is None:
        return
    others = cluster_ports(context)
    for name, port in (("gateway_port", settings.port), ("gateway_local_port", settings.local_port)):
        if port in others:
            yield Finding(head, f"{name} is {port}, which is {others[port]}, too", f"Choose another {name}")


def web_ui_wanted(context: Context) -> bool:
    head = context.head
    return head is not None and boolean(context.value(head, "web_ui_enabled", False), strict=False)


def check_web_ui(context: Context) -> Iterator[Finding]:
    if not web_ui_wanted(context):
        return
    head = context.head or ""
    if not gateway_wanted(context):
        yield Finding(
            head,
            "web_ui_enabled is true, and there is no gateway, which is the page's way to the models",
            "Set gateway_listen, [127.0.0.1] where nobody else is to come in; or web_ui_enabled: false",
        )
    given = _given(context, head, "web_ui", vars(web_ui_files.Settings()))
    if given is None:
        return
    given |= {name: whole(given[name]) for name in ("port", "memory_mib") if name in given}
    settings = web_ui_files.Settings(**given)
    for finding in web_ui_files.check(settings):
        yield replace(finding, host=head)
    gateway = {
        whole(context.value(head, f"gateway_{name}", getattr(GATEWAY, name))): f"gateway_{name}"
        for name in ("port", "local_port")
    }
    others = {**cluster_ports(context), **gateway, **{port: what for _node, port, what in service_ports(context)}}
    if settings.port in others:
        found = f"web_ui_port is {settings.port}, which is {others[settings.port]}, too"
        yield Finding(head, found, "Choose another web_ui_port")


JUDGES: Mapping[str, Judge] = {
    "names": check_names,
    "ranks": ranks.check_ranks,
    "rank_gaps": ranks.check_rank_gaps,
    "addresses": check_addresses,
    "renamed_variables": check_renamed,
    "unknown_variables": check_unknown,
    "types": check_types,
    "fabric_plan": check_fabric_plan,
    "engine_plan": check_engine_plan,
    "keeper": check_keeper,
    "gateway": check_gateway,
    "web_ui": check_web_ui,
    "port_filter": check_port_filter,
    "hub_token": check_hub_token,
    "model_sources": check_model_sources,
    "limit": check_limit,
}
