# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import bandwidth as fabric_bandwidth
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.bandwidth import (
    Part,
    argv,
    measure,
    read_record,
    without_devices,
)

ENGINE = "sparkmatrix-engine.service"
HEADER = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
OUTPUT = (
    " Device : rocep1s0f0\n Mtu : 4096[B]\n"
    + HEADER
    + " 65536      560000           0.00               97.51  \t\t   0.185986\n"
)
TEST = Part(
    slot=0,
    role="client",
    test="write",
    rail=0,
    device="rocep1s0f0",
    port=1,
    netdev="enp1s0f0np0",
    gid_index=3,
    source="192.168.100.10",
    peer="spark2",
    address="192.168.100.11",
    tcp_port=18515,
)


def test_the_command() -> None:
    common = "-d rocep1s0f0 -i 1 -p 18515 -F --bind_source_ip 192.168.100.10"
    rate = "-q 4 -s 65536 -D 5 --report_gbits"
    assert " ".join(argv(TEST, 5)) == f"ib_write_bw {common} -x 3 {rate} 192.168.100.11"
    assert " ".join(argv(replace(TEST, role="server", gid_index=None), 5)) == f"ib_write_bw {common} {rate}"
    assert " ".join(argv(replace(TEST, test="write_both_directions"), 5)).endswith(f"{rate} -b 192.168.100.11")
    assert " ".join(argv(replace(TEST, test="latency"), 5)) == f"ib_write_lat {common} -x 3 -n 1000 192.168.100.11"


def test_soft_roce_gets_small_queues() -> None:
    assert "-q 1 -t 16 -s 65536 -D 5" in " ".join(argv(replace(TEST, software=True), 5))


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


GOOD = Completed(0, OUTPUT)
REFUSED = Completed(1, "", "Couldn't connect to 192.168.100.11:18515\nUnable to open file descriptor for socket")


def run(tests: Sequence[Part], tool: Tool) -> Sequence[fabric_bandwidth.Outcome]:
    machine = Machine(root="/nowhere", runner=lambda _words: Completed(1), clock=lambda: tool.now, sleep=tool.sleep)
    return measure(tests, 5, 30.0, machine, tool).outcomes


def test_a_client_waits_for_its_server() -> None:
    tool = Tool(REFUSED, REFUSED, GOOD)
    (outcome,) = run([TEST], tool)
    assert (outcome.value, outcome.rdma_mtu, outcome.reason) == (97.51, 4096, None)
    assert len(tool.asked) == 3


def test_a_client_gives_up_and_says_how_to_try_by_hand() -> None:
    tool = Tool(REFUSED)
    (outcome,) = run([TEST], tool)
    assert outcome.value is None and 130 <= tool.now < 132
    assert "192.168.100.11 port 18515" in (outcome.reason or "")
    assert "firewall of spark2" in (outcome.remedy or "") and "ib_write_bw -d rocep1s0f0" in (outcome.remedy or "")


def test_a_server_waits_once_and_its_silence_is_no_failure() -> None:
    tool = Tool(Completed(0, "nothing of use"))
    (outcome,) = run([replace(TEST, role="server")], tool)
    assert (outcome.value, outcome.reason) == (None, None)
    assert tool.asked[0][1] == 30 + 5 + fabric_bandwidth.MARGIN_S


def test_a_client_without_a_result_is_a_failure() -> None:
    (outcome,) = run([TEST], Tool(Completed(0, "nothing of use")))
    assert outcome.value is None and "no result" in (outcome.reason or "") and outcome.cause == ""


def test_a_head_without_a_row_is_a_gid_that_does_not_fit() -> None:
    head = Completed(0, " RDMA_Write BW Test\n GID index       : 3\n Data ex. method : Ethernet\n------\n")
    (outcome,) = run([replace(TEST, gid_index=3)], Tool(head))
    assert (outcome.value, outcome.cause) == (None, "gid_mismatch")
    assert "the GID with index 3 of rocep1s0f0 does not fit" in (outcome.reason or "")
    assert (outcome.remedy or "").startswith("Run the fabric layer again")


@pytest.mark.parametrize(
    ("done", "reason", "remedy"),
    [
        (Completed(127, "", "x"), "no program 'ib_write_bw'", "perftest"),
        (Completed(124, "", "x"), "no answer from spark2", "UDP port 4791"),
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
    tool = Tool(Completed(0, text, ""))
    machine = Machine(root="/nowhere", runner=lambda _words: Completed(1), sleep=tool.sleep)
    found = measure([replace(TEST, software=software)], duration, 30.0, machine, tool)
    assert found.outcomes[0].value == gbps


def test_halves_of_one_slot_are_measured_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=20)

    def runner(words: Sequence[str], _limit: float) -> Completed:
        meeting.wait()
        return GOOD

    other = replace(TEST, rail=1, device="roceP2p1s0f0")
    machine = Machine(root="/nowhere", runner=lambda _words: Completed(1), sleep=lambda _seconds: None)
    assert [answer.value for answer in measure([TEST, other], 5, 1.0, machine, runner).outcomes] == [97.51, 97.51]


def test_a_half_without_a_result_is_not_tried_again() -> None:
    """With a silent node every test would wait for its whole time."""
    second = replace(TEST, slot=1, rail=1, device="roceP2p1s0f0")
    tests = [
        TEST,
        second,
        replace(TEST, slot=2),
        replace(TEST, slot=3),
        replace(second, slot=3),
        replace(second, slot=4),
    ]
    tool = Tool(Completed(1, "", "Failed to modify QP 3 to RTR"), GOOD)
    assert [(answer.slot, answer.value, answer.cause) for answer in run(tests, tool)] == [
        (0, None, "gid_mismatch"),
        (1, 97.51, ""),
        (4, 97.51, ""),
    ]


def test_what_is_started_ends_with_its_parent(tmp_path: Path) -> None:
    """A run that is killed must not leave a server that listens for ever."""
    script = (
        "from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import command\n"
        "from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.bandwidth import BOUND\n"
        f"command.run([*BOUND, 'sh', '-c', 'echo $$ > {tmp_path}/pid; exec sleep 60'], 50.0)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ) as parent:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip() != "")
        child = Path("/proc") / (tmp_path / "pid").read_text().strip()
        assert child.exists()
        parent.kill()
    until(lambda: not child.exists() or "Z" in (child / "stat").read_text().split(")")[1][:3])


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_traffic_before_and_counters_meanwhile(tmp_path: Path) -> None:
    place = tmp_path / "sys/class/infiniband/rocep1s0f0/ports/1"
    for name, text in {
        "counters/port_xmit_data": 1000,
        "counters/port_rcv_data": 0,
        "hw_counters/out_of_sequence": 5,
    }.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(f"{text}\n")
    counted = iter(
        [
            "     rx_discards_phy: 7\n     rx_prio3_pause_duration: 100\n",
            "     rx_discards_phy: 9\n     rx_prio3_pause_duration: 50\n",
        ]
    )

    def idle(_seconds: float) -> None:
        (place / "counters/port_xmit_data").write_text("251000\n")

    def tool(_words: Sequence[str], _limit: float) -> Completed:
        (place / "counters/port_rcv_data").write_text("1000000\n")
        (place / "hw_counters/out_of_sequence").write_text("25\n")
        return GOOD

    machine = Machine(root=str(tmp_path), runner=lambda _words: Completed(0, next(counted)), sleep=idle)
    found = measure([TEST], 5, 1.0, machine, tool)
    assert found.idle == {"rocep1s0f0": 1_000_000.0}
    # The pause went back: somebody has reset the counter.
    assert found.counted == {"rocep1s0f0": {"out_of_sequence": 20, "bytes": 4_000_000, "rx_discards_phy": 2}}


def test_nothing_to_measure_takes_no_time() -> None:
    assert measure([], 5, 30.0, Machine(sleep=lambda _seconds: pytest.fail("slept"))) == fabric_bandwidth.Measured()


def test_a_round_is_measured_in_the_order_of_its_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(tests: Sequence[Part], *given: Any) -> fabric_bandwidth.Measured:
        measured.append(([test.slot for test in tests], *given[:2]))
        return fabric_bandwidth.Measured()

    monkeypatch.setattr(fabric_bandwidth, "measure", measure)
    request = {"tests": [vars(replace(TEST, slot=slot)) for slot in (2, 0, 1)], "duration_s": 7, "wait_s": 30}
    for check in (False, True):
        calls.run("rdma_rates", request, check)
    assert measured == [([0, 1, 2], 7, 30.0), ([], 7, 30.0)]


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
        return Completed(0 if words[-1] == ENGINE else 3)

    found = without_devices(Machine(), systemctl)
    assert found["tool"] == str(tool)
    assert (found["verbs"], found["busy"], found["software"]) == (False, [ENGINE], ["rocep1s0f0"])


@pytest.mark.parametrize("text", [None, "", "{", "[]"])
def test_a_record_that_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "record").write_text(text)
    assert read_record(str(tmp_path / "record")) is None


def test_a_record(tmp_path: Path) -> None:
    (tmp_path / "record").write_text(json.dumps({"plan_hash": "x"}))
    assert read_record(str(tmp_path / "record")) == {"plan_hash": "x"}
