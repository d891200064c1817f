# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix-node fabric-forward``: let the packets of other nodes pass between the fabric interfaces.

Only a node whose fabric fact says ``forwarding`` relays. Docker sets the policy of the FORWARD chain to DROP, and so
does ufw, so each pair of fabric interfaces gets an ACCEPT of its own there, marked with our comment. The kernel forgets
rules when it reboots; a unit calls this subcommand at boot.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH, load
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File

HELP = "let fabric traffic of other nodes pass, as the fabric fact says"
COMMENT = "sparkmatrix:fabric"
NO_PROGRAM = 127
_NAME = "sparkmatrix-fabric-forward.service"
UNIT = f"{paths.UNITS}/{_NAME}"

_TEXT = f"""\
# Written by the role fabric of sparkmatrix.cluster.
[Unit]
Description=Let fabric traffic of other nodes pass
After=network-pre.target docker.service ufw.service nftables.service

[Service]
Type=oneshot
ExecStart={paths.NODE_PROGRAM} fabric-forward

[Install]
WantedBy=multi-user.target
"""


def files() -> list[File]:
    """The unit, enabled."""
    return [
        File(UNIT, content=_TEXT.encode()),
        File(f"{paths.UNITS}/multi-user.target.wants/{_NAME}", link_to=UNIT),
    ]


def rules(netdevs: Sequence[str]) -> list[str]:
    """One ACCEPT per direction and pair, as ``iptables -S`` prints it without quotes."""
    pairs = [(a, b) for a in netdevs for b in netdevs if a != b]
    return [f"-i {a} -o {b} -m comment --comment {COMMENT} -j ACCEPT" for a, b in pairs]


def present(machine: Machine) -> list[str] | None:
    """Our rules in the FORWARD chain; None without iptables, then neither Docker nor ufw filters anything here."""
    done = machine.runner(("iptables", "-w", "5", "-S", "FORWARD"))
    if done.rc == NO_PROGRAM:
        return None
    if done.rc != 0:
        raise SparkError(f"reading the FORWARD chain failed: {done.complaint}", "iptables", "See iptables -S FORWARD")
    lines = [line.replace('"', "").strip() for line in done.out.splitlines()]
    return [line[len("-A FORWARD ") :] for line in lines if line.startswith("-A FORWARD ") and COMMENT in line]


def missing(machine: Machine, netdevs: Sequence[str]) -> list[str]:
    found = present(machine)
    return [] if found is None else [rule for rule in rules(netdevs) if rule not in found]


def sync(machine: Machine, netdevs: Sequence[str]) -> None:
    """Exactly the rules for ``netdevs``; none for none."""
    found = present(machine)
    if found is None:
        return
    wanted = rules(netdevs)
    for rule in found:
        if rule not in wanted:
            machine.command("iptables", "-w", "5", "-D", "FORWARD", *rule.split(), step="removing a forward rule")
    for rule in wanted:
        if rule not in found:
            machine.command("iptables", "-w", "5", "-I", "FORWARD", *rule.split(), step="adding a forward rule")


def of_fact(machine: Machine) -> list[str]:
    """The interfaces between which this node relays, from the fact on disk; none without a usable fact."""
    text = machine.read(FACT_PATH)
    with contextlib.suppress(ValueError, SparkError):
        fact = load(json.loads(text or ""), "this node")
        return [rail.netdev for rail in fact.rails] if fact.forwarding else []
    return []


def configure(parser: argparse.ArgumentParser) -> None:
    """It has no options."""


def run(_arguments: argparse.Namespace) -> int:
    machine = Machine()
    try:
        sync(machine, of_fact(machine))
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0
