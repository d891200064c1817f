#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Two services on two simulated Sparks: one on each, then both on one, then one service on both, then none.

Usage: services.py [--beside ID] [--keep]

All engines are real. Each step looks at answers and at what it has left behind; one service is killed, and the other
must not notice. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import cluster
from cluster import LabError, say
from staying_up import BACK_S, TOOL, Cluster

CHAT: dict[str, Any] = {"name": "chat", "served_model_name": "chat", "nodes": ["spark1"]}
# It embeds: chat beside embeddings is what one node is shared for most.
SMALL: dict[str, Any] = {"name": "small", "served_model_name": "small", "port": 8001, "recipe": "tiny-llama-embed"}
APART = [CHAT, {**SMALL, "nodes": ["spark2"]}]
TOGETHER = [{**CHAT, "memory_share": 0.6}, {**SMALL, "nodes": ["spark1"], "memory_share": 0.4}]
# Everything of the engine that may lie on a node.
TRACES = (
    "sudo sh -c 'ls -d /etc/sparkmatrix/engine* /etc/systemd/system/sparkmatrix-engine*"
    " /etc/systemd/system/sparkmatrix-keeper* /etc/systemd/system/multi-user.target.wants/sparkmatrix-keeper*"
    " /var/lib/sparkmatrix/keeper/* 2>/dev/null; systemctl list-units --all --plain --no-legend"
    " sparkmatrix-engine\\* sparkmatrix-keeper\\*'; true"
)
# HTTP status with the key of the cluster, and with none.
ACCESS = """
import re, sys, urllib.error, urllib.request
key = re.search(r'"(.+)"', open('/etc/sparkmatrix/engine-key.env').read())[1]
for value in (key, 'wrong'):
    request = urllib.request.Request(sys.argv[1], headers={'Authorization': 'Bearer ' + value})
    try:
        print(urllib.request.urlopen(request, timeout=30).status)
    except urllib.error.HTTPError as exc:
        print(exc.code)
"""


def options(services: list[dict[str, Any]]) -> tuple[str, str]:
    return "-e", json.dumps({"engine_services": services})


def answers(here: Cluster, host: str, name: str) -> None:
    found = json.loads(here.node(host, f"sudo {TOOL} probe --json --service {name}", check=False) or "{}")
    if not found.get("ok") or found.get("model") != name:
        raise LabError(f"{name} on {host} does not answer: {found}")


def status(here: Cluster, host: str, name: str) -> dict[str, Any]:
    text = here.node(host, f"sudo {TOOL} status --json --service {name}", check=False)
    found: dict[str, Any] = json.loads(text) if text.strip() else {"serving": False, "history": []}
    return found


def invocation(here: Cluster, host: str, unit: str) -> str:
    return here.node(host, f"systemctl show -P InvocationID {unit}").strip()


def nothing(here: Cluster, host: str, *words: str) -> None:
    """No trace that has one of ``words`` in it; any trace without words."""
    found = [line for line in here.node(host, TRACES).splitlines() if not words or any(word in line for word in words)]
    if found:
        raise LabError(f"left on {host}: {'; '.join(found)}")


def apart(here: Cluster) -> dict[str, Any]:
    """One on each node. The second is reached over the fabric, with the same key."""
    run = here.site("services-apart", "site.yml", *options(APART))
    answers(here, "spark1", "chat")
    answers(here, "spark2", "small")
    described = json.loads(here.node("spark2", "sudo cat /etc/sparkmatrix/engine-small.json"))
    url = f"http://{described['host']}:{described['port']}/v1/models"
    here.node("spark1", f"cat > /tmp/access.py <<'END'{ACCESS}END")
    seen = here.node("spark1", f"sudo python3 /tmp/access.py {url}").split()
    if seen != ["200", "401"]:
        raise LabError(f"from spark1 {url} says {seen} with the key and with a wrong one")
    nothing(here, "spark1", "small")
    nothing(here, "spark2", "chat")
    return {"seconds": round(run.seconds), "over_the_fabric": url}


def again(here: Cluster) -> dict[str, Any]:
    """Changes nothing."""
    run = here.site("services-again", "site.yml", *options(APART))
    if run.changed:
        raise LabError(f"the second run changed {run.stats.get('changed_tasks')}")
    return {"seconds": round(run.seconds), "executions": run.executions_per_node()}


def together(here: Cluster) -> dict[str, Any]:
    """Both on one node, with shares of its memory; the other is idle, and holds nothing any more."""
    run = here.site("services-together", "playbooks/engine.yml", *options(TOGETHER))
    for name in ("chat", "small"):
        answers(here, "spark1", name)
    nothing(here, "spark2")
    return {"seconds": round(run.seconds)}


def killed(here: Cluster) -> dict[str, Any]:
    """SIGKILL to one: it alone is restarted, and the other answers all the time."""
    other = invocation(here, "spark1", "sparkmatrix-engine-small")
    before = len(status(here, "spark1", "chat")["history"])
    began = time.monotonic()
    here.node("spark1", "sudo systemctl kill --signal=KILL --kill-whom=main sparkmatrix-engine-chat")
    meanwhile = 0
    while True:
        answers(here, "spark1", "small")
        meanwhile += 1
        found = status(here, "spark1", "chat")
        if len(found["history"]) > before and found["serving"]:
            break
        if time.monotonic() - began > BACK_S:
            raise LabError(f"chat did not come back: {json.dumps(found)[-800:]}")
    answers(here, "spark1", "chat")
    if invocation(here, "spark1", "sparkmatrix-engine-small") != other:
        raise LabError("the other service was restarted, too")
    if status(here, "spark1", "small")["history"]:
        raise LabError("the keeper of the other service has seen a failure")
    return {"back_s": round(time.monotonic() - began), "answers_of_the_other": meanwhile}


def single(here: Cluster) -> dict[str, Any]:
    """One service over both nodes again, under the plain names."""
    run = here.site("services-single", "playbooks/engine.yml", *options([]))
    answer = json.loads(here.node("spark1", f"sudo {TOOL} probe --json"))
    if not answer["ok"]:
        raise LabError(f"it does not answer: {answer}")
    for host in ("spark1", "spark2"):
        nothing(here, host, "chat", "small")
    return {"seconds": round(run.seconds)}


def back(here: Cluster) -> dict[str, Any]:
    """Rollback: the plan before the last change, with both services."""
    run = here.site("services-back", "playbooks/rollback.yml")
    for name in ("chat", "small"):
        answers(here, "spark1", name)
    nothing(here, "spark2")
    return {"seconds": round(run.seconds)}


def gone(here: Cluster) -> dict[str, Any]:
    """Reset."""
    run = here.site("services-gone", "reset.yml", "--tags", "engine")
    for host in ("spark1", "spark2"):
        nothing(here, host)
    return {"seconds": round(run.seconds)}


STEPS = {step.__name__: step for step in (apart, again, together, killed, single, back, gone)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(STEPS), metavar="STEP[,STEP]", help=", ".join(STEPS))
    parser.add_argument("--beside", default="", metavar="ID", help="a lab of this id beside another")
    parser.add_argument("--keep", action="store_true", help="use the lab that is up, and leave it")
    chosen = parser.parse_args()
    here = Cluster(chosen.beside, "native")
    results: dict[str, Any] = {}
    problem = ""
    try:
        if not chosen.keep:
            cluster.build()
            here.boot()
        for name in chosen.only.split(","):
            say(f"-- {name}: {STEPS[name].__doc__}")
            results[name] = STEPS[name](here)
            say(f"   {json.dumps(results[name])}")
    except LabError as exc:
        problem = str(exc)
        say(problem)
    finally:
        if not chosen.keep:
            here.down()
    print(json.dumps({"services": results, "problem": problem}))
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
