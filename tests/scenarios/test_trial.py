#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Updates that go wrong in their first minutes, on two simulated Sparks: what served before comes back without a run.

Usage: test_trial.py [--only STEP[,STEP]] [--beside ID] [--keep]

What served first is said to have passed its trial: the twenty minutes of it are not what is tested here. Prints one
JSON line.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import LabError
from test_staying_up import BACK_S, HANG_S, HEAD, WORKER, Cluster, _context

CHANGED = 128  # tokens of context of the update
TIMES = 20
STATE = "/var/lib/sparkmatrix/keeper/state.json"
PASSED = f"""
import json
state = json.load(open({STATE!r}))
state['tried'] = [json.load(open('/etc/sparkmatrix/engine.json'))['config_hash']]
json.dump(state, open({STATE!r}, 'w'))
"""
SAYS = "what served before serves again"


def site(here: Cluster) -> dict[str, Any]:
    """What serves first, which has passed its trial."""
    run = here.site("trial", "site.yml", "-e", "fabric_bandwidth_test=never")
    here.node(HEAD, "sudo systemctl stop sparkmatrix-keeper")
    here.node(HEAD, "sudo python3 -", data=PASSED.encode())
    here.node(HEAD, "sudo systemctl start sparkmatrix-keeper")
    here.serving()
    return {"seconds": round(run.seconds)}


def returned(here: Cluster, sabotage: Callable[[], object]) -> float:
    """An update, what happens to it, and how long until what served before serves on all nodes."""
    here.serving()
    before = _context(here)
    here.site("trial-upgrade", "playbooks/upgrade.yml", "-e", f"engine_context={CHANGED}")
    if _context(here) != CHANGED:
        raise LabError(f"the update is not what serves: {_context(here)} tokens")
    began = time.monotonic()
    sabotage()
    here.wait("back", BACK_S, lambda status: bool(status["history"]) and status["history"][-1]["reason"] == SAYS)
    here.wait("serving", BACK_S, lambda status: bool(status["serving"]))
    seconds = time.monotonic() - began
    for host in here.launch.hosts:
        told = json.loads(here.node(host, "sudo cat /etc/sparkmatrix/engine.json"))["settings"]["context"]
        if int(told) != before:
            raise LabError(f"{host} has the files of {told} tokens, not of {before}")
    if here.status()["failures"]:
        raise LabError("it counts as a failure of what serves again")
    return round(seconds, 1)


def dies(here: Cluster) -> dict[str, Any]:
    """SIGKILL to a rank, on the head and on the other node in turn."""
    head = "systemctl kill --signal=KILL --kill-whom=main sparkmatrix-engine"
    kills = ((HEAD, head), (WORKER, f"pkill -KILL -f '{here.rank}'"))
    return {"seconds": [returned(here, partial(here.kill, *kills[at % 2])) for at in range(TIMES // 2)]}


def hangs(here: Cluster) -> dict[str, Any]:
    """It stands still."""
    stop = "sudo systemctl kill --signal=STOP sparkmatrix-engine"
    found = [returned(here, lambda: here.node(HEAD, stop)) for _number in range(TIMES // 10)]
    return {"hang_s": HANG_S, "seconds": found}


def killed(here: Cluster) -> dict[str, Any]:
    """SIGKILL to the keeper at any moment of the way back: it is ended nevertheless."""
    chance = random.Random(37)

    def sabotage() -> None:
        here.kill(HEAD, "systemctl kill --signal=KILL --kill-whom=main sparkmatrix-engine")
        time.sleep(chance.uniform(0, 12))
        here.node(HEAD, "sudo systemctl kill --signal=SIGKILL sparkmatrix-keeper")

    found = [returned(here, sabotage) for _number in range(TIMES // 2)]
    return {"seconds": found}


def good(here: Cluster) -> dict[str, Any]:
    """Updates that are as good as before stay, there and back."""
    before = _context(here)
    for number in range(TIMES // 2):
        here.site("trial-good", "playbooks/upgrade.yml", "-e", f"engine_context={CHANGED}")
        here.serving()
        if _context(here) != CHANGED:
            raise LabError(f"update {number} did not stay: {here.status()['history'][-2:]}")
        here.site("trial-good-back", "playbooks/rollback.yml")
        if _context(here) != before:
            raise LabError(f"rollback {number}: {_context(here)} tokens")
    return {"updates": TIMES // 2 * 2}


STEPS = {step.__name__: step for step in (site, dies, hangs, killed, good)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cluster.step_options(parser, STEPS)
    chosen = parser.parse_args()
    return cluster.run_steps("trial", Cluster(chosen.beside, "native"), STEPS, chosen)


if __name__ == "__main__":
    sys.exit(main())
