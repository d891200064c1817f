# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which node is at the other end of a cable: frames that all nodes send and hear at the same time.

No addresses are needed. A node says on every port who it is, whose frames arrived there, which nodes it knows to take
part, and which of them know enough. Everything here is pure: ``_fabric.neighbor_sockets`` has sockets and clock.

A frame has EtherType 0x88B5 (IEEE 802 local experimental 1), goes to broadcast, which every switch forwards, and holds
a :class:`Beacon` as JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, kinds
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

ETHERTYPE = 0x88B5
INTERVAL_S = 0.1  # between two frames of a port
SETTLE_S = 0.3  # nothing new for as long: all that speak have been heard
SILENT_S = 1.0  # the same, while somebody may still have to speak on a port that has a link
FRESH_S = 5.0  # a port that was switched on by us: links train for seconds
GRACE_S = 2.0  # how long a node that knows enough waits for others to say so too


@dataclass(frozen=True)
class Beacon:
    """One frame. Nodes are places in the sorted list, which is the same on all of them."""

    token: kinds.Word  # of the cluster: others may be on the same switch
    node: kinds.Host
    netdev: kinds.Interface
    cage: Optional[kinds.Octet]
    heard: tuple[kinds.Count, ...] = ()  # nodes whose frames arrived on this port
    here: tuple[kinds.Count, ...] = ()  # nodes that take part
    ready: tuple[kinds.Count, ...] = ()  # nodes that know enough


def encode(beacon: Beacon) -> bytes:
    return json.dumps(document.plain(beacon), separators=(",", ":")).encode()


def decode(payload: bytes) -> Beacon:
    """The part of a frame after the EtherType; short ones arrive padded. Raises ValueError for anything else."""
    try:
        found: Beacon = document.load_known(Beacon, json_text.read(payload.rstrip(b"\0")))
    except SparkError as exc:
        raise ValueError(exc.found) from exc
    return found


@dataclass(frozen=True)
class Heard:
    """One neighbour that was heard on one of our netdevs."""

    netdev: kinds.Interface
    cage: Optional[kinds.Octet]  # None where the adapter does not tell
    source: kinds.Word  # "probe" or "lldp"
    node: kinds.HostOrEmpty = ""  # nothing for LLDP
    peer_cage: Optional[kinds.Octet] = None
    both_ways: Optional[kinds.Flag] = None  # the other end hears us as well; LLDP does not tell
    system: kinds.SwitchOrEmpty = ""
    port: kinds.SwitchOrEmpty = ""
    ids: tuple[kinds.Word, ...] = ()  # LLDP: MAC and IP addresses of the device and its port


@dataclass(frozen=True)
class Port:
    """``brought_up``: it was switched off, and on for as long as the node listened."""

    carrier: Optional[kinds.Flag] = None
    brought_up: kinds.Flag = False


@dataclass(frozen=True)
class Neighbors:
    """Everybody who was heard, once per own port and port at the other end; own ports by name; what was odd."""

    heard: tuple[Heard, ...] = ()
    interfaces: Mapping[kinds.Interface, Port] = field(default_factory=dict)
    notes: tuple[kinds.Words, ...] = ()
    complete: kinds.Flag = False  # all nodes took part
    seconds: kinds.Number = 0.0


@dataclass
class End:
    """One of our ports."""

    netdev: str
    cage: int | None
    carrier: bool = False
    brought_up: bool = False
    beacons: dict[tuple[str, str], tuple[Beacon, str]] = field(default_factory=dict)  # newest, with its MAC address


class Conversation:
    """What was heard so far, what to say, and whether it is enough. Times are seconds of any one clock."""

    def __init__(self, me: str, nodes: Sequence[str], ends: Sequence[End], secret: str, now: float) -> None:
        """``nodes``: all that take part, ``me`` among them, the same everywhere. Raises ValueError if it is not so."""
        self.nodes = sorted(set(nodes))
        if me not in self.nodes:
            raise ValueError(f"{me} is not among the nodes that take part")
        self.me = me
        self.index = self.nodes.index(me)
        self.ends = {end.netdev: end for end in ends}
        self.token = hashlib.sha256("\0".join([secret, *self.nodes]).encode()).hexdigest()[:16]
        self.everybody = set(range(len(self.nodes)))
        self.here = {self.index}
        self.ready: set[int] = set()
        self.news = now  # when something was heard that was not known
        self.enough_since: float | None = None
        self.strange: dict[str, int] = {}  # note to how often

    # -- speak

    def frame(self, netdev: str) -> bytes:
        """What to send on a port now."""
        end = self.ends[netdev]
        heard = sorted({self.nodes.index(node) for node, _netdev in end.beacons})
        sets = (tuple(heard), tuple(sorted(self.here)), tuple(sorted(self.ready)))
        return encode(Beacon(self.token, self.me, netdev, end.cage, *sets))

    # -- hear

    def carrier(self, now: float, netdev: str, carrier: bool) -> None:
        end = self.ends[netdev]
        if end.carrier != carrier:
            end.carrier = carrier
            self.news = now

    def receive(self, now: float, netdev: str, mac: str, payload: bytes) -> None:
        """A frame that arrived. Never raises: what cannot be understood becomes a note."""
        try:
            beacon = decode(payload)
        except ValueError as exc:
            self._strange(f"{netdev}: a frame of type 0x{ETHERTYPE:04x} from {mac} was not understood ({exc})")
            return
        if beacon.token != self.token or beacon.node not in self.nodes:
            self._strange(
                f"{netdev}: {beacon.node} ({beacon.netdev}, {mac}) is on the same cable or switch and belongs to "
                "another cluster, or runs with another list of nodes"
            )
            return
        self._learn(now, self.ends[netdev], beacon, mac)

    def _learn(self, now: float, end: End, beacon: Beacon, mac: str) -> None:
        here = self.here | (set(beacon.here) & self.everybody)
        # Whether we know enough we say ourselves: others repeat what they heard last.
        ready = self.ready | (set(beacon.ready) & self.everybody - {self.index})
        if beacon.node == self.me and beacon.cage == end.cage:
            return  # the twin in the same cage, or ourselves
        before = end.beacons.get((beacon.node, beacon.netdev))
        if before is None or (self._hears_us(before[0]) != self._hears_us(beacon)) or here != self.here:
            self.news = now
        end.beacons[beacon.node, beacon.netdev] = (beacon, mac)
        self.here, self.ready = here, ready

    def _hears_us(self, beacon: Beacon) -> bool:
        return self.index in beacon.heard or beacon.node == self.me

    def _strange(self, note: str) -> None:
        if len(self.strange) < 20 or note in self.strange:
            self.strange[note] = self.strange.get(note, 0) + 1

    # -- know enough

    def enough(self, now: float) -> bool:
        """All nodes take part, all that were heard have heard us, and nothing new has come for a while."""
        ends = self.ends.values()
        if self.here != self.everybody:
            return False
        if not all(self._hears_us(beacon) for end in ends for beacon, _mac in end.beacons.values()):
            return False
        quiet = SILENT_S if any(end.carrier and not end.beacons for end in ends) else SETTLE_S
        if any(end.brought_up and not end.beacons for end in ends):
            quiet = FRESH_S
        return now - self.news >= quiet

    def finished(self, now: float) -> bool:
        """Everybody knows enough, or we do and the others do not say so."""
        if not self.enough(now):
            self.ready.discard(self.index)
            self.enough_since = None
            return False
        self.ready.add(self.index)
        if self.enough_since is None:
            self.enough_since = now
        return self.ready == self.everybody or now - self.enough_since >= GRACE_S

    # -- tell

    def heard(self) -> list[Heard]:
        """All neighbours, by netdev."""
        return [
            Heard(end.netdev, end.cage, "probe", beacon.node, beacon.cage, self._hears_us(beacon))
            for end in self.ends.values()
            for _key, (beacon, mac) in sorted(end.beacons.items())
        ]

    def notes(self) -> list[str]:
        """For people: what was odd."""
        made = [f"{note}; {count} frame(s)" for note, count in self.strange.items()]
        missing = [self.nodes[place] for place in sorted(self.everybody - self.here)]
        if missing:
            made.append(f"not heard, neither directly nor through others: {', '.join(missing)}")
        one_way = sorted({(heard.netdev, heard.node) for heard in self.heard() if not heard.both_ways})
        return made + [f"{netdev}: {node} is heard, and does not hear this node" for netdev, node in one_way]

    def interfaces(self) -> dict[str, Port]:
        return {name: Port(end.carrier, end.brought_up) for name, end in self.ends.items()}
