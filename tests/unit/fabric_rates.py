# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Nodes at a switch, ready for a measurement of RDMA, and what they answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.bandwidth import Look, Measured, Part
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact, Rail
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import verify as fabric_verify
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.bandwidth import Schedule, schedule
from sysfs_tree import gid_of

DEVICES = ("rocep1s0f0", "roceP2p1s0f0")


def gids(address: str, index: int = 3, device: str = DEVICES[0]) -> list[dict[str, Any]]:
    """A GID table in which the address stands at this index, and a link-local one before it."""
    entry = {"device": device, "port": 1, "netdev": "net0", "version": 2}
    local = {**entry, "index": 1, "gid": "fe80:0000:0000:0000:4821:0bff:fe96:04cb", "ipv4": None}
    return [local, {**entry, "index": index, "gid": gid_of(address), "ipv4": address}]


READY: Mapping[str, Any] = {"tool": "/usr/bin/ib_write_bw", "verbs": True}


def look(**changes: Any) -> Look:
    """Of a machine that can be measured."""
    return document.load_known(Look, {**READY, **changes})  # type: ignore[no-any-return]


def answered(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, list[Measured]]:
    return {host: [document.load_known(Measured, one) for one in rounds] for host, rounds in answers.items()}


def fabric(count: int) -> dict[str, FabricFact]:
    made = {}
    for rank in range(count):
        rails = tuple(
            Rail(
                index=index,
                cage=0,
                pcie_path=f"000{index * 2}",
                netdev=f"net{index}",
                rdma_device=device,
                rdma_port=1,
                address=f"192.168.10{index}.{10 + rank}",
                prefix=24,
                mtu=9000,
                link_gbps=200,
                segment=f"rail{index}",
                gid_index=3,
            )
            for index, device in enumerate(DEVICES)
        )
        host = f"spark{rank + 1}"
        made[host] = FabricFact(
            host=host,
            state="applied",
            topology="switch",
            transport="rdma",
            rank=rank,
            nodes=count,
            management_address=f"10.0.0.{rank + 1}",
            cluster_address=rails[0].address,
            cluster_interface="net0",
            rails=rails,
        ).with_hash()
    return made


def scheduled(facts: Mapping[str, FabricFact], ready: Mapping[str, Look] | None = None, **changes: Any) -> Schedule:
    options: dict[str, Any] = {"changed": False, "forks": 64, "first_port": 18515, "everything": True, **changes}
    looks = ready or dict.fromkeys(facts, look())
    return schedule("always", facts, paths=fabric_verify.paths(facts), ready=looks, **options)


def port(device: str, **changes: Any) -> dict[str, Any]:
    """A half as ``ibdev2netdev`` reads it on a healthy Spark."""
    pci = {
        "address": "0000:01:00.0",
        "link_speed_gts": 32.0,
        "link_width": 4,
        "max_link_speed_gts": 32.0,
        "max_link_width": 4,
    }
    own = {key: changes.pop(key) for key in list(changes) if key in pci}
    known = {
        "rdma_device": device,
        "port": 1,
        "rate_gbps": 200.0,
        "speed_gbps": 200.0,
        "mtu": 9000,
        "firmware": "28.45.4028",
    }
    return {**known, **changes, "pci": {**pci, **own}}


@dataclass
class Figures:
    """What two nodes measure with each other: healthy, but for what a test changes. Keys of ``alone``, ``together`` and
    ``failed``: host and device of either end, or the device alone. A failure may stand in ``together`` too."""

    alone: Mapping[Any, float] = field(default_factory=dict)
    together: Mapping[Any, Any] = field(default_factory=dict)
    failed: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    latency: float = 1.5
    rdma_mtu: int = 4096
    idle: Mapping[Any, float] = field(default_factory=dict)
    counted: Mapping[Any, Mapping[str, int]] = field(default_factory=dict)

    def answers(self, facts: Mapping[str, FabricFact], made: Schedule) -> dict[str, list[dict[str, Any]]]:
        return {host: [self._round(host, one) for one in made.rounds] for host in facts}

    def _round(self, host: str, one: Mapping[str, Sequence[Part]]) -> dict[str, Any]:
        parts = one.get(host, ())
        outcomes: list[dict[str, Any]] = []
        broken: set[int] = set()
        for _slot, group in groupby(parts, key=lambda part: part.slot):
            together = list(group)
            if any(part.rail in broken for part in together):
                continue
            found = [self._outcome(host, part, len(together) > 1) for part in together]
            broken |= {one["rail"] for one in found if one.get("reason")}
            outcomes += found
        devices = {part.device for part in parts}
        return {
            "outcomes": outcomes,
            "idle": {name: self._of(self.idle, host, name) or 0.0 for name in devices},
            "counted": {name: self._of(self.counted, host, name) or {"bytes": 10**11} for name in devices},
            "seconds": 40.0,
        }

    @staticmethod
    def _of(values: Mapping[Any, Any], host: str, device: str) -> Any:
        return values.get((host, device), values.get(device))

    def _outcome(self, host: str, part: Part, together: bool) -> dict[str, Any]:
        common = {"slot": part.slot, "rail": part.rail, "rdma_mtu": self.rdma_mtu}
        common |= {"cause": "", "reason": None, "remedy": None}
        failed = self._of(self.failed, host, part.device) or self._of(self.failed, part.peer, part.device)
        if failed:
            return {**common, "value": None, "rdma_mtu": None, **failed}
        if part.test == "latency":
            return {**common, "value": self.latency}
        usual, values = (98.0, self.together) if together else (105.0, self.alone)
        rates = [self._of(values, end, part.device) for end in (host, part.peer)]
        failed = next((rate for rate in rates if isinstance(rate, Mapping)), None)
        if failed:
            return {**common, "value": None, "rdma_mtu": None, **failed}
        value = min((rate for rate in rates if rate is not None), default=usual)
        return {**common, "value": value * (2 if part.test == "write_both_directions" else 1)}
