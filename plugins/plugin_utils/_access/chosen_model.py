# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The one line of an inventory that names the model: where it stands, and another one in its place.

What the user has allowed that model's recipe stands in the line below, and goes with it.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

VARIABLE, SEVERAL, ALLOW = "engine_recipe", "engine_services", "engine_allow"
_FILE = re.compile(r"[^\"'\\{}\x00-\x1f]+\.ya?ml")
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]*|{_FILE.pattern}")
_PLAIN = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._/-]*")  # needs no quotes
_WORDS = "  # to the recipe above; kept by sparkmatrix run"
_OURS = re.compile(rf"\n *{ALLOW}: \[([A-Za-z0-9._, -]+)\]{_WORDS}\r?(?=\n|\Z)")


def whole(model: str) -> str:
    """A file by its path from any folder; a name as it is."""
    return os.path.abspath(Path(model).expanduser()) if _FILE.fullmatch(model) else model


@dataclass(frozen=True)
class Choice:
    """``start`` and ``end``: of the name in the text; ``indent``: of its line, -1 where nothing can stand below it;
    ``owned``: the user says himself what is allowed."""

    path: Path
    text: str
    start: int
    end: int
    indent: int
    owned: bool

    @property
    def model(self) -> str:
        return self.text[self.start : self.end].strip("\"'")

    @property
    def _kept(self) -> re.Match[str] | None:
        return _OURS.match(self.text, self.end + len(self.text[self.end :].partition("\n")[0]))

    @property
    def allowed(self) -> list[str]:
        """What was kept with the model."""
        return self._kept[1].split(", ") if self._kept else []

    @property
    def can_allow(self) -> bool:
        return self.indent >= 0 and not self.owned

    def instead(self, model: str, allowed: Sequence[str] = ()) -> str:
        """The text with this model. A remark behind the old one was about that one, and goes."""
        rest = self.text[self.end :].partition("\n")[0]
        kept = "\r" * rest.endswith("\r") if rest.lstrip().startswith("#") else rest
        below = self.text[self._kept.end() if self._kept else self.end + len(rest) :]
        name = model if _PLAIN.fullmatch(model) else f'"{model}"'
        words = f"\n{' ' * self.indent}{ALLOW}: [{', '.join(allowed)}]{_WORDS}" if allowed and self.can_allow else ""
        words += "\r" * (bool(words) and kept.endswith("\r"))
        return f"{self.text[: self.start]}{name}{kept}{words}{below}"

    def keep(self, model: str, allowed: Sequence[str] = ()) -> list[str]:
        """Write it; the lines that differ, as a diff has them. The file is whole at any moment; its rights stay."""
        new = self.instead(model, allowed)
        if not _NAME.fullmatch(model):
            raise SparkError("a name with quotes or braces is not kept", str(self.path), "Rename the file")
        if self.path.read_bytes().decode("utf-8") != self.text:
            raise SparkError("it was changed meanwhile", str(self.path), f"Write there: {VARIABLE}: {model}")
        real = self.path.resolve()
        handle, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(new)
        shutil.copymode(real, name)
        with contextlib.suppress(OSError):  # not root's, and not of a group that is not one's own
            os.chown(name, real.stat().st_uid, real.stat().st_gid)
        os.replace(name, real)
        return list(difflib.unified_diff(self.text.splitlines(), new.splitlines(), lineterm="", n=0))[3:]


def find(inventory: Path) -> Choice:
    """Raises :class:`SparkError` where the model is in no line of its own."""
    found: tuple[Path, str, yaml.Node, int] | None = None
    owned = False
    for path in _files(inventory):
        try:
            text = path.read_bytes().decode("utf-8")
            top = yaml.compose(text, Loader=yaml.SafeLoader)
        except (OSError, ValueError, yaml.YAMLError) as exc:
            raise SparkError("the inventory cannot be read", str(path), " ".join(str(exc).split())) from exc
        variables = "group_vars" in path.parts
        for name, value, indent in _values(top, not variables):
            if name == SEVERAL and value.value not in ([], "", "~", "null"):  # it wins, wherever it stands
                remedy = f"Change {SEVERAL} there, then: sparkmatrix ansible upgrade"
                raise SparkError("several models are served", str(path), remedy)
            if name == VARIABLE and (found is None or found[0] == path):  # of the same one twice, the last counts
                found = path, text, value, indent
            owned = owned or (name == ALLOW and not text[value.end_mark.index :].startswith(_WORDS))
    if found is None:
        remedy = f"Add to {_folder(inventory) / 'group_vars/sparks.yml'}: {VARIABLE}: MODEL"
        raise SparkError("no file of the inventory says which model is served", str(inventory), remedy)
    path, text, value, indent = found
    if not isinstance(value, yaml.ScalarNode) or not _NAME.fullmatch(value.value):
        raise SparkError(f"{VARIABLE} is no plain name of a model", str(path), "Change it there")
    choice = Choice(path, text, value.start_mark.index, value.end_mark.index, indent, owned)
    if choice.model != value.value:
        raise SparkError(f"{VARIABLE} has more than the plain name of a model", str(path), "Change it there")
    return choice


def _folder(inventory: Path) -> Path:
    return inventory if inventory.is_dir() else inventory.parent


def _files(inventory: Path) -> Iterator[Path]:
    """In which it may stand: variables of the group first, then of all, then the file of the hosts."""
    folder = _folder(inventory)
    for group in ("sparks", "all"):
        yield from (path for path in (folder / f"group_vars/{group}",) if path.is_file())
        yield from sorted(folder.glob(f"group_vars/{group}.y*ml"))
        yield from sorted(folder.glob(f"group_vars/{group}/*.y*ml"))
    yield from [inventory] if inventory.is_file() else sorted(inventory.glob("hosts.y*ml"))


def _values(node: yaml.Node | None, deep: bool) -> Iterator[tuple[str, yaml.Node, int]]:
    """Values of the variables, and how their lines begin: at the top of a file of variables, at any depth of one of
    hosts."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if key.value in (VARIABLE, SEVERAL, ALLOW):
            yield key.value, value, -1 if node.flow_style else key.start_mark.column
        elif deep:
            yield from _values(value, deep)
