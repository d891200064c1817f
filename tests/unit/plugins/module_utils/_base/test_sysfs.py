# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import sysfs as base_sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from sysfs_tree import SysfsTree


@pytest.mark.parametrize(
    ("content", "text", "number"),
    [
        (b"9000\n", "9000", 9000),
        (b"-1\n", "-1", -1),
        (b"0x15b3\n", "0x15b3", 0x15B3),
        (b"0XfF", "0XfF", 255),
        (b"010\n", "010", 10),
        (b" 4: ACTIVE \n", "4: ACTIVE", None),
        (b"", "", None),
        (b"\n", "", None),
        (b"p0\0\0", "p0", None),
        (b"p\xff0\n", "p\\xff0", None),
        ("µ".encode(), "µ", None),
        (b"1.5\n", "1.5", None),
        (b"1_000\n", "1_000", None),
        ("٣".encode(), "٣", None),
        (b"9" * 21, "9" * 21, None),
        (b"0x\n", "0x", None),
        (b"-0x1\n", "-0x1", None),
        (b"x" * base_sysfs.LIMIT_BYTES, "x" * base_sysfs.LIMIT_BYTES, None),
    ],
)
def test_what_an_attribute_says(tmp_path: Path, content: bytes, text: str, number: int | None) -> None:
    path = tmp_path / "attribute"
    path.write_bytes(content)
    assert base_sysfs.read_bytes(path) == content
    assert base_sysfs.read_text(str(path)) == text
    assert base_sysfs.read_int(path) == number


@pytest.mark.parametrize("path", ["missing", "missing/deeper", ".", "file/below", "loop", "nul\0byte", "n" * 300])
def test_no_value(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop").symlink_to("loop")
    assert base_sysfs.read_bytes(f"{tmp_path}/{path}") is None
    assert base_sysfs.read_text(f"{tmp_path}/{path}") is None
    assert base_sysfs.read_int(f"{tmp_path}/{path}") is None


def test_a_fifo_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert base_sysfs.read_text(tmp_path / "fifo") == ""


@pytest.mark.parametrize("call", ["open", "read"])
@pytest.mark.parametrize(
    "code", [errno.ENOENT, errno.EINVAL, errno.EIO, errno.ENODEV, errno.ENXIO, errno.EOPNOTSUPP, errno.EAGAIN]
)
def test_the_kernel_has_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    """What ``carrier`` of a netdev does that is administratively down."""
    (tmp_path / "carrier").write_text("1")

    def refuse(*_args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    assert base_sysfs.read_text(tmp_path / "carrier") is None


@pytest.mark.parametrize("call", ["open", "read"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_what_a_user_can_repair_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    path = tmp_path / "attribute"
    path.write_text("1")

    def refuse(*_args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(SparkError, match=rf"^{path}: no permission to read.*become: true"):
        base_sysfs.read_text(path)


def test_directories(tmp_path: Path) -> None:
    for name in ("mlx5_10", "mlx5_2", "10", "2", "0", ".hidden", "x", "²", "-1", "1.5"):
        (tmp_path / name).touch()
    assert base_sysfs.names(tmp_path) == ["0", "1.5", "2", "10", "-1", "mlx5_2", "mlx5_10", "x", "²"]
    assert base_sysfs.numbers(tmp_path) == [0, 2, 10]
    for nothing in (tmp_path / "missing", tmp_path / "x", "nul\0byte"):
        assert base_sysfs.names(nothing) is None
        assert base_sysfs.numbers(nothing) == []


def test_links(tmp_path: Path) -> None:
    (tmp_path / "driver").symlink_to("../../bus/pci/drivers/mlx5_core")
    (tmp_path / "file").touch()
    assert base_sysfs.link_name(tmp_path / "driver") == "mlx5_core"
    assert base_sysfs.link_name(tmp_path / "file") is None
    assert base_sysfs.link_name(tmp_path / "missing") is None
    assert base_sysfs.exists(tmp_path / "file")
    assert not base_sysfs.exists(tmp_path / "driver"), "it points nowhere"


def test_where_sysfs_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARKMATRIX_SYSFS_ROOT", raising=False)
    assert base_sysfs.root() == Path("/sys")
    monkeypatch.setenv("SPARKMATRIX_SYSFS_ROOT", "")
    assert base_sysfs.root() == Path("/sys")
    monkeypatch.setenv("SPARKMATRIX_SYSFS_ROOT", "/tmp/sys")
    assert base_sysfs.root() == Path("/tmp/sys")


@pytest.mark.parametrize(
    ("source", "tool", "class_there", "command"),
    [
        ("auto", "/usr/sbin/tool", True, False),
        ("auto", "/usr/sbin/tool", False, True),
        ("auto", None, True, False),
        ("auto", None, False, False),
        ("sysfs", "/usr/sbin/tool", False, False),
        ("command", "/usr/sbin/tool", True, True),
    ],
)
def test_which_source(sysfs: SysfsTree, source: str, tool: str | None, class_there: bool, command: bool) -> None:
    if class_there:
        sysfs.path("class/infiniband").mkdir(parents=True)
    assert base_sysfs.use_command(source, sysfs.root, tool, "tool") is command


def test_the_tool_is_asked_for_and_missing(sysfs: SysfsTree) -> None:
    with pytest.raises(SparkError, match=r"the tool show_gids is not installed\. Use source: sysfs"):
        base_sysfs.use_command("command", sysfs.root, None, "show_gids")
