# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is done only where the user has named it in ``engine_allow``."""

from __future__ import annotations

import re

MOVING_IMAGE = "moving-image"  # one whose name means another image tomorrow
_MOVING = re.compile(r"(^|[^a-z])(latest|nightly|main|master|dev|edge|stable)([^a-z]|$)")
_RELEASE = re.compile(r"\d+\.\d+")
_COMMIT = re.compile(r"(^|-)[0-9a-f]{7,40}(-|$)")


def words() -> frozenset[str]:
    """All that may be allowed."""
    return frozenset({MOVING_IMAGE})


def moves(image: str) -> bool:
    """Without a digest, and without a tag that names a release or a commit."""
    if "@sha256:" in image:
        return False
    name, _colon, tag = image.rpartition("/")[2].partition(":")
    if not tag or not name:
        return True
    return not _COMMIT.search(tag) and (bool(_MOVING.search(tag)) or not _RELEASE.search(tag))
