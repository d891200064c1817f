# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What Prometheus warns of: the rules that have an expression, with their words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import FAIL, Alert, Rule
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import RULES

GUIDE = "docs/troubleshooting.md"


def rules() -> dict[str, Any]:
    """The file of rules."""
    made = [dict(_rule(rule, alert)) for rule in RULES.values() for alert in rule.alerts]
    return {"groups": [{"name": "sparkmatrix", "rules": made}]}


def _rule(rule: Rule, alert: Alert) -> Iterator[tuple[str, Any]]:
    yield "alert", rule.id
    yield "expr", alert.expr
    if alert.wait != "0s":
        yield "for", alert.wait
    severity = "critical" if (alert.severity or rule.severity) == FAIL else "warning"
    yield "labels", {"severity": severity, **({"sign": alert.sign} if alert.sign else {})}
    notes = {
        "summary": f"{rule.title}: {alert.where}",
        "why": rule.why,
        "remedy": rule.remedy,
        "otherwise": rule.otherwise,
        "guide": GUIDE,
    }
    yield "annotations", {name: text for name, text in notes.items() if text}
