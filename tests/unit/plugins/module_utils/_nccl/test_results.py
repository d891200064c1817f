# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl.results import (
    Results,
    Row,
    parse_text,
    read,
    version,
)
from hypothesis import given
from hypothesis import strategies as st

ROW = "  1073741824  134217728  float  none  -1  27211.0  39.46  19.73  {}  25806.7  41.61  20.80  {}\n"


def captured(fixtures: Path, name: str) -> list[Results]:
    return read((fixtures / "nccl" / name).read_text())


@pytest.mark.parametrize(
    ("name", "identity", "average", "largest"),
    [
        ("all_gather-pair-16g.txt", ("all_gather", 2, ("spark-1", "spark-2")), 22.9611, (2**34, 22.96)),
        ("all_gather-pair-noise.txt", ("all_gather", 2, ("spark-1", "spark-2")), 21.4033, (2**32, 22.3)),
        ("all_gather-pair-degraded.txt", ("all_gather", 2, ("spark-1", "spark-2")), 2.82151, (2**32, 2.825)),
        ("all_gather-old-header.txt", ("", 2, ("spark-a", "spark-b")), 22.005, (2**34, 22.005)),
        ("all_gather-limit-missed.txt", ("all_gather", 2, ("vm", "vm")), 3.78974, (2**25, 4.055)),
        ("all_gather-limit-missed.json", ("all_gather", 2, ("vm",)), 3.789735, (2**25, 4.0536)),
        ("all_reduce-four-ranks.txt", ("all_reduce", 4, ("vm",) * 4), 303.92, (2**31, 359.9)),
        ("all_reduce-four-ranks.json", ("all_reduce", 4, ("vm",)), 303.919627, (2**31, 359.9001)),
        ("all_reduce-one-rank.txt", ("all_reduce", 1, ("vm",)), 0, (2**29, 0)),
        ("all_reduce-one-rank.json", ("all_reduce", 1, ("vm",)), 0, (2**29, 0)),
        ("all_reduce-one-rank-excerpt.txt", ("", 1, ("spark-1",)), 0, (2**34, 104.72)),
        ("all_gather-without-mpi.txt", ("all_gather", 1, ("spark-1", "spark-2")), 0, (2**30, 0)),
        ("all_gather-mpi-sockets.json", ("all_gather", 2, ("vm", "vm")), 3.861284, (2**28, 3.7529)),
        ("all_reduce-sockets.txt", ("all_reduce", 2, ("vm", "vm")), 2.45102, (2**27, 3.055)),
    ],
)
def test_captures(fixtures: Path, name, identity, average, largest) -> None:
    (found,) = captured(fixtures, name)
    assert ((found.test, found.ranks, found.hosts), found.average_gbs) == (identity, pytest.approx(average))
    assert found.largest is not None
    assert (found.largest.bytes, found.largest.bus_gbs) == pytest.approx(largest, abs=0.001)
    assert found.wrong == 0


def test_our_own_program_prints_one_result_per_test_between_the_lines_of_nccl(fixtures: Path) -> None:
    found = captured(fixtures, "collectives-one-host.txt")
    assert [(one.test, one.ranks, one.device, one.nccl) for one in found] == [
        ("all_gather", 2, "NVIDIA H200", "2.28.9"),
        ("all_reduce", 2, "NVIDIA H200", "2.28.9"),
    ]
    assert [round(one.largest.bus_gbs) for one in found if one.largest] == [293, 345]


def test_a_run_that_failed_says_how(fixtures: Path) -> None:
    (found,) = captured(fixtures, "all_reduce-no-interface.txt")
    assert found.rows == ()
    assert found.trouble == ".. vm pid 1913: Test failure common.cu:1454"
    assert captured(fixtures, "all_gather-limit-missed.txt")[0].trouble


def test_wrong_values_are_counted_of_both_places() -> None:
    (found,) = read(ROW.format(3, 4))
    assert found.wrong == 7
    assert found.rows == (Row(2**30, 26508.85, 40.535, 20.265, 7),)
    assert read(ROW.format("N/A", 0) + "# Out of bounds values : 9 FAILED\n")[0].wrong == 9


def test_a_program_without_runs_in_place() -> None:
    (found,) = read("  1024  256  float  sum  0  12.5  1.5  2.5  0  N/A  N/A  N/A  N/A\n")
    assert (found.test, found.rows) == ("all_reduce", (Row(1024, 12.5, 1.5, 2.5),))


def test_several_programs_in_one_output(fixtures: Path) -> None:
    texts = [(fixtures / "nccl" / f"all_{name}.txt").read_text() for name in ("gather-pair-16g", "reduce-four-ranks")]
    assert [one.test for one in read("".join(texts))] == ["all_gather", "all_reduce"]


def test_what_is_no_result_is_refused(fixtures: Path) -> None:
    for text in ("", "mpirun was unable to find the specified executable", '{"results": 1}', "{" * 5000):
        with pytest.raises(SparkError, match="no result of nccl-tests"):
            read(text)
    with pytest.raises(SparkError, match="1/2 clients joined"):
        read((fixtures / "nccl/collectives-rank-missing.txt").read_text().replace("rc=1\n", ""))


def test_the_environment_in_the_json_is_not_read(fixtures: Path) -> None:
    assert "HF_TOKEN" in (fixtures / "nccl/all_gather-limit-missed.json").read_text()
    assert "HF_TOKEN" not in repr(captured(fixtures, "all_gather-limit-missed.json"))


@pytest.mark.parametrize(("code", "text"), [(22809, "2.28.9"), (2708, "2.7.8"), (23007, "2.30.7"), (0, "")])
def test_versions(code: int, text: str) -> None:
    assert version(code) == text


@given(st.text(alphabet='# 0123456789.N/AfloatRankPid{}[]":,\n\\', max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert all(row.bytes >= 0 and row.microseconds > 0 for one in read(text) for row in one.rows)
    except SparkError as exc:
        assert "nccl-tests" in str(exc)


def test_a_long_line_takes_no_long_time() -> None:
    """A program of the service user prints it, and root reads it."""
    began = time.monotonic()
    (found,) = parse_text("# Rank 0 Pid 1 on h device 0 [0x0] " + " " * 200_000 + "x")
    assert found.device == "x" and time.monotonic() - began < 10
