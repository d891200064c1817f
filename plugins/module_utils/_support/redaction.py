# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

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

LEFT_OUT = "(left out)"
SHORTEST = 8  # of a value that is looked for everywhere
# What is counted, in the words of the list of contents.
KNOWN, KEY, HEADER, TOKEN, LOGIN = "secrets of the machine", "private keys", "headers", "tokens", "logins in URLs"
NAMED, RANDOM = "values named key, token or password", "long random texts"
ADDRESS, NAME, IDENTITY = "addresses", "names", "serial numbers and identities"

# -- secrets

KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY[A-Z ]{0,10}-----")
KEY_ENDS = re.compile(r"-----END[A-Z0-9 ]{0,40}(?:-----)?")
KEY_LINES = 400  # of the longest
_KEY_BORDER = re.compile(r"[\"'\n]")
_KEY_WORD = re.compile(r"[A-Za-z0-9+/]{1,100}={0,2}")
_KEY_HEADER = re.compile(r"(?:(?:^|.* )(?:Proc-Type|DEK-Info): ?[\w,-]{0,100}|.*\]: |)\s*")
_HEADER = re.compile(
    r"(?i)((?:authorization|api-key|cookie|auth-token)\\?[\"']?\s{0,3}:\s{0,3})(?!\s|\(left)"
    r"(?:\\?\"[^\"\r\n]*\\?\"|'[^'\r\n]*'|[^\r\n]+)"
)
_BEARER = re.compile(r"(?i)(bearer(?:\s|%20|\+|:|=){1,3}[\"']?)(?!\(left)[\w.~+/=%-]{6,}")
_BASIC = re.compile(r"([Bb]asic\s{1,3})(?=[a-z]{0,40}[A-Z0-9])[\w+/-]{8,}={0,2}")
# Tokens that tell by their beginning whose they are: Hugging Face, GitHub, GitLab, Slack, NVIDIA, Docker, AWS, JWT,
# OpenAI.
_TOKEN = re.compile(
    r"(?:hf_|api_org_|gh[opusr]_|github_pat_|glpat-|xox[abeoprs]-|nvapi-|dckr_[op]at_|npm_|pypi-|AKIA|ASIA|AIza|ya29\."
    r"|eyJ)[\w.~+/=-]{12,}|[sr]k[-_](?=[\w-]{0,80}\d)(?=[\w-]{0,80}[A-Z])[\w-]{16,}"
)
_LOGIN = re.compile(r"(://)(?!\(left)[^\s/\"'<>]{1,300}@")
_QUERY = re.compile(
    r"(?i)([?&][\w.-]{0,40}(?:key|token|secret|signature|sig|password|credential)=)(?!\(left)[^&\s\"']+"
)
_WORDS = (
    r"(?:api[_-]?key|access[_-]?key|private[_-]?key|secret[_-]?key|encryption[_-]?key|secret|token(?![a-z])|passw(?:or)?d"
    r"|passphrase|pass(?![a-z])|psk(?![a-z])|credentials?|auth(?![a-z])|auth[_-]?key)"
)
_VALUE = r"(\\\"(?:(?!\\\")[^\r\n])*\\\"|\"(?:[^\"\\\r\n]|\\.)*\"|'[^'\r\n]*'|[\"'][^\r\n]*|\S+)"
_NAMED = re.compile(rf"(?i)({_WORDS}([\w-]{{0,40}}))(\\?[\"']?\s{{0,3}}(?:=>|[:=])\s{{0,3}}){_VALUE}")
_YAML = re.compile(rf"(?im)^([ \t>-]{{0,40}}[\w.-]{{0,40}}?{_WORDS}([\w-]{{0,40}})[\"']?:[ \t]{{1,3}})(\S[^\r\n]*)$")
_OPTION = re.compile(rf"(?i)((?<![\w-])--?[\w-]{{0,40}}(?:{_WORDS}|key)([\w-]{{0,40}}))([ =]{{1,3}}){_VALUE}")
_NETRC = re.compile(r"(?i)(login\s+\S+\s+password\s+)(?!\(left)\S+")
# Names that look like one of a secret and say where it is, or of what kind.
_HARMLESS = re.compile(r"(?i)(?:path|file|dir|folder|type|mode|len|length|count|limit|size|format|method|_ms|_s)$")
_NOTHING = re.compile(r"(?i)[\"']?(?:None|null|true|false|\*+|\(left.*)?[\"']?[,;}\])]*$")
_NUMBER = re.compile(r"[\"']?-?\d{1,9}(?:\.\d*)?[\"']?[,;}\])]*$")
_BLOB = re.compile(r"(?<![\w+/])(?!/)[A-Za-z0-9+/]{60,}={0,2}")
_RANDOM = re.compile(r"(?<![\w-])[A-Za-z0-9_-]{32,}")
TURNS, DIGITS = 0.42, 3  # of changes between small and capital letters and digits: names have fewer

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
_COMMAND_LINE = re.compile(r"((?:^BOOT_IMAGE=|command line: ).*)", re.MULTILINE | re.IGNORECASE)
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
        forms = {form for value in self.known if len(value) >= SHORTEST for form in _forms(value)}
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

    def _sub(
        self, kind: str, pattern: re.Pattern[str], text: str, made: Callable[[re.Match[str]], str] | None = None
    ) -> str:
        def one(match: re.Match[str]) -> str:
            new = made(match) if made else f"{match.group(1) if pattern.groups else ''}{LEFT_OUT}"
            if new != match.group(0):
                self.counts[kind] = self.counts.get(kind, 0) + 1
            return new

        return pattern.sub(one, text)

    # -- secrets

    def _secrets(self, text: str) -> str:
        if self._known:
            text = self._sub(KNOWN, self._known, text, lambda _match: LEFT_OUT)
        text = self._keys(text)
        text = self._sub(HEADER, _HEADER, text)
        text = self._sub(HEADER, _BEARER, text)
        text = self._sub(HEADER, _BASIC, text)
        text = self._sub(LOGIN, _LOGIN, text, lambda match: f"{match.group(1)}{LEFT_OUT}@")
        text = self._sub(TOKEN, _TOKEN, text)
        text = self._sub(NAMED, _QUERY, text)
        text = self._sub(NAMED, _YAML, text, lambda match: _named(match, match.group(1), match.group(3)))
        for pattern in (_OPTION, _NAMED):
            text = self._sub(
                NAMED, pattern, text, lambda match: _named(match, match.group(1) + match.group(3), match.group(4))
            )
        text = self._sub(NAMED, _NETRC, text)
        text = self._sub(RANDOM, _BLOB, text, lambda match: LEFT_OUT if _mixed(match.group(0)) else match.group(0))
        return self._sub(RANDOM, _RANDOM, text, lambda match: LEFT_OUT if _mixed(match.group(0)) else match.group(0))

    def _keys(self, text: str) -> str:
        made, at = [], 0
        for begin in KEY_BEGINS.finditer(text):
            if begin.start() >= at:
                made += [text[at : begin.start()], LEFT_OUT]
                at = _key_ends(text, begin.end())
                self.counts[KEY] = self.counts.get(KEY, 0) + 1
        return "".join([*made, text[at:]])

    # -- whose machine it is

    def _whose(self, text: str) -> str:
        for pattern in (_SERIAL, _AVAHI):
            text = self._sub(IDENTITY, pattern, text, lambda match: f"{match.group(1) or match.group(2)}{LEFT_OUT}")
        text = self._sub(NAME, _NETPLAN, text, lambda match: f"{match.group(1)}-{LEFT_OUT}")
        text = self._sub(IDENTITY, _COMMAND_LINE, text, lambda match: _KERNEL.sub(rf"\1={LEFT_OUT}", match.group(0)))
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


def _key_ends(text: str, at: int) -> int:
    """Behind a private key that began before ``at``. One without an end goes as far as its lines may be of a key, and
    one within a line no further than that or a quote: whoever writes a line of a log does not hide those of others."""
    border = _KEY_BORDER.search(text, at)
    place = border.start() if border else len(text)
    end = KEY_ENDS.search(text, at, place)
    if end:
        return end.end()
    for _line in range(KEY_LINES):
        if text[place : place + 1] != "\n":
            break
        after = text.find("\n", place + 1)
        after = len(text) if after < 0 else after
        end = KEY_ENDS.search(text, place, after)
        if end:
            return end.end()
        following = KEY_ENDS.search(text, after, after + 300)
        last = following is not None and "\n" not in text[after + 1 : following.start()]
        if not may_be_of_a_key(text[place + 1 : after], last):
            break
        place = after
    return place


def may_be_of_a_key(line: str, last: bool = False) -> bool:
    """Base64 and nothing else; or behind what a log puts before it, where it is long or looks like chance, or the next
    line is the end."""
    if _KEY_HEADER.fullmatch(line):
        return True
    line = line.strip()
    word = re.split(r"[\s:|)\]]", line)[-1]
    if not _KEY_WORD.fullmatch(word):
        return False
    kinds = len({"d" if sign.isdigit() else "u" if sign.isupper() else "l" for sign in word if sign.isalnum()})
    return word == line or last or len(word) >= 40 or (len(word) >= 8 and kinds == 3)


def _named(match: re.Match[str], before: str, value: str) -> str:
    """A value behind a name; ``match.group(2)`` is the end of the name."""
    if _HARMLESS.search(match.group(2)) or _NOTHING.match(value):
        return match.group(0)
    if "token" in match.group(1).lower() and _NUMBER.match(value):  # how many, or which
        return match.group(0)
    return f"{before}{LEFT_OUT}"


def _spellings(names: Mapping[str, str]) -> dict[str, str]:
    """Also without the domain; of an address there is nothing shorter."""
    short = {name.partition(".")[0]: shown for name, shown in names.items() if not _IPV4.fullmatch(name)}
    return {name: shown for name, shown in {**short, **names}.items() if len(name) > 2}


def _of_nobody(name: str) -> bool:
    return name in NOBODY or name.startswith(_OF_THE_SYSTEM)


def _mixed(text: str) -> bool:
    """Whether small and capital letters and digits follow each other as by chance."""
    plain = re.sub(r"[^A-Za-z0-9]", "", text)
    kinds = ["d" if sign.isdigit() else "u" if sign.isupper() else "l" for sign in plain]
    turns = sum(one != other for one, other in zip(kinds, kinds[1:]))
    return kinds.count("d") >= DIGITS and len(set(kinds)) == 3 and turns >= TURNS * len(kinds)


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
