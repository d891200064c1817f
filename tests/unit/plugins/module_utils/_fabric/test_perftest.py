# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.perftest import Report, Row, parse
from hypothesis import given
from hypothesis import strategies as st

CAPTURES = Path(__file__).parents[3] / "fixtures/perftest"
RULE = "-" * 87
SETTINGS = f"""\
{RULE}
                    RDMA_Write BW Part
 Dual-port       : OFF\t\tDevice         : rocep1s0f0
 Number of qps   : 4\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 PCIe relax order: ON\t\tLock-free      : OFF
 ibv_wr* API     : ON\t\tUsing Enhanced Reorder      : OFF
 Mtu             : 4096[B]
 Link type       : Ethernet
 GID index       : 3
{RULE}
 local address: LID 0000 QPN 0x0111 PSN 0x2b8ff1 RKey 0x1fff00 VAddr 0x00f1
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:192:168:100:10
{RULE}
"""
HEADER = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
RESULT = f" 65536      560000           0.00               97.51  \t\t   0.185986\n{RULE}\n"


def test_a_run_for_a_time() -> None:
    expected = Report((Row(65536, 560000, 0.0, 97.51),), "rocep1s0f0", 4096, 3)
    assert parse(SETTINGS + HEADER + RESULT) == expected


def test_a_warning_between_header_and_row() -> None:
    warning = "Conflicting CPU frequency values detected: 1400.000000 != 3300.016000. CPU Frequency is not max.\n"
    assert parse(HEADER + warning + RESULT).rows[-1].average_gbps == 97.51


def test_a_column_for_the_processor() -> None:
    header = HEADER.rstrip() + "    CPU_Util[%]\n"
    assert parse(header + " 65536   1059000   0.00   92.31   0.176  5.07\n").rows[-1].average_gbps == 92.31


def test_two_runs_in_one_text() -> None:
    assert len(parse(HEADER + HEADER + RESULT + RESULT).rows) == 2


def test_all_sizes_indented() -> None:
    text = "    " + HEADER + "     2  5000  0.11  0.11  6.89\n     65536  5000  92.39  92.38  0.176196\n"
    assert [row.size for row in parse(text).rows] == [2, 65536]


@pytest.mark.parametrize(("unit", "gbps"), [("Gb", 1000.0), ("MB", 8.389), ("MiB", 8.389)])
def test_the_unit_is_that_of_the_header(unit: str, gbps: float) -> None:
    text = HEADER.replace("Gb", unit) + " 65536  5000  1000.00  1000.00  0.016\n"
    assert parse(text).rows == (Row(65536, 5000, gbps, gbps),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        SETTINGS,
        HEADER,
        RESULT,  # a row without header has no unit
        "Couldn't connect to 192.168.100.11:18515\n",
    ],
)
def test_no_result(text: str) -> None:
    with pytest.raises(SparkError, match="no result"):
        parse(text)


def test_an_unknown_unit() -> None:
    with pytest.raises(SparkError, match="unknown unit"):
        parse(HEADER.replace("Gb", "Tb") + RESULT)


@given(st.text(alphabet=st.sampled_from(list("# 0123456789.\n\t[]/bGiMsecBWpkavrgt:")), max_size=300))
def test_garbage_is_refused_in_words(text: str) -> None:
    for given_text in (text, HEADER + text, SETTINGS + HEADER + text):
        try:
            assert parse(given_text).rows
        except SparkError as exc:
            assert str(exc)


@given(st.floats(0.01, 400), st.integers(1, 10**9))
def test_what_is_printed_comes_back(rate: float, iterations: int) -> None:
    row = parse(f"{HEADER} 65536      {iterations}     0.00     {rate:.2f}     0.1\n").rows[-1]
    assert (row.iterations, row.average_gbps) == (iterations, float(f"{rate:.2f}"))


# What public captures say: rows, Gb/s of the last, microseconds, MTU, GID index, device.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("all_sizes", (23, 92.39, 0.0, 1024, 5, "mlx5_0")),
        ("both_directions_warning", (1, 98.02, 0.0, 4096, 4, "mlx5_0")),
        ("cpu_column", (1, 92.57, 0.0, 1024, 3, "roceP2p1s0f0")),
        ("degraded", (2, 13.23, 0.0, None, None, None)),
        ("four_queues", (1, 111.71, 0.0, 1024, None, "rocep1s0f1")),
        ("json", (1, 18.7, 0.0, 1024, 1, "mlx5_11")),
        ("latency_read_warnings", (1, 0.0, 4.83, 4096, 3, "mlx5_0")),
        ("latency_write", (1, 0.0, 1.47, 1024, None, "rocep1s0f1")),
        ("rdma_cm", (1, 111.61, 0.0, 1024, None, "rocep1s0f0")),
        ("run_infinitely", (6, 97.28, 0.0, 1024, 3, "roceP2p1s0f0")),
        ("small_sizes", (9, 19.15, 0.0, None, None, None)),
        ("soft_roce_mib", (1, 8.6, 0.0, 1024, 1, "rxe0")),
        ("two_interleaved", (2, 98.04, 0.0, 4096, 3, "rocep1s0f1")),
    ],
)
def test_public_captures(name: str, expected: tuple[Any, ...]) -> None:
    report = parse((CAPTURES / f"{name}.txt").read_text())
    last = report.rows[-1]
    found = (len(report.rows), round(last.average_gbps, 2), last.microseconds)
    assert (*found, report.rdma_mtu, report.gid_index, report.device) == expected


def test_every_capture_is_in_the_table() -> None:
    (mark,) = test_public_captures.pytestmark  # type: ignore[attr-defined]
    assert {path.stem for path in CAPTURES.iterdir()} == {name for name, _expected in mark.args[1]}


OLD = """{
test_info: {
test: RDMA_Write_BW_Test,
Device: "rocep1s0f0",
TX_depth : 128,
Mtu: 4096,
GID_index: 3,
},
results: {
MsgSize: 65536,
n_iterations: 5000,
BW_peak: 98.10,
BW_average: 98.04,
MsgRate: 0.187000,
},
}
"""


def test_json_of_versions_that_leave_out_the_quotes() -> None:
    assert parse(OLD, gbits=True) == Report((Row(65536, 5000, 98.1, 98.04),), "rocep1s0f0", 4096, 3)
    assert parse(OLD).rows[0].average_gbps == round(98.04 * 2**20 * 8 / 1e9, 3)


def test_json_of_a_latency() -> None:
    head = (
        '{"test_info": {\n"test": "RDMA_Write_Latency_Test",\n},\n"results": {\n"MsgSize": 2,\n"n_iterations": 1000,\n'
    )
    assert parse(head + '"t_min": 1.40,\n"t_typical": 1.47,\n"t_avg": 1.50\n}\n}').rows[0].microseconds == 1.47
    assert parse(head + '"t_avg": 1.50,\n"tps_average": 9.00\n}\n}').rows[0].microseconds == 1.5
    with pytest.raises(SparkError, match="no result"):
        parse(head + "}\n}")


def test_a_latency_for_a_time() -> None:
    text = " #bytes        #iterations       t_avg[usec]    tps average\n 2     330000     1.51     331000.00\n"
    assert parse(text).rows == (Row(2, 330000, microseconds=1.51),)


def test_a_header_that_is_cut() -> None:
    with pytest.raises(SparkError, match="unknown columns 't_min'"):
        parse(" #bytes #iterations t_min[usec]\n 2 1000 1.5 2.5 3.5\n")
