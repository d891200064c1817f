# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What Ray and the engine may do on a node: run models, write into their own directories, talk to the network.

Units of systemd and containers of Compose. Locked memory for RDMA comes from the limit, so a unit needs no capability;
GPU and verbs devices stay as they are. ``systemd-analyze security`` says what is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import unit_sandbox
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import systemd_quoting

_HOME = re.compile(r"(?:^|[^\w./-])/(?:home|root|run/user)(?:/|$)")  # a path in one, anywhere in a word
_UNIT = (
    "# No privileges, now or later. Devices are not restricted: those of the GPU have no fixed numbers.",
    *unit_sandbox.ANY,
    "CapabilityBoundingSet=",
    "ProtectHostname=yes",
    "ProtectProc=invisible",
    "# NCCL, Gloo and Ray; verbs ask for their devices through netlink.",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "# They need privileges that it has not; refused like that, and not by a signal.",
    "SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap",
    "SystemCallErrorNumber=EPERM",
    "ProtectSystem=strict",
)
# Of what Docker gives to a container, what root needs for files of the service user and for its own processes.
_KEPT = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
_PIDS = 16384  # threads of all ranks of a node; a few thousand are usual


def unit(writable: Iterable[str], named: Iterable[str]) -> list[str]:
    """``writable``: directories; ``named``: words that may hold another path which it reads."""
    directories = sorted({path for path in writable if path})
    hidden = not any(_HOME.search(word) for word in [*directories, *named])
    return [
        *_UNIT,
        f"ReadWritePaths={' '.join(systemd_quoting.path(path) for path in directories)}",
        "ProtectHome=yes" if hidden else "ProtectHome=read-only",
    ]


def container() -> dict[str, Any]:
    return {
        "cap_drop": ["ALL"],
        "cap_add": [*_KEPT, "IPC_LOCK"],
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": _PIDS,
    }
