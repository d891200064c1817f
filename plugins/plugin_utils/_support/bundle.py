# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""One archive of what all machines have printed: what is in it, in words, and its bytes. Pure."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
FOLDER = "sparkmatrix-support"
CONTROLLER = "controller"


@dataclass(frozen=True)
class Part:
    """What one machine has printed. ``problem``: why there is nothing."""

    outputs: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Bundle:
    """``parts`` by the name that stands in the archive."""

    parts: Mapping[str, Part]
    release: str
    at: str
    anonymous: bool = False

    @property
    def silent(self) -> list[str]:
        return [name for name, part in self.parts.items() if name != CONTROLLER and not part.outputs]

    @property
    def contents(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "release": self.release,
            "at": self.at,
            "anonymous": self.anonymous,
            "machines": {
                name: {
                    "problem": part.problem,
                    "left_out": dict(part.counts),
                    "files": {_path(output): len(text) for output, text in sorted(part.outputs.items())},
                }
                for name, part in self.parts.items()
            },
        }

    @property
    def files(self) -> dict[str, str]:
        made = {
            "contents.json": json.dumps(self.contents, indent=1) + "\n",
            "contents.txt": "\n".join(self.lines) + "\n",
        }
        for name, part in self.parts.items():
            made |= {f"{name}/{_path(output)}": text for output, text in part.outputs.items()}
        return made

    @property
    def lines(self) -> list[str]:
        """The list of contents, and what was left out, for people."""
        made = []
        for name, part in self.parts.items():
            if not part.outputs:
                made.append(f"{name}: nothing, {part.problem or 'it printed nothing'}")
                continue
            size = sum(map(len, part.outputs.values()))
            made.append(f"{name}: {len(part.outputs)} files, {size / 1000:.0f} kB")
            made += [f"  {group}: {', '.join(names)}" for group, names in _grouped(part.outputs).items()]
            counts = ", ".join(f"{number:.0f} {kind}" for kind, number in sorted(part.counts.items()))
            made.append(f"  left out: {counts or 'nothing was found that has to be'}")
        return made if self.anonymous else [*made, SHOWS]


SHOWS = "Addresses and names of machines are in it. Without them: -e doctor_support_anonymous=true"


def _path(output: str) -> str:
    return output.strip("/") if "/" in output else f"tools/{output}.txt"


def _grouped(outputs: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for output in sorted(outputs):
        *folders, name = _path(output).split("/")
        top = "/".join(folders[:3])
        groups.setdefault(top, []).append(name.removesuffix(".txt") if top == "tools" else name)
    return {
        top: names if len(names) <= 40 else [*names[:5], f"and {len(names) - 5} more"] for top, names in groups.items()
    }


def archive(files: Mapping[str, str], folder: str = FOLDER) -> bytes:
    """A tar.gz that everybody can open; the same files make the same bytes."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
        for name, text in sorted(files.items()):
            data = text.encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def verdict(bundle: Bundle, path: str, size: int) -> str:
    """The last line."""
    machines = [name for name in bundle.parts if name != CONTROLLER]
    silent = bundle.silent
    asked = f"{len(machines) - len(silent)} of {len(machines)} machines"
    missing = f"; nothing of {', '.join(silent)}" if silent else ""
    return f"{path}: {size / 1000:.0f} kB, {asked}{missing}. Read it before you send it"
