# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where the collection is: in the wheel, or in the checkout around this package. Both have the same shape."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

WHEEL, CHECKOUT = Path(__file__).parent / "house", Path(__file__).resolve().parents[2]
ROOT = WHEEL if WHEEL.is_dir() else CHECKOUT
COLLECTION = ROOT / "collections/ansible_collections/sparkmatrix/cluster"


def models() -> list[str]:
    return sorted(path.stem for path in COLLECTION.glob("roles/engine/files/recipes/*.yml"))


def playbooks() -> list[str]:
    return sorted(path.stem for path in COLLECTION.glob("playbooks/*.yml"))


def called() -> str:
    """This command, as it can be typed again."""
    given = sys.argv[0]
    if f"{os.sep}uv{os.sep}" in sys.prefix and "archive" in sys.prefix:  # a place that uv makes for one call
        return "uvx sparkmatrix"
    found = shutil.which("sparkmatrix")
    if found and os.path.realpath(found) == os.path.realpath(given):
        return "sparkmatrix"
    near = os.path.relpath(given)
    return given if near.startswith("..") else near
