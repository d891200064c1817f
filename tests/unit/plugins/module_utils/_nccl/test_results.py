# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.results import Results, Row, ours, table

ROW = "  1073741824  134217728  float  none  -1  27211.0  39.46  19.73  {}  25806.7  41.61  20.80  {}\n"
DEGRADED = Results(
    "all_gather",
    (Row(2**30, 190859, 5.625, 2.81), Row(2**31, 380332.5, 5.65, 2.825), Row(2**32, 759260, 5.66, 2.825)),
    2,
    ("spark-1", "spark-2"),
    "NVIDIA GB10",
    2.82151,
)


def text_of(fixtures: Path, name: str) -> str:
    return (fixtures / "nccl" / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("name", "identity", "average", "largest"),
    [
        ("all_gather-pair-16g", ("all_gather", 2, ("spark-1", "spark-2")), 22.9611, (2**34, 22.96)),
        ("all_gather-limit-missed", ("all_gather", 2, ("vm", "vm")), 3.78974, (2**25, 4.055)),
        ("all_reduce-four-ranks", ("all_reduce", 4, ("vm",) * 4), 303.92, (2**31, 359.9)),
        ("all_reduce-one-rank", ("all_reduce", 1, ("vm",)), 0, (2**29, 0)),
        ("all_reduce-sockets", ("all_reduce", 2, ("vm", "vm")), 2.45102, (2**27, 3.055)),
    ],
)
def test_tables_that_nccl_tests_has_printed(fixtures: Path, name, identity, average, largest) -> None:
    found = table(text_of(fixtures, name))
    assert ((found.test, found.ranks, found.hosts), found.average_gbs) == (identity, pytest.approx(average))
    assert (found.largest.bytes, found.largest.bus_gbs) == pytest.approx(largest, abs=0.001)
    assert found.wrong == 0


def test_all_that_a_table_says(fixtures: Path) -> None:
    text = text_of(fixtures, "all_gather-pair-degraded")
    assert table(text) == table(text.replace("\n", "\r\n")) == DEGRADED


def test_our_own_program_prints_one_result_per_test_between_the_lines_of_nccl(fixtures: Path) -> None:
    found = ours(text_of(fixtures, "collectives-one-host"))
    assert [(result.test, result.ranks, result.device, result.nccl) for result in found] == [
        ("all_gather", 2, "NVIDIA H200", "2.28.9"),
        ("all_reduce", 2, "NVIDIA H200", "2.28.9"),
    ]
    assert [round(result.largest.bus_gbs) for result in found if result.largest] == [293, 345]


def test_a_run_that_failed_says_how(fixtures: Path) -> None:
    found = table(text_of(fixtures, "all_reduce-no-interface"))
    assert (found.rows, found.trouble) == ((), ".. vm pid 1913: Test failure common.cu:1454")


def test_wrong_values_are_counted_of_both_places() -> None:
    found = table(ROW.format(3, 4))
    assert (found.wrong, found.rows) == (7, (Row(2**30, 26508.85, 40.535, 20.265, 7),))
    assert table(ROW.format("N/A", 5)).wrong == 5
    assert table("  1024  256  float  sum  0  12.5  1.5  2.5  0  N/A  N/A  N/A  N/A\n").rows == (
        Row(1024, 12.5, 1.5, 2.5),
    )


@pytest.mark.parametrize("text", ["", "mpirun was unable to find it", '{"results": 1}', "8 1 1 1", '{"test": 1}'])
def test_what_is_no_result_is_refused(text: str) -> None:
    for reader in (table, ours):
        with pytest.raises(SparkError):
            reader(text)


def test_a_long_line_takes_no_long_time() -> None:
    """A program of the service user prints it, and root reads it."""
    began = time.monotonic()
    table("# Rank 0 Pid 1 on h device 0 [0x0] " + " " * 200_000 + "x\nTest failure")
    assert time.monotonic() - began < 10
