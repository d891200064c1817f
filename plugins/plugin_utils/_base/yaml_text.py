# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""YAML of a file on the controller: the one way to read it. Whatever is wrong raises :class:`SparkError`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.common.yaml import yaml_load
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.json_text import DAMAGE
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.strict import quoted


def read(text: str, where: str = "", remedy: str = "Correct it") -> Any:
    try:
        return yaml_load(str(text))  # libyaml takes no text that Ansible has marked, as that of a lookup
    except RecursionError as exc:
        raise SparkError("it is no valid YAML (too deep)", where, remedy) from exc
    except (yaml.YAMLError, *DAMAGE) as exc:  # of a date without such a month, of a key that is a list
        raise SparkError(f"it is no valid YAML ({' '.join(str(exc).split())})", where, remedy) from exc


def file(path: Path, remedy: str) -> Any:
    """``remedy``: where it cannot be opened."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as exc:
        raise SparkError(f"it cannot be read ({exc.strerror})", str(path), remedy) from exc
    except ValueError as exc:
        raise SparkError(f"it is no valid YAML ({exc})", str(path), "Correct it") from exc
    return read(text, str(path))


def check(document: Mapping[Any, Any], kinds: Mapping[str, type], where: str) -> None:
    """What is there of these keys has to be of this type."""
    for name, kind in kinds.items():
        value = document.get(name)
        if value is not None and not isinstance(value, kind):
            raise SparkError(f"its {name} is {quoted(value)}, expected {_WORDS[kind]}", where, "Correct it")


_WORDS = {str: "a text", int: "a whole number", dict: "a mapping", list: "a list"}
