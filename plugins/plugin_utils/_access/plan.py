# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Plan ssh between nodes, management names and firewall rules: all nodes in, one set of files and rules per node out.

Every node trusts the host keys of all nodes under every name and address at which they can be reached, and lets the key
of every other node in for the commands of ``sparkmatrix-node peer`` only. A node that has left the inventory is in no
file any more after the next run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.node import DIRECTORY, KEY, KNOWN_HOSTS, Look
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import canonical
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.paths import NODE_PROGRAM as TOOL
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import ufw
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import forced_command
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import addresses, management, ownership
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import firewall as fabric_firewall
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.hosts_names import labels
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings

CONFIG = f"{DIRECTORY}/config"
CLIENT = "/etc/ssh/ssh_config.d/60-sparkmatrix.conf"
SUDOERS = "/etc/sudoers.d/sparkmatrix-peer"
AS_DEFAULT = Settings()
_TITLE = "# Managed by sparkmatrix.cluster (role peers). Undo: reset.yml --tags access"


@dataclass(frozen=True)
class Node:
    """One node: ``address`` on the management network, keys as ``type base64``, the fabric fact where there is one."""

    rank: int
    address: str
    public_key: str  # empty in check mode, before it is made
    host_keys: tuple[str, ...]
    port: int = 22
    fact: FabricFact | None = None
    controller: str = ""  # where Ansible logs in from

    @property
    def addresses(self) -> tuple[str, ...]:
        """Every address at which it is reached and from which it logs in."""
        rails = [rail.address for rail in self.fact.rails] if self.fact else []
        return tuple(dict.fromkeys([self.address, *rails]))


@dataclass(frozen=True)
class Plan:
    """By host: ``files`` for ``managed_files``, ``hosts_lines`` for /etc/hosts, ``rules`` by layer for ufw, ``ignore``:
    addresses that must never be locked out."""

    files: dict[str, list[dict[str, Any]]]
    hosts_lines: dict[str, list[str]]
    rules: dict[str, dict[str, list[str]]]
    ignore: dict[str, list[str]]


def node_inputs(
    raw: Mapping[str, Mapping[str, Any]], settings: Settings = AS_DEFAULT
) -> tuple[dict[str, Node], list[Finding]]:
    """From what the role hands over, see ``planners``, read by their types. Findings: nodes that cannot be planned
    for, and addresses that are not theirs. ``settings``: what the fabric was asked for."""
    nodes: dict[str, Node] = {}
    findings: list[Finding] = []
    ranks = {host: int(values["rank"]) for host, values in raw.items()}
    for host, values in raw.items():
        look: Look = values["look"]
        client = look.connection[0] if len(look.connection) == 4 else ""
        chosen = management.choose(host, look.network, str(values.get("address") or ""))
        if chosen.refusal:
            findings.append(chosen.refusal)
            continue
        ports = look.ssh_ports or [22]
        nodes[host] = Node(
            rank=ranks[host],
            address=chosen.address,
            public_key=look.public_key,
            host_keys=tuple(look.host_keys),
            port=22 if 22 in ports else ports[0],
            fact=_planned(host, values, chosen.address, ranks, settings=settings, findings=findings)
            if values.get("fact")
            else None,
            controller=canonical(client),
        )
    claims = {host: {node.address: ownership.MANAGEMENT, **_claims(node)} for host, node in nodes.items()}
    given = {
        host: frozenset(filter(None, map(canonical, (raw[host].get("address"), raw[host].get("login")))))
        for host in nodes
    }
    return nodes, [*findings, *ownership.conflicts(claims, given)]


def _claims(node: Node) -> dict[str, str]:
    return ownership.of_fact(node.fact) if node.fact else {}


def _planned(
    host: str,
    values: Mapping[str, Any],
    address: str,
    ranks: Mapping[str, int],
    *,
    settings: Settings,
    findings: list[Finding],
) -> FabricFact:
    """The fact with the management address of today, which may have been another's when it was written, and without
    the rails whose addresses the plan of the fabric would not give this node.

    A run that readdresses the fabric by name comes here with the old ones, so they are left out and not refused.
    """
    fact: FabricFact = values["fact"]
    rank = ranks[host]
    own = {str(key): str(text) for key, text in (values.get("addresses") or {}).items()}
    pairs = [(rail, addresses.pair_of(fact, rail, rank, ranks)) for rail in fact.rails]
    kept = tuple(rail for rail, pair in pairs if pair is not None and addresses.stays(settings, rail, rank, pair, own))
    left = [rail for rail in fact.rails if rail not in kept]
    if left:
        findings.append(
            Finding(
                host,
                f"its fabric fact says {', '.join(f'{rail.address}/{rail.prefix}' for rail in left)}, which the plan "
                "of the fabric does not give it: no other node lets these addresses in, or knows them",
                fabric_fact.REMEDY,
                ", ".join(rail.netdev for rail in left),
                "warning",
            )
        )
    cluster = fact.cluster_address if fact.cluster_address in {rail.address for rail in kept} else address
    return replace(fact, rails=kept, management_address=address, cluster_address=cluster)


def plan(nodes: Mapping[str, Node], user: str) -> Plan:
    names = labels(list(nodes))
    known = "".join(_known(names[host], host, node) for host, node in _by_rank(nodes))
    reach = {host: _names(names[host], host, node) for host, node in nodes.items()}
    # Made once: the same text on every node, and as long as there are nodes.
    same = [
        {"path": KNOWN_HOSTS, "content": f"{_TITLE}\n{known}"},
        {"path": CLIENT, "content": _client(reach)},
        {"path": CONFIG, "content": _config(nodes, reach, user)},
    ]
    return Plan(
        files={
            host: [
                *same,
                {"path": f"/var/lib/{user}/.ssh/authorized_keys", "content": _authorized(host, nodes)},
                {"path": SUDOERS, "content": forced_command.sudoers(user), "mode": "0440"},
            ]
            for host in nodes
        },
        hosts_lines=_hosts_lines(nodes, names),
        rules=rules(nodes),
        ignore={host: _ignore(node, nodes) for host, node in nodes.items()},
    )


def _ignore(here: Node, nodes: Mapping[str, Node]) -> list[str]:
    """All nodes, and where Ansible logs in from, which each node says for itself alone."""
    found = [address for _host, node in _by_rank(nodes) for address in node.addresses]
    return list(dict.fromkeys([*found, *filter(None, [here.controller])]))


def _by_rank(nodes: Mapping[str, Node]) -> list[tuple[str, Node]]:
    return sorted(nodes.items(), key=lambda item: (item[1].rank, item[0]))


def _names(label: str, host: str, node: Node) -> list[str]:
    """Everything somebody on a node may write after ``ssh``."""
    fabric = [f"{label}-fabric", *(f"{label}-fabric{number}" for number in range(len(node.addresses) - 1))]
    return list(dict.fromkeys([label, host, f"{label}.local", *fabric, *node.addresses]))


def _known(label: str, host: str, node: Node) -> str:
    names = _names(label, host, node)
    if node.port != 22:
        names = [f"[{name}]:{node.port}" for name in names]
    return strict.lines((f"{','.join(names)} {key}" for key in node.host_keys), KNOWN_HOSTS)


def _client(reach: Mapping[str, Sequence[str]]) -> str:
    """For every user of the node: the nodes are known, without a question."""
    lines = [_TITLE]
    for names in reach.values():
        lines += [f"Host {' '.join(names)}", f"    GlobalKnownHostsFile {KNOWN_HOSTS} /etc/ssh/ssh_known_hosts"]
    return strict.lines(lines, CLIENT)


def _config(nodes: Mapping[str, Node], reach: Mapping[str, Sequence[str]], user: str) -> str:
    """For ``ssh -F``: the node's own key, and nothing of whoever runs it."""
    lines = [_TITLE, f"# Use: sudo ssh -F {CONFIG} <node> version"]
    for host, node in _by_rank(nodes):
        plain = [name for name in reach[host] if "-fabric" not in name and not canonical(name)]
        lines += [f"Host {' '.join(plain)}", f"    HostName {node.address}"]
        # The names on the fabric are left to /etc/hosts: in a ring each node reaches a peer at another address.
        if node.port != 22:
            lines += [f"Host {' '.join(reach[host])}", f"    Port {node.port}"]
    lines += [
        "Host *",
        f"    User {user}",
        f"    IdentityFile {KEY}",
        "    IdentitiesOnly yes",
        f"    UserKnownHostsFile {KNOWN_HOSTS}",
        "    GlobalKnownHostsFile none",
        "    StrictHostKeyChecking yes",
        "    BatchMode yes",
        "    ConnectTimeout 10",
    ]
    return strict.lines(lines, CONFIG)


def _authorized(host: str, nodes: Mapping[str, Node]) -> str:
    lines = [_TITLE]
    for peer, node in _by_rank(nodes):
        if peer != host and node.public_key:
            sources = ",".join(node.addresses)
            who = f"{strict.host(peer)}{' --head' if node.rank == 0 else ''}"
            lines.append(f'restrict,command="{TOOL} peer {who}",from="{sources}" {node.public_key} {peer}')
    return strict.lines(lines, "authorized_keys")


def _hosts_lines(nodes: Mapping[str, Node], names: Mapping[str, str]) -> dict[str, list[str]]:
    """The peers by name on the management network. The own name is the machine's own affair (127.0.1.1)."""
    lines = {host: f"{node.address} {names[host]}" for host, node in _by_rank(nodes)}
    return {host: [line for peer, line in lines.items() if peer != host] for host in nodes}


def rules(nodes: Mapping[str, Node]) -> dict[str, dict[str, list[str]]]:
    """What each layer lets in on each host: peers by address, and nobody else."""
    ordered = _by_rank(nodes)
    fabric = fabric_firewall.rules({host: node.fact for host, node in ordered if node.fact})
    found = {}
    for host in nodes:
        peers: list[str] = []
        for peer, there in ordered:
            if peer != host:
                cluster = there.fact.cluster_address if there.fact else there.address
                peers += [ufw.peer_rule(address) for address in (there.address, cluster)]
        # Ranks open ports of their own choosing to each other, with Ray and without it.
        peers = list(dict.fromkeys(peers))
        found[host] = {"fabric": fabric.get(host, []), "ray": peers, "engine": peers}
    return found
