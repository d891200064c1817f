# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Who takes part when the machines find out which cable leads where."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

START_S = 60  # for starting all of them, beside their waiting for each other


def discovery(
    topology: str, forks: int, timeout_s: float, *, found: Collection[str], addresses: Mapping[str, str]
) -> dict[str, Any]:
    """``found``: the machines that have RDMA devices; ``addresses``: where Ansible connects to, of all.

    ``speakers``: a machine without RDMA devices has no port to speak on, and the others need not wait for it.
    ``background_s``: each waits for the others, so with fewer forks than machines they are only started; else 0.
    """
    asked = topology != "single" and timeout_s > 0
    speakers = [host for host in found if asked]
    return {
        "speakers": speakers if len(speakers) > 1 else [],
        "cluster": " ".join(dict.fromkeys([*addresses, *filter(None, addresses.values())])),
        "background_s": 0 if len(speakers) <= forks else int(START_S + 2 * timeout_s),
    }
