# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl import log, results
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.log import Log
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.results import Results, Row
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.run import Answer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Size, Verdict
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.plan import plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.limits import limits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict import nccl
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict.nccl import Judged, from_ranks, judge, lines
from fabric_inputs import ring, wired
from rules import hold, of_verdicts

LIMITS = limits()
HEALTHY = "NCCL version 2.28.9+cuda13.0\nNET/IB : Using [0]a:1/RoCE [1]b:1/RoCE [RO]; OOB e:192.0.2.1<0>\n" + "".join(
    f"Channel 0{half}/0 : 0[0] -> 1[0] [send] via NET/IB/{half}\n" for half in (0, 1)
)
SOCKETS = "Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n"
LOADED = "NET/Plugin: Loaded net plugin Mesh (v10)\n"
MISSING = "a:1:1 [0] NCCL INFO NET/Plugin: Could not find: mesh libnccl-net-mesh.so\n"
P2P_CC = (
    "a:1:2 [0] transport/net_ib/p2p.cc:703 NCCL WARN NET/IB: Recv comm could not retreive a request found for a"
    " successful completion\n"
)
DEVELOPMENT = HEALTHY.replace("2.28.9", "2.29.0a1")


PAIR = plan(wired("spark1.0 spark2.0"), Settings()).facts
RINGS = {count: plan(ring(count), Settings(allow_large_ring=True)).facts for count in (3, 4)}
# A ring whose cables lead to cages of the same number.
CROSSED = {h: replace(fact, rails=tuple(replace(r, cage=0) for r in fact.rails)) for h, fact in RINGS[3].items()}


def measured(
    rate: float,
    text: str = HEALTHY,
    size: int = 2**32,
    halves: Mapping[str, int] | None = None,
    machines: int = 2,
    **changes: object,
) -> dict[str, Answer]:
    found = Results("all_gather", (Row(size, 1000, rate * 2, rate),), machines, average_gbs=rate - 1)
    moved = {"a": 10**9, "b": 10**9} if halves is None else halves
    first = Answer(0, (replace(found, **changes),), log.parse(text), moved)  # type: ignore[arg-type]
    others = [f"spark{number}" for number in range(2, machines + 1)]
    return {"spark1": first, **dict.fromkeys(others, Answer(0, (), log.parse(text), moved))}


def judged(answers: Mapping[str, Answer], known: dict[str, FabricFact] | None = None) -> Judged:
    return judge(from_ranks(answers, known or PAIR), known or PAIR, LIMITS)


def outcomes(found: Judged) -> dict[str, tuple[str, str]]:
    return {verdict.check: (verdict.outcome, verdict.cause) for verdict in found.verdicts}


def bad(found: Judged) -> list[Verdict]:
    return [verdict for verdict in found.verdicts if verdict.outcome != "pass"]


PASSES = dict.fromkeys(("nccl_values", "nccl_transport", "nccl_halves", "nccl_rate"), ("pass", ""))


def test_a_healthy_pair_gives_no_alarm() -> None:
    found = judged(measured(22.3))
    assert outcomes(found) == PASSES
    assert {verdict.hosts for verdict in found.verdicts} == {("spark1", "spark2")}
    (figures,) = found.figures
    assert (figures.transport, figures.halves, figures.version) == ("NET/IB", 2, "2.28.9")
    assert figures.sizes == (Size(2**32, 1000, 44.6, 22.3, 0),)
    assert (figures.largest_gbs, figures.average_gbs, figures.hosts) == (22.3, 21.3, ("spark1", "spark2"))
    assert lines(found.figures) == ["all_gather between 2 ranks: 22.3 GB/s with 4 GiB, 21.3 on average, over NET/IB"]


# What NCCL has printed; what is found in it is in fixtures/rules.txt.
CASES = {
    "sockets": measured(2.5, SOCKETS),
    "sockets, by a plug-in": measured(2.5, LOADED + SOCKETS),
    "sockets, for want of a plug-in": measured(2.5, MISSING + SOCKETS),
    "a half without its share": measured(11.5, halves={"a": 997, "b": 2}),
    "a half that NCCL leaves out": measured(12, HEALTHY.replace("NET/IB/1", "NET/IB/0"), halves={}),
    "a degraded card": measured(2.823),
    "a development build": measured(3.04, DEVELOPMENT),
    "near the limit": measured(20.5),
    "slow": measured(15.0),
    "small sizes": measured(19.7, size=2**30),
    "small sizes, and slow": measured(9.0, size=2**30),
    "one rank": measured(104, "", ranks=1),
    "no GPU": measured(0.1, backend="gloo"),
    "wrong values": measured(22.3, rows=(Row(2**32, 1000, 44.6, 22.3, 4),)),
    "nothing of the network": measured(22.3, ""),
    "no machine is named": measured(104, "", ranks=0),
}


def test_what_is_found_in_every_output() -> None:
    hold("nccl", ((name, of_verdicts(bad(judged(answers)))) for name, answers in CASES.items()))


def test_ranks_on_one_machine_say_nothing_of_the_fabric() -> None:
    result = Results("", (Row(2**32, 1000, 208, 104),), 4, hosts=("x",) * 4)
    (found,) = judge(nccl.from_text((result,), Log(evidence=("a", "b"))), PAIR, LIMITS).verdicts
    assert found.found.startswith("a collective ran with 4 ranks on one machine: 104.00 GB/s with 4 GiB is the speed")
    assert (found.hosts, found.evidence, found.scope) == (("x",), ("a", "b"), "cluster")


def test_just_at_the_limits() -> None:
    """Of a rate, of a share, and of a size that counts."""

    def said(rate: float, size: int = 2**32) -> tuple[str, str]:
        return outcomes(judged(measured(rate, size=size)))["nccl_rate"]

    near, small, degraded = (LIMITS[f"nccl_{name}_share"].value * 21.875 for name in ("near", "small", "degraded"))
    assert said(round(near + 0.005, 2)) == ("warn", "nccl_slow")
    assert said(round(near - 0.01, 2)) == ("fail", "nccl_slow")
    assert said(round(small + 0.005, 2), 2**30) == ("unknown", "")
    assert said(round(small - 0.01, 2), 2**30) == ("fail", "nccl_slow")
    assert said(round(degraded + 0.005, 2)) == ("fail", "nccl_slow")
    assert said(round(degraded - 0.01, 2)) == ("fail", "nic_degraded")
    assert said(21, 2**32 - 2**20) == ("warn", "nccl_slow")
    assert said(21, 2**32 - 2**20 - 4) == ("unknown", "")
    assert said(0.1, 2**28) == ("fail", "nic_degraded")
    assert said(0.1, 2**28 - 4) == ("unknown", "")


def test_a_development_build_that_is_fast_is_no_alarm() -> None:
    assert outcomes(judged(measured(23.7, DEVELOPMENT))) == PASSES


@pytest.mark.parametrize(("machines", "name"), [(3, "nccl_ring_gbs"), (4, "nccl_large_ring_gbs")])
def test_a_ring_has_a_limit_of_its_own(machines: int, name: str) -> None:
    assert outcomes(judged(measured(10.3, machines=machines), RINGS[machines])) == PASSES
    (verdict,) = bad(judged(measured(6.0, machines=machines), RINGS[machines]))
    assert (verdict.cause, verdict.limit) == ("nccl_slow", (LIMITS[name],))


def test_two_neighbours_in_a_ring_are_a_pair() -> None:
    (verdict,) = bad(judged(measured(12.0), RINGS[3]))
    assert (verdict.outcome, verdict.limit[0].value) == ("fail", 21.875)


@pytest.mark.parametrize("machines", range(2, 9))
@pytest.mark.parametrize(
    ("rate", "expected"),
    [(22.0, "pass"), (21.0, "warn"), (18.0, "fail"), (14.0, "fail"), (10.0, "fail")],
)
def test_every_number_of_machines_is_judged(machines: int, rate: float, expected: str) -> None:
    """What the largest size is, where the number of machines does not divide it: rounded down for each rank."""
    size = 2**32 // 4 // machines * machines * 4
    switched = plan(wired(" ".join(f"spark{number}.0" for number in range(1, machines + 1)) + " @sw"), Settings()).facts
    found = judged(measured(rate, size=size, machines=machines), switched)
    assert outcomes(found)["nccl_rate"][0] == expected


def test_a_run_that_ended_early_is_not_the_whole_one() -> None:
    """The first test has figures, and the second ended with an error."""
    answers = measured(22.3)
    ended = {**answers, "spark2": replace(answers["spark2"], rc=1, trouble="DistBackendError: NCCL error: timeout")}
    (verdict,) = bad(judged(ended))
    assert (verdict.check, verdict.outcome) == ("nccl_rate", "unknown")
    assert "NCCL error: timeout" in verdict.found
    memlock = Log(via=("NET/IB",), trouble=("Call to ibv_reg_mr failed with error Cannot allocate memory",))
    (verdict,) = bad(judged({**ended, "spark2": replace(ended["spark2"], log=memlock)}))
    assert (verdict.outcome, verdict.cause, verdict.hosts) == ("fail", "memlock", ("spark2",))


def test_halves_that_are_counted_on_some_machines_only() -> None:
    answers = measured(22.3)
    (verdict,) = bad(judged({**answers, "spark2": replace(answers["spark2"], moved={"a": -1, "b": 10**9})}))
    assert (verdict.check, verdict.outcome, verdict.hosts) == ("nccl_halves", "unknown", ("spark2",))


def test_the_limits_of_a_rate_are_the_users() -> None:
    def over(**given: float) -> tuple[str, str]:
        found = judge(from_ranks(measured(18.0), PAIR), PAIR, limits(given))
        return outcomes(found)["nccl_rate"]

    assert over(nccl_pair_gbs=18) == ("pass", "")
    assert over(nccl_near_share=0.8) == ("warn", "nccl_slow")
    assert over(nccl_degraded_share=0.9) == ("fail", "nic_degraded")
    slower = {
        host: replace(fact, rails=tuple(replace(rail, link_gbps=100) for rail in fact.rails))
        for host, fact in PAIR.items()
    }
    (verdict,) = bad(judge(from_ranks(measured(11.0), slower), slower, limits({"rate_gbps": 100})))
    assert verdict.cause == "nccl_slow"


def test_what_the_fabric_itself_explains() -> None:
    def over(**changes: object) -> str:
        rails = {host: [replace(rail, **changes) for rail in fact.rails] for host, fact in PAIR.items()}  # type: ignore[arg-type]
        (one,) = bad(judged(measured(11.5), {h: replace(PAIR[h], rails=tuple(rails[h])) for h in PAIR}))
        return one.cause

    assert over() == "nccl_slow"
    assert over(link_gbps=100) == "link_100g"
    single = {host: replace(fact, rails=fact.rails[:1]) for host, fact in PAIR.items()}
    (verdict,) = bad(judged(measured(11.5, halves={"a": 10**9}), single))
    assert verdict.cause == "one_half_only"


def test_the_share_of_four_halves() -> None:
    halves, ring = {"a": 30, "b": 30, "c": 21, "d": 19}, RINGS[3]
    found = judged(measured(10.3, halves=halves, machines=3), ring)
    assert outcomes(found)["nccl_halves"] == ("fail", "one_half_only")
    assert outcomes(judged(measured(10.3, halves={**halves, "c": 20, "d": 20}, machines=3), ring)) == PASSES


def test_two_neighbours_in_a_ring_have_one_cable() -> None:
    (first, second, *_rest) = hosts = sorted(RINGS[3])
    found = replace(from_ranks(measured(22.3, halves={}), PAIR), hosts=(first, second))
    found = replace(found, results=tuple(replace(result, hosts=found.hosts) for result in found.results))
    assert outcomes(judge(found, RINGS[3], LIMITS)) == PASSES
    three = replace(found, hosts=tuple(hosts))
    assert outcomes(judge(three, RINGS[3], LIMITS))["nccl_halves"] == ("fail", "one_half_only")


def test_sockets_where_they_are_planned() -> None:
    found = judged(
        measured(1.1, SOCKETS, halves={}), {h: replace(fact, transport="socket") for h, fact in PAIR.items()}
    )
    assert outcomes(found) == {"nccl_values": ("pass", ""), "nccl_rate": ("pass", "")}


@pytest.mark.parametrize(
    ("said", "trouble", "known", "cause"),
    [
        (Log(no_interface=True, trouble=("Bootstrap : no socket interface found",)), "", PAIR, "nccl_no_interface"),
        (Log(no_device=True, trouble=("Failed to initialize any NET plugin",)), "", PAIR, "no_infiniband"),
        # Of two ranks NCCL 2.28 connects rings only, so that says nothing.
        (Log(rings=True), "NCCL error: unhandled system error", RINGS[4], ""),
        (Log(rings=True, trouble=("Call to ibv_modify_qp failed with 110",)), "", PAIR, "gid_mismatch"),
        (log.parse(P2P_CC), "", CROSSED, "wrong_cage"),
        (log.parse(P2P_CC.replace("retreive", "retrieve").replace("net_ib/p2p", "net_ib")), "", CROSSED, "wrong_cage"),
        (log.parse("a:1:2 [0] transport/net_ib/p2p.cc:9 NCCL WARN NET/IB: odd"), "", CROSSED, "wrong_cage"),
        (log.parse("a:1:2 [0] transport/p2p.cc:9 NCCL WARN Cuda failure"), "", CROSSED, ""),
        (Log(), "NET/IB: Got completion with status=IBV_WC_RETRY_EXC_ERR(12)", CROSSED, "wrong_cage"),
        (log.parse(P2P_CC), "", RINGS[3], ""),
        (Log(), "at ncclTransportTreeConnect -> ncclCommInitRank", PAIR, "tree_on_ring"),
        (Log(trouble=("Call to ibv_reg_mr failed with error Cannot allocate memory",)), "", PAIR, "memlock"),
        (Log(trouble=("Call to ibv_create_qp failed with error Cannot allocate memory",)), "", PAIR, "memlock"),
        (Log(trouble=("Call to ibv_modify_qp failed with 110 Connection timed out",)), "", PAIR, "gid_mismatch"),
        (Log(rings=True), "something else", RINGS[3], ""),
        (Log(trouble=("Call to ibv_modify_qp failed with 110",)), "", CROSSED, "wrong_cage"),
        (Log(), "Timed out after 16 seconds waiting for clients. 1/2 clients joined.", PAIR, ""),
    ],
)
def test_runs_without_a_figure(said: Log, trouble: str, known: dict[str, FabricFact], cause: str) -> None:
    answers = dict.fromkeys(("spark1", "spark2"), Answer(1, (), said, {}, trouble))
    (verdict,) = judged(answers, known).verdicts
    assert (verdict.outcome, verdict.cause) == ("fail" if cause else "unknown", cause)
    assert trouble in verdict.found


@pytest.mark.parametrize(
    ("name", "causes"),
    [
        ("all_gather-pair-16g.txt", []),
        ("all_gather-pair-degraded.txt", ["nccl_slow"]),  # it has no line of NCCL's own
        ("all_reduce-sockets.txt", ["tcp_fallback"]),
        ("all_reduce-one-rank.txt", ["single_rank_trap"]),
        ("all_reduce-four-ranks.txt", ["single_rank_trap"]),
        ("collectives-one-rank.txt", ["single_rank_trap"]),
        ("collectives-one-host.txt", ["single_rank_trap"]),
        ("collectives-shared-memory.txt", ["single_rank_trap"]),
        ("collectives-sockets.txt", ["tcp_fallback"]),
        ("collectives-sockets-namespaces.txt", ["tcp_fallback"]),
        ("collectives-plugin-missing.txt", ["plugin_fallback"]),
    ],
)
def test_captures_that_somebody_has(fixtures: Path, name: str, causes: list[str]) -> None:
    text = (fixtures / "nccl" / name).read_text()
    read = results.ours(text) if name.startswith("collectives") else [results.table(text)]
    found = judge(nccl.from_text(read, log.parse(text)), PAIR, LIMITS)
    assert sorted({verdict.cause for verdict in found.verdicts if verdict.cause}) == causes


@pytest.mark.parametrize(
    ("name", "cause"),
    [("no-device", "no_infiniband"), ("no-interface", "nccl_no_interface"), ("rank-missing", ""), ("rank-killed", "")],
)
def test_captures_of_runs_that_failed(fixtures: Path, name: str, cause: str) -> None:
    text = (fixtures / f"nccl/collectives-{name}.txt").read_text()
    answers = dict.fromkeys(("spark1", "spark2"), Answer(1, (), log.parse(text), {}, "it failed"))
    (verdict,) = judged(answers).verdicts
    assert verdict.cause == cause


def test_a_large_ring_that_connects_no_tree() -> None:
    said = Log(rings=True, trouble=("Call to ibv_modify_qp failed with 110",))
    hosts = [f"spark{number}" for number in range(1, 5)]
    for count, cause in ((4, "tree_on_ring"), (2, "gid_mismatch")):  # two of them are neighbours
        (verdict,) = judged(dict.fromkeys(hosts[:count], Answer(1, (), said, {}, "")), RINGS[4]).verdicts
        assert verdict.cause == cause


@pytest.mark.parametrize(
    ("via", "words"), [("SHM/direct/direct", "shared memory"), ("P2P/CUMEM", "P2P, from GPU to GPU")]
)
def test_what_stays_on_one_machine_is_called_what_it_is(via: str, words: str) -> None:
    text = f"a:1:2 [0] NCCL INFO Using network Socket\nChannel 00 : 0[0] -> 1[1] via {via}\n"
    found = judged(measured(28.0, text, halves={}, hosts=("a", "b")))
    (verdict,) = bad(found)
    assert verdict.cause == "single_rank_trap" and f"2 ranks on one machine over {words}: 28.00 GB/s" in verdict.found
    assert lines(found.figures)[0].endswith(f", over {words}") and "ocket" not in verdict.found


def test_ranks_of_one_machine_hide_no_network() -> None:
    answers = measured(22.3)
    answers["spark2"] = replace(answers["spark2"], log=log.parse("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"))
    assert outcomes(judged(answers)) == PASSES
