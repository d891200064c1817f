# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import bandwidth as fabric_bandwidth
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.bandwidth import (
    Part,
    Report,
    Row,
    argv,
    look,
    measure,
    parse,
    parse_tests,
    read_record,
)
from hypothesis import given
from hypothesis import strategies as st

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
TEST = Part(0, "client", 0, "rocep1s0f0", 1, 3, "192.168.100.10", "spark2", "192.168.100.11", 18515)


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
        " #bytes #iterations t_min[usec] t_max[usec] t_typical[usec]\n 2 1000 1.40 1.90 1.47 1.47 0.00\n",
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


def test_the_command() -> None:
    common = (
        "ib_write_bw -d rocep1s0f0 -i 1 -p 18515 -s 65536 -q 4 -D 5 -F --report_gbits --bind_source_ip 192.168.100.10"
    )
    assert " ".join(argv(TEST, 5)) == f"{common} -x 3 192.168.100.11"
    assert " ".join(argv(replace(TEST, role="server", gid_index=None), 5)) == common


def test_soft_roce_gets_small_queues() -> None:
    assert "-q 1 -t 16 -D 5" in " ".join(argv(replace(TEST, software=True), 5))


class Tool:
    """Answers one after the other, the last one again and again; remembers what was asked."""

    def __init__(self, *answers: Completed) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[str], float]] = []
        self.now = 0.0

    def __call__(self, words: Sequence[str], timeout_s: float) -> Completed:
        self.asked.append((list(words), timeout_s))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def sleep(self, seconds: float) -> None:
        self.now += seconds


GOOD = Completed(0, SETTINGS + HEADER + RESULT)
REFUSED = Completed(1, "", "Couldn't connect to 192.168.100.11:18515\nUnable to open file descriptor for socket")


def run(tests: Sequence[Part], tool: Tool) -> list[fabric_bandwidth.Outcome]:
    return measure(tests, 5, 30.0, runner=tool, clock=lambda: tool.now, sleep=tool.sleep)


def test_a_client_waits_for_its_server() -> None:
    tool = Tool(REFUSED, REFUSED, GOOD)
    (outcome,) = run([TEST], tool)
    assert (outcome.gbps, outcome.rdma_mtu, outcome.reason) == (97.51, 4096, None)
    assert len(tool.asked) == 3


def test_a_client_gives_up_and_says_how_to_try_by_hand() -> None:
    tool = Tool(REFUSED)
    (outcome,) = run([TEST], tool)
    assert outcome.gbps is None and 30 <= tool.now < 31
    assert "192.168.100.11 port 18515" in (outcome.reason or "")
    assert "firewall of spark2" in (outcome.remedy or "") and "ib_write_bw -d rocep1s0f0" in (outcome.remedy or "")


def test_a_server_waits_once_and_its_silence_is_no_failure() -> None:
    tool = Tool(Completed(0, "nothing of use"))
    (outcome,) = run([replace(TEST, role="server")], tool)
    assert (outcome.gbps, outcome.reason) == (None, None)
    assert tool.asked[0][1] == 30 + 5 + fabric_bandwidth.MARGIN_S


def test_a_client_without_a_result_is_a_failure() -> None:
    (outcome,) = run([TEST], Tool(Completed(0, "nothing of use")))
    assert outcome.gbps is None and "no result" in (outcome.reason or "")


@pytest.mark.parametrize(
    ("done", "reason", "remedy"),
    [
        (Completed(127, "", "x"), "no program 'ib_write_bw'", "perftest"),
        (Completed(124, "", "x"), "no answer from spark2", "by hand"),
        (Completed(1, "IB device rocep1s0f0 not found"), "no RDMA device", "rdma link"),
        (Completed(1, "", "Completion with error at client\n Failed status 12: wr_id 0"), "never acknowledged", "4791"),
        (Completed(1, "", "Failed to modify QP 3 to RTR"), "GID", "fabric layer"),
        (Completed(1, "", "Couldn't allocate MR"), "could not be locked", "ulimit -l"),
        (Completed(3, "", "something new"), "exit code 3: something new", "by hand"),
    ],
)
def test_failures_are_explained(done: Completed, reason: str, remedy: str) -> None:
    (outcome,) = run([TEST], Tool(done))
    assert reason in (outcome.reason or "") and remedy in (outcome.remedy or "")


@pytest.mark.parametrize(("software", "duration", "gbps"), [(True, 10, 0.035), (True, 4, 0.0), (False, 10, 0.0)])
def test_soft_roce_is_reckoned_by_its_count(software: bool, duration: int, gbps: float) -> None:
    """An emulated machine printed this: 395 writes, and no rate."""
    text = HEADER + " 65536      395           0.000000            0.000000            0.000000\n"
    found = measure(
        [replace(TEST, software=software)], duration, 30.0, runner=lambda _words, _limit: Completed(0, text, "")
    )
    assert found[0].gbps == gbps


def test_tests_come_in_the_order_of_their_slots() -> None:
    entries = [{**vars(replace(TEST, slot=slot))} for slot in (2, 0, 1)]
    assert [test.slot for test in parse_tests(entries)] == [0, 1, 2]


def test_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, marks in {"rocep1s0f0": ["parent"], "mlx5_0": ["fw_ver"]}.items():
        for mark in marks:
            (tmp_path / "sys/class/infiniband" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "sys/class/infiniband" / name / mark).write_text("x\n")
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/ib_write_bw"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("SPARKMATRIX_SYSFS_ROOT", str(tmp_path / "sys"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(fabric_bandwidth, "VERBS", str(tmp_path / "uverbs*"))

    def systemctl(words: Sequence[str], timeout_s: float) -> Completed:
        return Completed(0 if words[-1] == "engine.service" else 3)

    found = look(["engine.service", "other.service"], systemctl)
    assert found["tool"] == str(tool)
    assert (found["verbs"], found["busy"], found["software"]) == (False, ["engine.service"], ["rocep1s0f0"])


@pytest.mark.parametrize("text", [None, "", "{", "[]"])
def test_a_record_that_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "record").write_text(text)
    assert read_record(str(tmp_path / "record")) is None


def test_a_record(tmp_path: Path) -> None:
    (tmp_path / "record").write_text(json.dumps({"plan_hash": "x"}))
    assert read_record(str(tmp_path / "record")) == {"plan_hash": "x"}
