# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import journal
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.journal import Boot
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

# As they were published: open-gpu-kernel-modules #1358, mlx5e's carrier work, oom_kill.c, NVIDIA's description of Xids.
NO_MEMORY = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from"
    " _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)
DOWN = "mlx5_core 0000:01:00.0 enp1s0f0np0: Link down"
OOM = "Out of memory: Killed process 4711 (VLLM::Worker_TP) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB"
GROUP = "Memory cgroup out of memory: Killed process 99 (python3) total-vm:1kB"
XID = "NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
# Lines of healthy machines.
HEALTHY = (
    "mlx5_core 0000:01:00.0 enp1s0f0np0: Link up",
    "mlx5_core 0000:01:00.0: mlx5_pcie_event:326:(pid 12): Detected insufficient power on the PCIe slot (27W).",
    "mlx5_core 0000:01:00.0: Port module event: module 0, Cable unplugged",
    "mlx5_core 0000:01:00.0: 126.028 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x4 link)",
    "NVRM: Xid (PCI:000f:01:00): 43, pid=1, name=python3, Ch 00000008",  # a process that was killed
    "NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build",
    "NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.",
)
SHUTDOWN = [
    "systemd[1]: Reached target reboot.target - System Reboot.",
    "systemd[1]: Shutting down.",
    "systemd-shutdown[1]: Syncing filesystems and block devices.",
    "systemd-journald[412]: Received SIGTERM from PID 1 (systemd-shutdow).",
    "systemd-journald[412]: Journal stopped",
]
BOOTS = (
    "IDX BOOT ID                          FIRST ENTRY                 LAST ENTRY\n"
    f" -2 {'c' * 32} Fri 2026-11-20 07:00:00 UTC Fri 2026-11-20 09:00:00 UTC\n"
    f" -1 {'b' * 32} Sat 2026-11-21 07:00:00 UTC Sat 2026-11-21 09:00:00 UTC\n"
    f"  0 {'a' * 32} Sun 2026-11-22 07:00:00 UTC Mon 2026-11-23 07:00:00 UTC\n"
)

# Lines as the kernel writes them: Linux 6.8 ("Uncorrected"), Linux 6.14 and later ("Uncorrectable").
FATAL_OLD = """pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0
pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)
pcieport 0000:00:03.0:   device [6f08:8086] error status/mask=00004020/00000000
pcieport 0000:00:03.0: AER: device recovery failed
"""
FATAL_NEW = """pcieport 0002:00:00.0: AER: Uncorrectable (Fatal) error message received from 0002:01:00.0
mlx5_core 0002:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)
"""
HARMLESS = """pcieport 0000:00:1b.2: AER: Correctable error message received from 0000:03:04.0
pcieport 0000:03:04.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)
pcieport 0000:03:04.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer
mlx5_core 0000:01:00.0: mlx5_pcie_event:310:(pid 412): Detected insufficient power on the PCIe slot (27W).
"""
LOST = "mlx5_core 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible\n"


def text(lines, first=1000.0, step=1.0):
    return "".join(f"{first + step * number:.6f} spark1 kernel: {line}\n" for number, line in enumerate(lines))


def machine(answer):
    return Machine(runner=lambda argv: answer(list(argv)))


@pytest.mark.parametrize(
    ("line", "kind", "device"),
    [
        (NO_MEMORY, "no_memory", ""),
        (DOWN, "link_down", "enp1s0f0np0"),
        (OOM, "out_of_memory", "VLLM::Worker_TP"),
        (GROUP, "out_of_memory", "python3"),
        (XID, "gpu_error", "PCI:000f:01:00"),
    ],
)
def test_each_fault_is_counted(line, kind, device):
    (found,) = journal.count(journal.stamped(text([line] * 3)))
    assert (found.kind, found.device, found.count, found.last_at) == (kind, device, 3, 1002.0)
    assert found.last.endswith(line[:200])


def test_the_journal_of_a_healthy_machine_has_none():
    assert journal.count(journal.stamped(text(HEALTHY))) == []


def test_the_most_of_an_hour_and_of_a_day_are_counted_whatever_order_they_are_printed_in():
    times = [0, 10, 20, 4000, 90000, 90001, 90002, 90003]
    lines = "".join(f"{at}.5 h kernel: {DOWN}\n" for at in reversed(times))
    (found,) = journal.count(journal.stamped(lines))
    assert (found.count, found.most_per_hour, found.most_per_day, found.last_at) == (8, 4, 5, 90003.5)


@pytest.mark.parametrize(
    ("answer", "read"),
    [
        (Completed(0, text([DOWN])), True),
        (Completed(1, "", ""), True),  # nothing matches
        (Completed(1, "", "Compiled without pattern matching support"), False),
        (Completed(127, "", "journalctl: No such file or directory"), False),
    ],
)
def test_a_journal_that_cannot_be_read_is_no_healthy_one(answer, read):
    assert journal.faults(machine(lambda _argv: answer), 0.0)[1] is read


@pytest.mark.parametrize("last", SHUTDOWN)
def test_a_boot_that_ended_with_a_shutdown(last):
    found = journal.ending(machine(lambda _argv: Completed(0, text(["x", last]))), "b")
    assert found is not None and found.clean


def test_a_boot_that_breaks_off_and_what_came_before():
    def answer(argv):
        if "--list-boots" in argv:
            return Completed(0, BOOTS)
        if "--grep=NV_ERR_NO_MEMORY" in argv:
            return Completed(0, text([NO_MEMORY] * 3))
        lines = ["one", "two", "three", "four"] if "b" * 32 in argv else SHUTDOWN
        return Completed(0, text(lines, 5000.0 if "b" * 32 in argv else 100.0))

    broken, clean = journal.boots(machine(answer), 0.0)
    last = tuple(f"spark1 kernel: {word}" for word in ("two", "three", "four"))
    assert broken == Boot(5003.0, False, 3, last)
    assert clean.clean
    # What ended before the days that are asked for is left out.
    assert [boot.ended_at for boot in journal.boots(machine(answer), 1000.0)] == [5003.0]


def test_a_journal_that_keeps_no_boots():
    assert journal.boots(machine(lambda _argv: Completed(1, "", "No journal files were found.")), 0.0) == []


def test_what_anybody_may_write_is_not_read():
    """With `logger -t kernel` every user is the kernel by name; these fields are set by journald."""
    asked = []

    def answer(argv):
        asked.append(argv)
        return Completed(0, BOOTS if "--list-boots" in argv else text(["one"]))

    journal.faults(machine(answer), 0.0)
    journal.boots(machine(answer), 0.0)
    assert all({"-t", "--identifier", "-k"}.isdisjoint(argv) for argv in asked)
    filters = [argv[argv.index("-q") + 1 :] for argv in asked if "--list-boots" not in argv]
    assert {" ".join(words) for words in filters} == {"_TRANSPORT=kernel", "_TRANSPORT=kernel + _UID=0"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FATAL_OLD, [("aer_fatal", "0000:00:03.0", 3)]),
        (FATAL_NEW, [("aer_fatal", "0002:00:00.0", 1), ("aer_fatal", "0002:01:00.0", 1)]),
        (LOST * 2, [("low_power", "0000:01:00.0", 2)]),
        (HARMLESS, []),
        ("AER: device recovery failed", [("aer_fatal", "", 1)]),
        ("", []),
    ],
)
def test_errors_of_this_boot(text, expected):
    found = journal.parse_errors(text)
    assert [(kernel_line.kind, kernel_line.device, kernel_line.count) for kernel_line in found] == expected
    assert all(kernel_line.line in text for kernel_line in found)


@pytest.mark.parametrize(("config", "missing"), [(b"\xb3\x15", False), (b"\xff\xff", True), (None, True), (b"", False)])
def test_a_device_that_came_back_is_not_missing(tmp_path, config, missing):
    place = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    if config is not None:
        place.mkdir(parents=True)
        (place / "config").write_bytes(config)
    assert journal.errors(Machine(str(tmp_path), lambda argv: Completed(0, LOST)))[0].missing is missing


def test_a_journal_that_does_not_answer():
    assert journal.errors(machine(lambda argv: Completed(1, "", "no"))) is None
    asked = []
    assert journal.errors(machine(lambda argv: asked.append(argv) or Completed(0, LOST)))[0].kind == "low_power"
    assert asked[0][asked[0].index("-n") + 1] == str(journal.MAX_ERRORS)
