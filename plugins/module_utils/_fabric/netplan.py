# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Our netplan file, and what other files say about the same interfaces.

netplan merges all of its files: of scalars the last file wins, but lists of addresses are *joined*, and a definition
with another id that matches the same interface makes a second, competing configuration. So what others wrote has to be
seen before ours is added. There is no YAML parser on a node that we may rely on, so :func:`definitions` reads the block
style that people, NVIDIA's guides, NetworkManager and cloud-init write, and what it cannot place it reports as such.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

FILE = "/etc/netplan/60-sparkmatrix-fabric.yaml"
# The order in which netplan reads its directories; in each of them a file shadows one of the same name before.
DIRECTORIES = ("/lib/netplan", "/etc/netplan", "/run/netplan")
KEYFILES = "/etc/NetworkManager/system-connections"

_HEADER = """\
# Written by the role fabric of sparkmatrix.cluster; edits are overwritten.
# To undo: ansible-playbook reset.yml --tags fabric
"""


@dataclass(frozen=True)
class Interface:
    """One interface as our file configures it: ``address`` is ``192.168.100.10/24``, ``mtu`` in bytes, ``routes`` are
    pairs of destination and gateway."""

    netdev: str
    address: str
    mtu: int
    routes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Definition:
    """What one file says about one interface."""

    file: str
    id: str
    addresses: tuple[str, ...] = ()
    dhcp: bool = False
    mtu: int | None = None
    routes: bool = False
    match: bool = False  # found through match: name:, under another id
    loose: bool = False  # named outside of a definition, for example as member of a bond


@dataclass(frozen=True)
class Conflict:
    """Why ours cannot be added: what was found, in which file, what to do."""

    netdev: str
    file: str
    found: str
    remedy: str


def render(interfaces: Sequence[Interface], renderer: str = "networkd", ipv6: bool = False) -> str:
    """The text of our file. ``optional``, because a Spark's ConnectX-7 may be absent at boot and must not delay it."""
    lines = [_HEADER + "network:", "  version: 2", "  ethernets:"]
    for item in interfaces:
        lines += [
            f"    {item.netdev}:",
            f"      renderer: {renderer}",
            "      optional: true",
            "      dhcp4: false",
            "      dhcp6: false",
            "      accept-ra: false",
            f"      link-local: [{'ipv6' if ipv6 else ''}]",
            f"      mtu: {item.mtu}",
            f"      addresses: [{item.address}]",
        ]
        if item.routes:
            lines.append("      routes:")
        for destination, via in item.routes:
            lines += [f"        - to: {destination}", f"          via: {via}"]
    return "\n".join(lines) + "\n"


# --- other people's files --------------------------------------------------------------------------------------------


@dataclass
class _Block:
    """A key and everything indented deeper than it."""

    key: str
    indent: int
    lines: list[str] = field(default_factory=list)
    parents: tuple[str, ...] = ()


_KEY = re.compile(r"""^(\s*)(?:-\s+)?["']?([^\s"':#{}\[\]]+)["']?\s*:(?:\s+(.*))?$""")
_CIDR = re.compile(r"(?<![\w.])([0-9]{1,3}(?:\.[0-9]{1,3}){3}/[0-9]{1,2})(?![\w.])")
_TRUE = re.compile(r"\bdhcp4\s*:\s*[\"']?(?:true|yes|on)\b", re.I)
_MTU = re.compile(r"\bmtu\s*:\s*[\"']?([0-9]{3,5})\b")
_ROUTES = re.compile(r"\b(?:routes|gateway4|routing-policy)\s*:")
_MATCH_NAME = re.compile(r"""\bname\s*:\s*["']?([^\s"',}]+)""")
_KINDS = ("ethernets", "bonds", "bridges", "vlans", "wifis", "modems", "tunnels", "dummy-devices", "vrfs", "nm-devices")


def definitions(file: str, text: str, netdev: str) -> list[Definition]:
    """What a netplan file says about an interface, in the order of the file. Nothing when it does not name it."""
    lines = [_uncomment(line) for line in text.splitlines()]
    blocks = _blocks(lines)
    found = []
    inside: list[str] = []  # lines that belong to a definition of this interface
    for block in blocks:
        if not block.parents or block.parents[-1] not in _KINDS:
            continue
        body = "\n".join(block.lines)
        match = _match_name(body)
        by_match = match is not None and fnmatch.fnmatchcase(netdev, match)
        if block.key == netdev and (match is None or by_match):
            found.append(_definition(file, block.key, body, False))
            inside += block.lines
        elif by_match:
            found.append(_definition(file, block.key, body, True))
            inside += block.lines
    word = re.compile(rf"(?<![\w.-]){re.escape(netdev)}(?![\w.-])")
    named = sum(len(word.findall(line)) for line in lines)
    accounted = sum(len(word.findall(line)) for line in inside)
    if named > accounted:
        found.append(Definition(file, netdev, loose=True))
    return found


def _uncomment(line: str) -> str:
    return re.sub(r"(?:^|\s)#.*$", "", line).rstrip()


def _blocks(lines: Sequence[str]) -> list[_Block]:
    blocks: list[_Block] = []
    open_blocks: list[_Block] = []
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        while open_blocks and indent <= open_blocks[-1].indent:
            open_blocks.pop()
        for block in open_blocks:
            block.lines.append(line)
        match = _KEY.match(line)
        if match:
            block = _Block(match[2], indent, [line], tuple(b.key for b in open_blocks))
            blocks.append(block)
            open_blocks.append(block)
    return blocks


def _match_name(body: str) -> str | None:
    """The pattern of ``match: {name: …}``; a ``name`` elsewhere (``set-name``, a Wi-Fi) is not one."""
    for block in _blocks(body.splitlines()):
        if block.key == "match":
            found = _MATCH_NAME.search("\n".join(block.lines))
            return found[1] if found else None
    return None


def _definition(file: str, key: str, body: str, match: bool) -> Definition:
    mtu = _MTU.search(body)
    return Definition(
        file=file,
        id=key,
        addresses=tuple(_CIDR.findall(body)),
        dhcp=bool(_TRUE.search(body)),
        mtu=int(mtu[1]) if mtu else None,
        routes=bool(_ROUTES.search(body)),
        match=match,
    )


def conflicts(files: Mapping[str, str], interfaces: Iterable[Interface], own: str = FILE) -> list[Conflict]:
    """What keeps our file from meaning what it says. ``files``: text of every netplan file by path, ours is ignored."""
    found = []
    for interface in interfaces:
        for path in sorted(files, key=_order):
            if path == own:
                continue
            for definition in definitions(path, files[path], interface.netdev):
                reason = _objection(definition, interface, _order(path) > _order(own))
                if reason:
                    found.append(Conflict(interface.netdev, path, reason, _remedy(definition)))
    return found


def _order(path: str) -> str:
    """netplan sorts by file name, whatever the directory."""
    return path.rpartition("/")[2]


def _objection(definition: Definition, wanted: Interface, later: bool) -> str:
    if definition.loose:
        return f"it names {wanted.netdev} in a bond, a bridge or in a way that is not understood here"
    foreign = [address for address in definition.addresses if _same(address) != _same(wanted.address)]
    if foreign and not definition.routes:
        return f"it gives {wanted.netdev} the address {', '.join(foreign)}, which netplan would join with ours"
    if definition.routes:
        return f"it has addresses or routes of its own for {wanted.netdev}"
    if definition.match:
        return f"its definition {definition.id!r} also matches {wanted.netdev}, and only one of the two can be in force"
    if later and definition.dhcp:
        return f"it turns DHCP on for {wanted.netdev} and is read after ours"
    if later and definition.mtu not in (None, wanted.mtu):
        return f"it sets MTU {definition.mtu} for {wanted.netdev} and is read after ours"
    return ""


def _same(address: str) -> str:
    try:
        return str(ipaddress.IPv4Interface(address))
    except ValueError:
        return address


def _remedy(definition: Definition) -> str:
    connection = re.match(r"NM-([0-9a-f-]{36})$", definition.id)
    if connection:
        return f"Delete that connection of NetworkManager: nmcli connection delete {connection[1]}"
    return f"Take the interface out of that file, or move it away: mv {definition.file} /root/"


# --- adopting: out of force, and back at a reset ---------------------------------------------------------------------

_ADOPTED = """\
# Put out of force by the role fabric of sparkmatrix.cluster, which configures these interfaces now.
# `ansible-playbook reset.yml --tags fabric` brings the content back.
"""
_RENDERER = re.compile(r"^\s*renderer\s*:\s*[\"']?(networkd|NetworkManager)\b", re.I)


def not_adoptable(file: str, text: str, netdevs: Iterable[str]) -> str:
    """Why this netplan file cannot be put out of force as a whole, or nothing: it must be about ``netdevs`` only."""
    mine = set(netdevs)
    blocks = _blocks([_uncomment(line) for line in text.splitlines()])
    for block in blocks:
        if len(block.parents) == 1 and block.parents[0] == "network":
            if block.key not in ("version", "renderer", "ethernets", "nm-devices"):
                return f"{file} configures {block.key}"
        elif len(block.parents) == 2 and block.parents[0] == "network":
            name = _match_name("\n".join(block.lines)) or block.key
            if name not in mine:
                return f"{file} also configures {name}"
            if _ROUTES.search("\n".join(block.lines)):
                return f"{file} has routes for {name}"
    if not any(len(block.parents) == 2 for block in blocks):
        return f"{file} is written in a way that is not understood here"
    return ""


def out_of_force(text: str) -> str:
    """What stands in the place of an adopted file: no interface; a global renderer goes on to count."""
    lines = [_uncomment(line) for line in text.splitlines()]
    found = next(
        (b.lines[0].strip() for b in _blocks(lines) if b.parents == ("network",) and _RENDERER.match(b.lines[0])), ""
    )
    return _ADOPTED + "network:\n  version: 2\n" + (f"  {found}\n" if found else "")


def keyfile_not_adoptable(file: str, text: str) -> str:
    connection = _sections(text).get("connection", {})
    controller = connection.get("controller") or connection.get("master")
    return f"{file} is part of {controller}" if controller else ""


def keyfile_out_of_force(text: str) -> str:
    """The same profile, which NetworkManager no longer starts by itself."""
    lines, inside, done = [], False, False
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("["):
            inside = stripped == "[connection]"
        if inside and re.match(r"autoconnect\s*=", stripped):
            continue
        lines.append(line)
        if inside and not done:
            lines.append("autoconnect=false")
            done = True
    return "\n".join(lines) + "\n"


# --- NetworkManager's own profiles -----------------------------------------------------------------------------------


def keyfile_conflicts(files: Mapping[str, str], interfaces: Iterable[Interface]) -> list[Conflict]:
    """Profiles that give an interface an address by hand or put it into a bond. One that asks DHCP is no obstacle:
    NetworkManager is told to leave the interface alone.

    ``files``: text of the ``*.nmconnection`` files by path. Format: nm-settings-keyfile(5).
    """
    found = []
    for path, text in sorted(files.items()):
        sections = _sections(text)
        connection, ipv4 = sections.get("connection", {}), sections.get("ipv4", {})
        name = connection.get("id", path.rpartition("/")[2])
        for interface in interfaces:
            if connection.get("interface-name") != interface.netdev:
                continue
            remedy = f"Delete it: nmcli connection delete '{name}'"
            controller = connection.get("controller") or connection.get("master")
            addresses = _CIDR.findall("\n".join(v for k, v in ipv4.items() if k.startswith("address")))
            foreign = [address for address in addresses if _same(address) != _same(interface.address)]
            if controller:
                text_ = f"NetworkManager's connection {name!r} makes {interface.netdev} a member of {controller}"
                found.append(Conflict(interface.netdev, path, text_, remedy))
            elif foreign:
                text_ = f"NetworkManager's connection {name!r} gives {interface.netdev} {', '.join(foreign)}"
                found.append(Conflict(interface.netdev, path, text_, remedy))
    return found


def _sections(text: str) -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("[") and stripped.endswith("]"):
            current = sections.setdefault(stripped[1:-1], {})
        elif "=" in stripped and not stripped.startswith(("#", ";")):
            key, _equals, value = stripped.partition("=")
            current[key.strip()] = value.strip()
    return sections
