# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import gc
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
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


def _since_the_play_began() -> tuple[int, int]:
    """Copied without our preparation, and with it. It cannot be taken back, so this is for a process of its own."""
    held = [[number] for number in range(400_000)]
    alone = copied_by_a_worker(lambda: None)
    prepared = copied_by_a_worker(workers.prepare)
    assert len(held) == 400_000
    return alone, prepared


def test_neither_does_it_copy_what_tasks_have_brought_since_the_play_began() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as own:
        alone, prepared = own.submit(_since_the_play_began).result()
    assert prepared < alone / 2
