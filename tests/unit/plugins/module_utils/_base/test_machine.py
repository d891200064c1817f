# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import rollback as access_rollback
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import interfaces
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import apply as gateway_apply

LOCKS = (access_rollback.LOCK, interfaces.LOCK, gateway_apply.LOCK, port_filter.LOCK)


@pytest.mark.parametrize("lock", LOCKS)
def test_locks_are_where_only_root_makes_files(tmp_path: Path, lock: str) -> None:
    with alone(Machine(str(tmp_path)), "it", lock):
        pass
    real = Path(f"{tmp_path}{lock}")
    assert stat.S_IMODE(real.parent.stat().st_mode) & 0o022 == 0
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert real.parent.parent == tmp_path / "run"  # a directory of its own, and none that others may write to


@pytest.mark.parametrize("planted", ["file", "link"])
def test_a_lock_that_cannot_be_opened_is_told(tmp_path: Path, planted: str) -> None:
    (tmp_path / "run").mkdir()
    if planted == "file":
        (tmp_path / "run/sparkmatrix").write_text("")
    else:
        (tmp_path / "run/sparkmatrix").mkdir()
        (tmp_path / "run/sparkmatrix/access.lock").symlink_to("elsewhere")
    with (
        pytest.raises(SparkError, match="the lock cannot be opened"),
        alone(Machine(str(tmp_path)), "it", access_rollback.LOCK),
    ):
        pass
