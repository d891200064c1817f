# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node status``: whether the engine serves, and why it was restarted."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import run as run_command
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import STATE, Store, seconds

HELP = "say whether the engine serves, and why it was restarted"
UNIT = "sparkmatrix-keeper.service"
SHOWN = 10
SERVING = ("serving", "proving")


def collect(
    store: Store, runner: Runner = run_command, unit: str = UNIT, wall: Callable[[], float] = time.time
) -> dict[str, Any]:
    """``running``: the keeper; ``serving``: the engine, as the keeper saw it last. ``elapsed_s``: in this phase;
    ``start_elapsed_s``: in this start. Both are None where nobody counts."""
    state = store.read()
    if not state:
        raise SparkError(
            "there is no keeper on this node, or you may not read what it keeps",
            f"{store.directory}/{STATE}",
            "Ask as root on the head (spark_rank 0)",
        )
    running = runner(["systemctl", "is-active", "--quiet", unit]).rc == 0
    return {
        **state,
        "unit": unit,
        "running": running,
        "elapsed_s": elapsed(state.get("since"), wall()) if running else None,
        "start_elapsed_s": elapsed(state.get("start_since"), wall()) if running else None,
        "serving": running and state.get("phase") in SERVING,
        "history": store.history(),
    }


def elapsed(kept: Any, now: float) -> float | None:
    """Seconds since a time that was kept; None where it is none."""
    then = seconds(kept)
    return None if then is None else max(round(now - then), 0)


def _since(found: Mapping[str, Any]) -> str:
    if found.get("elapsed_s") is None:
        return f"since {found.get('since')}"
    line = f"for {found['elapsed_s']} s, since {found.get('since')}"
    if found.get("start_elapsed_s") is None:
        return line
    return f"{line}; this start for {found['start_elapsed_s']} s, at most {found.get('start_limit_s', 0):.0f} s"


def text(found: Mapping[str, Any]) -> str:
    phase, detail = found.get("phase") or "unknown", found.get("detail") or ""
    if not found["running"] and found.get("end") == "gave_up":
        first = f"The keeper gave up: {detail}"
    elif not found["running"]:
        first = "The keeper does not run, so nobody starts the engine again"
    else:
        first = f"{phase}: {detail}"
    lines = [
        first,
        f"{_since(found)}; failures in a row: {found.get('failures')} of {found.get('start_limit')}",
    ]
    if not found["running"]:
        lines.append(f"Begin anew: systemctl restart {found.get('unit', UNIT)}")
    history: Sequence[Mapping[str, Any]] = found["history"][-SHOWN:]
    lines.append("Restarts and their reasons, the last first:" if history else "No restart so far")
    for entry in reversed(history):
        back = entry.get("back_after_s")
        after = f" (served again after {back:.0f} s)" if isinstance(back, (int, float)) else ""
        reason = str(entry.get("reason", "")).splitlines()[:1]
        lines.append(f"  {entry.get('time')}  {entry.get('event')}: {''.join(reason)}{after}")
    return "\n".join(lines)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    engine_names.choose(parser)


def kept(root: str = "/") -> list[str]:
    """Services whose keeper has left something on this node; empty for the one that is alone."""
    found = [instance for instance in engine_names.instances(root) if Store(root, instance).read()]
    return found or [""]


def run(arguments: argparse.Namespace) -> int:
    chosen = [arguments.service] if arguments.service else kept()
    try:
        found = {name: collect(Store(instance=name), unit=Names(name).keeper) for name in chosen}
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    serving = all(one["serving"] for one in found.values())
    if len(found) == 1:
        (one,) = found.values()
        engine_rank.say(json.dumps(one) if arguments.json else text(one))
    elif arguments.json:
        engine_rank.say(json.dumps({"serving": serving, "services": found}))
    else:
        engine_rank.say("\n".join(f"{name}: {text(one)}" for name, one in found.items()))
    return 0 if serving else 1
