# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""``sparkmatrix env``: on the head, where programs reach a model and with which key, as lines for a shell.

``--json`` prints an :class:`Endpoint`. The command on the computer of a user reads it with :func:`load`: what another
machine says ends up in a shell and in a tunnel there, so every part of it is held to a list of signs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import (
    api_paths,
    document,
    json_text,
    paths,
    strict,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, kept_plan, probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Offer

HELP = 'print address, key and model for programs: eval "$(sudo sparkmatrix env)"'
SCHEMA_VERSION = 1
ROOT = "This needs root, for the key: sudo sparkmatrix env"
NO_KEY = "none"  # what programs send that want to send one
_URL = re.compile(r"http://([^:/]+):([0-9]{1,5})/v1")
_PORT = strict.whole(1, 65535)


@dataclass(frozen=True)
class Endpoint:
    """As the cluster's head reaches it. There is none with other signs: :class:`ValueError` says what does not fit."""

    base_url: str
    port: int
    api_key: str  # empty: it asks for none
    model: str
    task: str = field(metadata=document.one_of(*api_paths.PROBED))
    schema_version: int = SCHEMA_VERSION

    def __post_init__(self) -> None:
        url = _URL.fullmatch(self.base_url)
        if not url:
            raise ValueError(f"base_url is {strict.quoted(self.base_url)}, expected http://<host>:<port>/v1")
        parts = (("base_url", strict.host, url[1]), ("port", _PORT, self.port), ("model", strict.word, self.model))
        for name, kind, value in (*parts, *([("api_key", strict.word, self.api_key)] if self.api_key else [])):
            try:
                kind(value)
            except ValueError as exc:
                raise ValueError(
                    f"{name} has other signs than expected" if name == "api_key" else f"{name} {exc}"
                ) from exc
        if url[2] != str(self.port):
            raise ValueError(f"base_url is {self.base_url}, and port is {self.port}")

    @property
    def host(self) -> str:
        return self.base_url[len("http://") :].partition(":")[0]

    def write(self) -> str:
        return json.dumps(document.plain(self))

    def exports(self) -> str:
        """For ``eval``. No value has a quote."""
        values = {"BASE_URL": self.base_url, "API_KEY": self.api_key or NO_KEY, "MODEL": self.model}
        return "\n".join(f"export OPENAI_{name}='{value}'" for name, value in values.items())


def load(text: str | bytes) -> Endpoint:
    """What the program of a head has printed. Whatever else it is raises :class:`SparkError`."""
    remedy = "Run site.yml, which brings the same release there"
    with json_text.Reading("this is no endpoint of a model", "sparkmatrix env --json", remedy):
        found = json_text.mapping(text)
        if found.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(f"schema_version {found.get('schema_version')!r:.40}, this release reads {SCHEMA_VERSION}")
        made: Endpoint = document.load(Endpoint, found)
        return made


# -- on the head ------------------------------------------------------------------------------------------------------


def services(root: str = "/") -> list[Offer]:
    """All of the cluster as its head reaches them, in the order of the plan; elsewhere those of this node. None is a
    :class:`SparkError`."""
    here, heads = {}, []
    for instance, told in engine_json.here(root).items():
        if told.rank == 0:
            here[instance] = Offer(instance, told.model, told.host, told.port, told.key, told.task, told.key_file)
        else:
            heads.append(told.ordered[0].host)
    if "" in here:  # it is alone
        return [here[""]]
    kept = kept_plan.read(root).current
    planned = {offer.name: offer for offer in (kept.services if kept else ())}
    # What was planned on this node and is not described here was there before.
    planned = {name: offer for name, offer in planned.items() if name in here or not offer.host.startswith("127.")}
    found = list({**planned, **here}.values())
    if not found:
        there = f"Ask on {heads[0]}" if heads else "Ask on the head (spark_rank 0). Is this the head? Run site.yml"
        raise SparkError("no model is served from this node", paths.ETC, f"{there}. How it is: sudo sparkmatrix status")
    return found


def pick(offers: Sequence[Offer], model: str = "") -> Offer:
    """The one with this model, or :class:`SparkError`; without one the first that generates, or else the first."""
    if model:
        found = [offer for offer in offers if offer.model == model]
        if not found:
            there = ", ".join(offer.model for offer in offers)
            raise SparkError(f"there is no model {strict.quoted(model)}", remedy=f"There is: {there}")
        return found[0]
    return next((offer for offer in offers if offer.task == "generate"), offers[0])


def endpoint(offer: Offer) -> Endpoint:
    key = probe.target_of(offer).key
    try:
        return Endpoint(f"http://{offer.host}:{offer.port}/v1", offer.port, key, offer.model, offer.task)
    except ValueError as exc:
        raise SparkError(
            f"{exc}, so no program is told of it", remedy="Give it a plain one: served_model_name"
        ) from exc


def choose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="", metavar="NAME", help="which one, where there are several")


def configure(parser: argparse.ArgumentParser) -> None:
    choose(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/operations.md)")


def run(arguments: argparse.Namespace, root: str = "/") -> int:
    try:
        if os.geteuid() != 0:
            raise SparkError(ROOT)
        found = endpoint(pick(services(root), arguments.model))
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    engine_rank.say(found.write() if arguments.json else found.exports())
    return 0
