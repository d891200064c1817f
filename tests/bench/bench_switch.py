#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""From "another model, please" to its first token: two models on one simulated Spark, by ``upgrade.yml`` and by name.

Usage: bench_switch.py [--only STEP[,STEP]] [--beside ID] [--keep]

Real vLLM on CPUs, two recipes with compiled graphs, which the two models do not share: the first start of each finds
no caches, the second one does. ``before``: from the command to the keeper's start; then the parts of the start as the
keeper has seen them; ``token`` from the command to the first token, and ``ended``, when Ansible has ended. One JSON
line, in seconds.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/lab"), str(ROOT / "tests/scenarios")]
import cluster
from cluster import LabError
from test_by_name import ASK, GATEWAY

HEAD = "spark1"
MODELS = "/opt/sparkmatrix/models"
READY_S = 900  # the limit of a start: two cores compile for minutes where others work too
# The same weights with a constant that is compiled into the graphs: none of the other's fit.
OTHER = f"""
set -e
cp -r {MODELS}/tiny-llama {MODELS}/other
sed -i 's/"rms_norm_eps": 1e-06/"rms_norm_eps": 1e-05/' {MODELS}/other/config.json
grep -q 1e-05 {MODELS}/other/config.json
"""
NAMES = ("switch-one", "switch-other")


class Bench:
    def __init__(self, beside: str) -> None:
        self.beside = beside
        self.state = cluster.STATE / beside if beside else cluster.STATE

    def boot(self) -> None:
        more = ["--id", self.beside, "--beside"] if self.beside else []
        command = cluster.lab("up", "--nodes", "1", "--topology", "single", *more)
        cluster.step("Boot a simulated Spark", command, "bench-switch-up.log")

    def down(self) -> None:
        more = ["--id", self.beside] if self.beside else []
        cluster.step("Remove the lab", cluster.lab("down", *more), "bench-switch-down.log")

    def play(self, name: str, playbook: str, recipe: str) -> cluster.Run:
        paths = [str(self.recipes()), str(ROOT / "tests/lab/recipes")]
        settings = {"engine_recipe": recipe, "engine_recipe_paths": paths, "engine_ready_timeout_s": READY_S}
        settings["engine_models"] = [name for name in NAMES if name != recipe]
        said = json.dumps({**settings, **GATEWAY, "fabric_bandwidth_test": "never"})
        overlay = str((self.state / "overlay").relative_to(ROOT))
        found = cluster.play(
            name, "-e", said, playbook=playbook, inventory="inventories/1spark", overlay=overlay, show=False
        )
        if found.code:
            raise LabError(cluster.log_tail(name))
        return found

    def recipes(self) -> Path:
        """The lab's own, with compiled graphs, as a Spark has them."""
        folder = self.state / "bench-switch"
        folder.mkdir(exist_ok=True)
        made = yaml.safe_load((ROOT / "tests/lab/recipes/tiny-llama-cpu.yml").read_text())
        del made["options"]["enforce-eager"], made["environment"]["TORCHDYNAMO_DISABLE"]
        for name, model in zip(NAMES, ("tiny-llama", "other"), strict=True):
            text = yaml.safe_dump({**made, "model": f"{MODELS}/{model}", "served_model_name": name})
            (folder / f"{name}.yml").write_text(text)
        return folder

    def node(self, command: str, told: str = "") -> str:
        words = ["ssh", "-F", str(self.state / "ssh_config"), HEAD, f"sudo {command}"]
        done = subprocess.run(words, input=told, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def switch(self, step: str, recipe: str, playbook: str = "playbooks/upgrade.yml") -> dict[str, Any]:
        began = time.time()
        run = self.play(f"bench-switch-{step}", playbook, recipe)
        kept = json.loads(self.node("cat /var/lib/sparkmatrix/keeper/state.json"))
        return {**cluster.parts_of_start(kept, began), "ended": round(run.seconds, 1)}

    def named(self, model: str) -> dict[str, Any]:
        """Asked for by its name, by a client that waits."""
        time.sleep(10)  # so that the other one has no requests
        began = time.time()
        found = json.loads(self.node(f"python3 - {model} {READY_S}", ASK))
        if found["found"] != "answered":
            raise LabError(str(found))
        kept = json.loads(self.node("cat /var/lib/sparkmatrix/keeper/state.json"))
        return {**cluster.parts_of_start(kept, began), "answered": found["seconds"], "took": kept["models"]["took"]}


def first(here: Bench) -> dict[str, Any]:
    """site.yml with the one model, on a machine on which nothing was compiled"""
    here.node(f"sh -c {shlex.quote(OTHER)}")
    return here.switch("first", NAMES[0], "site.yml")


def other(here: Bench) -> dict[str, Any]:
    """to the other model, for the first time"""
    return here.switch("other", NAMES[1])


def back(here: Bench) -> dict[str, Any]:
    """back to the one, which finds what its first start has compiled"""
    return here.switch("back", NAMES[0])


def again(here: Bench) -> dict[str, Any]:
    """to the other once more, likewise"""
    return here.switch("again", NAMES[1])


def named_back(here: Bench) -> dict[str, Any]:
    """back to the one by its name, without Ansible"""
    return here.named(NAMES[0])


def named_again(here: Bench) -> dict[str, Any]:
    """to the other once more, likewise"""
    return here.named(NAMES[1])


STEPS = {step.__name__: step for step in (first, other, back, again, named_back, named_again)}


def main() -> int:
    options = cluster.options(__doc__, STEPS).parse_args()
    return cluster.run_steps("switch", Bench(options.beside), STEPS, options)


if __name__ == "__main__":
    sys.exit(main())
