# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Puts the collection into the wheel, in the shape of the checkout, and beside it the collections that it needs, out of
the package ``ansible``: who installs the command does not download the hundred others."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parents[1]
OURS = ("galaxy.yml", "LICENSE", "meta", "playbooks", "plugins", "roles", "inventories/[0-9]*")
OTHERS = ("ansible/posix", "community/general")
USED = ("plugins", "meta", "MANIFEST.json", "LICENSES", "COPYING", "*license*")  # of these: no tools of their makers
PLACE = "sparkmatrix/house/collections/ansible_collections"
LEFT_OUT = {"__pycache__", "tests", "changelogs", "docs", "collections"}


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # the checkout is beside it
            return
        found = {str(ROOT / "ansible.cfg"): "sparkmatrix/house/ansible.cfg"}
        for pattern in OURS:
            for top in ROOT.glob(pattern):
                found |= {str(path): f"{PLACE}/sparkmatrix/cluster/{path.relative_to(ROOT)}" for path in files(top)}
        for name in OTHERS:
            folder = installed(name)
            for top in (top for pattern in USED for top in folder.glob(pattern)):
                found |= {str(path): f"{PLACE}/{name}/{path.relative_to(folder)}" for path in files(top)}
        build_data["force_include"].update(found)


def files(top: Path) -> Iterator[Path]:
    """In a settled order; a link to a file is that file."""
    for path in sorted(top.rglob("*")) if top.is_dir() else (top,):
        if path.is_file() and not LEFT_OUT & set(path.relative_to(top.parent).parts[:-1]) and path.suffix != ".pyc":
            yield path


def installed(name: str) -> Path:
    spec = importlib.util.find_spec("ansible_collections")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / name / "MANIFEST.json").is_file():
            return Path(place) / name
    raise RuntimeError(f"The collection {name} is not there: pip install ansible")
