# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Lines of the kernel in a node's journal, and boots before this one.

Nodes share the kernel of this machine, so nothing is written to /dev/kmsg; and what ``logger`` writes is not the
kernel's. So a journal is made here, with the fields that journald itself would set, and placed beside the node's own.
"""

from __future__ import annotations

import base64
import gzip
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from labstate import LabError

PROGRAM = "/lib/systemd/systemd-journal-remote"
BOOT_ID = pathlib.Path("/proc/sys/kernel/random/boot_id")
KERNEL: Mapping[str, str] = {"_TRANSPORT": "kernel", "SYSLOG_IDENTIFIER": "kernel"}
ROOT: Mapping[str, str] = {"_TRANSPORT": "journal", "SYSLOG_IDENTIFIER": "systemd", "_UID": "0", "_PID": "1"}
ERROR = "3"


@dataclass(frozen=True)
class Line:
    """``ago_s``: before now. ``boot``: an id of 32 digits; empty for the boot that runs."""

    text: str
    ago_s: float = 1.0
    boot: str = ""
    fields: Mapping[str, str] = field(default_factory=lambda: KERNEL)


def script(name: str, lines: Sequence[Line]) -> str:
    """For a shell of the node, as root: a journal of this name with these lines."""
    packed = base64.b64encode(gzip.compress(_journal(lines))).decode()
    return (
        f"{_PLACE}; mkdir -p $place\nbase64 -d <<'END' | gunzip > $place/{name}.journal\n{packed}\nEND\n"
        f"journalctl -q --no-pager --file $place/{name}.journal >/dev/null"
    )


def removed(name: str) -> str:
    return f"{_PLACE}; rm -f $place/{name}.journal"


_PLACE = "place=/run/log/journal/$(cat /etc/machine-id)"


def _journal(lines: Sequence[Line]) -> bytes:
    now, here = time.time(), BOOT_ID.read_text().strip().replace("-", "")
    text = ""
    for line in sorted(lines, key=lambda one: -one.ago_s):
        told = {
            "__REALTIME_TIMESTAMP": str(int((now - line.ago_s) * 1e6)),
            "__MONOTONIC_TIMESTAMP": str(int(max(1e6, 1e12 - line.ago_s * 1e6))),
            "_BOOT_ID": line.boot or here,
            "PRIORITY": ERROR,
            **line.fields,
            "MESSAGE": line.text,
        }
        text += "".join(f"{name}={value}\n" for name, value in told.items()) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(folder) / "made.journal"
        done = subprocess.run([PROGRAM, "-o", str(made), "-"], input=text, capture_output=True, text=True, check=False)
        if done.returncode or not made.exists():
            raise LabError(f"No journal could be made: {done.stderr.strip()}")
        return made.read_bytes()
