# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node artifacts``: the long work on models that Ansible starts on this node, and how far it is."""

from __future__ import annotations

import argparse
import json
import sys

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import from_controller, from_node, work
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

HELP = "download, copy and check models, and how far that is"


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions.add_parser("work", help="do what Ansible has left in a file; started by Ansible")
    actions.add_parser("serve", help="let another node read the model that is offered; for sparkmatrix-node peer")
    from_controller.configure(actions.add_parser("receive", help="take a model that Ansible sends; started by Ansible"))
    one = actions.add_parser("status", help="how far the work on a model on this node is")
    one.add_argument("--json", action="store_true", help="for programs")


def run(arguments: argparse.Namespace) -> int:
    """0: done, or told. 1: not, and why."""
    try:
        if arguments.action == "status":
            return _status(arguments.json)
        if arguments.action == "serve":
            from_node.give_way()
            from_node.serve()
        return from_controller.run(arguments) if arguments.action == "receive" else work.run()
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1


def _status(as_json: bool) -> int:
    now = work.progress()
    if as_json:
        sys.stdout.write(f"{json.dumps({'work': document.plain(now) if now else None})}\n")
        return 0
    lines = work.words(now) if now else ["no model is being fetched, copied or checked"]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0
