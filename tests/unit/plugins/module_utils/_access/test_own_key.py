# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import own_key
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError


def test_a_key_is_made_where_there_is_none(tmp_path: Path) -> None:
    folder = str(tmp_path / ".ssh")
    assert own_key.ensure(folder) == f"A key for ssh was made: {folder}/id_ed25519"
    assert {path.name for path in Path(folder).iterdir()} == {"id_ed25519", "id_ed25519.pub"}
    assert Path(folder).stat().st_mode & 0o777 == 0o700
    assert own_key.ensure(folder) == ""
    with pytest.raises(SparkError, match="no key for ssh could be made: no disk"):
        own_key.ensure(str(tmp_path / "other"), lambda _argv: Completed(1, "", "no disk"))


def test_a_private_half_alone_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "id_rsa").write_text("mine")
    with pytest.raises(SparkError, match=r"ssh-keygen -y -f .*/id_rsa > .*/id_rsa\.pub"):
        own_key.ensure(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["id_rsa"]
