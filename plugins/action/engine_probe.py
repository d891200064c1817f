# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.engine_probe``: shows how far a long start is.

An engine that serves already, or soon, costs one call of the module as before.
"""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import progress

PART_S = 10
LINE_S = 60  # where every part is a line of its own


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        host = str((task_vars or {}).get("inventory_hostname", ""))
        hint = " (at any time, on the head: sudo sparkmatrix status)"
        shown = progress.screen.is_open
        options = {"part": PART_S if shown else LINE_S, **self._task.args}
        began = time.monotonic()
        while True:
            found = self._execute_module(
                module_name="sparkmatrix.cluster.engine_probe", module_args=options, task_vars=task_vars
            )
            waiting = found.get("waiting")
            if not waiting:
                result.update(found)
                if found.get("ready"):
                    result["waited_s"] = round(time.monotonic() - began, 1)
                return result
            if shown:
                progress.screen.tell(strict.words(f"{host} {waiting['words']}"))
            else:  # beside what the callback prints, which programs may read
                self._display.display(strict.words(f"[{host}] {waiting['words']}") + hint, stderr=True)
            options["before"], hint = waiting, ""
