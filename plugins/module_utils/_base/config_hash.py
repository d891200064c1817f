# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The hash by which a process is known to have the configuration that the files hold."""

from __future__ import annotations

import hashlib


def config_hash(*parts: str) -> str:
    """Twelve hex digits over ``parts``, their borders included."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
