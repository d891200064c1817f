# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Quoting for systemd: command lines in unit files, and environment files.

Rules: systemd.service(5) "Command lines", systemd.syntax(7), systemd.exec(5) ``EnvironmentFile=``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

# Safe without quotes in a command line. `%` and `$` are doubled before this is asked.
_PLAIN = re.compile(r"[A-Za-z0-9_@%$+=:,./-]+")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_FIRST_PRINTABLE = 32


def argument(text: str) -> str:
    """One word of ``ExecStart=``: specifiers (``%``) and variables (``$``) stay what they were written as."""
    _refuse_nul(text)
    text = text.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(text):
        return text
    return '"' + "".join(_ESCAPES.get(c) or _printable(c) for c in text) + '"'


def command(argv: Sequence[str]) -> str:
    """A whole command line. The program must be an absolute path, as systemd looks nowhere else in a safe way."""
    if not argv or not argv[0].startswith("/"):
        raise SparkError(f"the program {argv[0] if argv else ''!r} is no absolute path", "systemd unit")
    return " ".join(argument(word) for word in argv)


def path(text: str) -> str:
    """One path of a setting that lists several, such as ``ReadWritePaths=``; variables (``$``) mean nothing there."""
    if not text.startswith("/") or any(c in "\\\"'" or ord(c) < _FIRST_PRINTABLE for c in text):
        raise SparkError(f"{text!r} is no path that systemd can be told", "systemd unit", "Use a plain absolute path")
    text = text.replace("%", "%%")
    return text if _PLAIN.fullmatch(text) else f'"{text}"'


def environment_file(values: Mapping[str, str]) -> str:
    """Lines ``NAME="value"`` in the order of their names.

    In double quotes an environment file knows four escaped characters only, and takes everything else literally.
    """
    lines = []
    for name in sorted(values):
        if not NAME.fullmatch(name):
            raise SparkError(f"{name!r} is no name of an environment variable", "environment file")
        _refuse_nul(values[name])
        lines.append(f'{name}="' + re.sub(r'(["\\`$])', r"\\\1", values[name]) + '"')
    return "".join(line + "\n" for line in lines)


def _printable(character: str) -> str:
    return character if ord(character) >= _FIRST_PRINTABLE else f"\\x{ord(character):02x}"


def _refuse_nul(text: str) -> None:
    if "\0" in text:
        raise SparkError("a NUL character cannot be passed to a process", repr(text))
