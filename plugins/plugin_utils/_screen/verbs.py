# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The verbs of the command ``sparkmatrix``: which playbook each runs, what it is for, and what messages call it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import spelling

COMPLETE = "_SPARKMATRIX_COMPLETE"  # a shell asks for words to complete
CALLED_BY = "SPARKMATRIX_COMMAND"  # how the user called it, for what a run tells people to type next
GOES_ON = "SPARKMATRIX_GOES_ON"  # another playbook follows by itself
OTHERS = "ansible"  # any other playbook, by its name
# In the order of the help: the playbook, where it is one, and what it is for. Messages of runs do not name those of
# init, which refuses where an inventory is.
VERBS: Mapping[str, tuple[str, str]] = {
    "init": ("", "Find machines and cables, and write an inventory."),
    "plan": ("plan", "Does it fit, how fast is it, what would change."),
    "models": ("recipes", "Models that fit, the fastest first."),
    "check": ("preflight", "What is missing, and what to do. Changes nothing."),
    "up": ("site", "Set the machines up, serve the model, ask it."),
    "run": ("upgrade", "Serve another model, and keep it in the inventory."),
    "ask": ("", "Ask the model, and read its answer."),
    "env": ("", 'Address and key for your shell: eval "$(sparkmatrix env)". Opens a tunnel.'),
    "status": ("status", "Does it serve, and how is each part."),
    "top": ("", "Load, memory and speed of all machines, live."),
    "logs": ("", "Journals of all machines: --follow, --lines 200, --part keeper."),
    "bench": ("benchmark", "Measure cables and model, and judge the figures."),
    "doctor": ("doctor", "What is wrong, why, and what to do."),
    "report": ("report", "The last findings as a page (HTML)."),
    "support": ("support", "One file for somebody who is to help."),
    "stop": ("stop", "Stop the model; it stays stopped over reboots."),
    "start": ("start", "Start it again, and wait for a token."),
    "update": ("os_update", "Kernel, driver and firmware, with a way back."),
    "undo": ("reset", "Give back all that was changed."),
    OTHERS: ("", "Any other playbook by its name, such as node_add."),
}
NAMED = {playbook: verb for verb, (playbook, _help) in VERBS.items() if playbook}
OPTIONS = "Further options are those of ansible-playbook: -e, --tags, --limit, --check, --diff, -v."
# What of a message is shorter as an option of a verb.
SHORT = {
    "-e engine_plan_details=true": "--details",
    "-e recipes_search=coding": "{} models coding",
    " -i INVENTORY": "",
    "-e engine_recipe=NAME": "NAME",
    **{f"plan.yml -i inventories/{nodes}spark": f"plan.yml --nodes {nodes}" for nodes in (1, 2, 4, 8)},
    "plan.yml -i inventories/3spark_ring": "plan.yml --nodes 3",
}


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    near = spelling.closest(name, known)
    meant = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(known)}"
    return f"There is no {what} {name}. {meant}"


def called() -> str:
    """This command, as it can be typed again."""
    if COMPLETE in os.environ:
        return "sparkmatrix"
    if "/archive-v" in sys.prefix:  # a place that uv makes for one call
        return "uvx sparkmatrix"
    if "/pipx/" in sys.prefix and "/venvs/" not in sys.prefix:
        return "pipx run sparkmatrix"
    found, near = shutil.which("sparkmatrix"), os.path.relpath(sys.argv[0])
    if found and os.path.realpath(found) == os.path.realpath(sys.argv[0]):
        return "sparkmatrix"
    return sys.argv[0] if near.startswith("..") else near
