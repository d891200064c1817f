# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What only root can do before Ray or an engine starts: units of their own, in which nobody's variables are.

A line with ``+`` in the unit of Ray or the engine would be root with all variables of that unit, a recipe's among them,
and OpenSSL, the loader and others take code from variables. Both come with the node tool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths, strict, unit_sandbox
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Mount
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import systemd_quoting

DROP_CACHES = "sparkmatrix-drop-caches.service"
GPU_DEVICES = "sparkmatrix-gpu-devices.service"
_NVIDIA = "/usr/bin/nvidia-modprobe"


def before_start() -> list[str]:
    """Lines of the unit that needs it, at every start and restart: neither stays active. No reason not to start."""
    units = f"{DROP_CACHES} {GPU_DEVICES}"
    return [f"Wants={units}", f"After={units}"]


def nosuid(mounts: Iterable[Mount]) -> list[str]:
    """Of a container's unit, which is root's."""
    written = " ".join(systemd_quoting.argument(mount.source) for mount in mounts if not mount.read_only)
    return ["# Its root could leave setuid files there.", f"ExecStartPre={paths.NODE_PROGRAM} nosuid {written}"]


def units() -> dict[str, str]:
    """Path and content."""
    drop = _unit(
        "Give the page cache back, for a GPU that shares the memory",
        [f"ExecStart={paths.NODE_PROGRAM} drop-caches", "TimeoutStartSec=60", *unit_sandbox.DROP_CACHES],
    )
    devices = _unit(
        "Make the devices of the GPU that are missing after a boot",
        [
            "# CUDA calls this setuid program; in the engine's unit it could not. Each may fail without the other.",
            f"ExecStart=-{_NVIDIA} -c 0 -c 255",
            f"ExecStart=-{_NVIDIA} -u -c 0",
            "TimeoutStartSec=30",
            *unit_sandbox.GPU_DEVICES,
        ],
        f"ConditionPathExists={_NVIDIA}",
    )
    return {f"{paths.UNITS}/{DROP_CACHES}": drop, f"{paths.UNITS}/{GPU_DEVICES}": devices}


def _unit(description: str, service: Sequence[str], *conditions: str) -> str:
    lines = [
        "# Managed by sparkmatrix.cluster. Started by Ray and the engine, before each of their starts.",
        "[Unit]",
        f"Description={description}",
        *conditions,
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=oneshot",
        *service,
    ]
    return strict.lines(lines, description)
