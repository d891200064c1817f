#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Kill site.yml in the middle and show that the next run ends in the same state as a run that was never disturbed.

``--sample N``  N kills of one run, spread over its tasks by a seeded choice: every next attempt starts from what the
                killed one left behind and gets further.
``--all``       one kill at every task of the run, in order.
``--seed S``    another choice of points and delays (default 1).

The kill is SIGKILL to the controller and all its forks, at the start of a task plus a random delay, so that modules are
hit in the middle as well. A killed attempt must not leave anything that makes the last, undisturbed run fail or end
differently; after it one more run must change nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import Any

import cluster

MAX_DELAY_S = 1.5
LAST_TASKS = 6  # reports and questions, which are over before a delayed kill comes

# What has to be equal at the end. Secrets are random per cluster, and so is the hash over them in the units: of secrets
# only owner and mode are compared, and of known hosts only names and kinds of keys.
FINGERPRINT = r"""
set -u
cd /
places="etc/sparkmatrix etc/netplan etc/sysctl.d etc/security etc/systemd etc/ansible usr/local/lib/sparkmatrix"
sudo find $places -printf '%p %y %m %u %l\n' 2>/dev/null | sort
sudo find $places -type f ! -perm 0600 ! -name 'sparkmatrix-*.service' ! -name known_hosts ! -name engine.json \
  -exec sha256sum {} + 2>/dev/null | sort -k2
for unit in etc/systemd/system/sparkmatrix-*.service; do
  echo "$unit $(grep -v SPARKMATRIX_CONFIG_HASH= $unit | sha256sum)"
done
echo "engine.json $(grep -v '"config_hash"' etc/sparkmatrix/engine.json | sha256sum)"
sudo cut -d' ' -f1,2 etc/sparkmatrix/ssh/known_hosts
sudo sha256sum /etc/hosts $(sudo find /etc/netplan -type f | sort)
systemctl get-default
for unit in sparkmatrix-ray sparkmatrix-engine sparkmatrix-keeper; do
  echo "$unit $(systemctl is-enabled $unit 2>&1) $(systemctl is-active $unit 2>&1)"
done
for netdev in enp1s0f0np0 enP2p1s0f0np0 enp1s0f1np1 enP2p1s0f1np1; do
  echo "$netdev mtu $(cat /sys/class/net/$netdev/mtu) $(ip -4 -br addr show dev $netdev | awk '{$1=$2=""; print}')"
done
sysctl vm.swappiness
"""


def fingerprint() -> dict[str, list[str]]:
    state = {}
    for number in range(1, cluster.NODES + 1):
        host = f"spark{number}"
        reply = cluster.ssh(host, FINGERPRINT)
        if reply.returncode != 0:
            raise cluster.LabError(f"The state of {host} cannot be read: {reply.stderr}")
        state[host] = reply.stdout.splitlines()
    return state


def fresh_lab() -> None:
    cluster.step("Remove the lab", cluster.lab("down"), "down.log")
    cluster.boot()


def undisturbed() -> tuple[dict[str, list[str]], int]:
    run = cluster.play("undisturbed", show=False)
    if run.code:
        raise cluster.LabError(f"The undisturbed run failed:\n{cluster.log_tail('undisturbed')}")
    return fingerprint(), int(run.stats["tasks"])


def points(total: int, sample: int, rng: random.Random) -> list[int]:
    """One task of each of ``sample`` equal parts of the run, in order."""
    if not sample:
        return list(range(1, total + 1))
    edges = [1 + round(part * total / sample) for part in range(sample + 1)]
    return [rng.randrange(low, max(low + 1, high)) for low, high in zip(edges, edges[1:])]


def compare(expected: dict[str, list[str]], found: dict[str, list[str]]) -> list[str]:
    problems = []
    for host, lines in expected.items():
        problems += [f"{host}: missing  {line}" for line in lines if line not in found[host]]
        problems += [f"{host}: surplus  {line}" for line in found[host] if line not in lines]
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--sample", type=int, metavar="N")
    which.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    started = time.monotonic()
    try:
        cluster.build()
        fresh_lab()
        expected, total = undisturbed()
        fresh_lab()
        chosen = points(total - LAST_TASKS, options.sample or 0, rng)
        # With a kill at every task the last runs have little left to do and may end before theirs.
        wanted = len(chosen) if options.sample else len(chosen) * 9 // 10
        killed = kill_through(chosen, rng)
        healed = cluster.play("healed", show=False)
        if healed.code:
            raise cluster.LabError(f"The run after the kills failed:\n{cluster.log_tail('healed')}")
        problems = compare(expected, fingerprint())
        again = cluster.play("after-healing", show=False)
        if again.code or again.changed:
            changed = again.stats.get("changed_tasks")
            problems.append(f"The run after the healing run ended with {again.code} and changed {changed}")
        if again.executions_per_node() > cluster.MAX_EXECUTIONS:
            problems.append(
                f"A run that changed nothing took {again.executions_per_node()} module executions on one node, "
                f"more than {cluster.MAX_EXECUTIONS}: {again.stats['modules']}"
            )
    except cluster.LabError as exc:
        print(f"FAILED with seed {options.seed}: {exc}")
        return 1
    finally:
        cluster.step("Remove the lab", cluster.lab("down"), "down.log")
    result: dict[str, Any] = {
        "seed": options.seed,
        "tasks": total,
        "kills": killed,
        "healed_run_s": round(healed.seconds, 1),
        "unchanged_run_s": round(again.seconds, 1),
        "unchanged_run_module_executions_per_node": again.executions_per_node(),
        "total_s": round(time.monotonic() - started),
        "problems": problems,
    }
    print("\n".join(problems))
    print(json.dumps(result))
    return 1 if problems or killed < wanted else 0


def kill_through(tasks: list[int], rng: random.Random) -> int:
    """Run and kill once per point. A run that ends by itself before its point is an error only if it failed."""
    killed = 0
    for task in tasks:
        delay = round(rng.uniform(0, MAX_DELAY_S), 2)
        run = cluster.play("killed", kill_at=task, kill_delay_s=delay, show=False)
        killed += run.killed
        end = "killed" if run.killed else f"ended with {run.code}"
        cluster.say(f"   task {task} + {delay} s: {end} after {run.seconds:.0f} s")
        if not run.killed and run.code:
            raise cluster.LabError(
                f"After {killed} kills the run aimed at task {task} failed by itself:\n{cluster.log_tail('killed')}"
            )
    return killed


if __name__ == "__main__":
    sys.exit(main())
