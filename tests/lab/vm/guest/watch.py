# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Ping an address until it has been silent for a while and answers again; print for how many seconds it was silent.

Usage: watch.py ADDRESS LIMIT_S

Exit code 1 when that does not happen within LIMIT_S.
"""

from __future__ import annotations

import subprocess
import sys
import time

# A busy host swallows an answer now and then.
SILENCE_S = 10


def main(address: str, limit_s: float) -> int:
    began = answered = time.monotonic()
    while time.monotonic() - began < limit_s:
        done = subprocess.run(["ping", "-n", "-c", "1", "-W", "2", address], capture_output=True, check=False)
        if done.returncode:
            time.sleep(0.2)  # "network is unreachable" comes at once
            continue
        now = time.monotonic()
        if now - answered > SILENCE_S:
            print(f"{now - answered:.1f}")
            return 0
        answered = now
        time.sleep(0.5)
    silent = time.monotonic() - answered
    print(
        f"{address} {'was never silent' if silent < SILENCE_S else f'is silent since {silent:.0f} s'}", file=sys.stderr
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
