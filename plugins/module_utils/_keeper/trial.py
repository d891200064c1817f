# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The trial of another configuration: its first minutes, in which it may not grow, hang or die. Pure.

A start, a first token and a first comparison are over when it begins: who has placed the configuration has seen them.
What shows later the keeper alone is there to see.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

LASTS_S = 1200.0  # whoever hangs after ten minutes is known to hang ten minutes later (engine_hang_seconds)
SAMPLE_S = 30.0
PARTS = 4  # the first is for kernels and graphs that are made with the first requests
LEAST = 256 * 2**20  # bytes in each of the others: 3 GiB an hour; an assumption
GROWS = "memory_grows"  # of the table of rules
EVENT = "trial"  # of the keeper's history, and what it finds itself
BY_HAND = "the plan before comes back with: ansible-playbook playbooks/rollback.yml"
# Faults of what runs. A node that is gone, or a rank that somebody started by hand, says nothing about it.
FAULTS = ("start", "dead", "closed", "hang")


@dataclass
class Trial:
    """``began``: by the keeper's clock. ``available``: bytes of memory, by node."""

    began: float
    sampled: float = 0.0
    available: dict[str, list[int]] = field(default_factory=dict)

    def see(self, now: float, available: Iterable[tuple[str, int]]) -> None:
        if now - self.sampled < SAMPLE_S:
            return
        self.sampled = now
        for host, size in available:
            self.available.setdefault(host, []).append(size)

    def over(self, now: float) -> bool:
        return now - self.began >= LASTS_S

    def growth(self) -> tuple[str, str]:
        """(node that loses memory all the time, how much in words); empty where none does."""
        for host, sizes in self.available.items():
            lost = leaks(sizes)
            if lost:
                minutes = (len(sizes) - 1) * SAMPLE_S / 60
                less = f"{lost / 2**30:.1f} GiB less memory than {minutes:.0f} minutes ago"
                return host, f"{host} has {less}, and loses more all the time"
        return "", ""


def leaks(sizes: list[int]) -> int:
    """Bytes that are gone; 0 unless each part of the time but the first has taken its share.

    By the middle of each part: one request with a picture takes memory for a moment.
    """
    each = len(sizes) // PARTS
    if each < 2:
        return 0
    middles = [sorted(sizes[number * each : (number + 1) * each])[each // 2] for number in range(PARTS)]
    steps = [before - after for before, after in zip(middles, middles[1:])]
    return sizes[0] - sizes[-1] if all(step >= LEAST for step in steps) else 0
