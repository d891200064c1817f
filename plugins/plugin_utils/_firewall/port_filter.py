# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Who may open a connection to Ray and the ranks, and to the addresses on the fabric, and who answers at the ports of
our services: as rules of nftables.

Tables of our own. They only drop or refuse first packets (SYN) of TCP connections; what is connected goes on,
nothing is tracked, and whatever they let pass still has to pass ufw and every other table.

``services``: the sockets of Ray and the engine, whatever their ports are: torch, gloo, NCCL and ZMQ let nobody choose
theirs. The kernel tells them by the control group of the process that opened them, the slice of our units and
containers. Other nodes come in, and nobody else. An account of a node that is neither root nor the service user has
the first packet of its connections to the nodes marked (DSCP 1); there such a packet is dropped, too. The API and
Ray's dashboard on loopback ask for a key or a token themselves, and answer every account. At the address of an API,
and at the fixed ports of Ray and the ranks, nobody else answers: whoever takes one while the service is down gets no
connection, and so no key, no token and no prompt. Nor does anybody open one from there, which would meet a client's own
first packet half way, without a listener.

What is left of a connection that somebody ended (TIME_WAIT, a minute long) is in no control group, and a client that
comes again from the same port meets that, and no listener. So it is taken away first, where somebody listens: what
``tproxy`` does on its way to a transparent socket. None of ours is one, so it hands the packet to nobody. A connection
that is half made is in no control group either: its first packet, when it comes once more, is let go.

``gateway``, ``web_ui``, ``observability``: the same for the ports of these layers. And one address has so many
connections to the gateway and no more: nginx counts only those that have sent the head of a request.

``fabric``: Linux answers for each of its addresses on all of its interfaces. Here the addresses on the fabric answer
on the fabric only.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall.port_filter import (
    ACCOUNTS,
    CGROUP,
    FABRIC,
    SERVICES,
    STATE,
    cgroup,
    table,
)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Place = tuple[str, int]  # address, or nothing for all of the node's, and port
Kind = TypeVar("Kind", ipaddress.IPv4Network, ipaddress.IPv6Network)

_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,14}")
_MARK = 1
_OPENING = "tcp flags & (fin | syn | rst | ack)"
# In front of everybody's own rules, which are at 0.
_HOOK = "type filter hook {0} priority filter - 10; policy accept;"
_ENDED = [
    f"meta nfproto {version} fib daddr type local meta l4proto tcp tproxy {family} to {family} daddr"
    for version, family in (("ipv4", "ip"), ("ipv6", "ip6"))
]
_REFUSED = [
    "socket wildcard { 0, 1 } counter reject with tcp reset",  # somebody else's
    "socket transparent { 0, 1 } counter drop",  # half made, or ended with nobody there
    "counter reject with tcp reset",
]


@dataclass(frozen=True)
class Reach:
    """Who reaches Ray and the ranks of one node. Interfaces are those of its fabric."""

    interfaces: tuple[str, ...] = ()
    fabric: tuple[Network, ...] = ()  # other nodes, over these interfaces
    management: tuple[Network, ...] = ()  # other nodes, over any other
    also: tuple[Network, ...] = ()  # whom the user names
    answered: tuple[int, ...] = ()  # ports that every account of the nodes may use
    ports: tuple[Place, ...] = ()  # of the APIs, Ray and the ranks on this node


def services(who: Reach) -> str:
    fabric = _interfaces(who.interfaces)
    ours = [f"tcp dport {_set(map(str, who.answered))} iifname lo accept"] if who.answered else []
    if who.answered:
        # The gateway on the head asks the APIs of other heads, and is an account of its own.
        ours += [f"tcp dport {_set(map(str, who.answered))} {rule}" for rule in _peers(who, fabric)]
    ours += [f"{family} dscp {_MARK} counter drop" for family in ("ip", "ip6")]
    ours += ["iifname lo accept", *_peers(who, fabric), f'counter drop comment "{STATE}"']
    marked = [
        f"{family} {match} {family} dscp set {_MARK}"
        for family, addresses in _families((*who.fabric, *who.management))
        for match in [f"daddr {_set(addresses)}"]
    ]
    known = f'socket cgroupv2 level 1 "{CGROUP}" jump ours'  # from where none of ours comes back
    return _table(
        SERVICES,
        [
            ("ours", ours),
            *_guarded(
                known,
                who.ports,
                [
                    f"meta skuid ${ACCOUNTS} accept",
                    *(f"oifname lo {family} dscp set {_MARK}" for family in ("ip", "ip6")),
                    *marked,
                ],
            ),
        ],
    )


def fabric(rails: Mapping[str, str]) -> str:
    """``rails``: interface by address; none, empty. Ports below 1024, ssh among them, are left alone."""
    if not rails:
        return ""
    own = _interfaces(["lo", *rails.values()])
    rules = [f"{_OPENING} != syn accept", f"iifname {own} accept"]
    for family, addresses in _families(networks(rails)):
        rules.append(f'{family} daddr {_set(addresses)} tcp dport >= 1024 counter drop comment "{STATE}"')
    return _table(FABRIC, [("input", rules)])


def layer(name: str, ports: Iterable[Place], crowded: int = 0, most: int = 0) -> str:
    """Of a layer with services of its own. ``most``: connections of one address at a time to the port ``crowded``."""
    ours = ["iifname lo accept"]  # probes, tunnels, a proxy on this machine
    sets = []
    for family, kind in (("ip", "ipv4_addr"), ("ip6", "ipv6_addr")) if most else ():
        sets.append(f"set {family}_clients {{ type {kind}; size 65535; flags dynamic; }}")
        over = f"{family} saddr ct count over {most}"
        ours.append(f"tcp dport {crowded} add @{family}_clients {{ {over} }} counter reject with tcp reset")
    known = f'socket cgroupv2 level 2 "{cgroup(name)}" jump ours comment "{STATE}"'
    return _table(name, [("ours", [*ours, "accept"]), *_guarded(known, ports)], sets)


def _guarded(known: str, ports: Iterable[Place], outgoing: Sequence[str] = ()) -> list[tuple[str, list[str]]]:
    """``known``: what becomes of packets to services of ours. Whoever else has one of ``ports`` is not reached there,
    and reaches nobody from there. ``outgoing``: what else becomes of what this machine opens."""
    opening = f"{_OPENING} != syn accept"
    places = _places(ports)
    from_there = [match.replace("daddr", "saddr").replace("dport", "sport") for match in places]
    return [
        ("refused", _REFUSED),
        ("prerouting", [opening, *_ENDED]),
        ("input", [opening, known, *(f"{match} goto refused" for match in places)]),
        ("output", [opening, *(f"{match} counter reject with tcp reset" for match in from_there), *outgoing]),
    ]


def _places(ports: Iterable[Place]) -> list[str]:
    """What matches packets to these ports."""
    by_address: dict[str, set[int]] = {}
    for address, port in sorted(set(ports)):
        by_address.setdefault(address, set()).add(port)
    places = []
    for address, own in by_address.items():
        what = f"tcp dport {_set(map(str, sorted(own)))}"
        # localhost may be either; 0.0.0.0 and :: are all addresses of their kind.
        wide = f"{address}/0" if address in ("0.0.0.0", "::") else address  # noqa: S104 -- to compare
        found = _families(networks([wide, *(["::1"] if address == "127.0.0.1" else [])])) if address else []
        places += [f"{family} daddr {_set(addresses)} {what}" for family, addresses in found] or [what]
    return places


def _peers(who: Reach, interfaces: str) -> list[str]:
    """Each address over the network that it belongs to: on another one it is somebody's who only says so."""
    rules = []
    for own, where in (
        (who.fabric, f"iifname {interfaces} "),
        (who.management, f"iifname != {interfaces} " if who.interfaces else ""),
        (who.also, ""),
    ):
        rules += [f"{where}{family} saddr {_set(addresses)} accept" for family, addresses in _families(own)]
    return rules


def _table(name: str, chains: Sequence[tuple[str, Sequence[str]]], sets: Iterable[str] = ()) -> str:
    """Replaces what is there in one step, whether there was any or not."""
    full = table(name)
    lines = [f"table {full}", f"delete table {full}", f"table {full} {{", *(f"    {one}" for one in sets)]
    for chain, rules in chains:
        hook = [_HOOK.format(chain)] if chain not in ("ours", "refused") else []
        lines += [f"    chain {chain} {{", *(f"        {rule}" for rule in (*hook, *rules)), "    }"]
    # A chain has to be there before another one jumps to it; nft reads the whole table first.
    return "\n".join([*lines, "}"]) + "\n"


def networks(values: Iterable[str], where: str = "") -> tuple[Network, ...]:
    made: dict[Network, None] = {}
    for value in values:
        try:
            network = ipaddress.ip_network(str(value), strict=False)
            if "%" in str(network):  # Python takes any text for the zone of an address
                raise ValueError(value)
        except ValueError as exc:
            raise SparkError(f"{value!r} is no address and no network", where, "Write it like 192.168.1.0/24") from exc
        made[network] = None
    return tuple(made)


def _families(found: Iterable[Network]) -> list[tuple[str, list[str]]]:
    own = list(dict.fromkeys(found))
    four = _outer([one for one in own if isinstance(one, ipaddress.IPv4Network)])
    six = _outer([one for one in own if isinstance(one, ipaddress.IPv6Network)])
    return [(family, texts) for family, texts in (("ip", four), ("ip6", six)) if texts]


def _outer(own: Sequence[Kind]) -> list[str]:
    """Without those inside another one, which nft would refuse."""
    outer: dict[Kind, None] = {}
    last: Kind | None = None
    # Of two that overlap one is inside the other and comes after it in this order. To compare all with all, for each
    # machine, grew with the cube of the machines.
    for one in sorted(own, key=lambda network: (int(network.network_address), network.prefixlen)):
        if last is None or not one.subnet_of(last):
            outer[one] = None
            last = one
    return [str(one.network_address) if one.num_addresses == 1 else str(one) for one in own if one in outer]


def _interfaces(names: Iterable[str]) -> str:
    for name in names:
        if not _INTERFACE.fullmatch(name):
            raise SparkError(f"{name!r} is no name of an interface", "", "Run the fabric layer again")
    return _set(f'"{name}"' for name in names)


def _set(items: Iterable[str]) -> str:
    return f"{{ {', '.join(items)} }}"
