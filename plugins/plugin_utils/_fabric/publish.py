# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which fabric fact counts at the end of a run: what later layers get, what is written, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.apply import Outcome

TAKEN_BACK = "The configuration of before this run is active again."
NOTHING_CHANGED = "This run had changed no interface, so nothing was taken back."
ByHost = Mapping[str, Outcome]


@dataclass(frozen=True)
class Published:
    facts: dict[str, Any]  # by host, for the layers that follow
    texts: dict[str, str]  # by host, of the fact's file; hosts whose file stays as it is are missing
    changed: list[str]  # hosts whose interfaces this run has changed
    refusal: str  # empty when the fabric works


def publish(
    planned: Mapping[str, Any], compared: ByHost, applied: ByHost, verified: Mapping[str, Any] | None
) -> Published:
    """``planned`` and ``verified`` are results of the planners, ``compared`` and ``applied`` those before the change
    and of it. Without ``verified`` the run is in check mode."""
    changed = [host for host, result in applied.items() if result.transaction]
    if verified is None:
        # A machine that is as planned has a fact with measured GIDs, which the plan cannot know.
        same = {host for host, result in compared.items() if result.fact_applied}
        kept = {host: was for host in same if not compared[host].changes for was in [compared[host].fact] if was}
        facts = {host: kept[host].as_dict() if host in kept else fact for host, fact in planned["facts"].items()}
        return Published(facts, {h: text for h, text in planned["texts"].items() if h not in same}, changed, "")
    texts, refusal = dict(verified["texts"]), verified["refusal"] or ""
    if refusal:
        # A machine that took its change back has its previous fact again.
        texts = {host: text for host, text in texts.items() if host not in changed}
        back = f"Taken back on {', '.join(changed)}: {TAKEN_BACK}" if changed else NOTHING_CHANGED
        refusal = f"{refusal}\n{back}"
    return Published(dict(verified["facts"]), texts, changed, refusal)
