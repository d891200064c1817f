# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The lab's modules are scripts beside each other, not a package: make them importable."""

from __future__ import annotations

import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(TESTS / "lab"), str(TESTS / "scenarios")]
