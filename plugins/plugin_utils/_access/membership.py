# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Who joins, leaves and was replaced: the inventory compared with what the nodes know of themselves and of each other.

Members are the hosts of the group ``sparks``. A machine that leaves is listed in ``sparks_leaving`` instead, or not at
all when it is dead. Ranks are sticky: nothing here gives a rank to anybody, and preflight holds every machine to
its own (check ``readdressed``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.node import Look
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding

CHANGES = ("add", "remove", "replace")
# What belongs to one machine and is not taken over from another one.
OWN_VARIABLES = frozenset(
    {
        "ansible_host",
        "ansible_port",
        "spark_rank",
        "fabric_management_address",
        "fabric_cages",
        "fabric_addresses",
        "fabric_environment",
    }
)
# Set in the inventory, not by Ansible itself: how to log in.
CONNECTION = (
    "ansible_user",
    "ansible_password",
    "ansible_ssh_common_args",
    "ansible_ssh_extra_args",
    "ansible_ssh_private_key_file",
    "ansible_become_method",
    "ansible_become_password",
    "ansible_control_path_dir",
    "ansible_python_interpreter",
)


@dataclass(frozen=True)
class Member:
    """A host of the inventory, and what was read on it. ``known``: every name in its known hosts, with its keys."""

    rank: int
    host_keys: frozenset[str]
    known: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    findings: tuple[Finding, ...]
    summary: tuple[str, ...]


def parse_known_hosts(text: str) -> dict[str, frozenset[str]]:
    """The file of the role access: inventory name of a node -> its keys, ``type base64``."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 3 or words[0].startswith("#"):
            continue
        # With another port than 22: [name]:port. The label comes first, then the inventory name where it is another.
        names = [name.strip("[").partition("]")[0] for name in words[0].split(",")]
        host = names[1] if len(names) > 1 and names[1] != f"{names[0]}.local" else names[0]
        found.setdefault(host, set()).add(" ".join(words[1:3]))
    return {host: frozenset(keys) for host, keys in found.items()}


def member(rank: int, look: Look) -> Member:
    return Member(rank, frozenset(look.host_keys), parse_known_hosts(look.known_hosts))


def check_request(members: Mapping[str, Any], leaving: Mapping[str, Any]) -> list[Finding]:
    """Of the inventory alone; host -> ``spark_rank`` as it is written there."""
    findings = []
    for host in sorted(set(members) & set(leaving)):
        findings.append(
            Finding(
                host,
                "it is in the groups 'sparks' and 'sparks_leaving'",
                "Take it out of 'sparks' if it leaves, out of 'sparks_leaving' if it stays",
            )
        )
    ranks = {str(rank): host for host, rank in members.items() if rank is not None}
    for host, rank in leaving.items():
        if str(rank) == "0" and "0" not in ranks:
            findings.append(
                Finding(
                    host,
                    "it is the head (spark_rank 0), and the cluster does not work without one",
                    "Replace the machine under the same name and rank (playbooks/node_replace.yml), or reset the whole "
                    "cluster (reset.yml) and give another machine spark_rank: 0",
                )
            )
        elif rank is not None and str(rank) in ranks and host not in members:
            findings.append(
                Finding(
                    f"{host}, {ranks[str(rank)]}",
                    f"the rank {rank} of the machine that leaves is given to another one in the same step",
                    "Remove the one first, then add the other: they would have the same addresses until then",
                )
            )
    return findings


def inherited(given: Iterable[str], prefixes: Sequence[str]) -> list[str]:
    """Of the variables of a member those that a machine which left the group ``sparks`` no longer has from it."""
    return [
        name
        for name in given
        if name not in OWN_VARIABLES
        and (name in CONNECTION or (name.startswith(tuple(prefixes)) and not name.startswith("__")))
    ]


def compare(
    change: str, members: Mapping[str, Member], leaving: Sequence[str] = (), also: Iterable[str] = ()
) -> Change:
    """``also``: members that nobody has looked at."""
    known = {name for one in members.values() for name in one.known}
    joins = tuple(host for host in members if host not in known)
    replaced = tuple(host for host in members if _is_another(host, members))
    findings = []
    if change != "replace":
        findings = [
            Finding(
                host,
                "its host keys are not those that its peers know",
                "If it was reinstalled or replaced, run playbooks/node_replace.yml; if not, find out who answers there",
            )
            for host in replaced
        ]
    gone = sorted(known - {*members, *also, *leaving})
    if change != "remove" and gone:
        findings.append(
            Finding(
                ", ".join(gone),
                "the nodes still know it, and it is not in the inventory any more",
                "This run removes it from them. If it is still on, put it into the group 'sparks_leaving' and run "
                "playbooks/node_remove.yml",
                severity="warning",
            )
        )
    return Change(tuple(findings), _summary(members, leaving, joins, replaced, gone))


def _is_another(host: str, members: Mapping[str, Member]) -> bool:
    """Its peers know keys of it, and none of them is one that it has now."""
    keys = {key for peer, one in members.items() if peer != host for key in one.known.get(host, ())}
    return bool(keys) and not keys & members[host].host_keys


def _summary(
    members: Mapping[str, Member],
    leaving: Sequence[str],
    joins: Sequence[str],
    replaced: Sequence[str],
    gone: Sequence[str],
) -> tuple[str, ...]:
    lines = []
    for host, one in sorted(members.items(), key=lambda item: item[1].rank):
        state = "joins" if host in joins else "is another machine than before" if host in replaced else "stays"
        lines.append(f"rank {one.rank}: {host} {state}")
    lines += [f"{host} leaves" for host in leaving]
    lines += [f"{name} is not in the inventory any more: forgotten" for name in gone]
    return tuple(lines)
