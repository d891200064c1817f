# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.perftest import Report, parse

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
    assert parse(SETTINGS + HEADER + RESULT) == Report(65536, 560000, 97.51, rdma_mtu=4096)


def test_a_warning_between_header_and_row() -> None:
    warning = "Conflicting CPU frequency values detected: 1400.000000 != 3300.016000. CPU Frequency is not max.\n"
    assert parse(HEADER + warning + RESULT).average_gbps == 97.51


@pytest.mark.parametrize("text", ["", SETTINGS, HEADER, RESULT, HEADER.replace("Gb", "MiB") + RESULT])
def test_no_result(text: str) -> None:
    with pytest.raises(SparkError, match="no result"):
        parse(text)


# What public captures say: Gb/s of the last row, microseconds, MTU.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("both_directions_warning", (98.02, 0.0, 4096)),
        ("cpu_column", (92.57, 0.0, 1024)),
        ("degraded", (13.23, 0.0, None)),
        ("four_queues", (111.71, 0.0, 1024)),
        ("latency_write", (0.0, 1.47, 1024)),
    ],
)
def test_public_captures(name: str, expected: tuple[Any, ...]) -> None:
    found = parse((CAPTURES / f"{name}.txt").read_text())
    assert (found.average_gbps, found.microseconds, found.rdma_mtu) == expected
