# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""ufw: what it prints, and the difference between the rules that are there and those that layers want.

``ufw show added`` (ufw 0.33 and newer) prints every rule as the command that adds it, also while ufw is off. That text
is how rules are compared, added and deleted here. A rule belongs to a layer by its comment, ``sparkmatrix:<layer>``;
rules with another comment or none belong to somebody else and are never changed.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

FILES = ("/etc/default/ufw", "/etc/ufw/ufw.conf", "/etc/ufw/user.rules", "/etc/ufw/user6.rules")
DEFAULTS, RULES = FILES[0], FILES[2:]
PREFIX = "sparkmatrix:"
_ADDED = re.compile(r"ufw (?P<text>.*?)(?: comment '(?P<comment>[^']*)')?")
_POLICY = re.compile(r"""^DEFAULT_INPUT_POLICY=["']?(\w+)["']?\s*$""", re.MULTILINE)
_WORDS = re.compile(r"[A-Za-z0-9_.:/+,-]+( [A-Za-z0-9_.:/+,-]+)*")
_ACTIONS = ("allow", "deny", "reject", "limit")
_CLOSED = ("DROP", "REJECT")


@dataclass(frozen=True)
class Rule:
    """``text``: the words after ``ufw``, as ``ufw show added`` prints them, for example ``allow 22/tcp``."""

    text: str
    comment: str = ""

    @property
    def ours(self) -> bool:
        return self.comment.startswith(PREFIX)

    @property
    def layer(self) -> str:
        """Of one of ours."""
        return self.comment[len(PREFIX) :] if self.ours else ""

    @property
    def line(self) -> str:
        return f"ufw {self.text} comment '{self.comment}'" if self.comment else f"ufw {self.text}"


@dataclass(frozen=True)
class Status:
    """``active``: it filters now. ``closed``: what no rule allows is dropped or rejected."""

    installed: bool = False
    active: bool = False
    closed: bool = False
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class Change:
    add: tuple[Rule, ...] = ()
    remove: tuple[Rule, ...] = ()
    lines: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.add or self.remove)


def parse_added(text: str) -> tuple[Rule, ...]:
    """The output of ``ufw show added``. Lines that are no rules (title, ``(None)``) are left out."""
    found = []
    for line in text.splitlines():
        matched = _ADDED.fullmatch(line.strip())
        words = matched["text"].split() if matched else []
        if matched and words and (words[0] in _ACTIONS or words[0] == "route"):
            found.append(Rule(matched["text"], matched["comment"] or ""))
    return tuple(found)


def parse_active(text: str) -> bool:
    """The output of ``ufw status``, whose first line is ``Status: active`` or ``Status: inactive``."""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip() == "Status" and value.strip() in ("active", "inactive"):
            return value.strip() == "active"
    raise SparkError("'ufw status' does not say whether it is active", "ufw", "Run sudo ufw status on the machine")


def parse_closed(text: str) -> bool:
    """The content of /etc/default/ufw; the last setting counts, as in a shell."""
    found = _POLICY.findall(text)
    return bool(found) and found[-1].upper() in _CLOSED


def read(machine: Machine) -> Status:
    if machine.read(FILES[1]) is None or not machine.works("ufw", "version"):
        return Status()
    active = parse_active(machine.command("ufw", "status", step="reading the firewall").out)
    added = machine.command("ufw", "show", "added", step="reading the firewall rules").out
    return Status(True, active, parse_closed(machine.read(DEFAULTS) or ""), parse_added(added))


# --- rules as text ---------------------------------------------------------------------------------------------------


def ssh_rules(ports: Iterable[int], sources: Sequence[str] = ()) -> list[str]:
    """Rules that let ssh in: from everywhere, or from ``sources`` (addresses or networks)."""
    numbers = sorted(set(ports))
    if not sources:
        return [f"allow {port}/tcp" for port in numbers]
    return [f"allow from {network(s)} to any port {port} proto tcp" for port in numbers for s in sources]


@functools.lru_cache(maxsize=4096)  # of every node for every other one
def peer_rule(address: str, netdev: str = "") -> str:
    """Everything from one peer, over one interface or any."""
    return f"allow {'in on ' + netdev + ' ' if netdev else ''}from {network(address)}"


def network(text: str) -> str:
    """As ufw prints it: a single address without prefix length. Raises :class:`SparkError` for anything else."""
    try:
        found = ipaddress.ip_network(strict.destination(text), strict=False)
    except ValueError as exc:
        raise SparkError(f"{text!r} is no address and no network", "", "Write it like 192.168.1.0/24") from exc
    return str(found.network_address) if found.num_addresses == 1 else str(found)


def refusing_ssh(rules: Sequence[Rule], ports: Iterable[int]) -> list[Rule]:
    """Rules of others that come first and turn ssh away from everywhere: ufw takes the first that matches."""
    names = {name for port in ports for name in (str(port), f"{port}/tcp")} | {"ssh", "OpenSSH", "22/tcp (OpenSSH)"}
    found = []
    for rule in rules:
        words = rule.text.split()
        if words[0] == "allow" and len(words) == 2 and words[1] in names:
            break  # whoever wrote it: ssh is let in before a later rule is looked at
        if words[0] in ("deny", "reject") and "from" not in words and "out" not in words:
            ported = [word for word in words[1:] if word in names]
            if ported or words[1:] in (["in"], ["to", "any"], ["Anywhere"]):
                found.append(rule)
    return found


# --- difference ------------------------------------------------------------------------------------------------------


def compare(have: Sequence[Rule], wanted: Mapping[str, Sequence[str]]) -> Change:
    """What to add and remove so that every layer of ``wanted`` has exactly its rules; other layers are left alone.

    ufw knows each rule once: adding one that somebody else has would only replace its comment, and removing it later
    would take theirs. So such a rule counts as there.
    """
    there = {rule.text: rule for rule in have}
    add: dict[str, Rule] = {}
    for layer, texts in wanted.items():
        for text in texts:
            if not _WORDS.fullmatch(text):
                raise SparkError(f"{strict.quoted(text)} is no firewall rule", layer, "Correct the value in it")
            if text not in there and text not in add:
                add[text] = Rule(text, PREFIX + layer)
    remove = [
        rule
        for rule in have
        if rule.ours and rule.layer in wanted and rule.text not in {text for texts in wanted.values() for text in texts}
    ]
    lines = (*(f"+ {rule.line}" for rule in add.values()), *(f"- {rule.line}" for rule in remove))
    return Change(tuple(add.values()), tuple(remove), lines)


def text_of(rules: Sequence[Rule]) -> str:
    """For a diff."""
    return "".join(f"{rule.line}\n" for rule in rules)


def after(have: Sequence[Rule], change: Change) -> list[Rule]:
    return [*(rule for rule in have if rule not in change.remove), *change.add]


def act(machine: Machine, change: Change) -> None:
    """Add first: what moves from one rule to another is never without."""
    for rule in change.add:
        machine.command("ufw", *shlex.split(rule.text), "comment", rule.comment, step="adding a firewall rule")
    for rule in change.remove:
        words = shlex.split(rule.text)
        command = ["route", "delete", *words[1:]] if words[0] == "route" else ["delete", *words]
        machine.command("ufw", *command, step="removing a firewall rule")


def tuples(content: bytes) -> list[bytes]:
    """The rules in /etc/ufw/user.rules without the rest of the file, which ufw formats anew whenever it writes."""
    return [line for line in content.splitlines() if line.startswith(b"### tuple ###")]
