# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import meminfo
from hypothesis import given
from hypothesis import strategies as st


def test_bytes_and_pages():
    text = "MemTotal:       127600420 kB\nActive(anon):  12 kB\nHugePages_Total:       3\nOdd line\nX: y kB\n"
    assert meminfo.parse(text) == {"MemTotal": 127600420 * 1024, "Active(anon)": 12 * 1024, "HugePages_Total": 3}


@given(st.text())
def test_garbage(text):
    assert all(isinstance(value, int) for value in meminfo.parse(text).values())


@given(st.dictionaries(st.from_regex(r"\A[A-Za-z][A-Za-z0-9_]{0,20}\Z"), st.integers(0, 10**12)))
def test_round_trip(values):
    text = "".join(f"{name}:{value:>16} kB\n" for name, value in values.items())
    assert meminfo.parse(text) == {name: value * 1024 for name, value in values.items()}


def test_no_proc(tmp_path):
    assert meminfo.read(str(tmp_path)) == {}
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemFree: 1 kB\n")
    assert meminfo.read(str(tmp_path)) == {"MemFree": 1024}
