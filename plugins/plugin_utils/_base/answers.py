# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What our modules answer, for :mod:`_base.border`: one shape per module whose result decides something here.

A field that is compared, or goes to another machine, into a file or a command, has a kind; the others are for people.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.strict import (
    flag,
    gid,
    guid,
    host,
    interface,
    ipv4,
    mac,
    number,
    pci_domain,
    rdma_device,
    whole,
    word,
    words,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.border import (
    Document,
    Each,
    Full,
    Maybe,
    Only,
)

PORT = whole(1, 65535)
COUNT = whole(0)


def or_empty(kind: Any) -> Any:
    """A kind, or an empty text where the module says so for nothing."""
    return lambda value: value if value == "" and isinstance(value, str) else kind(value)


def _fact(document: Any, name: str) -> dict[str, Any] | None:
    """A fact of another release or a damaged one is refused: without its addresses a peer would lock its node out."""
    return None if document in (None, "", {}) else fabric_fact.load(document, name).as_dict()


FACT = Document(_fact)
PLAN = Document(lambda value, name: plan_document.load(value, f"engine plan of {name}"))

# --- ibdev2netdev
_HALF: dict[str, Any] = {
    "rdma_device": rdma_device,
    "port": whole(0, 255),
    "driver": Maybe(word),
    "link_layer": Maybe(word),
    "rdma_state": Maybe(word),
    "phys_state": Maybe(word),
    "rate_gbps": Maybe(number),
    "netdev": Maybe(interface),
    "netdev_source": Maybe(word),
    "carrier": Maybe(flag),
    "admin_up": Maybe(flag),
    "operstate": Maybe(word),
    "speed_gbps": Maybe(number),
    "mtu": Maybe(COUNT),
    "mac": Maybe(mac),
    "phys_port_name": Maybe(word),
    "phys_switch_id": Maybe(word),
    "firmware": Maybe(word),
    "board_id": Maybe(words),
    "node_guid": Maybe(guid),
    "sys_image_guid": Maybe(guid),
    "pci": Maybe(
        {
            "address": word,
            "vendor": Maybe(word),
            "device": Maybe(word),
            "numa_node": Maybe(whole()),
            "link_speed_gts": Maybe(number),
            "link_width": Maybe(COUNT),
            "max_link_speed_gts": Maybe(number),
            "max_link_width": Maybe(COUNT),
            "bandwidth_gbps": Maybe(number),
        }
    ),
    "pci_address": Maybe(word),
    "pcie_path": Maybe(pci_domain),
}
RDMA = Only(
    {
        "devices": Each(Full(_HALF)),
        "cages": Each(
            Full(
                {
                    "cage": whole(0, 255),
                    "port_name": word,
                    "sys_image_guid": guid,
                    "cabled": flag,
                    "admin_down": flag,
                    "halves": Each(Full(_HALF)),
                }
            )
        ),
        "source": Maybe(word),
        "reason": Maybe(word),
        "message": Maybe(words),
    }
)

# --- show_gids
GIDS = Each(
    Full(
        {
            "device": rdma_device,
            "port": whole(0, 255),
            "index": whole(0, 65535),
            "gid": gid,
            "version": Maybe(whole(1, 2)),
            "ipv4": Maybe(ipv4),
            "netdev": Maybe(interface),
        },
        ("device", "port", "index", "gid", "version", "netdev"),
    )
)

# --- node_info
# --- the call pings, for the summary
PROBES = Each(
    Full(
        {
            "rail": whole(0, 255),
            "peer": host,
            "source": ipv4,
            "address": ipv4,
            "ok": flag,
            "rtt_ms": Maybe(number),
            "attempts": COUNT,
            "cause": Maybe(word),
            "reason": Maybe(words),
            "remedy": Maybe(words),
        },
        ("rail", "peer", "ok"),
    )
)
_ASKED = {
    "skipped": Maybe(flag),
    "msg": Maybe(words),
    "reason": Maybe(words),
}
CHECKED = Only({**_ASKED, "changes": Each(words)})
