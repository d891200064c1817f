# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which version of an engine an image or a Python environment has, and which options its own parser knows.

Asked only where the controller has no table for the version. Nothing is served, and a container has no network.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image

# Runs where the engine is. Its program is beside the Python that found it, or in PATH.
ASK = """
import json, os, subprocess, sys
from importlib import metadata
names, words = json.loads(sys.argv[1])
version = ""
for name in names:
    try:
        version = metadata.version(name)
        break
    except metadata.PackageNotFoundError:
        pass
os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
os.environ["COLUMNS"] = "200"
try:
    told = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
except OSError:
    told = b""
print()
print(json.dumps({"version": version, "help": told.decode("utf-8", "replace")}))
"""
_LINE = re.compile(r"^ {1,4}-")
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
FEWEST = 20  # options that each of the engines has many times; fewer are no list of all


@dataclass(frozen=True)
class Answer:
    """``options``: all spellings with their dashes; none where the engine did not list them."""

    version: str = ""
    options: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "options": list(self.options)}


def options_in(text: str) -> list[str]:
    """Spellings in the output of ``--help``: in the first column, since the second talks about other options."""
    lines = (line.strip().split("  ")[0] for line in text.splitlines() if _LINE.match(line))
    return sorted({name for line in lines for name in _OPTION.findall(line)})


def ask(wanted: Mapping[str, Any], runner: Runner, *, user: str, home: str) -> Answer:
    """``wanted``: an entry of the plan's ``unknown``. An environment is asked as ``user``, never as root."""
    question = json.dumps([list(wanted["distributions"]), list(wanted["help_words"])])
    if wanted["contained"]:
        done = image.ask(wanted["name"], ["python3", "-c", ASK, question], runner, image.GPUS[wanted["gpus"]])
    else:
        python = f"{wanted['name']}/bin/python"
        done = runner(["runuser", "-u", user, "--", "env", f"HOME={home}", python, "-c", ASK, question])
    with json_text.Reading(
        f"it cannot be asked which engine it has: {done.complaint[-300:]}",
        wanted["name"],
        "Its Python has to start. Name an image or a version that this release has an option table for",
    ):
        told = json_text.mapping(done.out.strip().splitlines()[-1])
        version, text = str(told["version"]), str(told["help"])
    options = options_in(text)
    return Answer(version, tuple(options) if len(options) >= FEWEST else ())
