# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The models that this node can serve in place of each other: one document each, with all files of its rank.

``site.yml`` makes and places them, so that a switch needs no Ansible: ``sparkmatrix-node switch place`` puts the files
of one in the place of another's. Each file changes at once, all of them do not; whoever was killed in between is
followed by another ``place``, and until then ``in_place`` is none of them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Commit, Word
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, model_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Model
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File, apply_set

DIRECTORY = f"{paths.ETC}/models"
SET = "engine"  # the files that the role engine has placed; the documents are among them
LOCK = f"{paths.RUN}/switch.lock"
SCHEMA_VERSION = 1
MAX_BYTES = 4 * 2**20
REMEDY = "Run site.yml, which makes the files of all models on all nodes"
_NAMES = Names()
UNIT, KEEPER = f"{paths.UNITS}/{_NAMES.unit}", f"{paths.UNITS}/{_NAMES.keeper}"
# All that a document may place.
PLACED = frozenset(
    (
        _NAMES.description,
        _NAMES.environment,
        _NAMES.compose_file,
        _NAMES.nccl_conf,
        engine_names.NOT_CARRIED,
        engine_names.LOGIN,
        UNIT,
        KEEPER,
        *(f"{paths.ETC}/{name}" for name in ("trtllm.yml", "mpi-hosts")),  # what TensorRT-LLM reads
    )
)


@dataclass(frozen=True)
class AtHand:
    """``plan``: of the whole cluster, the same on all nodes. ``reads`` and ``needs``: models, and the program or the
    image, that have to be there before anything is stopped. ``digest``: of all the rest."""

    model: Word  # what clients call it
    plan: Word
    files: Mapping[str, str]  # path: content
    reads: tuple[Model, ...] = ()
    needs: str = ""
    digest: Commit = ""
    schema: int = SCHEMA_VERSION

    @property
    def description(self) -> Description:
        return engine_json.parse(json_text.mapping(self.files[_NAMES.description]))

    @property
    def text(self) -> str:
        """As it is kept."""
        plain = document.plain(self)
        return json.dumps({**plain, "digest": _digest(plain)}, indent=1, sort_keys=True) + "\n"


def path(model: str) -> str:
    """A name of a model may have any signs."""
    return f"{DIRECTORY}/{config_hash(model)}.json"


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
        strange = sorted(set(made.files) - PLACED)
        if strange:
            raise ValueError(f"{strange[0]} is no file of an engine")
        if made.description.model != made.model or where != path(made.model):
            raise ValueError(f"they are of {made.description.model}")
    return made


def read(model: str, machine: Machine) -> AtHand:
    where = path(model)
    content = machine.content(where)
    if content is None:
        raise SparkError(f"this node has no files of {model}", where, REMEDY)
    return parse(content, where)


def listed(machine: Machine) -> dict[str, AtHand]:
    """By model; what cannot be read is none. In the order of their names."""
    found = []
    for name in machine.names(DIRECTORY):
        where = f"{DIRECTORY}/{name}"
        try:
            found.append(parse(machine.content(where) or b"", where))
        except SparkError:
            continue
    return {one.model: one for one in sorted(found, key=lambda one: one.model)}


def in_place(machine: Machine) -> str:
    """The model of which all files are where they belong; empty where that is none of them."""
    for one in listed(machine).values():
        if all(machine.content(path) == content.encode() for path, content in one.files.items()):
            return one.model
    return ""


@dataclass(frozen=True)
class Wanted:
    """What the keeper asks of a node, as JSON."""

    model: Word
    plan: Word

    @property
    def text(self) -> str:
        return json.dumps(document.plain(self)) + "\n"


def wanted(text: str | bytes) -> Wanted:
    with json_text.Reading("this is no request for a model", "", "Give all nodes the same release: run site.yml"):
        made: Wanted = document.load(Wanted, json_text.mapping(text))
    return made


def check(asked: Wanted, machine: Machine) -> AtHand:
    """Whether this node could serve it: before anything is stopped. Reads names and sizes of the weights."""
    found = read(asked.model, machine)
    where = path(asked.model)
    if found.plan != asked.plan:
        raise SparkError(f"the files of {asked.model} are of another run than the head's", where, REMEDY)
    if found.needs.startswith("/"):
        if not machine.exists(found.needs):
            raise SparkError("the program of its environment is not there", found.needs, REMEDY)
    elif found.needs and not machine.works("docker", "image", "inspect", "--format", "{{.Id}}", "--", found.needs):
        raise SparkError("this node does not have its image", found.needs, REMEDY)
    for model in found.reads:
        seen = model_files.look(model.name, model.revision, model.environment, lambda *_asked: model_files.Reply(200))
        if seen.problem or seen.where == model_files.DOWNLOAD:
            raise SparkError(seen.problem or "it is not on this node", model.name, seen.remedy or REMEDY)
    return found


def place(asked: Wanted, machine: Machine) -> bool:
    """Put its files in the place of the other model's; whether any was another one."""
    with alone(machine, "the model", LOCK):
        found = read(asked.model, machine)
        if found.plan != asked.plan:
            raise SparkError(f"the files of {asked.model} are of another run than the head's", DIRECTORY, REMEDY)
        documents = [f"{DIRECTORY}/{name}" for name in machine.names(DIRECTORY)]
        kept = {where: machine.content(where) or b"" for where in documents}
        put = {where: content.encode() for where, content in found.files.items()}
        files = [File(where, content) for where, content in {**kept, **put}.items()]
        return apply_set(SET, files, root=machine.root).changed


# -- sparkmatrix-node switch ------------------------------------------------------------------------------------------

HELP = "see to the files of a model that is named on standard input"
MAX_ASKED = 2048


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("check", "place"), help="check: whether this node could serve it")


def run(arguments: argparse.Namespace) -> int:
    try:
        asked = wanted(sys.stdin.buffer.read(MAX_ASKED))
        {"check": check, "place": place}[arguments.action](asked, Machine())
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    return 0
