# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Models that take each other's place: what the keeper says of each, and which are told to it as asked for.

It says so in a file, which is another one before a switch begins and after it has ended. Whoever is asked for, and the
model that is loaded for as long as it has requests, is told to it every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.word import Shown

ASK_S = 1.0
PATIENCE_S = 2.0
LOOK_S = 0.25  # between two looks at what the keeper says, while somebody waits


class Named:
    """``root`` is replaced by tests."""

    def __init__(self, root: str = "/") -> None:
        self.file, self.socket = word.told("json", root=root), word.told("sock", root=root)
        self.open: dict[str, int] = {}  # requests by model
        self.asking: dict[str, asyncio.Task[None]] = {}
        self.seen = (0, 0)
        self.entries: list[dict[str, Any]] = []

    def listed(self) -> list[dict[str, Any]]:
        """What ``GET /v1/models`` answers of them; nothing where no keeper has run since the node started."""
        try:
            with open(self.file, "rb") as stream:
                status = os.fstat(stream.fileno())
                if (status.st_ino, status.st_mtime_ns) != self.seen:
                    self.entries = json_text.entries(json_text.mapping(stream.read()), "data")
                    self.seen = (status.st_ino, status.st_mtime_ns)
        except (OSError, SparkError, ValueError):
            return []
        return self.entries

    def of(self, model: str) -> Shown:
        """Where nobody speaks of any, the engine itself knows what it serves."""
        entries = self.listed()
        for entry in entries:
            if entry.get("id") == model:
                seconds = entry.get("seconds")
                return Shown(str(entry.get("state")), seconds if isinstance(seconds, (int, float)) else None)
        return Shown(word.UNKNOWN if entries else word.SERVING, None)

    def enter(self, model: str) -> None:
        self.open[model] = self.open.get(model, 0) + 1
        if model not in self.asking:
            self.asking[model] = asyncio.get_running_loop().create_task(self._ask(model))

    def leave(self, model: str) -> None:
        self.open[model] -= 1
        if not self.open[model]:
            del self.open[model]

    async def _ask(self, model: str) -> None:
        try:
            while True:
                with contextlib.suppress(OSError, asyncio.TimeoutError):
                    await asyncio.wait_for(self._tell(model), PATIENCE_S)
                await asyncio.sleep(ASK_S)
                if model not in self.open:
                    return
        finally:
            del self.asking[model]

    async def _tell(self, model: str) -> None:
        reader, writer = await asyncio.open_unix_connection(self.socket)
        try:
            writer.write(json.dumps({"model": model}).encode() + b"\n")
            await reader.read()  # it has been read
        finally:
            writer.close()
