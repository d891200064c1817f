# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node fabric-restore``: take back a change of the fabric that nobody confirmed.

Called by the timer that every change arms, by the boot unit, and by hand when a node shall not wait for its timer.
"""

from __future__ import annotations

import argparse
import sys

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import rollback

HELP = "take back a change of the fabric that nobody confirmed"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--boot", action="store_true", help="the network does not run yet: files only")
    parser.add_argument("--transaction", default="", metavar="ID", help="only if this one is pending")


def run(arguments: argparse.Namespace) -> int:
    try:
        left = rollback.restore(Machine(), arguments.transaction, boot=arguments.boot)
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    if left is None:
        sys.stdout.write("No change of the fabric is pending\n")
        return 0
    sys.stdout.write("The change of the fabric was taken back: nobody confirmed it\n")
    for line in left:
        sys.stdout.write(f"Not as before: {line}\n")
    return 0
