#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""From start to the first token, against the same command by hand, in turns on one node that serves.

Usage: bench_start.py [--beside ID] [--inventory inventories/1spark] [--rounds 3]

``bare``: the unit's command line and environment, started by hand as the same user, outside of systemd. ``keeper``:
``systemctl start sparkmatrix-keeper``. ``playbook``: ``playbooks/start.yml``, until the token and until Ansible has
ended. A process on the node asks for the first token in all three, five times a second. One JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/lab"))
import cluster

HEAD = "spark1"
# Runs on the node, as root, and prints when the engine was ready and when the first token came. argv: what to start;
# ``rank`` is what another node does for a bare start, until it is told that it is over.
ON_NODE = r"""
import json, os, pathlib, pwd, re, shlex, signal, subprocess, sys, time, urllib.request
UNIT = "/etc/systemd/system/sparkmatrix-engine.service"

def variables(path):
    return dict(re.findall(r'^(\w+)="?(.*?)"?$', open(path).read(), re.M))

OVER = pathlib.Path("/run/bare-start-over")
CGROUPS = pathlib.Path("/sys/fs/cgroup")
BARE = CGROUPS / "sparkmatrix.slice/bare"  # at the service's ports nobody outside of the slice answers

def described():  # on the head
    return json.load(open("/etc/sparkmatrix/engine.json"))

def ask(path, body=None):
    engine = described()
    key = variables(engine["key_file"])["VLLM_API_KEY"]
    head = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    data = json.dumps(body).encode() if body else None
    request = urllib.request.Request("http://%s:%s%s" % (engine["host"], engine["port"], path), data, head)
    return urllib.request.urlopen(request, timeout=60).read()

def ready():
    try:
        ask("/health")
        return True
    except OSError:
        return False

def token():
    body = {"model": described()["model"], "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    try:
        return json.loads(ask("/v1/chat/completions", body))["usage"]["completion_tokens"] > 0
    except OSError:
        return False

def first(began=0.0, process=None):
    times = {}
    for name, seen in (("ready", ready), ("token", token)):
        while not seen():
            if process and process.poll() is not None:
                sys.exit(open("/var/tmp/bare.log").read()[-2000:])
            time.sleep(0.2)
        times[name] = time.time() - began
    print(json.dumps(times))

def bare():
    lines = open(UNIT).read()
    command = shlex.split(re.search(r"^ExecStart=(.*)$", lines, re.M)[1])
    user = re.search(r"^User=(.*)$", lines, re.M)[1]
    home = re.search(r"^WorkingDirectory=(.*)$", lines, re.M)[1]
    made = {"PATH": os.environ["PATH"], "USER": user, "LOGNAME": user, "HOME": pwd.getpwnam(user).pw_dir}
    for path in re.findall(r"^EnvironmentFile=(.*)$", lines, re.M):
        made.update(variables(path))
    before = re.search(r"^0::(.*)$", open("/proc/self/cgroup").read(), re.M)[1]
    BARE.mkdir(exist_ok=True)
    (BARE / "cgroup.procs").write_text("0")  # inherited
    try:
        return started(command, made, home, user)
    finally:
        (CGROUPS / before[1:] / "cgroup.procs").write_text("0")

def started(command, made, home, user):
    return subprocess.Popen(
        command, env=made, cwd=home, user=user, group=user, extra_groups=[], start_new_session=True,
        stdout=open("/var/tmp/bare.log", "w"), stderr=subprocess.STDOUT,
    )

def end(process):
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        while BARE.exists():
            try:
                BARE.rmdir()
            except OSError:
                time.sleep(0.1)

signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # what was started by hand is ended, too
if sys.argv[1] == "wait":
    first()
    sys.exit()
if sys.argv[1] == "rank":
    OVER.unlink(missing_ok=True)
    process = bare()
    try:
        while not OVER.exists():
            time.sleep(0.2)
    finally:
        end(process)
    sys.exit()
subprocess.run(["systemctl", "stop", "sparkmatrix-keeper", "sparkmatrix-engine"], check=True)
while token():
    time.sleep(0.2)
if sys.argv[1] == "stop":
    sys.exit()
began = time.time()
if sys.argv[1] == "keeper":
    subprocess.run(["systemctl", "start", "sparkmatrix-keeper"], check=True)
    first(began)
else:
    process = bare()
    try:
        first(began, process)
    finally:
        end(process)
"""


def node(state: Path, mode: str) -> float:
    words = ["ssh", "-F", str(state / "ssh_config"), HEAD, f"sudo timeout 600 python3 - {mode}"]
    done = subprocess.run(words, input=ON_NODE, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout or '{"token": 0}')["token"])


def playbook(state: Path, inventory: str) -> tuple[float, float]:
    """Seconds to the first token, and to the end of the playbook."""
    node(state, "stop")
    words = ["ssh", "-F", str(state / "ssh_config"), HEAD, "sudo timeout 600 python3 - wait"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdin is not None and waiting.stdout is not None
        waiting.stdin.write(ON_NODE)
        waiting.stdin.close()
        began = time.time()
        overlay = str((state / "overlay").relative_to(ROOT))
        run = cluster.play(
            "bench-start", playbook="playbooks/start.yml", inventory=inventory, overlay=overlay, show=False
        )
        if run.code:
            raise SystemExit(cluster.log_tail("bench-start"))
        ended = time.time() - began
        # Nodes of the lab have the clock of this machine.
        return float(json.loads(waiting.stdout.read())["token"]) - began, ended


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beside", default="", metavar="ID", help="a lab of this id beside another")
    parser.add_argument("--inventory", default="inventories/1spark")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    state = cluster.STATE / options.beside if options.beside else cluster.STATE
    seconds: dict[str, list[float]] = {"bare": [], "keeper": [], "playbook": [], "playbook_ended": []}
    for number in range(options.rounds):
        for mode in ("bare", "keeper")[:: 1 if number % 2 == 0 else -1]:
            seconds[mode].append(node(state, mode))
        token, ended = playbook(state, options.inventory)
        seconds["playbook"].append(token)
        seconds["playbook_ended"].append(ended)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(
        json.dumps(
            {
                "seconds": {name: [round(value, 1) for value in values] for name, values in seconds.items()},
                "ratio_to_bare": {name: round(value / medians["bare"], 2) for name, value in medians.items()},
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
