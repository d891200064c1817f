# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import ctypes
import mmap
import os

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _node_program
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import evict_page_cache


def cached_pages(path):
    """mincore(2): how many pages of a file are in memory."""
    size = os.path.getsize(path)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    with open(path, "rb") as stream:
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, stream.fileno(), 0)
    states = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), states) == 0
    libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    return sum(state & 1 for state in states)


def test_pages_leave_the_cache(tmp_path):
    big = tmp_path / "models/blob"
    big.parent.mkdir()
    big.write_bytes(os.urandom(2**20))
    big.read_bytes()
    if cached_pages(big) == 0:
        pytest.skip("this file system has no page cache")
    evicted = evict_page_cache.evict([str(tmp_path)])
    if cached_pages(big) == 2**20 // mmap.PAGESIZE:
        pytest.skip("this file system keeps its pages in memory (tmpfs)")
    assert cached_pages(big) == 0
    assert (evicted.files, evicted.size, evicted.refused) == (1, 2**20, [])


def test_each_blob_once_through_links(tmp_path):
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/a").write_bytes(b"12345")
    (tmp_path / "snapshots").mkdir()
    (tmp_path / "snapshots/model.safetensors").symlink_to("../blobs/a")
    (tmp_path / "snapshots/broken").symlink_to("../blobs/none")
    os.mkfifo(tmp_path / "pipe")
    evicted = evict_page_cache.evict([str(tmp_path), str(tmp_path / "blobs/a"), str(tmp_path / "nothing")])
    assert (evicted.files, evicted.size) == (1, 5)
    assert [line.rpartition(": ")[2] for line in evicted.refused] == ["No such file or directory"] * 2


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"1")
    real = os.open

    def refuse(path, *args, **kwargs):
        if str(path).endswith("/a"):
            raise PermissionError(13, "Permission denied")
        return real(path, *args, **kwargs)

    monkeypatch.setattr(evict_page_cache.os, "open", refuse)
    evicted = evict_page_cache.evict([str(tmp_path)])
    assert (evicted.files, evicted.refused) == (1, [f"{tmp_path}/a: Permission denied"])


def test_a_directory_that_cannot_be_listed(tmp_path, monkeypatch):
    def walk(path, onerror):
        onerror(PermissionError(13, "Permission denied", path))
        return iter(())

    monkeypatch.setattr(evict_page_cache.os, "walk", walk)
    assert evict_page_cache.evict([str(tmp_path)]).refused == [f"{tmp_path}: Permission denied"]


def test_subcommand(tmp_path, capsys):
    (tmp_path / "a").write_bytes(b"1")
    assert _node_program.main(["evict", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("Evicted 1 files, 0.0 GiB: Cached ")
    assert _node_program.main(["evict", "--quiet", str(tmp_path / "none")]) == 1
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"not evicted: {tmp_path}/none: No such file or directory\n")
