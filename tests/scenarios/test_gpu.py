#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The whole product on nodes that have a GPU each: real CUDA, NCCL and vLLM.

Usage: test_gpu.py [--gpus 1|2] [--cpu] [--only STEP[,STEP]] [--skip STEP[,STEP]] [--budget SECONDS] [--keep]

A table of all steps at the end, and .lab/gpu-pass.json after every step, since such machines may be rented by the hour:
{step, card, gpus, seconds, result, figures}. A step that fails gives a row with what was found, and its logs stay in
.lab/gpu-pass; the next steps go on where they can. ``--budget``: what is not done by then is cut off, but for the undo.
``--cpu``: the same on the lab's CPUs, to try this program; a step that needs a card says so in its row.

Hangs are found after 40 s here instead of ten minutes, and the gateway counts no requests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / room) for room in ("lab", "bench")]

import bench_start
import cluster
import gpu
from cluster import ROOT, LabError, say
from test_by_name import GATEWAY, OTHERS, allow_more, ask, parts, told
from test_doctor import Doctor
from test_services import TRACES
from test_staying_up import ASK, BACK_S, HANG_S, HEAD, LAUNCHES, MODELS, OTHER, TOOL, Cluster, Launch, broken

FOLDER = cluster.STATE / "gpu-pass"
FILE = cluster.STATE / "gpu-pass.json"
UNDO_S = 90  # of a budget, kept for it
SETTINGS = {
    "engine_hang_seconds": HANG_S,
    "engine_stable_s": 5,  # every fault begins a new row of failures
    "gateway_listen": ["enP7s7"],
    "gateway_requests_per_minute": 0,
    "gateway_concurrent_requests": 0,
}
NEEDS_A_CARD = "needs a card"
QUERY = "utilization.gpu,clocks.sm,temperature.gpu,power.draw,memory.used"
NAMES = ("busy", "mhz", "celsius", "watts", "mib")  # as the product has them, and MiB
# By how much a reader may lie beyond all that nvidia-smi said meanwhile: percent points, MHz, degrees, watts.
BEYOND = {"busy": 10.0, "mhz": 90.0, "celsius": 3.0, "watts": 60.0}
IDLE_MIB = 1024  # a driver that nobody uses holds up to half of it
LOAD = f"""{ASK}
def one(number):
    while not pathlib.Path('/tmp/over').exists():
        body = {{'model': model, 'prompt': [number + 5] * 8, 'max_tokens': 64, 'ignore_eos': True}}
        ask('/v1/completions', body, 600)
with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
    list(pool.map(one, range(STREAMS)))
"""
TRUTH = f"while [ ! -e /tmp/over ]; do nvidia-smi --query-gpu={QUERY} --format=csv,noheader,nounits; sleep 0.1; done"
# Takes all memory of the card that is free, and what comes free, but for a twentieth.
HOG = """
import time, torch
kept = []
while True:
    free, whole = torch.cuda.mem_get_info()
    try:
        if free > whole // 20:
            kept.append(torch.empty(free - whole // 25, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        pass
    time.sleep(0.01)
"""
# Without a card: a start that ends as one does whose card has no room.
DROP_IN = "/run/systemd/system/sparkmatrix-engine.service.d"
NO_ROOM = "echo torch.OutOfMemoryError: CUDA out of memory.; sleep 3; exit 1"
NO_ROOM = f"[Service]\\nExecStart=\\nExecStart=/bin/sh -c '{NO_ROOM}'\\n"
CACHES = "/var/lib/sparkmatrix/home/.cache /var/lib/sparkmatrix/home/.triton /var/lib/sparkmatrix/home/.nv"
BELOW = "ls -d /etc/sparkmatrix /usr/local/lib/sparkmatrix /etc/ansible/facts.d/sparkmatrix.fact 2>/dev/null; true"


@dataclass(frozen=True)
class Kind:
    """What differs with a card and without. ``hog`` and ``free``: commands that take the memory, and give it back."""

    base: tuple[str, ...]
    other: tuple[str, ...]  # another model
    named: Mapping[str, Any]  # the same as one of ``engine_models``
    hog: str
    free: str
    gateway: str  # options of bench_gateway.py
    serving: Mapping[str, Any]  # settings of the benchmark
    streams: int  # of the load


CARD = Kind(
    ("-e", "engine_recipe=gpu-dense"),
    ("-e", "engine_recipe=gpu-small"),
    {"recipe": "gpu-small"},
    "sudo systemd-run --quiet --unit=lab-hog /opt/sparkmatrix/engine/bin/python3 /tmp/hog.py",
    "sudo systemctl stop lab-hog",
    "--streams 1 8 32 128 --rounds 7 --tokens 128",
    {},
    32,
)
CPU = Kind(
    ("-e", "engine_recipe=tiny-llama-cpu"),
    ("-e", f"engine_model_path={MODELS}/other", "-e", "engine_served_model_name=other"),
    OTHERS[0],
    f'sudo mkdir -p {DROP_IN}; printf "{NO_ROOM}" | sudo tee {DROP_IN}/lab.conf; sudo systemctl daemon-reload',
    f"sudo rm -rf {DROP_IN}; sudo systemctl daemon-reload",
    "--streams 1 8 --rounds 2 --tokens 4",
    {"benchmark_prompt_tokens": [64], "benchmark_output_tokens": 16, "benchmark_concurrency": [2]},
    4,
)


class Gpu(Cluster):
    def __init__(self, gpus: int, cpu: bool) -> None:
        super().__init__("", "native")
        # With one node the rank is in the process of the core.
        self.rank = self.rank if gpus > 1 else "[V]LLM::EngineCore"
        self.launch = Launch(self.rank, LAUNCHES["native"].options, nodes=gpus)
        self.kind = CPU if cpu else CARD
        self.cpu = cpu
        self.every_run = ("-e", json.dumps(SETTINGS))
        self.log_folder = f"{FOLDER.name}/"
        self.serves = self.kind.base  # which model the runs ask for
        self.doing = ""
        if not cpu:
            self.boot_options = ["--gpus"]

    @property
    def last(self) -> str:
        """The node whose rank is broken."""
        return self.launch.hosts[-1]

    def play(self, name: str, playbook: str = "site.yml", *more: str, kill_at_change: int = 0) -> cluster.Run:
        self.doing = f"{playbook} (.lab/{self.log_folder}{name}.log)"
        return super().play(name, playbook, *self.serves, *more, kill_at_change=kill_at_change)

    def node(self, host: str, command: str, timeout_s: float = 900, check: bool = True, data: bytes = b"") -> str:
        self.doing = f"{host}: {command[:120]}"
        return super().node(host, command, timeout_s, check, data)

    def wait(self, what: str, seconds: float, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        try:
            return super().wait(what, seconds, condition)
        finally:
            self.doing = what

    def ready(self) -> None:
        """It serves, whatever the step before has left: stopped, broken, or without memory."""
        if self.status()["serving"]:
            return
        for host in self.launch.hosts:
            ended = "sudo pkill -f '[p]ython3 - (bare|rank)$'; sudo touch /tmp/over"
            self.node(host, f"{self.kind.free}; {ended}; sudo pkill -CONT -f '{self.rank}'", check=False)
        self.site("ready", "playbooks/start.yml")

    def smi(self, host: str, query: str = QUERY) -> list[str]:
        """What nvidia-smi says of the node's card."""
        said = self.node(host, f"nvidia-smi --query-gpu={query} --format=csv,noheader,nounits")
        return [word.strip() for word in said.strip().split(",")]

    def card(self) -> str:
        return "none (CPU)" if self.cpu else self.smi(HEAD, "name")[0]

    def kept(self) -> dict[str, Any]:
        """What the keeper knows of the last start."""
        return dict(json.loads(self.node(HEAD, "sudo cat /var/lib/sparkmatrix/keeper/state.json")))

    def asked(self, began: float) -> dict[str, Any]:
        """Of a start that a run asked for then: its parts, and the next answer."""
        kept = self.kept()
        answer = json.loads(self.node(HEAD, f"sudo {TOOL} probe --json --max-tokens 64"))
        if not answer["ok"]:
            raise LabError(f"it does not answer: {answer}")
        figures = {name: round(answer[name], 3) for name in ("first_token_s", "tokens_per_s")}
        return {**cluster.parts_of_start(kept, began), "model": answer["model"], "next": figures}

    def logs(self, name: str) -> None:
        """What every node knows of the step, before the machine is gone."""
        for host in self.launch.hosts:
            commands = (
                "sudo journalctl --no-pager -o short-iso-precise -u 'sparkmatrix-*'",
                f"sudo {TOOL} status",
                "cat /etc/systemd/system/sparkmatrix-engine.service /etc/sparkmatrix/engine.env",
                "sudo tail -n 200 /var/tmp/bare.log",
                "ps -eo pid,user,lstart,cmd; free -m; nvidia-smi",
            )
            with contextlib.suppress(subprocess.SubprocessError):
                said = self.node(host, "; ".join(f"echo '== {one}'; {one} 2>&1" for one in commands), 60, check=False)
                (FOLDER / f"{name}-{host}.txt").write_text(said)

    def tail(self) -> str:
        with contextlib.suppress(subprocess.SubprocessError):
            return self.node(HEAD, "sudo journalctl -q --no-pager -o cat -n 15 -u sparkmatrix-engine", 30, check=False)
        return ""


# --- pure parts


def sampled(text: str) -> list[dict[str, float]]:
    """Lines of nvidia-smi for QUERY; a value that it does not tell ("[N/A]") is left out."""
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == len(NAMES):
            numbers = zip(NAMES, words, strict=True)
            found.append({name: float(word) for name, word in numbers if re.fullmatch(r"[0-9.]+", word)})
    return found


def beyond(reader: str, said: Mapping[str, Any], samples: Sequence[Mapping[str, float]]) -> list[str]:
    """What a reader said of the card that nvidia-smi did not say meanwhile, in words."""
    wrong = []
    for name, slack in BEYOND.items():
        seen = [sample[name] for sample in samples if name in sample]
        if not seen:
            continue
        value = said.get(name)
        if value is None or not min(seen) - slack <= value <= max(seen) + slack:
            wrong.append(f"{reader}: {name} {value}, nvidia-smi {min(seen):g} to {max(seen):g}")
    return wrong


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| Step | Card | Seconds | Result | Figures |", "|---|---|---|---|---|"]
    for row in rows:
        card = f"{row['gpus']} x {row['card']}"
        result = " ".join(str(row["result"]).split())[:160].replace("|", "/")
        figures = json.dumps(row["figures"]).replace("|", "/")
        lines.append(f"| {row['step']} | {card} | {row['seconds']} | {result} | {figures} |")
    return "\n".join(lines)


# --- steps


def first(here: Gpu) -> dict[str, Any]:
    """site.yml as shipped, to an answer"""
    began = time.time()
    run = here.site("first")
    return {**here.asked(began), "ended": round(run.seconds, 1), "executions": run.executions_per_node()}


def again(here: Gpu) -> dict[str, Any]:
    """the second run changes nothing"""
    run = here.site("again").unchanged()
    return {"ended": round(run.seconds, 1), "executions": run.executions_per_node()}


def verify(here: Gpu) -> dict[str, Any]:
    """playbooks/verify.yml"""
    run = here.site("verify", "playbooks/verify.yml")
    found = here.verdicts()
    outcomes = [verdict["outcome"] for verdict in found["verdicts"]]
    return {"ended": round(run.seconds, 1), **{word: outcomes.count(word) for word in sorted(set(outcomes))}}


@contextlib.contextmanager
def loaded(here: Gpu) -> Iterator[dict[str, list[dict[str, float]]]]:
    """While requests keep the engine busy. Filled at the end: what nvidia-smi said meanwhile, by node."""
    hosts = [] if here.cpu else here.launch.hosts
    for host in here.launch.hosts:
        here.node(host, "sudo rm -f /tmp/over")
    words = ["ssh", "-F", str(here.state / "ssh_config")]
    pipe = subprocess.PIPE
    asking = subprocess.Popen([*words, HEAD, "sudo python3 -"], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert asking.stdin is not None
    asking.stdin.write(LOAD.replace("STREAMS", str(here.kind.streams)))
    asking.stdin.close()
    asking.stdin = None
    samples: dict[str, list[dict[str, float]]] = {}
    watching: dict[str, subprocess.Popen[str]] = {}
    try:
        if hosts:
            busy = "nvidia-smi --query-gpu=utilization.gpu --format=csv,noheader,nounits"
            here.node(HEAD, f"timeout 60 sh -c 'until [ $({busy}) -gt 50 ]; do sleep 0.2; done'")
        else:
            here.wait("busy", 60, lambda _found: running(here) > 0)
        watching = {host: subprocess.Popen([*words, host, TRUTH], stdout=pipe, text=True) for host in hosts}
        yield samples
    finally:
        for host in here.launch.hosts:
            here.node(host, "sudo touch /tmp/over", check=False)
        for host, process in watching.items():
            samples[host] = sampled(process.communicate(timeout=30)[0])
        complaint = asking.communicate(timeout=120)[1]
    if asking.returncode:
        raise LabError(f"the load ended: {complaint[-800:]}")


def running(here: Gpu) -> int:
    return int(top(here)[HEAD]["services"]["engine"].get("running", 0))


def top(here: Gpu) -> dict[str, Any]:
    """By node."""
    found = json.loads(here.node(HEAD, f"sudo {TOOL} top --json", 60))["nodes"]
    problems = {host: node["problem"] for host, node in found.items() if "problem" in node}
    if problems:
        raise LabError(f"top: {problems}")
    return dict(found)


def node_info(here: Gpu) -> dict[str, Any]:
    """The module's answer by node: card, clocks, and what the kernel has said."""
    overlay = str((here.state / "overlay").relative_to(ROOT))
    ansible = str(pathlib.Path(sys.executable).parent / "ansible")
    command = [ansible, "sparks", "-i", f"inventories/{here.launch.nodes}spark", "-i", overlay, "--become"]
    command += ["-m", "sparkmatrix.cluster.node_info", "-a", json.dumps({"parts": ["gpu", "clocks", "kernel_log"]})]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    environment |= {"ANSIBLE_STDOUT_CALLBACK": "minimal", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    found = {
        match[1]: json.JSONDecoder().raw_decode(done.stdout, match.end())[0].get("node")
        for match in re.finditer(r"(?m)^(\S+) \| SUCCESS => ", done.stdout)
    }
    if set(found) != set(here.launch.hosts):
        raise LabError(f"node_info: {done.stdout[-1500:]}{done.stderr[-500:]}")
    return found


def readers(here: Gpu) -> dict[str, Any]:
    """status, top, node_info and doctor under load, beside what nvidia-smi says meanwhile"""
    here.serving()
    with loaded(here) as samples:
        now = top(here)
        status = here.node(HEAD, f"sudo {TOOL} status", 60)
        told = node_info(here)
        doctor = Doctor(here)
        judged = doctor.run("load")
    (FOLDER / "status.txt").write_text(status)
    figures: dict[str, Any] = {"tokens_per_s": now[HEAD]["services"]["engine"]["tokens_per_s"]}
    figures["doctor"] = {
        "seconds": doctor.seconds["load"],
        **{one["cause"] or one["check"]: one["outcome"] for one in judged},
    }
    wrong = [f"doctor: {one['found']}" for one in judged if one["outcome"] == "fail"]
    for host, node in told.items():
        seen = samples.get(host, [])
        clocks = node.get("clocks") or {}
        wrong += [*beyond(f"top of {host}", now[host]["gpu"], seen), *beyond(f"node_info of {host}", clocks, seen)]
        cuda = node["gpu"]
        figures[host] = {"top": now[host]["gpu"], "node_info": clocks, "cuda": cuda, "kernel_log": node["kernel_log"]}
        figures[host]["nvidia-smi"] = {
            name: [min(values), max(values)]
            for name in NAMES
            if (values := [sample[name] for sample in seen if name in sample])
        }
        if not here.cpu:
            named = [node["machine"]["gpu"], node["nvidia_driver"]]
            truth = here.smi(host, "name,driver_version")
            wrong += [f"node_info of {host}: {named}, nvidia-smi {truth}"] if named != truth else []
            wrong += [] if cuda["ok"] else [f"node_info of {host}: {cuda}"]
    if wrong:
        raise FoundError("; ".join(wrong), figures)
    return {**figures, "result": f"ok; the GPU's readers: {NEEDS_A_CARD}" if here.cpu else "ok"}


def report(here: Gpu) -> dict[str, Any]:
    """playbooks/report.yml"""
    page = FOLDER / "report.html"
    run = here.site("report", "playbooks/report.yml", "-e", f"report_path={page}")
    said = json.loads(page.with_suffix(".json").read_text())
    return {"ended": round(run.seconds, 1), "bytes": page.stat().st_size, "runs": len(said.get("runs", []))}


def serving(here: Gpu) -> dict[str, Any]:
    """playbooks/benchmark.yml --tags serving"""
    run = here.site("serving", "playbooks/benchmark.yml", "--tags", "serving", "-e", json.dumps(here.kind.serving))
    points = here.verdicts()["serving"]
    rates = {
        f"{point['concurrency']} x {point['prompt_tokens']}+{point['output_tokens']}": {
            "tokens_per_s": point["output_rate"],
            "ttft_ms": point["ttft_ms"].get("median"),
        }
        for point in points
    }
    if not points or any(point["failed"] for point in points):
        raise FoundError("no point, or failed requests", rates)
    return {"ended": round(run.seconds, 1), **rates}


def killed(here: Gpu) -> dict[str, Any]:
    """SIGKILL to a rank"""
    # Without a card all ranks compute on the same processors, so that seconds are held to nothing.
    return broken(here, lambda: here.kill(here.last, f"pkill -KILL -f '{here.rank}'"), dead=not here.cpu)


def frozen(here: Gpu) -> dict[str, Any]:
    """SIGSTOP to a rank"""
    return {**broken(here, lambda: here.node(here.last, f"sudo pkill -STOP -f '{here.rank}'")), "hang_s": HANG_S}


def memory(here: Gpu) -> dict[str, Any]:
    """another process has the card's memory: it is named, and the engine comes back when it is gone"""
    here.serving()
    before = len(here.status()["history"])
    here.node(HEAD, "cat > /tmp/hog.py", data=HOG.encode())
    here.node(HEAD, here.kind.hog)
    began = time.time()
    here.node(HEAD, "sudo systemctl kill --signal=KILL --kill-whom=main sparkmatrix-engine")
    words = "it ran out of memory" if here.cpu else "something else had so much of the GPU's memory"

    def named(found: dict[str, Any]) -> bool:
        return any(words in entry["reason"] for entry in found["history"][before:])

    try:
        found = here.wait("named as out of memory", BACK_S, named)
        after = time.time() - began
        said = here.node(HEAD, f"sudo {TOOL} status", 60, check=False)
        judged = Doctor(here).run("memory")
    finally:
        here.node(HEAD, here.kind.free)
    (FOLDER / "memory-status.txt").write_text(said)
    freed = time.time()
    gave_up = here.status().get("phase") == "gave_up"
    if gave_up:  # after five failures, as it says
        here.node(HEAD, "sudo systemctl restart sparkmatrix-keeper")
    here.wait("serving again", BACK_S, lambda found: found["serving"])
    entries = [entry for entry in found["history"][before:] if words in entry["reason"]]
    back = round(here.starts()[-1][1] - freed, 1)
    figures = {"named_s": round(after, 1), "back_s": back, "said": entries[0]["reason"][:200], "gave_up": gave_up}
    figures["doctor"] = [f"{one['cause']}: {one['found']}"[:200] for one in judged if one["outcome"] == "fail"]
    return {**figures, "result": f"ok; the memory itself: {NEEDS_A_CARD}" if here.cpu else "ok"}


def caches(here: Gpu) -> dict[str, Any]:
    """a start without kept caches, the bare command of the unit by hand, and a start with kept caches"""
    hosts = here.launch.hosts
    words = ["ssh", "-F", str(here.state / "ssh_config")]
    seconds: dict[str, dict[str, float]] = {}
    parts: dict[str, dict[str, float]] = {}

    def stop() -> None:
        for host in hosts:
            here.node(host, "sudo systemctl stop sparkmatrix-keeper sparkmatrix-engine", check=False)

    def started(mode: str) -> dict[str, float]:
        said = here.node(HEAD, f"sudo timeout 300 python3 - {mode}", data=bench_start.ON_NODE.encode())
        return {name: round(value, 1) for name, value in json.loads(said).items()}

    for name in ("wiped", "bare", "kept"):
        stop()
        if name == "wiped":
            for host in hosts:
                here.node(host, f"sudo rm -rf {CACHES}")
        ranks = []
        if name == "bare":
            for host in hosts[1:]:
                rank = [*words, host, "sudo timeout 300 python3 - rank"]
                ranks.append(subprocess.Popen(rank, stdin=subprocess.PIPE, text=True))
                stdin = ranks[-1].stdin
                assert stdin is not None
                stdin.write(bench_start.ON_NODE)
                stdin.close()
        try:
            seconds[name] = started("bare" if name == "bare" else "keeper")
        finally:
            for host, rank_there in zip(hosts[1:], ranks, strict=False):
                here.node(host, "sudo touch /run/bare-start-over")
                rank_there.wait(60)
        if name != "bare":
            here.wait("serving", BACK_S, lambda found: found["serving"])
            parts[name] = here.kept()["start_parts"]
    ratio = {name: round(seconds["kept"][name] / seconds["bare"][name], 2) for name in ("ready", "token")}
    return {**seconds, "kept_to_bare": ratio, "parts": parts}


def switched(here: Gpu, name: str, model: tuple[str, ...]) -> dict[str, Any]:
    here.serves = model
    began = time.time()
    run = here.site(name, "playbooks/upgrade.yml")
    return {**here.asked(began), "ended": round(run.seconds, 1)}


def switch(here: Gpu) -> dict[str, Any]:
    """to another model"""
    if here.cpu:
        for host in here.launch.hosts:
            here.node(host, "sudo python3 -", data=OTHER.encode())
    return switched(here, "switch", here.kind.other)


def back(here: Gpu) -> dict[str, Any]:
    """back to the first one, whose caches are kept"""
    return switched(here, "back", here.kind.base)


def by_name(here: Gpu) -> dict[str, Any]:
    """the other model for a request that names it, and back, twice"""
    settings = {**GATEWAY, "engine_models": [here.kind.named]}
    run = here.site("by-name", "site.yml", "-e", json.dumps(settings))
    found: dict[str, Any] = {"ended": round(run.seconds, 1)}
    models = sorted(told(here).values(), key=lambda one: bool(one["state"] == "serving"))  # the other one first
    for number, model in enumerate([one["id"] for one in models] * 2, 1):
        allow_more(here)
        found[f"{number} {model}"] = {"asked": ask(here, model), **parts(here)}
    return found


def gateway(here: Gpu) -> dict[str, Any]:
    """tokens/s through the gateway beside the bare engine, by streams"""
    script = (ROOT / "tests/bench/bench_gateway.py").read_bytes()
    said = here.node(HEAD, f"sudo python3 - {here.kind.gateway}", data=script)
    (FOLDER / "gateway.txt").write_text(said)
    return dict(json.loads(said.splitlines()[-1]))


def over_ray(here: Gpu) -> None:
    launch = LAUNCHES["ray"]
    here.rank = launch.rank
    here.launch = replace(here.launch, rank=launch.rank, options=launch.options)


def ray(here: Gpu) -> dict[str, Any]:
    """site.yml over Ray, to an answer"""
    over_ray(here)
    return first(here)


def ray_again(here: Gpu) -> dict[str, Any]:
    """over Ray the second run changes nothing"""
    over_ray(here)
    return again(here)


def ray_killed(here: Gpu) -> dict[str, Any]:
    """over Ray, SIGKILL to a rank"""
    over_ray(here)
    return killed(here)


def nccl(here: Gpu) -> dict[str, Any]:
    """playbooks/benchmark.yml --tags nccl, while the engine is stopped"""
    here.site("nccl-stop", "playbooks/stop.yml")
    small = ("-e", "benchmark_nccl_largest_mib=4") if here.cpu else ()
    run = here.site("nccl", "playbooks/benchmark.yml", "--tags", "nccl", *small)
    found = here.verdicts()
    figures: dict[str, Any] = {
        one["test"]: {"largest_gbs": one["largest_gbs"], "transport": one["transport"], "version": one["version"]}
        for one in found["nccl"]
    }
    wrong = [one["test"] for one in found["nccl"] if any(size["wrong"] for size in one["sizes"])]
    said = [f"{verdict['outcome']}: {verdict['found']}"[:200] for verdict in found["verdicts"]]
    if wrong or not found["nccl"]:
        raise FoundError(f"wrong values of {wrong}, or nothing was measured: {said}", figures)
    figures.update(ended=round(run.seconds, 1), verdicts=said)
    return {**figures, "result": f"ok; NCCL itself: {NEEDS_A_CARD}" if here.cpu else "ok"}


def undo(here: Gpu) -> dict[str, Any]:
    """reset.yml, and what it leaves: units, processes, the memory of the card"""
    run = here.site("undo", "reset.yml")
    left = []
    figures: dict[str, Any] = {"ended": round(run.seconds, 1)}
    for host in here.launch.hosts:
        lines = here.node(
            host, f"{TRACES}; {BELOW}; pgrep -fa '[V]LLM::|[r]ay::|[s]parkmatrix-node'; true"
        ).splitlines()
        # The empty slice of containers stays in systemd's memory until the next boot; there is no file.
        left += [f"{host}: {line}" for line in lines if not line.startswith("sparkmatrix-engine.slice")]
        if not here.cpu:
            used = int(here.smi(host)[NAMES.index("mib")])
            computing = here.node(host, "nvidia-smi --query-compute-apps=pid,name --format=csv,noheader").strip()
            figures[host] = {"mib": used}
            left += [f"{host}: {used} MiB of the card, {computing or 'nobody'}"] if used > IDLE_MIB or computing else []
    if left:
        raise FoundError(f"left: {'; '.join(left)}", figures)
    return figures


class FoundError(LabError):
    """What was measured has to be told, too."""

    def __init__(self, problem: str, figures: Mapping[str, Any]) -> None:
        super().__init__(problem)
        self.figures = figures


@dataclass(frozen=True)
class Step:
    run: Callable[[Gpu], dict[str, Any]]
    limit_s: int
    nodes: int = 1  # at least
    serving: bool = True  # it has to serve before

    @property
    def name(self) -> str:
        return self.run.__name__


# What is worth most comes first; ``nccl`` leaves the engine stopped, which ``undo`` does not mind.
STEPS = {
    step.name: step
    for step in (
        Step(first, 400, serving=False),
        Step(again, 120),
        Step(readers, 150),
        Step(caches, 420),
        Step(switch, 300),
        Step(gateway, 180),
        Step(back, 240),
        Step(killed, 240),
        Step(frozen, 300),
        Step(memory, 300),
        Step(verify, 90),
        Step(serving, 180),
        Step(report, 60),
        Step(by_name, 540),
        Step(ray, 300, nodes=2),
        Step(ray_again, 120, nodes=2),
        Step(ray_killed, 240, nodes=2),
        Step(nccl, 180, nodes=2),
        Step(undo, 180, serving=False),
    )
}
SLOWER = 3  # by so much on two processors


@contextlib.contextmanager
def limited(here: Gpu, seconds: float) -> Iterator[None]:
    def late(_number: int, _frame: object) -> None:
        raise LabError(f"not done within {seconds:.0f} s; it was at: {here.doing}")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Pass:
    """The rows, kept after each of them."""

    def __init__(self, here: Gpu, names: Sequence[str], budget_s: float) -> None:
        self.here = here
        self.rows: list[dict[str, Any]] = []
        self.began = time.monotonic()
        self.budget_s = budget_s
        self.kept_s = UNDO_S if undo.__name__ in names else 0
        self.card = ""
        self.bad = 0

    def left(self, step: Step) -> float:
        limit = step.limit_s * (SLOWER if self.here.cpu else 1)
        if not self.budget_s:
            return limit
        rest = self.budget_s - (time.monotonic() - self.began) - (0 if step.run is undo else self.kept_s)
        return min(limit, rest)

    def row(self, step: str, seconds: float, result: str, figures: Mapping[str, Any]) -> None:
        row = {"step": step, "card": self.card, "gpus": self.here.launch.nodes, "seconds": round(seconds, 1)}
        self.rows.append({**row, "result": result, "figures": dict(figures)})
        self.bad += not result.startswith("ok")
        total = round(time.monotonic() - self.began)
        FILE.write_text(json.dumps({"seconds": total, "failed": self.bad, "steps": self.rows}, indent=1) + "\n")
        say(f"   {seconds:.0f} s, {result}  {json.dumps(figures)}")

    def take(self, step: Step) -> None:
        here, began = self.here, time.monotonic()
        say(f"-- {step.name}: {step.run.__doc__}")
        limit = self.left(step)
        if step.nodes > here.launch.nodes:
            self.row(step.name, 0, f"ok: not run, it takes {step.nodes} nodes", {})
            return
        if limit < 1:
            self.row(step.name, 0, "not run: the budget is spent", {})
            return
        try:
            with limited(here, limit):
                if step.serving:
                    here.ready()
                figures = step.run(here)
            self.row(step.name, time.monotonic() - began, str(figures.pop("result", "ok")), figures)
        except Exception as exc:  # whatever it was, the next step is tried
            seconds = time.monotonic() - began
            found = str(exc) if isinstance(exc, LabError) else f"{type(exc).__name__}: {exc}"
            here.logs(step.name)
            tail = here.tail()
            (FOLDER / f"{step.name}-found.txt").write_text(f"{found}\n\n{tail}")
            say(f"{found}\n{tail}")
            self.row(step.name, seconds, f"FAILED: {found[-1500:]}", getattr(exc, "figures", {}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    nodes = 1 if len(gpu.cards()) == 1 else 2
    parser.add_argument("--gpus", type=int, choices=(1, 2), default=nodes, help="nodes, with a card each")
    parser.add_argument("--cpu", action="store_true", help="the same without cards")
    parser.add_argument("--only", default="", metavar="STEP[,STEP]", help=", ".join(STEPS))
    parser.add_argument("--skip", default="", metavar="STEP[,STEP]")
    parser.add_argument("--budget", type=float, default=0, metavar="SECONDS", help="end by then")
    parser.add_argument("--keep", action="store_true", help="use the lab that is up, and leave it")
    chosen = parser.parse_args()
    names, skipped = (words.split(",") if words else [] for words in (chosen.only, chosen.skip))
    if unknown := {*names, *skipped} - set(STEPS):
        parser.error(f"no such step: {', '.join(sorted(unknown))}")
    if not chosen.cpu and not gpu.missing() and gpu.served() != gpu.RECIPES[0]:
        parser.error(f"it needs cards of 80 GB and a machine of {gpu.RECIPES[0].machine_gib} GiB")
    names = [name for name in names or STEPS if name not in skipped]
    here = Gpu(chosen.gpus, chosen.cpu)
    passed = Pass(here, names, chosen.budget)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    try:
        if not chosen.keep:
            cluster.build(not chosen.cpu)
            here.boot()
        passed.card = here.card()
        for name in names:
            passed.take(STEPS[name])
        here.logs("end")
    except LabError as exc:
        passed.row("boot", time.monotonic() - passed.began, f"FAILED: {exc}", {})
    finally:
        if not chosen.keep:
            here.down()
    print(table(passed.rows))
    print(json.dumps({"seconds": round(time.monotonic() - passed.began), "failed": passed.bad}))
    return 1 if passed.bad else 0


if __name__ == "__main__":
    sys.exit(main())
