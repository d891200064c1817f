# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Sequence

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import arp
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import ping as module
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ping import (
    Path,
    argv,
    classify,
    parse_rtt,
    probe,
)

# What ping of iputils 20240905 prints.
ANSWER = """\
PING 192.168.100.11 (192.168.100.11) from 192.168.100.10 : 8972(9000) bytes of data.
8980 bytes from 192.168.100.11: icmp_seq=1 ttl=64 time=0.087 ms

--- 192.168.100.11 ping statistics ---
1 packets transmitted, 1 received, 0% packet loss, time 0ms
rtt min/avg/max/mdev = 0.087/0.087/0.087/0.000 ms
"""
SILENCE = """\
PING 192.168.100.11 (192.168.100.11) from 192.168.100.10 : 8972(9000) bytes of data.

--- 192.168.100.11 ping statistics ---
1 packets transmitted, 0 received, 100% packet loss, time 0ms
"""
UNREACHABLE = """\
PING 192.168.100.11 (192.168.100.11) from 192.168.100.10 : 8972(9000) bytes of data.
From 192.168.100.10 icmp_seq=1 Destination Host Unreachable

--- 192.168.100.11 ping statistics ---
1 packets transmitted, 0 received, +1 errors, 100% packet loss, time 0ms
"""
FRAGMENT = "From 10.1.1.1 icmp_seq=1 Frag needed and DF set (mtu = 1500)\n"
BIND = "ping: bind: Cannot assign requested address\n"
TOO_LONG = "ping: sendmsg: Message too long\n"
TOO_LONG_KNOWN = "ping: local error: message too long, mtu=1500\n"

PATH = Path(1, "net1", "192.168.100.10", "spark2", "192.168.100.11", 9000)


def test_the_command_forbids_fragments_and_names_the_source() -> None:
    assert argv(PATH, 8972) == [
        *("ping", "-n", "-c", "1", "-W", "1", "-M", "do", "-s", "8972", "-I", "192.168.100.10", "192.168.100.11")
    ]


@pytest.mark.parametrize(
    ("text", "rtt"),
    [(ANSWER, 0.087), ("64 bytes: time=12 ms", 12.0), ("64 bytes: time<1 ms", 1.0), (SILENCE, None), ("", None)],
)
def test_rtt(text: str, rtt: float | None) -> None:
    assert parse_rtt(text) == rtt


@pytest.mark.parametrize(
    ("done", "cause"),
    [
        (Completed(1, SILENCE), "silent"),
        (Completed(1, UNREACHABLE), "unreachable"),
        (Completed(2, "", "ping: connect: Network is unreachable\n"), "unreachable"),
        (Completed(2, "", "ping: sendmsg: No route to host\n"), "unreachable"),
        (Completed(1, SILENCE, TOO_LONG), "wrong_mtu"),
        (Completed(1, SILENCE, TOO_LONG_KNOWN), "wrong_mtu"),
        (Completed(1, FRAGMENT), "failed"),
        (Completed(2, "", BIND), "no_address"),
        (Completed(2, "", "ping: socket: Operation not permitted\n"), "failed"),
        (Completed(124, "", "ping gave no answer within 30 s"), "failed"),
    ],
)
def test_causes(done: Completed, cause: str) -> None:
    assert classify(done) == cause


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Pings:
    """Answers for the packets of full size one after the other (the last stays), and one for small ones."""

    def __init__(self, big: Sequence[Completed], small: Completed = Completed(1, SILENCE)) -> None:  # noqa: B008
        self.big = list(big)
        self.small = small

    def __call__(self, command: Sequence[str]) -> Completed:
        if "56" in command:
            return self.small
        return self.big.pop(0) if len(self.big) > 1 else self.big[0]


def test_an_answer_after_a_lost_packet_is_an_answer() -> None:
    clock = Clock()
    pings = Pings([Completed(1, UNREACHABLE), Completed(1, SILENCE), Completed(0, ANSWER)])
    (verdict,) = probe([PATH], 5, pings, clock, clock.sleep)
    assert (verdict.ok, verdict.rtt_ms, verdict.cause, len(pings.big)) == (True, 0.087, None, 1)
    assert (verdict.rail, verdict.peer) == (1, "spark2")


@pytest.mark.parametrize(
    ("big", "small", "cause", "reason"),
    [
        (Completed(1, SILENCE), Completed(0, ANSWER), "wrong_mtu", "packets of 9000 bytes are lost, small ones pass"),
        (Completed(1, FRAGMENT), Completed(0, ANSWER), "wrong_mtu", "packets of 9000 bytes are lost"),
        (Completed(1, "", TOO_LONG), Completed(0, ANSWER), "wrong_mtu", "packets of 9000 bytes do not leave this node"),
        (Completed(1, UNREACHABLE), Completed(1, UNREACHABLE), "unreachable", "nobody answers for the address (ARP)"),
        (Completed(1, SILENCE), Completed(1, SILENCE), "silent", "no answer, neither to large nor to small packets"),
        (Completed(2, "", "ping: no"), Completed(2, "", "ping: no"), "failed", "ping failed: ping: no"),
        (Completed(1, FRAGMENT), Completed(1, SILENCE), "failed", "ping failed: From 10.1.1.1"),
        (
            Completed(2, "", BIND),
            Completed(2, "", BIND),
            "no_address",
            "this node no longer has the address 192.168.100.10",
        ),
    ],
)
def test_why_it_failed(big: Completed, small: Completed, cause: str, reason: str) -> None:
    clock = Clock()
    (verdict,) = probe([PATH], 2, Pings([big], small), clock, clock.sleep)
    assert not verdict.ok and 2 <= clock.now < 3
    assert verdict.cause == cause
    assert verdict.reason and verdict.reason.startswith(reason)
    assert verdict.remedy


def test_paths_keep_their_order_and_nothing_is_nothing() -> None:
    paths = [Path(n % 2, "net0", "10.0.0.1", f"n{n}", f"10.0.1.{n}", 1500) for n in range(40)]
    assert [v.peer for v in probe(paths, 1, Pings([Completed(0, ANSWER)]))] == [p.peer for p in paths]
    assert probe([], 1) == []


def test_a_missing_program_is_named() -> None:
    with pytest.raises(SparkError, match="Install iputils-ping"):
        probe([PATH], 1, Pings([Completed(127, "", "ping: not found")]))


def test_who_has_the_addresses_is_asked_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = arp.Holder("net1", PATH.address, "02:00:00:00:00:01")
    asked = []
    monkeypatch.setattr(arp, "holders", lambda _machine, wanted: asked.append(wanted) or [holder])
    monkeypatch.setattr(module, "probe", lambda paths, _timeout: probe(paths, 1, Pings([Completed(0, ANSWER)])))
    answer = calls.run("pings", {"paths": [vars(PATH)], "timeout_s": "1"}, check=True)
    assert answer["probes"][0]["ok"] and answer["holders"] == [vars(holder)]
    assert asked == [{"net1": {PATH.source, PATH.address}}]


@pytest.mark.parametrize(("mtu", "ports"), [(9000, "9216"), (9978, "9978")])
def test_the_ports_of_the_switch_need_what_is_sent(mtu: int, ports: str) -> None:
    path = Path(1, "net1", "192.168.100.10", "spark2", "192.168.100.11", mtu)
    clock = Clock()
    (verdict,) = probe([path], 1, Pings([Completed(1, SILENCE)], Completed(0, ANSWER)), clock, clock.sleep)
    assert f"its ports to {ports} or more" in str(verdict.remedy)
