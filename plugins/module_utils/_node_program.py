# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node``: what must run on a node without Ansible. Units call its subcommands.

A subcommand is a module of this package with ``HELP``, ``configure(parser)`` and ``run(arguments) -> exit code``.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

PROGRAM = "sparkmatrix-node"
VERSION = "0.2.0"
PACKAGE = "ansible_collections.sparkmatrix.cluster.plugins.module_utils"

# Name of the subcommand -> its module. The zipapp carries these modules and all that they import.
COMMANDS: Mapping[str, str] = {
    "access-restore": "_access.rollback",
    "artifacts": "_artifacts.program",
    "ask": "_status.question",
    "drift": "_verdict.drift",
    "drop-caches": "_os.drop_caches",
    "env": "_status.endpoint",
    "evict": "_os.evict_page_cache",
    "fabric-restore": "_fabric.rollback",
    "fabric-status": "_fabric.status",
    "hub-download": "_artifacts.hub_client",
    "keep": "_keeper.loop",
    "logs": "_status.logs",
    "metrics": "_metrics.collect",
    "mpi": "_engine.mpi",
    "nosuid": "_engine.nosuid",
    "offer-images": "_artifacts.image_server",
    "peer": "_keeper.forced_command",
    "prefixes": "_keeper.prefixes",
    "probe": "_engine.probe",
    "qos-apply": "_qos.profile",
    "rank": "_engine.rank",
    "relay": "_gateway.relay",
    "status": "_status.node",
    "switch": "_engine.switch",
    "top": "_status.top",
    "watch-memory": "_os.memory_watchdog",
}


def parser(asked: str = "") -> argparse.ArgumentParser:
    """Of the subcommand that is asked for, which then imports nothing of the others; of all where it is none."""
    top = argparse.ArgumentParser(prog=PROGRAM, description="Node side of sparkmatrix.cluster.")
    top.add_argument("--version", action="version", version=f"{PROGRAM} {VERSION}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in [asked] if asked in COMMANDS else COMMANDS:
        module: Any = importlib.import_module(f"{PACKAGE}.{COMMANDS[name]}")
        command = commands.add_parser(name, help=module.HELP, description=module.HELP.capitalize() + ".")
        module.configure(command)
        command.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str]) -> int:
    """Run one subcommand; 0 done, 1 refused by the system, 2 wrong usage."""
    arguments = parser(next(iter(argv), "")).parse_args(argv)
    return int(arguments.run(arguments))
