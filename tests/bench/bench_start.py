#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""From start to the first token, against the same command by hand, in turns on one node that serves.

Usage: bench_start.py [--beside ID] [--inventory inventories/1spark] [--rounds 3]

``bare``: the unit's command line and environment, started by hand as the same user. ``keeper``: ``systemctl start
sparkmatrix-keeper``. ``playbook``: ``playbooks/start.yml``, until the token and until Ansible has ended. A process on
the node asks for the first token in all three, five times a second. One JSON line.
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
# Runs on the node, as root. argv: what to start.
ON_NODE = r"""
import json, os, pwd, re, shlex, signal, subprocess, sys, time, urllib.request
ENGINE = json.load(open("/etc/sparkmatrix/engine.json"))
UNIT = "/etc/systemd/system/sparkmatrix-engine.service"

def variables(path):
    return dict(re.findall(r'^(\w+)="?(.*?)"?$', open(path).read(), re.M))

KEY = variables(ENGINE["key_file"])["VLLM_API_KEY"]

def token():
    body = {"model": ENGINE["model"], "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    address = "http://%s:%s/v1/chat/completions" % (ENGINE["host"], ENGINE["port"])
    head = {"Authorization": "Bearer " + KEY, "Content-Type": "application/json"}
    request = urllib.request.Request(address, json.dumps(body).encode(), head)
    try:
        answer = json.load(urllib.request.urlopen(request, timeout=60))
        return answer["usage"]["completion_tokens"] > 0
    except OSError:
        return False

def first():
    while not token():
        time.sleep(0.2)
    return time.time()

if sys.argv[1] == "wait":
    print(first())
    sys.exit()
subprocess.run(["systemctl", "stop", "sparkmatrix-keeper", "sparkmatrix-engine"], check=True)
while token():
    time.sleep(0.2)
if sys.argv[1] == "stop":
    sys.exit()
began = time.time()
if sys.argv[1] == "keeper":
    subprocess.run(["systemctl", "start", "sparkmatrix-keeper"], check=True)
    print(first() - began)
else:
    lines = open(UNIT).read()
    command = shlex.split(re.search(r"^ExecStart=(.*)$", lines, re.M)[1])
    user = re.search(r"^User=(.*)$", lines, re.M)[1]
    home = re.search(r"^WorkingDirectory=(.*)$", lines, re.M)[1]
    made = {"PATH": os.environ["PATH"], "USER": user, "LOGNAME": user, "HOME": pwd.getpwnam(user).pw_dir}
    for path in re.findall(r"^EnvironmentFile=(.*)$", lines, re.M):
        made.update(variables(path))
    began = time.time()
    process = subprocess.Popen(
        command, env=made, cwd=home, user=user, group=user, extra_groups=[], start_new_session=True,
        stdout=open("/var/tmp/bare.log", "w"), stderr=subprocess.STDOUT,
    )
    print(first() - began)
    process.send_signal(signal.SIGTERM)
    process.wait(60)
"""


def node(state: Path, mode: str) -> float:
    words = ["ssh", "-F", str(state / "ssh_config"), HEAD, f"sudo timeout 600 python3 - {mode}"]
    done = subprocess.run(words, input=ON_NODE, capture_output=True, text=True, check=True)
    return float(done.stdout or 0)


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
        return float(waiting.stdout.read()) - began, ended


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
