# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A fixture for tests of what places files that belong to root."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files


@pytest.fixture(autouse=True)
def root_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests may run as an ordinary user."""
    if os.geteuid() != 0:
        monkeypatch.setattr(os, "fchown", lambda *_a: None)
        monkeypatch.setattr(os, "chown", lambda *_a, **_k: None)
        monkeypatch.setattr(managed_files._Disk, "read", _own_read(managed_files._Disk.read))


def _own_read(read: Callable[..., Any]) -> Callable[..., Any]:
    def as_root(self: Any, path: str) -> Any:
        state = read(self, path)
        return replace(state, uid=0, gid=0) if state.kind != "absent" else state

    return as_root
