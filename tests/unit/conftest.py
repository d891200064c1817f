# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Shared by all unit tests. This file also puts ``tests/unit`` on the import path: ``from sysfs_tree import …``."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from exploring import EXPLORE
from hypothesis import settings
from sysfs_tree import SysfsTree

# Two cores shared with everything else: no deadline per example, the number of examples is the limit.
# `unit` tries the same examples every time, so that a change is judged by what it changed. To look for new ones:
# HYPOTHESIS_PROFILE=explore make test-fast (a step of `make test-full`)
settings.register_profile("unit", deadline=None, max_examples=15, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("explore" if EXPLORE else "unit")

# Files that live for a second belong into memory, where there is enough: a disk takes most of the time of many tests.
# What is on it after a power cut no test can tell.
MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 2 * 2**30:
    tempfile.tempdir = str(MEMORY)
os.fsync = lambda _descriptor: None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine has a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asked = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in asked}))
    return True


@pytest.fixture
def fixtures() -> Path:
    return Path(__file__).parent / "fixtures"


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SysfsTree:
    """An empty synthetic sysfs, which modules under test read in the place of /sys."""
    tree = SysfsTree(tmp_path / "sys")
    monkeypatch.setenv("SPARKMATRIX_SYSFS_ROOT", str(tree.root))
    return tree
