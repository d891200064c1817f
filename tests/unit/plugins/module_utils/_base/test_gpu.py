# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import sys
import types

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import gpu
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.gpu import Clocks
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (Completed(0, "answer 0 CUDA_SUCCESS\n"), (True, True, 0, "CUDA_SUCCESS")),
        (Completed(0, "answer 999 CUDA_ERROR_UNKNOWN\n"), (True, False, 999, "CUDA_ERROR_UNKNOWN")),
        (Completed(0, "answer 100 \n"), (True, False, 100, "")),
        (Completed(0, "absent libcuda.so.1: cannot open\n"), (False, None, None, "libcuda.so.1: cannot open")),
        (Completed(124, "", "gave no answer"), (True, False, None, "cuInit gives no answer")),
        (Completed(-11, "", ""), (True, False, None, "it printed nothing")),
        (Completed(1, "", "Traceback"), (False, None, None, "Traceback")),
        (Completed(0, "", ""), (False, None, None, "it printed nothing")),
    ],
)
def test_cuda(done, expected):
    found = gpu.cuda(Machine(runner=lambda argv: done))
    assert (found.checked, found.ok, found.code, found.message) == expected


def test_the_program_that_asks_cuda_runs():
    found = gpu.cuda(Machine())
    assert found.ok if found.checked else "libcuda.so.1" in found.message


def test_a_library_that_answers(monkeypatch, capsys):
    asked = []

    class Library:
        def __init__(self, name):
            asked.append(name)

        def cuInit(self, flags):
            return 999

        def cuGetErrorName(self, code, name):
            name.value = b"CUDA_ERROR_UNKNOWN"

    stand_in = types.SimpleNamespace(
        CDLL=Library, c_char_p=lambda: types.SimpleNamespace(value=None), byref=lambda name: name
    )
    monkeypatch.setitem(sys.modules, "ctypes", stand_in)
    exec(gpu._CU_INIT, {})
    assert capsys.readouterr().out == "answer 999 CUDA_ERROR_UNKNOWN\n"
    assert asked == ["libcuda.so.1"]


def test_who_computes():
    assert gpu.parse_processes("1234, /usr/bin/python3\n77, a, b\nNo devices were found\n\n") == [
        (1234, "/usr/bin/python3"),
        (77, "a, b"),
    ]
    assert gpu.parse_processes(None) == []


CAPPED = ("software power cap",)
HOT = ("software thermal slowdown", "hardware thermal slowdown")


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("84.51, 96, 71, 2405, 0x0000000000000000\n", Clocks(96, 71, 2405, (), 84.51)),
        ("nan, 0, 41, 208, 0x0000000000000001\n", Clocks(0, 41, 208)),
        ("60, 99, 91, 1600, 0x0000000000000068\n", Clocks(99, 91, 1600, ("hardware slowdown", *HOT), 60.0)),
        ("[N/A], [N/A], [N/A], [N/A], 0x0000000000000080", Clocks(slowed=("hardware power brake",))),
        ("60, 96, 71, 2405, [N/A]\n", None),
        ("No devices were found\n", None),
        ('Field "clocks_event_reasons.active" is not a valid field to query.\n', None),
        ("", None),
    ],
)
def test_how_fast_the_gpu_runs(printed, expected):
    assert gpu.clocks(Machine(runner=lambda argv: Completed(0, printed))) == expected
    assert gpu.clocks(Machine(runner=lambda argv: Completed(1))) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("idle", Clocks(0, 36, 1980, (), 122.88)),
        ("first-at-work", Clocks(100, 57, 1440, CAPPED, 691.73)),
        ("second-at-work", Clocks(99, 59, 1440, CAPPED, 690.36)),
    ],
)
def test_of_two_gpus_the_one_at_work_is_seen(fixtures, name, expected):
    """Two H200 with driver 580.159.04."""
    printed = (fixtures / f"gpu/clocks-{name}.csv").read_text()
    found = gpu.clocks(Machine(runner=lambda argv: Completed(0, printed)))
    assert found == expected and not set(found.slowed) & set(gpu.FAULTS)


def test_of_several_gpus_at_work_a_fault_is_seen_and_then_the_slowest():
    lines = ["60, 99, 70, 1500, 0x4", "60, 98, 70, 1400, 0x4", "60, 9, 70, 300, 0x1", "No devices were found"]
    fault = "60, 40, 91, 1600, 0x20"
    for printed, mhz in ((lines, 1400), ([*lines, fault], 1600), ([fault, *lines], 1600)):
        done = Completed(0, "\n".join(printed))
        assert gpu.clocks(Machine(runner=lambda argv, done=done: done)).mhz == mhz
