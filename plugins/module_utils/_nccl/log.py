# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What NCCL says of itself with ``NCCL_DEBUG=INFO``: which network it took, over which devices, and what went wrong.

Its words are those of NCCL 2.18 to 2.30 (src/plugin/net.cc, src/transport/net.cc, net_ib/init.cc, bootstrap.cc).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.results import untagged

MOST_EVIDENCE = 12  # lines
MOST_LINE = 240  # characters
_LINE = re.compile(r"^(?:\[[\d :-]+\] )?(?:\S+:\d+:\d+ \[\d+\] )?(?:(\S+\.cc:\d+) )?NCCL (?:INFO|WARN) (.*)")
_VERSION = re.compile(r"^NCCL version (\S+?)(?:\+cuda\S*)?$", re.MULTILINE)
_CHANNEL = re.compile(r"^Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\].* via (?:NET/([^/]+)/(\d+)|(\w+)/?\w*)")
_DEVICES = re.compile(r"\[(\d+)\]([\w.-]+):\d+")
_LOADED = re.compile(
    r"^NET/Plugin: Loaded net plugin (.+?)(?: \(v\d+\))?$|^Successfully loaded external (?:network )?plugin (\S+)"
)
_NOT_FOUND = re.compile(r"^NET/Plugin ?: Could not find: (.*?)\.?\Z")
_GIT = re.compile(r"^NCCL git version (\S+)")
_TELLING = (
    *("Failed to initialize NET plugin", "Failed to open libibverbs", "NET/Socket : Using"),
    *("NCCL_NET", "NCCL_IB_", "NCCL_SOC"),
)
_MINE = ("IB", "Socket")  # networks within NCCL
# NCCL's own, and NVIDIA's plug-in: IBext_v10, or by its other name "NCCL RDMA Plugin v10".
_RDMA = ("IB", "NCCL RDMA Plugin")


@dataclass(frozen=True)
class Log:
    """Empty texts and None were not said. ``network`` is NCCL's name for it, ``via`` what channels go through."""

    version: Words = ""
    branch: Words = ""  # of the source that it was built from
    network: Words = ""
    plugin: Words = ""  # from outside of NCCL, that was loaded
    plugin_missing: Words = ""  # that was asked for by name, and not found
    devices: tuple[Words, ...] = ()  # RDMA
    via: tuple[Words, ...] = ()  # NET/IB, NET/Socket, P2P, SHM
    used: tuple[Words, ...] = ()  # RDMA devices that a channel goes through
    gpu_direct: Flag = False
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
    text = text.replace("\r", "\n")
    bare = untagged(text)
    version = _VERSION.search(bare)
    found: dict[str, Any] = {"version": version[1] if version else ""}
    devices: dict[str, str] = {}
    via: dict[str, None] = {}
    used: dict[str, None] = {}
    trouble: dict[str, None] = {}
    evidence: dict[str, None] = {}
    for line, rest in zip(text.split("\n"), bare.split("\n")):
        source, said = _said(rest)
        if not said:
            continue
        telling = _read(said, found)
        channel = _CHANNEL.match(said)
        if said.startswith("NET/IB : Using "):
            devices.update(_DEVICES.findall(said.partition("OOB")[0]))
            telling = True
        elif channel:
            name = f"NET/{channel[3]}" if channel[3] else channel[5]
            telling = name not in via
            via[name] = None
            if channel[3] and channel[3].startswith(_RDMA):
                telling = telling or channel[4] not in used
                used[channel[4]] = None
        elif source or "failed with error" in said:
            telling = said not in trouble
            trouble[said[:MOST_LINE]] = None
        if telling:
            evidence[line.strip()[:MOST_LINE]] = None
    return Log(
        **found,
        devices=tuple(dict.fromkeys(devices.values())),
        via=tuple(via),
        used=tuple(dict.fromkeys(devices[number] for number in used if number in devices)),
        trouble=tuple(trouble)[:MOST_EVIDENCE],
        evidence=tuple(evidence)[-MOST_EVIDENCE:],
    )


def _said(line: str) -> tuple[str, str]:
    """Where in NCCL's source a warning is from, and the words; excerpts in notes lack what stands before."""
    match = _LINE.match(line.strip())
    if match:
        return match[1] or "", match[2].strip()
    return "", line.strip() if line.lstrip().startswith(("NET/", "Channel ", "Using network")) else ""


def _read(said: str, found: dict[str, Any]) -> bool:
    """Whether the line tells something; what it tells goes into the mapping."""
    loaded, missing, git = (pattern.match(said) for pattern in (_LOADED, _NOT_FOUND, _GIT))
    if said.startswith("NCCL version "):
        found["version"] = said.split()[2].partition("+")[0]
    elif git:
        found["branch"] = git[1]
    elif said.startswith(("Using network ", "Using non-device net plugin ")):
        found["network"] = said.partition("Using network ")[2] or found.get("network", "")
    elif loaded and (loaded[1] or loaded[2]) not in _MINE:
        found["plugin"] = loaded[1] or loaded[2]
    elif missing:
        # The name that everybody looks for, without being asked to, is no loss; nor is none.
        wanted = (missing[1].split() or [""])[0].rstrip(".")
        if wanted in ("", "none", "libnccl-net.so"):
            return False
        found["plugin_missing"] = wanted
    elif said.startswith("NET/IB : No device found"):
        found["no_device"] = True
    elif "no socket interface found" in said:
        found["no_interface"] = True
        return False  # a warning, kept as such
    elif said.startswith("Connected all rings"):
        found["rings"] = True
    elif said.startswith("Connected all trees"):
        found["trees"] = True
    elif said.startswith(
        (
            "Failed to initialize NET plugin",
            "Failed to open libibverbs",
            "NET/Socket : Using",
            "NCCL_NET",
            "NCCL_IB_",
            "NCCL_SOC",
        )
    ):
        return True
    else:
        found["gpu_direct"] = found.get("gpu_direct", False) or "/GDRDMA" in said
        return False
    return True
