# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Pack ``sparkmatrix-node`` and the module_utils that it needs into one executable file.

The same sources always give the same bytes: sorted names, one fixed date, no compression (zlib's output differs between
its versions). Inside, the modules keep their full names, so their imports work as they do under Ansible.
"""

from __future__ import annotations

import base64
import io
import re
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._node_program import COMMANDS, PACKAGE
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import root_helpers

MODULE_UTILS = Path(__file__).resolve().parents[1] / "module_utils"
ENTRY = "_node_program"
# -I: neither the environment nor the current directory decides what is imported. -B: writes no __pycache__.
SHEBANG = b"#!/usr/bin/python3 -IB\n"
_IMPORT = re.compile(rf"^\s*from {re.escape(PACKAGE)}((?:\.\w+)*) import (\([^)]*\)|[^\n#]+)", re.M)
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip archive can hold
_MAIN = f"import sys\n\nfrom {PACKAGE}.{ENTRY} import main\n\nsys.exit(main(sys.argv[1:]))\n"


def files(content: bytes = b"") -> list[dict[str, Any]]:
    """The set ``node_tool``, as managed_files takes it: the program, its name for people, the units that call it for
    others."""
    packed = base64.b64encode(content or build()).decode("ascii")
    return [
        {"path": paths.NODE_PROGRAM, "content_b64": packed, "mode": "0755"},
        {"path": paths.COMMAND, "link_to": paths.NODE_PROGRAM, "refuse_foreign": True},
        *({"path": path, "content": text} for path, text in root_helpers.units().items()),
    ]


def build(directory: Path = MODULE_UTILS, commands: Iterable[str] = tuple(COMMANDS.values())) -> bytes:
    """The content of the executable."""
    package = PACKAGE.replace(".", "/")
    names = closure(directory, [ENTRY, *commands])
    entries = {"__main__.py": _MAIN.encode()}
    parts = PACKAGE.split(".")
    for count in range(1, len(parts) + 1):
        entries["/".join([*parts[:count], "__init__.py"])] = b""
    for name in names:
        path = _path(name)
        entries[f"{package}/{path}"] = (directory / path).read_bytes()
        for parent in PurePosixPath(path).parents:
            entries[f"{package}/{parent}/__init__.py" if parent.parts else f"{package}/__init__.py"] = b""
    archive = io.BytesIO()
    archive.write(SHEBANG)
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_STORED) as packed:
        for path in sorted(entries):
            info = zipfile.ZipInfo(path, _DATE)
            info.create_system = 3  # Unix, whatever the controller is
            info.external_attr = 0o644 << 16
            packed.writestr(info, entries[path])
    return archive.getvalue()


def closure(directory: Path, roots: Iterable[str]) -> list[str]:
    """Names of all modules in ``directory`` that ``roots`` import, directly or not, and themselves, sorted."""
    found: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        path = directory / _path(name)
        try:
            waiting.extend(_imports(path.read_text(encoding="utf-8"), directory))
        except (OSError, UnicodeDecodeError) as exc:
            raise SparkError(f"cannot be packed: {exc}", str(path), "Restore the checkout") from exc
    return sorted(found)


def _path(name: str) -> str:
    """``_os.evict_page_cache`` is ``_os/evict_page_cache.py``."""
    return name.replace(".", "/") + ".py"


def _imports(source: str, directory: Path) -> list[str]:
    """Dotted names below :data:`PACKAGE`. ``from PACKAGE._os import evict`` names a module, ``from PACKAGE._os.evict
    import walk`` what is in one. By pattern, as our formatter writes it: a run packs the tool for every node, and a
    syntax tree takes 0.25 s."""
    found = []
    for match in _IMPORT.finditer(source):
        module = match[1].lstrip(".")
        if module and (directory / _path(module)).is_file():
            found.append(module)
        else:
            names = (part.split()[0] for part in match[2].strip("()").split(",") if part.strip())
            found += [f"{module}.{name}".lstrip(".") for name in names]
    return found
