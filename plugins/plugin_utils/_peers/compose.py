# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A Compose file: the one service that starts an engine."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import container, docker_run, placement, shell
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.facts import (
    WHERE,
    PeerRecipe,
    secret,
    shown,
    texts,
    value_text,
)

FORMAT = "Compose"
FILES = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_READ = ("image", "command", "entrypoint", "environment", "env_file", "volumes", "build")


def read(
    document: Mapping[str, Any], path: str, wanted: str = "", given: Mapping[str, str] | None = None
) -> PeerRecipe:
    """``given``: values of an environment file, else those of ``.env`` beside it."""
    peer, base = PeerRecipe(FORMAT, path), Path(path).parent
    own = given if given is not None else container.variables_file(peer, ".env", base, needed=False)
    values = {**placement.VARIABLES, **own}
    name, service = _service(document["services"], path, wanted)
    missing: list[str] = []
    size = 0

    def put(value: Any) -> Any:
        nonlocal size
        if isinstance(value, str):
            text = shell.expand(value, values, missing, path, dollars=True)
            size += len(text)
            if size > shell.MAX_ALL or len(missing) > shell.MAX_MISSING:
                raise SparkError("with its variables it is too long", path, "Shorten it")
            return text
        if isinstance(value, Mapping):
            return {key: put(item) for key, item in value.items()}
        return [put(item) for item in value] if isinstance(value, list) else value

    service = put(service)
    peer.name = name
    peer.image = str(service.get("image") or "")
    _build(peer, service.get("build"), base)
    for file in _files(service.get("env_file")):
        for key, value in container.variables_file(peer, file, base).items():
            container.put_variable(peer, f"{key}={value}", {})
    _environment(peer, service.get("environment"), dict(own))
    for volume in service.get("volumes") or []:
        if isinstance(volume, Mapping):
            source, target = str(volume.get("source") or ""), str(volume.get("target") or "")
            container.put_mount(peer, source, target, bool(volume.get("read_only")), f"{source}:{target}")
        else:
            container.mount(peer, str(volume))
    for item in service.get("ports") or []:
        container.published(peer, str(item.get("target", "")) if isinstance(item, Mapping) else str(item))
    entrypoint = service.get("entrypoint")
    peer.entrypoint = entrypoint is None
    container.put_command(peer, [*_words(entrypoint, path), *_words(service.get("command"), path)])
    for key, value in service.items():
        if key not in _READ and not str(key).startswith("x-"):
            container.option(peer, str(key), value)
    peer.missing = missing
    docker_run.finish(peer)
    return peer


def _service(services: Mapping[Any, Any], path: str, wanted: str) -> tuple[str, dict[str, Any]]:
    """The one that starts an engine, or that is named."""
    known = {str(name): dict(one) for name, one in services.items() if isinstance(one, Mapping)}
    if wanted in known:
        return wanted, known[wanted]
    if len(known) == 1 and not wanted:
        return next(iter(known.items()))
    starting = {name: one for name, one in known.items() if docker_run.matches(_all(one)) or _of_engine(one)}
    if len(starting) == 1 and not wanted:
        return next(iter(starting.items()))
    names = ", ".join(list(starting or known)[:20])
    found = "several services start an engine" if starting else "no service starts an engine that is known"
    found = f"it has no service {wanted}" if wanted else found
    raise SparkError(f"{found}: {names}", path, f"Name one behind the file: {WHERE}=FILE#{names.partition(',')[0]}")


def _all(service: Mapping[str, Any]) -> str:
    parts = [" ".join(texts(service.get(key))) for key in ("entrypoint", "command")]
    return " ".join(parts)


def _of_engine(service: Mapping[str, Any]) -> bool:
    return placement.by_look(str(service.get("image") or ""), []) is not None


def _words(value: Any, path: str) -> list[str]:
    if isinstance(value, list):
        return [value_text(item) for item in value]
    try:
        return shlex.split(str(value or ""))
    except ValueError as exc:
        raise SparkError(f"its command cannot be read ({exc})", path, "Correct its quotes") from exc


def _environment(peer: PeerRecipe, given: Any, values: dict[str, str]) -> None:
    if isinstance(given, Mapping):
        given = [str(key) if value is None else f"{key}={value_text(value)}" for key, value in given.items()]
    for item in given or []:
        container.put_variable(peer, str(item), values)


def _files(given: Any) -> list[str]:
    return [str(one.get("path", "")) if isinstance(one, Mapping) else str(one) for one in
            (given if isinstance(given, list) else [given] if given else [])]  # fmt: skip


def _build(peer: PeerRecipe, given: Any, base: Path) -> None:
    if not given:
        return
    build = given if isinstance(given, Mapping) else {"context": given}
    context = str(build.get("context") or ".")
    file = base / context / str(build.get("dockerfile") or "Dockerfile")
    arguments = build.get("args") or {}
    if isinstance(arguments, list):
        arguments = dict(str(item).partition("=")[::2] for item in arguments)
    if file.is_file() and file.resolve().is_relative_to(base.resolve()):
        peer.dockerfile = str(file.resolve())
        for key, value in arguments.items():
            if secret(str(key), value_text(value)):
                peer.secret(str(key))
            else:
                peer.build_arguments[str(key)] = value_text(value)
        peer.lose(
            f"build context {context}",
            "only the Dockerfile goes to the nodes, no file beside it",
            "see whether it copies any",
        )
    else:
        peer.lose(
            f"build ({shown('build', build)})", "its Dockerfile is not beside the file", "name it in build.dockerfile"
        )
