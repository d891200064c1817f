# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the layer verify asks of a node, in one call: its services, Ray, the gateway and the port filter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document, ray_cluster
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Head, NodePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.ray_cluster import Counted, Query
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import wait
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.wait import Answered

GATEWAY_KEY = f"{names.ETC}/keys/{names.PROBE}.key"
RAY_S = 30.0
PROMPT = "Tell a short story about four small machines."


@dataclass(frozen=True)
class Request:
    """``everything``: all is asked, whatever fails; else what fails ends it. ``gateway_port``: 0 where the node has
    none. ``ray``: count the nodes of its cluster. ``filters``: see whether the port filter is active."""

    plan: Annotated[NodePlan, plan_document.load]
    max_tokens: int
    user: str
    gateway_port: int = 0
    ray: bool = False
    filters: bool = True
    everything: bool = False


@dataclass(frozen=True)
class Checked:
    """Whether the port filter is active: nothing said, or why not."""

    msg: Words = ""


@dataclass
class Verified:
    """``results``: in the order of the heads in the plan; ``gateway``: in that of its services. Null, and empty, is
    what nobody asked for."""

    results: list[Answered] = field(default_factory=list)
    ray: Optional[Counted] = None
    filters: Optional[Checked] = None
    gateway: list[Answered] = field(default_factory=list)
    warnings: list[Words] = field(default_factory=list)
    failed: Flag = False
    msg: Words = ""


def verify(request: Request, check: bool) -> Verified:
    """Asks the services first, since they ask the keeper: of an engine that is stopped nothing else is worth waiting
    for."""
    made = Verified()
    for part in (_services, _ray, _filters, _gateway):
        said = part(request, made, check)
        made.msg = "\n".join([made.msg, *said]).strip()
        made.failed = bool(made.msg)
        if made.failed and not request.everything:
            break
    for answered in [*made.results, *made.gateway]:
        made.warnings += answered.warnings
        answered.warnings = []
    return made


def _services(request: Request, made: Verified, check: bool) -> list[str]:
    made.results = [wait.answer(_question(request, head), check) for head in request.plan.heads]
    return [answered.msg for answered in made.results if answered.failed]


def _question(request: Request, head: Head) -> wait.Request:
    planned = next(service for service in request.plan.here if service.instance == head.instance)
    parallel = planned.parallel
    # Ranks of copies of a whole model have nothing to say to each other.
    talks = parallel.tensor * parallel.pipeline > 1 or parallel.expert
    return wait.Request(
        description=head.description,
        model=head.model,
        prompt=PROMPT,
        max_tokens=request.max_tokens,
        check_keeper=True,
        check_access=head.key,
        check_rdma=head.nodes > 1 and talks,
        expected=(planned.expectation.low, planned.expectation.high),
    )


def _ray(request: Request, made: Verified, check: bool) -> list[str]:
    if not request.ray:
        return []
    ray = request.plan.ray
    query = Query(ray.python, ray.address, ray.members, ray.env, request.user, RAY_S, ray.container)
    try:
        made.ray = ray_cluster.wait(query, check)
    except SparkError as exc:
        made.ray = Counted(failed=True, msg=str(exc))
    return [made.ray.msg] if made.ray.failed else []


def _filters(request: Request, made: Verified, check: bool) -> list[str]:
    if not request.filters:
        return []
    made.filters = Checked()
    try:
        port_filter.ensure(port_filter.Request(state="in_force"), check)
    except SparkError as exc:
        made.filters = Checked(str(exc))
        return [str(exc)]
    return []


def _gateway(request: Request, made: Verified, check: bool) -> list[str]:
    for service in request.plan.services if request.gateway_port else ():
        question = wait.Request(
            port=request.gateway_port,
            model=service.model,
            task=service.task,
            key_file=GATEWAY_KEY,
            unit=names.UNIT,
            check_access=True,
        )
        made.gateway.append(wait.answer(question, check))
    return [answered.msg for answered in made.gateway if answered.failed]
