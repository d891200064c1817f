# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The lab's simulated tools, run in this process: a process of their own takes ten times as long."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from unittest import mock

DCB = Path(__file__).parents[1] / "lab/tools/dcb"


@functools.cache
def _compiled(path: Path) -> CodeType:
    return compile(path.read_text(encoding="utf-8"), str(path), "exec")


def dcb(arguments: Sequence[str], root: Path) -> tuple[int, str, str]:
    """Exit code, output and errors; ``root``: where it keeps its settings."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.dict(os.environ, SIM_ROOT=str(root)),
        mock.patch.object(sys, "argv", [str(DCB), *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            exec(_compiled(DCB), {"__name__": "__main__", "__file__": str(DCB)})
        except SystemExit as exc:
            code = int(exc.code or 0)
    return code, out.getvalue(), err.getvalue()
