# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the relay is told: rendered on the controller, completed with keys on the node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError


@dataclass(frozen=True)
class Served:
    """One engine. ``key``: what it asks for. ``service``: its name where its keeper is on this node and there are
    several; ``refusals``: what to say at the paths that are not for it; ``named``: other models may take its place, by
    the keeper; ``salted``: paths at which it keeps apart what it has computed."""

    name: str
    model: str
    host: str
    port: int
    key: str = ""
    service: str = ""
    refusals: Mapping[str, str] = field(default_factory=dict)
    named: bool = False
    salted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Config:
    """``mark``: a hash of it, which the relay shows. ``salt``: a secret, by which clients are told apart towards
    engines; ``bound``: clients that may have no other model loaded."""

    engines: tuple[Served, ...]
    max_request_mib: int = 8
    hold_s: int = 600  # 0: nothing waits
    hold_mib: int = 256
    mark: str = ""
    salt: str = ""
    bound: tuple[str, ...] = ()


def read_config(path: str) -> Config:
    try:
        with open(path, "rb") as stream:
            text = stream.read()
    except OSError as exc:
        raise SparkError(f"it cannot be read ({exc.strerror})", path, "Run the layer gateway") from exc
    with json_text.Reading("it is damaged", path, "Run the layer gateway"):
        return document.load(Config, json_text.mapping(text))
