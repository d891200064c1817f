# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which node is at the other end of a cable: frames that all nodes send and hear at the same time.

No addresses are needed. A node says on every port who it is, which nodes it knows to take part, and whose frames
arrived there, so that each learns whether it is heard as well. Everything here is pure: ``_fabric.neighbor_sockets``
has the sockets and the clock.

The frame has EtherType 0x88B5 (IEEE 802 local experimental 1) and goes to broadcast, which every switch forwards. In
network order::

    4s magic   B version   8s token of the cluster   H own place in the list of nodes   B cage, 255 unknown
    I nonce of this port in this run   B length and name of the node   B length and name of the netdev
    B length of both bit fields   bits of the nodes that take part   bits of the nodes that know enough
    H number of the nonces heard on this port   I each
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import (
    Flag,
    HostOrEmpty,
    Interface,
    InterfaceOrEmpty,
    MacOrEmpty,
    Number,
    Octet,
    SwitchOrEmpty,
    Word,
    Words,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import lldp

ETHERTYPE = 0x88B5
MAGIC = b"SMNB"
VERSION = 1
UNKNOWN_CAGE = 255
MAX_PAYLOAD = 1200  # bytes: fits the smallest MTU that the fabric may have (1280)
MAX_NODES = 2000  # what the length of the bit fields holds
INTERVAL_S = 0.1  # between two frames of a port
NODES_PER_INTERVAL = 64  # with more nodes than this on one switch, each speaks less often
SETTLE_S = 0.3  # nothing new for as long: all that speak have been heard
SILENT_S = 1.0  # the same, while somebody may still have to speak on a port that has a link
FRESH_S = 5.0  # a port that was switched on by us: links train for seconds
GRACE_S = 2.0  # how long a node that knows enough waits for others to say so too

_HEAD = struct.Struct("!4sB8sHBI")


@dataclass(frozen=True)
class Beacon:
    """One frame."""

    token: bytes
    index: int
    node: str
    netdev: str
    cage: int | None
    nonce: int
    taking_part: int  # bit field
    satisfied: int  # bit field
    heard: frozenset[int] = frozenset()


def token_of(nodes: Sequence[str], secret: str) -> bytes:
    """The same for all nodes of one cluster; frames of another cluster on the same switch are told by it."""
    return hashlib.sha256("\0".join([secret, *nodes]).encode()).digest()[:8]


def encode(beacon: Beacon, width: int, first: int = 0) -> bytes:
    """``width``: bytes of a bit field. When not all nonces fit, those from place ``first`` on."""
    node, netdev = beacon.node.encode()[:255], beacon.netdev.encode()[:255]
    cage = UNKNOWN_CAGE if beacon.cage is None else beacon.cage
    head = _HEAD.pack(MAGIC, VERSION, beacon.token, beacon.index, cage, beacon.nonce)
    head += bytes([len(node)]) + node + bytes([len(netdev)]) + netdev + bytes([width])
    head += beacon.taking_part.to_bytes(width, "big") + beacon.satisfied.to_bytes(width, "big")
    room = (MAX_PAYLOAD - len(head) - 2) // 4
    nonces = sorted(beacon.heard)
    if len(nonces) > room:
        first %= len(nonces)
        nonces = (nonces[first:] + nonces[:first])[:room]
    return head + struct.pack(f"!H{len(nonces)}I", len(nonces), *nonces)


def decode(payload: bytes) -> Beacon:
    """The part of a frame after the EtherType; short ones arrive padded. Raises ValueError for anything else."""
    if payload[:4] != MAGIC:
        raise ValueError("not a frame of this collection")
    reader = _Reader(payload)
    _magic, version, token, index, cage, nonce = _HEAD.unpack(reader.take(_HEAD.size))
    if version != VERSION:
        raise ValueError(f"version {version} of the frame, this node knows {VERSION}")
    node = strict.host(reader.take(reader.byte()).decode("utf-8"))
    netdev = strict.interface(reader.take(reader.byte()).decode("utf-8"))
    width = reader.byte()
    taking_part = int.from_bytes(reader.take(width), "big")
    satisfied = int.from_bytes(reader.take(width), "big")
    count = struct.unpack("!H", reader.take(2))[0]
    heard = struct.unpack(f"!{count}I", reader.take(4 * count))
    return Beacon(
        token,
        index,
        node,
        netdev,
        None if cage == UNKNOWN_CAGE else cage,
        nonce,
        taking_part,
        satisfied,
        frozenset(heard),
    )


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def take(self, count: int) -> bytes:
        found = self.data[self.place : self.place + count]
        if len(found) < count:
            raise ValueError("the frame is cut off")
        self.place += count
        return found

    def byte(self) -> int:
        return self.take(1)[0]


@dataclass(frozen=True)
class Heard:
    """One neighbour that was heard on one of our netdevs."""

    netdev: Interface
    cage: Optional[Octet]  # None where the adapter does not tell
    source: Word  # "probe" or "lldp"
    node: HostOrEmpty = ""  # nothing for LLDP from a device that is none of ours
    peer_netdev: InterfaceOrEmpty = ""
    peer_cage: Optional[Octet] = None
    peer_mac: MacOrEmpty = ""
    both_ways: Optional[Flag] = None  # the other end hears us as well; LLDP does not tell
    system: SwitchOrEmpty = ""
    port: SwitchOrEmpty = ""
    ids: tuple[Word, ...] = ()  # LLDP: MAC and IP addresses by which the device, and not the port, may be known


@dataclass(frozen=True)
class Port:
    """``brought_up``: it was switched off, and on for as long as the node listened. ``module_serial``: of the cable
    (``ethtool -m``), often the same at both ends."""

    carrier: Optional[Flag] = None
    brought_up: Flag = False
    module_serial: Words = ""


@dataclass(frozen=True)
class Neighbors:
    """Everybody who was heard, once per own port and port at the other end; own ports by name; what was odd."""

    heard: tuple[Heard, ...] = ()
    interfaces: Mapping[Interface, Port] = field(default_factory=dict)
    notes: tuple[Words, ...] = ()
    complete: Flag = False  # all nodes took part
    seconds: Number = 0.0


@dataclass
class End:
    """One of our ports."""

    netdev: str
    cage: int | None
    nonce: int
    carrier: bool = False
    brought_up: bool = False
    sent: int = 0
    beacons: dict[tuple[int, str], tuple[Beacon, str]] = field(default_factory=dict)  # newest, with its MAC address
    announcements: dict[str, tuple[lldp.Announcement, str]] = field(default_factory=dict)


class Conversation:
    """What was heard so far, what to say, and whether it is enough. Times are seconds of any one clock."""

    def __init__(
        self, me: str, nodes: Sequence[str], ends: Sequence[End], secret: str, now: float, *, own: Iterable[str] = ()
    ) -> None:
        """``nodes``: all that take part, ``me`` among them, the same everywhere. Raises ValueError if it is not so.
        ``own``: the MAC addresses of all interfaces of this machine."""
        self.nodes = sorted(set(nodes))
        if me not in self.nodes:
            raise ValueError(f"{me} is not among the nodes that take part")
        if len(self.nodes) > MAX_NODES:
            raise ValueError(f"{len(self.nodes)} nodes; at most {MAX_NODES} can take part")
        self.me = me
        self.own = {mac.lower() for mac in own}
        self.index = self.nodes.index(me)
        self.ends = {end.netdev: end for end in ends}
        self.token = token_of(self.nodes, secret)
        self.everybody = (1 << len(self.nodes)) - 1
        self.taking_part = 1 << self.index
        self.satisfied = 0
        self.started = now
        self.news = now  # when something was heard that was not known
        self.enough_since: float | None = None
        self.strange: dict[str, int] = {}  # note to how often

    @property
    def interval_s(self) -> float:
        return INTERVAL_S * max(1.0, len(self.nodes) / NODES_PER_INTERVAL)

    # -- speak

    def frame(self, netdev: str) -> bytes:
        """What to send on a port now."""
        end = self.ends[netdev]
        heard = frozenset(beacon.nonce for beacon, _mac in end.beacons.values())
        end.sent += 1
        beacon = Beacon(
            self.token,
            self.index,
            self.me,
            netdev,
            end.cage,
            end.nonce,
            self.taking_part,
            self.satisfied,
            heard,
        )
        return encode(beacon, (len(self.nodes) + 7) // 8, first=end.sent * 256)

    # -- hear

    def carrier(self, now: float, netdev: str, carrier: bool) -> None:
        end = self.ends[netdev]
        if end.carrier != carrier:
            end.carrier = carrier
            self.news = now

    def receive(self, now: float, netdev: str, mac: str, ethertype: int, payload: bytes) -> None:
        """A frame that arrived. Never raises: what cannot be understood becomes a note."""
        end = self.ends[netdev]
        try:
            if ethertype == lldp.ETHERTYPE:
                said = lldp.decode(payload)
                if end.announcements.get(mac, (None,))[0] != said:
                    end.announcements[mac] = (said, mac)
                    self.news = now
                return
            beacon = decode(payload)
        except ValueError as exc:
            kind = "LLDP frame" if ethertype == lldp.ETHERTYPE else f"frame of type 0x{ETHERTYPE:04x}"
            self._strange(f"{netdev}: a {kind} from {mac} was not understood ({exc})")
            return
        if beacon.token != self.token or beacon.index >= len(self.nodes) or self.nodes[beacon.index] != beacon.node:
            self._strange(
                f"{netdev}: {beacon.node} ({beacon.netdev}, {mac}) is on the same cable or switch and belongs to "
                "another cluster, or runs with another list of nodes"
            )
            return
        self._learn(now, end, beacon, mac)

    def _learn(self, now: float, end: End, beacon: Beacon, mac: str) -> None:
        taking_part = self.taking_part | (beacon.taking_part & self.everybody)
        # Our own bit is ours alone: others repeat what they heard last.
        satisfied = self.satisfied | (beacon.satisfied & self.everybody & ~(1 << self.index))
        if beacon.index == self.index and beacon.cage == end.cage:
            return  # the twin in the same cage, or ourselves
        key = (beacon.index, beacon.netdev)
        before = end.beacons.get(key)
        known = before is not None and before[0].nonce == beacon.nonce
        was_heard = known and before is not None and end.nonce in before[0].heard
        if was_heard and end.nonce not in beacon.heard:
            # Not all nonces fit into each frame.
            beacon = Beacon(**{**beacon.__dict__, "heard": beacon.heard | {end.nonce}})
        end.beacons[key] = (beacon, mac)
        if not known or was_heard != (end.nonce in beacon.heard) or taking_part != self.taking_part:
            self.news = now
        self.taking_part, self.satisfied = taking_part, satisfied

    def _strange(self, note: str) -> None:
        if len(self.strange) < 20 or note in self.strange:
            self.strange[note] = self.strange.get(note, 0) + 1

    # -- know enough

    def enough(self, now: float) -> bool:
        """All nodes take part, all that were heard have heard us, and nothing new has come for a while."""
        if self.taking_part != self.everybody:
            return False
        for end in self.ends.values():
            for beacon, _mac in end.beacons.values():
                if end.nonce not in beacon.heard and beacon.index != self.index:
                    return False
        quiet = SETTLE_S
        if any(end.carrier and not end.beacons for end in self.ends.values()):
            quiet = SILENT_S
        if any(end.brought_up and not end.beacons for end in self.ends.values()):
            quiet = FRESH_S
        return now - self.news >= max(quiet, 3 * self.interval_s)

    def finished(self, now: float) -> bool:
        """Everybody knows enough, or we do and the others do not say so."""
        if not self.enough(now):
            self.satisfied &= ~(1 << self.index)
            self.enough_since = None
            return False
        self.satisfied |= 1 << self.index
        if self.enough_since is None:
            self.enough_since = now
        return self.satisfied == self.everybody or now - self.enough_since >= GRACE_S

    # -- tell

    def add_announcements(self, found: Sequence[tuple[str, lldp.Announcement]]) -> None:
        """What lldpd knows already: switches speak every 30 seconds."""
        for netdev, said in found:
            if netdev in self.ends and said not in [known for known, _mac in self.ends[netdev].announcements.values()]:
                self.ends[netdev].announcements[f"lldpd {len(self.ends[netdev].announcements)}"] = (said, "")

    def heard(self) -> list[Heard]:
        """All neighbours, by netdev; those that our own frames found come first.

        Whose an LLDP announcement is, the MAC address of the port that spoke tells, else that of the chassis, which is
        any port of that machine. Names decide only where there is nothing else: several may be called ``spark``.
        """
        macs = {mac: beacon for end in self.ends.values() for beacon, mac in end.beacons.values()}
        found = []
        for end in self.ends.values():
            for _key, (beacon, mac) in sorted(end.beacons.items()):
                both = end.nonce in beacon.heard
                found.append(
                    Heard(
                        end.netdev,
                        end.cage,
                        "probe",
                        beacon.node,
                        beacon.netdev,
                        beacon.cage,
                        mac,
                        both,
                    )
                )
            for said, mac in end.announcements.values():
                sender = mac or said.port_mac
                here = {mac: beacon for beacon, mac in end.beacons.values()}
                port = macs.get(sender) or next((here[known] for known in said.macs if known in here), None)
                device = port or next((macs[known] for known in said.macs if known in macs), None)
                node = device.node if device else ""
                if not (sender or said.macs or said.addresses):
                    node = self._called(said.system)
                if node == self.me or self.own & {sender, *said.macs}:
                    continue  # through the other cage, or back from the same switch
                found.append(
                    Heard(
                        end.netdev,
                        end.cage,
                        "lldp",
                        node,
                        port.netdev if port else "",
                        port.cage if port else None,
                        sender or next(iter(said.macs), ""),
                        None,
                        strict.as_switch(said.system),
                        strict.as_switch(said.port),
                        tuple(known for known in (*said.macs, *said.addresses) if known != sender),
                    )
                )
        return found

    def _called(self, system: str) -> str:
        """The only node whose name begins like this one."""
        short = system.partition(".")[0].lower()
        found = [node for node in self.nodes if node.partition(".")[0].lower() == short]
        return found[0] if len(found) == 1 else ""

    def notes(self) -> list[str]:
        """For people: what was odd."""
        made = [f"{note}; {count} frame(s)" for note, count in self.strange.items()]
        missing = [node for place, node in enumerate(self.nodes) if not self.taking_part >> place & 1]
        if missing:
            made.append(f"not heard, neither directly nor through others: {', '.join(missing)}")
        one_way = sorted({(heard.netdev, heard.node) for heard in self.heard() if self._unheard(heard)})
        made += [f"{netdev}: {node} is heard, and does not hear this node" for netdev, node in one_way]
        return made

    def _unheard(self, heard: Heard) -> bool:
        return heard.source == "probe" and not heard.both_ways and heard.node != self.me

    def interfaces(self, serials: Mapping[str, str]) -> dict[str, Port]:
        return {name: Port(end.carrier, end.brought_up, serials.get(name, "")) for name, end in self.ends.items()}


def module_serial(text: str) -> str:
    """``Vendor SN                                 : APF21330038TKU`` in what ``ethtool -m`` prints."""
    for line in text.splitlines():
        name, _colon, value = line.partition(":")
        if name.strip() == "Vendor SN":
            return value.strip()
    return ""
