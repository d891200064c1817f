# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a value from another machine may look like: one parser per kind.

A parser returns the value, or raises :class:`ValueError` with words that follow the name of the field. What ends up in
a file, a command or an address of another machine has a kind of its own; ``words`` are for people, and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import functools
import ipaddress
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import canonical
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, printable

MAX_WORDS = 2000  # characters for people
MAX_TEXT = 4096
MAX_QUOTED = 60
MAX_DIGITS = 20  # of 64 bits
MAX_ENTRIES = 65536  # of a list or mapping
MAX_DEEP = 12
MAX_LINES = 1024 * 1024  # characters
LARGEST = 2**63 - 1
# What has no business in a text of several lines.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
KEY_TYPES = (
    "ssh-ed25519",
    "ssh-rsa",
    "ssh-dss",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"  # RFC 1123


def quoted(value: Any) -> str:
    """For a message: short, however large the value is, and without anything that acts on a terminal."""
    text = ""
    for part in _parts_of(value):
        text += part
        if len(text) > MAX_QUOTED:
            return f"{text[:MAX_QUOTED]}…"
    return text


def _parts_of(value: Any) -> Iterator[str]:
    """``ascii(value)``, made as far as somebody reads it."""
    if isinstance(value, dict):
        yield "{"
        for number, (key, inner) in enumerate(value.items()):
            yield ", " if number else ""
            yield from _parts_of(key)
            yield ": "
            yield from _parts_of(inner)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "[" if isinstance(value, list) else "("
        for number, inner in enumerate(value):
            yield ", " if number else ""
            yield from _parts_of(inner)
        yield "]" if isinstance(value, list) else ")"
    else:
        yield ascii(value[:MAX_QUOTED] if isinstance(value, str) else value)


def string(value: Any) -> str:
    """Of one line, without control characters."""
    if not isinstance(value, str):
        raise ValueError(f"is {quoted(value)}, expected a text")
    if len(value) > MAX_TEXT:
        raise ValueError(f"has {len(value)} characters, expected {MAX_TEXT} at most")
    if not value.isprintable():
        raise ValueError(f"is {quoted(value)}, which has control characters")
    return str(value)


def _matching(kind: str, pattern: str) -> Callable[[Any], str]:
    """The parser of texts that are this kind."""
    wanted = re.compile(pattern)

    def parse(value: Any) -> str:
        text = string(value)
        if not wanted.fullmatch(text):
            raise ValueError(f"is {quoted(text)}, which is no {kind}")
        return text

    return parse


# The kernel allows nearly everything (dev_valid_name); nobody names an interface with more than this.
interface = _matching("name of a network interface", "[A-Za-z0-9_][A-Za-z0-9_.+-]{0,14}")
rdma_device = _matching("name of an RDMA device", "[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
mac = _matching("MAC address", "([0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2}")  # also the 20 octets of InfiniBand
guid = _matching("GUID", "[0-9a-fA-F]{4}(:[0-9a-fA-F]{4}){3}")
gid = _matching("GID", "[0-9a-fA-F]{4}(:[0-9a-fA-F]{4}){7}")
pci_domain = _matching("PCI domain", "[0-9a-fA-F]{4,8}")
mode = _matching("mode of a file", "[0-7]{4}")
variable = _matching("name of an environment variable", "[A-Za-z_][A-Za-z0-9_]{0,254}")
# Versions, states, packages, images: nothing that a shell, a unit or a configuration file takes for more.
word = _matching("plain word", "[A-Za-z0-9_.:+~/@=-]{1,255}")
commit = _matching("commit", "[0-9a-f]{40}|[0-9a-f]{64}")  # of a repository, or a digest
# People copy it into a shell, brackets of an IPv6 address are all that needs a quote there.
url = _matching(
    "URL", r"https?://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]{0,255})?"
)
switch = _matching("name of a switch", "[A-Za-z0-9_.:+/@()=, -]{1,255}")
_host_name = _matching("host name", rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")


def host(value: Any) -> str:
    """A name of the inventory: a host name, or an address."""
    return _host(string(value))


@functools.lru_cache(maxsize=4096)  # every node names every other one
def _host(text: str) -> str:
    return text if canonical(text) == text else _host_name(text)


def as_switch(text: str) -> str:
    """A name that anything in the network may have announced, as :func:`switch` takes it."""
    return re.sub(r"[^A-Za-z0-9_.:+/@()=, -]", "_", text)[:255].strip()


def address(value: Any) -> str:
    """IPv4 or IPv6 in its one spelling. A zone (``%eth0``) means something on one machine only, and may be any text."""
    text = string(value)
    if not canonical(text):
        raise ValueError(f"is {quoted(text)}, which is no address")
    if canonical(text) != text:
        raise ValueError(f"is {quoted(text)}, expected {canonical(text)}: without zone, in its short form")
    return text


def ipv4(value: Any) -> str:
    text = address(value)
    if ":" in text:
        raise ValueError(f"is {text}, expected an IPv4 address")
    return text


def destination(value: Any) -> str:
    """Of a route: a network, an address or ``default``."""
    text = string(value)
    if text != "default":
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError as exc:
            raise ValueError(f"is {quoted(text)}, which is no network") from exc
        if "%" in text:
            raise ValueError(f"is {quoted(text)}, which has a zone")
    return text


def public_key(value: Any) -> str:
    """``type base64``, of a known type, and the base64 says the same type: nothing before, between or behind."""
    text = _one_line(value)
    kind, _blank, blob = text.partition(" ")
    if kind not in KEY_TYPES:
        raise ValueError(f"is {quoted(text)}, which is no ssh key of a known kind")
    try:
        data = base64.b64decode(blob, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise ValueError(f"is {quoted(text)}, which is no ssh key: it is not base64") from exc
    parts = _parts(data)
    if not parts or parts[0] != kind.encode() or base64.b64encode(data).decode() != blob:
        raise ValueError(f"is {quoted(text)}, which is no {kind} key")
    if kind == "ssh-ed25519" and [len(part) for part in parts] != [len(kind), 32]:
        raise ValueError(f"is {quoted(text)}, which is no {kind} key")
    return text


def _one_line(value: Any) -> str:
    if isinstance(value, str) and len(value) > 4 * MAX_TEXT:
        raise ValueError(f"has {len(value)} characters, which is no ssh key")
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"is {quoted(value)}, which is no ssh key")
    return str(value)


def _parts(data: bytes) -> list[bytes]:
    """The fields of a public key (RFC 4253, 4251: each with its length before it); none where they do not fit."""
    parts, place = [], 0
    while place < len(data):
        if len(data) < place + 4:
            return []
        (length,) = struct.unpack_from(">I", data, place)
        place += 4 + length
        if place > len(data):
            return []
        parts.append(data[place - length : place])
    return parts


def known_hosts(value: Any) -> str:
    """The text of ``/etc/sparkmatrix/ssh/known_hosts``: names and a key in each line, or a comment."""
    if not isinstance(value, str) or len(value) > MAX_LINES:
        raise ValueError(f"is {quoted(value)}, expected a text of {MAX_LINES} characters at most")
    for line in value.split("\n"):
        if not line or (line.startswith("#") and line.isprintable()):
            continue
        names, _blank, key = line.partition(" ")
        try:
            for name in names.split(","):
                host(re.sub(r"^\[(.*)\]:[0-9]{1,5}$", r"\1", name))
            public_key(key)
        except ValueError as exc:
            raise ValueError(f"has the line {quoted(line)}, in which a word {exc}") from exc
    return str(value)


def whole(least: int = -LARGEST, most: int = LARGEST) -> Any:
    """The parser of whole numbers in these bounds."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"is {quoted(value)}, expected a whole number")
        if not least <= value <= most:
            raise ValueError(f"is {quoted(value)}, expected {least} to {most}")
        return int(value)

    return read


def digits(text: str | None) -> int | None:
    """The number that a text of a tool is; None for any other text. ``isdigit`` takes more than ``int`` reads."""
    return int(text) if text and len(text) <= MAX_DIGITS and text.isascii() and text.isdigit() else None


def number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -LARGEST <= value <= LARGEST:  # nor NaN
        raise ValueError(f"is {quoted(value)}, expected a number")
    return value  # type: ignore[no-any-return]  # int or float as it came: 30 stays 30


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"is {quoted(value)}, expected true or false")
    return value


def words(value: Any) -> str:
    """For people only: one line, what acts on a terminal replaced, and not endless."""
    if not isinstance(value, str):
        raise ValueError(f"is {quoted(value)}, expected a text")
    text = printable(" ".join(value[: 2 * MAX_WORDS].split()))
    return text if len(text) <= MAX_WORDS else f"{text[:MAX_WORDS]}…"


def plain(value: Any, depth: int = MAX_DEEP) -> Any:
    """Data of JSON that has no kinds: texts for people and numbers, in lists and mappings."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return words(value)
    if not isinstance(value, (Mapping, list, tuple)):
        return number(value)
    if not depth or len(value) > MAX_ENTRIES:
        raise ValueError(f"is {quoted(value)}, which is too deep or too long")
    if isinstance(value, Mapping):
        return {words(key): plain(inner, depth - 1) for key, inner in value.items()}
    return [plain(inner, depth - 1) for inner in value]


def harmless(text: str) -> str:
    """Of several lines, to be shown: it does nothing to the terminal."""
    return CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\r\n", "\n"))


# --- the second line: where lines of files are put together ----------------------------------------------------------


def line(text: str, where: str) -> str:
    """A line of a file in which a newline or another control character would be a new line or a hidden one."""
    if not text.isprintable():
        raise SparkError(
            f"the line {quoted(text)} has control characters, so it would not be one line", where, "Correct the value"
        )
    return text


def lines(found: Iterable[str], where: str) -> str:
    """The text of a file of single lines."""
    return "".join(f"{line(text, where)}\n" for text in found)
