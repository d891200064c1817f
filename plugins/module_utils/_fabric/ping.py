# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Test each half of the cable with pings that must not be fragmented.

A ping of full size tests the MTU of both ends and of everything between them, in both directions, since the answer has
the size of the question. When it fails, a small one tells a wrong MTU from a wrong cable.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import kinds
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Completed, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import arp

HEADERS = 28  # bytes: IPv4 20, ICMP 8
SMALL = 56  # bytes, what ping sends by default
ANSWER_WAIT_S = 1
PAUSE_S = 0.2
MAX_PARALLEL = 32


@dataclass(frozen=True)
class Path:
    """From one of our rails to the same rail of a peer."""

    rail: int
    netdev: str
    source: str
    peer: str
    address: str
    mtu: int  # bytes


@dataclass(frozen=True)
class Request:
    """``timeout_s``: after which a path that has not answered has failed."""

    paths: tuple[Path, ...]
    timeout_s: float


@dataclass(frozen=True)
class Probe:
    """How it went. ``cause``: ``wrong_mtu``, ``no_address``, ``unreachable``, ``silent`` or ``failed``;
    None when ok."""

    rail: kinds.Octet
    peer: kinds.Host
    source: kinds.Ipv4
    address: kinds.Ipv4
    ok: kinds.Flag
    rtt_ms: Optional[kinds.Number] = None
    cause: Optional[kinds.Word] = None
    reason: Optional[kinds.Words] = None
    remedy: Optional[kinds.Words] = None


@dataclass
class Pinged:
    """``holders``: everybody who says that one of the addresses is theirs. A ping does not tell whether somebody else
    answers."""

    probes: list[Probe] = field(default_factory=list)
    holders: list[arp.Holder] = field(default_factory=list)


def ping(request: Request, _check: bool) -> Pinged:
    """The pings, and at the same time the question (ARP) who has these addresses."""
    asked: dict[str, set[str]] = {}
    for path in request.paths:
        asked.setdefault(path.netdev, set()).update((path.source, path.address))
    with ThreadPoolExecutor(max_workers=1) as pool:
        answers = pool.submit(arp.holders, Machine(), asked)
        return Pinged(probe(request.paths, request.timeout_s), answers.result())


def argv(path: Path, size: int) -> list[str]:
    """The command, in the options of iputils: no names, one packet, no fragments, from our address."""
    wait = str(ANSWER_WAIT_S)
    return ["ping", "-n", "-c", "1", "-W", wait, "-M", "do", "-s", str(size), "-I", path.source, path.address]


def parse_rtt(text: str) -> float | None:
    """Milliseconds from ``8980 bytes from 192.168.100.11: icmp_seq=1 ttl=64 time=0.042 ms``."""
    match = re.search(r"\btime[=<]\s*([0-9]+(?:\.[0-9]+)?)\s*ms", text)
    return float(match[1]) if match else None


def classify(done: Completed) -> str:
    """Why a ping failed, by what iputils prints: a cause of :class:`Probe`."""
    text = f"{done.out}\n{done.err}".lower()
    if "message too long" in text or "local error" in text:
        return "wrong_mtu"
    if "cannot assign requested address" in text:
        return "no_address"
    if "frag needed" in text:
        return "failed"
    if "unreachable" in text or "no route" in text:
        return "unreachable"
    # 1: no answer; everything else (2 and above) is a complaint about the command or the system.
    return "silent" if done.rc == 1 else "failed"


def _explain(path: Path, big: Completed, small: Completed) -> tuple[str, str, str]:
    """Cause, reason and remedy."""
    cause = classify(big)
    try_it = f"Repeat it with: {' '.join(argv(path, path.mtu - HEADERS))}"
    if cause == "no_address":
        return (
            cause,
            f"this node no longer has the address {path.source}",
            "If it was cut off for a while, it has taken the change back by itself (fabric_rollback_seconds), as "
            "journalctl -u 'sparkmatrix-fabric-restore-*' then says: check the management network, or raise the time. "
            "Then run again",
        )
    if cause == "wrong_mtu":
        return (
            cause,
            f"packets of {path.mtu} bytes do not leave this node, its own MTU is smaller",
            f"Check ip link for another MTU than {path.mtu} on the interface with {path.source}",
        )
    if small.rc == 0:
        return (
            "wrong_mtu",
            f"packets of {path.mtu} bytes are lost, small ones pass: the MTU is smaller on the way or at the other end",
            "Check ip link at the other end. Through a switch: set the MTU of its ports to "
            f"{max(9216, path.mtu)} or more, or lower fabric_mtu. {try_it}",
        )
    if cause == "unreachable":
        return (
            cause,
            "nobody answers for the address (ARP)",
            "Check that the cables of both nodes lead to the same switch, or to each other, and that no VLAN separates "
            "them. " + try_it,
        )
    if cause == "silent":
        return (
            cause,
            "no answer, neither to large nor to small packets",
            "Check the firewall of both nodes (ICMP echo on the fabric interfaces) and the switch. " + try_it,
        )
    return ("failed", f"ping failed: {big.complaint}", try_it)


def probe(
    paths: Sequence[Path],
    timeout_s: float,
    runner: Runner = run,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Probe]:
    """Ping all paths at the same time, each again and again until it answers or ``timeout_s`` is over.

    The first packet after a change is often lost to ARP, and a switch port may take seconds to forward.
    """
    deadline = clock() + timeout_s

    def one(path: Path) -> Probe:
        ends = (path.rail, path.peer, path.source, path.address)
        while True:
            big = runner(argv(path, path.mtu - HEADERS))
            if big.rc == 0:
                return Probe(*ends, True, parse_rtt(big.out))
            if big.rc == NOT_FOUND:
                raise SparkError("there is no program 'ping'", "", "Install iputils-ping")
            if clock() >= deadline:
                break
            sleep(PAUSE_S)
        cause, reason, remedy = _explain(path, big, runner(argv(path, SMALL)))
        return Probe(*ends, False, cause=cause, reason=reason, remedy=remedy)

    if not paths:
        return []
    with ThreadPoolExecutor(max_workers=min(len(paths), MAX_PARALLEL)) as pool:
        return list(pool.map(one, paths))
