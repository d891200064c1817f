# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Our netplan file, and what other files say about the same interfaces.

netplan merges all of its files: of scalars the last file wins, but lists of addresses are *joined*, and a definition
with another id that matches the same interface makes a second, competing configuration. So what others wrote has to be
seen before ours is added. It is read with PyYAML, which netplan itself depends on.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

try:
    import yaml
except ImportError:  # reported by read()
    yaml = None  # type: ignore[assignment]

FILE = "/etc/netplan/60-sparkmatrix-fabric.yaml"
# The order in which netplan reads its directories; in each of them a file shadows one of the same name before.
DIRECTORIES = ("/lib/netplan", "/etc/netplan", "/run/netplan")
KEYFILES = "/etc/NetworkManager/system-connections"
_NM_FILE = re.compile(r"/90-NM-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})[^/]*\.yaml")
_CIDR = re.compile(r"(?<![\w.])([0-9]{1,3}(?:\.[0-9]{1,3}){3}/[0-9]{1,2})(?![\w.])")

_HEADER = """\
# Written by the role fabric of sparkmatrix.cluster; edits are overwritten.
# To undo: ansible-playbook reset.yml --tags fabric
"""


@dataclass(frozen=True)
class Nic:
    """An interface of the machine, by what netplan can match it."""

    netdev: str
    mac: str = ""
    driver: str = ""  # "mlx5_core"

    def fits(self, match: Any) -> bool:
        """netplan's ``match:``. Everything in it has to fit; an empty one fits every interface."""
        wanted = match if isinstance(match, Mapping) else {}
        drivers = wanted.get("driver", self.driver)
        return (
            fnmatch.fnmatchcase(self.netdev, str(wanted.get("name", self.netdev)))
            and str(wanted.get("macaddress", self.mac)).lower() == self.mac.lower()
            and any(fnmatch.fnmatchcase(self.driver, str(d)) for d in _list(drivers))
        )


@dataclass(frozen=True)
class Interface:
    """One interface as our file configures it: ``address`` is ``192.168.100.10/24``, ``mtu`` in bytes."""

    nic: Nic
    address: str
    mtu: int

    @property
    def netdev(self) -> str:
        return self.nic.netdev


@dataclass(frozen=True)
class Definition:
    """What one file says about one interface."""

    file: str
    id: str
    addresses: tuple[str, ...] = ()
    dhcp: bool = False
    mtu: int | None = None
    routes: bool = False
    match: bool = False  # found through match:, under another id
    needless: bool = False  # NetworkManager, which is told to leave the interface alone, would ask DHCP at most
    other: str = ""  # no definition of this interface, but it changes what ours means: how


@dataclass(frozen=True)
class Conflict:
    """Why ours cannot be added: what was found, in which file, what to do."""

    netdev: str
    file: str
    found: str
    remedy: str
    needless: bool = False  # it is without effect where NetworkManager leaves the interface alone


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
        if renderer == "NetworkManager":
            # Before every profile that fits the interface by its driver, by a pattern or as any other.
            first = "connection.autoconnect-priority: '999'"
            lines.append(f"      networkmanager: {{passthrough: {{{first}}}}}")
    return "\n".join(lines) + "\n"


# --- other people's files --------------------------------------------------------------------------------------------

_KINDS = ("ethernets", "bonds", "bridges", "vlans", "wifis", "modems", "tunnels", "dummy-devices", "vrfs", "nm-devices")
# What a definition may say that asks DHCP or nothing, and what a profile of NetworkManager says beside it and is more.
_DHCP = {
    *("renderer", "match", "optional", "dhcp4", "dhcp6", "dhcp-identifier", "dhcp4-overrides", "dhcp6-overrides"),
    *("accept-ra", "link-local", "ipv6-privacy", "ipv6-address-generation", "wakeonlan", "mtu", "networkmanager"),
}
_KEPT = re.compile(
    r"ipv[46]\.(address|route|gateway|dns)|802-1x|connection\.(master|controller|slave|port)|bridge|bond|team"
)
_ROUTES = ("routes", "gateway4", "routing-policy")


def read(path: str, text: str) -> Mapping[str, Any]:
    """What a netplan file has below ``network``."""
    if yaml is None:
        raise SparkError(
            "this Python cannot read YAML, in which netplan's files are written",
            sys.executable,
            "Install python3-yaml, which netplan needs as well, or set ansible_python_interpreter: /usr/bin/python3",
        )
    try:
        document = _first_document(text)
        network = {} if document is None else document.get("network", {})
        return {str(key): value for key, value in network.items()}
    except (yaml.YAMLError, AttributeError, RecursionError) as exc:
        # Without the piece of the file that str(exc) has: a Wi-Fi password may stand there.
        mark, problem = getattr(exc, "problem_mark", None), getattr(exc, "problem", None)
        why = f"{problem} in line {mark.line + 1}" if mark else "network is no mapping"
        if isinstance(exc, yaml.reader.ReaderError):
            why = f"{exc.reason} (line {text.count(chr(10), 0, exc.position) + 1})"
        raise SparkError(
            f"netplan cannot read this file: {why}",
            path,
            f"{remedy_of_broken(path)}: with it netplan configures no interface at the next boot. Then run again",
        ) from exc


def remedy_of_broken(path: str) -> str:
    """NetworkManager writes its files again, so they are corrected through it."""
    connection = _NM_FILE.search(path)
    if connection:
        return (
            f"NetworkManager wrote it: change that connection (nmcli connection modify {connection[1]} ...) or delete "
            f"it (nmcli connection delete {connection[1]})"
        )
    return "Correct it or move it away"


def _first_document(text: str) -> Any:
    """As netplan reads it: what follows the first document does not count, and what comes twice is joined."""

    class Loader(yaml.BaseLoader):
        """Text, lists and mappings only: an unquoted MAC address may be a number in YAML 1.1."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            found: dict[Any, Any] = {}
            for key_node, value_node in node.value:
                key, value = (self.construct_object(item, deep=deep) for item in (key_node, value_node))
                if not isinstance(key, str):
                    raise yaml.constructor.ConstructorError(problem="a key is no text", problem_mark=node.start_mark)
                if key == "<<":  # netplan does not know merge keys; what they bring in would not be seen here
                    raise yaml.constructor.ConstructorError(problem="a merge key (<<)", problem_mark=node.start_mark)
                found[key] = _joined(found[key], value) if key in found else value
            return found

    return next(yaml.load_all(text, Loader=Loader), None)


def _joined(first: Any, second: Any) -> Any:
    if isinstance(first, dict) and isinstance(second, dict):
        both = {key: _joined(first[key], second[key]) for key in first.keys() & second.keys()}
        return {**first, **second, **both}
    return first + second if isinstance(first, list) and isinstance(second, list) else second


def lasting(files: Mapping[str, str]) -> dict[str, str]:
    """Without files of packages that are shadowed for good. One in /run shadows until the next boot only."""
    return {p: text for p, text in files.items() if not (p.startswith("/lib/") and f"/etc{p[4:]}" in files)}


def _definitions(network: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind in _KINDS:
        entries = network.get(kind)
        for name, settings in entries.items() if isinstance(entries, Mapping) else ():
            own = settings if isinstance(settings, Mapping) else {}
            yield str(name), {**({"renderer": network["renderer"]} if "renderer" in network else {}), **own}


def _applies(name: str, settings: Mapping[str, Any], nic: Nic) -> bool:
    if "match" not in settings:
        return name == nic.netdev
    if not settings["match"] and settings.get("renderer") == "NetworkManager":
        return False  # a profile for any interface: it is not used for one that has a configuration of its own
    return nic.fits(settings["match"])


def definitions(path: str, network: Mapping[str, Any], nic: Nic) -> list[Definition]:
    """What a netplan file says about an interface, in the order of the file. Nothing when it does not name it."""
    found, names, rest = [], {nic.netdev}, []
    for name, settings in _definitions(network):
        if _applies(name, settings, nic):
            found.append(_definition(path, name, settings, name != nic.netdev))
            names.add(name)
        else:
            rest.append(settings)
            if name == nic.netdev:
                how = f"its definition {name!r} has a match that {name} does not fit, and netplan joins it with ours"
                found.append(Definition(path, name, other=how))
    outside = [value for key, value in network.items() if key not in _KINDS]
    if names & {word for part in (*rest, *outside) for word in words(part)}:
        how = f"it names {nic.netdev} in a bond, a bridge or in a way that is not understood here"
        found.append(Definition(path, nic.netdev, other=how))
    return found


def _definition(path: str, name: str, settings: Mapping[str, Any], match: bool) -> Definition:
    # An address with options is a mapping with one key.
    addresses = [str(text) for item in _list(settings.get("addresses") or []) for text in _list(item, keys=True)]
    mtu = str(settings.get("mtu", ""))
    return Definition(
        file=path,
        id=name,
        addresses=tuple(address for address in addresses if ":" not in address),
        dhcp=str(settings.get("dhcp4", "")).lower() in ("true", "yes", "on", "y"),
        mtu=int(mtu) if mtu.isdecimal() else None,
        routes=any(settings.get(key) for key in _ROUTES),
        match=match,
        needless=match and settings.get("renderer") == "NetworkManager" and _dhcp_at_most(settings),
    )


def _dhcp_at_most(settings: Mapping[str, Any]) -> bool:
    """It holds nothing that would be missed."""
    details = settings.get("networkmanager")
    passed = details.get("passthrough") if isinstance(details, Mapping) else None
    return set(settings) <= _DHCP and not any(_KEPT.match(str(key)) for key in passed or ())


def _list(value: Any, keys: bool = False) -> list[Any]:
    return list(value) if isinstance(value, list) or (keys and isinstance(value, Mapping)) else [value]


def words(value: Any) -> Iterator[str]:
    """Every value in a part of a file, without the keys."""
    if isinstance(value, (Mapping, list)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from words(part)
    else:
        yield str(value)


def conflicts(files: Mapping[str, str], interfaces: Iterable[Interface], own: str = FILE) -> list[Conflict]:
    """What keeps our file from meaning what it says. ``files``: text of every netplan file by path, ours is ignored."""
    found = []
    networks = {path: read(path, text) for path, text in sorted(lasting(files).items(), key=_in_order) if path != own}
    for interface in interfaces:
        for path, network in networks.items():
            for definition in definitions(path, network, interface.nic):
                reason = _objection(definition, interface, _order(path) > _order(own))
                if reason:
                    found.append(Conflict(interface.netdev, path, reason, _remedy(definition), definition.needless))
    return found


def _order(path: str) -> str:
    """netplan sorts by file name, whatever the directory."""
    return path.rpartition("/")[2]


def _in_order(item: tuple[str, str]) -> str:
    return _order(item[0])


def _objection(definition: Definition, wanted: Interface, later: bool) -> str:
    if definition.other:
        return definition.other
    foreign = [address for address in definition.addresses if _same(address) != _same(wanted.address)]
    if foreign and not definition.routes:
        return f"it gives {wanted.netdev} the address {', '.join(foreign)}, which netplan would join with ours"
    if definition.routes:
        return f"it has addresses or routes of its own for {wanted.netdev}"
    if definition.match:
        return f"its definition {definition.id!r} also matches {wanted.netdev}, and only one of the two can apply"
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


# --- adopting: disabled, and back at a reset -------------------------------------------------------------------------

_ADOPTED = """\
# Disabled by the role fabric of sparkmatrix.cluster, which configures these interfaces now.
# `ansible-playbook reset.yml --tags fabric` brings the content back.
"""


def not_adoptable(path: str, text: str, netdevs: Iterable[str], nics: Iterable[Nic]) -> str:
    """Why this netplan file cannot be disabled as a whole, or nothing: it must be about ``netdevs`` only.
    ``nics``: every interface of the machine."""
    mine, network = set(netdevs), read(path, text)
    for key in network:
        if key not in ("version", "renderer", "ethernets", "nm-devices"):
            return f"{path} configures {key}"
    for name, settings in _definitions(network):
        held = {nic.netdev for nic in nics if _applies(name, settings, nic)} or {name}
        if held - mine:
            return f"{path} also configures {', '.join(sorted(held - mine))}"
        if any(settings.get(key) for key in _ROUTES):
            return f"{path} has routes for {name}"
    return ""


def nothing_to_lose(path: str, text: str, netdevs: Iterable[str], nics: Iterable[Nic]) -> bool:
    """It is about ``netdevs`` only and asks DHCP at most, so that nobody need be asked whether it may be adopted."""
    return not not_adoptable(path, text, netdevs, nics) and all(
        _dhcp_at_most(settings) for _name, settings in _definitions(read(path, text))
    )


def out_of_force(path: str, text: str) -> str:
    """What stands in the place of an adopted file: no interface; a global renderer goes on to count."""
    if path.endswith(".nmconnection"):
        return _keyfile_out_of_force(text)
    renderer = read(path, text).get("renderer")
    return _ADOPTED + "network:\n  version: 2\n" + (f"  renderer: {renderer}\n" if renderer else "")


def keyfile_not_adoptable(file: str, text: str) -> str:
    connection = _sections(text).get("connection", {})
    controller = connection.get("controller") or connection.get("master")
    return f"{file} is part of {controller}" if controller else ""


def _keyfile_out_of_force(text: str) -> str:
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
    if not done:
        lines += ["[connection]", "autoconnect=false"]
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
        name = connection.get("id", path.rpartition("/")[2].removesuffix(".nmconnection"))
        for interface in interfaces:
            if connection.get("interface-name") != interface.netdev and not _has_mac(sections, interface.nic):
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


def _has_mac(sections: Mapping[str, Mapping[str, str]], nic: Nic) -> bool:
    wanted = sections.get("ethernet", {}).get("mac-address", "")
    return bool(wanted) and wanted.lower() == nic.mac.lower()


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
