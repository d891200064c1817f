# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Addresses on the local network that answer ssh: by mDNS, or by asking every address of a network.

Names are only a hint (``spark-1a2b``, ``gx10-1a2b``, ``promaxgb10-1a2b`` are seen in the wild); whether a machine is a
GB10 is for a login to find out. Host keys are read for that login and for the operator to compare, and are trusted by
nobody.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

MOST_ADDRESSES = 1024  # a /22; more is no home or rack network but a mistyped prefix
TIMEOUT_S = 1.0
_WORKERS = 64
# What a host name may have. Anybody on the network may announce anything, and names end up in an inventory.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_ESCAPE = re.compile(r"\\(\d{3}|.)")
_LIKELY = re.compile(r"^(spark|gx10|promaxgb10|dgx)", re.IGNORECASE)
_INTERFACE = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
# As ssh names them, best first; the operator compares the first one that there is.
_KINDS = {"ssh-ed25519": "ED25519", "ecdsa-sha2-nistp256": "ECDSA", "ssh-rsa": "RSA"}


@dataclass(frozen=True)
class Candidate:
    """An address that answers ssh. ``interface``: where mDNS heard it, on the machine that asks; ``known_hosts``: its
    host keys, a line each. ``likely``: its name is like those that Sparks are delivered with."""

    address: str
    name: str = ""
    banner: str = ""
    interface: str = ""
    fingerprint: str = ""  # SHA256:…, of the best key
    kind: str = ""  # of that key: ED25519, ECDSA or RSA
    known_hosts: tuple[str, ...] = ()

    @property
    def likely(self) -> bool:
        return bool(_LIKELY.match(self.name))

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "likely": self.likely}


def parse_avahi(text: str) -> list[Candidate]:
    """The output of ``avahi-browse --parsable --resolve``: ``=;interface;IPv4;name;type;domain;host;address;port;…``.

    IPv4 only, once per address, by name: a machine is there as often as it has addresses. Lines that are something else
    are left out, and so are names that are no host names, and loopback: a machine that announces itself hears itself
    there.
    """
    found: dict[str, Candidate] = {}
    for line in text.splitlines():
        fields = line.split(";")
        if len(fields) > 8 and fields[0] == "=" and fields[2] == "IPv4" and _is_address(fields[7]):
            name = _ESCAPE.sub(_unescape, fields[6]).removesuffix(".local").rstrip(".")
            interface = fields[1] if _INTERFACE.fullmatch(fields[1]) else ""
            one = Candidate(fields[7], name if _NAME.fullmatch(name) else "", interface=interface)
            found.setdefault(fields[7], one)
    return sorted(found.values(), key=lambda item: (item.name, item.address))


def _is_address(text: str) -> bool:
    try:
        return not ipaddress.IPv4Address(text).is_loopback
    except ValueError:
        return False


def _unescape(matched: re.Match[str]) -> str:
    text = matched[1]
    return chr(int(text)) if text.isdigit() else text


def addresses(cidr: str) -> list[str]:
    """Every host address of a private IPv4 network. Raises :class:`SparkError` for anything else or too many."""
    try:
        network = ipaddress.IPv4Network(cidr, strict=False)
    except ValueError as exc:
        raise SparkError(f"{cidr!r} is no IPv4 network", "", "Write it like 192.168.1.0/24") from exc
    if not network.is_private:
        raise SparkError("the network is not a private one", cidr, "Name your own local network")
    if network.num_addresses > MOST_ADDRESSES:
        raise SparkError(
            f"the network has {network.num_addresses} addresses, more than {MOST_ADDRESSES}", cidr, "Name a smaller one"
        )
    return [str(address) for address in network.hosts()]


def banner(address: str, port: int = 22, timeout_s: float = TIMEOUT_S) -> str:
    """What the ssh server says first; empty when none answers."""
    try:
        with socket.create_connection((address, port), timeout_s) as connection:
            connection.settimeout(timeout_s)
            text = connection.recv(255).decode("ascii", "replace").split("\n")[0].strip()
    except OSError:
        return ""
    return text if text.startswith("SSH-") else ""


def scan(asked: Iterable[str], ask: Callable[[str], str] = banner) -> list[Candidate]:
    """Those of ``asked`` that answer, in order. Reads the banner and logs in nowhere."""
    wanted = list(asked)
    with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
        said = list(pool.map(ask, wanted))
    return [Candidate(address, "", text) for address, text in zip(wanted, said) if text]


def with_host_keys(candidates: Sequence[Candidate], runner: Runner = run) -> list[Candidate]:
    """Each with the keys that it shows, read into no file. One that shows none is left without."""
    if not candidates:
        return []
    done = runner(("ssh-keyscan", "-T", "5", "-t", "ed25519,ecdsa,rsa", *(item.address for item in candidates)))
    if done.rc == NOT_FOUND:
        raise SparkError("ssh-keyscan is not on this machine", "", "Install the ssh client (openssh-client)")
    keys: dict[str, dict[str, str]] = {}
    for line in done.out.splitlines():
        words = line.split()
        if len(words) == 3 and words[1] in _KINDS and _blob(words[2]):
            keys.setdefault(words[0], {}).setdefault(words[1], words[2])
    return [_with_keys(item, keys.get(item.address, {})) for item in candidates]


def _blob(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def _with_keys(item: Candidate, keys: Mapping[str, str]) -> Candidate:
    best = next((kind for kind in _KINDS if kind in keys), None)
    if best is None:
        return item
    digest = base64.b64encode(hashlib.sha256(_blob(keys[best])).digest()).decode("ascii").rstrip("=")
    lines = tuple(f"{item.address} {kind} {key}" for kind, key in keys.items())
    return replace(item, fingerprint=f"SHA256:{digest}", kind=_KINDS[best], known_hosts=lines)
