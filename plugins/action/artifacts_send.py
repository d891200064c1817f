# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.artifacts_send``, which is all of it: reads the model here, asks the node's
program what it lacks, and gives it that, over the connection that Ansible has anyway."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import importing, look
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.from_controller import (
    BEGIN,
    END,
    TAKE,
    Piece,
    Pieces,
    Told,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.work import AGAIN, Result
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import (
    document,
    how_far,
    json_text,
    paths,
    strict,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import progress

SPEC: dict[str, dict[str, Any]] = {
    "state": {"type": "str", "default": "sent", "choices": ["looked", "sent"]},
    "home": {"type": "str", "required": True},
    "name": {"type": "str", "required": True},
    "ref": {"type": "str", "default": ""},
    "path": {"type": "str", "required": True},
    "pickle": {"type": "bool", "default": False},
}
AT_ONCE = 256 * 1024 * 1024  # bytes of memory, and what an interruption costs at most
PART_S, LINE_S = 5, 60


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(argument_spec=SPEC)
        self._host = str((task_vars or {}).get("inventory_hostname", ""))
        try:
            source = importing.find(args["name"], os.path.expanduser(args["path"]), args["ref"])
            choice = source.choose(args["pickle"])
            chosen = look.chosen(source, choice, f"{args['path']} on this computer")
            result["listing"] = document.plain(chosen)
            result["changed"] = False
            if args["state"] == "sent" and not self._task.check_mode:
                reading = _Teller(self, f"reading {args['name']} on this computer", chosen.size)
                of = importing.measure(source, choice, reading.add)
                result["sent"], ended = self._send(args, source, of)
                result["result"] = document.plain(ended)
                result["changed"] = ended.changed
        except (SparkError, OSError, ValueError) as exc:
            return {**result, "failed": True, "msg": f"this computer: {exc}"}
        except _NodeError as exc:
            return {**result, "failed": True, "msg": str(exc)}
        return result

    def _send(self, args: dict[str, Any], source: importing.Source, of: Manifest) -> tuple[int, Result]:
        asked = self._node(args, of, BEGIN, data=json.dumps(of.as_dict()).encode())
        files = {file.blob: file for file in of.contents if file.blob in asked.lacking}
        size = sum(file.size - asked.lacking[blob] for blob, file in files.items())
        sending = _Teller(self, f"sending {of.name} to {self._host}", size)
        for pieces in _together(files.values(), asked.lacking):
            first = json.dumps(document.plain(Pieces(tuple(pieces)))).encode()
            data = [importing.read(source, files[piece.blob].path, piece.offset, piece.size) for piece in pieces]
            self._node(args, of, TAKE, data=b"".join([first, b"\n", *data]))
            sending.add(sum(map(len, data)))
        ended = self._node(args, of, END, "--ref", args["ref"]).result or Result()
        self.tell(f"{of.name}: {size / 1e6:.1f} MB of {of.size / 1e6:.1f} MB were sent")
        return size, ended

    def _node(self, args: dict[str, Any], of: Manifest, step: str, *words: str, data: bytes = b"\n") -> Told:
        """What the program there says. Data go through standard input, as Ansible's own modules do: this works with
        every way to become root, where rsync knows sudo without a password only."""
        model = f"{of.name}@{of.revision}"
        argv = [paths.NODE_PROGRAM, "artifacts", "receive", "--home", args["home"], "--model", model, *words, step]
        done = self._low_level_execute_command(shlex.join(argv), in_data=data)
        if done["rc"] == 0:
            with contextlib.suppress(IndexError, SparkError, TypeError, ValueError):
                told: Told = document.load(Told, json_text.read(done["stdout"].strip().splitlines()[-1]))
                if step != END or told.result:
                    return told
        said = [*(done.get("stdout") or "").strip().splitlines(), *(done.get("stderr") or "").strip().splitlines()]
        last = said[-1][:1000] if said else "nothing"
        if done["rc"] != 1:
            last = f"the program that takes the model there ended with {done['rc']} and said: {last}. {AGAIN}"
        raise _NodeError(strict.words(f"{self._host}: {last}"))

    def tell(self, words: str) -> None:
        if progress.screen.is_open:
            progress.screen.tell(strict.words(f"{self._host} {words}"))
        else:
            self._display.display(strict.words(f"[{self._host}] {words}"), stderr=True)


class _NodeError(Exception):
    """What the node says."""


class _Teller:
    """How far it is, in the screen's way or as a line now and then."""

    def __init__(self, action: ActionModule, what: str, size: int) -> None:
        self._action, self._what, self._size = action, what, size
        self._done, self._began = 0, time.monotonic()
        self._told = self._began

    def add(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._told < (PART_S if progress.screen.is_open else LINE_S):
            return
        self._told = now
        rate = self._done / (now - self._began)
        self._action.tell(f"{self._what}: {how_far.words(self._done, self._size, rate)}")


def _together(files: Iterable[File], begun: Mapping[str, int]) -> Iterator[list[Piece]]:
    """What goes with one call. ``begun``: by blob, the bytes that are there."""
    pieces: list[Piece] = []
    left = AT_ONCE
    for file in files:
        offset = begun[file.blob]
        while offset < file.size:
            piece = Piece(file.blob, offset, min(left, file.size - offset))
            pieces.append(piece)
            offset, left = offset + piece.size, left - piece.size
            if not left:
                yield pieces
                pieces, left = [], AT_ONCE
    if pieces:
        yield pieces
