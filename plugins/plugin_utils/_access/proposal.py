# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An inventory for machines that were found: who they are, how they are cabled, which recipes fit them.

What is written is read by people before it is used. What a machine says of itself goes into comments, one line each.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Neighbors
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import yaml_text
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import early
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import SHIPPED
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import judge_cables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings, node_input
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables

Machine = Mapping[str, Any]  # of discovered.machines
# What the shipped inventories serve, where it fits; else the largest model that does.
PREFERRED = (("qwen3.6-35b-a3b-nvfp4",), ("qwen3.8-flash-next-nvfp4", "minimax-m2.7-awq"))  # by one machine, by several
_SET_UP = (
    "These machines are set up already, and keep their names and ranks. Before the next run that changes them, bring"
    " the settings and the model of the inventory that did it into this one"
)
# A name that an inventory may have as it stands: no group of Ansible's, and no word that YAML reads otherwise.
_PLAIN = re.compile(
    r"(?!(all|sparks|ungrouped|localhost|on|off|yes|no|true|false|null|y|n)$)[a-z][a-z0-9-]{0,62}", re.I
)
TO_COMPARE = "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"


@dataclass(frozen=True)
class Proposal:
    hosts: str  # hosts.yml; empty where no machine is worth an inventory, which would be in the way of the next search
    variables: str  # group_vars/sparks.yml
    summary: Sequence[str]


@dataclass(frozen=True)
class Fit:
    recipe: str
    task: str
    weights_gb: float
    says: str  # one line


def propose(
    machines: Sequence[Machine],
    nodes: Mapping[str, Node],
    heard: Mapping[str, Neighbors],
    *,
    folder: str,
    user: str,
    confirmed: Sequence[str] = (),
) -> Proposal:
    """``nodes``: by the address of a machine that was looked at; ``heard``: over its cables, by name;
    ``confirmed``: fingerprints that somebody has compared."""
    sparks = named(machines)
    others = [machine for machine in machines if not machine["taken"]]
    looked = {
        name: next(nodes[at] for at in (machine["address"], *machine["others"]) if at in nodes)
        for name, machine in sparks.items()
    }
    topology, cables = _topology(looked, heard)
    recipes = fitting(looked)
    gb10 = sum(machine["is_gb10"] for machine in machines)
    more = f", {len(machines) - gb10} more answer ssh" if len(machines) > gb10 else ""
    found = f"{gb10} machine(s) say that they are a GB10{more}"
    if not sparks and all(machine["why"] == "not a GB10" for machine in others):
        where = "name the network that they are in, for example -e discover_cidr=192.168.1.0/24"
        return Proposal("", "", [f"{found}; nothing was written", f"Next: {where}, or write the inventory by hand"])
    summary = [f"{found}: {folder}/hosts.yml"]
    if sparks:
        summary.append(f"Cables: {cables[0]}")
    if any(_kept(machine) for machine in sparks.values()):
        summary.append(f"{_SET_UP}: {folder}/group_vars/sparks.yml")
    if recipes:
        summary.append(f"Recipe: {recipes[0].recipe}, {recipes[0].says}")
    elif looked:
        summary.append("Recipe: none of those that are shipped fits")
    return Proposal(
        _hosts(sparks, others, folder, confirmed),
        _variables(topology, cables, recipes, looked, user),
        [*summary, f"Next: {_next(sparks, folder, confirmed)}"],
    )


def named(machines: Sequence[Machine]) -> dict[str, Machine]:
    """Those that were let in and are a GB10 (or may be something else), by the name and in the order of their ``rank``.
    Who was set up before keeps both, so that another computer's inventory says the same; the others come behind."""
    found = [machine for machine in machines if machine["taken"]]
    kept = [_kept(machine) for machine in found]
    known = [one for one in kept if one]
    if any(len({one[place] for one in known}) < len(known) for place in (0, 1)):
        kept, known = [None] * len(found), []  # copies of one disk
    names = {name for _rank, name, _nodes in known}
    rank = max((max(rank + 1, nodes) for rank, _name, nodes in known), default=0)
    given: dict[str, Machine] = {}
    for machine, one in zip(found, kept):
        if one:
            given[one[1]] = {**machine, "rank": one[0]}
            continue
        number = next(number for number in itertools.count(rank + 1) if f"spark{number}" not in {*names, *given})
        given[f"spark{number}"] = {**machine, "rank": rank}
        rank += 1
    return dict(sorted(given.items(), key=lambda item: int(item[1]["rank"])))


def _kept(machine: Machine) -> tuple[int, str, int] | None:
    """Rank, name, and number of machines, as its fabric was made; None for a name that an inventory may not have."""
    kept = machine.get("kept") or {}
    rank, name = kept.get("rank"), str(kept.get("host") or "")
    if rank is None or not _PLAIN.fullmatch(name):
        return None
    return int(rank), name, int(kept.get("nodes") or 0)


def difference(existing: str, machines: Sequence[Machine]) -> list[str]:
    """What an inventory that is there does not have, or has and was not found now. Names and ranks are the user's."""
    try:
        hosts = yaml_text.read(existing)["all"]["children"]["sparks"]["hosts"] or {}
        listed = {str(values.get("ansible_host") or name): str(name) for name, values in hosts.items()}
    except (LookupError, TypeError, AttributeError, SparkError):
        return ["its group sparks cannot be read"]
    found = {machine["address"]: machine for machine in machines if machine["taken"]}
    here = {place for machine in found.values() for place in (machine["address"], *machine["others"], machine["name"])}
    lines = [f"{at} {strict.words(m['name'])} was found, and is not in it" for at, m in found.items()
             if not {at, *m["others"], m["name"]} & set(listed)]  # fmt: skip
    return lines + [f"{name} ({at}) is in it, and was not found" for at, name in listed.items() if at not in here]


# --- cables and recipes


def _topology(looked: Mapping[str, Node], heard: Mapping[str, Neighbors]) -> tuple[str, list[str]]:
    """``fabric_topology``, and what it was told from."""
    if len(looked) < 2:
        return "single" if looked else "auto", ["none are needed for one machine" if looked else "nothing is known"]
    unheard = [name for name in looked if name not in heard]
    if unheard:
        return "auto", [
            f"not known, since {', '.join(unheard)} could not listen (that needs sudo); preflight looks again"
        ]
    inputs = {}
    for rank, (name, node) in enumerate(looked.items()):
        raw = {
            "rank": rank,
            "network": node.network,
            "rdma": node.rdma,
            "neighbors": heard[name],
        }
        inputs[name] = node_input(name, raw, [])
    made = judge_cables(inputs, Settings())
    wrong = [str(finding) for finding in made.findings if finding.severity == "error"]
    if wrong or not made.topology:
        return "auto", ["they make no fabric yet", *wrong, *made.cable_map]
    if any(line.split("  ")[-1].strip() == "assumed" for line in made.cable_map):
        return "auto", ["no machine was seen by another one; preflight looks again", *made.cable_map]
    return made.topology, [f"{made.topology}, as the machines saw each other", *made.cable_map]


def fitting(looked: Mapping[str, Node]) -> list[Fit]:
    """Shipped recipes that these machines can serve together; the one to propose first."""
    memory = {name: node.memory.total or 0 for name, node in looked.items()}
    defaults = variables.load()
    found = []
    for path in sorted(SHIPPED.glob("*.yml")) if looked else ():

        def value(name: str, recipe: str = path.stem) -> Any:
            return recipe if name == "engine_recipe" else defaults[name].default if name in defaults else None

        made, problems = early.planned(value, list(looked), memory)
        if made is None or not made.plans or any(finding.severity == "error" for finding in problems):
            continue
        (service,) = early.asked(value, list(looked))[0]
        expected = made.plans[next(iter(looked))].here[0].expectation
        rate, _measured = expected.at(1, service.recipe.engine)
        speed = f", about {rate:.0f} tokens/s" if rate else ""
        says = f"{service.recipe.weights_gb:g} GB{speed}"
        found.append(Fit(path.stem, service.recipe.task, service.recipe.weights_gb, says))
    first = {recipe: place for place, recipe in enumerate(PREFERRED[len(looked) > 1])}
    return sorted(
        found,
        key=lambda fit: (first.get(fit.recipe, len(first)), fit.task != "generate", -fit.weights_gb, fit.recipe),
    )


# --- texts


def _hosts(sparks: Mapping[str, Machine], others: Sequence[Machine], folder: str, confirmed: Sequence[str]) -> str:
    vouched = [
        "# Nobody has vouched for these machines. Before a password goes out, compare the host keys at their screens:",
        f"#   {TO_COMPARE}",
    ]
    lines = [
        "---",
        "# Found by playbooks/discover.yml. Review names and ranks: rank 0 is the head, and addresses follow the rank.",
        *(["# Their host keys were confirmed."] if confirmed else vouched),
        "# Where a router gives out the addresses, have it keep these.",
        "# Go on: sparkmatrix up",
        "# or, with Ansible's own commands and -i for this folder: playbooks/bootstrap.yml, then site.yml",
        "all:",
        "  children:",
        "    sparks:",
        "      hosts:" if sparks else "      hosts: {}",
    ]
    for name, machine in sparks.items():
        lines += [f"        {name}:", *_about(machine), *_entry(machine, machine["rank"])]
    left_out = [machine for machine in others if machine["why"] != "not a GB10"]
    if left_out:
        lines += [
            "",
            "# Not looked at, since no key logs in. Where one is a Spark, take '# ' (and {} after hosts) away, and:",
            f"#   ansible-playbook playbooks/bootstrap.yml -i {folder} --ask-pass --ask-become-pass",
        ]
    for rank, machine in enumerate(left_out, start=max((spark["rank"] + 1 for spark in sparks.values()), default=0)):
        entry = [f"        spark{rank + 1}:", *_about(machine), *_entry(machine, rank)]
        lines += [f"# {line}" for line in entry]
    strangers = [machine for machine in others if machine not in left_out]
    lines += ["", "# Other machines that answer ssh:"] if strangers else []
    lines += [_comment("# ", machine["address"], machine["name"], machine["why"]) for machine in strangers]
    return "\n".join(lines) + "\n"


def _about(machine: Machine) -> list[str]:
    indent = "          # "
    word = "GB10 by its own word" if machine["is_gb10"] else machine["why"]
    lines = [_comment(indent, *filter(None, (machine["name"], word)))]
    if machine["fingerprint"]:
        lines.append(_comment(indent, "shows the host key", machine["fingerprint"], f"({machine['kind']})"))
    if machine["interface"]:
        lines.append(_comment(indent, "heard on", machine["interface"]))
    if machine["others"]:
        lines.append(_comment(indent, "answers at", ", ".join(machine["others"]), "too"))
    return lines


def _entry(machine: Machine, rank: int) -> list[str]:
    lines = [f"          ansible_host: {strict.host(machine['address'])}", f"          spark_rank: {rank}"]
    return [*lines, "          ansible_connection: local # this computer"] if machine["own"] else lines


def _comment(start: str, *parts: str) -> str:
    return start + strict.words(" ".join(map(str, parts)))


def _variables(
    topology: str,
    cables: Sequence[str],
    recipes: Sequence[Fit],
    looked: Mapping[str, Node],
    user: str,
) -> str:
    head = next(iter(looked.values()), Node())
    all_gb10 = all(node.machine.is_gb10 for node in looked.values())
    interface = head.network.connection_interface or "enP7s7"
    lines = [
        "---",
        "# The user that you log in with; it needs sudo. Add -K to the command line if sudo asks for a password.",
        f"ansible_user: {json.dumps(user)}" if user else "# ansible_user: nvidia",
        "",
        "# The machines keep the names that they have, by which NVIDIA Sync and <name>.local find them. With true,",
        "# bootstrap.yml names them as hosts.yml does.",
        "access_set_hostname: false",
        *([] if all_gb10 else ["", "# Not all of them are a GB10.", "preflight_require_gb10: false"]),
        "",
        _comment("# ", "Cables:", cables[0]),
        *(_comment("#   ", line) for line in cables[1:]),
        f"fabric_topology: {topology}",
        "",
        f"# What is served; {len(looked)} machine(s) have room for it. Recipes are in roles/engine/files/recipes.",
    ]
    if recipes:
        lines.append(f"engine_recipe: {recipes[0].recipe} # {recipes[0].says}")
        lines += ["# These fit as well, and want the engine that they are written for:"] if recipes[1:] else []
        lines += [f"#   {fit.recipe}: {fit.says}" for fit in recipes[1:]]
    else:
        lines.append("# engine_recipe: ")
    lines += [
        "",
        "# Clients on the network of this interface may use the API with a key (docs/gateway.md).",
        f"# gateway_listen: [{strict.words(interface)}]",
    ]
    return "\n".join(lines) + "\n"


def _next(sparks: Mapping[str, Machine], folder: str, confirmed: Sequence[str]) -> str:
    if confirmed:
        words = f"-i {folder} -e node_fingerprint={','.join(confirmed)} --ask-pass --ask-become-pass"
        return f"ansible-playbook playbooks/bootstrap.yml {words}"
    if sparks:
        return f"review {folder}, then: ansible-playbook playbooks/preflight.yml -i {folder}"
    return f"{folder}/hosts.yml says how machines that only know a password are brought in (bootstrap.yml)"
