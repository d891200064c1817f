# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node peer``: what another node of the cluster may run here, over ssh with its own key.

It is the forced command of every peer's key (``command="…"`` in authorized_keys), so what the peer asked for is in
SSH_ORIGINAL_COMMAND and is compared word for word with a short list; nothing is given to a shell. Whose key it is
stands in the command: what starts, stops and reads logs is for the head of the cluster, and the head of the service
that has ranks here. A worker that was taken over can say next to nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.paths import NODE_PROGRAM as TOOL
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, rank

HELP = "run a subcommand for a peer that logged in with its node's key"
# What a peer asks for -> what is run. Those with sudo are listed in /etc/sudoers.d/sparkmatrix-peer, word for word.
ALLOWED: Mapping[str, Sequence[str]] = {
    "version": (TOOL, "--version"),
    "fabric-status": ("sudo", "-n", TOOL, "fabric-status"),
    "drop-caches": ("sudo", "-n", TOOL, "drop-caches"),
    "logs-follow": ("sudo", "-n", TOOL, "logs", "--peer", "follow"),
    "logs-last": ("sudo", "-n", TOOL, "logs", "--peer", "last"),
    "logs-ray": ("sudo", "-n", TOOL, "logs", "--peer", "ray"),
    "top": ("sudo", "-n", TOOL, "top", "--peer"),
    "rank-kill": ("sudo", "-n", TOOL, "rank", "kill"),
    "rank-start": ("sudo", "-n", TOOL, "rank", "start"),
    "rank-status": ("sudo", "-n", TOOL, "rank", "status"),
    "rank-stop": ("sudo", "-n", TOOL, "rank", "stop"),
    "rank-watch": ("sudo", "-n", TOOL, "rank", "watch"),
    "switch-check": ("sudo", "-n", TOOL, "switch", "check"),
    "switch-place": ("sudo", "-n", TOOL, "switch", "place"),
    "model": ("sudo", "-n", TOOL, "artifacts", "serve"),
    "drift": ("sudo", "-n", TOOL, "drift", "--peer"),
}
TOLD = ("model", "switch-check", "switch-place")  # that read what the peer says
COMMON = ("version", "fabric-status", "rank-status", "model")  # for every node
REFUSED = 126


def configure(parser: argparse.ArgumentParser) -> None:
    """What a peer wants is in SSH_ORIGINAL_COMMAND."""
    # Without a name the line is of an earlier release, until the layer access has run.
    parser.add_argument("host", nargs="?", default="", help="whose key it is")
    parser.add_argument("--head", action="store_true", help="that is the head of the cluster")


def words(host: str, head: bool, config: str) -> list[str]:
    """What this peer may ask for. ``config``: of the service whose ranks peers ask for on this node."""
    if head:
        return list(ALLOWED)
    if not host:  # an earlier release knew of no switch
        return [word for word in ALLOWED if not word.startswith("switch-")]
    try:
        leads = engine_json.read(config).ordered[0].host == host
    except SparkError:  # no service here
        leads = False
    return list(ALLOWED if leads else COMMON)


def sudoers(user: str) -> str:
    """/etc/sudoers.d: the exact commands, without wildcards."""
    lines = [", ".join(" ".join(argv[2:]) for argv in ALLOWED.values() if argv[0] == "sudo")]
    return f"# Managed by sparkmatrix.cluster (role peers).\n{user} ALL=(root) NOPASSWD: {lines[0]}\n"


def run(arguments: argparse.Namespace) -> int:
    allowed = words(arguments.host, arguments.head, rank.config())
    asked = os.environ.get("SSH_ORIGINAL_COMMAND", "").strip()
    if asked not in allowed:
        sys.stderr.write(f"Not allowed. This peer may ask for: {', '.join(allowed)}\n")
        return REFUSED
    argv = ALLOWED[asked]
    # What it prints goes to the peer as it comes. Who reads a model asks for its files, who switches names one.
    given = None if asked in TOLD else subprocess.DEVNULL
    return subprocess.call(list(argv), stdin=given)  # pylint: disable=ansible-bad-function
