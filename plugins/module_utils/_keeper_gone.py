# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Ranks whose process is gone while the units run on, from what the nodes report. Pure.

Ray, and the engine on the head, outlive a rank on a worker. vLLM ends itself when it notices; it has been seen to wait
for the dead one instead (pipeline over Ray, 0.32), and to answer /health.
"""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import RUNNING, Gone, Member


class Watched:
    """The processes of the ranks from the first token of a start until its end."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str, str], str] = {}  # host, unit, process: name
        self.gone: dict[tuple[str, str, str], float] = {}

    def see(self, members: Sequence[Member], now: float) -> list[Gone]:
        """Those that are gone, the first one first. A node that is silent tells nothing."""
        for member in members:
            for unit, found in member.units.items() if member.seen else ():
                if found.get("active") in RUNNING and "ranks" in found:
                    self._see(member.host, unit, found["ranks"], now)
        ordered = sorted(self.gone, key=lambda key: self.gone[key])
        return [Gone(key[0], f"{self.known[key]} ({key[1]})", self.gone[key]) for key in ordered]

    def _see(self, host: str, unit: str, ranks: dict[str, str], now: float) -> None:
        self.known.update({(host, unit, one): name for one, name in ranks.items()})
        for key in self.known:
            if key[:2] == (host, unit) and key[2] not in ranks:
                self.gone.setdefault(key, now)
