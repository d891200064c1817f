# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.node``: what preflight of this run has settled is not asked again, and a
call that waits (its answer has ``waiting``) is made again, while the screen shows how far it is."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _settled_calls
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import progress

PART_S = 5
LINE_S = 60  # where every part is a line of its own


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _supports_async = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        call, request = str(self._task.args.get("call")), dict(self._task.args.get("request") or {})
        known = _settled_calls.answer(call, request, task_vars)
        if known is not None:
            return {**result, "changed": False, **known}
        found = self._ask(call, request, task_vars)
        _settled_calls.note(call, request, found, task_vars)
        found.pop("invocation", None)  # with -v it would be shown, and requests are long
        return {**result, **found}

    def _ask(self, call: str, request: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        host = str((task_vars or {}).get("inventory_hostname", ""))
        shown = progress.screen.is_open
        waits = call in progress.ASKS
        hint = f" (at any time, on that node: sudo sparkmatrix {progress.ASKS[call]})" if waits else ""
        if waits:
            request = {"part": PART_S if shown else LINE_S, **request}
        began, told = time.monotonic(), set()
        while True:
            args = {**self._task.args, "request": request}
            found: dict[str, Any] = self._execute_module(
                module_args=args, task_vars=task_vars, wrap_async=bool(self._task.async_val)
            )
            waiting = found.get("waiting") or {}
            for note in [*waiting.get("notes", ()), *found.get("notes", ())]:
                words = strict.words(f"[{host}] {note}")
                if words not in told:
                    told.add(words)
                    self._display.display(words, stderr=True)
            if not waiting:
                return {**found, "waited_s": round(time.monotonic() - began, 1)} if waits else found
            words = strict.words(f"{host} {waiting['words']}")
            if shown:
                progress.screen.tell(words)
            else:  # beside what the callback prints, which programs may read
                self._display.display(f"[{host}] {strict.words(waiting['words'])}{hint}", stderr=True)
            request, hint = {**request, "before": waiting}, ""
