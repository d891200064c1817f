#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Two services on two simulated Sparks: one on each, then both on one, then one service on both, then none.

Usage: test_services.py [--pairs | --containers] [--only STEP[,STEP]] [--beside ID] [--keep]

``--pairs``: four nodes instead, two services over Ray on two nodes each, behind firewall and gateway.
``--containers``: one node with three services in containers, of three engines, which are stand-ins.

All other engines are real. Each step looks at answers and at what it has left behind; one service is killed, upgraded
or stopped, and the other must not notice. Prints one JSON line.
"""

from __future__ import annotations

import json
import pathlib
import sys
import threading
import time
from dataclasses import replace
from types import TracebackType
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import LabError
from test_staying_up import BACK_S, BROKEN, MODELS, TOOL, Cluster

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
    text = here.node(host, f"sudo {TOOL} status --here --json --service {name}", check=False)
    found: dict[str, Any] = json.loads(text) if text.strip() else {}
    return dict(found.get("services", {}).get(name) or {"serving": False, "history": []})


def invocation(here: Cluster, host: str, unit: str) -> str:
    return here.node(host, f"systemctl show -P InvocationID {unit}").strip()


def nothing(here: Cluster, host: str, *words: str) -> None:
    """No trace that has one of ``words`` in it; any trace without words."""
    lines = here.node(host, TRACES).splitlines()
    # The empty slice of containers stays in systemd's memory until the next boot; there is no file.
    lines = [line for line in lines if not line.startswith("sparkmatrix-engine.slice")]
    found = [line for line in lines if not words or any(word in line for word in words)]
    if found:
        raise LabError(f"left on {host}: {'; '.join(found)}")


def reset(here: Cluster, name: str, tags: str = "engine", *more: str) -> dict[str, Any]:
    run = here.site(name, "reset.yml", "--tags", tags, *more)
    for host in here.launch.hosts:
        nothing(here, host)
    return {"seconds": round(run.seconds)}


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
    run = here.site("services-again", "site.yml", *options(APART)).unchanged()
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
    return reset(here, "services-gone")


LEFT: dict[str, Any] = {"name": "left", "served_model_name": "left", "nodes": ["spark1", "spark2"]}
RIGHT: dict[str, Any] = {"name": "right", "served_model_name": "right", "nodes": ["spark3", "spark4"], "port": 8001}
# Four ranks on two busy cores take longer than what the lab allows for.
BEHIND = ("-e", '{"access_firewall": true, "gateway_listen": ["enP7s7"], "engine_ready_timeout_s": 900}')
RIGHT_UNIT = "sparkmatrix-engine-right"
# One request of a client through the gateway: what model has answered, or the status.
CLIENT = """
import json, ssl, sys, urllib.error, urllib.request
key = open('/etc/sparkmatrix/gateway/keys/default.key').read().strip()
address = json.load(open('/etc/sparkmatrix/gateway.json'))['endpoints'][0]
body = {'model': sys.argv[1], 'messages': [{'role': 'user', 'content': 'hello'}], 'max_tokens': 2}
request = urllib.request.Request(address + '/chat/completions', json.dumps(body).encode(),
                                 {'Authorization': 'Bearer ' + key, 'Content-Type': 'application/json'})
try:
    trust = ssl.create_default_context(cafile='/etc/sparkmatrix/gateway/tls/ca.crt')
    print(json.load(urllib.request.urlopen(request, timeout=60, context=trust))['model'])
except urllib.error.HTTPError as exc:
    print(exc.code)
"""
# From a node of the cluster, under its own address and under one on the same network that belongs to none.
STRANGER = """
ip address add 192.168.100.99/32 dev enp1s0f0np0
python3 - <<'END'
import socket
for source in ('192.168.100.10', '192.168.100.99'):
    try:
        socket.create_connection(('192.168.100.12', 8001), 4, (source, 0)).close()
        print('open')
    except TimeoutError:
        print('silent')
END
ping -q -c 1 -W 2 -I 192.168.100.99 192.168.100.12 > /dev/null && echo there
ip address del 192.168.100.99/32 dev enp1s0f0np0
"""


class Pairs(Cluster):
    def __init__(self, beside: str) -> None:
        super().__init__(beside, "ray")
        self.launch = replace(self.launch, nodes=4)


class Meanwhile:
    """A client of the service on the left, as long as something happens to the other: every answer has to come."""

    def __init__(self, here: Cluster) -> None:
        self.here = here
        self.answers = 0
        self.wrong: list[str] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.ask, daemon=True)

    def ask(self) -> None:
        while not self.over.is_set():
            said = self.here.node("spark1", "sudo python3 /tmp/client.py left", check=False).strip()
            if said == "left":
                self.answers += 1
            else:
                self.wrong.append(said)
            self.over.wait(2)

    def __enter__(self) -> Meanwhile:
        self.unit = invocation(self.here, "spark1", "sparkmatrix-engine-left")
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        self.over.set()
        self.thread.join(90)
        if exc is None and (self.wrong or not self.answers):
            raise LabError(f"the other service gave {self.answers} answers, and said {self.wrong[:5]}")
        if exc is None and invocation(self.here, "spark1", "sparkmatrix-engine-left") != self.unit:
            raise LabError("the other service was restarted, too")


def pairs(here: Cluster) -> dict[str, Any]:
    """Two over Ray, each on nodes of its own; the gateway of the one head leads to both, and to nobody else."""
    run = here.site("pairs", "site.yml", *options([LEFT, RIGHT]), *BEHIND)
    here.node("spark1", f"cat > /tmp/client.py <<'END'{CLIENT}END")
    for name in ("left", "right", "nobody"):
        said = here.node("spark1", f"sudo python3 /tmp/client.py {name}").strip()
        if said != {"nobody": "404"}.get(name, name):
            raise LabError(f"asked for {name}, the gateway says {said}")
    described = json.loads(here.node("spark3", "sudo cat /etc/sparkmatrix/engine-right.json"))
    here.node("spark1", f"cat > /tmp/access.py <<'END'{ACCESS}END")
    url = f"http://{described['host']}:{described['port']}/v1/models"
    seen = here.node("spark1", f"sudo python3 /tmp/access.py {url}").split()
    seen += here.node("spark1", f"cat > /tmp/stranger.sh <<'OVER'{STRANGER}OVER\nsudo sh /tmp/stranger.sh").split()
    if seen != ["200", "401", "open", "silent", "there"]:
        raise LabError(f"{url} says {seen}: with the key, with a wrong one, to a node, and to a stranger")
    return {"seconds": round(run.seconds), "over_the_fabric": url}


def pairs_again(here: Cluster) -> dict[str, Any]:
    """Changes nothing."""
    run = here.site("pairs-again", "site.yml", *options([LEFT, RIGHT]), *BEHIND).unchanged()
    return {"seconds": round(run.seconds), "executions": run.executions_per_node()}


def pairs_killed(here: Cluster) -> dict[str, Any]:
    """SIGKILL to the rank of one on its worker: it comes back, and the other answers all the time."""
    before = len(status(here, "spark3", "right")["history"])
    with Meanwhile(here) as other:
        began = time.monotonic()
        here.node("spark4", "sudo pkill -KILL -f '[r]ay::RayWorker'")
        while True:
            found = status(here, "spark3", "right")
            if len(found["history"]) > before and found["serving"]:
                break
            if time.monotonic() - began > BACK_S:
                raise LabError(f"right did not come back: {json.dumps(found)[-800:]}")
            time.sleep(1)
        took = round(time.monotonic() - began)
        answers(here, "spark3", "right")
    if status(here, "spark1", "left")["history"]:
        raise LabError("the keeper of the other service has seen a failure")
    return {"back_s": took, "answers_of_the_other": other.answers}


def tokens(here: Cluster) -> int:
    return int(here.node("spark3", f"grep -oP -- '--max-model-len \\K[0-9]+' /etc/systemd/system/{RIGHT_UNIT}.service"))


def pairs_upgraded(here: Cluster) -> dict[str, Any]:
    """One is upgraded, rolled back, upgraded to what is not there or does not start; the other answers meanwhile."""
    seconds = {}
    shorter = options([LEFT, {**RIGHT, "context": 128}])
    nowhere = options([LEFT, {**RIGHT, "model_path": "/nonexistent"}])
    broken = options([LEFT, {**RIGHT, "model_path": f"{MODELS}/broken"}])
    for host in RIGHT["nodes"]:
        here.node(host, "sudo python3 -", data=BROKEN.encode())
    both = options([{**LEFT, "context": 128}, {**RIGHT, "context": 128}])
    one = ("-e", "engine_service=right")
    steps = (
        ("refused", "playbooks/upgrade.yml", both, "left would be served otherwise", 256),
        ("upgrade", "playbooks/upgrade.yml", shorter, "", 128),
        ("rollback", "playbooks/rollback.yml", (), "", 256),
        ("nowhere", "playbooks/upgrade.yml", nowhere, "there is nothing at this path", 256),
        ("bad", "playbooks/upgrade.yml", broken, "what served before serves again (left, right)", 256),
    )
    with Meanwhile(here) as other:
        for name, playbook, more, fails, expected in steps:
            run = here.site(f"pairs-{name}", playbook, *more, *one, *BEHIND, fails=fails)
            seconds[f"{name}_s"] = round(run.seconds)
            if tokens(here) != expected:
                raise LabError(f"{name}: a context of {tokens(here)} tokens instead of {expected}")
            answers(here, "spark3", "right")
    return {**seconds, "answers_of_the_other": other.answers}


def pairs_stopped(here: Cluster) -> dict[str, Any]:
    """One is stopped, with its Ray, and started again; the other answers all the time."""
    one = ("-e", "engine_service=right")
    with Meanwhile(here) as other:
        here.site("pairs-unknown", "playbooks/stop.yml", "-e", "engine_service=wrong", fails="there are left, right")
        for name, more in (("upgrade", options([LEFT, RIGHT])), ("rollback", ())):
            wrong = (f"playbooks/{name}.yml", *more, "-e", "engine_service=wrong", *BEHIND)
            here.site(f"pairs-unknown-{name}", *wrong, fails="there are left, right")
        here.site("pairs-stop", "playbooks/stop.yml", *one)
        units = "sparkmatrix-ray sparkmatrix-engine-right sparkmatrix-keeper-right"
        for host in ("spark3", "spark4"):
            left = here.node(host, f"systemctl is-active {units}; true").split()
            if "active" in left:
                raise LabError(f"{host}: after stop.yml {units} are {left}")
        said = here.node("spark1", "sudo python3 /tmp/client.py right").strip()
        if said != "503":
            raise LabError(f"asked for a service that is stopped, the gateway says {said}")
        run = here.site("pairs-restart", "playbooks/restart.yml", *one)
        answers(here, "spark3", "right")
    return {"restart_s": round(run.seconds), "answers_of_the_other": other.answers}


def pairs_gone(here: Cluster) -> dict[str, Any]:
    """Reset."""
    return reset(here, "pairs-gone", "gateway,engine,ray", *BEHIND)


STANDIN: dict[str, Any] = {"recipe": "standin", "runtime": "container"}
THREE: list[dict[str, Any]] = [
    {**STANDIN, "name": "chat", "served_model_name": "chat", "engine": "vllm", "memory_share": 0.4},
    {**STANDIN, "name": "code", "served_model_name": "code", "engine": "sglang", "port": 8001, "memory_share": 0.3},
    {
        **STANDIN,
        "name": "last",
        "served_model_name": "last",
        "engine": "tensorrt-llm",
        "port": 8002,
        "memory_share": 0.3,
    },
]
# Of the 0.2 of the machine's memory that the recipe asks for, a third would be less than what it calls overhead.
ROOM = ("-e", "engine_gpu_memory_utilization=0.4")


class One(Cluster):
    def __init__(self, beside: str) -> None:
        super().__init__(beside, "native")
        self.launch = replace(self.launch, nodes=1, image=())


def containers(here: Cluster) -> dict[str, Any]:
    """Three engines on one node, each in a container of its own, with its part of the memory; the second run."""
    run = here.site("containers", "site.yml", *options(THREE), *ROOM)
    for entry in THREE:
        answers(here, "spark1", entry["name"])
    shown = here.node("spark1", "sudo docker ps --format '{{.Names}}'").split()
    wanted = [f"sparkmatrix-engine-{entry['name']}" for entry in THREE]
    if sorted(shown) != wanted:
        raise LabError(f"the node has the containers {shown} instead of {wanted}")
    again = here.site("containers-again", "site.yml", *options(THREE), *ROOM).unchanged()
    return {"seconds": round(run.seconds), "again_s": round(again.seconds), "executions": again.executions_per_node()}


def containers_killed(here: Cluster) -> dict[str, Any]:
    """SIGKILL to one of the containers: it alone is started again."""
    others = ("sparkmatrix-engine-chat", "sparkmatrix-engine-last")
    before = [invocation(here, "spark1", unit) for unit in others]
    seen = len(status(here, "spark1", "code")["history"])
    began = time.monotonic()
    here.node("spark1", "sudo docker kill sparkmatrix-engine-code")
    while True:
        found = status(here, "spark1", "code")
        if len(found["history"]) > seen and found["serving"]:
            break
        if time.monotonic() - began > BACK_S:
            raise LabError(f"code did not come back: {json.dumps(found)[-800:]}")
        time.sleep(1)
    for entry in THREE:
        answers(here, "spark1", entry["name"])
    if [invocation(here, "spark1", unit) for unit in others] != before:
        raise LabError("another service was restarted, too")
    return {"back_s": round(time.monotonic() - began)}


def containers_gone(here: Cluster) -> dict[str, Any]:
    """Two of them leave the inventory, then all: no container and no file stays."""
    here.site("containers-one", "playbooks/engine.yml", *options([{**THREE[0], "memory_share": 1}]), *ROOM)
    found = json.loads(here.node("spark1", f"sudo {TOOL} probe --json"))
    if not found["ok"]:
        raise LabError(f"it does not answer: {found}")
    shown = here.node("spark1", "sudo docker ps --all --format '{{.Names}}'").split()
    if shown != ["sparkmatrix-engine"]:
        raise LabError(f"the node has the containers {shown}")
    nothing(here, "spark1", "-chat", "-code", "-last")
    return reset(here, "containers-gone")


STEPS = {step.__name__: step for step in (apart, again, together, killed, single, back, gone)}
FOUR = (pairs, pairs_again, pairs_killed, pairs_upgraded, pairs_stopped, pairs_gone)
PAIRS = {step.__name__: step for step in FOUR}
CONTAINERS = {step.__name__: step for step in (containers, containers_killed, containers_gone)}


def main() -> int:
    parser = cluster.options(__doc__, (*STEPS, *PAIRS, *CONTAINERS))
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pairs", action="store_true", help="two services over Ray, on two nodes each")
    which.add_argument("--containers", action="store_true", help="three stand-ins in containers on one node")
    chosen = parser.parse_args()
    here, steps = Cluster(chosen.beside, "native"), STEPS
    if chosen.pairs:
        here, steps = Pairs(chosen.beside), PAIRS
    elif chosen.containers:
        here, steps = One(chosen.beside), CONTAINERS
    return cluster.run_steps("services", here, steps, chosen)


if __name__ == "__main__":
    sys.exit(main())
