# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a node is told of a service: ``engine.json``, which the engine layer writes and the node program reads.

:func:`read` is the only reader of the whole. Who only asks the engine needs less of it, and a gateway's description has
that, too (:func:`_engine.probe.read_config`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names, instances
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Member

SCHEMA_VERSION = 1
REMEDY = "Run the engine layer"
# What the keeper gives the nodes for stopping their ranks (the head first, then all others), and for the start of Ray
# and of the units: each is a limit of its own, so a start that takes longer has failed already.
STOPPING_S = 240.0
STARTING_S = 300.0


@dataclass(frozen=True)
class Ray:
    """How the keeper asks Ray for its nodes; empty where no rank is in Ray."""

    python: str = ""
    container: str = ""
    address: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""


@dataclass(frozen=True)
class Settings:
    """Of the keeper. Seconds, but for ``start_limit``; the role engine says why the defaults are these."""

    probe_interval_s: float = 30.0
    probe_timeout_s: float = 60.0
    hang_s: float = 600.0
    lost_s: float = 20.0
    ready_s: float = 7200.0
    memory_wait_s: float = 300.0
    start_limit: int = 5
    backoff_s: float = 10.0
    backoff_max_s: float = 300.0
    stable_s: float = 600.0
    trial: bool = True  # another configuration has one

    @property
    def start_s(self) -> float:
        """How long a start may take in all, from stopping what is there to the first token."""
        return 2 * STOPPING_S + self.memory_wait_s + STARTING_S + self.ready_s


@dataclass(frozen=True)
class Description:
    host: str
    port: int
    model: str
    key_file: str
    units: tuple[str, ...]  # in the order in which they start
    members: tuple[Member, ...]
    unit: str = ""  # the engine's own, where it runs here
    config_hash: str = ""  # that this unit has to run with
    instance: str = ""
    engine: str = ""
    backend: str = ""
    runtime: str = ""
    endpoint: str = ""
    health: str = ""
    task: str = "generate"
    key: bool = True  # it asks for one
    recipe: str = ""
    nodes: int = 1
    role: str = ""
    rank: int = 0
    stop_timeout_s: float = 60.0
    budget_bytes: int = 0
    weights_bytes: int = 0
    load_format: str = ""  # how they are to be read; empty: the engine's own way
    load_gb_per_s: float = 0.0  # that others have measured so, of one machine's weights; 0: unknown
    model_directory: str = ""
    revision: str = ""
    numbers: str = ""  # a hash over what changes the numbers of its answers
    pace: str = ""  # the same of their speed; empty where that says nothing
    settings: Mapping[str, str] = field(default_factory=dict)  # as a user knows them, to say what has changed
    ray: Ray = field(default_factory=Ray)
    keeper: Settings = field(default_factory=Settings)
    schema: int = SCHEMA_VERSION

    def as_dict(self) -> dict[str, Any]:
        made: dict[str, Any] = document.plain(self)
        return made

    @property
    def ordered(self) -> list[Member]:
        """The head first."""
        return sorted(self.members, key=lambda member: member.rank)


def parse(values: Any) -> Description:
    """Raises :class:`ValueError` or :class:`TypeError` with what does not fit."""
    found = values.get("schema") if isinstance(values, dict) else None
    if found != SCHEMA_VERSION:
        raise ValueError(f"schema {found!r}, this release reads {SCHEMA_VERSION}")
    made: Description = document.load(Description, values)
    if made.unit and made.unit not in made.units:
        raise ValueError(f"{made.unit} is not among the units")
    if not made.members:
        raise ValueError("there are no members")
    return made


def read(path: str = paths.ENGINE) -> Description:
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError as exc:
        raise SparkError("this node takes part in no engine", path, REMEDY) from exc
    except OSError as exc:
        raise SparkError(f"the description of the engine cannot be read ({exc.strerror})", path, REMEDY) from exc
    with json_text.Reading("the description of the engine is damaged", path, REMEDY):
        return parse(json_text.read(text))


def here(root: str = "/") -> dict[str, Description]:
    """Of all services that this node takes part in, by name; empty for the one that is alone."""
    return {name: read(f"{root.rstrip('/')}{Names(name).description}") for name in instances(root)}
