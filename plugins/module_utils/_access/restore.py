# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node access-restore``: take back a change of ssh and the firewall that no fresh login confirmed.

Called by the timer that every change arms, by the boot unit, and by hand by who does not want to wait for the timer.
"""

from __future__ import annotations

import argparse
import sys

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import rollback
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

HELP = "take back a change of ssh and the firewall that nobody confirmed"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--boot", action="store_true", help="neither firewall nor sshd runs yet: files only")
    parser.add_argument("--transaction", default="", metavar="ID", help="only if this one is pending")


def run(arguments: argparse.Namespace) -> int:
    try:
        done = rollback.restore(Machine(), arguments.transaction, boot=arguments.boot)
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    said = "The change of ssh and the firewall was taken back: nobody confirmed it" if done else "No change is pending"
    sys.stdout.write(f"{said}\n")
    return 0
