# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The examples in README, docs/ and the roles' READMEs: fenced blocks, and the commands in them.

The first word after the fence says what a block is. After it, `run=site` and `run=head` say that the Molecule scenario
`site` runs it, on the computer of the user or on the head; `run=by-hand` that it calls what no test has (a real Spark,
a switch, Slurm, a registry), so that only names and files in it are checked.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
GUIDES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("roles/*/README.md"))]
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)

INLINE = re.compile(r"`((?:(?:\.venv/bin/)?ansible-playbook|make|(?:uvx\s|sudo\s)?sparkmatrix) [^`<…]+)`")


@dataclass(frozen=True)
class Block:
    place: str  # file:line
    kind: str
    marks: str  # what stands after the kind
    text: str


@dataclass(frozen=True)
class Command:
    place: str
    text: str
    marks: str


# What differs from one cluster to another, as it is in the guides: our lab has a model, a key and ports of its own.
IN_THE_LAB = (
    (r"\bnvidia@(spark\d)\.local", r"\1"),
    (r"\balice\b", "default"),
    (r'("?model"?(?:: |=))"[^"]+"', r'\1"tiny-llama"'),
    (r'("?messages"?(?:: |=)\[)', r"@\1"),
    (r'@"messages"', r'"max_tokens": 4, "messages"'),
    (r"@messages", r"max_tokens=4, messages"),
    # A tunnel that ends by itself.
    (r"ssh -fNL 8000:(\S+) (\S+)", r"ssh -fL 18000:\1 \2 sleep 5"),
    (r"http://127\.0\.0\.1:8000/", "http://127.0.0.1:18000/"),
)


def in_the_lab(text: str, address: str) -> str:
    for pattern, instead in IN_THE_LAB:
        text = re.sub(pattern, instead, text)
    return text.replace("10.0.0.11", address)


def script(page: str, address: str, directory: pathlib.Path, python: str, ssh_config: pathlib.Path) -> str:
    """The examples of a page that the user's computer runs, in their order, in one shell; files are written beside."""
    lines = ["set -eo pipefail", f"cd {directory}", f'ssh() {{ command ssh -F {ssh_config} "$@"; }}']
    lines += [f'python3() {{ {python} "$@"; }}']
    for block in blocks():
        if not block.place.startswith(f"{page}:") or block.marks != "run=site":
            continue
        text = in_the_lab(block.text, address)
        if block.kind == "python":
            (directory / text.split()[1]).write_text(text, encoding="utf-8")
    for block in blocks("console"):
        if block.place.startswith(f"{page}:") and block.marks == "run=site":
            lines += [in_the_lab(command.text, address) for command in commands(block)]
    return "\n".join(lines)


def pages(mark: str) -> list[str]:
    return sorted({block.place.partition(":")[0] for block in blocks() if block.marks == mark})


def blocks(*kinds: str) -> list[Block]:
    found = []
    for path in GUIDES:
        page = path.read_text(encoding="utf-8")
        for match in FENCE.finditer(page):
            kind, _, marks = match["info"].partition(" ")
            line = page.count("\n", 0, match.start()) + 1
            found.append(Block(f"{path.relative_to(ROOT)}:{line}", kind, marks, match["text"]))
    return [block for block in found if not kinds or block.kind in kinds]


def inline() -> list[Command]:
    """Playbooks, verbs and make's targets that are called within a sentence; not those with a place to fill in."""
    found = []
    for path in GUIDES:
        page = path.read_text(encoding="utf-8")
        for match in INLINE.finditer(FENCE.sub("", page)):
            found.append(Command(f"{path.relative_to(ROOT)}: {match[1]}", match[1].replace("\n", " "), ""))
    return found


def commands(block: Block) -> Iterator[Command]:
    """Lines after a prompt; what follows without one is output."""
    for match in re.finditer(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)$", block.text, re.MULTILINE):
        line = int(block.place.rpartition(":")[2]) + 1 + block.text.count("\n", 0, match.start())
        text = match[1].replace("\\\n", " ")
        yield Command(f"{block.place.rpartition(':')[0]}:{line}", re.sub(r"\s+# .*", "", text), block.marks)
