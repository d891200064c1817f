#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Kill site.yml while it writes, again and again, and show that the next run ends where an undisturbed run ends.

``--sample N``      N kills, spread over the run by a seeded choice: every attempt starts from what the killed one left
                    behind and gets further.
``--all``           one kill after every task that changes something, in order; ``--part 2/4``: in the second quarter.
``--seed S``        another choice of points and delays. Default: made from the commit, so that it differs from one
                    commit to the next.
``--keep``          kill only, on the nodes that are up; somebody else finishes the run and looks at its end.
``--inventory I``   one more inventory, for ``--keep``.

The kill is SIGKILL to the controller and all its forks, a random moment after a task has changed the first node: what
it does on the others, or what comes next, is cut in the middle. A killed attempt must not leave anything that makes the
last, undisturbed run fail or end differently; after it one more run must change nothing.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster

NODES = 2
INVENTORY = f"inventories/{NODES}spark"
MAX_DELAY_S = 1.5
CHANGES = 20  # tasks that change something in a first run, about: how far kills are spread where nobody counted

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
    for number in range(1, NODES + 1):
        host = f"spark{number}"
        reply = cluster.ssh(host, FINGERPRINT)
        if reply.returncode != 0:
            raise cluster.LabError(f"The state of {host} cannot be read: {reply.stderr}")
        state[host] = reply.stdout.splitlines()
    return state


def fresh_lab() -> None:
    cluster.step("Remove the lab", cluster.lab("down"), "down.log")
    cluster.boot("direct", NODES)


def site(name: str) -> cluster.Run:
    run = cluster.play(name, inventory=INVENTORY, show=False)
    if run.code:
        raise cluster.LabError(f"The run {name} failed:\n{cluster.log_tail(name)}")
    return run


def seed_of_the_commit() -> int:
    words = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(words, cwd=cluster.ROOT, capture_output=True, text=True, check=False)
    return int(done.stdout[:8] or "1", 16)


def sampled(kills: int, changes: int, rng: random.Random) -> Iterator[int]:
    """After how many changes of its own each attempt is killed, so that all together get about to the end."""
    for _kill in range(kills):
        yield rng.randint(1, max(1, 2 * changes // (kills + 1)))


def every(changes: int, part: int, parts: int) -> Iterator[int]:
    """A kill after every change of a part of the run."""
    first, last = changes * (part - 1) // parts, changes * part // parts
    yield first + 1
    for _kill in range(first + 1, last):
        yield 1


def compare(expected: dict[str, list[str]], found: dict[str, list[str]]) -> list[str]:
    problems = []
    for host, lines in expected.items():
        problems += [f"{host}: missing  {line}" for line in lines if line not in found[host]]
        problems += [f"{host}: surplus  {line}" for line in found[host] if line not in lines]
    return problems


def kill_through(changes: Iterator[int], rng: random.Random, inventories: list[str]) -> int:
    """Run and kill once per number of changes, until nothing is left to change; how often it was killed."""
    killed, more, before = 0, 0, ""
    options = [word for inventory in inventories for word in ("-i", inventory)]
    for count in changes:
        delay = round(rng.uniform(0, MAX_DELAY_S), 2)
        run = cluster.play(
            "killed", *options, inventory=INVENTORY, kill_at_change=count + more, kill_delay_s=delay, show=False
        )
        if not run.killed:
            if run.code:
                log = cluster.log_tail("killed")
                raise cluster.LabError(f"After {killed} kills the next run failed by itself:\n{log}")
            cluster.say(f"   ended before {count + more} changes, after {run.seconds:.0f} s: nothing is left to kill")
            break
        killed += 1
        changed, running = run.stats["changed"], run.stats["running"]
        cluster.say(
            f"   after {count + more} changes and {delay} s: {changed!r} had changed, {running!r} was running,"
            f" {run.seconds:.0f} s"
        )
        # What is taken back because nobody confirmed it is done again: the next attempt has to get further.
        more = more + 1 if changed == before else 0
        before = changed
    return killed


def kill_only(kills: int, seed: int, inventories: list[str]) -> dict[str, Any]:
    rng = random.Random(seed)
    killed = kill_through(sampled(kills, CHANGES, rng), rng, inventories)
    return {"kills": killed, "problems": [] if 2 * killed >= kills else [f"only {killed} runs were killed"]}


def kill_and_compare(sample: int, part: tuple[int, int], seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    cluster.build()
    fresh_lab()
    changes = int(site("undisturbed").stats["changes"])
    expected = fingerprint()
    fresh_lab()
    wanted = sampled(sample, changes, rng) if sample else every(changes, *part)
    killed = kill_through(wanted, rng, [])
    healed = site("healed")
    problems = compare(expected, fingerprint())
    again = site("after-healing")
    if again.changed:
        problems.append(f"The run after the healing run changed {again.stats.get('changed_tasks')}")
    if not killed:
        problems.append("no run was killed")
    return {
        "changes": changes,
        "kills": killed,
        "healed_run_s": round(healed.seconds, 1),
        "unchanged_run_s": round(again.seconds, 1),
        "unchanged_run_module_executions_per_node": again.executions_per_node(),
        "problems": problems,
    }


def part_of(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    return int(part), int(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--sample", type=int, metavar="N", default=0)
    which.add_argument("--all", action="store_true")
    parser.add_argument("--part", type=part_of, metavar="K/N", default=(1, 1))
    parser.add_argument("--seed", type=int, default=seed_of_the_commit())
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--inventory", action="append", default=[])
    options = parser.parse_args()
    started = time.monotonic()
    cluster.say(f"-- Seed {options.seed}")
    try:
        if options.keep:
            result = kill_only(options.sample, options.seed, options.inventory)
        else:
            result = kill_and_compare(options.sample, options.part, options.seed)
    except cluster.LabError as exc:
        print(f"FAILED with seed {options.seed}: {exc}")
        return 1
    finally:
        if not options.keep:
            cluster.step("Remove the lab", cluster.lab("down"), "down.log")
    print("\n".join(result["problems"]))
    print(json.dumps({"seed": options.seed, **result, "total_s": round(time.monotonic() - started)}))
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
