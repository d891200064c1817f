# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a node has of what its plan needs: Python environments, which their own Python is asked for, and models."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import look
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import command
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Word, WordOrEmpty, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import is_account
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import model_files, plan_document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.model_files import Reply, Seen

_READABLE = 'for file; do [ -r "$file" ] || { echo "$file"; exit 1; }; done'


@dataclass(frozen=True)
class Request:
    """``environments`` and ``models`` of the engine plan. ``oldest_ray``: by path, the first Ray that may be in an
    environment. ``question``: program that the Python of an environment runs; it prints ``complete``, or what is not
    met. ``cache``: directory for downloaded models, ``kernels`` for what containers compile; each is made where it is
    named. ``brought``: the layer artifacts brings models from the hub, so this node does not ask whether they can be
    had. ``user``: whose the cache is, and who reads models outside of containers."""

    user: str
    group: str
    environments: tuple[plan_document.Environment, ...] = ()
    oldest_ray: Mapping[str, str] = field(default_factory=dict)
    question: str = ""
    models: tuple[plan_document.Model, ...] = ()
    cache: str = ""
    brought: bool = False
    kernels: str = ""


@dataclass(frozen=True)
class Environment:
    """``unmet``: requirements that are not met, or ``complete``; empty where there is none. ``kernels``: the FlashInfer
    whose compiled kernels are not there."""

    owner: Words
    unmet: Words = ""
    kernels: Words = ""


@dataclass(frozen=True)
class Model:
    """``where`` and ``signature``: :class:`model_files.Seen`. ``held``: of one in our cache."""

    name: Words
    where: Word
    signature: WordOrEmpty = ""
    problem: Words = ""
    remedy: Words = ""
    ref: WordOrEmpty = ""
    held: Optional[look.Held] = None

    @property
    def in_cache(self) -> look.Held:
        return self.held or look.Held(self.name, self.ref)

    @property
    def alike(self) -> str:
        """The same where names and sizes of all its files are; empty where some are missing."""
        return self.signature if self.where == model_files.CACHE and not self.problem else ""


@dataclass
class Found:
    changed: Flag
    environments: Mapping[Words, Environment]
    models: list[Model]


def find(request: Request, check: bool) -> Found:
    """Looks, and makes the directories; changes nothing else."""
    environments = {
        one.path: environment(one, request.oldest_ray.get(one.path, ""), request.question, command.run)
        for one in request.environments
    }
    models = [_model(one, request) for one in request.models]
    changed = bool(request.cache) and _directory(request.cache, request.user, request.group, 0o755, check)
    if request.kernels:
        changed = _directory(request.kernels, "root", "root", 0o700, check) or changed
    return Found(changed, environments, models)


def _directory(path: str, user: str, group: str, mode: int, check: bool) -> bool:
    """Whether it had to be made, or given to its owner. Through a link: models may be on another disk."""
    place = Path(os.path.realpath(path))
    if place.is_dir():
        found = place.stat()
        try:
            if (place.owner(), place.group(), found.st_mode & 0o7777) == (user, group, mode):
                return False
        except KeyError:  # an id without a name
            pass
    if not check:
        place.mkdir(mode=mode, parents=True, exist_ok=True)
        shutil.chown(place, user, group)
        place.chmod(mode)
    return True


def _model(wanted: plan_document.Model, request: Request) -> Model:
    name, ref, home = wanted.name, wanted.revision, request.cache
    ours = not name.startswith("/") and look.is_cache_of(wanted.environment, home)
    seen = model(wanted, request.user, command.run, request.brought and ours)
    held = look.held(Cache(home), name, ref) if ours and seen.where != model_files.ELSEWHERE else None
    return Model(name, seen.where, seen.signature, seen.problem, seen.remedy, ref, held)


def environment(wanted: plan_document.Environment, oldest_ray: str, question: str, runner: Runner) -> Environment:
    """It is asked as its owner: root does not run what somebody else can change."""
    place = Path(wanted.path)
    try:
        owner = place.owner()
    except (OSError, KeyError):
        owner = "root"
    python = place / "bin/python"
    if not python.exists():
        return Environment(owner)
    words = [str(python), "-c", question, json.dumps(wanted.requirements), oldest_ray]
    done = runner(["runuser", f"--user={owner}", "--", *words])
    if done.rc != 0:
        raise SparkError(
            f"its Python does not say what is installed ({done.complaint[-300:]})",
            wanted.path,
            "Remove the directory, so that it is made anew, or name another one: engine_venv_path",
        )
    return Environment(owner, done.out.strip(), without_kernels(place))


def without_kernels(place: Path) -> str:
    """The version of a FlashInfer that would compile: vLLM and SGLang load its kernels only in the same version."""
    found = {}
    for path in place.glob("lib/python3*/site-packages/flashinfer_*.dist-info"):
        name, _dash, version = path.name[: -len(".dist-info")].partition("-")
        found[name] = version.partition("+")[0]
    version = found.get("flashinfer_python", "")
    whole = all(found.get(name) == version for name in ("flashinfer_cubin", "flashinfer_jit_cache"))
    return "" if whole else version


def model(wanted: plan_document.Model, user: str, runner: Runner, brought: bool = False) -> Seen:
    """``user``: who reads it outside of containers. ``brought``: the hub is not asked."""
    name = wanted.name
    ask = (lambda *_asked: Reply(200)) if brought else None
    seen = model_files.look(name, wanted.revision, wanted.environment, ask)
    if seen.where != model_files.FILES or seen.problem or wanted.contained or not is_account(user):
        return seen
    place = Path(name)
    files = [path for pattern in ("*.json", "*.safetensors") for path in sorted(place.glob(pattern))] or [place]
    done = runner(["runuser", f"--user={user}", "--", "sh", "-c", _READABLE, "sh", *map(str, files)])
    if done.rc == 0:
        return seen
    return replace(
        seen,
        problem=f"the service user {user} may not read {done.out.strip() or name}",
        remedy=f"Let it: sudo chmod -R o+rX {name}; the directories above need x for others, too",
    )
