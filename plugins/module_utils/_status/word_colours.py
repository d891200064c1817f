# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Colours for people at a terminal (https://no-color.org); nothing of it in a pipe or a file."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

_GREEN, _YELLOW, _RED, _PLAIN = "\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"
_WRONG = re.compile(
    r"\b(?:not known|failed|drifted|does not run|gave up|gives no sign of life|no answer|FAIL\w*|ERROR|CRITICAL)\b"
)
_DOUBT = re.compile(r"\b(?:inactive|activating|starting|waiting|Stopped by|WARN(?:ING)?|unknown|never)\b")
_WELL = re.compile(r"\b(?:it serves|it answers|verified(?!,|  )|active)\b")


def coloured(environment: Mapping[str, str] | None = None, terminal: bool | None = None) -> bool:
    environment = os.environ if environment is None else environment
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty() if terminal is None else terminal


def paint(text: str) -> str:
    """Words that say how it is, in colour."""
    for pattern, colour in ((_WRONG, _RED), (_DOUBT, _YELLOW), (_WELL, _GREEN)):
        text = pattern.sub(rf"{colour}\g<0>{_PLAIN}", text)
    return text
