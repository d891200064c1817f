# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Words that are not used where a user reads, and what to write instead. The words of the field are in the glossary."""

from __future__ import annotations

import re

INSTEAD = {
    r"doors?": "gateway, API endpoint",
    r"prov(?:e|es|ed|en|ing)": "test, verify, check",
    r"shall": "must, should",
    r"(?:in|into|out of) force": "active, apply, disable",
    r"wish(?:es|ed)?": "settings",
    r"see to it that": "make sure",
    r"nothing that \w+ supports": "... does not support",
}


def unclear(text: str) -> list[str]:
    """``line: word (what to write)`` for each banned word of ``text``; lines count from 1."""
    return [
        f"{number}: {found[0]} ({good})"
        for number, line in enumerate(text.splitlines(), 1)
        for bad, good in INSTEAD.items()
        for found in re.finditer(rf"\b{bad}\b", line, re.IGNORECASE)
    ]
