# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Ranks whose process is gone while the units run on, from what the nodes report. Pure.

Ray, and the engine on the head, outlive a rank on a worker. vLLM ends itself when it notices; it has been seen to wait
for the dead one instead (pipeline over Ray, 0.32), and to answer /health.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.decide import RUNNING, Gone, Member

# From the first token on, for which all ranks are there: until each node has looked for them and told. What comes later
# was begun by somebody beside the engine, and ends when he likes.
LEARN_S = 30.0


class Watched:
    """The processes of the ranks of one start, those that were there before ``until``."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.invocations: dict[tuple[str, str], str] = {}  # host, unit
        self.names: dict[tuple[str, str, str], str] = {}  # host, unit, process
        self.missed: dict[tuple[str, str, str], float] = {}  # since when

    def see(self, members: Sequence[Member], now: float) -> list[Gone]:
        """Those that are gone, the first one first. A node that is silent, or cannot tell yet, misses nobody."""
        for member in members:
            for unit, found in member.units.items() if member.seen else ():
                if found.active in RUNNING and found.looked:
                    self._anew((member.host, unit), found.invocation)
                    self._see((member.host, unit), found.ranks, now)
        ordered = sorted(self.missed, key=lambda key: self.missed[key])
        return [Gone(key[0], f"{self.names[key]} ({key[1]})", self.missed[key]) for key in ordered]

    def _anew(self, where: tuple[str, str], invocation: str) -> None:
        """A unit that somebody else has started again has other processes."""
        if self.invocations.get(where, invocation) != invocation:
            self.names = {key: name for key, name in self.names.items() if key[:2] != where}
            self.missed = {key: since for key, since in self.missed.items() if key[:2] != where}
        self.invocations[where] = invocation

    def _see(self, where: tuple[str, str], ranks: Mapping[str, str], now: float) -> None:
        if now < self.until:
            self.names.update({(*where, one): name for one, name in ranks.items()})
        for key in self.names:
            if key[:2] == where and key[2] in ranks:
                self.missed.pop(key, None)
            elif key[:2] == where:
                self.missed.setdefault(key, now)
