#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""`make demo`: boot four simulated Sparks, run site.yml on them twice, ask the endpoint.

`up --gpus N` (`make demo GPUS=N`): 1, 2 or 4 of them, each with an NVIDIA card of this machine.
The last line is one JSON object. The exit code is 0 only if both runs succeeded, the second changed nothing and the
endpoint generated tokens. The cluster stays up; `make demo-down` removes it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import cluster
import gpu

PROMPT = "the quick brown fox"
MAX_TOKENS = 32
PROBE = "sudo /usr/local/lib/sparkmatrix/sparkmatrix-node probe --json"


# By the number of nodes: how they are wired, and the inventory for that.
WIRED = {
    1: ("single", "inventories/1spark"),
    2: ("direct", "inventories/2spark"),
    cluster.NODES: ("switch", cluster.INVENTORY),
}


def up(gpus: int) -> int:
    started = time.monotonic()
    nodes = gpus or cluster.NODES
    topology, inventory = WIRED[nodes]
    try:
        if gpus:
            gpu.driver_mounts(gpus)  # says what is missing, before anything is built
        cluster.build(gpus > 0)
        cluster.boot(topology, nodes, gpus > 0)
        cluster.say(f"-- First run: ansible-playbook site.yml -i {inventory} -i .lab/overlay")
        first = cluster.play("first-run", inventory=inventory)
        check(first.code == 0, "the first run of site.yml failed", "first-run")
        cluster.say("-- Second run, which has to change nothing")
        second = cluster.play("second-run", show=False, inventory=inventory)
        check(second.code == 0, "the second run of site.yml failed", "second-run")
        check(second.changed == 0, f"the second run changed {second.stats['changed_tasks']}", "second-run")
        answer = ask()
        summary(first, second, answer, time.monotonic() - started)
    except Exception as exc:  # whatever went wrong, the last line is JSON
        text = str(exc) or type(exc).__name__
        print(f"\n{text}", file=sys.stderr)
        print(json.dumps({"ok": False, "error": text.splitlines()[0]}))
        return 1
    return 0


def check(condition: bool, problem: str, log: str) -> None:
    if not condition:
        raise cluster.LabError(f"{problem}. The end of .lab/{log}.log:\n{cluster.log_tail(log)}")


def ask() -> dict[str, Any]:
    """A chat completion through the endpoint, asked on the head over ssh; the key never leaves its file."""
    cluster.say(f"-- Ask the endpoint on {cluster.HEAD}")
    reply = cluster.ssh(cluster.HEAD, f"{PROBE} --max-tokens {MAX_TOKENS} --prompt '{PROMPT}'")
    if reply.returncode != 0:
        raise cluster.LabError(f"The endpoint did not answer: {reply.stdout}{reply.stderr}")
    answer: dict[str, Any] = json.loads(reply.stdout.splitlines()[-1])
    if answer["completion_tokens"] < 1:
        raise cluster.LabError(f"The endpoint answered without a single token: {answer}")
    return answer


def summary(first: cluster.Run, second: cluster.Run, answer: dict[str, Any], seconds: float) -> None:
    fact = json.loads(cluster.ssh(cluster.HEAD, "cat /etc/ansible/facts.d/sparkmatrix.fact").stdout)
    rails = ", ".join(f"{rail['netdev']} {rail['address']} MTU {rail['mtu']}" for rail in fact["rails"]) or "no rails"
    endpoint = answer["endpoint"]
    say = cluster.say
    say("")
    say(f"  {fact['nodes']} simulated Sparks, topology {fact['topology']}; head {cluster.HEAD}: {rails}")
    say(f"  first run {first.seconds:.0f} s, second run {second.seconds:.0f} s with {second.changed} changes")
    say(f"  at most {second.executions_per_node()} module executions per node in the second run")
    say(f"  {answer['model']} generated {answer['completion_tokens']} tokens, {answer['tokens_per_s']:.1f} tokens/s")
    say("")
    say("  The cluster stays up. Log in and ask it yourself:")
    say(f"    ssh -F .lab/ssh_config {cluster.HEAD}")
    say(f"    {PROBE.removesuffix(' --json')} --prompt 'hello'")
    say("  Remove every trace: make demo-down")
    say("")
    print(
        json.dumps(
            {
                "ok": True,
                "nodes": fact["nodes"],
                "topology": fact["topology"],
                "engine": answer["engine"],
                "backend": answer["backend"],
                "endpoint": endpoint,
                "model": answer["model"],
                "first_run_s": round(first.seconds, 1),
                "second_run_s": round(second.seconds, 1),
                "second_run_changed": second.changed,
                "second_run_module_executions_per_node": second.executions_per_node(),
                "completion_tokens": answer["completion_tokens"],
                "tokens_per_s": round(answer["tokens_per_s"], 2),
                "total_s": round(seconds, 1),
            }
        )
    )


def build(gpus: int) -> int:
    """Only what `up` does before it boots: packages, node image, engine environment."""
    try:
        cluster.build(gpus > 0)
    except cluster.LabError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


def down(_gpus: int) -> int:
    return subprocess.run(cluster.lab("down"), cwd=cluster.ROOT, check=False).returncode


def main(argv: list[str]) -> int:
    actions = {"up": up, "build": build, "down": down}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=actions)
    parser.add_argument("--gpus", type=int, default=0, choices=sorted({0, *WIRED}), help="nodes with a card each")
    options = parser.parse_args(argv)
    return actions[options.action](options.gpus)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
