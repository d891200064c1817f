# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import zipfile

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._node_main import PACKAGE, VERSION
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _zipapp


def test_the_tool_runs_alone(tmp_path):
    tool = tmp_path / "sparkmatrix-node"
    tool.write_bytes(_zipapp.build())
    environment = {"PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-IB", str(tool), "--version"],
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
        check=True,
    )
    assert done.stdout == f"sparkmatrix-node {VERSION}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["sparkmatrix-node"]


def test_same_sources_same_bytes(tmp_path):
    copy = tmp_path / "module_utils"
    copy.mkdir()
    for name in reversed(_zipapp.closure(_zipapp.MODULE_UTILS, [_zipapp.ENTRY, "_caches"])):
        (copy / f"{name}.py").write_bytes((_zipapp.MODULE_UTILS / f"{name}.py").read_bytes())
        os.utime(copy / f"{name}.py", (1, 1))
    assert _zipapp.build(copy, ["_caches"]) == _zipapp.build(commands=["_caches"])


def test_archive():
    content = _zipapp.build()
    assert content.startswith(b"#!/usr/bin/python3 -IB\n")
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        names = packed.namelist()
        assert names == sorted(names)
        assert {info.compress_type for info in packed.infolist()} == {zipfile.ZIP_STORED}
        assert {info.date_time for info in packed.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        for name in names:
            ast.parse(packed.read(name))
        assert not [name for name in names if "_preflight" in name or "/modules/" in name]


def test_closure(tmp_path):
    (tmp_path / "a.py").write_text(f"from {PACKAGE}._b import x\nimport {PACKAGE}._c\nimport json\n")
    (tmp_path / "_b.py").write_text(f"def f():\n    from {PACKAGE} import _d\n    from . import nothing\n")
    (tmp_path / "_c.py").write_text(f"from {PACKAGE}._b import y\n")
    (tmp_path / "_d.py").write_text("")
    assert _zipapp.closure(tmp_path, ["a"]) == ["_b", "_c", "_d", "a"]


@pytest.mark.parametrize("content", [None, "def ("])
def test_a_broken_checkout(tmp_path, content):
    if content is not None:
        (tmp_path / "a.py").write_text(content)
    with pytest.raises(SparkError, match=r"a\.py: cannot be packed"):
        _zipapp.closure(tmp_path, ["a"])
