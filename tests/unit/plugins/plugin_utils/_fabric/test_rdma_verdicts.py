# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Every fault of RDMA gets its cause, and nothing healthy an alarm. What public captures say is among the figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ping import Probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Rdma
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import rdma_verdicts as judge
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.limits import limits
from fabric_rates import DEVICES, Figures, answered, fabric, gids, look, port, scheduled
from rules import hold, of_findings, of_verdicts

A, B = DEVICES
C, D = "rocep1s0f1", "roceP2p1s0f1"  # of the other cage
CAPTURES = Path(__file__).parents[3] / "fixtures/perftest"
HEALTHY = {"ports": [port(A), port(B)]}


def judged(
    figures: Figures,
    facts: Mapping[str, FabricFact] | None = None,
    ready: Mapping[str, Mapping[str, Any]] | None = None,
    pings: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    *,
    settings: Mapping[str, float] | None = None,
    edit: Callable[[dict[str, list[dict[str, Any]]]], None] = lambda _answers: None,
    **changes: Any,
) -> judge.Judged:
    facts = facts or fabric(2)
    looks = {host: look(**{**HEALTHY, **(ready or {}).get(host, {})}) for host in facts}
    made = scheduled(facts, looks, **changes)
    answers = figures.answers(facts, made)
    edit(answers)
    return judge.judge(made, judge.Seen(facts, looks, answered(answers), limits(settings), pinged(pings or {})))


def pinged(pings: Mapping[str, Any]) -> dict[str, list[Probe]]:
    return {host: [Probe(**{"source": "192.0.2.1", **one}) for one in own] for host, own in pings.items()}


def told(found: judge.Judged) -> dict[str, str]:
    """Cause and outcome of every verdict that is no pass."""
    return {verdict.cause: verdict.outcome for verdict in found.verdicts if verdict.outcome != "pass"}


def test_healthy_machines_give_no_alarm() -> None:
    for count in (2, 3, 4, 8):
        found = judged(Figures(), fabric(count))
        assert told(found) == {}, count
        pairs = count * (count - 1) // 2
        assert len(found.verdicts) == 3 * pairs, "each half alone, together, latency"
        assert len(found.rdma) == 9 * pairs
    assert judge.lines(judged(Figures())) == [
        "spark1 rocep1s0f0 - spark2 rocep1s0f0: 1.5 µs, 105 Gb/s from spark2, 105 Gb/s from spark1",
        "spark1 roceP2p1s0f0 - spark2 roceP2p1s0f0: 1.5 µs, 105 Gb/s from spark2, 105 Gb/s from spark1",
        "spark1 - spark2, all halves: 196 Gb/s from spark2, 196 Gb/s from spark1, 392 Gb/s in both directions",
    ]


STATUS_12 = {"reason": "packets are sent and never acknowledged (status 12)", "cause": "firewall", "remedy": "Open it"}
RTR = {"reason": "the queue pairs cannot be connected", "cause": "gid_mismatch", "remedy": "Run it"}
LOST = {A: {"bytes": 10**9, "out_of_sequence": 900, "rx_discards_phy": 30}}
PAUSED = {("spark1", A): {"bytes": 10**11, "rx_prio3_pause_duration": 20_000_000}}


def both(**changes: Any) -> dict[str, dict[str, Any]]:
    return {"spark1": changes, "spark2": changes}


def with_rails(
    count: int, changes: Mapping[str, Mapping[str, Any]], hosts: Sequence[str] = ()
) -> dict[str, FabricFact]:
    """Nodes with other halves, by device; of ``hosts`` alone where there are any."""
    return {
        host: replace(fact, rails=tuple(replace(rail, **changes.get(rail.rdma_device, {})) for rail in fact.rails))
        if host in (hosts or (host,))
        else fact
        for host, fact in fabric(count).items()
    }


CROSSED = with_rails(2, {A: {"rdma_device": C}, B: {"rdma_device": D}}, ["spark2"])  # from cage 0 to cage 1
ONE_PATH = {A: {"pcie_path": "0000"}, B: {"pcie_path": "0000"}}
EXPORTED = fabric(2)
EXPORTED["spark2"] = replace(EXPORTED["spark2"], environment={"NCCL_IB_GID_INDEX": "3"})
TO_SPARK1 = {"rail": 0, "peer": "spark1", "address": "192.168.100.10"}
LARGE = {
    "spark2": [
        {**TO_SPARK1, "ok": True},
        {**TO_SPARK1, "ok": False, "address": "192.168.101.10", "reason": "that of the other half"},
        {**TO_SPARK1, "ok": False, "cause": "wrong_mtu", "reason": "only small ones arrive"},
    ]
}

# A fault as it can be injected; what is found is in the fixture.
FAULTS: dict[str, tuple[Figures, dict[str, Any]]] = {
    "hot-plugged card, one half": (Figures(alone={A: 13.3}, together={A: 13.2}), {}),
    "hot-plugged card, both halves": (Figures(alone={A: 13.3, B: 8.0}), {}),
    "healthy alone, 13 Gb/s each together": (Figures(together={A: 13.33, B: 13.23}), {}),
    "one half carries nothing beside the other": (Figures(together={A: 98.0, B: 3.0}), {}),
    "bridge at 2.5 GT/s": (
        Figures(alone={("spark2", A): 7.6}),
        {"ready": {"spark2": {"ports": [port(A, link_speed_gts=2.5), port(B)]}}},
    ),
    "second controller at x2": (Figures(alone={B: 55.0}), {"ready": both(ports=[port(A), port(B, link_width=2)])}),
    "hot-plugged card that could have 16 lanes": (
        Figures(alone={A: 13.3}),
        {"ready": both(ports=[port(A, max_link_width=16), port(B, max_link_width=16)])},
    ),
    "second controller that calls x2 its best": (
        Figures(alone={B: 55.0}),
        {"ready": both(ports=[port(A), port(B, link_width=2, max_link_width=2)])},
    ),
    "packets are lost, and nobody counts those that came": (Figures(counted={A: {"out_of_sequence": 900}}), {}),
    "100G at the switch": (
        Figures(alone={A: 97.0, B: 97.0}, together={A: 48.5, B: 48.5}),
        {"ready": both(ports=[port(A, speed_gbps=100.0), port(B, speed_gbps=100.0)])},
    ),
    "MTU 1500": (Figures(rdma_mtu=1024), {}),
    "packets are lost": (Figures(counted=LOST), {}),
    "packets are lost and it is slow": (Figures(alone={A: 60.0}, counted=LOST), {}),
    "made to pause": (Figures(alone={A: 60.0}, counted=PAUSED), {}),
    "storm of pauses": (Figures(counted={("spark1", B): {"bytes": 10**11, "tx_pause_storm_warning_events": 2}}), {}),
    "somebody else uses it": (Figures(alone={A: 45.0}, idle={("spark2", A): 6e9}), {}),
    "RoCE is dropped": (Figures(failed={A: STATUS_12, B: STATUS_12}), {}),
    "queue pairs do not connect": (Figures(failed={A: RTR}), {}),
    "memory cannot be locked": (Figures(failed={A: {"reason": "x", "cause": "memlock"}}), {}),
    "device is gone": (Figures(failed={B: {"reason": "x", "cause": "no_device"}}), {}),
    "something new": (Figures(failed={B: {"reason": "exit code 3", "cause": ""}}), {}),
    "a cause that no node can know": (Figures(failed={B: {"reason": "x", "cause": "evil"}}), {}),
    "it ran and carried nothing": (Figures(failed={B: {"value": 0.0}}), {}),
    "no GID": (
        Figures(failed={("spark1", A): RTR}),
        {"ready": {"spark1": {"gids": [*gids("10.9.9.9"), *gids("192.168.101.10", 3, B)]}}},
    ),
    "a foreign address whose GID comes first": (
        Figures(failed={("spark1", A): RTR}),
        {
            "ready": {
                "spark1": {
                    "gids": [
                        *gids("10.9.9.9", 2)[1:],
                        *gids("192.168.100.10", 3)[1:],
                        *gids("192.168.101.10", 3, B),
                    ]
                }
            }
        },
    ),
    "slow, and nothing tells why": (Figures(alone={A: 60.0}), {}),
    "slow answers": (Figures(latency=40.0), {}),
    "no way for pings either": (
        Figures(failed={A: STATUS_12}),
        {
            "pings": {
                "spark2": [{"rail": 0, "peer": "spark1", "ok": False, "address": "192.168.100.10", "cause": "silent"}]
            }
        },
    ),
    "large pings are lost": (
        Figures(failed={A: STATUS_12}),
        {
            "pings": {
                "spark2": [
                    {"rail": 0, "peer": "spark1", "ok": False, "address": "192.168.100.10", "cause": "wrong_mtu"}
                ]
            }
        },
    ),
    "large pings are lost, and each end says something else": (
        Figures(failed={("spark2", A): STATUS_12, ("spark1", A): {"reason": "no client"}}),
        {"pings": LARGE},
    ),
    "the one that writes knows why": (
        Figures(failed={("spark2", A): {"reason": "no memory", "cause": "memlock"}, ("spark1", A): {"reason": ""}}),
        {},
    ),
    "the other end alone knows why": (
        Figures(
            failed={("spark2", A): {"reason": "it ended"}, ("spark1", A): {"reason": "no memory", "cause": "memlock"}}
        ),
        {},
    ),
    "something new, with a remedy": (Figures(failed={B: {"reason": "x", "remedy": "Run y"}}), {}),
    "no result came back": (Figures(failed={B: {"value": None}}), {}),
    "one half fails beside the other": (
        Figures(together={B: {"reason": "it ended"}, D: {"reason": "it ended"}}),
        {"facts": CROSSED},
    ),
    "no result of one half beside the other": (Figures(together={A: {"value": None}}), {}),
    "both halves alone carry something, together nothing": (
        Figures(together={A: {"value": 0.0}, B: {"value": 0.0}}),
        {},
    ),
    "MTU 1500, and slow": (Figures(alone={A: 60.0}, rdma_mtu=1024), {}),
    "slow answers from cage to cage": (Figures(latency=40.0), {"facts": CROSSED}),
    "both halves of one end on one PCIe path": (
        Figures(together={A: 53.0, B: 53.0}),
        {"facts": with_rails(2, ONE_PATH, ["spark1"])},
    ),
    "both halves of the end that writes on one PCIe path": (
        Figures(together={A: 53.0, B: 53.0}),
        {"facts": with_rails(2, ONE_PATH, ["spark2"])},
    ),
    "an index is exported, and another one is right": (
        Figures(),
        {
            "facts": EXPORTED,
            "ready": {"spark2": {"gids": [*gids("192.168.100.11", 5), *gids("192.168.101.11", 3, B)]}},
        },
    ),
    "no /dev/infiniband": (Figures(), {"ready": both(verbs=False)}),
}


def test_what_is_found_of_every_fault() -> None:
    made = {name: judged(figures, **changes) for name, (figures, changes) in FAULTS.items()}
    made["nothing is wrong"] = judged(Figures(), pings={})
    made["four machines, one slow"] = judged(
        Figures(alone={("spark3", A): 13.0}, together={("spark3", A): 13.0}), fabric(4)
    )
    made["three machines, one answers slowly over its second half"] = judged(
        Figures(alone={("spark1", B): 60.0}), fabric(3)
    )
    made["four machines, a half of two is slow"] = judged(
        Figures(alone={("spark3", A): 13.0, ("spark4", B): 14.0}), fabric(4)
    )
    made["soft RoCE"] = judged(Figures(alone={A: 0.13, B: 0.2}, latency=900.0), ready=both(software=list(DEVICES)))
    made["the engine runs"] = judged(Figures(latency=40.0), ready=both(busy=["x"]))
    hold("fabric", ((name, of_verdicts(found.verdicts)) for name, found in made.items()))
    wrong = {
        verdict.cause: verdict
        for found in made.values()
        for verdict in found.verdicts
        if verdict.outcome in ("fail", "warn")
    }
    hold(
        "fabric as findings",
        ((cause, of_findings([judge.finding(verdict)], cause)) for cause, verdict in wrong.items()),
    )


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (112.0, {}),
        (90.0, {}),
        (89.9, {"rdma_slow": "warn"}),
        (25.0, {"rdma_slow": "warn"}),
        (24.9, {"nic_degraded": "fail"}),
    ],
)
def test_thresholds_of_one_half(rate: float, expected: dict[str, str]) -> None:
    assert told(judged(Figures(alone={A: rate}))) == expected


@pytest.mark.parametrize(
    ("first", "second", "packets", "expected"),
    [
        (92.0, 92.0, 4096, {}),
        (92.0, 91.9, 4096, {"rdma_slow": "warn"}),
        (60.0, 39.9, 4096, {"one_half_only": "fail"}),
        (98.0, 30.0, 1024, {"one_half_only": "fail", "wrong_mtu": "warn"}),
        (60.0, 40.0, 1024, {"wrong_mtu": "warn"}),
        (24.9, 24.9, 4096, {"nic_degraded": "fail"}),
    ],
)
def test_thresholds_of_both_halves(first: float, second: float, packets: int, expected: dict[str, str]) -> None:
    assert told(judged(Figures(together={A: first, B: second}, rdma_mtu=packets))) == expected


@pytest.mark.parametrize(("latency", "expected"), [(5.0, {}), (5.1, {"rdma_slow": "warn"})])
def test_threshold_of_the_latency(latency: float, expected: dict[str, str]) -> None:
    assert told(judged(Figures(latency=latency))) == expected


@pytest.mark.parametrize(
    ("lost", "moved", "settings", "value"),
    [
        (10, 4096 * 10**6, {}, 0),
        (10, 4096 * 10**6 - 1, {}, 10.0),
        (9, 4096, {}, 0),
        (9, 4096, {"loss_per_million": 0}, 0),
        (10, 4096 * 20, {}, 500000.0),
        (10, 0, {}, 1e6),
    ],
)
def test_thresholds_of_losses(lost: int, moved: int, settings: dict[str, float], value: float) -> None:
    counted = {A: {"bytes": moved, "out_of_sequence": lost}}
    found = judged(Figures(counted=counted), settings=settings)
    assert {verdict.value for verdict in found.verdicts if verdict.check == "rdma_loss"} == (
        {value} if value else set()
    )
    slow = told(judged(Figures(alone={A: 60.0}, counted=counted), settings=settings))
    assert list(slow) == ["loss_storm" if value else "rdma_slow"]


@pytest.mark.parametrize(
    ("paused", "seconds", "cause"),
    [
        (4_000_000, 40.0, "rdma_slow"),
        (4_000_001, 40.0, "pause_storm"),
    ],
)
def test_thresholds_of_pauses(paused: int, seconds: float, cause: str) -> None:
    def edit(answers: dict[str, list[dict[str, Any]]]) -> None:
        answers["spark1"][0]["seconds"] = seconds

    figures = Figures(alone={A: 60.0}, counted={("spark1", A): {"rx_prio3_pause_duration": paused}})
    assert list(told(judged(figures, edit=edit))) == [cause]


@pytest.mark.parametrize(("idle", "cause"), [(125_000_000.0, "rdma_slow"), (125_000_000.1, "contention")])
def test_threshold_of_other_traffic(idle: float, cause: str) -> None:
    assert list(told(judged(Figures(alone={A: 60.0}, idle={A: idle})))) == [cause]


@pytest.mark.parametrize(
    ("speed", "rate", "planned", "slow"),
    [
        (100.0, 200.0, 200, True),
        (None, 100.0, 200, True),
        (None, None, 100, True),
        (200.0, 100.0, 100, False),
        (None, None, 200, False),
    ],
)
def test_speed_of_a_link(speed: float | None, rate: float | None, planned: int, slow: bool) -> None:
    ports = both(ports=[port(A, speed_gbps=speed, rate_gbps=rate), port(B)])
    found = judged(Figures(alone={A: 60.0}), with_rails(2, {A: {"link_gbps": planned}}), ports)
    (one,) = [verdict for verdict in found.verdicts if verdict.cause]
    assert one.cause == ("link_100g" if slow else "rdma_slow")


def test_what_is_no_reason_for_an_alarm() -> None:
    few = {A: {"bytes": 10**8, "out_of_sequence": 9}}
    assert told(judged(Figures(counted=few))) == {}
    assert told(judged(Figures(counted=PAUSED))) == {}, "a pause is no fault where the rate is good"
    assert told(judged(Figures(idle={A: 9e9}))) == {}, "nor is other traffic"
    # 0.1 GB/s are 0.8 Gb/s, and that is little; 0.2 GB/s are not.
    assert told(judged(Figures(alone={A: 60.0}, idle={A: 1e8}))) == {"rdma_slow": "warn"}
    assert told(judged(Figures(alone={A: 60.0}, idle={A: 2e8}))) == {"contention": "warn"}


@pytest.mark.parametrize(("mtu", "packets"), [(4192, 4096), (4191, 2048), (300, 256)])
def test_packets_that_an_mtu_takes(mtu: int, packets: int) -> None:
    facts = {h: replace(f, rails=tuple(replace(r, mtu=mtu) for r in f.rails)) for h, f in fabric(2).items()}
    assert told(judged(Figures(rdma_mtu=packets), facts)) == {}
    if packets > 256:
        assert told(judged(Figures(rdma_mtu=packets // 2), facts)) == {"wrong_mtu": "warn"}


def test_a_card_that_is_slow_with_everybody_is_named_once() -> None:
    for host, everything_too in (("spark3", True), ("spark1", True), ("spark1", False)):
        figures = Figures(alone={(host, A): 13.0}, together={(host, A): 13.0})
        found = judged(figures, fabric(4), everything=everything_too)
        (one,) = [verdict for verdict in found.verdicts if verdict.outcome == "fail"]
        assert (one.cause, one.hosts, one.device) == ("nic_degraded", (host,), A)
        assert "with no other node more: it is this end" in one.found
    # With two nodes nobody can tell, and the remedy is for both.
    (pair,) = [verdict for verdict in judged(Figures(alone={A: 13.0})).verdicts if verdict.outcome == "fail"]
    assert pair.hosts == ("spark2", "spark1") and "Reboot both machines" in pair.remedy


def test_every_pair_is_told_of_where_halves_fail_together() -> None:
    failed = {("spark1", A): {"reason": "it ended"}, ("spark2", B): 3.0}
    found = judged(Figures(together=failed), fabric(3))
    pairs = [("spark2", "spark1"), ("spark3", "spark1"), ("spark2", "spark3")]
    assert [verdict.hosts for verdict in found.verdicts if verdict.check == "rdma_together"] == pairs


def test_what_was_not_measured_is_no_pass() -> None:
    for changes, reason in (
        ({"ready": both(tool=None)}, "ib_write_bw is missing"),
        ({"ready": both(busy=["sparkmatrix-engine.service"])}, "the engine is running"),
        ({"forks": 1}, "--forks 2"),
    ):
        found = judged(Figures(), **changes)
        (one,) = [verdict for verdict in found.verdicts if verdict.check == "rdma_rate"]
        assert one.outcome == "unknown" and reason in one.found
        assert "pass" not in {verdict.outcome for verdict in found.verdicts if verdict.check == "rdma_together"}
    # Beside an engine the latency is measured, which disturbs nobody.
    assert {rdma.test for rdma in judged(Figures(), ready=both(busy=["x"])).rdma} == {"latency"}
    # It may well be slow there, which is no fault.
    found = judged(Figures(latency=40.0, idle={("spark1", A): 6e9}), ready=both(busy=["x"]))
    assert {one.outcome for one in found.verdicts} == {"unknown"}
    found = judged(Figures(latency=40.0), fabric(3), {host: {"busy": ["x"]} for host in fabric(3)})
    assert [one.hosts for one in found.verdicts if one.check == "rdma_latency"] == [
        ("spark2", "spark1"),
        ("spark3", "spark1"),
        ("spark3", "spark2"),
    ]


def test_what_was_measured_as_it_is_written_down() -> None:
    found = judged(Figures(alone={A: 105.12345}, together={A: 98.12345}, latency=1.53456))
    back, forth = ("spark2", "spark1"), ("spark1", "spark2")
    assert set(found.rdma) == {
        *(Rdma(*back, (half,), "latency", 1.53456) for half in DEVICES),
        *(Rdma(*ends, (A,), "write", 105.123) for ends in (back, forth)),
        *(Rdma(*ends, (B,), "write", 105.0) for ends in (back, forth)),
        *(Rdma(*ends, DEVICES, "write", 196.123) for ends in (back, forth)),
        Rdma(*back, DEVICES, "write_both_directions", 392.247),
    }
    assert [verdict.value for verdict in found.verdicts if verdict.check == "rdma_together"] == [196.12]


def test_the_record_has_the_slower_direction_of_each_half() -> None:
    facts = fabric(2)
    made = scheduled(facts)
    answers = Figures(alone={A: 104.0}).answers(facts, made)
    slot = next(part.slot for part in made.rounds[0]["spark2"] if (part.test, part.device) == ("write", B))
    next(outcome for outcome in answers["spark2"][0]["outcomes"] if outcome["slot"] == slot)["value"] = 95.0
    found = judge.judge(made, judge.Seen(facts, dict.fromkeys(facts, look()), answered(answers), limits()))
    assert judge.kept(found, facts) == {
        host: [
            {"device": device, "peer": peer, "rail": rail, "gbps": gbps, "software": False}
            for rail, (device, gbps) in enumerate([(A, 104.0), (B, 95.0)])
        ]
        for host, peer in (("spark1", "spark2"), ("spark2", "spark1"))
    }
