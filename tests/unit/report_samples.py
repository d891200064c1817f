# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Documents of made-up runs, for the page. Nobody has measured these figures: EXAMPLE says so on the page."""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    UNKNOWN,
    WARN,
    Limit,
    Link,
    Machine,
    Nccl,
    Rdma,
    Run,
    Service,
    Serving,
    Size,
    Smoke,
    Verdict,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.limits import limits
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import SYMPTOMS, verdict

EXAMPLE = "Example: made-up figures, not measured on any machine"
HOSTS = ("spark1", "spark2", "spark3", "spark4")
HALVES = ("rocep1s0f0", "roceP2p1s0f0")
LEAST = limits()["half_good_gbps"]
BAND = Limit(13, "tokens/s", "least", "the plan, from memory bandwidth", "this collection")
EVIDENCE = (
    " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]",
    " 65536      27004            13.11              12.98             0.024757",
)


def link(host: str, half: int, peer: str = "", cage: int = 0, rate: float = 200) -> Link:
    interface = ("enp1s0f0np0", "enP2p1s0f0np0")[half]
    return Link(host, HALVES[half], interface, half, cage, peer, rate, 9000)


def machine(rank: int, used: float = 0, **facts: str) -> Machine:
    parts = {"weights": 60.0, "overhead": 7.5, "kv_cache": 29.8}
    versions = {
        "kernel": "6.17.0-1021-nvidia",
        "driver": "580.126.09",
        "firmware": "28.45.4028",
        "nccl": "2.30.1",
        "clock": "2411 MHz",
        "temperature": f"{58 + rank} C",
    }
    return Machine(HOSTS[rank], rank, {**versions, **facts}, 97.3, used, 121.6, parts)


SERVICE = Service(
    "engine",
    "minimax-m2.7-awq",
    "minimax-m2.7-awq",
    "vllm",
    "0.33.0",
    "sha256:0123456789abcdef",
    HOSTS,
    {"--tensor-parallel-size": "4", "--max-model-len": "65536", "--gpu-memory-utilization": "0.80", "--trust-me": ""},
)


def rdma(slow: tuple[str, ...] = ()) -> tuple[Rdma, ...]:
    """``slow``: machines of which each half carries 13 Gb/s."""
    found = []
    for at, host in enumerate(HOSTS):
        for to, peer in enumerate(HOSTS):
            if host == peer:
                continue
            factor = 0.13 if {host, peer} & set(slow) else 1 - 0.004 * (at + to)
            found += [Rdma(host, peer, (half,), "write", round(98.4 * factor, 1)) for half in HALVES]
            found.append(Rdma(host, peer, HALVES, "write", round(193.2 * factor, 1)))
            found.append(Rdma(host, peer, HALVES[:1], "latency", round(1.9 + 0.05 * (at + to), 2)))
    return tuple(found)


def nccl(peak: float = 23.4) -> tuple[Nccl, ...]:
    sizes = [1024**2 * 2**power for power in range(13)]
    lines = tuple(Size(size, 50 + size / peak / 700, peak * 0.7, peak * size / (size + 4e6)) for size in sizes)
    whole = lines[-1].bus_gbs
    return (
        Nccl("all_reduce", HOSTS, 4, "2.30.1", "NET/IB", 2, round(whole * 0.97, 2), round(whole, 2), lines),
        Nccl("all_gather", HOSTS, 4, "2.30.1", "NET/IB", 2, round(whole * 0.96, 2), round(whole * 0.99, 2)),
    )


def serving(alone: float = 31.5, prompt: int = 1024) -> tuple[Serving, ...]:
    points = []
    for at, concurrency in enumerate((1, 2, 4, 8, 16)):
        rate = alone * concurrency**0.78
        first = prompt / 6 * (1 + 0.2 * at)
        token = 1000 / (rate / concurrency)
        points.append(
            Serving(
                *("engine", "minimax-m2.7-awq", concurrency, prompt, 256, 3, 8 * concurrency, 0, 7),
                *(round(rate, 1), round(rate * 0.97, 1), round(rate * 1.02, 1)),
                {"median": round(first), "p90": round(first * 1.4), "p99": round(first * 1.9)},
                {"median": round(token, 1), "p90": round(token * 1.1, 1), "p99": round(token * 1.25, 1)},
                **({"expected_low": 13, "expected_high": 46, "published": 35.2} if concurrency == 1 else {}),
            )
        )
    return tuple(points)


def passes(slow: tuple[str, ...] = ()) -> tuple[Verdict, ...]:
    return (
        *(
            Verdict("rdma_rate", "pass", "half", "98 Gb/s over this half", (host,), half, 98.1, (LEAST,))
            for host in HOSTS
            for half in HALVES
            if host not in slow
        ),
        Verdict("nccl_transport", "pass", "cluster", "NET/IB over both halves", HOSTS),
        Verdict("speed", "pass", "service", "31.5 tokens/s for one request", HOSTS[:1], "engine", 31.5, (BAND,)),
    )


SMOKE = (
    *(Smoke("engine", kind, True, 0.8, found) for kind, found in (("chat", "8 tokens"), ("stream", "8 pieces"))),
    Smoke("engine", "tool", True, 1.1, "get_weather(Berlin)"),
    Smoke("engine", "json", True, 0.9, "fits the schema"),
)


def run(playbook: str, at: str, **parts: object) -> Run:
    return Run("example", playbook, at, 41.5, "1.0.0", topology="switch", **parts)


def cables(rates: tuple[float, ...] = (200, 200, 200, 200)) -> tuple[Link, ...]:
    return tuple(link(host, half, rate=rates[at]) for at, host in enumerate(HOSTS) for half in (0, 1))


def healthy() -> list[Run]:
    """A benchmark a day, and a doctor after the last one."""
    whole = {
        "machines": tuple(machine(rank, 95.1 + rank / 4) for rank in range(4)),
        "links": cables(),
        "services": (SERVICE,),
        "smoke": SMOKE,
    }
    days = [
        run(
            "benchmark",
            f"2026-11-{day}T07:30:00Z",
            **whole,
            verdicts=passes(),
            rdma=rdma(),
            nccl=nccl(23.4 - (23 - day) / 10),
            serving=(*serving(31.5 - (day % 3) / 3), serving(30.1 - (day % 3) / 3, 8192)[0]),
        )
        for day in range(18, 23)
    ]
    return [*days, run("doctor", "2026-11-23T07:30:00Z", **whole, verdicts=passes())]


def degraded() -> list[Run]:
    """The same cluster on the day after: one machine's network card has not initialised."""
    bad = "spark3"
    verdicts = [
        *passes((bad,)),
        *(
            verdict(
                "rdma_rate",
                "half",
                "13 Gb/s over this half, although every link is up",
                cause="nic_degraded",
                hosts=(bad,),
                device=half,
                value=13,
                limit=LEAST,
                evidence=EVIDENCE,
            )
            for half in HALVES
        ),
        Verdict(
            *("published", UNKNOWN, "service", "the recipe names no figure for four machines"),
            *(HOSTS[:1], "engine"),
        ),
    ]
    last = healthy()[-1]
    slow = run(
        "benchmark",
        "2026-11-24T07:30:00Z",
        machines=tuple(machine(rank, 95.1, **({"firmware": "28.45.1300"} if rank == 2 else {})) for rank in range(4)),
        links=last.links,
        services=(SERVICE,),
        verdicts=tuple(verdicts),
        rdma=rdma((bad,)),
        nccl=nccl(2.1),
        serving=(*serving(11.2), serving(10.4, 8192)[0]),
        smoke=SMOKE,
    )
    return [*healthy(), slow]


def ring(count: int) -> Run:
    """Machines in a ring, or two with a cable."""
    hosts = [f"spark{number}" for number in range(1, count + 1)]
    links = []
    for at, host in enumerate(hosts):
        links += [link(host, half, hosts[(at + 1) % count], 1) for half in (0, 1)]
        if count > 2:
            links += [link(host, half, hosts[at - 1], 0) for half in (0, 1)]
    machines = tuple(Machine(host, rank) for rank, host in enumerate(hosts))
    return run("verify", "2026-11-23T07:30:00Z", machines=machines, links=tuple(links))


FAULTS = [rule for rules in SYMPTOMS.values() for rule in rules]


def gallery() -> Run:
    """Every cause once, every other one as a warning."""
    verdicts = tuple(
        verdict(
            f"check_{at}",
            "node",
            f"made up, to show the cause {cause.id}",
            cause=cause.id,
            outcome=WARN if at % 2 else "fail",
            hosts=(HOSTS[at % 4],),
            device=HALVES[at % 2],
            value=13,
            limit=LEAST,
            evidence=EVIDENCE,
        )
        for at, cause in enumerate(FAULTS)
    )
    return run("doctor", "2026-11-23T07:30:00Z", verdicts=verdicts)


def hostile(text: str) -> Run:
    """Every text that a machine may have a say in is this one."""
    limit = Limit(1, text, "least", text, text, text)
    said = Verdict(text, "fail", "node", text, (text,), text, 2, (limit,), text, (text, text), text, text)
    return Run(
        text,
        "doctor",
        text,
        1,
        text,
        topology=text,
        verdicts=(
            said,
            *(
                replace(said, outcome=outcome, cause="", check=f"{text}{outcome}")
                for outcome in ("warn", "unknown", "pass")
            ),
        ),
        machines=(
            Machine(text, 0, {text: text}, 1, 1, 2, {text: 1.0}),
            Machine(f"{text}2", 1, {text: "other"}, 1, 1, 2),
        ),
        links=(
            Link(text, text, text, 0, 0, f"{text}2", 100, 9000),
            Link(f"{text}2", text, text, 0, 0, text, 100, 9000),
        ),
        services=(Service(text, text, text, text, text, text, (text,), {text: text}),),
        rdma=(Rdma(text, f"{text}2", (text, text), "write", 1), Rdma(f"{text}2", text, (text,), "latency", 1)),
        nccl=(Nccl(text, (text,), 2, text, text, 1, 1, 1, (Size(1, 1, 1, 1), Size(2, 1, 1, 1))),),
        serving=(Serving(text, text, 1, 1, 1, 2, 1, 1, 1, 2, 1, 3, {text: 1, "median": 2}, {text: 1}),),
        smoke=(Smoke(text, text, False, 1, text),),
    )
