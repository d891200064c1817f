# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import gc
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import workers


@pytest.fixture
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def copied_by_a_worker(before: Callable[[], None]) -> int:
    """KiB of memory that a forked process has of its own, once it has looked for garbage."""
    before()
    come, go = os.pipe()
    child = os.fork()
    if child == 0:
        gc.collect()
        own = re.findall(r"^Private_Dirty: +(\d+)", Path("/proc/self/smaps_rollup").read_text(), re.M)
        os.write(go, own[0].encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(go)
    with os.fdopen(come) as said:
        return int(said.read())


def test_a_worker_copies_little_of_the_controllers_memory(thawed: None) -> None:
    held = [[number] for number in range(400_000)]  # as variables and results of many machines
    alone = copied_by_a_worker(lambda: None)
    assert copied_by_a_worker(workers.share) < alone / 2
    assert len(held) == 400_000
