# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The causes that a verdict can name, each with its remedy: the one place of both, for judges, report and the guide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    FAIL,
    PASS,
    UNKNOWN,
    Limit,
    Verdict,
)


@dataclass(frozen=True)
class Cause:
    """``why`` says what it costs and how it comes about; ``otherwise`` what to do if the remedy does not help."""

    name: str
    title: str
    why: str
    remedy: str
    otherwise: str
    source: str


CAUSES: tuple[Cause, ...] = (
    Cause(
        "nic_degraded",
        "A ConnectX-7 has not initialised properly",
        "It happens when a cable is plugged in while a machine runs. Every link state looks healthy, and a half carries"
        " 8 to 25 Gb/s",
        "Reboot both machines of this cable with the cable plugged in. Do not plug the cable anew: that leads here",
        "Switch both off, take them off power for a minute, and start them with the cable plugged in",
        "forums.developer.nvidia.com, DGX Spark, 2025-11 to 2026-09",
    ),
)
BY_NAME = {cause.name: cause for cause in CAUSES}


def verdict(
    check: str,
    scope: str,
    found: str,
    *,
    cause: str = "",
    outcome: str = FAIL,
    hosts: Sequence[str] = (),
    device: str = "",
    value: float = 0,
    limit: Limit | None = None,
    evidence: Sequence[str] = (),
    remedy: str = "",
) -> Verdict:
    """A verdict with the remedy of its cause, or with one of its own where the machine tells more."""
    if (cause == "") == (outcome not in (PASS, UNKNOWN)):
        raise ValueError(f"{check}: the verdict {outcome} {'needs a' if cause == '' else 'has no'} cause")
    known = BY_NAME[cause] if cause else None
    return Verdict(
        check=check,
        outcome=outcome,
        scope=scope,
        found=found,
        hosts=tuple(hosts),
        device=device,
        value=value,
        limit=(limit,) if limit else (),
        cause=cause,
        evidence=tuple(evidence),
        remedy=remedy or (known.remedy if known else ""),
        otherwise=known.otherwise if known else "",
    )
