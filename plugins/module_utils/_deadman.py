# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What every change that may cut off its own connection needs: a timer and a boot unit that take it back.

The timer counts on the node, so a controller that is gone cannot keep it from firing. The boot unit does the same after
a power cut, before the network starts; it does nothing unless the marker of a pending change is there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric_machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed_files import File

TOOL = "/usr/local/lib/sparkmatrix/sparkmatrix-node"
_UNITS = "/etc/systemd/system"
_RETRY_S = 5  # between two attempts of a restore that failed


def start(machine: Machine, unit: str, seconds: float, what: str, argv: Sequence[str]) -> None:
    """Run the node tool with ``argv`` in ``seconds``, again and again until it succeeds, unless :func:`stop` comes."""
    machine.command(
        "systemd-run",
        "--quiet",
        "--collect",
        f"--unit={unit}",
        f"--description={what}",
        f"--on-active={seconds:g}s",
        "--timer-property=AccuracySec=100ms",
        "--property=Restart=on-failure",
        f"--property=RestartSec={_RETRY_S}",
        TOOL,
        *argv,
        step="arming the rollback",
        remedy="See systemctl status; nothing was changed",
    )


def stop(machine: Machine, unit: str) -> None:
    # It may have ended just now. If it cannot be stopped, it finds no marker with its id.
    machine.works("systemctl", "stop", f"{unit}.timer")


def boot_paths(unit: str) -> tuple[str, str]:
    """The boot unit and the link that enables it."""
    return f"{_UNITS}/{unit}-boot.service", f"{_UNITS}/sysinit.target.wants/{unit}-boot.service"


def boot_files(unit: str, *, role: str, what: str, marker: str, command: str, before: str) -> list[File]:
    """The boot unit, enabled. ``what`` completes "Take back …", ``before`` names units that must not run yet."""
    text = f"""\
# Written by the role {role} of sparkmatrix.cluster. Does nothing unless {what} was interrupted.
[Unit]
Description=Take back {what} that was interrupted
DefaultDependencies=no
ConditionPathExists={marker}
RequiresMountsFor=/var/lib/sparkmatrix {os.path.dirname(TOOL)}
After=local-fs.target systemd-sysctl.service
Before={before} shutdown.target
Wants=network-pre.target
Conflicts=shutdown.target

[Service]
Type=oneshot
ExecStart={TOOL} {command} --boot
TimeoutStartSec=60

[Install]
WantedBy=sysinit.target
"""
    path, link = boot_paths(unit)
    return [File(path, content=text.encode()), File(link, link_to=path)]
