# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The command ``sparkmatrix``: finds the inventory, asks what has to be asked, and runs the playbook that it prints."""

import sys
from pathlib import Path

PLACE = Path("~/sparkmatrix").expanduser()  # of inventories, a folder each
USUAL, UNFINISHED = "mine", ".unfinished"
_WHEEL = Path(__file__).parent / "house"
ROOT = _WHEEL if _WHEEL.is_dir() else Path(__file__).resolve().parents[2]  # of the checkout, which has the same shape
COLLECTION = ROOT / "collections/ansible_collections/sparkmatrix/cluster"
sys.path.insert(0, str(ROOT / "collections"))  # what of the collection decides


def stems(pattern: str) -> list[str]:
    """Names of files of the collection."""
    return sorted(path.stem for path in COLLECTION.glob(pattern))
