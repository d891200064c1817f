# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How an action that waits tells the screen how far it is.

Actions run in forks of Ansible. The callback opens a file without a name before the first fork; each fork writes lines
to it, and the callback reads them. Where another callback prints, nothing is open.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping

MAX_SIGNS = 200
# Calls of the module ``node`` that wait, and the command of a node that says at any time how far it is.
ASKS: Mapping[str, str] = {"engine_probe": "status", "model_work": "artifacts status"}


class Channel:
    def __init__(self) -> None:
        self._fd = -1
        self._read = 0

    def open(self) -> None:
        if self.is_open:
            return
        with contextlib.suppress(OSError), tempfile.TemporaryFile(buffering=0) as stream:
            self._fd = os.dup(stream.fileno())  # not for ssh and the like, but for forks

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def tell(self, words: str) -> None:
        """One line. Forks share the offset of the file, so none overwrites another."""
        line = " ".join(words.split())[:MAX_SIGNS]
        with contextlib.suppress(OSError):  # a full /tmp, for example, which is no reason to end a run
            os.write(self._fd, f"{line}\n".encode())

    def news(self) -> str:
        """The last line that came since the last question, or nothing."""
        if not self.is_open:
            return ""
        said = os.pread(self._fd, 1 << 16, self._read)
        whole = said[: said.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()[-1] if whole else ""


screen = Channel()
