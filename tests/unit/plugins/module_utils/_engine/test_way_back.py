# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a node can serve another plan and come back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import way_back
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.kept_plan import Kept
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Cluster,
    Environment,
    NodePlan,
)
from engine_plans import PLAN


def plan(path: str = "/opt/a", requirement: str = "vllm==1", nodes: int = 2, services: str = "chat") -> NodePlan:
    here = tuple(replace(PLAN.here[0], instance=name, config_hash=requirement) for name in services.split(","))
    environments = (Environment(path, (requirement,)),)
    return replace(PLAN, here=here, environments=environments, cluster=replace(Cluster(), nodes=nodes))


@pytest.mark.parametrize(
    ("kind", "kept", "planned", "service", "says"),
    [
        ("upgrade", Kept(None, None), plan(), "", "no plan is kept here"),
        ("upgrade", Kept(None, None, "kept by another release"), plan(), "", "kept by another release"),
        ("upgrade", Kept(plan(), None), plan(), "", ""),
        ("upgrade", Kept(plan(), None), plan("/opt/b", "vllm==2"), "chat", ""),
        ("upgrade", Kept(plan(), None), plan(requirement="vllm==2"), "", "/opt/a is the environment that serves now"),
        ("upgrade", Kept(plan(), None), plan("/opt/b", "vllm==2"), "other", "chat would be served otherwise"),
        ("upgrade", Kept(plan(services=""), None), plan(), "chat", "the service that was alone would be served"),
        ("rollback", Kept(plan(), None), None, "", "no earlier plan is kept here"),
        ("rollback", Kept(plan(), plan("/opt/b", "vllm==2")), None, "", ""),
        ("rollback", Kept(plan(), plan(nodes=3)), None, "", "for 3 nodes, the inventory has 2"),
        ("rollback", Kept(plan(), plan("/opt/b", "vllm==2")), None, "other", "chat would be served otherwise"),
    ],
)
def test_what_is_refused(kind: str, kept: Kept, planned: NodePlan | None, service: str, says: str) -> None:
    if not says:
        way_back.check(kind, kept, planned, 2, service)
        return
    with pytest.raises(SparkError) as refused:
        way_back.check(kind, kept, planned, 2, service)
    assert says in str(refused.value)
