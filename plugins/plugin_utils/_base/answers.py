# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What our modules answer, for :mod:`_base.border`: one shape per module whose result decides something here.

A field that is compared, or goes to another machine, into a file or a command, has a kind; the others are for people.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.strict import (
    flag,
    host,
    ipv4,
    number,
    whole,
    word,
    words,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.border import (
    Document,
    Each,
    Full,
    Maybe,
    Only,
)

COUNT = whole(0)


def or_empty(kind: Any) -> Any:
    """A kind, or an empty text where the module says so for nothing."""
    return lambda value: value if value == "" and isinstance(value, str) else kind(value)


def _fact(document: Any, name: str) -> dict[str, Any] | None:
    """A fact of another release or a damaged one is refused: without its addresses a peer would lock its node out."""
    return None if document in (None, "", {}) else fabric_fact.load(document, name).as_dict()


FACT = Document(_fact)
PLAN = Document(lambda value, name: plan_document.load(value, f"engine plan of {name}"))

# --- the call pings, for the summary
PROBES = Each(
    Full(
        {
            "rail": whole(0, 255),
            "peer": host,
            "source": ipv4,
            "address": ipv4,
            "ok": flag,
            "rtt_ms": Maybe(number),
            "attempts": COUNT,
            "cause": Maybe(word),
            "reason": Maybe(words),
            "remedy": Maybe(words),
        },
        ("rail", "peer", "ok"),
    )
)
_ASKED = {
    "skipped": Maybe(flag),
    "msg": Maybe(words),
    "reason": Maybe(words),
}
CHECKED = Only({**_ASKED, "changes": Each(words)})
