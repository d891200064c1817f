# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The fabric fact: what the fabric role tells every later layer about one node.

One JSON document per node at ``/etc/ansible/facts.d/sparkmatrix.fact``, where others find it as
``ansible_local.sparkmatrix``. :func:`load` is the only reader. Nobody downstream derives an interface name, an address
or a GID again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, kinds, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

FACT_PATH = "/etc/ansible/facts.d/sparkmatrix.fact"
SCHEMA_VERSION = 3
STATES = ("planned", "applying", "applied")
TOPOLOGIES = ("single", "direct", "ring", "switch")
TRANSPORTS = ("rdma", "socket")
QOS = ("none", "roce")
CABLE_SOURCES = ("lldp", "probe", "declared", "assumed")
REMEDY = "Run the fabric layer again: ansible-playbook site.yml --tags fabric"


@dataclass(frozen=True)
class Rail:
    """One half of a cabled cage: one netdev, one RDMA device, one subnet."""

    index: kinds.Octet  # 0-based, unique on this node; who shares the subnet is told by `segment` or `edge`
    cage: kinds.Octet  # QSFP cage on the rear of the machine, from phys_port_name p0/p1
    pcie_path: Annotated[str, kinds.or_empty(strict.pci_domain)]  # PCI domain of the half, for example "0000" or "0002"
    netdev: kinds.Interface
    rdma_device: kinds.RdmaDevice
    rdma_port: kinds.Octet
    address: kinds.Ipv4
    prefix: Annotated[int, strict.whole(1, 32)]  # bits
    mtu: Annotated[int, strict.whole(68, 65535)]  # bytes
    link_gbps: kinds.Number  # Gb/s of the cable, 0 when unknown
    segment: kinds.Text = ""  # switch: name of the subnet, for example "rail0"
    neighbor: kinds.HostOrEmpty = ""  # direct, ring: inventory name of the node at the other end
    edge: kinds.Text = ""  # direct, ring: name of the cable, the same at both ends, for example "spark1.0-spark2.1"
    gid_index: Optional[int] = None  # measured; exported to NCCL only with fabric_export_gid_index
    gid: Annotated[str, kinds.or_empty(strict.gid)] = ""  # content, compared between nodes


@dataclass(frozen=True)
class Cable:
    """What one cage of this node is plugged into: another node's cage, or a switch."""

    cage: kinds.Octet
    source: str = field(metadata=document.one_of(*CABLE_SOURCES))  # how this is known
    far_host: kinds.HostOrEmpty = ""  # inventory name of the node at the other end of a direct cable
    far_cage: Optional[int] = None  # None when the cable is known, and not which of the two cages it ends in
    switch: kinds.Text = ""  # name of the switch (LLDP system name, else "switch0")


@dataclass(frozen=True)
class FabricFact:
    """The fabric as one node sees it. ``environment`` is for processes on *this* node only."""

    host: kinds.Host
    state: str = field(metadata=document.one_of(*STATES))
    topology: str = field(metadata=document.one_of(*TOPOLOGIES))
    transport: str = field(metadata=document.one_of(*TRANSPORTS))
    # Ranks are sticky, so one that left leaves a gap: they may be higher than the count.
    rank: Annotated[int, strict.whole(0, 65535)]
    nodes: Annotated[int, strict.whole(1, 1024)]
    management_address: kinds.Address  # kept: later runs choose it again, for as long as the node has it
    cluster_address: kinds.Address  # Ray, VLLM_HOST_IP and rendezvous
    cluster_interface: kinds.Interface
    rails: tuple[Rail, ...] = ()
    environment: Mapping[Annotated[str, strict.variable], kinds.Text] = field(default_factory=dict)
    cables: tuple[Cable, ...] = ()  # this node's own, by cage
    qos: str = field(default="none", metadata=document.one_of(*QOS))
    schema: int = SCHEMA_VERSION
    plan_hash: kinds.Text = ""
    management_interface: kinds.InterfaceOrEmpty = ""  # empty where an earlier release wrote the fact

    @property
    def address_range(self) -> str:
        """Where NCCL looks for the addresses of its adapters; nothing when it takes any."""
        return self.environment.get("NCCL_IB_ADDR_RANGE", "")

    def as_dict(self) -> dict[str, Any]:
        # Not asdict(): its deep copies are half of the planner's time.
        parts = {name: [dict(vars(part)) for part in getattr(self, name)] for name in ("rails", "cables")}
        return {**vars(self), **parts, "environment": dict(self.environment)}

    def with_hash(self) -> FabricFact:
        """The same fact with ``plan_hash`` set: sha256 over everything that is planned, not over what is measured."""
        planned = self.as_dict()
        # What depends on the interface, the environment, is in.
        for volatile in ("state", "plan_hash", "cables", "management_interface"):
            del planned[volatile]
        planned["environment"].pop("NCCL_IB_GID_INDEX", None)  # added after the measurement, if at all
        for rail in planned["rails"]:
            for measured in ("gid_index", "gid", "link_gbps"):
                del rail[measured]
        text = json.dumps(planned, sort_keys=True, separators=(",", ":"))
        return replace(self, plan_hash=hashlib.sha256(text.encode()).hexdigest()[:16])


def dump(fact: FabricFact) -> str:
    """The file's text: stable key order, no timestamp, so that an unchanged fabric gives an unchanged file."""
    return json.dumps(fact.as_dict(), indent=2, sort_keys=True) + "\n"


def on_disk(machine: Machine) -> Any:
    """The document that an earlier run left, for :func:`load`; None where there is none, its text where it is torn."""
    text = machine.read(FACT_PATH)
    if text is None:
        return None
    with contextlib.suppress(SparkError):
        return json_text.read(text)
    return text


def read(document: Any, host: str) -> FabricFact | None:
    """Of a node; None where it has none. One of another release or a damaged one is refused: without its addresses a
    peer would lock its node out."""
    return None if document in (None, "", {}) else load(document, host)


def load(values: Any, host: str) -> FabricFact:
    """Validate what was read from a node.

    ``values`` are as :func:`on_disk` returns it. One that is torn or was edited by hand, and none at all, raise
    :class:`SparkError` with the way out.
    """
    where = f"{host} {FACT_PATH}"
    if values in (None, "", {}):
        raise SparkError(
            "there is no fabric fact: the fabric layer has not run on this node, or its file was removed", where, REMEDY
        )
    if not isinstance(values, Mapping):
        raise SparkError("the fabric fact is not valid JSON (torn or edited by hand)", where, REMEDY)
    if values.get("schema") != SCHEMA_VERSION:
        raise SparkError(
            f"the fabric fact has schema {values.get('schema')!r}, this release reads {SCHEMA_VERSION}", where, REMEDY
        )
    try:
        if not {"rails", "cables"} <= set(values):
            raise ValueError("rails or cables are missing")
        fact: FabricFact = document.load(FabricFact, values)
        _check(fact)
    except (TypeError, ValueError) as exc:
        raise SparkError(f"the fabric fact is damaged ({exc})", where, REMEDY) from exc
    return fact


def require_applied(fact: FabricFact) -> FabricFact:
    """Refuse a fabric that is planned or half applied."""
    if fact.state != "applied":
        raise SparkError(
            f"the fabric is in state {fact.state!r}, not 'applied': a run of the fabric layer did not finish",
            f"{fact.host} {FACT_PATH}",
            REMEDY,
        )
    return fact


def _check(fact: FabricFact) -> None:
    indices = [rail.index for rail in fact.rails]
    if len(set(indices)) != len(indices):
        raise ValueError(f"the rails have the indices {indices}, and each needs its own")
    for cable in fact.cables:
        if bool(cable.far_host) == bool(cable.switch):
            raise ValueError(f"the cable of cage {cable.cage} leads to {cable.far_host or 'neither node nor switch'}")
    if fact.rails and fact.cluster_address not in (fact.management_address, *(rail.address for rail in fact.rails)):
        raise ValueError(f"cluster_address {fact.cluster_address} is neither management_address nor that of a rail")
