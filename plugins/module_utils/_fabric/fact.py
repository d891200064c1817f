# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The fabric fact: what the fabric role tells every later layer about one node.

One JSON document per node at ``/etc/ansible/facts.d/sparkmatrix.fact``, where others find it as
``ansible_local.sparkmatrix``. :func:`load` is the only reader. Nobody downstream derives an interface name, an address
or a GID again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, strict
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

    index: int  # 0-based, unique on this node; who shares the subnet is told by `segment` or `edge`
    cage: int  # QSFP cage on the rear of the machine, from phys_port_name p0/p1
    pcie_path: str  # PCI domain of the half, for example "0000" or "0002"
    netdev: str
    rdma_device: str
    rdma_port: int
    address: str  # IPv4
    prefix: int  # bits
    mtu: int  # bytes
    link_gbps: float  # Gb/s of the cable, 0 when unknown
    segment: str = ""  # switch: name of the subnet, for example "rail0"
    neighbor: str = ""  # direct, ring: inventory name of the node at the other end
    edge: str = ""  # direct, ring: name of the cable, the same at both ends, for example "spark1.0-spark2.1"
    gid_index: int | None = None  # measured; exported to NCCL only with fabric_export_gid_index
    gid: str = ""  # content, compared between nodes


@dataclass(frozen=True)
class Cable:
    """What one cage of this node is plugged into: another node's cage, or a switch."""

    cage: int
    source: str  # one of CABLE_SOURCES: how this is known
    far_host: str = ""  # inventory name of the node at the other end of a direct cable
    far_cage: int | None = None  # None when the cable is known, and not which of the two cages it ends in
    switch: str = ""  # name of the switch (LLDP system name, else "switch0")


@dataclass(frozen=True)
class FabricFact:
    """The fabric as one node sees it. ``environment`` is for processes on *this* node only."""

    host: str
    state: str
    topology: str
    transport: str
    rank: int
    nodes: int
    management_address: str  # kept: later runs choose it again, for as long as the node has it
    cluster_address: str  # Ray, VLLM_HOST_IP and rendezvous
    cluster_interface: str
    rails: tuple[Rail, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    cables: tuple[Cable, ...] = ()  # this node's own, by cage
    qos: str = "none"
    schema: int = SCHEMA_VERSION
    plan_hash: str = ""
    management_interface: str = ""  # empty where an earlier release wrote the fact

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


def load(document: Any, host: str) -> FabricFact:
    """Validate what was read from a node.

    ``document`` is as :func:`on_disk` returns it. One that is torn or was edited by hand, and none at all, raise
    :class:`SparkError` with the way out.
    """
    where = f"{host} {FACT_PATH}"
    if document in (None, "", {}):
        raise SparkError(
            "there is no fabric fact: the fabric layer has not run on this node, or its file was removed", where, REMEDY
        )
    if not isinstance(document, Mapping):
        raise SparkError("the fabric fact is not valid JSON (torn or edited by hand)", where, REMEDY)
    if document.get("schema") != SCHEMA_VERSION:
        raise SparkError(
            f"the fabric fact has schema {document.get('schema')!r}, this release reads {SCHEMA_VERSION}", where, REMEDY
        )
    try:
        parts = {
            name: tuple(_build(cls, entry) for entry in document[name])
            for name, cls in (("rails", Rail), ("cables", Cable))
        }
        fact: FabricFact = _build(FabricFact, {**document, **parts})
        _check(fact)
    except (KeyError, TypeError, ValueError) as exc:
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


_SCALARS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "int | None": (int, type(None)),
}


def _build(cls: type[Any], values: Any) -> Any:
    if not isinstance(values, Mapping):
        raise TypeError(f"{cls.__name__} is a {type(values).__name__}, not a mapping")
    known = {f.name: str(f.type) for f in fields(cls)}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise ValueError(f"unknown keys in {cls.__name__}: {', '.join(map(str, unknown))}")
    for name, value in values.items():
        wanted = _SCALARS.get(known[name])
        if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
            raise TypeError(f"{cls.__name__}.{name} is {value!r}, expected {known[name]}")
    return cls(**values)


def _or_empty(kind: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: value if value == "" else kind(value)


def _check(fact: FabricFact) -> None:
    for name, value, allowed in (
        ("state", fact.state, STATES),
        ("topology", fact.topology, TOPOLOGIES),
        ("transport", fact.transport, TRANSPORTS),
        ("qos", fact.qos, QOS),
        *(("cable source", cable.source, CABLE_SOURCES) for cable in fact.cables),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}, expected one of {', '.join(allowed)}")
    _check_words(fact)
    indices = [rail.index for rail in fact.rails]
    if len(set(indices)) != len(indices):
        raise ValueError(f"the rails have the indices {indices}, and each needs its own")
    for cable in fact.cables:
        if bool(cable.far_host) == bool(cable.switch):
            raise ValueError(f"the cable of cage {cable.cage} leads to {cable.far_host or 'neither node nor switch'}")
    if fact.rails and fact.cluster_address not in (fact.management_address, *(rail.address for rail in fact.rails)):
        raise ValueError(f"cluster_address {fact.cluster_address} is neither management_address nor that of a rail")


# What each field may hold, since it goes into files and commands of this node and of others.
_KINDS: dict[type[Any], dict[str, Callable[[Any], Any]]] = {
    FabricFact: {
        "host": strict.host,
        "management_address": strict.address,
        "cluster_address": strict.address,
        "management_interface": _or_empty(strict.interface),
        "cluster_interface": strict.interface,
        # Ranks are sticky, so one that left leaves a gap: they may be higher than the count.
        "rank": strict.whole(0, 65535),
        "nodes": strict.whole(1, 1024),
        "plan_hash": strict.string,
    },
    Rail: {
        "index": strict.whole(0, 255),
        "cage": strict.whole(0, 255),
        "pcie_path": _or_empty(strict.pci_domain),
        "netdev": strict.interface,
        "rdma_device": strict.rdma_device,
        "rdma_port": strict.whole(0, 255),
        "address": strict.ipv4,
        "prefix": strict.whole(1, 32),
        "mtu": strict.whole(68, 65535),
        "link_gbps": strict.number,
        "segment": strict.string,
        "neighbor": _or_empty(strict.host),
        "edge": strict.string,
        "gid": _or_empty(strict.gid),
    },
    Cable: {
        "cage": strict.whole(0, 255),
        "far_host": _or_empty(strict.host),
        "switch": strict.string,
    },
}


def _check_words(fact: FabricFact) -> None:
    for part in (fact, *fact.rails, *fact.cables):
        for name, kind in _KINDS[type(part)].items():
            _as(kind, getattr(part, name), f"{type(part).__name__}.{name}")
    if not isinstance(fact.environment, Mapping):
        raise TypeError("environment is not a mapping of strings")
    for key, value in fact.environment.items():
        _as(strict.variable, key, "a name in environment")
        _as(strict.string, value, f"environment.{key}")


def _as(kind: Callable[[Any], Any], value: Any, where: str) -> None:
    try:
        kind(value)
    except ValueError as exc:
        raise ValueError(f"{where} {exc}") from exc
