# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The trial of another configuration: its first minutes, in which it may not grow, hang or die. Pure.

A start, a first token and a first comparison are over when it begins: who has placed the configuration has seen them.
What shows later the keeper alone is there to see.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

HANGS = 2  # times engine_hang_seconds: who hangs in the first half of it is known to hang in the second
SAMPLES = 40
PARTS = 4  # the first is for kernels and graphs that are made with the first requests
LEAST = 256 * 2**20  # bytes in each of the others: 3 GiB an hour; an assumption
# What may fill in use and is no leak: vLLM keeps 4 GiB of images (mm-processor-cache-gb, 0.33). KV caches and room for
# prefixes are taken at the start; pages of files count as available (MemAvailable, proc(5)).
ROOM = 4 * 2**30
GROWS = "memory_grows"  # of the table of rules
EVENT = "trial"  # of the keeper's history, and what it finds itself
BY_HAND = "the plan before comes back with: ansible-playbook playbooks/rollback.yml"
# Faults of what runs. A node that is gone, or a rank that somebody started by hand, says nothing about it.
FAULTS = ("start", "dead", "closed", "hang")


@dataclass
class Trial:
    """``began``: by the keeper's clock. ``available``: bytes of memory, by node."""

    began: float
    lasts_s: float
    sampled: float = 0.0
    available: dict[str, list[int]] = field(default_factory=dict)

    def see(self, now: float, available: Iterable[tuple[str, int]]) -> None:
        if now - self.sampled < self.lasts_s / SAMPLES:
            return
        self.sampled = now
        for host, size in available:
            self.available.setdefault(host, []).append(size)

    def over(self, now: float) -> bool:
        return now - self.began >= self.lasts_s

    def losing(self) -> tuple[str, int]:
        """The node that loses memory all the time, and bytes; 0 where none does. Up to ``ROOM`` it may come to rest."""
        found = [(leaks(sizes), host) for host, sizes in self.available.items()]
        lost, host = max(found, default=(0, ""))
        return host, lost


def leaks(sizes: list[int]) -> int:
    """Bytes that are gone; 0 unless of the last samples each part but the first has taken its share.

    By the middle of each part: one request with a picture takes memory for a moment.
    """
    last = sizes[-SAMPLES:]
    each = len(last) // PARTS
    if each < 2:
        return 0
    middles = [_middle(last[number * each :][:each]) for number in range(PARTS)]
    steps = [before - after for before, after in zip(middles, middles[1:])]
    return _middle(sizes[:each]) - sizes[-1] if all(step >= LEAST for step in steps) else 0


def _middle(sizes: list[int]) -> int:
    return sorted(sizes)[len(sizes) // 2]
