#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Updates that are worse than what served before, and such that are as good, on two simulated Sparks.

Usage: test_trial.py [--only STEP[,STEP]] [--beside ID] [--keep]

An update is another environment of the engine, as a new version is: model and options stay. What is wrong with it a
rank finds when it starts, or is done to it once it serves. Of each kind `playbooks/upgrade.yml` brings the first one;
the others are placed as the keeper itself places what comes back. A trial takes a minute here, since an engine that
stands still for 30 s hangs. Twenty go back, and twenty stay. Prints one JSON line.
"""

from __future__ import annotations

import functools
import json
import pathlib
import random
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import LabError
from test_staying_up import BACK_S, HEAD, MODELS, TOOL, WORKER, Cluster

BOTH = (HEAD, WORKER)
MODEL, WRONG = f"{MODELS}/tried", "/opt/wrong"
OPTIONS = (
    *("-e", "engine_hang_seconds=30", "-e", "engine_stable_s=5", "-e", "fabric_bandwidth_test=never"),
    *("-e", f"engine_model_path={MODEL}"),
)
UPDATE = ("-e", json.dumps({"engine_environment": {"SPARK_UPDATE": "1"}}))
STATE = "/var/lib/sparkmatrix/keeper/state.json"
SAYS = "what served before serves again"

# Before a rank of the update starts, what is wrong takes the place of what is right.
BEGINS = f"""#!/bin/sh
cp -f {MODELS}/tiny-llama/* {MODEL}
grep -q SPARK_UPDATE /etc/sparkmatrix/engine.env || exit 0
cp -f {WRONG}/files/* {MODEL} 2>/dev/null
exit 0
"""
PREPARE = f"""
import os, pathlib
wrong, begins = pathlib.Path('{WRONG}/files'), pathlib.Path('{WRONG}/begins')
drop = pathlib.Path('/etc/systemd/system/sparkmatrix-engine.service.d')
for folder in (wrong, drop, pathlib.Path({MODEL!r})):
    folder.mkdir(parents=True, exist_ok=True)
begins.write_text({BEGINS!r})
begins.chmod(0o755)
os.system(str(begins))
(drop / 'trial.conf').write_text(f'[Service]\\nExecStartPre=+{{begins}}\\n')
os.system('systemctl daemon-reload')
"""
# The same weights, moved along by a few rows.
WEIGHTS = """
data = (right / 'model.safetensors').read_bytes()
begin = 8 + int.from_bytes(data[:8], 'little')
data = data[:begin] + data[begin + 4096 :] + data[begin : begin + 4096]
(wrong / 'model.safetensors').write_bytes(data)
"""
TEMPLATE = """
text = (right / 'chat_template.jinja').read_text()
(wrong / 'chat_template.jinja').write_text('Be brief. ' + text)
"""
# The socket of the process that listens, shut down by another one: the process runs on.
CLOSE = """
import ctypes, os, re, socket, subprocess
told = subprocess.run(['ss', '-Hltnp', 'sport = :8000'], capture_output=True, text=True, check=True).stdout
pid, number = map(int, re.search(r'pid=(\\d+),fd=(\\d+)', told).groups())
held = ctypes.CDLL(None, use_errno=True).syscall(438, os.pidfd_open(pid), number, 0)
if held < 0:
    raise OSError(ctypes.get_errno(), 'pidfd_getfd')
socket.socket(fileno=held).shutdown(socket.SHUT_RDWR)
"""
# What is done to an update from when it begins to load.
LOADS = """
import contextlib, os, signal, subprocess, time
def show(name):
    return subprocess.check_output(['systemctl', 'show', '-P', name, 'sparkmatrix-engine'], text=True).strip()
before = show('InvocationID')
while show('InvocationID') in ('', before) or show('ActiveState') != 'active':
    time.sleep(0.5)
group = f"/sys/fs/cgroup{show('ControlGroup')}/cgroup.procs"
"""
# Memory that belongs to the engine: 90 MiB a second, 8 GiB at most.
LEAK = f"""{LOADS}
open(group, 'w').write(str(os.getpid()))
held = []
while True:
    if len(held) < 128:
        held.append(b'x' * (64 << 20))
    time.sleep(0.7)
"""
# Its processes have a third of the time, from when it listens; nodes of the lab have no quota of processors.
SLOW = f"""{LOADS}
while not subprocess.check_output(['ss', '-Hltn', 'sport = :8000']):
    time.sleep(0.5)
while os.path.exists(group):
    for number, seconds in ((signal.SIGSTOP, 0.08), (signal.SIGCONT, 0.04)):
        for process in open(group).read().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), number)
        time.sleep(seconds)
"""


def python(here: Cluster, host: str, text: str) -> str:
    return here.node(host, "sudo python3 -", data=text.encode()).strip()


def tried(here: Cluster) -> list[str]:
    found: list[str] = json.loads(here.node(HEAD, f"sudo cat {STATE}"))["tried"]
    return found


def runs_update(here: Cluster, host: str = HEAD) -> bool:
    return here.node(host, "sudo grep -c SPARK_UPDATE /etc/sparkmatrix/engine.env; true").strip() == "1"


def passed(here: Cluster) -> None:
    """What serves has passed its trial."""
    config = json.loads(here.node(HEAD, "sudo cat /etc/sparkmatrix/engine.json"))["config_hash"]
    here.wait("past its trial", BACK_S, lambda _status: tried(here)[-1:] == [config])


def news(status: dict[str, Any], since: float) -> list[dict[str, Any]]:
    """What the keeper has noted since then; only the last fifty entries are kept."""
    return [one for one in status["history"] if datetime.fromisoformat(one["time"]).timestamp() >= int(since)]


def placed(here: Cluster, update: bool) -> None:
    """The other one of both plans that are kept, without a run; an update is on trial once more."""
    here.serving()
    began = time.time()
    here.node(HEAD, "sudo systemctl stop sparkmatrix-keeper")
    find = f"""
import glob, json
for path in glob.glob('/var/lib/sparkmatrix/plan/files-*.json'):
    text = open(path).read()
    if ('SPARK_UPDATE' in text) == {update}:
        print(json.loads(text)['plan'])
state = json.load(open({STATE!r}))
state['tried'] = state['tried'][-1 if {update} else 0:]
json.dump(state, open({STATE!r}, 'w'))
"""
    wanted = json.dumps({"plan": python(here, HEAD, find)}).encode()
    for host in reversed(here.launch.hosts):
        here.node(host, f"sudo {TOOL} switch place", data=wanted)
    here.node(HEAD, "sudo systemctl daemon-reload; sudo systemctl start sparkmatrix-keeper")
    here.wait("serving", BACK_S, lambda status: bool(status["serving"] and news(status, began)))


def wrong(here: Cluster, hosts: Sequence[str] = (), text: str = "") -> None:
    """What ranks of the update find on these nodes, on others nothing."""
    begin = f"""
import pathlib
right, wrong = pathlib.Path('{MODELS}/tiny-llama'), pathlib.Path('{WRONG}/files')
for file in wrong.iterdir():
    file.unlink()
"""
    for host in here.launch.hosts:
        python(here, host, begin + (text if host in hosts else ""))


def is_back(here: Cluster) -> None:
    """On all nodes, and as no failure of what serves again."""
    here.wait("serving", BACK_S, lambda status: bool(status["serving"]))
    for host in here.launch.hosts:
        if runs_update(here, host):
            raise LabError(f"{host} has the files of the update")
    if here.status()["failures"]:
        raise LabError("it counts as a failure of what serves again")


def beside(here: Cluster, host: str, text: str) -> None:
    """A program that goes on by itself."""
    here.node(host, "cat >/tmp/beside.py", data=text.encode())
    here.node(host, "sudo setsid -f python3 /tmp/beside.py </dev/null >/tmp/beside.log 2>&1")


def by_run(here: Cluster, hosts: Sequence[str], text: str, says: str, *more: str) -> dict[str, Any]:
    """The run finds it, and returns."""
    here.serving()
    wrong(here, hosts, text)
    run = here.site("trial-upgrade", "playbooks/upgrade.yml", *UPDATE, *more, fails=says)
    is_back(here)
    wrong(here)
    return {"by": "run", "seconds": round(run.seconds), "says": says}


def by_keeper(
    here: Cluster, says: str, sabotage: Callable[[], object] = lambda: None, *, run: bool = True, early: bool = False
) -> dict[str, Any]:
    """An update, what happens to it, and how long until what served before serves on all nodes. ``says``: what the
    keeper has to find. ``early``: it happens from the start on."""
    here.serving()
    passed(here)
    if early:
        sabotage()
    if run:
        here.site("trial-upgrade", "playbooks/upgrade.yml", *UPDATE)
    else:
        placed(here, update=True)
    if not runs_update(here):
        raise LabError(f"the update is not what serves: {here.status()['history'][-2:]}")
    began = time.time()
    if not early:
        sabotage()
    status = here.wait("back", BACK_S, lambda found: [one["reason"] for one in news(found, began)][-1:] == [SAYS])
    is_back(here)
    event = news(status, began)[0]
    if says not in event["reason"]:
        raise LabError(f"it went back for another reason: {event}")
    return {
        "by": f"keeper: {event['event']}",
        "seconds": round(time.time() - began),
        "says": event["reason"][:120],
    }


def site(here: Cluster) -> dict[str, Any]:
    """What serves first, which passes its trial."""
    for host in here.launch.hosts:
        python(here, host, PREPARE)
    run = here.site("trial", "site.yml")
    passed(here)
    return {"seconds": round(run.seconds)}


def weights(here: Cluster) -> dict[str, Any]:
    """Another token: all ranks have other weights under the same name."""
    return by_run(here, BOTH, WEIGHTS, "log probabilities of")


def revision(here: Cluster) -> dict[str, Any]:
    """One rank of two has another revision."""
    return by_run(here, [WORKER], WEIGHTS, "log probabilities of")


def template(here: Cluster) -> dict[str, Any]:
    """Another chat template."""
    return by_run(here, BOTH, TEMPLATE, "tokens with its template, and had")


def slow(here: Cluster) -> dict[str, Any]:
    """A third of the speed. On processors nothing is said of speed, so the recipe names none; and the run is to find
    it, so the trial lasts."""
    timed = ("-e", "engine_recipe=tiny-llama-timed", "-e", "engine_hang_seconds=300")
    here.site("trial-timed", "site.yml", *timed)
    here.serving()
    beside(here, HEAD, SLOW)
    return by_run(here, [], "", "tokens/s for one request", *timed)


def late(here: Cluster) -> dict[str, Any]:
    """What is wrong with the answers, and no run has compared them."""
    if "SPARK_UPDATE" not in here.node(HEAD, "sudo cat /var/lib/sparkmatrix/plan/previous.json", check=False):
        here.site("trial-known", "playbooks/upgrade.yml", *UPDATE)
        here.site("trial-known-back", "playbooks/rollback.yml")
    found = []
    for hosts, text, says in (
        (BOTH, TEMPLATE, "tokens with its template"),
        ([WORKER], WEIGHTS, "log probabilities of"),
    ):
        wrong(here, hosts, text)
        found.append(by_keeper(here, says, run=False))
    wrong(here)
    return {"returned": found}


def dies(here: Cluster) -> dict[str, Any]:
    """SIGKILL to a rank, on the head and on the other node in turn; to the keeper, too, on the way back."""
    chance = random.Random(37)
    head = (HEAD, "systemctl kill --signal=KILL --kill-whom=main sparkmatrix-engine")
    there = (WORKER, f"pkill -KILL -f '{here.rank}'")

    def kill(at: tuple[str, str], keeper: bool) -> None:
        here.kill(*at)
        if keeper:
            here.wait("noticed", BACK_S, lambda status: not status["serving"])
            time.sleep(chance.uniform(0, 12))
            here.node(HEAD, "sudo systemctl kill --signal=SIGKILL sparkmatrix-keeper")

    found = []
    for number, at in enumerate((head, there) * 4):
        found.append(by_keeper(here, "", functools.partial(kill, at, number > 4), run=number < 2))
    return {"returned": found}


def hangs(here: Cluster) -> dict[str, Any]:
    """It stands still."""
    stop = "sudo systemctl kill --signal=STOP sparkmatrix-engine"
    found = [by_keeper(here, "stood still for", lambda: here.node(HEAD, stop), run=run) for run in (True, False)]
    return {"returned": found}


def closes(here: Cluster) -> dict[str, Any]:
    """Its process runs, and its port is closed."""
    close = functools.partial(python, here, HEAD, CLOSE)
    return {"returned": [by_keeper(here, "port has been closed", close, run=run) for run in (True, False, False)]}


def leaks(here: Cluster) -> dict[str, Any]:
    """It takes more and more memory, on the node that is not the head."""
    leak = functools.partial(beside, here, WORKER, LEAK)
    return {"returned": [by_keeper(here, "loses more all the time", leak, early=True)]}


def good(here: Cluster) -> dict[str, Any]:
    """Ten updates that are as good as before stay: five there, through a trial, and five back."""
    here.serving()
    passed(here)
    here.site("trial-good", "playbooks/upgrade.yml", *UPDATE)
    stays(here)
    here.site("trial-good-back", "playbooks/rollback.yml")
    is_back(here)
    for _number in range(4):
        placed(here, update=True)
        stays(here)
        placed(here, update=False)
        is_back(here)
    return {"kept": 10}


def stays(here: Cluster) -> None:
    passed(here)
    if not runs_update(here):
        raise LabError(f"it did not stay: {here.status()['history'][-2:]}")


STEPS: dict[str, Callable[[Cluster], dict[str, Any]]] = {
    step.__name__: step for step in (site, weights, revision, template, dies, hangs, closes, leaks, late, good)
}
STEPS |= {"good_again": good, "slow": slow}  # which leaves another recipe


def main() -> int:
    chosen = cluster.options(__doc__, STEPS).parse_args()
    here = Cluster(chosen.beside, "native")
    here.every_run = OPTIONS
    return cluster.run_steps("trial", here, STEPS, chosen)


if __name__ == "__main__":
    sys.exit(main())
