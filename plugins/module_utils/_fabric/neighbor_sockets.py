# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The sockets, interfaces and tools under ``_fabric.neighbors``.

Nothing outlives the process except, when it is killed without a chance to tidy up (SIGKILL, power), an interface that
was switched off and is now on. Sockets and their multicast memberships end with the process.
"""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict, sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import lldp
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import RdmaPort, cages, read
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import (
    ETHERTYPE,
    INTERVAL_S,
    Conversation,
    End,
    Heard,
    Neighbors,
)

BROADCAST = b"\xff" * 6
BUFFER = 65536
FAREWELLS = 3  # the last frames tell the others that all know enough
FAREWELL_GAP_S = 0.03
_PACKET_OUTGOING = 4  # linux/if_packet.h

Arrival = tuple[str, str, bytes]  # netdev, MAC address of the sender, payload


def ends(ports: Sequence[RdmaPort]) -> list[End]:
    """Every Ethernet port of an RDMA device with its cage."""
    cage_of = {half.netdev: cage.cage for cage in cages(ports) for half in cage.halves}
    netdevs = dict.fromkeys(port.netdev for port in ports if port.netdev and port.link_layer in (None, "Ethernet"))
    return [End(netdev, cage_of.get(netdev)) for netdev in netdevs]


def own_macs(sysfs_root: Path) -> list[str]:
    """Of all interfaces, the management port among them: lldpd names the machine by any of them."""
    net = sysfs_root / "class/net"
    return [mac for name in sysfs.names(net) or [] if (mac := sysfs.read_text(net / name / "address"))]


@dataclass(frozen=True)
class Request:
    """``node`` is one of ``nodes``, who all listen at the same time. ``cluster``: any text that is the same on all of
    them, and another in another cluster on the same switch."""

    node: str
    nodes: tuple[str, ...]
    cluster: str = ""
    timeout_s: float = 10.0


def find(request: Request, check: bool) -> Neighbors:
    """Who is at the other end of each cable. In check mode ports that are switched off stay off."""
    root = sysfs.root()
    own = ends(read(root))
    try:
        talk = Conversation(request.node, request.nodes, own, request.cluster, time.monotonic())
    except ValueError as exc:
        raise SparkError(str(exc), request.node, "Run the whole fabric layer") from exc
    wire = Wire([end.netdev for end in own], root)
    try:
        return probe(talk, wire, request.timeout_s, may_switch_on=not check)
    finally:
        wire.close()


class Wire:
    """Raw sockets for one kind of frames on the given netdevs, and their state. Tests put something else in its
    place."""

    def __init__(
        self,
        netdevs: Sequence[str],
        sysfs_root: Path = Path("/sys"),
        runner: Runner = run,
        ethertype: int = ETHERTYPE,
    ) -> None:
        self.net = sysfs_root / "class/net"
        self.runner = runner
        self.ethertype = ethertype
        self.sockets: dict[socket.socket, str] = {}
        self.speaking: dict[str, socket.socket] = {}
        self.lost: dict[str, str] = {}  # netdev to reason
        self.poll = select.poll()
        for netdev in netdevs:
            try:
                self.speaking[netdev] = self._open(netdev, ethertype)
            except PermissionError as exc:
                self.close()
                raise SparkError(
                    "no permission to open a raw socket (CAP_NET_RAW)", netdev, "Run the task with become: true"
                ) from exc
            except OSError as exc:
                self.lost[netdev] = str(exc.strerror or exc)

    def _open(self, netdev: str, ethertype: int) -> socket.socket:
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        try:
            opened.setblocking(False)
            opened.bind((netdev, ethertype))
        except OSError:
            opened.close()
            raise
        self.sockets[opened] = netdev
        self.poll.register(opened, select.POLLIN)
        return opened

    def close(self) -> None:
        for opened in self.sockets:
            opened.close()
        self.sockets.clear()

    # -- frames

    def send(self, netdev: str, payload: bytes) -> None:
        """Best effort: a port without a link, or one that left, drops what it is given."""
        opened = self.speaking.get(netdev)
        if opened is not None:
            try:
                opened.sendto(payload, (netdev, self.ethertype, 0, 0, BROADCAST))
            except OSError as exc:
                self.lost.setdefault(netdev, str(exc.strerror or exc))
            else:
                self.lost.pop(netdev, None)

    def receive(self, timeout_s: float) -> list[Arrival]:
        """What has arrived; waits for the first frame at most ``timeout_s``."""
        found = []
        by_number = {opened.fileno(): opened for opened in self.sockets}
        for number, _event in self.poll.poll(max(0.0, timeout_s) * 1000):
            opened = by_number[number]
            try:
                payload, (netdev, _ethertype, direction, _hardware, mac) = opened.recvfrom(BUFFER)
            except OSError:  # the port went down; the carrier tells
                continue
            if direction != _PACKET_OUTGOING:
                found.append((netdev, mac.hex(":"), payload))
        return found

    # -- interfaces

    def carrier(self, netdev: str) -> bool:
        return sysfs.read_text(self.net / netdev / "carrier") == "1"

    def admin_up(self, netdev: str) -> bool:
        return bool((sysfs.to_int(sysfs.read_text(self.net / netdev / "flags")) or 0) & 1)

    def set_up(self, netdev: str, up: bool) -> str:
        """Returns what went wrong, or nothing."""
        done = self.runner(["ip", "link", "set", "dev", netdev, "up" if up else "down"])
        return "" if done.rc == 0 else done.complaint


@dataclass
class Switched:
    """Interfaces that are on for as long as this block runs, also when a signal ends it."""

    wire: Any
    netdevs: Sequence[str]
    notes: list[str] = field(default_factory=list)
    on: list[str] = field(default_factory=list)
    handlers: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> Switched:
        for number in (signal.SIGTERM, signal.SIGHUP):
            self.handlers[number] = signal.signal(number, _end)
        try:
            for netdev in self.netdevs:
                problem = self.wire.set_up(netdev, True)
                if problem:
                    self.notes.append(f"{netdev}: switched off, and it could not be switched on: {problem}")
                else:
                    self.on.append(netdev)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for netdev in self.on:
            problem = self.wire.set_up(netdev, False)
            if problem:
                self.notes.append(f"{netdev}: was switched on for the probe, and is still on: {problem}")
        for number, handler in self.handlers.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def converse(
    talk: Conversation,
    wire: Any,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Send and listen until everybody knows enough or ``timeout_s`` is over. Returns the seconds that it took."""
    start = clock()
    next_frame = start
    while True:
        now = clock()
        if now >= next_frame:
            for netdev in talk.ends:
                talk.carrier(now, netdev, wire.carrier(netdev))
                wire.send(netdev, talk.frame(netdev))
            next_frame = max(next_frame + INTERVAL_S, now)
        for arrival in wire.receive(min(next_frame, start + timeout_s) - clock()):
            talk.receive(clock(), *arrival)
        now = clock()
        if talk.finished(now) or now - start >= timeout_s:
            break
    for _farewell in range(FAREWELLS):
        for netdev in talk.ends:
            wire.send(netdev, talk.frame(netdev))
        sleep(FAREWELL_GAP_S)
    return clock() - start


def lldpd(runner: Runner, own: Mapping[str, End]) -> tuple[list[Heard], str]:
    """What a running lldpd knows, since switches speak every 30 seconds only, and what went wrong. Not installed is no
    problem. Whose an announcement is, its MAC and IP addresses tell (``_fabric.cable_map``)."""
    done = runner(["lldpcli", "-f", "json", "show", "neighbors"])
    if done.rc == NOT_FOUND:
        return [], ""
    if done.rc != 0:
        return [], f"lldpcli: {done.complaint}"
    try:
        known = lldp.parse_lldpcli(done.out)
    except SparkError as exc:
        return [], str(exc)
    found = []
    for netdev, said in known:
        if netdev in own:
            system, port = strict.as_switch(said.system), strict.as_switch(said.port)
            found.append(Heard(netdev, own[netdev].cage, "lldp", system=system, port=port, ids=said.ids))
    return found, ""


def probe(
    talk: Conversation,
    wire: Any,
    timeout_s: float,
    may_switch_on: bool = True,
    *,
    runner: Runner = run,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Neighbors:
    off = [netdev for netdev in talk.ends if not wire.admin_up(netdev)]
    notes = []
    if off and not may_switch_on:
        notes = [f"{netdev}: switched off; not switched on in check mode, so nobody is heard there" for netdev in off]
    with ThreadPoolExecutor(max_workers=1) as pool:
        known = pool.submit(lldpd, runner, talk.ends)
        with Switched(wire, off if may_switch_on else ()) as switched:
            for netdev in switched.on:
                talk.ends[netdev].brought_up = True
            seconds = converse(talk, wire, timeout_s, clock, sleep)
    announced, problem = known.result()
    lost = [f"{netdev}: {reason}" for netdev, reason in wire.lost.items() if netdev not in off]
    return Neighbors(
        (*talk.heard(), *announced),
        talk.interfaces(),
        (*notes, *switched.notes, *talk.notes(), *([problem] if problem else []), *lost),
        talk.here == talk.everybody,
        round(seconds, 3),
    )
