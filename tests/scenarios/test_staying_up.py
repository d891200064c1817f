#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Break a serving cluster in every way, and measure until it serves again without help.

Usage: test_staying_up.py [--launch LAUNCH] [--only FAULT[,FAULT]] [--beside ID] [--keep | --serving]

Prints one JSON line: seconds until the keeper noticed, and until tokens came again, beside a bare start. The limits for
hangs are short here: 40 s of standing still instead of ten minutes.
"""

from __future__ import annotations

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import ROOT, LabError, lab, say

HEAD, WORKER = "spark1", "spark2"


@dataclass(frozen=True)
class Launch:
    """How nodes become one engine. ``rank``: what a rank on a worker is called; the brackets keep pkill from finding
    the shell that runs it."""

    rank: str
    options: tuple[str, ...] = ()
    nodes: int = 2
    image: tuple[str, ...] | None = None  # what standin/image.py is told, where one is needed

    @property
    def hosts(self) -> list[str]:
        return [f"spark{number + 1}" for number in range(self.nodes)]


TOOL = "/usr/local/lib/sparkmatrix/sparkmatrix-node"
HANG_S = 40
OPTIONS = (
    *("-e", f"engine_hang_seconds={HANG_S}"),  # a probe every 5 s, which has 10
    # Every fault begins a new row of failures.
    *("-e", "engine_stable_s=5", "-e", "fabric_bandwidth_test=never"),
)
FROZEN_S = 60.0  # the unit's WatchdogSec, what systemd takes for it, and the first looks of the next keeper
NOTICE_S, BACK_S = 240.0, 420.0  # how long anything is waited for
# The goals of docs/performance.md: a dead rank is noticed within 20 s, and it serves again after a start and 20 s.
DEAD_S = BESIDE_START_S = 20
# A start after a fault, compared with the first one of the same run.
LIKE_THE_FIRST = 1.5
POLL_S = 2  # each look is a login and a Python, on processors that the engine needs
# vLLM 0.32 on CPUs makes room for what a later stage receives in its warm-up only, which eager mode leaves out.
NOT_EAGER = {"engine_options": {"enforce-eager": False}, "engine_environment": {"VLLM_USE_AOT_COMPILE": "0"}}
PIPELINE = ("-e", "engine_pipeline_parallel_size=2", "-e", json.dumps(NOT_EAGER))
LAUNCHES = {
    "ray": Launch("[r]ay::RayWorker", ("-e", "engine_launch=ray")),
    "pipeline": Launch("[r]ay::RayWorker", ("-e", "engine_launch=ray", *PIPELINE)),
    "pipeline-native": Launch("[V]LLM::Worker", ("-e", "engine_launch=native", *PIPELINE)),
    "native": Launch("[V]LLM::Worker", ("-e", "engine_launch=native")),
    "native4": Launch("[V]LLM::Worker", ("-e", "engine_launch=native"), nodes=4),
    "replicas": Launch("[V]LLM::EngineCore", ("-e", "engine_data_parallel_size=2")),
    "containers": Launch(
        "[r]ay::RayWorker", ("-e", "engine_recipe=tiny-llama-container", "-e", "engine_launch=ray"), image=("--host",)
    ),
    # Its ranks ignore SIGTERM, and its head answers first what it has begun.
    "sglang": Launch("[s]glang serve", ("-e", "engine_recipe=standin", "-e", "engine_name=sglang"), image=()),
    # TensorRT-LLM's stand-in over the real Open MPI; it opens ports everywhere, so the plan asks for a firewall.
    "mpi": Launch(
        "[t]rtllm-llmapi-launch",
        ("-e", "engine_recipe=standin", "-e", "engine_name=tensorrt-llm", "-e", "access_firewall=true"),
        nodes=4,
        image=(),
    ),
}
# Scripts for the head. All of them begin with this.
ASK = """
import concurrent.futures, http.client, json, pathlib, re, time, urllib.error, urllib.request
file = pathlib.Path('/etc/sparkmatrix/engine-key.env')
key = re.search(r'"(.+)"', file.read_text())[1] if file.exists() else 'none'
head = {'Authorization': 'Bearer ' + key, 'Content-Type': 'application/json'}
def ask(path, body=None, timeout=60):
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request('http://127.0.0.1:8000' + path, data, head)
    return urllib.request.urlopen(request, timeout=timeout).read()
served = json.loads(ask('/v1/models'))['data'][0]
model = served['id']
messages = [{'role': 'user', 'content': 'fox'}]
chat = {'model': model, 'messages': messages, 'max_tokens': 8, 'ignore_eos': True, 'temperature': 0}
"""
# What it says, word for word.
SAID = f"""{ASK}
print(json.loads(ask('/v1/chat/completions', chat))['choices'][0]['message']['content'])
"""
# As many requests of the greatest length as keep the engine busy for a while, none of them cut short.
LOAD = f"""{ASK}
length = served['max_model_len']
def one(number):
    # Different from the first token on, so that no cache shortens it.
    prompt = [number % 100 + 5] + [7] * (length - TOKENS - 1)
    body = {{'model': model, 'prompt': prompt, 'max_tokens': TOKENS, 'ignore_eos': True}}
    return json.loads(ask('/v1/completions', body, 600))['usage']['total_tokens'] == length
with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
    print(sum(pool.map(one, range(REQUESTS))))
"""
# A user who goes on asking while something breaks. An error is an answer; what looks complete has to be, word for word.
USER = f"""{ASK}
streamed = {{**chat, 'stream': True, 'stream_options': {{'include_usage': True}}}}
tally = {{'complete': 0, 'failed': 0, 'wrong': []}}
first = []
while not pathlib.Path('/tmp/over').exists():
    for asked in (chat, streamed):
        try:
            said = ask('/v1/chat/completions', asked).decode()
            lines = said.splitlines() if asked is streamed else ['data: ' + said]
            parts = [line[6:] for line in lines if line.startswith('data: ')]
            if asked is streamed and parts[-1:] != ['[DONE]']:
                raise OSError('cut off')
            parts = [json.loads(part) for part in parts if part != '[DONE]']
            if any('error' in part for part in parts):
                raise OSError('vLLM says so in the middle of a stream')
            used = [part['usage']['completion_tokens'] for part in parts if part.get('usage')]
            choices = [one for part in parts for one in part.get('choices', ())]
            ends = [one['finish_reason'] for one in choices if one.get('finish_reason')]
            text = ''.join((one.get('delta') or one.get('message') or {{}}).get('content') or '' for one in choices)
            first = first or [text]
            if (used, ends, [text], {{part.get('model') for part in parts}}) == ([8], ['length'], first, {{model}}):
                tally['complete'] += 1
            else:
                tally['wrong'].append(said[:500])
        except (OSError, ValueError, http.client.HTTPException):
            tally['failed'] += 1
            time.sleep(0.5)
print(json.dumps(tally))
"""
# 10 MB, which is far more than the model reads.
LONG = f"""{ASK}
try:
    print(ask('/v1/completions', {{'model': model, 'prompt': 'fox ' * 2500000, 'max_tokens': 1}}, 900).decode())
except urllib.error.HTTPError as exc:
    print(exc.code, exc.read().decode()[:200])
"""
# Waits for the port, and prints what it hears there.
THIEF = """
import socket, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
while True:
    try:
        s.bind(("127.0.0.1", 8000))
        break
    except OSError:
        time.sleep(0.01)
s.listen(9)
print("caught")
while True:
    print(s.accept()[0].recv(9999))
"""
# Another model: the same one with its weights moved along by a few rows, so that it says something else.
MODELS = "/opt/sparkmatrix/models"
OTHER = f"""
import pathlib, shutil
there, other = pathlib.Path('{MODELS}/tiny-llama'), pathlib.Path('{MODELS}/other')
shutil.copytree(there, other, dirs_exist_ok=True)
file = other / 'model.safetensors'
data = file.read_bytes()
begin = 8 + int.from_bytes(data[:8], 'little')
file.write_bytes(data[:begin] + data[begin + 4096 :] + data[begin : begin + 4096])
"""
# One that is whole, and of an architecture that no engine knows.
BROKEN = f"""
import pathlib, shutil
broken = pathlib.Path('{MODELS}/broken')
shutil.copytree('{MODELS}/tiny-llama', broken, dirs_exist_ok=True)
config = broken / 'config.json'
config.write_text(config.read_text().replace('Llama', 'Nobody').replace('llama', 'nobody'))
"""


class User:
    """Asks the engine on the head as long as something happens to it."""

    def __init__(self, here: Cluster) -> None:
        self.here = here
        self.tally: dict[str, Any] = {}

    def __enter__(self) -> User:
        self.here.node(HEAD, "sudo rm -f /tmp/over")
        words = ["ssh", "-F", str(self.here.state / "ssh_config"), HEAD, "sudo python3 -"]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        self.process.stdin.write(USER)
        self.process.stdin.close()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None) -> None:
        self.here.node(HEAD, "sudo touch /tmp/over", check=False)
        assert self.process.stdout is not None
        said = self.process.stdout.read()
        self.process.wait(150)
        self.tally = json.loads(said) if said.strip() else {}
        if exc is None and (self.tally.get("wrong", True) or not self.tally["complete"]):
            raise LabError(f"a user got {self.tally or 'nothing'}")


class Cluster:
    def __init__(self, beside: str, launch: str) -> None:
        self.launch = LAUNCHES[launch]
        self.rank = self.launch.rank
        self.options = ["--id", beside] if beside else []
        self.boot_options = [*self.options, "--beside"] if beside else []
        self.state = cluster.STATE / beside if beside else cluster.STATE
        self.every_run: tuple[str, ...] = OPTIONS
        self.log_folder = ""  # below .lab
        self.bare_s = 0.0

    def boot(self) -> None:
        nodes = self.launch.nodes
        topology = {1: "single", 2: "direct"}.get(nodes, "switch")
        command = lab("up", *self.boot_options, "--nodes", str(nodes), "--topology", topology)
        cluster.step(f"Boot {nodes} simulated Sparks", command, "up.log")
        if self.launch.image is not None:
            self.load()

    def load(self, *words: str) -> None:
        """The stand-in's image, on all nodes."""
        file = cluster.STATE / "image.tar"
        command = [sys.executable, str(ROOT / "tests/lab/standin/image.py"), str(file), *self.options]
        subprocess.run([*command, *(self.launch.image or ()), *words], check=True)
        for host in self.launch.hosts:
            self.node(host, "sudo docker load", data=file.read_bytes())

    def down(self) -> None:
        cluster.step("Remove the lab", lab("down", *self.options), "down.log")

    def play(self, name: str, playbook: str = "site.yml", *more: str, kill_at_change: int = 0) -> cluster.Run:
        return cluster.play(
            self.log_folder + name,
            *self.every_run,
            *self.launch.options,
            *more,
            playbook=playbook,
            inventory=f"inventories/{self.launch.nodes}spark",
            overlay=str((self.state / "overlay").relative_to(ROOT)),
            show=False,
            kill_at_change=kill_at_change,
        )

    def site(self, name: str, playbook: str = "site.yml", *more: str, fails: str = "") -> cluster.Run:
        run, log = self.play(name, playbook, *more), self.log_folder + name
        said = " ".join(cluster.log_tail(log, 1000).split())
        if bool(run.code) != bool(fails) or fails not in said:
            raise LabError(f"{playbook} ended with {run.code}, expected {fails or 0}:\n{cluster.log_tail(log)}")
        return run

    def node(self, host: str, command: str, timeout_s: float = 900, check: bool = True, data: bytes = b"") -> str:
        words = ["ssh", "-F", str(self.state / "ssh_config"), host, command]
        done = subprocess.run(words, capture_output=True, timeout=timeout_s, input=data, check=False)
        said, complaint = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if check and done.returncode:
            raise LabError(f"{host}: {command[:80]}: {said[-500:]}{complaint[-500:]}")
        return said

    def lacks(self, host: str, *paths: str) -> None:
        left = self.node(host, f"ls -d {' '.join(paths)} 2>/dev/null; true").split()
        if left:
            raise LabError(f"{host}: {left}")

    def kill(self, host: str, command: str) -> float:
        """When, by the clock of the node: how long the login took is no part of what is promised."""
        return float(self.node(host, f"date +%s.%N && sudo {command}"))

    def lab(self, *words: str) -> None:
        cluster.step(" ".join(words), lab(words[0], *self.options, *words[1:]), "power.log")

    def status(self) -> dict[str, Any]:
        """Exit code 1 means that it does not serve, which is an answer too."""
        text = self.node(HEAD, f"sudo {TOOL} status --here --json", 60, check=False)
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return dict(found.get("services", {}).get("") or {"serving": False, "history": []})

    def wait(self, what: str, seconds: float, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while True:
            status = self.status()
            if condition(status):
                return status
            if time.monotonic() > deadline:
                raise LabError(f"not {what} within {seconds:.0f} s: {json.dumps(status)[-1500:]}")
            time.sleep(POLL_S)

    def starts(self) -> list[tuple[float, float]]:
        """When each start began that ended with serving, and when it served, by the keeper's journal."""
        found, began = [], 0.0
        for line in self.node(HEAD, "sudo journalctl -o short-unix --no-pager -u sparkmatrix-keeper").splitlines():
            when, _, said = line.partition(" ")
            if "stopping: " in said:
                began = 0.0
            elif "starting: " in said:
                began = began or float(when)
            elif began and "serving: " in said:
                found.append((began, float(when)))
                began = 0.0
        return found

    def verdicts(self) -> dict[str, Any]:
        """Of the run that was kept last."""
        newest = "sudo sh -c 'cat $(ls -t /var/lib/sparkmatrix/verdicts/*.json | head -n 1)'"
        return dict(json.loads(self.node(HEAD, newest)))

    def serving(self) -> None:
        self.wait("serving for long", BACK_S, lambda status: status["serving"] and status["stable"])


def broken(
    here: Cluster, inject: Callable[[], object], repair: Callable[[], object] | None = None, dead: bool = False
) -> dict[str, Any]:
    """Inject, wait until the keeper has noticed, repair what only hands can repair, wait for tokens.

    ``dead``: a process is gone, and the times that are promised then have to be kept.
    """
    here.serving()
    with User(here) as user:
        result = _broken(here, inject, repair)
    if dead:
        in_time(here, result)
    return {**result, "user": {name: user.tally[name] for name in ("complete", "failed")}}


def in_time(here: Cluster, result: dict[str, Any]) -> None:
    """Hold what was measured against what is promised, and the start against the first one of this cluster."""
    starts = [round(ended - began) for began, ended in here.starts()]
    first, last = starts[0], starts[-1]
    result.update(first_start_s=first, start_s=last)
    if result["noticed_s"] > DEAD_S:
        raise LabError(f"noticed after more than {DEAD_S} s: {result}")
    if result["serving_s"] > max(first, last) + BESIDE_START_S:
        raise LabError(f"serving later than a start and {BESIDE_START_S} s: {result}")
    if last > LIKE_THE_FIRST * first:
        raise LabError(f"this start took much longer than the first one: {result}")


def _broken(here: Cluster, inject: Callable[[], object], repair: Callable[[], object] | None) -> dict[str, Any]:
    before = len(here.status()["history"])
    began = time.time()
    killed = inject()
    injected = time.time()
    status = here.wait("noticed", NOTICE_S, lambda found: len(found["history"]) > before)
    event = status["history"][before]
    noticed = datetime.fromisoformat(event["time"]).timestamp() - (killed if isinstance(killed, float) else began)
    result: dict[str, Any] = {
        "event": event["event"],
        "noticed_s": round(max(noticed, 0.0)),
        "reason": event["reason"][:90],
    }
    since = injected
    if repair:
        repair()
        since = time.time()
    status = here.wait("serving again", BACK_S, lambda found: found["serving"])
    result["serving_s"] = round(here.starts()[-1][1] - since)
    result["restarts"] = len([e for e in status["history"][before:] if e["event"] != "gave_up"])
    answer = json.loads(here.node(HEAD, f"sudo {TOOL} probe --json"))
    if not answer["ok"]:
        raise LabError(f"It says that it serves, and does not: {answer}")
    return result


def rank(here: Cluster) -> dict[str, Any]:
    """SIGKILL to the rank on the worker."""
    return broken(here, lambda: here.kill(WORKER, f"pkill -KILL -f '{here.rank}'"), dead=True)


def head(here: Cluster) -> dict[str, Any]:
    """SIGKILL to the engine's main process on the head."""
    kill = "systemctl kill --signal=KILL --kill-whom=main sparkmatrix-engine"
    return broken(here, lambda: here.kill(HEAD, kill), dead=True)


def unnoticed(here: Cluster) -> dict[str, Any]:
    """SIGKILL to the rank on the worker, while the engine on the head is stopped and cannot notice."""

    def inject() -> float:
        here.node(HEAD, "sudo systemctl kill --signal=STOP sparkmatrix-engine")
        return here.kill(WORKER, f"pkill -KILL -f '{here.rank}'")

    result = broken(here, inject, dead=True)
    if not result["reason"].startswith("the process of a rank"):
        raise LabError(f"noticed by something else: {result}")
    return result


def watcher(here: Cluster) -> dict[str, Any]:
    """The process that tells the keeper of the worker's ranks is killed: no restart."""
    here.serving()
    before = len(here.status()["history"])
    here.node(WORKER, "sudo pkill -KILL -f 'sparkmatrix-node [r]ank'")
    seconds = 30  # longer than a rank may be missed
    for _second in range(seconds):
        status = here.status()
        if not status["serving"] or len(status["history"]) > before:
            raise LabError(f"watcher: {json.dumps(status)[-1500:]}")
        time.sleep(1)
    return {"seconds": seconds, "restarts": 0}


def frozen(here: Cluster) -> dict[str, Any]:
    """SIGSTOP to the keeper: status says so at once, a second one is refused, systemd heals it, the engine goes on."""
    here.serving()
    show = "systemctl show -P {} {}"
    before, history = here.node(HEAD, show.format("InvocationID", "sparkmatrix-engine")), here.status()["history"]
    pid = here.node(HEAD, show.format("MainPID", "sparkmatrix-keeper")).strip()
    second = here.node(HEAD, f"sudo {TOOL} keep 2>&1; echo $?", 60)
    if f"runs already (process {pid})" not in second or not second.endswith("\n1\n"):
        raise LabError(f"a second keeper: {second}")
    began = time.monotonic()
    here.node(HEAD, f"sudo kill -STOP {pid}")
    said = here.node(HEAD, f"sudo {TOOL} status; echo $?", 60)
    noticed = time.monotonic() - began
    if "no sign of life" not in said or "it answers" not in said or not said.endswith("\n3\n"):
        raise LabError(f"status of a frozen keeper: {said}")
    status = here.wait("healed", FROZEN_S, lambda found: found["serving"] and str(found["pid"]) != pid)
    healed = time.monotonic() - began
    if here.node(HEAD, show.format("InvocationID", "sparkmatrix-engine")) != before or status["history"] != history:
        raise LabError(f"a frozen keeper restarted the engine: {json.dumps(status)[-1500:]}")
    return {"noticed_s": round(noticed), "healed_s": round(healed), "restarts": 0}


def abandoned(here: Cluster) -> dict[str, Any]:
    """A run that changes Ray is killed once it has stopped the keeper: it comes back alone, and with the next run."""
    here.serving()
    change = ("--tags", "ray", "-e", "engine_limit_nofile=65000")
    run = here.play("staying-up-killed", "site.yml", *change, kill_at_change=2)
    said = here.node(HEAD, f"sudo {TOOL} status; echo $?", 60)
    if not run.killed or "a run has stopped it" not in said or not said.endswith(("\n1\n", "\n3\n")):
        raise LabError(f"after a killed run ({run.stats}): {said}")
    returns = "sparkmatrix-keeper-return"
    here.node(
        HEAD, f"systemctl is-active {returns}.timer && sudo systemctl start {returns}.service"
    )  # its time is over
    began = time.monotonic()
    here.wait("serving again", BACK_S, lambda found: found["serving"])
    serving = round(time.monotonic() - began)
    here.site("staying-up-ray-again", "site.yml", *change)
    if here.node(HEAD, f"systemctl is-active {returns}.timer", check=False).strip() == "active":
        raise LabError("the timer is still there after a run that ended")
    here.wait("serving", BACK_S, lambda found: found["serving"])
    return {"serving_s": serving}


def stranger(here: Cluster) -> dict[str, Any]:
    """The engine is killed, and an account without rights takes its port: it is named, gets no key, burns no start."""
    here.serving()
    here.node(HEAD, "sudo userdel -rf mallory 2>/dev/null; sudo useradd -m mallory")
    thief = f"sudo systemd-run --quiet --unit=mallory --uid=mallory python3 -u -c '{THIEF}'"
    status = here.status()
    history, failures = len(status["history"]), 0
    here.node(HEAD, f"{thief}; sudo systemctl kill --signal=KILL --kill-whom=main sparkmatrix-engine")
    began = time.monotonic()
    words = "its port is taken by python3 (process "
    status = here.wait("waiting", NOTICE_S, lambda found: found["detail"].startswith(words))
    noticed, failures = round(time.monotonic() - began), status["failures"]
    if "account mallory, mallory.service" not in status["detail"]:
        raise LabError(f"a stranger: {status['detail']}")
    probe = here.node(HEAD, f"sudo {TOOL} probe", check=False)
    connect = 'import socket; socket.create_connection(("127.0.0.1", 8000), 5)'
    said = here.node(HEAD, f"sudo -u nobody python3 -c '{connect}' 2>&1", check=False)
    if "ConnectionRefusedError" not in said:
        raise LabError(f"a stranger on the port is reached: {said}")
    time.sleep(10)
    status = here.status()
    if "it gets no key" not in probe or status["phase"] != "waiting" or status["failures"] != failures:
        raise LabError(f"beside a stranger: {probe} {json.dumps(status)[-1500:]}")
    heard = here.node(HEAD, "sudo journalctl -o cat --no-pager -u mallory")
    if "caught" not in heard or "Bearer" in heard:
        raise LabError(f"the stranger heard {heard}")
    here.node(HEAD, "sudo systemctl stop mallory; sudo userdel -rf mallory")
    status = here.wait("serving again", BACK_S, lambda found: found["serving"])
    if len(status["history"]) != history + 1:
        raise LabError(f"a stranger cost starts: {json.dumps(status)[-1500:]}")
    return {"named_s": noticed, "failures": failures}


def hang(here: Cluster) -> dict[str, Any]:
    """SIGSTOP to the rank on the worker: everything runs, and nothing moves."""
    return broken(here, lambda: here.node(WORKER, f"sudo pkill -STOP -f '{here.rank}'"))


def power(here: Cluster) -> dict[str, Any]:
    """The worker loses its power, and gets it back."""
    return broken(here, lambda: here.lab("stop", WORKER), lambda: here.lab("start", WORKER))


def cable(here: Cluster) -> dict[str, Any]:
    """The fabric cable is pulled, and put back."""
    return broken(
        here,
        lambda: here.lab("fault", WORKER, "no_cable"),
        lambda: here.lab("fault", WORKER, "clear", "no_cable"),
    )


def stopped(here: Cluster) -> dict[str, Any]:
    """stop.yml, and start.yml."""
    here.serving()
    here.site("staying-up-stop", "playbooks/stop.yml")
    if here.status()["serving"]:
        raise LabError("it serves after stop.yml")
    run = here.site("staying-up-start", "playbooks/start.yml")
    here.wait("serving", BACK_S, lambda found: found["serving"])
    return {"start_yml_s": round(run.seconds)}


def headless(here: Cluster) -> dict[str, Any]:
    """The head alone loses its power, while the worker's rank runs on, and gets it back."""
    here.serving()
    here.lab("stop", HEAD)
    here.lab("start", HEAD)
    began = time.time()
    status = here.wait("serving again", BACK_S, lambda found: found["serving"])
    return {"serving_s": round(time.time() - began), "failures": status["failures"]}


def cold(here: Cluster) -> dict[str, Any]:
    """All nodes lose their power; the head comes back first."""
    here.serving()
    for host in here.launch.hosts:
        here.lab("stop", host)
    here.lab("start", HEAD)
    here.wait("waiting for the workers", 120, lambda found: found.get("phase") == "waiting")
    for host in here.launch.hosts[1:]:
        here.lab("start", host)
    began = time.time()
    status = here.wait("serving again", BACK_S, lambda found: found["serving"])
    return {"serving_s": round(time.time() - began), "failures": status["failures"]}


def disk(here: Cluster) -> dict[str, Any]:
    """A rank dies while the keeper can write nothing down."""
    here.serving()
    place = "/var/lib/sparkmatrix/keeper"
    show = "systemctl show -P InvocationID sparkmatrix-engine"
    here.node(
        HEAD, f"sudo mount -t tmpfs -o size=4k tmpfs {place} && sudo dd if=/dev/zero of={place}/full bs=4k count=1"
    )
    before = here.node(HEAD, show)
    began = time.time()
    here.node(WORKER, f"sudo pkill -KILL -f '{here.rank}'")
    deadline = began + BACK_S
    while here.node(HEAD, show) == before or not _answers(here):
        if time.time() > deadline:
            raise LabError("A full disk: it does not serve again")
        time.sleep(1)
    took = round(time.time() - began)
    here.node(HEAD, f"sudo umount {place} && sudo systemctl restart sparkmatrix-keeper")
    return {"serving_s": took}


def _answers(here: Cluster) -> bool:
    found = here.node(HEAD, f"sudo {TOOL} probe --json --timeout 20", check=False)
    return bool(found.strip()) and bool(json.loads(found)["ok"])


def busy(here: Cluster) -> dict[str, Any]:
    """A queue that is full of prompts of the greatest length: no restart."""
    here.serving()
    before = len(here.status()["history"])
    requests = 32
    script = LOAD.replace("REQUESTS", str(requests)).replace("TOKENS", "64")
    began = time.time()
    process = subprocess.Popen(
        ["ssh", "-F", str(here.state / "ssh_config"), HEAD, "sudo python3 -"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(script)
    process.stdin.close()
    silent = 0
    while process.poll() is None:
        silent += "busy" in here.status().get("detail", "")
        time.sleep(2)
    assert process.stdout is not None
    done = int(process.stdout.read() or 0)
    restarts = len(here.status()["history"]) - before
    if restarts or done != requests:
        raise LabError(f"busy: {restarts} restarts, {done} of {requests} answers are complete")
    return {"requests": requests, "seconds": round(time.time() - began), "restarts": restarts, "seen_busy": silent}


def prompt(here: Cluster) -> dict[str, Any]:
    """A prompt of 10 MB straight to the engine: refused, and no restart."""
    here.serving()
    before = len(here.status()["history"])
    began = time.time()
    said = here.node(HEAD, "sudo python3 -", data=LONG.encode()).strip()
    took = time.time() - began
    restarts = len(here.status()["history"]) - before
    if not said.startswith("4") or restarts or not _answers(here):
        raise LabError(f"prompt: {said}, {restarts} restarts, or no answer afterwards")
    return {"said": said[:120], "seconds": round(took), "restarts": restarts}


def _said(here: Cluster) -> str:
    """The engine's answer to the one question that a user asks here."""
    return here.node(HEAD, "sudo python3 -", data=SAID.encode())


def _context(here: Cluster) -> int:
    """Tokens, as the engine on the head is started with."""
    return int(
        here.node(HEAD, "grep -oP -- '--max-model-len \\K[0-9]+' /etc/systemd/system/sparkmatrix-engine.service")
    )


def operators(here: Cluster) -> dict[str, Any]:
    """Two operators run site.yml at the same time with different settings, and then one of them again."""
    here.serving()
    before = _context(here)
    asked = {"one": 128, "other": 192}
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        runs = {
            name: pool.submit(here.play, f"staying-up-{name}", "site.yml", "-e", f"engine_context={tokens}")
            for name, tokens in asked.items()
        }
    ended = {name: run.result() for name, run in runs.items()}
    for name, run in ended.items():
        if run.code and "[ERROR]: " not in cluster.log_tail(f"staying-up-{name}", 1000):
            raise LabError(f"{name} ended with {run.code} and no reason:\n{cluster.log_tail(f'staying-up-{name}')}")
    here.site("staying-up-after")
    again = here.site("staying-up-after-again")
    if again.changed or _context(here) != before or not _answers(here):
        raise LabError(f"after two operators: {again.changed} changes, {_context(here)} tokens, or no answer")
    return {name: {"code": run.code, "seconds": round(run.seconds)} for name, run in ended.items()}


def upgrade(here: Cluster) -> dict[str, Any]:
    """Another model and context, and back; one that does not exist, which is refused while this one serves; one that
    does not start, which has to end where it began."""
    here.serving()
    for host in here.launch.hosts:
        here.node(host, "sudo python3 -", data=(OTHER + BROKEN).encode())
    before, said = _context(here), _said(here)
    seconds = {}
    steps = (
        (
            "upgrade",
            "playbooks/upgrade.yml",
            ("-e", "engine_context=128", "-e", f"engine_model_path={MODELS}/other"),
            "",
            128,
        ),
        ("rollback", "playbooks/rollback.yml", (), "", before),
        (
            "bad",
            "playbooks/upgrade.yml",
            ("-e", f"engine_model_path={MODELS}/broken"),
            "serves again (tiny-llama). On spark1: sparkmatrix-keeper",
            before,
        ),
    )
    for name, playbook, more, fails, expected in steps:
        seconds[f"{name}_s"] = round(here.site(f"staying-up-{name}", playbook, *more, fails=fails).seconds)
        if name == "rollback":
            nowhere = ("-e", "engine_model_path=/nonexistent")
            with User(here) as user:
                here.site(
                    "staying-up-nowhere", "playbooks/upgrade.yml", *nowhere, fails="there is nothing at this path"
                )
            if user.tally["failed"]:
                raise LabError(f"a model that is not there stopped the one that serves: {user.tally}")
        if _context(here) != expected or (_said(here) == said) != (expected == before):
            raise LabError(f"{name}: {_context(here)} tokens of context (expected {expected}), and {_said(here)!r}")
    return seconds


def image(here: Cluster) -> dict[str, Any]:
    """The image's name means another one: the next plan is served from that, a rollback from the one of before."""
    here.serving()

    def running() -> str:
        return here.node(HEAD, "sudo docker inspect --format '{{.Image}}' sparkmatrix-engine").strip()

    before = running()
    here.load("--salt", "other")
    here.site("staying-up-image", "playbooks/upgrade.yml", "-e", "engine_context=128")
    after = running()
    here.site("staying-up-image-back", "playbooks/rollback.yml")
    if after == before or running() != before or not _answers(here):
        raise LabError(f"image: {before}, after the upgrade {after}, after the rollback {running()}, or no answer")
    return {"before": before[:19], "after": after[:19]}


# The last four need an engine of one kind: vLLM over Ray (two), vLLM with its key, and one in a container.
EVERYWHERE = (
    rank,
    head,
    watcher,
    frozen,
    stranger,
    stopped,
    hang,
    power,
    headless,
    cable,
    disk,
    busy,
    cold,
    operators,
    upgrade,
)
FAULTS = {made.__name__: made for made in (*EVERYWHERE, abandoned, unnoticed, prompt, image)}
DEFAULT = [made.__name__ for made in (*EVERYWHERE, abandoned, unnoticed, prompt)]


def serve(here: Cluster, again: bool) -> None:
    """Bring it up; a second run changes nothing (with Ray the Molecule scenario `site` looks after that)."""
    here.site("staying-up-site")
    if again:
        here.site("staying-up-again").unchanged()


def main() -> int:
    parser = cluster.options(__doc__, FAULTS)
    parser.add_argument("--serving", action="store_true", help="the same, with the engine that serves there")
    parser.add_argument(
        "--launch",
        default="ray",
        choices=tuple(LAUNCHES),
        help="containers: Ray in them, too; native4, mpi: four nodes",
    )
    options = parser.parse_args()
    here = Cluster(options.beside, options.launch)
    results: dict[str, Any] = {}
    started = time.monotonic()
    problems = []
    try:
        if not (options.keep or options.serving):
            cluster.build()
            here.boot()
        if not options.serving:
            serve(here, again=options.launch != "ray")
        results["start_s"] = [round(ended - began) for began, ended in here.starts()]
        for name in options.only or DEFAULT:
            say(f"-- {name}: {FAULTS[name].__doc__}")
            try:
                results[name] = FAULTS[name](here)
                say(f"   {json.dumps(results[name])}")
            except LabError as exc:
                problems.append(f"{name}: {exc}")
                say(f"   FAILED: {exc}")
    except LabError as exc:
        problems.append(str(exc))
    finally:
        if not (options.keep or options.serving):
            here.down()
    print("\n".join(problems))
    print(json.dumps({"faults": results, "total_s": round(time.monotonic() - started), "problems": problems}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
