#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Two models that take each other's place on two simulated Sparks, and a third one that does not start.

Usage: test_by_name.py [--only STEP[,STEP]] [--beside ID] [--keep]

vLLM on CPUs with a tiny model under several names, behind the gateway, where each request waits for its model. Prints
one JSON line.
"""

from __future__ import annotations

import json
import pathlib
import random
import sys
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import LabError
from test_staying_up import BROKEN, HEAD, MODELS, Cluster

ONE, OTHER, THIRD = "tiny-llama", "other", "third"
OTHERS: list[dict[str, Any]] = [
    {"recipe": "tiny-llama-cpu", "served_model_name": OTHER, "context": 128},
    {"recipe": "tiny-llama-cpu", "served_model_name": THIRD, "model_path": f"{MODELS}/broken"},
]
# As many requests as there are, from one key.
GATEWAY = {"gateway_listen": ["127.0.0.1"], "gateway_tls": "off", "gateway_requests_per_minute": 0}
SETTINGS = {"engine_models": OTHERS, **GATEWAY, "fabric_bandwidth_test": "never"}
MODELS_BY_NAME = ("-e", json.dumps(SETTINGS))
SWITCH_S = 300.0
REQUESTS, STREAMS, BROKEN_TIMES = 1000, 48, 100
# On the head, as root: one request through the gateway, which waits there. Nobody tries again.
CLIENT = """
import concurrent.futures, http.client, json, sys, time
key = open('/etc/sparkmatrix/gateway/keys/default.key').read().strip()
head = {'Authorization': 'Bearer ' + key, 'Content-Type': 'application/json'}
def answer(model, seconds):
    body = {'model': model, 'messages': [{'role': 'user', 'content': 'fox'}], 'max_tokens': 4, 'temperature': 0}
    way = http.client.HTTPConnection('127.0.0.1', 8443, timeout=seconds)
    try:
        way.request('POST', '/v1/chat/completions', json.dumps(body), head)
        got = way.getresponse()
        said = json.loads(got.read())
    except (OSError, ValueError, http.client.HTTPException) as exc:
        return repr(exc)
    if got.status != 200:
        return said['error']['code']
    right = said['model'] == model and said['usage']['completion_tokens'] == 4
    return 'answered' if right else str(said)
"""
ASK = f"""{CLIENT}
began = time.time()
found = answer(sys.argv[1], float(sys.argv[2]))
print(json.dumps({{'found': found, 'seconds': round(time.time() - began, 1)}}))
"""
MIXED = f"""{CLIENT}
import random
chance = random.Random(1)
asked = [chance.choice(sys.argv[3:]) for _number in range(int(sys.argv[1]))]
def one(model):
    began = time.time()
    return answer(model, 900), time.time() - began
with concurrent.futures.ThreadPoolExecutor(int(sys.argv[2])) as pool:
    done = list(pool.map(one, asked))
waits = sorted(seconds for _found, seconds in done)
wrong = [found for found, _seconds in done if found != 'answered']
print(json.dumps({{'answered': len(done) - len(wrong), 'wrong': wrong[:5], 'longest_s': round(waits[-1], 1),
                  'median_s': round(waits[len(waits) // 2], 1)}}))
"""


def program(here: Cluster, text: str, *words: str) -> dict[str, Any]:
    said = here.node(HEAD, f"sudo python3 - {' '.join(words)}", data=text.encode())
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def ask(here: Cluster, model: str, expected: str = "answered", seconds: float = SWITCH_S) -> float:
    found = program(here, ASK, model, str(seconds))
    if found["found"] != expected:
        raise LabError(f"{model}: {found} instead of {expected}: {json.dumps(here.status())[-1500:]}")
    return float(found["seconds"])


def told(here: Cluster) -> dict[str, dict[str, Any]]:
    listed = json.loads(here.node(HEAD, "cat /run/sparkmatrix/models.json"))
    return {one["id"]: one for one in listed["data"]}


def kept(here: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(here.node(HEAD, "sudo cat /var/lib/sparkmatrix/keeper/state.json"))
    return found


def parts(here: Cluster) -> dict[str, float]:
    """Where the time of the last start went, and what the switch took in all."""
    state = kept(here)
    return {**state["start_parts"], "switch": state["models"]["took"].get(state["models"]["loaded"], 0.0)}


def switches(here: Cluster) -> int:
    return sum(entry["event"] == "switch" for entry in kept(here)["history"])


def allow_more(here: Cluster) -> None:
    """That half of the time is for answers is not what is tested here."""
    place = "/var/lib/sparkmatrix/keeper/state.json"
    change = f"import json; p={place!r}; v=json.load(open(p)); v['models'].update(paid=0.0, broken={{}})"
    here.node(HEAD, "sudo systemctl stop sparkmatrix-keeper")
    here.node(HEAD, "sudo python3 -", data=f"{change}; json.dump(v, open(p, 'w'))\n".encode())
    here.node(HEAD, "sudo systemctl start sparkmatrix-keeper")
    here.wait("serving", SWITCH_S, lambda status: status["serving"])


def site(here: Cluster) -> dict[str, Any]:
    """The plans of all three are made, and their files lie on both nodes."""
    for host in here.launch.hosts:
        here.node(host, "sudo python3 -", data=BROKEN.encode())
    run = here.site("by-name", "site.yml", *MODELS_BY_NAME)
    for host in here.launch.hosts:
        files = here.node(host, "stat -c '%U %a' /etc/sparkmatrix/models/*").split("\n")
        if files[:-1] != ["root 644"] * 3:
            raise LabError(f"{host}: files of models: {files}")
    found = told(here)
    states = {model: one["state"] for model, one in found.items()}
    if states != {ONE: "serving", OTHER: "absent", THIRD: "absent"}:
        raise LabError(f"{found}")
    return {"seconds": round(run.seconds), "answer_s": ask(here, ONE)}


def again(here: Cluster) -> dict[str, Any]:
    """A run that changes nothing changes nothing."""
    run = here.site("by-name-again", "site.yml", *MODELS_BY_NAME).unchanged()
    return {"seconds": round(run.seconds)}


def switched(here: Cluster) -> dict[str, Any]:
    """To the other and back, several times."""
    found = []
    for model in (OTHER, ONE, OTHER, ONE):
        seconds = ask(here, model)
        found.append({"model": model, "asked_s": seconds, **parts(here)})
    return {"switches": found, "told": told(here)[OTHER]["seconds"]}


def third(here: Cluster) -> dict[str, Any]:
    """The third does not start: the one before answers again, and it is told why."""
    began = time.monotonic()
    ask(here, THIRD, "model_broken")
    back = ask(here, ONE)
    seconds = time.monotonic() - began
    state, why = kept(here), kept(here)["models"]["broken"][THIRD]["why"]
    if told(here)[THIRD]["state"] != "broken" or "does not start" not in why:
        raise LabError(f"{told(here)}: {why}")
    if state["failures"]:
        raise LabError("it counts as a failure of the one that serves")
    return {"seconds": round(seconds), "back_s": back, "why": why[:200]}


def hundred(here: Cluster) -> dict[str, Any]:
    """The same a hundred times."""
    found = []
    for _number in range(BROKEN_TIMES):
        allow_more(here)
        ask(here, THIRD, "model_broken")
        found.append(ask(here, ONE))
    return {"times": len(found), "longest_s": max(found)}


def killed(here: Cluster) -> dict[str, Any]:
    """SIGKILL to the keeper at any moment of a switch: it is ended nevertheless."""
    chance, found = random.Random(37), []
    here.node(HEAD, "sudo python3 -c 'pass'")
    for number in range(6):
        allow_more(here)
        model = OTHER if number % 2 == 0 else ONE
        wait = round(chance.uniform(0, 16), 1)
        kill = f"(sleep {wait}; sudo systemctl kill --signal=SIGKILL sparkmatrix-keeper) >/dev/null 2>&1 &"
        here.node(HEAD, f"nohup sh -c '{kill}' >/dev/null 2>&1")
        seconds = ask(here, model)
        time.sleep(max(0.0, wait - seconds) + 1)
        found.append({"killed_after_s": wait, "answers": model, "asked_s": seconds, "then_s": ask(here, model)})
        for host in here.launch.hosts:
            place = json.loads(here.node(host, "sudo cat /etc/sparkmatrix/engine.json"))["model"]
            if place != model:
                raise LabError(f"{host} has the files of {place}")
    return {"kills": found}


def mixed(here: Cluster) -> dict[str, Any]:
    """Requests for both at once: all are answered."""
    allow_more(here)
    began, before = time.monotonic(), switches(here)
    found = program(here, MIXED, str(REQUESTS), str(STREAMS), ONE, OTHER)
    if found["answered"] != REQUESTS:
        raise LabError(f"{found}")
    return {**found, "seconds": round(time.monotonic() - began), "switches": switches(here) - before}


def back(here: Cluster) -> dict[str, Any]:
    """A run loads the first one again."""
    ask(here, OTHER)
    run = here.site("by-name-back", "site.yml", *MODELS_BY_NAME)
    if told(here)[ONE]["state"] != "serving":
        raise LabError(f"{told(here)}")
    return {"seconds": round(run.seconds)}


def gone(here: Cluster) -> dict[str, Any]:
    """Undo from the other model: nothing is left."""
    ask(here, OTHER)
    run = here.site("by-name-gone", "reset.yml", "--tags", "gateway,engine,ray")
    for host in here.launch.hosts:
        here.lacks(host, "/etc/sparkmatrix/engine*", "/etc/sparkmatrix/models")
    return {"seconds": round(run.seconds)}


STEPS = {step.__name__: step for step in (site, again, switched, third, killed, mixed, back, hundred, gone)}


def main() -> int:
    chosen = cluster.options(__doc__, STEPS).parse_args()
    return cluster.run_steps("by_name", Cluster(chosen.beside, "native"), STEPS, chosen)


if __name__ == "__main__":
    sys.exit(main())
