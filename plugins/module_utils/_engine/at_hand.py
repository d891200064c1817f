# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Sets of files by which this node can serve without a run: one document each, with all files of its rank.

``site.yml`` makes one for each model that can take the place of another, and what has served leaves one of all its
files beside its plan. ``_engine.switch`` puts them in place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Commit, Word, WordOrEmpty
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Model,
    NodePlan,
    ServicePlan,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files

DIRECTORY = f"{paths.ETC}/models"
SERVED = f"{paths.STATE}/plan"  # those of whole plans
SET = "engine"  # the files that the role engine has placed; the documents of models are among them
SCHEMA_VERSION = 1
MAX_BYTES = 4 * 2**20
REMEDY = "Run site.yml, which makes the files of all models on all nodes"
_OWN = engine_names.NAME.pattern
# All that a document may place, but for the key.
_PLACED = re.compile(
    "|".join(
        (
            rf"{paths.ETC}/engine(-{_OWN})?(\.json|\.env|/compose\.yml|/nccl\.conf)",
            rf"{paths.ETC}/(engine-{_OWN}/)?(trtllm\.yml|mpi-hosts)",  # what TensorRT-LLM reads
            rf"{paths.UNITS}/sparkmatrix-(engine|keeper|prefixes)(-{_OWN})?\.service",
            rf"{DIRECTORY}/[0-9a-f]+\.json",
            re.escape(engine_names.NOT_CARRIED),
            re.escape(engine_names.LOGIN),
        )
    )
)


@dataclass(frozen=True)
class AtHand:
    """``model``: what clients call it; empty: all that has served by a plan. ``plan``: of the whole cluster, the same
    on all nodes. ``reads`` and ``needs``: models, and programs or images, that have to be there before anything is
    stopped. ``digest``: of all the rest."""

    model: WordOrEmpty
    plan: Word
    files: Mapping[str, str]  # path: content
    reads: tuple[Model, ...] = ()
    needs: tuple[str, ...] = ()
    digest: Commit = ""
    schema: int = SCHEMA_VERSION

    def description(self, instance: str = "") -> Description:
        return engine_json.parse(json_text.mapping(self.files[Names(instance).description]))

    @property
    def text(self) -> str:
        """As it is kept."""
        plain = document.plain(self)
        return json.dumps({**plain, "digest": _digest(plain)}, indent=1, sort_keys=True) + "\n"


def path(model: str, plan: str = "") -> str:
    """A name of a model may have any signs."""
    return f"{DIRECTORY}/{config_hash(model)}.json" if model else f"{SERVED}/files-{config_hash(plan)}.json"


def _digest(plain: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in plain.items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def parse(content: bytes, where: str) -> AtHand:
    """The only reader. Raises :class:`SparkError`."""
    with json_text.Reading("the files of this model are damaged", where, REMEDY):
        if len(content) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
        values = json_text.mapping(content)
        if values.get("schema") != SCHEMA_VERSION:
            raise ValueError(f"schema {values.get('schema')!r:.40}, this release reads {SCHEMA_VERSION}")
        made: AtHand = document.load(AtHand, values)
        if made.digest != _digest(values):
            raise ValueError("they are not what was written")
        strange = sorted(path for path in made.files if not _PLACED.fullmatch(path) or path == paths.ENGINE_KEY)
        if strange:
            raise ValueError(f"{strange[0]} is no file of an engine")
        if where != path(made.model, made.plan) or (made.model and made.description().model != made.model):
            raise ValueError(f"they are of {made.model or made.plan}")
    return made


def read(model: str, plan: str, machine: Machine) -> AtHand:
    where = path(model, plan)
    content = machine.content(where)
    if content is None:
        raise SparkError(f"this node has no files of {model or 'the earlier plan'}", where, REMEDY)
    found = parse(content, where)
    if found.plan != plan:
        raise SparkError(f"the files of {model} are of another run than the head's", where, REMEDY)
    return found


def listed(machine: Machine) -> dict[str, AtHand]:
    """Models; what cannot be read is none. In the order of their names."""
    found = []
    for name in machine.names(DIRECTORY):
        where = f"{DIRECTORY}/{name}"
        try:
            found.append(parse(machine.content(where) or b"", where))
        except SparkError:
            continue
    return {one.model: one for one in sorted(found, key=lambda one: one.model)}


# -- what has served --------------------------------------------------------------------------------------------------


def keep(plan: NodePlan, others: Collection[str], root: str = "/") -> None:
    """The files that are in place, as those of this plan. Of plans but ``others`` none are kept."""
    there = {item.path: (item.content or b"").decode() for item in managed_files.held(SET, root=root)}
    reads = tuple(model for service in plan.here for model in service.models)
    programs = tuple(need for service in plan.here for need in needed(service) if need.startswith("/"))
    made = AtHand("", plan.identity, there, reads, programs)  # of images the plan itself says which they were
    managed_files.write_state(path("", plan.identity), made.text.encode(), root=root)
    forget(root, {plan.identity, *others})


def forget(root: str = "/", others: Collection[str] = ()) -> None:
    wanted = {path("", identity) for identity in others}
    for name in Machine(root).names(SERVED):
        where = f"{SERVED}/{name}"
        if name.startswith("files-") and where not in wanted:
            managed_files.drop_state(where, root=root)


def needed(service: ServicePlan) -> tuple[str, ...]:
    """The program, or the image, that it starts from."""
    return (service.image if service.contained else service.engine.command.words[0],)
