# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import zipfile

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._node_program import PACKAGE, VERSION
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _node_program


def test_the_tool_runs_alone(tmp_path):
    tool = tmp_path / "sparkmatrix-node"
    tool.write_bytes(_node_program.build())
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


def test_a_subcommand_imports_nothing_of_the_others(tmp_path):
    """Dropping caches is root's: neither OpenSSL nor what reads other settings of the environment is in it."""
    tool = tmp_path / "sparkmatrix-node"
    tool.write_bytes(_node_program.build())
    argv = [sys.executable, "-IB", "-X", "importtime", str(tool), "drop-caches", "--help"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd="/", check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert f"{PACKAGE}._base.meminfo" in imported and f"{PACKAGE}._base.systemd" not in imported
    assert not imported & {"ssl", "_ssl", "hashlib", "_hashlib", "ctypes"}


def test_same_sources_same_bytes(tmp_path):
    copy = tmp_path / "module_utils"
    root = _node_program.MODULE_UTILS
    for name in reversed(_node_program.closure(root, [_node_program.ENTRY, "_os.drop_caches"])):
        path = name.replace(".", "/") + ".py"
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes((root / path).read_bytes())
        os.utime(copy / path, (1, 1))
    assert _node_program.build(copy, ["_os.drop_caches"]) == _node_program.build(commands=["_os.drop_caches"])


def test_archive():
    content = _node_program.build()
    assert content.startswith(b"#!/usr/bin/python3 -IB\n")
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        names = packed.namelist()
        assert names == sorted(names)
        assert {info.compress_type for info in packed.infolist()} == {zipfile.ZIP_STORED}
        assert {info.date_time for info in packed.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        for name in names:
            ast.parse(packed.read(name))
        assert not [name for name in names if "/modules/" in name or "/plugin_utils/" in name]


def test_closure(tmp_path):
    for path, text in {
        "a.py": f"from {PACKAGE}._b.c import x\nfrom {PACKAGE}._b import d, e\nimport json\n",
        "_b/c.py": f"def f():\n    from {PACKAGE} import _g\n    from . import nothing\n",
        "_b/d.py": f"from {PACKAGE}._b.c import y\n",
        "_b/e.py": "",
        "_b/unused.py": "",
        "_g.py": "",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    assert _node_program.closure(tmp_path, ["a"]) == ["_b.c", "_b.d", "_b.e", "_g", "a"]


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_broken_checkout(tmp_path, content):
    if content is not None:
        (tmp_path / "a.py").write_bytes(content)
    with pytest.raises(SparkError, match=r"a\.py: cannot be packed"):
        _node_program.closure(tmp_path, ["a"])


@pytest.mark.parametrize("path", sorted(_node_program.MODULE_UTILS.rglob("*.py")), ids=lambda path: path.stem)
def test_imports_are_found_as_python_finds_them(path):
    """The pattern goes by how the formatter writes them."""
    root, source = _node_program.MODULE_UTILS, path.read_text()
    expected = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{PACKAGE}."):
            module = node.module[len(PACKAGE) + 1 :]
            whole = module and (root / (module.replace(".", "/") + ".py")).is_file()
            expected += [module] if whole else [f"{module}.{alias.name}".lstrip(".") for alias in node.names]
    assert sorted(_node_program._imports(source, root)) == sorted(expected)
