# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A secret that all nodes share: made once, kept in a file of mode 0600, carried in memory, never shown.

The file holds the bare secret, or ``VARIABLE="secret"`` for a service manager to read. It is placed like every other
file of this collection (:mod:`_managed.files`), so it can be taken back.
"""

from __future__ import annotations

import grp
import hashlib
import pwd
import re
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Diff, Flag, WordOrEmpty, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import (
    File,
    apply_set,
    names,
    remove_set,
)

MIN_LENGTH = 16
BYTES = 32
# What survives every quoting between here and an HTTP header.
_SECRET = re.compile(r"[A-Za-z0-9._~+/=-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Wanted:
    """``value`` is empty to keep what is there, or to make a new one where nothing is."""

    name: str
    path: str
    variable: str = ""
    value: str = ""
    owner: str = "root"
    group: str = "root"
    required: bool = False  # a value has to be given: this node must not invent one
    state: str = field(default="present", metadata=document.one_of("present", "absent", "read"))


@dataclass(frozen=True)
class Outcome:
    """``secret`` is for the tasks of other nodes, ``fingerprint`` changes with it and does not tell it."""

    changed: Flag = False
    secret: Words = ""
    replaced: Flag = False  # another one was here before: whoever has that one has to get this
    fingerprint: WordOrEmpty = ""
    diff: Diff = field(default_factory=list)
    warnings: list[Words] = field(default_factory=list)


def act(request: Wanted, check: bool) -> Outcome:
    """``present`` makes or places it, ``absent`` brings back what was there before, ``read`` looks at one of another
    layer and tells no more than its fingerprint."""
    if request.state == "absent":
        return remove(request, check_mode=check)
    return read(request) if request.state == "read" else ensure(request, check_mode=check)


def fingerprint(secret: str) -> str:
    """12 hexadecimal digits that change with the secret and do not tell it (it has 128 random bits or more)."""
    return hashlib.sha256(b"sparkmatrix:" + secret.encode()).hexdigest()[:12] if secret else ""


def parse(text: str, variable: str = "") -> str:
    """The secret in a file's text, or an empty text where there is no usable one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != 1:
        return ""
    value = lines[0]
    if variable:
        name, separator, value = value.partition("=")
        if not separator or name != variable:
            return ""
        value = value.strip('"')
    return value if usable(value) else ""


def render(secret: str, variable: str = "") -> str:
    return f'{variable}="{secret}"\n' if variable else f"{secret}\n"


def read(wanted: Wanted, *, root: str = "/") -> Outcome:
    """Of a secret that another layer keeps its fingerprint. Empty where there is none."""
    _check(wanted)
    return Outcome(fingerprint=fingerprint(parse(_read(wanted.path, root) or "", wanted.variable)))


def placed(path: str, variable: str = "", *, root: str = "/") -> dict[str, str] | None:
    """``mark`` of the secret in a file, and its ``owner``; None where it is not as :func:`ensure` leaves one."""
    real = Path(root) / path.lstrip("/")
    try:
        status = real.lstat()
        owner = f"{pwd.getpwuid(status.st_uid).pw_name}:{grp.getgrgid(status.st_gid).gr_name}"
    except (OSError, KeyError):
        return None
    mark = fingerprint(parse(_read(path, root) or "", variable))
    return {"mark": mark, "owner": owner} if mark and stat.filemode(status.st_mode) == "-rw-------" else None


def ensure(wanted: Wanted, *, check_mode: bool = False, root: str = "/") -> Outcome:
    """Put the secret in place. In check mode a secret that would be made is empty in the outcome.

    A file with no secret in it is refused, unless one is given: a new one would lock everybody out who has the old one.
    """
    _check(wanted)
    text = _read(wanted.path, root)
    present = "" if text is None else parse(text, wanted.variable)
    if text is not None and not (present or wanted.value):
        state = "damaged" if text.strip() else "empty"
        raise SparkError(
            f"the file is {state}, and whoever has the secret that was in it knows no other",
            wanted.path,
            "Put the old one back; or remove the file, and a new one is made",
        )
    secret = wanted.value or present
    generated = not secret
    replaced = generated and wanted.name in names(root=root)
    if generated and wanted.required:
        if not check_mode:
            raise SparkError(
                "there is no secret to place", wanted.path, "Run without --limit, so that the head is asked"
            )
        secret = ""
    if generated:
        secret = secrets.token_urlsafe(BYTES)
    item = File(
        path=wanted.path,
        content=render(secret, wanted.variable).encode(),
        owner=wanted.owner,
        group=wanted.group,
        mode=0o600,
        secret=True,
    )
    result = apply_set(wanted.name, [item], check_mode=check_mode, root=root)
    told = "" if generated and check_mode else secret
    return Outcome(result.changed, told, replaced, fingerprint(told), result.diff, result.warnings)


def remove(wanted: Wanted, *, check_mode: bool = False, root: str = "/") -> Outcome:
    result = remove_set(wanted.name, check_mode=check_mode, root=root)
    return Outcome(result.changed, diff=result.diff, warnings=result.warnings)


def usable(value: str) -> bool:
    """Long enough, and of characters that need no quoting."""
    return len(value) >= MIN_LENGTH and bool(_SECRET.fullmatch(value))


def _check(wanted: Wanted) -> None:
    if wanted.variable and not _VARIABLE.fullmatch(wanted.variable):
        raise SparkError(f"{wanted.variable!r} is no name of a variable", wanted.path)
    if wanted.value and not usable(wanted.value):
        raise SparkError(
            f"the given secret is shorter than {MIN_LENGTH} characters or has characters that need quoting",
            wanted.path,
            "Use letters, digits and . _ ~ + / = -",
        )


def _read(path: str, root: str) -> str | None:
    """None where there is no file; bytes that are no text are no secret."""
    real = Path(root) / path.lstrip("/") if root != "/" else Path(path)
    try:
        return real.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise SparkError(
            f"the secret cannot be read ({exc.strerror})", path, "Look at the file; its mode is 0600"
        ) from exc
