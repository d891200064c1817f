#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Ranks, nodes, engine, gateway and keeper of two simulated Sparks are broken at random: what do clients notice?

Usage: test_unnoticed.py [--engine vllm] [--faults N] [--seed N] [--only STEP[,STEP]] [--beside ID] [--keep]

A request of which no token has come must be answered, and none twice; a stream that had begun ends with the API's
error, or with its connection where the gateway itself was killed. 32 streams of tests/bench/relay_faults.py; the engine
is a stand-in that starts at once (tests/lab/standin/anything.py), or vLLM on CPUs. Prints one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / part) for part in ("lab", "bench")]

import cluster
import relay_faults
import test_own_command as own_command
from cluster import LabError, say
from relay_faults import CUT, NOTHING, WRONG, Answer, Clients, Way
from test_staying_up import BACK_S, HEAD, LAUNCHES, WORKER, Cluster, Launch

STREAMS = 32
GATEWAY = {
    "gateway_listen": ["enP7s7"],
    "gateway_tls": "off",
    "gateway_requests_per_minute": 0,
    # What a worker of nginx had stays counted when it is killed (docs/gateway.md, Limits).
    "gateway_concurrent_requests": 0,
}
STANDIN = {"STANDIN_MB": "0", "STANDIN_TOKEN_S": "0.05"}
# All failures of the engine are ours here: the keeper neither waits after them nor gives up.
PATIENT = """
import json
place = '/etc/sparkmatrix/engine.json'
told = json.load(open(place))
told['keeper'].update(start_limit=1000000, backoff_s=0.0)
json.dump(told, open(place, 'w'))
"""
KILL = "sudo systemctl kill --signal=KILL --kill-whom={} sparkmatrix-{}"
ENDS_S = 3.0  # a connection ends so soon after the part of the gateway that had it
IN_A_ROW = 3  # faults before which nothing is waited for


@dataclass(frozen=True)
class Kind:
    recipe: tuple[str, ...]
    launch: Launch
    prompt: int  # bytes
    model: str


KINDS = {
    "standin": Kind(
        ("-e", json.dumps({"engine_environment": STANDIN, **GATEWAY})), own_command.LAUNCH, 20_000, "own-command"
    ),
    "vllm": Kind(("-e", json.dumps(GATEWAY)), LAUNCHES["native"], 100, "tiny-llama"),
}


class Noticed(Cluster):
    def __init__(self, beside: str, engine: str, faults: int, seed: int) -> None:
        super().__init__(beside, "native")
        self.kind = KINDS[engine]
        self.launch, self.rank = self.kind.launch, self.kind.launch.rank
        self.faults, self.chance = faults, random.Random(seed)

    # -- what is broken

    def engine(self) -> None:
        """All ranks of both nodes."""
        self.node(HEAD, KILL.format("all", "engine"), check=False)
        self.node(WORKER, KILL.format("all", "engine"), check=False)

    def rank_of_the_head(self) -> None:
        self.node(HEAD, f"sudo pkill -KILL -f '{self.rank}'", check=False)

    def rank_of_the_worker(self) -> None:
        self.node(WORKER, f"sudo pkill -KILL -f '{self.rank}'", check=False)

    def half_dead(self) -> None:
        """The engine's port takes connections, and nothing answers on them; then it is dead."""
        self.node(HEAD, f"sudo pkill -STOP -f '{self.rank}'; sleep 2; sudo pkill -KILL -f '{self.rank}'", check=False)

    def processes_of_the_node(self) -> None:
        """All of the collection's and the engine's on the worker."""
        self.node(WORKER, f"sudo pkill -KILL -f '[s]parkmatrix-node'; sudo pkill -KILL -f '{self.rank}'", check=False)

    def link(self) -> None:
        self.lab("fault", WORKER, "no_cable")
        time.sleep(2)
        self.lab("fault", WORKER, "clear", "no_cable")

    def power(self) -> None:
        self.lab("stop", WORKER)
        self.lab("start", WORKER)

    def relay(self) -> None:
        self.node(HEAD, KILL.format("all", "relay"))

    def nginx(self) -> None:
        self.node(HEAD, KILL.format("main", "gateway"))

    def worker_of_nginx(self) -> None:
        self.node(HEAD, "sudo pkill -KILL -o -f '[n]ginx: worker'", check=False)

    def keeper(self) -> None:
        self.node(HEAD, KILL.format("all", "keeper"))


# How often of each; the second word is the issue's.
FAULTS: dict[Callable[[Noticed], None], tuple[int, str]] = {
    Noticed.rank_of_the_head: (3, "rank"),
    Noticed.rank_of_the_worker: (3, "rank"),
    Noticed.engine: (3, "engine"),
    Noticed.half_dead: (2, "engine"),
    Noticed.processes_of_the_node: (2, "node"),
    Noticed.link: (1, "node"),
    Noticed.power: (1, "node"),
    Noticed.relay: (2, "gateway"),
    Noticed.nginx: (1, "gateway"),
    Noticed.worker_of_nginx: (1, "gateway"),
    Noticed.keeper: (3, "keeper"),
}


def site(here: Noticed) -> dict[str, Any]:
    """It serves, behind the gateway."""
    run = here.site("unnoticed", "site.yml", *here.kind.recipe, "-e", "fabric_bandwidth_test=never")
    here.node(HEAD, "sudo python3 -", data=PATIENT.encode())
    here.node(HEAD, "sudo systemctl restart sparkmatrix-keeper")
    here.wait("serving", BACK_S, lambda status: bool(status["serving"]))
    return {"seconds": round(run.seconds)}


def way(here: Noticed) -> Way:
    key = here.node(HEAD, "sudo cat /etc/sparkmatrix/gateway/keys/default.key").strip()
    address = json.loads(here.node(HEAD, "sudo cat /etc/sparkmatrix/gateway.json"))["endpoints"][0]
    host, _colon, port = address.removeprefix("http://").partition("/")[0].rpartition(":")
    return Way(host, int(port), key, here.kind.model, here.kind.prompt)


def faults(here: Noticed) -> dict[str, Any]:
    """At any moment, most of them while it answers, some while it comes back from the one before."""
    return asyncio.run(_faults(here, way(here)))


async def _faults(here: Noticed, to: Way) -> dict[str, Any]:
    kinds: Counter[str] = Counter()
    ends: list[tuple[float, float]] = []  # when a part of the gateway was killed
    began, row = time.time(), 0
    async with Clients(to, STREAMS) as clients:
        await _answers(here, clients, began)
        for number in range(here.faults):
            (fault,) = here.chance.choices(list(FAULTS), [often for often, _word in FAULTS.values()])
            kind, before = FAULTS[fault][1], time.time()
            await asyncio.to_thread(fault, here)
            kinds[f"{kind}: {fault.__name__}"] += 1
            if kind == "gateway":
                ends.append((before, time.time() + ENDS_S))
            row = row + 1 if row < IN_A_ROW and here.chance.random() < 0.2 else 0
            if not row:
                await _answers(here, clients, time.time())
            await asyncio.sleep(here.chance.random() * 2)
            if number % 10 == 9:
                say(f"   {number + 1} faults, {time.time() - began:.0f} s: {relay_faults.counted(clients.answers)}")
        await _answers(here, clients, time.time())
    return judged(clients.answers, ends, kinds)


async def _answers(here: Noticed, clients: Clients, since: float) -> None:
    deadline = time.time() + BACK_S
    while not clients.answered_since(since):
        if time.time() > deadline:
            status = await asyncio.to_thread(here.status)
            raise LabError(f"no token within {BACK_S:.0f} s: {json.dumps(status)[-1500:]}")
        await asyncio.sleep(0.1)


def judged(answers: list[Answer], ends: list[tuple[float, float]], kinds: Counter[str]) -> dict[str, Any]:
    """Raises :class:`LabError` where a promise was broken."""
    wrong = [answer for answer in answers if answer.kind in WRONG]
    wrong += [
        answer
        for answer in answers
        if answer.kind in (CUT, NOTHING) and not any(begin <= answer.ended <= end for begin, end in ends)
    ]
    waits = sorted((answer.first or answer.ended) - answer.began for answer in answers if answer.waited)
    found = {
        "faults": dict(sorted(kinds.items())),
        "requests": sum(answer.kind != NOTHING for answer in answers),
        "answers": relay_faults.counted(answers),
        "longest_wait_s": round(waits[-1], 1) if waits else 0.0,
        "median_wait_s": round(waits[len(waits) // 2], 1) if waits else 0.0,
    }
    say(json.dumps(found))
    if wrong:
        said = "\n".join(
            f"{one.kind} after {one.ended - one.began:.1f} s, {one.ended}: {one.said}" for one in wrong[:9]
        )
        raise LabError(f"{len(wrong)} requests went wrong: {said}\nThe gateway was killed at {ends}\n{found}")
    return found


STEPS = {step.__name__: step for step in (site, faults)}


def main() -> int:
    parser = cluster.options(__doc__, STEPS)
    parser.add_argument("--engine", default="standin", choices=tuple(KINDS))
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    chosen = parser.parse_args()
    say(f"seed {chosen.seed}")
    here = Noticed(chosen.beside, chosen.engine, chosen.faults, chosen.seed)
    return cluster.run_steps("unnoticed", here, STEPS, chosen)


if __name__ == "__main__":
    sys.exit(main())
