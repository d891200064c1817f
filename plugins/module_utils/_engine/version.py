# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which version of an engine an image or a Python environment has, and which options its own parser knows.

Asked only where the controller has no table for the version. Nothing is served, and a container has no network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import command, document, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Word, WordOrEmpty, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Unknown

# Runs where the engine is. Its program is beside the Python that found it, or in PATH.
ASK = """
import json, os, re, subprocess, sys
from importlib import metadata, util
names, words = json.loads(sys.argv[1])
version = ""
for name in names:
    try:
        version = metadata.version(name)
        break
    except metadata.PackageNotFoundError:
        pass
cuda = ""
try:
    with open(os.path.join(os.path.dirname(util.find_spec("torch").origin), "version.py")) as file:
        cuda = re.search(r"^cuda\\b.*= *'([0-9.]+)'", file.read(), re.MULTILINE).group(1)
except (AttributeError, OSError, TypeError, ValueError):
    pass
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
os.environ["COLUMNS"] = "200"
try:
    told = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
except OSError:
    told = b""
print()
print(json.dumps({"version": version, "cuda": cuda, "help": told.decode("utf-8", "replace")}))
"""
_LINE = re.compile(r"^ {1,4}-")
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
LIMIT_S = 600.0  # for one engine
FEWEST = 20  # options that each of the engines has many times; fewer are no list of all


@dataclass(frozen=True)
class Request:
    """``engines``: ``unknown`` of the engine plan. Environments are asked as ``user``, in the directory ``home``."""

    engines: tuple[Unknown, ...]
    user: str
    home: str


@dataclass(frozen=True)
class Answer:
    """``options``: all spellings with their dashes; none where the engine did not list them. ``cuda``: that its torch
    is made for."""

    version: WordOrEmpty = ""
    options: tuple[Word, ...] = ()
    cuda: WordOrEmpty = ""


@dataclass(frozen=True)
class Versions:
    """By image, or path of the environment."""

    engines: Mapping[Words, Answer] = field(default_factory=dict)


def versions(request: Request, check: bool) -> Versions:
    """What engines say of themselves; in check mode what is not there yet is not asked."""
    found: dict[str, Answer] = {}
    for wanted in request.engines:
        own = image.find(wanted.name).id if wanted.contained else ""
        if not own and check and not Path(wanted.name, "bin/python").exists():
            continue
        found[wanted.name] = _remembered(own, wanted, request, check) if own else _ask(wanted, request)
    return Versions(found)


def _remembered(own: str, wanted: Unknown, request: Request, check: bool) -> Answer:
    """An environment may be another one tomorrow, an image with this id not."""
    question = " ".join(["engine", "cuda", *wanted.distributions, *wanted.help_words])
    told = image.remembered(own, question, lambda: document.plain(_ask(wanted, request)), check_mode=check)
    return Answer(str(told.get("version") or ""), tuple(told.get("options") or ()), str(told.get("cuda") or ""))


def _ask(wanted: Unknown, request: Request) -> Answer:
    return ask(wanted, lambda argv: command.run(argv, LIMIT_S), user=request.user, home=request.home)


def options_in(text: str) -> list[str]:
    """Spellings in the output of ``--help``: in the first column, since the second talks about other options."""
    lines = (line.strip().split("  ")[0] for line in text.splitlines() if _LINE.match(line))
    return sorted({name for line in lines for name in _OPTION.findall(line)})


def ask(wanted: Unknown, runner: Runner, *, user: str, home: str) -> Answer:
    """An environment is asked as ``user``, never as root."""
    question = json.dumps([wanted.distributions, wanted.help_words])
    if wanted.contained:
        done = image.ask(wanted.name, ["python3", "-c", ASK, question], runner, image.GPUS[wanted.gpus])
    else:
        python = f"{wanted.name}/bin/python"
        done = runner(["runuser", "-u", user, "--", "env", f"HOME={home}", python, "-c", ASK, question])
    with json_text.Reading(
        f"it cannot be asked which engine it has: {done.complaint[-300:]}",
        wanted.name,
        "Its Python has to start. Name an image or a version that this release has an option table for",
    ):
        told = json_text.mapping(done.out.strip().splitlines()[-1])
        version, cuda, text = str(told["version"]), str(told["cuda"]), str(told["help"])
    options = options_in(text)
    return Answer(version, tuple(options) if len(options) >= FEWEST else (), cuda)
