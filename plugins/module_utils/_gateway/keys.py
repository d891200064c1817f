# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Who may come in: keys that were given, those that an earlier run made, and the engines' own; on the node alone."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.names import ETC, PROBE
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Key
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import secret as managed_secret

BYTES = 32
_MANAGED = "# Managed by sparkmatrix.cluster (role gateway).\n"


def path(name: str) -> str:
    return f"{ETC}/keys/{name}.key"


def find(machine: Machine, keys: Sequence[Key], *, check_mode: bool = False) -> dict[str, str]:
    """``{client: key}``. Empty in check mode where one would be made."""
    found = {}
    for key in (*keys, Key(PROBE)):
        own = managed_secret.parse(machine.read(path(key.name)) or "")
        found[key.name] = key.key or own or ("" if check_mode else secrets.token_urlsafe(BYTES))
    known = [text for text in found.values() if text]
    if len(set(known)) != len(known):
        raise SparkError(
            "a given key is the one that another name has already",
            "gateway_keys",
            "Give each name a key of its own: removing one would not close it",
        )
    return found


def clients_conf(keys: Mapping[str, str]) -> str:
    """Who is who, for nginx. As expressions, because it compares plain words without regard to case."""
    lines = [f'    "~^[Bb]earer {_literal(key)}$" {name};\n' for name, key in sorted(keys.items()) if key]
    return f'{_MANAGED}map $gateway_shown $gateway_client {{\n    default "";\n{"".join(lines)}}}\n'


def _literal(key: str) -> str:
    """A key as a regular expression; of its characters only these two mean something else."""
    return re.sub(r"([.+])", r"[\1]", key)
