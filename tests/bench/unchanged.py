#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How long does a run take that changes nothing?

    sudo .venv/bin/python tests/bench/unchanged.py [--keep]

Boots four simulated Sparks, runs site.yml with firewall and gateway, then measures site.yml and site.yml --tags fabric.
Fails above the limits, which are for a calm machine with two processors that the nodes share with the controller.
``--keep`` uses a cluster that is up and leaves it.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/lab"))

import cluster

INVENTORY = "molecule/site/inventory"  # firewall and gateway
SITE_S, FABRIC_S, CALLS = 30, 12, 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--keep", action="store_true")
    keep = parser.parse_args().keep
    try:
        if not keep:
            cluster.build()
            cluster.boot()
        runs = {
            name: cluster.play(f"bench-{name}", "-i", INVENTORY, *options, show=False)
            for name, options in (("first", ()), ("site", ()), ("fabric", ("--tags", "fabric")))
        }
    finally:
        if not keep:
            subprocess.run(cluster.lab("down"), cwd=ROOT, check=False)
    measured = {
        name: {"seconds": round(run.seconds, 1), "calls": run.executions_per_node(), "changed": run.changed}
        for name, run in runs.items()
    }
    print(json.dumps(measured))
    site, fabric = runs["site"], runs["fabric"]
    problems = [
        *(f"{name} failed: see .lab/bench-{name}.log" for name, run in runs.items() if run.code),
        *([f"it changed {site.stats.get('changed_tasks')}"] if site.changed or fabric.changed else []),
        *([f"site.yml took {site.seconds:.0f} s, at most {SITE_S}"] if site.seconds > SITE_S else []),
        *([f"--tags fabric took {fabric.seconds:.0f} s, at most {FABRIC_S}"] if fabric.seconds > FABRIC_S else []),
        *([f"{site.executions_per_node()} calls, at most {CALLS}"] if site.executions_per_node() > CALLS else []),
    ]
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
