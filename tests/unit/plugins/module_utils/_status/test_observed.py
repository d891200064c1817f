# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import Snapshot
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import observed


def test_a_node_without_an_engine_says_so(monkeypatch):
    def collect(_asked, here):
        raise SparkError(f"no engine is set up on this node, here {here}")

    monkeypatch.setattr(observed.full, "read", lambda _machine, request: Snapshot("spark1", days=request.days))
    monkeypatch.setattr(observed.cluster_status, "collect", collect)
    found = observed.observation(observed.Request(days=1.0, here=False), False)
    assert (found.snapshot.host, found.snapshot.days) == ("spark1", 1.0)
    assert found.status["problem"] == "no engine is set up on this node, here False."
