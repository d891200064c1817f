# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Parts of ``node_info`` that look for known faults: GPU, kernel journal, NCCL, Python environments. Read on demand."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict, trusted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import TIMED_OUT, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import (
    Clocks,
    Cuda,
    Environment,
    KernelLine,
)

# CUDA_SUCCESS is 0; names by cuGetErrorName. A GPU whose firmware hangs answers NVML (nvidia-smi) and not this.
_CU_INIT = """
import ctypes
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as exc:
    print("absent", exc)
else:
    code = cuda.cuInit(0)
    name = ctypes.c_char_p()
    cuda.cuGetErrorName(code, ctypes.byref(name))
    print("answer", code, (name.value or b"").decode())
"""
CU_INIT_TIMEOUT_S = 20.0

# The kernel's own words: drivers/pci/pcie/aer.c ("Uncorrected" until Linux 6.12, "Uncorrectable" since) and
# drivers/pci/pci.c. "Detected insufficient power on the PCIe slot (27W)" is left out: healthy Sparks say it too.
_KERNEL_LINES = (
    ("aer_fatal", re.compile(r"severity=Uncorrect(?:ed|able) \(Fatal\)|AER: device recovery failed")),
    ("aer_fatal", re.compile(r"AER: (?:Multiple )?Uncorrect(?:ed|able) \(Fatal\) error")),
    ("low_power", re.compile(r"[Uu]nable to change power state from \w+ to D0, device inaccessible")),
)
_KERNEL_DEVICE = re.compile(r"\b(?:[\w-]+ )?([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): ")
KERNEL_LINES = 2000  # the last ones of this boot with priority err or worse; an AER storm repeats the same few

_WHEEL = re.compile(r"nvidia_nccl_cu\d+-(\d+(?:\.\d+)+)\.dist-info")
_LIBRARY = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)")
_LIBRARY_PLACES = ("usr/lib/aarch64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/local/lib", "usr/lib64")


def cuda(runner: Runner | None = None) -> Cuda:
    """In a process of its own, which is left behind when it hangs: nothing can end one that waits in the driver."""
    argv = [sys.executable, "-I", "-c", _CU_INIT]
    done = runner(argv) if runner else run(argv, CU_INIT_TIMEOUT_S)
    words = done.out.split(None, 2)
    if done.rc == TIMED_OUT:
        return Cuda(True, False, message="cuInit gives no answer")
    if words[:1] == ["absent"]:
        return Cuda(False, message=" ".join(done.out.split()[1:]))
    if done.rc == 0 and len(words) >= 2 and words[0] == "answer" and strict.digits(words[1]) is not None:
        code = strict.digits(words[1])
        return Cuda(True, code == 0, code, words[2].strip() if len(words) > 2 else "")
    # A signal (rc below 0) is the library's; everything else is ours.
    return Cuda(done.rc < 0, False if done.rc < 0 else None, message=done.complaint)


# Printed as "60.50, 96, 71, 2405, 0x0000000000000000": watts, percent, degrees Celsius, MHz, and a mask of NVML's event
# reasons.
_GPU_QUERY = "power.draw,utilization.gpu,temperature.gpu,clocks.sm,clocks_event_reasons.active"
_WATTS = re.compile(r"[0-9]{1,4}(\.[0-9]{1,3})?")
SLOWDOWNS = {0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "hardware power brake"}


def gpu_clocks(runner: Runner | None = None) -> Clocks | None:
    """None where nvidia-smi does not tell. It is left behind when it hangs, as :func:`cuda` is."""
    argv = ["nvidia-smi", f"--query-gpu={_GPU_QUERY}", "--format=csv,noheader,nounits"]
    done = runner(argv) if runner else run(argv, CU_INIT_TIMEOUT_S)
    first = (done.out.strip().splitlines() or [""])[0] if done.rc == 0 else ""
    words = [word.strip() for word in first.split(",")]
    if len(words) != len(_GPU_QUERY.split(",")) or not re.fullmatch(r"0x[0-9a-fA-F]{1,16}", words[-1]):
        return None
    slowed = tuple(why for bit, why in SLOWDOWNS.items() if int(words[-1], 16) & bit)
    watts = float(words[0]) if _WATTS.fullmatch(words[0]) else None
    busy, celsius, mhz = map(strict.digits, words[1:4])
    return Clocks(busy, celsius, mhz, slowed, watts)


def kernel_log(runner: Runner, sysfs_root: Path) -> tuple[KernelLine, ...] | None:
    """What :func:`parse_kernel_log` finds in the journal of this boot, None where it cannot be read.

    ``missing``: the device is not on the bus now, or reads as nothing. A NIC that was taken away for want of a cable
    and came back has lines in the journal, too.
    """
    # By a field that only journald sets: any user may log as "kernel".
    argv = ["journalctl", "-b", "-p", "err", "-n", str(KERNEL_LINES), "-o", "cat", "--no-pager", "-q"]
    done = runner([*argv, "_TRANSPORT=kernel"])
    if done.rc != 0:
        return None
    return tuple(replace(one, missing=_is_missing(sysfs_root, one.device)) for one in parse_kernel_log(done.out))


def _is_missing(sysfs_root: Path, device: str) -> bool:
    place = sysfs_root / "bus/pci/devices" / device
    try:
        # Read from the device itself; one that does not answer is all ones.
        return not device or (place / "config").read_bytes()[:2] == b"\xff\xff"
    except OSError:
        return not place.is_dir()


def parse_kernel_log(text: str) -> list[KernelLine]:
    """Once by kind and device, with the first line."""
    found: dict[tuple[str, str], KernelLine] = {}
    for line in text.splitlines():
        kind = next((name for name, pattern in _KERNEL_LINES if pattern.search(line)), None)
        if kind is None:
            continue
        match = _KERNEL_DEVICE.search(line)
        device = match.group(1) if match else ""
        first = found.get((kind, device), KernelLine(kind, device, line.strip(), 0))
        found[kind, device] = replace(first, count=first.count + 1)
    return list(found.values())


def environments(root: Path, paths: Sequence[str], users: Sequence[str] = ()) -> dict[str, Environment]:
    """Python environments (venv) by path; ``users``: who serve."""
    found = {}
    for path in paths:
        base = root / path.lstrip("/")
        wheels = [
            _WHEEL.fullmatch(item.name) for item in base.glob("lib/python3*/site-packages/nvidia_nccl_cu*.dist-info")
        ]
        found[path] = Environment(
            os.path.lexists(base / "bin/python"),
            next((match.group(1) for match in wheels if match), None),
            trusted.distrusted(f"{path}/bin/python", users, str(root)),
        )
    return found


def system_nccl(root: Path) -> str | None:
    """The version of NVIDIA's package libnccl2, by the name of its library; the newest one of several."""
    names = (_LIBRARY.fullmatch(name) for place in _LIBRARY_PLACES for name in _names(root / place))
    versions = [match.group(1) for match in names if match]
    return max(versions, key=lambda text: [int(part) for part in text.split(".")], default=None)


def interpreters(runner: Runner, names: Sequence[str], users: Sequence[str] = ()) -> dict[str, str | None]:
    """``{program: version}`` of Python interpreters, None where a program does not run, or root must not run it."""
    found: dict[str, str | None] = {}
    for name in names:
        if name.startswith("/") and trusted.distrusted(name, users):
            found[name] = None
            continue
        done = runner([name, "-c", "import sys; print('.'.join(map(str, sys.version_info[:3])))"])
        text = done.out.strip()
        found[name] = text if done.rc == 0 and re.fullmatch(r"\d+(\.\d+)+", text) else None
    return found


def nccl_settings(root: Path, users: Sequence[str]) -> dict[str, dict[str, str]]:
    """``{file: {name: value}}`` of the files that NCCL reads: /etc/nccl.conf, and ~/.nccl.conf of each user.

    NCCL takes the home directory from the account of the process, not from HOME. Its own environment comes first, then
    the user's file, then /etc/nccl.conf; ``#`` begins a comment in the first column only. Source: src/misc/param.cc.
    """
    homes = _homes(_text(root / "etc/passwd"))
    paths = ["/etc/nccl.conf", *(f"{homes[user]}/.nccl.conf" for user in users if user in homes)]
    found = {}
    for path in dict.fromkeys(paths):
        lines = (line for line in _text(root / path.lstrip("/")).splitlines() if not line.startswith("#"))
        pairs = (line.partition("=") for line in lines if "=" in line)
        settings = {name.strip(): value.strip() for name, _equals, value in pairs if name.strip()}
        if settings:
            found[path] = settings
    return found


def _homes(passwd: str) -> Mapping[str, str]:
    rows = (line.split(":") for line in passwd.splitlines())
    return {row[0]: row[5].rstrip("/") for row in rows if len(row) > 6}


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
