# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Machines on the local network that answer ssh: by mDNS, by asking every address of a network, or by what is named.

Names are only a hint (``spark-1a2b``, ``gx10-1a2b``, ``promaxgb10-1a2b`` are seen in the wild); whether a machine is a
GB10 is for a login to find out. Host keys are read for that login and for the operator to compare, and are trusted by
nobody. Without Ansible: the command asks here before there is an inventory.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import ipaddress
import os
import re
import resource
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Annotated, Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.host_key import several
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import kinds
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Completed, Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import parse_addresses
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import Effective

MAX_ADDRESSES = 1024  # a /22; more is no home or rack network but a mistyped prefix
TIMEOUT_S = 1.0
_NAME_S, _NAME_TRIES = 0.5, 3  # over Wi-Fi a packet is lost at times, and a Spark without a name would be left out
_BROWSE_S = 8.0  # avahi-browse waits for machines that announce themselves and do not answer
_WORKERS = 256  # or fewer: a Mac lets a program open 256 files
_ANYWHERE = ("192.0.2.1", 9)  # nothing is sent there
THIS = "this computer"
SILENT = (
    "no answer to ssh. Is it on, and in this network? A name may be unknown here: hostname -I there prints addresses."
)
# Where machines that are there do not answer.
_UNSEEN = {
    "darwin": "; your terminal has to be allowed there (System Settings, Privacy & Security, Local Network)",
    "microsoft": "; that of WSL2 is one of its own, so give addresses",
}
# What a host name may have. Anybody on the network may announce anything, and names end up in an inventory.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_ESCAPE = re.compile(r"\\([0-9]{3}|.)")
_LIKELY = re.compile(r"^(spark|gx10|promaxgb10|dgx)", re.IGNORECASE)
_INTERFACE = re.compile(r"[A-Za-z0-9_.:@-]{1,15}")
# What no machine of the network is behind: containers, virtual machines, tunnels.
_VIRTUAL = re.compile(
    r"(lo|docker|br-|veth|virbr|tun|tap|wg|tailscale|zt|cni|cali|flannel|podman|lxc|lxd|utun|bridge|vmnet|vnic|vboxnet|feth)"
)
# A Mac has no ip, and its ifconfig writes the mask as a number.
_IFCONFIG = re.compile(r"^(\S+): flags=\w+<UP\b|^\s+inet ([\d.]+) netmask (0x[0-9a-f]{8})|^(\S+):", re.MULTILINE)
# The ConnectX-7 as systemd names it: an address of the cables.
_CABLE = re.compile(r"en[pP]\d+[a-zA-Z0-9]*f\d+np\d+")
# A login with a key and nothing else: no agent and no port of this computer, whatever the own configuration says.
_STRICT = (
    "GlobalKnownHostsFile=/dev/null", "StrictHostKeyChecking=yes", "UpdateHostKeys=no", "BatchMode=yes",
    "ForwardAgent=no", "ForwardX11=no", "ClearAllForwardings=yes", "ControlMaster=no", "ControlPath=none",
    "ConnectTimeout=5",
)  # fmt: skip
# As ssh names them, best first; the operator compares the first one that there is.
_KINDS = {"ssh-ed25519": "ED25519", "ecdsa-sha2-nistp256": "ECDSA", "ssh-rsa": "RSA"}


@dataclass(frozen=True)
class Candidate:
    """An address that answers ssh, or was named and does not (no ``banner``, no ``fingerprint``). ``interface``: where
    mDNS heard it, on the machine that asks; ``known_hosts``: its host keys, a line each. ``own``: it is of the computer
    that asks. ``likely``: its name is like those that Sparks are delivered with."""

    address: kinds.Words  # or what was named and is none
    name: kinds.Words = ""
    banner: kinds.Words = ""
    interface: kinds.InterfaceOrEmpty = ""
    fingerprint: kinds.WordOrEmpty = ""  # SHA256:…, of the best key
    kind: kinds.WordOrEmpty = ""  # of that key: ED25519, ECDSA or RSA
    known_hosts: tuple[kinds.Words, ...] = ()
    own: kinds.Flag = False

    @property
    def likely(self) -> bool:
        return bool(_LIKELY.match(self.name))


@dataclass(frozen=True)
class Request:
    """``where``: as of :func:`find`. ``confirmed``: fingerprints that somebody has read at the machines; candidates
    then have the keys with these and no others."""

    where: str = ""
    confirmed: Annotated[tuple[str, ...], several] = ()


@dataclass(frozen=True)
class Found:
    candidates: list[Candidate]


@dataclass(frozen=True)
class Machine:
    """What is behind one host key. ``address``: where it is managed, as far as that is seen from outside; ``others``:
    where it answers, too."""

    address: str
    name: str
    fingerprint: str
    kind: str
    likely: bool
    own: bool
    others: tuple[str, ...] = ()


def look(request: Request, check: bool) -> Found:
    found = find(request.where)
    return Found([confirmed(candidate, request.confirmed) for candidate in found] if request.confirmed else found)


def find(where: str = "", *, runner: Runner | None = None) -> list[Candidate]:
    """``where``: a network (``192.168.1.0/24``), or addresses and names, of which each is in the
    result. Empty: who announces ssh by mDNS; where that is nobody with the name of a Spark, the own networks, too.
    """
    ask = runner or _run
    if "/" in where:
        found = scan(addresses(where))
    elif where.strip():
        found = named(where.replace(",", " ").split())
    else:
        found = parse_avahi(ask(("avahi-browse", "--parsable", "--resolve", "--terminate", "_ssh._tcp")).out)
        if not any(candidate.likely for candidate in found):
            heard = {candidate.address for candidate in found}
            found += scan(one for network in own_networks(ask) for one in addresses(network) if one not in heard)
    return [replace(candidate, own=is_own(candidate.address)) for candidate in with_host_keys(found, ask)]


def machines(candidates: Sequence[Candidate]) -> list[Machine]:
    """Each once, those with the name of a Spark first. Of these this computer comes first, else last."""
    at = {candidate.address: candidate for candidate in sorted(candidates, key=_of_cable)}
    made = []
    for places in together(
        {candidate.address: candidate.fingerprint or THIS * candidate.own for candidate in at.values()}
    ):
        first, *others = places
        likely, own = (any(getattr(at[place], word) for place in places) for word in ("likely", "own"))
        name = next((at[place].name for place in places if at[place].name), "")
        made.append(Machine(first, name, at[first].fingerprint, at[first].kind, likely, own, tuple(others)))
    order = [candidate.address for candidate in candidates]
    return sorted(
        made, key=lambda machine: (not machine.likely, machine.own is not machine.likely, order.index(machine.address))
    )


def opens(user: str, machine: Machine, candidates: Iterable[Candidate], runner: Runner = run) -> bool:
    """Whether a key lets this user in at the host key that was shown, and sudo wants no password."""
    with tempfile.NamedTemporaryFile("w", prefix="sparkmatrix-") as known:
        known.write("".join(f"{line}\n" for candidate in candidates for line in candidate.known_hosts))
        known.flush()
        how = (f"UserKnownHostsFile={known.name}", *_STRICT)
        ssh = ("ssh", *(f"-o{one}" for one in how), f"{user}@{machine.address}")
        return runner((*(() if machine.own else ssh), "sudo", "-n", "true")).rc == 0


def nobody(found: Iterable[Candidate], platform: str = f"{sys.platform} {os.uname().release}") -> str:
    """Why no machine was taken, as far as it is seen from here."""
    if any(not candidate.own for candidate in found):
        return "No machine is named like a Spark."
    why = next((why for word, why in _UNSEEN.items() if word in platform), "")
    return f"No machine answers ssh in the network of this computer{why}."


def together(shown: Mapping[str, str], ids: Mapping[str, str] | None = None) -> list[list[str]]:
    """Addresses of the same machine. ``shown``: the fingerprint at each address; ``ids``: the machine id, where it is
    known, and those addresses come first.

    A machine shows the same host key at each of its addresses. Copies of one disk may share it, and differ by machine
    id then; an address whose id is not known goes to the first that shows its key.
    """
    known = ids or {}
    found: dict[tuple[str, str], list[str]] = {}
    for address in sorted(shown, key=lambda address: address not in known):
        key, own = shown[address] or address, known.get(address, "")
        same = next((one for one in found if one[0] == key and own in ("", one[1])), (key, own))
        found.setdefault(same, []).append(address)
    return list(found.values())


def _of_cable(candidate: Candidate) -> bool:
    """Not where a machine is managed: addresses between two machines come last."""
    return candidate.address.startswith("169.254.") or bool(_CABLE.fullmatch(candidate.interface))


def _run(argv: Sequence[str]) -> Completed:
    return run(argv, _BROWSE_S)


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
            name = _short(_ESCAPE.sub(_unescape, fields[6]))
            interface = fields[1] if _INTERFACE.fullmatch(fields[1]) else ""
            candidate = Candidate(fields[7], name if _NAME.fullmatch(name) else "", interface=interface)
            found.setdefault(fields[7], candidate)
    return sorted(found.values(), key=lambda item: (item.name, item.address))


def _is_address(text: str) -> bool:
    try:
        return not ipaddress.IPv4Address(text).is_loopback
    except ValueError:
        return False


def _unescape(matched: re.Match[str]) -> str:
    text = matched[1]
    return chr(int(text)) if len(text) == 3 else text


def addresses(cidr: str) -> list[str]:
    """Every host address of a private IPv4 network. Raises :class:`SparkError` for anything else or too many."""
    try:
        network = ipaddress.IPv4Network(cidr, strict=False)
    except ValueError as exc:
        raise SparkError(f"{cidr!r} is no IPv4 network", "", "Write it like 192.168.1.0/24") from exc
    if not network.is_private:
        raise SparkError("the network is not a private one", cidr, "Name your own local network")
    if network.num_addresses > MAX_ADDRESSES:
        raise SparkError(
            f"the network has {network.num_addresses} addresses, more than {MAX_ADDRESSES}", cidr, "Name a smaller one"
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


def scan(asked: Iterable[str]) -> list[Candidate]:
    """Those of ``asked`` that answer, in order, by the name that they give. Reads the banner and logs in nowhere."""
    return [one for one in _each(_look, asked) if one.banner]


def named(places: Iterable[str]) -> list[Candidate]:
    """Each of ``places``, an address or a name; what is no address stays what it is, and answers nowhere."""

    def look(place: str) -> Candidate:
        address = _resolved(place)
        found = _look(address) if _is_address(address) else Candidate(address or place)
        return replace(found, name=_short(place)) if address not in ("", place) and _NAME.fullmatch(place) else found

    return list({one.address: one for one in _each(look, places)}.values())


def _look(address: str) -> Candidate:
    said = banner(address)
    return Candidate(address, name_at(address) if said else "", said)


def _short(name: str) -> str:
    return name.rstrip(".").removesuffix(".local")


def _each(look: Callable[[str], Any], asked: Iterable[str]) -> list[Any]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    with ThreadPoolExecutor(_WORKERS if most < 0 else max(1, min(_WORKERS, most // 2))) as pool:
        return list(pool.map(look, asked))


def _resolved(place: str) -> str:
    """Its IPv4 address; empty where there is none."""
    try:
        return str(socket.getaddrinfo(place, 22, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        return ""


def name_at(address: str, port: int = 5353) -> str:
    """What the machine calls itself, asked of its own mDNS (RFC 6762, 5.5 and 6.7); empty where it has none."""
    labels = ipaddress.IPv4Address(address).reverse_pointer.encode("ascii").split(b".")
    question = b"".join(bytes([len(label)]) + label for label in labels) + b"\0\0\x0c\0\1"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            asked.settimeout(_NAME_S)
            asked.connect((address, port))
            for _try in range(_NAME_TRIES):
                asked.send(b"\0\1\0\0\0\1\0\0\0\0\0\0" + question)
                with contextlib.suppress(socket.timeout):
                    return parse_name(asked.recv(1500))
    except OSError:
        pass
    return ""


def parse_name(reply: bytes) -> str:
    """The host of the first PTR record of a reply (RFC 1035, 4.1), without ``.local``."""
    try:
        place = 12
        for _question in range(int.from_bytes(reply[4:6], "big")):
            place = _labels(reply, place)[1] + 4
        for _answer in range(int.from_bytes(reply[6:8], "big")):
            place = _labels(reply, place)[1] + 10
            if reply[place - 10 : place - 8] == b"\0\x0c":
                name = _short(b".".join(_labels(reply, place)[0]).decode("ascii"))
                return name if _NAME.fullmatch(name) else ""
            place += int.from_bytes(reply[place - 2 : place], "big")
    except (LookupError, ValueError):
        pass
    return ""


def _labels(reply: bytes, place: int) -> tuple[list[bytes], int]:
    """Those of the name at ``place``, and where it ends there; the rest of it may stand further to the front."""
    labels: list[bytes] = []
    end, start = 0, place
    while reply[place]:
        size = reply[place]
        if size >= 0xC0:
            end, place = end or place + 2, (size & 0x3F) << 8 | reply[place + 1]
            if place >= start:
                raise ValueError("a name that never ends")
            start = place
        else:
            labels.append(reply[place + 1 : place + 1 + size])
            place += 1 + size
    return labels, end or place + 1


def is_own(address: str) -> bool:
    """Whoever sends something to himself does it from there."""
    return _sender((address, _ANYWHERE[1])) == address


def _sender(place: tuple[str, int]) -> str:
    """The own address on the way to ``place``. Sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            way.connect(place)
            return str(way.getsockname()[0])
    except OSError:
        return ""


def own_networks(runner: Runner) -> list[str]:
    """The private networks of this computer, the one of its default route first; no more than MAX_ADDRESSES in all."""
    first = _sender(_ANYWHERE)
    found: dict[ipaddress.IPv4Network, str] = {}
    for address in sorted(
        _carried(runner) or ([f"{first}/24"] if first else []), key=lambda one: one.partition("/")[0] != first
    ):
        network = ipaddress.IPv4Interface(address).network
        if network.num_addresses > MAX_ADDRESSES:
            network = ipaddress.IPv4Interface(f"{address.partition('/')[0]}/24").network
        size = sum(one.num_addresses for one in found) + network.num_addresses
        if network.is_private and not network.is_loopback and network.num_addresses > 2 and size <= MAX_ADDRESSES:
            found.setdefault(network, str(network))
    if not found:
        raise SparkError(
            "this computer is in no private IPv4 network", "", "Name the machines' addresses, or their network"
        )
    return list(found.values())


def _carried(runner: Runner) -> list[str]:
    """``address/length`` of each interface that is up and is no container's or tunnel's; none where nothing says so."""
    found: list[tuple[str, str]] = []
    for interface in parse_addresses(runner(("ip", "-j", "-4", "addr")).out) or ():
        state = Effective.of(interface)
        found += [(interface.name, address) for address in state.addresses if state.up]
    found = found or list(parse_ifconfig(runner(("ifconfig",)).out))
    return [address for name, address in found if not _VIRTUAL.match(name)]


def parse_ifconfig(text: str) -> Iterator[tuple[str, str]]:
    """Interfaces of a Mac that are up, and the addresses of each. The far end of a tunnel has another form."""
    name = ""
    for up, address, mask, _down in _IFCONFIG.findall(text):
        if not address:
            name = up
        elif name and _is_address(address):
            yield name, f"{address}/{bin(int(mask, 16)).count('1')}"


def with_host_keys(candidates: Sequence[Candidate], runner: Runner = run) -> list[Candidate]:
    """Each with the keys that it shows, read into no file. One that shows none is left without."""
    asked = [item.address for item in candidates if _is_address(item.address)]
    if not asked:
        return list(candidates)
    done = runner(("ssh-keyscan", "-T", "3", "-t", "ed25519,ecdsa,rsa", *asked))
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
    lines = tuple(f"{item.address} {kind} {key}" for kind, key in keys.items())
    return replace(item, fingerprint=_fingerprint(keys[best]), kind=_KINDS[best], known_hosts=lines)


def _fingerprint(key: str) -> str:
    return f"SHA256:{base64.b64encode(hashlib.sha256(_blob(key)).digest()).decode('ascii').rstrip('=')}"


def confirmed(item: Candidate, fingerprints: Sequence[str]) -> Candidate:
    """With those of its keys only that somebody has compared: whoever shows one of them need not have the others."""
    lines = tuple(line for line in item.known_hosts if _fingerprint(line.split()[2]) in fingerprints)
    return replace(item, known_hosts=lines)
