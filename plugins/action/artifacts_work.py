# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.artifacts_work``: while it waits, it shows how far the work is."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import progress

PART_S = 5
LINE_S = 60  # where every part is a line of its own


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        host = str((task_vars or {}).get("inventory_hostname", ""))
        hint = " (at any time, on that node: sudo sparkmatrix artifacts status)"
        shown = progress.screen.is_open
        options = {"part": PART_S if shown else LINE_S, **self._task.args}
        told: set[str] = set()
        while True:
            found = self._execute_module(
                module_name="sparkmatrix.cluster.artifacts_work", module_args=options, task_vars=task_vars
            )
            waiting = found.get("waiting") or {}
            for note in [*waiting.get("notes", ()), *found.get("notes", ())]:
                words = strict.words(f"[{host}] {note}")
                if words not in told:
                    told.add(words)
                    self._display.display(words, stderr=True)
            if not waiting:
                # The options would be shown with -v: a manifest is long.
                found.pop("invocation", None)
                result.update(found)
                return result
            if shown:
                progress.screen.tell(strict.words(f"{host} {waiting['words']}"))
            else:
                self._display.display(strict.words(f"[{host}] {waiting['words']}") + hint, stderr=True)
            hint = ""
