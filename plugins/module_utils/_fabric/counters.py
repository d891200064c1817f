# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a half counts of losses, repeats and pauses. Only what is added during a measurement means something: a healthy
machine has old counts, from every time that a cable was pulled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Number
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import Rail

# Packets that came out of order or not at all, and had to be sent again (mlx5, hw_counters).
REPEATED = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err", "implied_nak_seq_err")
# Packets that a port has dropped (counters of the port, and ethtool -S).
DROPPED = ("port_rcv_errors", "port_xmit_discards", "rx_discards_phy", "rx_crc_errors_phy")
PAUSED = re.compile(r"rx_(?:global|prio[0-7])_pause_duration")  # microseconds in which this port had to be silent
STORMS = ("tx_pause_storm_warning_events", "tx_pause_storm_error_events")
MOVED = ("port_xmit_data", "port_rcv_data")
_WORD = 4  # bytes: what both count (ib_port_attr, linux/Documentation/ABI/stable/sysfs-class-infiniband)
_LINE = re.compile(r"^\s*(\w+):\s*([0-9]{1,20})\s*$", re.MULTILINE)
_COUNTER = re.compile(r"[a-z][a-z0-9_]{0,62}")

Counts = Mapping[str, int]


@dataclass(frozen=True)
class Moved:
    """Bytes in and out of a half, RDMA's and Ethernet's together."""

    received: Number = 0
    sent: Number = 0


def _place(machine: Machine, device: str, port: int) -> Path:
    return machine.sysfs / "class/infiniband" / device / "ports" / str(port)


def moved(machine: Machine, device: str, port: int) -> int | None:
    """Bytes that RDMA has moved in both directions; None where they are not counted."""
    words = [sysfs.read_int(_place(machine, device, port) / "counters" / name) for name in MOVED]
    return None if None in words else sum(word or 0 for word in words) * _WORD


def both_ways(machine: Machine, rail: Rail) -> Moved:
    place = _place(machine, rail.rdma_device, rail.rdma_port) / "counters"
    sent, received = (sysfs.read_int(place / name) or 0 for name in MOVED)
    port = machine.sysfs / "class/net" / rail.netdev / "statistics"
    seen, told = (sysfs.read_int(port / name) or 0 for name in ("rx_bytes", "tx_bytes"))
    return Moved(received * _WORD + seen, sent * _WORD + told)


def hardware(machine: Machine, device: str, port: int) -> dict[str, int]:
    """All that the adapter counts of RDMA by itself (mlx5, hw_counters): losses, repeats, congestion."""
    place = _place(machine, device, port) / "hw_counters"
    names = sorted(path.name for path in place.glob("*")) if place.is_dir() else []
    found = {name: sysfs.read_int(place / name) for name in names if _COUNTER.fullmatch(name)}
    # How long the kernel keeps what it has read, in milliseconds, is no counter.
    return {name: count for name, count in found.items() if count is not None and name != "lifespan"}


def read(machine: Machine, device: str, port: int, netdev: str) -> dict[str, int]:
    """What there is of all that; ``bytes`` are those of RDMA, in both directions."""
    place = _place(machine, device, port)
    named = {
        name: sysfs.read_int(place / folder / name)
        for folder, group in (("hw_counters", REPEATED), ("counters", DROPPED[:2]))
        for name in group
    }
    found = {name: count for name, count in named.items() if count is not None}
    moved_bytes = moved(machine, device, port)
    if moved_bytes is not None:
        found["bytes"] = moved_bytes
    for name, count in _LINE.findall(machine.runner(["ethtool", "-S", netdev]).out):
        if name in DROPPED or name in STORMS or PAUSED.fullmatch(name):
            found[name] = int(count)
    return found


def added(before: Counts, after: Counts) -> dict[str, int]:
    """What was counted between the two. One that went back was reset meanwhile, and is left out."""
    return {name: count - before[name] for name, count in after.items() if name in before and count >= before[name]}


def total(counts: Counts, names: Sequence[str]) -> int:
    return sum(counts.get(name, 0) for name in names)


def paused_us(counts: Counts) -> int:
    """The longest: several priorities may be silent at the same time."""
    return max((count for name, count in counts.items() if PAUSED.fullmatch(name)), default=0)
