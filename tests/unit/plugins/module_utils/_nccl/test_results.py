# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

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

DEVICE = {"hostname": "spark-1", "device_info": "NVIDIA GB10"}
MEASURED = {
    "size": 1024,
    "out_of_place": {"time": 12, "alg_bw": 1, "bus_bw": 0.5, "nwrong": 3},
    "in_place": {"time": 14, "alg_bw": 3, "bus_bw": 1.5, "nwrong": 1},
}
JSON = {
    "args": ["./build/all_gather_perf", "-J", "x.json"],
    "nccl_version": 22809,
    "config": {"ngpus": 1, "devices": [DEVICE, {"hostname": "spark-2", "device_info": "NVIDIA GB11"}]},
    "results": [MEASURED],
    "out_of_bounds": {"count": 4},
    "average_bus_bandwidth": {"bandwidth": 1.25},
    "errors": [""],
}
HOSTS = ("spark-1", "spark-2")
FROM_JSON = Results("all_gather", (Row(1024, 13, 2, 1, 4),), 2, HOSTS, "NVIDIA GB10", 1.25, 4, "2.28.9")
DEGRADED = Results(
    "all_gather",
    (Row(2**30, 190859, 5.625, 2.81), Row(2**31, 380332.5, 5.65, 2.825), Row(2**32, 759260, 5.66, 2.825)),
    2,
    HOSTS,
    "NVIDIA GB10",
    2.82151,
    0,
    "2.28.9",
)


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


@pytest.mark.parametrize(("old", "new"), [("", ""), ("\n", "\r\n"), ("\n", "\r"), (" ", "\xa0")])
def test_all_that_a_text_says(fixtures: Path, old: str, new: str) -> None:
    text = (fixtures / "nccl/all_gather-pair-degraded.txt").read_text()
    assert parse_text(text.replace(old, new) if old else text) == [DEGRADED]


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("1 1 float none -1 0.5 1 2 0 0.5 1 2 0", Row(1, 0.5, 1, 2)),
        ("1 x float none -1 0.5 1 2 0 0.5 1 2 0", None),
        ("x 1 float none -1 0.5 1 2 0 0.5 1 2 0", None),
        ("1 1 float none -1 0 1 2 0 nan 1 2 0", None),
        ("1 1 float none -1 1 1 2 0 N/A N/A N/A N/A", Row(1, 1, 1, 2)),
        ("1 1 float none -1 1 0.00011 2 0 1 0.00014 2 0", Row(1, 1, 0.0001, 2)),
        (f"1 1 float none -1 1 1 2 {'9' * 18} 1 1 2 0", Row(1, 1, 1, 2, 10**18 - 1)),
        (f"1 1 float none -1 1 1 2 {'9' * 19} 1 1 2 5", Row(1, 1, 1, 2, 5)),
        ("1 1 float none -1 1 1 2 0 1 1 2", None),
        (f"{10**18 - 1} 1 1 2", Row(10**18 - 1, 1, 1, 2)),
        (f"{10**18} 1 1 2", None),
        ("4 0.5 1 2", Row(4, 0.5, 1, 2)),
        ("4 0 1 2", None),
        ("4 1 2", None),
    ],
)
def test_rows_of_a_text(line: str, row: Row | None) -> None:
    assert [one.rows for one in parse_text(line)] == ([(row,)] if row else [])


@pytest.mark.parametrize("operation", ["sum", "prod", "max", "min", "avg"])
def test_rows_with_an_operation_are_those_of_a_reduction(operation: str) -> None:
    row = f"  1024  256  float  {operation}  -1  12.5  1.5  2.5  0  12.5  1.5  2.5  0"
    assert parse_text(f"# header\n{row}\n") == [Results("all_reduce", (Row(1024, 12.5, 1.5, 2.5),))]
    assert parse_text(row.replace(operation, "none")) == [Results("", (Row(1024, 12.5, 1.5, 2.5),))]


def test_hosts_are_in_the_order_of_the_ranks_and_all_has_limits() -> None:
    ranks = [f"#  Rank {number:2} Group  0 Pid 1 on h{number} device 0 [0f:01:00] {'d' * 300}" for number in (1, 0)]
    (found,) = parse_text("\n".join([*ranks, *["8 1 1 1"] * 129, "CUDA failure first", f"Test failure {'x' * 300}"]))
    row = Row(8, 1, 1, 1)
    assert found == Results("", (row,) * 128, 2, ("h0", "h1"), "d" * 200, trouble=f"Test failure {'x' * 300}"[:200]), (
        "the last failure is the one that ended it"
    )
    many = "\n".join(f"# Rank {number} Pid 1 on h device 0 [0] x" for number in range(1025))
    assert [(one.ranks, len(one.hosts)) for one in parse_text(many)] == [(1024, 1024)]


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ({}, {}),
        ({"args": ["all_gather_perf"]}, {}),
        ({"args": ["./build/all_gather_perf_mpi"]}, {}),  # NAME_SUFFIX=_mpi, as its README builds it
        ({"args": ["mpirun"]}, {"test": ""}),
        ({"args": []}, {"test": ""}),
        ({"args": "all_gather_perf"}, {"test": ""}),
        ({"config": None}, {"ranks": 0, "hosts": (), "device": ""}),
        ({"config": {"devices": [DEVICE, "x", {"rank": 1}]}}, {"hosts": ("spark-1",)}),
        ({"config": {"ngpus": 4, "devices": [DEVICE]}}, {"ranks": 4, "hosts": ("spark-1",)}),
        ({"config": {"devices": [{}]}}, {"ranks": 1, "hosts": (), "device": ""}),
        (
            {"config": {"devices": [{"hostname": "h" * 201, "device_info": "d" * 201}]}},
            {"ranks": 1, "hosts": ("h" * 200,), "device": "d" * 200},
        ),
        ({"config": {"devices": [DEVICE] * 1025}}, {"ranks": 1024, "hosts": ("spark-1",) * 1024}),
        ({"ranks": 3}, {"ranks": 3}),
        ({"out_of_bounds": {"count": 9}}, {"wrong": 9}),
        ({"out_of_bounds": {"count": 3}}, {}),
        ({"out_of_bounds": None}, {}),
        ({"average_bus_bandwidth": None}, {"average_gbs": 0}),
        ({"average_bus_bandwidth": {"bandwidth": "nan"}}, {"average_gbs": 0}),
        ({"average_bus_bandwidth": {"bandwidth": "inf"}}, {"average_gbs": 0}),
        ({"average_bus_bandwidth": {"bandwidth": True}}, {"average_gbs": 0}),
        ({"average_bus_bandwidth": {"bandwidth": "N/A"}}, {"average_gbs": 0}),
        ({"average_bus_bandwidth": {"bandwidth": 10**400}}, {"average_gbs": 0}),
        ({"nccl_version": 2708}, {"nccl": "2.7.8"}),
        ({"nccl_version": None}, {"nccl": ""}),
        ({"backend": "gloo"}, {"backend": "gloo"}),
        ({"backend": "b" * 21}, {"backend": "b" * 20}),
        ({"errors": ["", "no device", "later"]}, {"trouble": "no device"}),
        ({"errors": ["e" * 201]}, {"trouble": "e" * 200}),
        ({"errors": "none"}, {}),
        ({"results": [MEASURED] * 129}, {"rows": FROM_JSON.rows * 128, "wrong": 512}),
        ({"results": [], "out_of_bounds": None}, {"rows": (), "wrong": 0}),
    ],
)
def test_all_that_a_json_says(said: dict[str, Any], fields: dict[str, Any]) -> None:
    assert read(json.dumps({**JSON, **said})) == [replace(FROM_JSON, **fields)]


@pytest.mark.parametrize(
    ("entry", "row"),
    [
        ({"size": 1, "in_place": {"time": 0.5}}, Row(1, 0.5, 0, 0)),
        ({"size": 1, "out_of_place": {"time": 1, "alg_bw": 2, "bus_bw": 3}, "in_place": "N/A"}, Row(1, 1, 2, 3)),
        ({"size": 8, "in_place": {"time": 1, "nwrong": 2**61}}, Row(8, 1, 0, 0, 2**61)),
        ({"size": 8, "in_place": {"time": 1, "nwrong": 2**62}}, Row(8, 1, 0, 0)),
        ({"size": 8, "in_place": {"time": 1, "nwrong": -1}}, Row(8, 1, 0, 0)),
        ({"size": 8, "in_place": {"time": 1, "nwrong": True}}, Row(8, 1, 0, 0)),
        ({"size": 8, "in_place": {"time": 1, "bus_bw": 10**400}}, Row(8, 1, 0, 0)),
        ({"size": 8, "in_place": {"time": 0, "bus_bw": 1}}, None),
        ({"size": 8, "in_place": {"time": None}}, None),
        ({"size": 0, "in_place": {"time": 1}}, None),
        ({"size": 2**62, "in_place": {"time": 1}}, None),
        ({"size": 10**400, "in_place": {"time": 1}}, None),
        ({"size": 8}, None),
        ("8", None),
    ],
)
def test_rows_of_a_json(entry: Any, row: Row | None) -> None:
    (found,) = read(json.dumps({"results": [entry]}))
    assert found.rows == ((row,) if row else ())


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(JSON),
        f"  {json.dumps(JSON)}",
        f"\n{json.dumps(JSON, indent=1)}\n",
        f"noise\n {json.dumps(JSON)} \nNCCL version 2.28.9+cuda13.0\n8 1 1 1",
        f"{json.dumps(JSON)}\n8 1 1 1",
    ],
)
def test_a_json_is_found(text: str) -> None:
    assert read(text) == [FROM_JSON]


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "nothing"), (" \n", "nothing"), ("a\n b \n\n", "b"), ("[1]", "[1]"), ("x" * 161, "x" * 160)],
)
def test_a_refusal_shows_the_last_words(text: str, said: str) -> None:
    with pytest.raises(SparkError) as refused:
        read(text)
    assert str(refused.value) == (
        f"output of nccl-tests: there is no result of nccl-tests in it; it ends with {said!r}."
    )


def test_what_is_no_result_is_refused(fixtures: Path) -> None:
    for text in ("", "mpirun was unable to find the specified executable", '{"results": 1}', "{" * 5000):
        with pytest.raises(SparkError, match="no result of nccl-tests"):
            read(text)
    with pytest.raises(SparkError, match="1/2 clients joined"):
        read((fixtures / "nccl/collectives-rank-missing.txt").read_text().replace("rc=1\n", ""))


def test_the_environment_in_the_json_is_not_read(fixtures: Path) -> None:
    assert "HF_TOKEN" in (fixtures / "nccl/all_gather-limit-missed.json").read_text()
    assert "HF_TOKEN" not in repr(captured(fixtures, "all_gather-limit-missed.json"))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (22809, "2.28.9"),
        (2708, "2.7.8"),
        (23007, "2.30.7"),
        (10000, "1.0.0"),
        (9999, "9.9.99"),
        (1, "0.0.1"),
        (0, ""),
        (-1, ""),
    ],
)
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


@pytest.mark.parametrize("name", ["all_gather-pair-16g.txt", "all_reduce-four-ranks.txt", "all_reduce-one-rank.json"])
@pytest.mark.parametrize(
    "tag",
    [
        *("[1,0]<stdout>:", "[1,0]<stdout>: ", "[job@1,0][a:7]<stdout>: ", "0: ", " 0: ", "[0] "),
        *("Thu Nov 26 02:45:00 2026[1,0]<stdout>:", "2026-11-26T02:45:00.123Z ", "spark-a  | ", "spark-a: "),
        *("[pod/nccl-0/launcher] ", "Nov 26 02:45:01 spark-a mpirun[2394]: ", "[0@spark-a] "),
    ],
)
def test_the_tags_of_launchers_change_nothing(fixtures: Path, name: str, tag: str) -> None:
    text = (fixtures / "nccl" / name).read_text()
    tagged = "".join(f"{tag}{line}" for line in text.splitlines(keepends=True))
    assert read(tagged) == read(text)
    middle = text.replace("# Avg", "[1,0]<stdout>:# A[1,0]<stdout>:vg")  # a line in two pieces
    assert read(middle) == read(text)
