# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What keeps this node from serving another plan with a way back: an upgrade, or the return to the plan before."""

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan

UPGRADE, ROLLBACK = "upgrade", "rollback"


def check(change: str, kept: kept_plan.Kept, planned: NodePlan | None, nodes: int, service: str) -> None:
    """Raises :class:`SparkError`. ``nodes``: how many the inventory has. ``service``: the one that the user named."""
    if change == UPGRADE and planned:
        _upgrade(kept, planned)
        other = planned
    else:
        other = _rollback(kept, nodes)
    others = [name for name in kept_plan.differing(kept.current, other) if name != service] if service else []
    if others:
        told = ", ".join(name or "the service that was alone" for name in others)
        raise SparkError(
            f"{told} would be served otherwise here, too, and engine_service names {service}; nothing was changed",
            "engine_service",
            "Set engine_services so that the others stay as they are, or leave engine_service out",
        )


def _upgrade(kept: kept_plan.Kept, planned: NodePlan) -> None:
    if not kept.current:
        raise SparkError(
            kept.refused or "no plan is kept here, so there is nothing to come back to", "", "Run site.yml"
        )
    have = {each.path: each for each in kept.current.environments}
    in_place = [each.path for each in planned.environments if have.get(each.path, each) != each]
    if in_place:
        raise SparkError(
            f"the requirements change, and {', '.join(in_place)} is the environment that serves now: changed in place, "
            "there would be no way back",
            "engine_venv_path",
            "Name another directory for the new ones",
        )


def _rollback(kept: kept_plan.Kept, nodes: int) -> NodePlan:
    if not kept.previous:
        raise SparkError(kept.refused or "no earlier plan is kept here; nothing was changed", "", "Run site.yml")
    if kept.previous.cluster.nodes != nodes:
        raise SparkError(
            f"the earlier plan is for {kept.previous.cluster.nodes} nodes, the inventory has {nodes}",
            "",
            kept_plan.REMEDY,
        )
    return kept.previous
