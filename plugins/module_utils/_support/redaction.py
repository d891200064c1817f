# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Takes out of a text what nobody else may see: secrets always, and where it is asked for also whose machine it is.

Where a rule is in doubt, it takes out too much: a text that lost a word can still be read. What stands for an address
or a name is made from a key, so with the same key the same address is the same everywhere. Pure.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.secret_rules import (
    COMMAND,
    LEFT_OUT,
    MARK,
    left_out,
)

SHORTEST, SHORTEST_WORD = 6, 8  # of a value that is looked for everywhere, and of one of letters alone
# What is counted, in the words of the list of contents.
KNOWN = "secrets of the machine"
ADDRESS, NAME, IDENTITY = "addresses", "names", "serial numbers and identities"

# -- whose machine it is

_MAC = re.compile(r"\b([0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){2})((?::[0-9a-fA-F]{2}){3})(?![:\w])")
_GUID = re.compile(r"(?<![:\w])[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}(?![:\w])")
_HEX = re.compile(r"(?<![0-9a-zA-Z])(?<!sha256:)(?:0x)?(?:[0-9a-f]{41,64}|[0-9a-f]{16,39})\b")  # 40: a commit
_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:]|\.\d)")
_IPV4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\w|-|\.\d)")
_SERIAL = re.compile(r"(?i)(serial[^:=\n]{0,20}[:=]\s*|device serial number )\S.*|(\[(?:SN|V\d)\][^:\n]{0,20}:\s*)\S.*")
_AVAHI = re.compile(r"(?im)^([ \t]*(?:host|domain)-name[ \t]*=[ \t]*)\S.*")
_NETPLAN = re.compile(r"(90-NM-[0-9a-f-]{36})-.*(?=\.yaml)")  # NetworkManager puts the name of a wireless network there
_COMMAND_LINE = re.compile(
    r"(?im)(?:^(?:BOOT_IMAGE|initrd|root|kernelopts)=|kernel command line(?: parameters)?[: ]).*"
)
# Options of the kernel whose values tell of the machine; values of all others are left out.
_KERNEL = re.compile(
    r"(?<!\S)(?!(?:BOOT_IMAGE|acpi|arm-smmu|cgroup|console|cpu|crashkernel|default_huge|earlycon|efi|huge|init_on|iommu"
    r"|mem|mitigations|mlx5|module|net\.ifnames|nohz|numa|nvidia|pci|pm|preempt|psi|rcu|thunderbolt|transparent_huge)"
    r"[^\s=]*=)([^\s=]+)=\S+"
)
_HOME = re.compile(r"(/(?:home|Users)/)([^/\s\"':;,)]+)")
_LOCAL = re.compile(
    r"(?i)(?<![\w.-])((?:[\w-]+\.){1,5})"
    r"(local|lan|home|internal|intern|corp|intranet|private|localdomain|home\.arpa|fritz\.box)(?![\w-])"
)
# Where programs write whose account it is: sudo, cron, sshd, PAM, logind, and what stands before an @.
_ACCOUNTS = (
    re.compile(r"(\bsudo(?:\[\d+\])?:\s{1,9})([A-Za-z_][\w.-]{0,63})(?= : )"),
    re.compile(r"(\bCRON\[\d+\]: \()([A-Za-z_][\w.-]{0,63})(?=\) )", re.IGNORECASE),
    re.compile(
        r"(\b(?:[Ii]nvalid user|(?:for|of|authenticating) user|(?:publickey|password|keyboard-interactive/pam) for"
        r"|User=|user=|USER=|LOGNAME=|ruser=)[ =]?)(?!invalid user )([A-Za-z_][\w.-]{0,63})"
    ),
    re.compile(r"()(?<![\w.-])([A-Za-z_][\w.-]{0,63})(?=\(uid=\d)"),
)
_AT = re.compile(
    r"(?<![\w.+-])([A-Za-z_][\w.+-]{0,63})@(?=(?:spark|host)\d|\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"
    r"|(?:[\w-]{1,63}\.){1,5}(?!service|socket|timer|slice|target|mount|device|path|scope)[A-Za-z]{2,24}(?![\w.-]))"
)
# Accounts that tell of nobody: of the system, of this product, as machines are delivered, and words of every log.
NOBODY = frozenset(
    (
        *("root", "nobody", "daemon", "messagebus", "syslog", "sshd", "www-data", "prometheus", "admin"),
        *("administrator", "user", "ubuntu", "nvidia", "dgx", "spark", "test", "docker", "ray", "vllm"),
    )
)
_OF_THE_SYSTEM = ("sparkmatrix", "systemd", "_")
_PRIVATE = [ipaddress.ip_network(one) for one in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")]
_KEPT = [ipaddress.ip_network(one) for one in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3")]


@dataclass
class Redactor:
    """``known``: values that may stand nowhere. ``anonymous``: also addresses, names, serial numbers and identities.
    ``names``: of machines, and what stands for each; ``users``: of accounts. ``counts``: what was taken out so far, by
    kind."""

    known: Sequence[str] = ()
    anonymous: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    users: Sequence[str] = ()
    counts: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = [one for one in self.known if len(one) >= (SHORTEST_WORD if one.isalpha() else SHORTEST)]
        forms = {form for value in known for form in _forms(value)}
        self._known = _any_of(forms)
        self._shown = _spellings(self.names)
        # Avahi adds a number to a name that is taken.
        self._names = _any_of(self._shown, r"(?<![A-Za-z0-9-])", r"(?:-\d{1,3})?(?![A-Za-z0-9-])(?:\.[a-zA-Z][\w-]*)*")
        people = {name for name in self.users if len(name) > 2 and not _of_nobody(name)}
        self._users = _any_of(people, r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])")
        self._tables: dict[str, list[int]] = {}

    def redact(self, text: str) -> str:
        text = self._secrets(printable(text))
        return self._whose(text) if self.anonymous else text

    def _sub(self, kind: str, pattern: re.Pattern[str], text: str, made: Callable[[re.Match[str]], str]) -> str:
        def one(match: re.Match[str]) -> str:
            new = made(match)
            if new != match.group(0):
                self.counts[kind] = self.counts.get(kind, 0) + 1
            return new

        return pattern.sub(one, text)

    # -- secrets

    def _secrets(self, text: str) -> str:
        text = text.replace(LEFT_OUT, MARK)
        if self._known:
            text = self._sub(KNOWN, self._known, text, lambda _match: MARK)
        text = self._sub(COMMAND, _COMMAND_LINE, text, lambda match: _KERNEL.sub(rf"\1={MARK}", match.group(0)))
        return left_out(text, self.counts).replace(MARK, LEFT_OUT)

    # -- whose machine it is

    def _whose(self, text: str) -> str:
        for pattern in (_SERIAL, _AVAHI):
            text = self._sub(IDENTITY, pattern, text, lambda match: f"{match.group(1) or match.group(2)}{LEFT_OUT}")
        text = self._sub(NAME, _NETPLAN, text, lambda match: f"{match.group(1)}-{LEFT_OUT}")
        if self._names:
            text = self._sub(NAME, self._names, text, self._name)
        text = self._sub(NAME, _HOME, text, lambda match: f"{match.group(1)}{self._user(match.group(2))}")
        for pattern in _ACCOUNTS:
            text = self._sub(NAME, pattern, text, self._account)
        if self._users:
            text = self._sub(NAME, self._users, text, lambda match: self._user(match.group(0)))
        text = self._sub(NAME, _AT, text, lambda match: f"{self._user(match.group(1))}@")
        text = self._sub(NAME, _LOCAL, text, lambda match: f"host{self._number(match.group(1), 2)}.{match.group(2)}")
        text = self._sub(IDENTITY, _UUID, text, lambda match: f"00000000-0000-0000-0000-{self._hex(match.group(0), 6)}")
        text = self._sub(ADDRESS, _MAC, text, lambda match: f"{match.group(1)}:{_pairs(self._hex(match.group(0), 3))}")
        text = self._sub(IDENTITY, _GUID, text, lambda match: f"0000:0000:{_fours(self._hex(match.group(0), 4))}")
        text = self._sub(ADDRESS, _IPV6, text, self._ipv6)
        text = self._sub(ADDRESS, _IPV4, text, self._ipv4)
        return self._sub(IDENTITY, _HEX, text, lambda match: self._hex(match.group(0), 8))

    def _name(self, match: re.Match[str]) -> str:
        found = match.group(0).lower()
        name = max((name for name in self._shown if found.startswith(name.lower())), key=len)
        return self._shown[name]

    def _user(self, name: str) -> str:
        return name if re.fullmatch(r"user\d+", name) else f"user{self._number(name, 2)}"

    def _account(self, match: re.Match[str]) -> str:
        name = match.group(2)
        return match.group(0) if _of_nobody(name) else f"{match.group(1)}{self._user(name)}"

    def _hex(self, value: str, size: int) -> str:
        return hmac.new(self.key.encode(), value.lower().encode(), "sha256").hexdigest()[: 2 * size]

    def _number(self, value: str, size: int) -> int:
        return int(self._hex(value, size), 16)

    def _ipv4(self, match: re.Match[str]) -> str:
        try:
            return str(self._mapped(ipaddress.IPv4Address(match.group(0))))
        except ValueError:
            return match.group(0)

    def _mapped(self, address: ipaddress.IPv4Address) -> ipaddress.IPv4Address:
        """Two of one network stay in one network. Private ones stay private; all others are of 240.0.0.0/4, which
        belongs to nobody."""
        if any(address in network for network in _KEPT):
            return address
        number, within = int(address), next((network for network in _PRIVATE if address in network), None)
        bits = (within.prefixlen + 7) // 8 * 8 if within else 4
        octets = bytearray(address.packed)
        for place in range(4):
            if 8 * (place + 1) <= bits and within:
                continue
            if not within and place == 0:
                octets[0] = 240 + self._table(f"public {octets[0]}", 16)[octets[0] % 16]
                continue
            octets[place] = self._table(f"{place} {number >> (8 * (4 - place))}", 256)[octets[place]]
        return ipaddress.IPv4Address(bytes(octets))

    def _table(self, name: str, size: int) -> list[int]:
        if name not in self._tables:
            self._tables[name] = sorted(range(size), key=lambda number: self._hex(f"{name} {number}", 32))
        return self._tables[name]

    def _ipv6(self, match: re.Match[str]) -> str:
        said = match.group(0)
        try:
            address = ipaddress.IPv6Address(said)
        except ValueError:
            return said
        whole = said.count(":") == 7 and "::" not in said
        if address.is_loopback or address.is_unspecified or address.is_multicast:
            return said
        if address.ipv4_mapped:
            made = (0xFFFF << 32) | int(self._mapped(address.ipv4_mapped))
        else:
            # Link-local ones keep their prefix; all others become documentation (RFC 3849), one network per network.
            network = self._number(f"network {int(address) >> 64:x}", 4)
            upper = 0xFE80 << 48 if address.is_link_local else (0x20010DB8 << 32) | network
            made = (upper << 64) | self._number(address.exploded, 8)
            if not int(address) & (2**64 - 1):  # a network
                made = upper << 64
        new = ipaddress.IPv6Address(made)
        return new.exploded if whole else str(new)


def _spellings(names: Mapping[str, str]) -> dict[str, str]:
    """Also without the domain; of an address there is nothing shorter."""
    short = {name.partition(".")[0]: shown for name, shown in names.items() if not _IPV4.fullmatch(name)}
    return {name: shown for name, shown in {**short, **names}.items() if len(name) > 2}


def _of_nobody(name: str) -> bool:
    return name in NOBODY or name.startswith(_OF_THE_SYSTEM)


def _forms(value: str) -> set[str]:
    """How a value may be written: as it is, in JSON, in a URL, in base64."""
    return {
        value,
        value.rstrip("="),
        json.dumps(value)[1:-1],
        quote(value, safe=""),
        base64.b64encode(value.encode()).decode().rstrip("="),
    }


def _any_of(
    values: Sequence[str] | set[str] | Mapping[str, str], before: str = "", after: str = ""
) -> re.Pattern[str] | None:
    ordered = sorted(values, key=lambda value: (-len(value), value))
    if not ordered:
        return None
    return re.compile(f"{before}(?:{'|'.join(map(re.escape, ordered))}){after}", re.IGNORECASE if before else 0)


def _pairs(digits: str) -> str:
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2))


def _fours(digits: str) -> str:
    return ":".join(digits[at : at + 4] for at in range(0, len(digits), 4))
