# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What NCCL says of itself with ``NCCL_DEBUG=INFO``: which network it took, over which devices, and what went wrong.

Its words are those of NCCL 2.18 to 2.30 (src/plugin/net.cc, src/transport/net.cc, net_ib/init.cc, bootstrap.cc).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Words

MAX_EVIDENCE = 12  # lines
MAX_LINE = 240  # characters
# Time, machine and place in the source stand before a line, or nothing.
_LINE = re.compile(r"(?:\[[\d :-]+\] )?(?:\S+:\d+:\d+ \[\d+\] )?(?:(\S+\.cc:\d+) )?(?:NCCL (?:INFO|WARN) )?(.*)")
_CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\].* via (?:NET/([^/]+)/(\d+)|(\w+)/?\w*)")
_DEVICES = re.compile(r"\[(\d+)\]([\w.-]+):\d+")
# What a line begins with -> the field that it tells, by its group where there is one; none: it is only telling.
_SIGNS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"NCCL version (\S+?)(?:\+cuda\S*)?$", "version"),
        (r"NCCL git version (\S+)", "branch"),
        (r"Using network (.+)", "network"),
        (
            r"(?:NET/Plugin: Loaded net plugin|Successfully loaded external (?:network )?plugin) (?!(?:IB|Socket)\b)"
            r"(.+?)(?: \(v\d+\))?$",
            "plugin",
        ),
        # The name that everybody looks for, without being asked to, is no loss; nor is none.
        (r"NET/Plugin ?: Could not find: (?!none\b|libnccl-net\.so)([^\s.]+)", "plugin_missing"),
        (r"NET/IB : No device found", "no_device"),
        (r".*no socket interface found", "no_interface"),
        (r"Connected all rings", "rings"),
        (r"Connected all trees", "trees"),
        (r"Failed to initialize NET plugin|Failed to open libibverbs|NET/Socket : Using|NCCL_(?:NET|IB_|SOC)", ""),
    )
)
# NCCL's own, and NVIDIA's plug-in: IBext_v10, or by its other name "NCCL RDMA Plugin v10".
_RDMA = ("IB", "NCCL RDMA Plugin")


@dataclass(frozen=True)
class Log:
    """Empty texts were not said. ``network`` is NCCL's name for it, ``via`` what channels go through."""

    version: Words = ""
    branch: Words = ""  # of the source that it was built from
    network: Words = ""
    plugin: Words = ""  # from outside of NCCL, that was loaded
    plugin_missing: Words = ""  # that was asked for by name, and not found
    devices: tuple[Words, ...] = ()  # RDMA
    via: tuple[Words, ...] = ()  # NET/IB, NET/Socket, P2P, SHM
    used: tuple[Words, ...] = ()  # RDMA devices that a channel goes through
    no_device: Flag = False  # NCCL's own InfiniBand found no adapter that it may use
    no_interface: Flag = False
    rings: Flag = False  # all are connected
    trees: Flag = False
    trouble: tuple[Words, ...] = ()  # warnings
    evidence: tuple[Words, ...] = ()  # lines as they were, the most telling ones

    @property
    def transport(self) -> str:
        """Between the nodes. On one node NCCL names a network, too, and uses none."""
        over = next((name for name in self.via if name.startswith("NET/")), "")
        return over or (self.via[0] if self.via else f"NET/{self.network}" if self.network else "")

    @property
    def between_nodes(self) -> bool:
        """Shared memory and P2P stay on one machine."""
        return self.transport.startswith("NET/")

    @property
    def over_rdma(self) -> bool:
        return self.transport.startswith(tuple(f"NET/{name}" for name in _RDMA))

    @property
    def development(self) -> bool:
        """No release: neither a suffix after the number nor the name of a branch is in those."""
        return bool(re.search("[A-Za-z]", self.version)) or bool(re.search(r"(?i)\b(dev|master|main|rc)", self.branch))


def parse(text: str) -> Log:
    """Of one rank or several, also in between other output."""
    found: dict[str, Any] = {}
    devices: dict[str, str] = {}
    # In the order in which they came, each once.
    via: dict[str, None] = {}
    used: dict[str, None] = {}
    trouble: dict[str, None] = {}
    evidence: dict[str, None] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        source, said = (match[1], match[2]) if match else ("", "")
        telling, channel = _sign(said, found), _CHANNEL.match(said)
        if said.startswith("NET/IB : Using "):
            devices.update(_DEVICES.findall(said.partition("OOB")[0]))
            telling = True
        elif channel:
            name = f"NET/{channel[1]}" if channel[1] else channel[3]
            telling = name not in via
            via[name] = None
            if channel[1] and channel[1].startswith(_RDMA):
                telling = telling or channel[2] not in used
                used[channel[2]] = None
        elif source or "failed with error" in said:
            telling = said[:MAX_LINE] not in trouble
            trouble[said[:MAX_LINE]] = None
        if telling:
            evidence[line.strip()[:MAX_LINE]] = None
    return Log(
        **found,
        devices=tuple(dict.fromkeys(devices.values())),
        via=tuple(via),
        used=tuple(dict.fromkeys(devices[number] for number in used if number in devices)),
        trouble=tuple(trouble)[:MAX_EVIDENCE],
        evidence=tuple(evidence)[-MAX_EVIDENCE:],
    )


def _sign(said: str, found: dict[str, Any]) -> bool:
    """Whether the line tells something; what it tells goes into the mapping."""
    for pattern, name in _SIGNS:
        match = pattern.match(said)
        if match:
            if name:
                found[name] = match[1] if match.groups() else True
            return True
    return False
