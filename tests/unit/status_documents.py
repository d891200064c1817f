# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What ``sparkmatrix status --json`` prints on a head, and elsewhere."""

from __future__ import annotations

import json

SERVICE = {
    "unit": "sparkmatrix-keeper.service",
    "phase": "serving",
    "detail": "it serves",
    "stable": True,
    "running": True,
    "returns": False,
    "frozen": False,
    "stopped": None,
    "damage": "",
    "answers": True,
    "problem": "",
    "elapsed_s": 75,
    "since": "t",
    "failures": 0,
    "start_limit": 5,
    "serving": True,
    "history": [],
    "verified": None,
}
ELSEWHERE = {"serving": False, "answers": None, "problem": "ask the head", "history": []}
NODES = [
    {"host": host, "answers": True, "problem": "", "units": {}, "available_gib": 70.0, "fabric": "verified"}
    for host in ("spark1", "spark2")
]


def said(service=SERVICE, nodes=NODES, **values):
    document = {
        "schema": 1,
        "serving": service.get("serving"),
        "head": "spark1",
        "services": {"": service},
        "nodes": nodes,
        "ray": {"nodes": 2, "running": 2},
        "fabric": {"wrong": False, "lines": ["fabric: direct, applied"]},
        "gateway": None,
    }
    return {"rc": 0, "stdout": json.dumps({**document, **values}), "changed": False}
