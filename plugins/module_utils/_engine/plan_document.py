# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The engine plan: what the planner tells every later layer about one node.

One document per node, in memory as ``spark_plan`` and kept on the node once it serves (:mod:`_engine.kept_plan`).
:func:`load` is the only reader. Nobody downstream decides what runs where, with which options, or under which name;
nothing in it is the text of a file; ``plugin_utils/_engine/render`` makes that from it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.document import one_of
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names

SCHEMA_VERSION = 1
WHERE = "engine plan"
REMEDY = "Compute it again: ansible-playbook site.yml"
HEAD, WORKER = "head", "worker"
BACKENDS = ("single", "ray", "native", "mpi")
RUNTIMES = ("venv", "container")
GPUS = ("all", "cdi", "none")


@dataclass(frozen=True)
class Command:
    """A command line: program and options, behind what starts several ranks at once, where something does."""

    program: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    starter: tuple[str, ...] = ()
    entrypoint: bool = False  # the words, if there are any, are given to the image's own

    @property
    def words(self) -> list[str]:
        return [*self.starter, *self.program, *self.options]


MODEL = "the model"  # why its directory, or the cache that it is in, is mounted


@dataclass(frozen=True)
class Mount:
    """A path of the node in the container."""

    source: str
    target: str
    read_only: bool
    why: str


@dataclass(frozen=True)
class Patch:
    """A file of the node over a file of the image."""

    source: str
    target: str


@dataclass(frozen=True)
class Member:
    """A node of a service."""

    host: str
    rank: int
    address: str
    runs_here: bool  # a process of the engine's own
    ranks: bool  # something of the engine runs there as a unit, its rank or the Ray that holds it


@dataclass(frozen=True)
class Prefixes:
    """What was computed of prompts, kept on each node's disk over a restart. Nothing where ``base`` is empty."""

    base: str = ""  # of the service
    key: str = ""  # of all that decides what is written; the engine's files lie in a directory of this name
    disk_gb: int = 0  # at most
    memory: int = 0  # bytes in which it comes and goes

    @property
    def directory(self) -> str:
        return f"{self.base}/{self.key}" if self.base else ""

    @property
    def shared(self) -> int:
        """Bytes at most of a /dev/shm that no other account sees: engines open by its name what is there already, and
        what a killed one leaves goes with it. So much for the rest is an assumption."""
        return self.memory + 16 * 2**30


@dataclass(frozen=True)
class Parallel:
    """How the model is split over the nodes."""

    tensor: int
    pipeline: int
    reason: str
    data: int = 1
    expert: bool = False

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data

    @property
    def replicas_of_one(self) -> bool:
        """Every node holds a whole model."""
        return self.data > 1 and self.tensor * self.pipeline == 1


@dataclass(frozen=True)
class Memory:
    """The budget of one rank, in bytes. Sizes are 0 on a CPU, where none is computed."""

    verdict: str  # fits, tight, or not computed
    sentence: str
    room: str  # what else would fit
    device: str
    context: int
    concurrency: int
    utilization: float
    total: int = 0
    assumed: bool = False  # no machine was asked
    budget: int = 0
    weights: int = 0
    overhead: int = 0
    activations: int = 0
    kv_bytes_per_token: int = 0
    kv_needed: int = 0
    kv_available: int = 0
    kv_cache_memory_bytes: int = 0
    state_per_request: int = 0
    load_peak: int = 0
    host: int = 0
    beside: int = 0
    prefixes: int = 0  # in which what is kept of prompts on disk comes and goes
    cache_tokens: int = 0
    max_concurrency: int = 0
    max_context: int = 0
    longest: int = 0  # tokens of the longest single request
    sequences: int = 0  # requests that the scheduler runs at once
    at_once: str = ""
    reasons: tuple[str, ...] = ()
    measured: int = 0  # that the fullest node gave up when it served, where no budget is computed


@dataclass(frozen=True)
class Published:
    """A figure of somebody's run."""

    tokens_per_second: float
    streams: int
    engine: str
    source: str
    measured_here: bool
    differs: str = ""  # from what is planned; empty: it is the same configuration


# Share of what is expected, below which a service is slower than it should be. Of 111 published rows none lies below
# 0.73 of the model of cost, and two above 1.45; of runs of one configuration (four pairs in speed_rows.yml) none
# is further apart than 6 %. tests/bench/speed_verdict.py: how often a pair at half its speed is found.
LEAST, LEAST_OF_PUBLISHED = 0.7, 0.8


@dataclass(frozen=True)
class Pace:
    """What so many users get together, by the model of cost."""

    users: int
    tokens_per_second: float


@dataclass(frozen=True)
class Expectation:
    """How fast it should be: by the model of cost, which knows nothing of a model without ``active_gb``, and by what
    others have measured on as many nodes. ``low`` and ``high``: between them a healthy service answers one user."""

    low: float = 0.0
    high: float = 0.0
    paces: tuple[Pace, ...] = ()
    drafted: int = 0  # tokens of each step
    accepted: float = 1.0  # tokens that a step gives for it, the model's own among them
    assumed: bool = False  # nobody has measured how many that are
    prompt: int = 0  # tokens, of which the first answer comes after so long
    first_token_s: float = 0.0
    load_s: float = 0.0  # reading the weights at a start
    published: tuple[Published, ...] = ()

    def at(self, users: int, engine: str = "") -> tuple[float, bool]:
        """(tokens/s of so many users together, somebody has measured them with this engine); 0 where nobody knows."""
        same = [
            figure.tokens_per_second
            for figure in self.published
            if (figure.streams, figure.engine) == (users, engine) and not figure.differs
        ]
        if same:
            return sum(same) / len(same), True
        below = max((pace for pace in self.paces if pace.users <= users), default=None, key=lambda pace: pace.users)
        above = min((pace for pace in self.paces if pace.users >= users), default=below, key=lambda pace: pace.users)
        if below is None or above is None:
            return 0.0, False
        if above.users == below.users:
            return below.tokens_per_second, False
        part = math.log(users / below.users) / math.log(above.users / below.users)
        return below.tokens_per_second ** (1 - part) * above.tokens_per_second**part, False

    def healthy(self, users: int, engine: str, accepted: float = 0.0) -> tuple[float, float]:
        """(least, most) tokens/s that so many users should get together; zeros where nobody knows. ``accepted``: tokens
        that a step gave where that was measured; else a draft may do half as well as is expected of it."""
        middle, measured = self.at(users, engine)
        share = LEAST_OF_PUBLISHED if measured else LEAST
        if accepted:
            middle *= accepted / self.accepted
        elif self.drafted:
            share *= (1 + (self.accepted - 1) / 2) / self.accepted
        return middle * share, middle / share


@dataclass(frozen=True)
class Container:
    """What a container is given, beside its image and mounts."""

    gpus: str = field(default="all", metadata=one_of(*GPUS))
    devices: tuple[str, ...] = ("/dev/infiniband",)
    memlock: str = "infinity"
    nofile: str = "65536"
    nccl_conf: str = ""  # the user's own; empty: one without settings
    stop_timeout_s: int = 60


@dataclass(frozen=True)
class Environment:
    """A Python environment."""

    path: str
    requirements: tuple[str, ...] = ()


@dataclass(frozen=True)
class Model:
    """What ranks on the node read: a path of the node, or the name of a repository."""

    name: str
    revision: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)  # by which a name is looked up
    contained: bool = False  # by root in a container, else by the service user


@dataclass(frozen=True)
class Image:
    """What containers of the node are made from."""

    name: str
    ray: bool = False  # a Ray is, too
    patches: tuple[Patch, ...] = ()
    nccl: bool = False  # ranks of several nodes are
    gpus: str = field(default="none", metadata=one_of(*GPUS))  # given to them


@dataclass(frozen=True)
class Unknown:
    """An engine whose version has no option table, so it is asked on the node for version and options."""

    name: str  # image, or path of a Python environment
    contained: bool
    distributions: tuple[str, ...]  # that may bring it
    help_words: tuple[str, ...]
    gpus: str = field(default="all", metadata=one_of(*GPUS))


@dataclass(frozen=True)
class EnginePlan:
    """The engine's process, and where it is asked. Under Ray a worker has the head's command, and does not run it."""

    name: str
    version: str  # empty where it is not known
    runs_here: bool
    command: Command
    env: Mapping[str, str]
    starter_env: Mapping[str, str]  # of what starts several ranks
    files: Mapping[str, str]  # path: content
    ports: Mapping[str, int]
    host: str
    port: int
    model: str
    served_model_name: str
    task: str
    health: str  # path that answers once it is ready; empty where a token alone tells
    key: bool  # it asks for an API key

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self.port}/v1"


@dataclass(frozen=True)
class ServicePlan:
    """One service on one node."""

    instance: str  # its name where there are several, else empty
    host: str
    rank: int
    role: str = field(metadata=one_of(HEAD, WORKER))
    head: str
    nodes: int
    backend: str = field(metadata=one_of(*BACKENDS))
    runtime: str = field(metadata=one_of(*RUNTIMES))
    recipe: str
    profile: str
    hazards: tuple[str, ...]
    not_pinned: tuple[str, ...]  # what may change under the same name
    image: str
    mounts: tuple[Mount, ...]
    patches: tuple[Patch, ...]
    container: Container
    venv: Environment
    home: str
    model_cache: str
    engine: EnginePlan
    members: tuple[Member, ...]
    parallel: Parallel
    memory: Memory
    expectation: Expectation
    models: tuple[Model, ...] = ()  # that its ranks on this node read
    prefixes: Prefixes = field(default_factory=Prefixes)
    config_hash: str = ""  # of everything that makes it another service to a user

    @property
    def names(self) -> Names:
        return Names(self.instance)

    @property
    def is_head(self) -> bool:
        return self.role == HEAD

    @property
    def contained(self) -> bool:
        return self.runtime == "container"

    @property
    def over_ray(self) -> bool:
        return self.backend == "ray"

    @property
    def from_image(self) -> bool:
        """Something of it is made from its image on this node."""
        return self.contained and (self.engine.runs_here or self.over_ray)


@dataclass(frozen=True)
class RayPlan:
    """The node's Ray; it exists once, for the one service that spans nodes over it."""

    needed: bool = False
    role: str = field(default="", metadata=one_of("", HEAD, WORKER))
    head: str = ""
    keeper: str = ""  # unit that acts on it
    address: str = ""
    members: Mapping[str, str] = field(default_factory=dict)  # host: address
    command: Command = field(default_factory=Command)
    env: Mapping[str, str] = field(default_factory=dict)
    token_path: str = ""
    temp_dir: str = ""
    python: str = ""  # that asks it
    container: str = ""  # empty in a Python environment
    image: str = ""
    mounts: tuple[Mount, ...] = ()
    # The first Ray that may be there, by path of the environment: also what an earlier plan asked for is held to it.
    oldest: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MpiPlan:
    """The node's part in a job of MPI; empty where it has none."""

    role: str = field(default="", metadata=one_of("", HEAD, WORKER))
    head: str = ""


@dataclass(frozen=True)
class Cluster:
    head: str = ""
    nodes: int = 0
    is_head: bool = False


@dataclass(frozen=True)
class Offer:
    """A service as the head of the cluster reaches it."""

    name: str
    model: str
    host: str
    port: int
    key: bool
    task: str
    key_file: str
    named: tuple[str, ...] = ()  # other models, that take its place when clients ask for them
    salted: tuple[str, ...] = ()  # paths at which it keeps apart what it has computed for clients


@dataclass(frozen=True)
class Head:
    """A service whose head is this node."""

    name: str
    instance: str
    unit: str
    keeper: str
    description: str
    host: str
    port: int
    endpoint: str
    key: bool
    task: str
    engine: str
    model: str
    nodes: int
    recipe: str


@dataclass(frozen=True)
class NodePlan:
    """All that is planned for one node. One that serves nothing has the defaults."""

    host: str
    here: tuple[ServicePlan, ...] = ()  # the one that spans nodes first
    at_hand: tuple[ServicePlan, ...] = ()  # of other models, that can take the place of the one here without a run
    heads: tuple[Head, ...] = ()
    ray: RayPlan = field(default_factory=RayPlan)
    mpi: MpiPlan = field(default_factory=MpiPlan)
    images: tuple[Image, ...] = ()
    environments: tuple[Environment, ...] = ()
    models: tuple[Model, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    model_cache: str = ""  # directory for what is downloaded
    open_to_peers: bool = False  # ranks of other nodes, or the gateway on the cluster's head, come in here
    cluster: Cluster = field(default_factory=Cluster)
    services: tuple[Offer, ...] = ()  # of the whole cluster; only its head, where the gateway is, has them
    identity: str = ""  # the same on all nodes; changes with every part that a user would see on any of them
    image_ids: Mapping[str, str] = field(default_factory=dict)  # by name, as they were when it served
    took: Mapping[str, int] = field(default_factory=dict)  # bytes of memory by instance, once it served (_engine.taken)
    schema: int = SCHEMA_VERSION

    @property
    def all(self) -> tuple[ServicePlan, ...]:
        """What has to be on the node."""
        return (*self.here, *self.at_hand)

    def as_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = document.plain(self)
        return made


def read(document: Any, host: str) -> NodePlan:
    """Of a node."""
    return load(document, f"engine plan of {host}")


def load(values: Any, where: str = WHERE, remedy: str = REMEDY) -> NodePlan:
    """Validate a document: what the planner returned in this run, or what a node keeps from an earlier one."""
    if not values:
        raise SparkError("there is no engine plan", where, remedy)
    if not isinstance(values, Mapping):
        raise SparkError("the engine plan is no mapping", where, remedy)
    if values.get("schema") != SCHEMA_VERSION:
        raise SparkError(
            f"the engine plan was made by another release: it has schema {values.get('schema', 'none')}, this one reads"
            f" {SCHEMA_VERSION}",
            where,
            remedy,
        )
    try:
        plan: NodePlan = document.load(NodePlan, values)
    except (TypeError, ValueError) as exc:
        raise SparkError(f"the engine plan is damaged ({exc})", where, remedy) from exc
    return plan


def schema() -> dict[str, Any]:
    """The JSON schema of one node's plan. Written to docs/engine-plan.schema.json."""
    made = document.schema(NodePlan)
    made["properties"]["schema"]["const"] = SCHEMA_VERSION
    made["required"].append("schema")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Engine plan of one node, by sparkmatrix.cluster",
        **made,
    }


def fingerprint(*parts: Any) -> str:
    """Of parts of a plan."""
    return config_hash(json.dumps([document.plain(part) for part in parts], sort_keys=True))


def environments(plans: Sequence[ServicePlan]) -> tuple[Environment, ...]:
    """Python environments of some services, each once."""
    return tuple({plan.venv.path: plan.venv for plan in plans if not plan.contained}.values())
