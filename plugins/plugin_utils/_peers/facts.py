# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a recipe of another tool says, whichever format it has: facts, and what could not be kept of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.secret_rules import TOKENS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import yaml_text
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.secret_names import looks_secret

MAX_TEXT = yaml_text.MAX_TEXT
WHERE = "recipes_translate"


@dataclass(frozen=True)
class Loss:
    """What was not taken over: the thing itself with its value, what it means, and what to do."""

    what: str
    why: str
    instead: str = ""

    def __str__(self) -> str:
        instead = f". {self.instead[0].upper()}{self.instead[1:]}" if self.instead else ""
        return printable(without_tokens(f"{self.what}: {self.why}{instead}", []))


@dataclass(frozen=True)
class Mount:
    source: str
    target: str
    read_only: bool = False
    why: str = "their recipe mounts it"


@dataclass
class PeerRecipe:
    """``argv``: the engine's command in words, also where ``script`` is what runs. ``appended`` and ``worker``: words
    that the tool itself adds for ranks. ``placed``: what the plan or the fabric says instead."""

    format: str
    where: str
    name: str = ""
    description: str = ""
    model: str = ""
    revision: str = ""
    served: tuple[str, ...] = ()
    image: str = ""
    dockerfile: str = ""
    build_arguments: dict[str, str] = field(default_factory=dict)
    mods: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    script: str = ""
    login: bool = False  # the script is for `bash -lc`, not `bash -c`
    appended: list[str] = field(default_factory=list)
    worker: list[str] = field(default_factory=list)
    entrypoint: bool = False
    mounts: list[Mount] = field(default_factory=list)
    caches: list[str] = field(default_factory=list)  # where in its container the models are
    health: str | None = None
    min_nodes: int = 0
    max_nodes: int = 0
    port: int = 0  # of its own, where the command says none
    keys: dict[str, Any] = field(default_factory=dict)  # of the file, that only our own kinds leave out
    secrets: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # variables that the file gives no value
    placed: list[Loss] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)

    def lose(self, what: str, why: str, instead: str = "") -> None:
        self.losses.append(Loss(what, why, instead))

    def put_environment(self, given: Mapping[Any, Any]) -> None:
        """Without secrets, which are named."""
        for key, value in given.items():
            name, text = str(key), "" if value is None else str(value)
            if secret(name, text):
                self.secret(name)
            else:
                self.environment[name] = text

    def secret(self, name: str) -> None:
        if name not in self.secrets:
            self.secrets.append(name)
            option = name.startswith("-")
            self.lose(
                f"{name} …" if option else f"{name}=…",
                "it looks like a secret, which others could read",
                "the gateway has keys for clients"
                if "key" in name.lower()
                else "use a variable that names a file, such as HF_TOKEN_PATH",
            )


def put(pattern: re.Pattern[str], by: Callable[[re.Match[str]], str], text: str, room: int = MAX_TEXT) -> str:
    """``pattern.sub``, which a few lines could make endless."""
    size = len(text)

    def counted(match: re.Match[str]) -> str:
        nonlocal size
        value = by(match)
        size += len(value)
        if size > room:
            raise SparkError(f"with its values a text in it has more than {MAX_TEXT} characters", WHERE, "Shorten it")
        return value

    return pattern.sub(counted, text)


_TOKEN = re.compile(rf"(?<![A-Za-z0-9])(?:{TOKENS})|(?<=://)[^\s/@:$]*:[^\s/@$]+(?=@)")
_NAMES = 24  # characters; a token has more


def without_tokens(text: str, found: list[str]) -> str:
    """Without what is a token by its look, or a login in an address, whatever stands before it; these are added to
    ``found``. What is of small letters alone, or leads somewhere, is a name or a path."""

    def out(match: re.Match[str]) -> str:
        value = match[0]
        mixed = re.search(r"\d", value) or (len(value) > _NAMES and re.search("[a-z].*[A-Z]|[A-Z].*[a-z]", value[4:]))
        if ":" not in value and ("/" in value or not mixed):
            return value
        found.append(value)
        return "…"

    return _TOKEN.sub(out, text)


def secret(name: str, value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(secret(str(key), item) for key, item in value.items())
    if isinstance(value, list):
        return any(secret(name, item) for item in value)
    return looks_secret(name.lstrip("-").replace("-", "_"), str(value))


def shown(name: str, value: Any) -> str:
    """For screen and log, which keep no secret of theirs."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {shown(str(key), item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(shown(name, item) for item in value)
    return "…" if secret(name, value) else " ".join(str(value).split())


def value_text(value: Any) -> str:
    """A value of YAML as a program of Go prints it, which Compose is."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def file_text(path: Path) -> str:
    """Of somebody else, and not endless."""
    try:
        with path.open(encoding="utf-8") as opened:
            text = opened.read(MAX_TEXT + 1)
    except OSError as exc:
        raise SparkError(f"it cannot be read ({exc.strerror})", str(path), f"Check {WHERE}") from exc
    except ValueError as exc:
        raise SparkError(f"it is no text ({exc})", str(path), f"Check {WHERE}") from exc
    if len(text) > MAX_TEXT or "\0" in text:
        raise SparkError(f"it has more than {MAX_TEXT} characters, or is no text", str(path), "Shorten it")
    return text


def texts(value: Any) -> list[str]:
    """A list, or one."""
    if value is None or value == "":
        return []
    return [str(item) for item in value] if isinstance(value, Sequence) and not isinstance(value, str) else [str(value)]
