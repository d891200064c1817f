# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Public ssh keys in the right form; nobody has their private halves."""

from __future__ import annotations

import base64
import hashlib
import struct


def ssh_key(name: str, kind: str = "ssh-ed25519") -> str:
    parts = (kind.encode(), hashlib.sha256(name.encode()).digest())
    blob = b"".join(struct.pack(">I", len(part)) + part for part in parts)
    return f"{kind} {base64.b64encode(blob).decode()}"
