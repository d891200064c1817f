# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Files of systemd-networkd and udev: which of them counts for an interface, and what others put before netplan's.

Of all ``.network`` files, sorted by name whatever their directory, the first whose [Match] fits is the only one that
counts; so it is with ``.link`` files (systemd.network(5), systemd.link(5)).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.netplan import (
    Conflict,
    Interface,
    Nic,
    ini_lines,
    patterns_fit,
)

# The first shadows files of the same name in those after it.
MADE = "/run/systemd/network"  # where netplan puts its own
DIRECTORIES = ("/etc/systemd/network", MADE, "/usr/lib/systemd/network")
NETPLANS = "10-netplan-"
# What says more than which addresses the interface itself has.
_KEPT = ("Bond", "Bridge", "VRF", "VLAN", "MACVLAN", "Tunnel", "Gateway", "Destination")
_MACS = ("MACAddress", "PermanentMACAddress")
_OTHER_KINDS = ("Kind", "WLANInterfaceType", "SSID", "BSSID")


def fits(text: str, nic: Nic) -> bool:
    """One without [Match] fits nothing."""
    match = [(key, value.split()) for section, key, value in ini_lines(text) if section == "Match" and value]
    return bool(match) and all(_fits(key, words, nic) for key, words in match)


def _fits(key: str, words: Sequence[str], nic: Nic) -> bool:
    if key in ("Name", "OriginalName"):
        return _patterns(words, nic.netdev)
    if key == "Driver":
        return _patterns(words, nic.driver)
    if key == "Path" and nic.place:
        return _patterns(words, nic.place)
    if key in _MACS:
        return _digits(nic.mac) in map(_digits, words)
    if key == "Type":
        return _patterns(words, "ether")
    return key not in _OTHER_KINDS  # the rest asks for the kind of machine


def _patterns(words: Sequence[str], own: str) -> bool:
    """An exclamation mark before the first inverts the whole list."""
    inverted = words[0].startswith("!")
    return patterns_fit([f"!{word.lstrip('!')}" for word in words] if inverted else words, own)


def _digits(mac: str) -> str:
    return re.sub(r"[^0-9a-f]", "", mac.lower())


def first(files: Mapping[str, str], nic: Nic, ending: str = ".network") -> str | None:
    """The name of the file that counts for an interface; ``files``: text by name."""
    return next((name for name in sorted(files) if name.endswith(ending) and fits(files[name], nic)), None)


def foreign(machine: Machine) -> dict[str, str]:
    """The ``.network`` files that netplan has not made, and additions (``.d``) to those that it has made: text by
    path, without those that are shadowed or switched off."""
    found: dict[str, tuple[str, str]] = {}
    for directory in DIRECTORIES:
        for name in machine.names(directory):
            if name.startswith(NETPLANS) and name.endswith(".network.d"):
                inside = [f"{name}/{part}" for part in machine.names(f"{directory}/{name}")]
            elif directory == MADE and name.startswith(NETPLANS):
                continue
            else:
                inside = [name] if name.endswith(".network") else []
            for part in inside:
                found.setdefault(part, (f"{directory}/{part}", machine.read(f"{directory}/{part}") or ""))
    return {path: text for path, text in found.values() if text}


def conflicts(files: Mapping[str, str], interfaces: Sequence[Interface]) -> list[Conflict]:
    """What of :func:`foreign` networkd would use instead of ours, or add to it."""
    found = []
    for item in interfaces:
        ours = f"{NETPLANS}{item.netdev}.network"
        for path, text in files.items():
            directory, _, name = path.rpartition("/")
            if directory.endswith(f"/{ours}.d"):
                what = f"systemd-networkd adds it to what netplan says for {item.netdev}"
            elif name == ours or (name.endswith(".network") and name < ours and fits(text, item.nic)):
                what = f"systemd-networkd uses it for {item.netdev} and not ours, which comes after it by name"
            else:
                continue
            remedy = "Narrow its [Match] to the port that it is meant for, so that it fits none of the fabric"
            if about_only(path, text, [item.nic for item in interfaces]):
                remedy = f"Move it away: mv {path} /root/"
            found.append(Conflict(item.netdev, path, what, remedy))
    return found


def about_only(path: str, text: str, nics: Sequence[Nic]) -> bool:
    """It can be that of no other interface, by names or MAC addresses."""
    said = {key: value.split() for section, key, value in ini_lines(text) if section == "Match"}
    macs = {_digits(nic.mac) for nic in nics}
    return (
        f"/{NETPLANS}" in path
        or (bool(said.get("Name")) and set(said["Name"]) <= {nic.netdev for nic in nics})
        or any(said.get(key) and {*map(_digits, said[key])} <= macs for key in _MACS)
    )


def not_adoptable(path: str, text: str, nics: Sequence[Nic]) -> str:
    """Why this file cannot be disabled, or nothing."""
    if not about_only(path, text, nics):
        return f"{path} may be that of other interfaces, too"
    kept = sorted({key for _section, key, _value in ini_lines(text) if key in _KEPT})
    return f"{path} sets {', '.join(kept)}" if kept else ""
