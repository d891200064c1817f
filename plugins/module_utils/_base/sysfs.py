# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Careful reading of sysfs.

The kernel answers "there is no such value now" in many ways: the file is missing, or it exists and reading it fails
with EINVAL (``carrier`` of a netdev that is administratively down, ``gid_attrs`` of an empty GID entry), EOPNOTSUPP
(``phys_port_name`` of a device without one) or ENODEV (the device left while we looked). All of these read as None.
What a user can repair (no permission) raises :class:`SparkError`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Union

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

ROOT_VARIABLE = "SPARKMATRIX_SYSFS_ROOT"
LIMIT_BYTES = 65536  # a sysfs attribute is one page; pages are at most 64 KiB (arm64 kernels can be built so)

PathLike = Union[str, Path]


def root() -> Path:
    """Where sysfs is mounted: ``/sys``, or what SPARKMATRIX_SYSFS_ROOT says (tests and measurements only)."""
    return Path(os.environ.get(ROOT_VARIABLE) or "/sys")


def read_bytes(path: PathLike) -> bytes | None:
    """The raw content of one attribute, None when the kernel has no value for it.

    Raises :class:`SparkError` without permission.
    """
    try:
        # O_NONBLOCK: a FIFO or tty in the place of an attribute must not hang the module.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.read(descriptor, LIMIT_BYTES)
        finally:
            os.close(descriptor)
    except PermissionError as exc:
        raise _refused(path, exc) from exc
    except (OSError, ValueError):  # an embedded NUL byte: no such file
        return None


def read_text(path: PathLike) -> str | None:
    """One attribute as text without surrounding blanks; bytes that are not UTF-8 appear as ``\\xNN``.

    An attribute that is there but empty gives an empty string, one without a value gives None.
    """
    data = read_bytes(path)
    if data is None:
        return None
    return data.decode("utf-8", "backslashreplace").replace("\0", "").strip()


def read_int(path: PathLike) -> int | None:
    """One attribute as integer, decimal or ``0x…``; None when there is no value or it is not a number."""
    return to_int(read_text(path))


def to_int(text: str | None) -> int | None:
    """``"9000"``, ``"-1"`` and ``"0x15b3"`` as integer, None for everything else."""
    if text is None or not re.fullmatch(r"-?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16}", text):
        return None
    return int(text, 16 if text[:2] in ("0x", "0X") else 10)


def names(directory: PathLike) -> list[str] | None:
    """The entries of a directory in natural order (2 before 10), None when there is no such directory."""
    found = _listdir(directory)
    if found is None:
        return None
    return sorted((name for name in found if not name.startswith(".")), key=natural)


def numbers(directory: PathLike) -> list[int]:
    """The entries of a directory that are plain numbers, in numeric order (ports, indices of a GID table)."""
    return sorted(int(name) for name in _listdir(directory) or [] if name.isdecimal() and name.isascii())


def _listdir(directory: PathLike) -> list[str] | None:
    try:
        return os.listdir(directory)
    except PermissionError as exc:
        raise _refused(directory, exc) from exc
    except (OSError, ValueError):
        return None


def link_name(path: PathLike) -> str | None:
    """The name of what a symbolic link points to (``device/driver`` names the driver like this), None if it is none."""
    return os.path.basename(os.path.realpath(path)) if os.path.islink(path) else None


def exists(path: PathLike) -> bool:
    return os.path.exists(path)


def use_command(source: str, sysfs_root: Path, tool: str | None, name: str) -> bool:
    """Whether to ask the vendor's tool: when told to, or (``auto``) when only the tool can know.

    ``tool`` is its path or None. Raises :class:`SparkError` when it is asked for and missing.
    """
    if source == "command" and not tool:
        raise SparkError(f"the tool {name} is not installed", remedy="Use source: sysfs, which needs no tool")
    return source == "command" or (source == "auto" and bool(tool) and not exists(sysfs_root / "class/infiniband"))


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key that puts ``mlx5_2`` before ``mlx5_10``."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return tuple((0, int(part), part) if part[0] in "0123456789" else (1, 0, part) for part in parts)


def _refused(path: PathLike, exc: OSError) -> SparkError:
    return SparkError(f"no permission to read ({exc.strerror})", str(path), "Run the task with become: true")
