# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The call ``observation``: a full snapshot of a node, and the status of the cluster as this node sees it."""

from __future__ import annotations

from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Plain
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot import full
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import Snapshot
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import node as cluster_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status.node import Status


@dataclass(frozen=True)
class Request(full.Request):
    """``here``: the status of this node only, not of the others."""

    here: bool = True


@dataclass(frozen=True)
class Answer:
    """``status``: what ``sparkmatrix status --json`` prints."""

    snapshot: Snapshot
    status: Plain
    changed: Flag = False


def observation(request: Request, _check: bool) -> Answer:
    """What cannot be looked at is named; the call does not fail for it."""
    try:
        status = cluster_status.collect(cluster_status.Asked(), here=request.here)
    except SparkError as exc:
        status = Status(problem=str(exc))
    return Answer(full.read(Machine(), request), document.plain(status))
