# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The numbers that measured ones are held to, each with whose it is and where it comes from: the one place of them.

The user sets others with ``verify_limits``, by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Limit
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import spelling

VARIABLE = "verify_limits"
LEAST, MOST = "least", "most"
US = "this collection"
PLAYBOOKS = "dgx-spark-playbooks, tests of NCCL on two, three and four Sparks, 2026-09"
DEFAULTS: Mapping[str, Limit] = {
    # RDMA writes, between two nodes
    "half_good_gbps": Limit(
        90,
        "Gb/s",
        LEAST,
        "docs/fabric.md: healthy halves alone measured 92 to 112",
        US,
    ),
    "half_least_gbps": Limit(
        25,
        "Gb/s",
        LEAST,
        "docs/fabric.md: degraded ones measured 8 to 25",
        US,
    ),
    "link_gbps": Limit(184, "Gb/s", LEAST, "NVIDIA Sync, Cluster Assistant: both halves of a link, 2026-04", "NVIDIA"),
    "rate_gbps": Limit(200, "Gb/s", LEAST, "ConnectX-7 of the DGX Spark: negotiated by a link", "NVIDIA"),
    "pcie_gbps": Limit(
        126, "Gb/s", LEAST, "a half at Gen5 x4, as the kernel of a healthy one says: 126.028 Gb/s available", "NVIDIA"
    ),
    "latency_us": Limit(5, "µs", MOST, "ib_write_lat measured 1.5 on a cable; a switch adds one to two", US),
    "half_share": Limit(0.4, "", LEAST, "of the bytes of all halves, where two carry them", US),
    "idle_gbps": Limit(1, "Gb/s", MOST, "what else may move over a half while it is measured", US),
    "loss_per_million": Limit(10, "packets", MOST, "of a million; healthy cables lose none", US),
    "pause_share": Limit(0.1, "", MOST, "of the time, in which a slow half had to be silent", US),
    # NCCL, bus rate of the largest size
    "nccl_pair_gbs": Limit(21.875, "GB/s", LEAST, f"{PLAYBOOKS}: 175 Gb/s for a pair and a switch", "NVIDIA"),
    "nccl_ring_gbs": Limit(10, "GB/s", LEAST, f"{PLAYBOOKS}: a ring of three", "NVIDIA"),
    "nccl_large_ring_gbs": Limit(
        10,
        "GB/s",
        LEAST,
        "that of a ring of three, for four and more: NCCL sends as much over each cable of a ring, however many there"
        " are, and nobody has published a figure",
        US,
    ),
    "nccl_near_share": Limit(
        0.87, "", LEAST, "of the limit; less is a failure: pairs with MTU 1500 still measured 19 of 21.875 GB/s", US
    ),
    "nccl_small_share": Limit(
        0.6,
        "",
        LEAST,
        "of the limit, with less than 4 GiB; less is judged, more is not: healthy pairs measured 18.4 GB/s with 512 MiB"
        " and 20.3 with 1 GiB",
        US,
    ),
    "nccl_degraded_share": Limit(
        0.28,
        "",
        LEAST,
        "of the limit; below it, over RDMA and all halves, the adapter is the cause: such pairs measured 1.6 to 2.8"
        " GB/s",
        US,
    ),
    # doctor
    "no_memory_per_hour": Limit(
        100,
        "lines per hour",
        MOST,
        "healthy starts log up to 23 of them, and machines that then froze about 200:"
        " github.com/vllm-project/vllm/issues/56824, github.com/NVIDIA/open-gpu-kernel-modules/issues/1358, 2026-09",
        US,
    ),
    "links_down_per_day": Limit(4, "times a day", MOST, "a run of the fabric layer takes a link down twice", US),
    "memlock_mib": Limit(64, "MiB", LEAST, "systemd allows 8, and registering memory for RDMA then fails", US),
    "gpu_gbs": Limit(
        150,
        "GB/s",
        LEAST,
        "healthy GB10 read 206 to 235, in the slow state a third:"
        " github.com/tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark/issues/1, 2026-09",
        US,
    ),
    # serving
    "regression_percent": Limit(5, "%", MOST, "slower than earlier runs, and than all of their repetitions", US),
    "draft_acceptance": Limit(0.2, "", LEAST, "of drafted tokens; below it a draft costs more than it saves", US),
}


def limits(settings: Mapping[str, Any] | None = None) -> dict[str, Limit]:
    """All by name, with the user's numbers in place of ours; :class:`SparkError` names what is none."""
    found = {name: replace(limit, variable=f"{VARIABLE}.{name}") for name, limit in DEFAULTS.items()}
    for given, value in (settings or {}).items():
        name = str(given)
        if name not in found:
            near = spelling.closest(name, found)
            remedy = f"Did you mean {near[0]}?" if near else f"Known are {', '.join(found)}"
            raise SparkError(f"there is no limit {name!r:.40}", VARIABLE, remedy)
        found[name] = replace(found[name], value=_number(name, value), source="the inventory", owner="you")
    return found


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not 0 <= number < math.inf:
        raise SparkError(f"{name} is {value!r:.40}, expected a number", VARIABLE, "Set one, or leave it out")
    return number
