# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Our netplan file, and what other files say about the same interfaces.

netplan merges all of its files: of scalars the last file wins, but lists of addresses are *joined*, and a definition
with another id that matches the same interface makes a second, competing configuration. So what others wrote has to be
seen before ours is added. It is read with PyYAML, which netplan itself depends on.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import shlex
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    place: str = ""  # udev's ID_PATH, where known: "pci-0000:01:00.0"

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
    settings: Mapping[str, Any] = field(default_factory=dict)
    routes: bool = False
    match: bool = False  # found through match:, under another id
    loose: bool = False  # by a pattern, a driver or anything: it may be that of other ports, too
    manager: bool = False  # by NetworkManager, which is told to leave the interface alone
    needless: bool = False  # by NetworkManager, and it would ask DHCP at most
    other: str = ""  # no definition of this interface, but it changes what ours means: how

    @property
    def addresses(self) -> list[str]:
        """IPv4. One with options is a mapping with one key."""
        found = [str(text) for item in _list(self.settings.get("addresses") or []) for text in _list(item, keys=True)]
        return [address for address in found if ":" not in address]


@dataclass(frozen=True)
class Conflict:
    """Why ours cannot be added: what was found, in which file, what to do."""

    netdev: str
    file: str
    found: str
    remedy: str
    needless: bool = False  # it is without effect where NetworkManager leaves the interface alone
    asked: bool = False  # whether it changes anything, netplan says best: :func:`_fabric.reading.changes`


def render(interfaces: Sequence[Interface], renderer: str = "networkd") -> str:
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
            "      link-local: []",
            f"      mtu: {item.mtu}",
            f"      addresses: [{item.address}]",
        ]
        if renderer == "NetworkManager":
            # Before every profile that fits the interface by its driver, by a pattern or as any other.
            lines.append("      networkmanager: {passthrough: {connection.autoconnect-priority: '999'}}")
    return "\n".join(lines) + "\n"


# --- other people's files --------------------------------------------------------------------------------------------

_KINDS = ("ethernets", "bonds", "bridges", "vlans", "wifis", "modems", "tunnels", "dummy-devices", "vrfs", "nm-devices")
_ADAPTERS = ("ethernets", "nm-devices")
# What a definition may say that asks DHCP or nothing and how the interface comes up, and what a profile of
# NetworkManager says beside it and is more.
_DHCP = {
    *("renderer", "match", "optional", "dhcp4", "dhcp6", "dhcp-identifier", "dhcp4-overrides", "dhcp6-overrides"),
    *("accept-ra", "link-local", "ipv6-privacy", "ipv6-address-generation", "wakeonlan", "mtu", "networkmanager"),
    *("optional-addresses", "activation-mode", "ignore-carrier", "critical"),
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
    return "Correct it (or move it away, if it is about no port but those of the fabric)"


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
    return {p: text for p, text in files.items() if not ("/lib/" in p and f"/etc/netplan/{_order(p)}" in files)}


def _definitions(network: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind in _KINDS:
        entries = network.get(kind)
        for name, settings in entries.items() if isinstance(entries, Mapping) else ():
            yield str(name), settings if isinstance(settings, Mapping) else {}


def _by_manager(network: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("renderer", network.get("renderer")) == "NetworkManager")


def _applies(network: Mapping[str, Any], name: str, settings: Mapping[str, Any], nic: Nic) -> bool:
    if "match" not in settings:
        return name == nic.netdev
    if not settings["match"] and _by_manager(network, settings):
        return False  # a profile for any interface: it is not used for one that has a configuration of its own
    return nic.fits(settings["match"])


def definitions(path: str, network: Mapping[str, Any], nic: Nic) -> list[Definition]:
    """What a netplan file says about an interface, in the order of the file. Nothing when it does not name it."""
    found, names, rest = [], {nic.netdev}, []
    for name, settings in _definitions(network):
        if _applies(network, name, settings, nic):
            match, manager = name != nic.netdev, _by_manager(network, settings)
            at_most = match and manager and _dhcp_at_most(settings)
            routes = any(settings.get(key) for key in _ROUTES)
            found.append(
                Definition(path, name, settings, routes, match, not _exact(settings, nic), manager, needless=at_most)
            )
            names.add(name)
        else:
            rest.append(settings)
            if name == nic.netdev:
                how = f"its definition {name!r} has a match that {name} does not fit, and netplan joins it with ours"
                found.append(Definition(path, name, match=True, other=how))
    outside = [value for key, value in network.items() if key not in _KINDS]
    hits = names & {word for part in (*rest, *outside) for word in words(part)}
    if hits:
        how = f"it names {nic.netdev} in a bond, a bridge or in a way that is not understood here"
        loose = sorted(item.id for item in found if item.loose and item.id in hits)
        found.append(Definition(path, loose[0] if loose else min(hits), loose=bool(loose), other=how))
    return found


def _exact(settings: Mapping[str, Any], nic: Nic) -> bool:
    """The definition, which applies, can be that of no other interface."""
    match = settings.get("match")
    named = [match.get("name"), str(match.get("macaddress", "")).lower()] if isinstance(match, Mapping) else []
    return "match" not in settings or nic.netdev in named or nic.mac.lower() in filter(None, named)


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


def conflicts(files: Mapping[str, str], interfaces: Iterable[Interface]) -> list[Conflict]:
    """What may keep our file from meaning what it says. ``files``: text of every netplan file by path, ours is
    ignored."""
    found, mine = [], list(interfaces)
    networks = {path: read(path, text) for path, text in sorted(lasting(files).items(), key=_in_order) if path != FILE}
    for interface in mine:
        for path, network in networks.items():
            for definition in definitions(path, network, interface.nic):
                reason, asked = _objection(definition, interface)
                remedy = _remedy(definition, network, [item.nic for item in mine])
                found.append(Conflict(interface.netdev, path, reason, remedy, definition.needless, asked))
    return found


def _order(path: str) -> str:
    """netplan sorts by file name, whatever the directory."""
    return path.rpartition("/")[2]


def _in_order(item: tuple[str, str]) -> str:
    return _order(item[0])


def _objection(definition: Definition, wanted: Interface) -> tuple[str, bool]:
    """What is wrong, and whether netplan has to say that it has an effect."""
    if definition.other:
        return definition.other, False
    foreign = [address for address in definition.addresses if _same(address) != _same(wanted.address)]
    if foreign and not definition.routes:
        return f"it gives {wanted.netdev} the address {', '.join(foreign)}, which netplan would join with ours", False
    if definition.routes:
        return f"it has addresses or routes of its own for {wanted.netdev}", False
    if definition.match:
        text = f"its definition {definition.id!r} also matches {wanted.netdev}, and only one of the two can apply"
        return text, not definition.manager
    said = ", ".join(_shown(key, value) for key, value in definition.settings.items() if key != "match")
    return f"it sets {said} for {wanted.netdev}, which netplan joins with ours", True


def _shown(key: str, value: Any) -> str:
    """Without what stands deeper: a password may."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return f"{key} [{', '.join(value)}]"
    return f"{key} {value}" if isinstance(value, str) else key


def _same(address: str) -> str:
    try:
        return str(ipaddress.IPv4Interface(address))
    except ValueError:
        return address


def _remedy(definition: Definition, network: Mapping[str, Any], mine: Sequence[Nic]) -> str:
    """What to do by hand. A file that is, or may be, about other ports as well stays: one of them may be the way in."""
    connection = re.match(r"NM-([0-9a-f-]{36})$", definition.id)
    if connection and not definition.loose:
        return f"Delete that connection of NetworkManager: nmcli connection delete {connection[1]}"
    if connection:
        return _narrow("that connection", connection[1])
    if definition.loose:
        return (
            f"Narrow the match of {definition.id!r} to the port that it is meant for, so that it fits none of the "
            "fabric"
        )
    if definition.other and definition.match:
        return f"Give the definition {definition.id!r} another name: it is that of another port"
    if definition.other:
        return f"Take {definition.id!r}, and what stands on it, out of that file, and leave the rest of it as it is"
    others = _others(network, mine)
    if not others:
        return f"Take the interface out of that file, or move it away: mv {definition.file} /root/"
    return f"Take {definition.id!r} out of that file, and leave the rest of it ({', '.join(others)}) as it is"


def _narrow(what: str, connection: str) -> str:
    return (
        f"Let {what} fit its own port only, which may be the way to the machine: nmcli connection modify {connection}"
        " match.interface-name '' connection.interface-name PORT"
    )


def _others(network: Mapping[str, Any], mine: Sequence[Nic]) -> list[str]:
    """What else than these interfaces a file is, or may be, about."""
    names = [
        name
        for key in _ADAPTERS
        for name, settings in _definitions({key: network.get(key)})
        if not any(_applies(network, name, settings, nic) and _exact(settings, nic) for nic in mine)
    ]
    return [*names, *(key for key in network if key not in ("version", *_ADAPTERS))]


# --- adopting: disabled, and back at a reset -------------------------------------------------------------------------

_ADOPTED = """\
# Disabled by the role fabric of sparkmatrix.cluster, which configures these interfaces now.
# `ansible-playbook reset.yml --tags fabric` brings the content back.
"""


def not_adoptable(path: str, text: str, netdevs: Iterable[str], nics: Iterable[Nic]) -> str:
    """Why what this netplan file says about ``netdevs`` cannot be disabled, or nothing.
    ``nics``: every interface of the machine."""
    mine, network = set(netdevs), read(path, text)
    going = _going(network, mine, nics)
    for name, settings in _definitions(network):
        held = {nic.netdev for nic in nics if _applies(network, name, settings, nic)}
        if held & mine and held - mine:
            return f"{path} also configures {', '.join(sorted(held - mine))}"
        if name in going and any(settings.get(key) for key in _ROUTES):
            return f"{path} has routes for {name}"
    for key, part in _rest(network, going).items():
        if {*mine, *going} & {*words(part), *(part if isinstance(part, Mapping) else ())}:
            return f"{path} configures {key}"
    return ""


def _going(network: Mapping[str, Any], mine: Container[str], nics: Iterable[Nic]) -> set[str]:
    """The definitions that are about these interfaces and no others."""
    found = set()
    for name, settings in _definitions({key: network[key] for key in _ADAPTERS if key in network}):
        held = [nic.netdev for nic in nics if _applies(network, name, settings, nic)]
        if held and all(netdev in mine for netdev in held):
            found.add(name)
    return found


def _rest(network: Mapping[str, Any], going: Container[str]) -> dict[str, Any]:
    """What stays of a file without these definitions."""
    rest = {}
    for key, part in network.items():
        split = key in _ADAPTERS and isinstance(part, Mapping)
        left = {name: settings for name, settings in part.items() if name not in going} if split else part
        if left:
            rest[key] = left
    return rest


def beyond_adapters(path: str, text: str) -> bool:
    """It is about more than adapters: a Wi-Fi network has a password."""
    return path.endswith(".yaml") and bool(set(read(path, text)) - {"version", "renderer", *_ADAPTERS})


def nothing_to_lose(path: str, text: str, netdevs: Iterable[str], nics: Iterable[Nic]) -> bool:
    """It is about ``netdevs`` only and asks DHCP at most, so that nobody need be asked whether it may be adopted."""
    mine, network = set(netdevs), read(path, text)
    return (
        not not_adoptable(path, text, mine, nics)
        and not set(_rest(network, _going(network, mine, nics))) - {"version", "renderer"}
        and all(_dhcp_at_most(settings) for _name, settings in _definitions(network))
    )


def out_of_force(path: str, text: str, netdevs: Iterable[str], nics: Iterable[Nic]) -> str:
    """What stands in the place of an adopted file: what it says of other interfaces, and a global renderer, go on to
    count."""
    if path.endswith(".nmconnection"):
        return _keyfile_out_of_force(text)
    if not path.endswith(".yaml"):
        return _ADOPTED  # networkd takes no notice of a file without [Match]
    network = read(path, text)
    rest = _rest(network, _going(network, set(netdevs), nics))
    if set(rest) - {"version", "renderer"}:
        return _ADOPTED + str(yaml.safe_dump({"network": rest}, sort_keys=False, allow_unicode=True))
    renderer = rest.get("renderer")
    return _ADOPTED + "network:\n  version: 2\n" + (f"  renderer: {renderer}\n" if renderer else "")


def keyfile_not_adoptable(file: str, text: str) -> str:
    sections = _sections(text)
    connection = sections.get("connection", {})
    controller = connection.get("controller") or connection.get("master")
    if controller:
        return f"{file} is part of {controller}"
    exact = connection.get("interface-name") or sections.get("ethernet", {}).get("mac-address")
    return f"{file} may be that of other interfaces, too" if "match" in sections and not exact else ""


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


def patterns_fit(patterns: Sequence[str], own: str) -> bool:
    """As NetworkManager and systemd-networkd read a list of patterns: those with ! exclude."""
    wanted = [item for item in patterns if not item.startswith("!")]
    excluded = [item[1:] for item in patterns if item.startswith("!")]
    return not any(fnmatch.fnmatchcase(own, item) for item in excluded) and (
        not wanted or any(fnmatch.fnmatchcase(own, item) for item in wanted)
    )


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
            fit = profile_fits(text, interface.nic)
            if fit not in (EXACTLY, BY_PATTERN):
                continue
            remedy = f"Delete it: nmcli connection delete {shlex.quote(name)}"
            if fit == BY_PATTERN:
                remedy = _narrow("it", shlex.quote(name))
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


EXACTLY, BY_PATTERN, ANY = "exactly", "by pattern", "any"


def profile_fits(text: str, nic: Nic) -> str:
    """How a profile is told that it is for an interface; empty where it is for others."""
    sections = _sections(text)
    name = sections.get("connection", {}).get("interface-name", "")
    mac, match = sections.get("ethernet", {}).get("mac-address", ""), sections.get("match", {})
    if name or mac:
        return EXACTLY if name in ("", nic.netdev) and mac.lower() in ("", nic.mac.lower()) else ""
    return (BY_PATTERN if _matches(match, nic) else "") if match else ANY


def _matches(match: Mapping[str, str], nic: Nic) -> bool:
    """Of the section [match]: lists of patterns, each with an optional | or & before it; ! excludes."""
    for key, own in (("interface-name", nic.netdev), ("driver", nic.driver)):
        patterns = [item.lstrip("|&") for item in re.split("[;, ]", match.get(key, "")) if item]
        if patterns and not patterns_fit(patterns, own):
            return False
    return True


def ini_lines(text: str) -> list[tuple[str, str, str]]:
    """Section, key and value of every line, of NetworkManager and of systemd."""
    found, section = [], ""
    for line in text.splitlines():
        bare = line.strip()
        key, equals, value = bare.partition("=")
        if bare.startswith("[") and bare.endswith("]"):
            section = bare[1:-1]
        elif equals and bare[0] not in "#;":
            found.append((section, key.strip(), value.strip()))
    return found


def _sections(text: str) -> dict[str, dict[str, str]]:
    sections: dict[str, dict[str, str]] = {}
    for section, key, value in ini_lines(text):
        sections.setdefault(section, {})[key] = value
    return sections
