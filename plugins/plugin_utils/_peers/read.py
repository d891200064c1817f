# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A file of another tool, by what is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import yaml_text
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.secret_names import GIVEN
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers import (
    compose,
    docker_run,
    env_file,
    placement,
    spark_vllm_docker,
    sparkrun,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._peers.facts import (
    PeerRecipe,
    file_text,
    secret,
    without_tokens,
)

FORMATS = (
    "a recipe of sparkrun or spark-vllm-docker, a docker run line, a Compose file, or a launcher's environment file"
)
_SERVICES = re.compile(r"^services:", re.MULTILINE)
_ASSIGNMENT = re.compile(r"^[ \t]*(?:export[ \t]+)?[A-Za-z_]\w*\+?=", re.MULTILINE)


def read(path: str) -> PeerRecipe:
    """The facts of a file, of a Compose file ``FILE#SERVICE``. Raises :class:`SparkError` where it starts nothing that
    is known."""
    place, service = Path(path).expanduser(), ""
    if "#" in place.name and not place.exists():
        name, service = place.name.rsplit("#", 1)
        place = place.with_name(name)
    peer = _facts(place, service)
    _without_secrets(peer)
    return peer


def _facts(place: Path, service: str) -> PeerRecipe:
    text = file_text(place)
    document = _document(text, place)
    if isinstance(document, Mapping):
        if isinstance(document.get("services"), Mapping):
            return compose.read(document, str(place), service)
        if spark_vllm_docker.matches(document):
            return spark_vllm_docker.read(document, str(place))
        if sparkrun.matches(document):
            return sparkrun.read(document, str(place))
        starting = [one for one in _texts(document) if docker_run.matches(one)]
        if len(starting) > 1:
            remedy = "Write the one that you want into a file of its own"
            raise SparkError(f"{len(starting)} texts in it start an engine", str(place), remedy)
        text = starting[0] if starting else ""
    if docker_run.matches(text):
        return docker_run.read(text, str(place))
    if not isinstance(document, (Mapping, list)) and _ASSIGNMENT.search(text):
        beside = next((one for name in compose.FILES if (one := place.parent / name).is_file()), None)
        found = _document(file_text(beside), beside) if beside else None
        if beside and isinstance(found, Mapping) and isinstance(found.get("services"), Mapping):
            return compose.read(found, str(beside), service, env_file.assigned(text, place).values)
        return env_file.read(text, str(place))
    raise SparkError("it has no command to translate, and starts nothing that is known", str(place), f"Name {FORMATS}")


def _texts(value: Any) -> Iterator[str]:
    """All in a document of a tool that is not known, as llama-swap."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _document(text: str, place: Path) -> Any:
    """What YAML makes of it, where it is YAML at all."""
    named = place.suffix in (".yml", ".yaml")
    try:
        if named or not docker_run.matches(text):
            return yaml_text.file(place, "Check recipes_translate", aliases=bool(_SERVICES.search(text)))
    except SparkError:
        if named:
            raise
    return None


def _without_secrets(peer: PeerRecipe) -> None:
    """Out of the command; each is named."""
    for given in reversed(list(placement.options(peer.argv))):
        if given.value is not None and secret(given.name, given.value):
            peer.secret(given.name)
            del peer.argv[given.at : given.at + (1 if given.inline else 2)]

    def hide(match: re.Match[str]) -> str:
        option, variable, value = match.groups()
        name, plain = f"--{option}" if option else variable, value.strip("\"'")
        if not plain or not secret(name, plain) or (not option and plain.startswith("$")):
            return match.group()
        peer.secret(name)
        return "" if option else f"{name}="

    peer.script = GIVEN.sub(hide, peer.script)
    found: list[str] = []
    peer.argv = [without_tokens(word, found) for word in peer.argv]
    peer.script = without_tokens(peer.script, found)
    peer.description = without_tokens(peer.description, found)
    if found:
        peer.secret("a token without a name")
