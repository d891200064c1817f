#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""An engine that the collection knows nothing of, on two simulated Sparks: the recipe's own image, mod and command.

Usage: test_own_command.py [--only STEP[,STEP]] [--beside ID] [--keep]

The engine is a stand-in (tests/lab/standin/anything.py), which says with what it was started. Prints one JSON line.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
import test_staying_up as staying_up
from cluster import LabError
from test_services import CLIENT, reset
from test_staying_up import HEAD, WORKER, Cluster, Launch

RECORD = "/var/lib/sparkmatrix/kernels/standin.json"
MODEL = "/opt/sparkmatrix/models/tiny-llama"
ALLOWED = json.dumps({"engine_allow": ["command"]})
BEHIND = json.dumps({"gateway_listen": ["enP7s7"]})
# Load from the lab's own vLLM, whatever serves.
PROGRAM = "/usr/local/bin/lab-load"
GENERATOR = """
#!/bin/sh
exec /opt/sparkmatrix/engine/bin/vllm bench serve "$@"
""".removeprefix("\n")
LAUNCH = Launch(
    "[t]ensorfold serve",
    ("-e", "engine_recipe=own-command", "-e", ALLOWED, "-e", BEHIND),
    image=("--anything",),
)


class Own(Cluster):
    def __init__(self, beside: str) -> None:
        super().__init__(beside, "native")
        self.launch = LAUNCH
        self.rank = LAUNCH.rank

    def started(self, host: str) -> dict[str, Any]:
        """With which words and variables the rank of a node was started."""
        found: dict[str, Any] = json.loads(self.node(host, f"sudo cat {RECORD}"))
        return found

    def address(self, host: str) -> tuple[str, str]:
        fact = json.loads(self.node(host, "sudo cat /etc/ansible/facts.d/sparkmatrix.fact"))
        return fact["cluster_address"], fact["cluster_interface"]


def expect(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise LabError(f"{what}: {found!r}, and not {expected!r}")


def refused(here: Own) -> dict[str, Any]:
    """Without the user's word nothing is started, and all that it brings is named."""
    here.site("own-refused", "site.yml", "-e", '{"engine_allow": []}', fails="it sets command, which runs as root")
    said = " ".join(cluster.log_tail("own-refused", 1000).split())
    for part in ("mods/greeting", "tensorfold serve @model@", "MINE, QUOTED, STANDIN_MB", "/opt/sparkmatrix/models ("):
        if part not in said:
            raise LabError(f"the refusal does not name {part}")
    return {}


def serves(here: Own) -> dict[str, Any]:
    """From the recipe to a token through the gateway; words and variables are the recipe's, with the places filled."""
    run = here.site("own")
    (head, interface), (worker, other) = here.address(HEAD), here.address(WORKER)
    meeting = ["--master", head, "--master-port", "29501"]
    first, second = here.started(HEAD), here.started(WORKER)
    words = ["serve", MODEL, "--name", "own-command", "--tp=2", "--rank", "0", *meeting]
    words += ["--host", "127.0.0.1", "--port", "8000", "--json", '{"a": "$HOME %i {b}"}']
    expect("words of the head", first["argv"][1:], words)
    expect("words of the worker", second["argv"][1:], ["serve", MODEL, "--tp", "2", "--rank", "1", *meeting])
    expect("its greeting", second["environment"]["GREETING"], f"hello from {worker} {other}")
    for started, mine in ((first, f"{head} {interface}"), (second, f"{worker} {other}")):
        expect("its address", started["environment"]["MINE"], mine)
        expect("quotes", started["environment"]["QUOTED"], 'a "b" $C %d')
    here.node(HEAD, f"cat > /tmp/client.py <<'END'{CLIENT}END")
    for name, answer in (("own-command", "own-command"), ("nobody", "404")):
        expect("the gateway", here.node(HEAD, f"sudo python3 /tmp/client.py {name}").strip(), answer)
    return {"seconds": round(run.seconds)}


def again(here: Own) -> dict[str, Any]:
    """Changes nothing, and knows now what it takes."""
    run = here.site("own-again").unchanged()
    said = " ".join(cluster.log_tail("own-again", 1000).split())
    if "measured when it served" not in said:
        raise LabError("the second plan does not say what it took")
    kept = json.loads(here.node(HEAD, "sudo cat /var/lib/sparkmatrix/plan/current.json"))
    return {"seconds": round(run.seconds), "executions": run.executions_per_node(), "took": kept["took"]}


def benchmarked(here: Own) -> dict[str, Any]:
    """Its image has no generator of load, so one beside it is named."""
    here.node(HEAD, f"cat > /tmp/load <<'END'\n{GENERATOR}END\nsudo install -m 755 /tmp/load {PROGRAM}")
    settings = {"benchmark_program": PROGRAM, "benchmark_concurrency": [2], "benchmark_output_tokens": 16}
    run = here.site("own-benchmark", "playbooks/benchmark.yml", "--tags", "serving", "-e", json.dumps(settings))
    kept = here.node(HEAD, "sudo sh -c 'cat $(ls /var/lib/sparkmatrix/verdicts/*-benchmark.json | tail -n 1)'")
    (point,) = json.loads(kept)["serving"]
    expect("failed requests", point["failed"], 0)
    return {"seconds": round(run.seconds), "tokens_per_s": point["output_rate"]}


def moved(here: Own) -> dict[str, Any]:
    """An upgrade to another command, which then serves, and the way back by hand."""
    run = here.site("own-moved", "playbooks/upgrade.yml", "-e", "engine_recipe=own-other")
    expect("its words", here.started(HEAD)["argv"][1:3], ["--model", MODEL])
    expect("the gateway", here.node(HEAD, "sudo python3 /tmp/client.py another").strip(), "another")
    back = here.site("own-back", "playbooks/rollback.yml")
    expect("its words", here.started(HEAD)["argv"][1:3], ["serve", MODEL])
    expect("the gateway", here.node(HEAD, "sudo python3 /tmp/client.py own-command").strip(), "own-command")
    return {"upgrade_s": round(run.seconds), "rollback_s": round(back.seconds)}


def returned(here: Own) -> dict[str, Any]:
    """An upgrade to a command that ends at once comes back to what served."""
    said = "what served before serves again"
    run = here.site("own-upgrade", "playbooks/upgrade.yml", "-e", "engine_recipe=own-broken", fails=said)
    expect("the gateway", here.node(HEAD, "sudo python3 /tmp/client.py own-command").strip(), "own-command")
    return {"seconds": round(run.seconds)}


def gone(here: Own) -> dict[str, Any]:
    """Reset."""
    return reset(here, "own-gone")


STEPS = {
    "refused": refused,
    "serves": serves,
    "again": again,
    "rank": staying_up.rank,
    "head": staying_up.head,
    "benchmarked": benchmarked,
    "moved": moved,
    "returned": returned,
    "gone": gone,
}


def main() -> int:
    chosen = cluster.options(__doc__, STEPS).parse_args()
    return cluster.run_steps("own_command", Own(chosen.beside), STEPS, chosen)


if __name__ == "__main__":
    sys.exit(main())
