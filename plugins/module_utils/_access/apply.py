# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Bring sshd and firewall of one node into the wanted state, guarded by :mod:`_access.rollback`, and give them back.

Everything is read and compared first. What would lock somebody out is refused before anything is armed: an sshd
configuration that sshd itself refuses, a firewall whose rules leave out the ssh connection that this very run uses.

What ufw was before our first change is in ``/var/lib/sparkmatrix/access-ufw.json``: giving it back removes our rules
and ours only, restores the default policy and the state, and, where nobody else has changed a rule since, the very
bytes of its files.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import rollback
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import sshd as access_sshd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, kinds, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import canonical
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.network import ssh_connection
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import ufw
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.rollback import SECONDS

MEMORY = f"{paths.STATE}/access-ufw.json"
LAYER = "access"


@dataclass(frozen=True)
class Wanted:
    """``sshd``: settings of the drop-in, empty: no drop-in. ``rules``: per layer, as ``ufw show added`` prints them
    without ``ufw``; those of ``access`` are kept exact, those of other layers are placed together with the first one
    that drops what is not allowed, so that a running cluster goes on; later the layers keep their own.

    ``absent`` gives back what was there before the first change. ``transaction``: confirm this change, which an earlier
    call has returned, and do nothing else; ``elsewhere``: for Ansible on the node itself, another machine has tested a
    login."""

    state: str = field(default="present", metadata=document.one_of("present", "absent"))
    sshd: Mapping[str, str] = field(default_factory=dict)
    firewall: bool = False
    ssh_sources: tuple[str, ...] = ()
    rules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rollback_seconds: float = SECONDS
    transaction: str = ""
    elsewhere: bool = False


@dataclass
class Outcome:
    """What was done, or in check mode would be. ``transaction``: what has to be confirmed, or empty. ``previous``: the
    rules that a layer had before. ``settled``: by layer a mark of the rules that it has, as :func:`marks` makes
    it; of those asked for only where these are exactly the rules."""

    changed: kinds.Flag = False
    changes: list[kinds.Words] = field(default_factory=list)
    diff: kinds.Diff = field(default_factory=list)
    transaction: kinds.WordOrEmpty = ""
    previous: list[kinds.Words] = field(default_factory=list)
    settled: Mapping[kinds.Word, kinds.Word] = field(default_factory=dict)

    def note(self, line: str, header: str, before: str, after: str) -> None:
        self.changed = True
        self.changes.append(line)
        self.diff.append({"before_header": header, "after_header": header, "before": before, "after": after})


def marks(rules: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Of the rules of each layer: small, since Ansible keeps it of each machine."""
    return {layer: hashlib.sha256("\n".join(texts).encode()).hexdigest() for layer, texts in rules.items()}


def ensure(request: Wanted, check: bool) -> Outcome:
    machine = Machine()
    connection = ssh_connection(machine) or ()
    if request.transaction:
        if not check:
            rollback.confirm(machine, request.transaction, connection, elsewhere=request.elsewhere)
        return Outcome()
    if request.state == "absent":
        return give_back(machine, check_mode=check)
    return reconcile(machine, request, connection, check_mode=check)


def reconcile(machine: Machine, wanted: Wanted, connection: Sequence[str] = (), *, check_mode: bool = False) -> Outcome:
    """Make ``wanted`` true; ``connection``: SSH_CONNECTION of this run. Raises :class:`SparkError`; then what was there
    before is back, or comes back by itself."""
    if check_mode:
        return _Access(machine, wanted, connection).compare()
    with alone(machine, rollback.WHAT, rollback.LOCK):
        return _Access(machine, wanted, connection).apply()


def give_back(machine: Machine, *, check_mode: bool = False) -> Outcome:
    """Everything as it was before the first run: nothing here can lock anybody out, so nothing has to be confirmed."""
    wanted = Wanted()
    if check_mode:
        return _Access(machine, wanted).compare()
    with alone(machine, rollback.WHAT, rollback.LOCK):
        found = rollback.GUARD.pending(machine)
        if found:
            rollback.put_back(machine, found)
        outcome = _Access(machine, wanted).apply(guarded=False)
        rollback.GUARD.remove(machine)
        return outcome


class _Access:
    def __init__(self, machine: Machine, wanted: Wanted, connection: Sequence[str] = ()) -> None:
        self.machine = machine
        self.connection = connection
        self.wanted = wanted
        self.outcome = Outcome()
        self.memory = _memory(machine)
        self.firewall_change = False
        self.pending = rollback.GUARD.pending(machine)

    # -- compare

    def compare(self) -> Outcome:
        self._compare_sshd()
        self._compare_firewall()
        if self.pending and not self.outcome.changes:
            self.outcome.note("an earlier change that was not confirmed", rollback.GUARD.marker, "pending\n", "")
        if self.wanted.firewall and not self.outcome.changes:
            layers = {name: list(rules) for name, rules in self.wanted.rules.items()}
            exact = {name: rules for name, rules in layers.items() if not ufw.compare(self.have.rules, {name: rules})}
            others: dict[str, list[str]] = {}
            for rule in self.have.rules:
                if rule.ours and rule.layer not in (LAYER, *layers):
                    others.setdefault(rule.layer, []).append(rule.text)
            self.outcome.settled = marks({**others, **exact})
        return self.outcome

    def _compare_sshd(self) -> None:
        settings = self.wanted.sshd
        files = [managed.File(access_sshd.FILE, content=access_sshd.text_of(settings).encode())] if settings else []
        self.sshd_files = files
        planned = managed.apply_set(access_sshd.SET, files, check_mode=True, root=self.machine.root)
        # sshd follows its files only when it is told to, so what it uses is not always what they say. A run that died
        # in between is healed by its rollback.
        self.sshd_change = planned.changed
        if planned.changed and files:
            access_sshd.check(self.machine)
        self.outcome.changed = planned.changed
        self.outcome.changes += planned.changed_paths
        self.outcome.diff += planned.diff

    def _compare_firewall(self) -> None:
        have = ufw.read(self.machine) if self.wanted.firewall or self.memory else ufw.Status()
        self.have = have
        self.rules = ufw.Change()
        if not self.wanted.firewall:
            if self.memory and have.installed:
                self.rules = ufw.Change(remove=tuple(rule for rule in have.rules if rule.ours))
                self.firewall_change = True
                state = "on" if self.memory["active"] else "off"
                self.outcome.note(
                    f"firewall as before: {state}, {len(self.rules.remove)} rules less",
                    "ufw",
                    ufw.text_of(have.rules),
                    ufw.text_of(ufw.after(have.rules, self.rules)),
                )
            return
        if not have.installed:
            raise SparkError(
                "access_firewall is on and ufw is not installed", "", "Install it: sudo apt install ufw; then run again"
            )
        ports = self._ssh_ports()
        opening = not (have.active and have.closed)
        layers = {name: list(rules) for name, rules in self.wanted.rules.items() if opening or name == LAYER}
        layers[LAYER] = [*layers.get(LAYER, ()), *ufw.ssh_rules(ports, self.wanted.ssh_sources)]
        self.rules = ufw.compare(have.rules, layers)
        self._check_ssh(ports)
        if self.rules or opening:
            self.firewall_change = True
            state = "" if not opening else " (on, what no rule allows is dropped)"
            self.outcome.note(
                f"firewall{state}: {len(self.rules.add)} rules more, {len(self.rules.remove)} less",
                "ufw",
                f"{_line(have.active, have.closed)}{ufw.text_of(have.rules)}",
                f"{_line(True, True)}{ufw.text_of(ufw.after(have.rules, self.rules))}",
            )

    def _ssh_ports(self) -> set[int]:
        """Every port at which sshd answers, the one that this run uses among them."""
        found = access_sshd.ports(self.machine)
        if len(self.connection) == 4:
            found.add(int(self.connection[3]))
        if not found:
            raise SparkError(
                "the port of sshd is not known, so the firewall could not let it in; nothing was changed",
                "",
                "Look at sudo sshd -T and systemctl status ssh.socket",
            )
        return found

    def _check_ssh(self, ports: set[int]) -> None:
        """The rules as they will be let this run's own connection in."""
        in_the_way = ufw.refusing_ssh(self.have.rules, ports)
        if in_the_way:
            raise SparkError(
                f"rules of somebody else turn ssh away before any other rule is looked at: "
                f"{'; '.join(rule.line for rule in in_the_way)}. Nothing was changed",
                "ufw",
                f"Remove it if nobody needs it (sudo ufw delete {in_the_way[0].text}), or set access_firewall: false",
            )
        client = self.connection[0] if len(self.connection) == 4 else ""
        if client and self.wanted.ssh_sources and not _within(client, self.wanted.ssh_sources):
            raise SparkError(
                f"this run comes from {client}, and access_ssh_from allows only {', '.join(self.wanted.ssh_sources)}: "
                "the machine would not let you in again. Nothing was changed",
                "access_ssh_from",
                f"Add {client} or its network",
            )

    # -- act

    def apply(self, *, guarded: bool = True) -> Outcome:
        self.compare()
        if not self.outcome.changed:
            return self.outcome
        if guarded:
            armed = rollback.arm(
                self.machine,
                self.wanted.rollback_seconds,
                [access_sshd.FILE, managed.manifest_path(access_sshd.SET), MEMORY, *ufw.FILES],
                active=self.have.active,
                firewall=self.firewall_change,
                connection=self.connection,
            )
            self.outcome.transaction = armed.id
        try:
            self._change()
        except SparkError as exc:
            if not guarded:
                raise
            try:
                rollback.put_back(self.machine, armed)
            except SparkError as worse:
                raise SparkError(
                    f"{exc.found}. Going back failed too ({worse.found}); the node tries again by itself",
                    exc.where,
                    exc.remedy,
                ) from exc
            raise SparkError(f"{exc.found}. The previous settings are active again", exc.where, exc.remedy) from exc
        return self.outcome

    def _change(self) -> None:
        # An interrupted run may have written the drop-in and not told sshd.
        if self.sshd_change or self.pending:
            self._change_sshd()
        if self.firewall_change:
            if self.wanted.firewall:
                self._close()
            else:
                self._open()

    def _change_sshd(self) -> None:
        machine = self.machine
        managed.apply_set(access_sshd.SET, self.sshd_files, root=machine.root)
        found = access_sshd.complaint(machine)
        if found and self.sshd_files:
            raise SparkError(
                f"sshd does not accept the settings ({found}), and never read them",
                access_sshd.FILE,
                "Correct access_sshd_settings",
            )
        if found:
            return  # somebody else's mistake: sshd goes on with what it has
        if self.sshd_files:
            wrong = access_sshd.differing(access_sshd.effective(machine), self.wanted.sshd)
            if wrong:
                told = "; ".join(f"{name} is {value or 'not known'}" for name, value in wrong.items())
                raise SparkError(
                    f"settings have no effect: {told}",
                    access_sshd.FILE,
                    "Look for what is read before it: grep -ri include /etc/ssh/sshd_config",
                )
        access_sshd.reload(machine)

    def _close(self) -> None:
        machine, have = self.machine, self.have
        if self.memory is None:
            files = {path: managed.read_state(path, root=machine.root).as_dict() for path in ufw.FILES}
            document = {"schema": 1, "active": have.active, "closed": have.closed, "files": files}
            managed.write_state(
                MEMORY, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode(), root=machine.root
            )
        ufw.act(machine, self.rules)
        if not have.closed:
            machine.command("ufw", "default", "deny", "incoming", step="setting the default policy")
        if not have.active:
            machine.command("ufw", "--force", "enable", step="switching the firewall on")
        now = ufw.read(machine)
        ssh = ufw.ssh_rules(self._ssh_ports(), self.wanted.ssh_sources)
        lost = [text for text in ssh if text not in {rule.text for rule in now.rules}]
        if lost or not now.active or not now.closed:
            raise SparkError(
                f"the firewall is not as wanted: {_line(now.active, now.closed).strip()}"
                + (f", and it lacks {'; '.join(lost)}" if lost else ""),
                "ufw",
                "See sudo ufw status verbose",
            )

    def _open(self) -> None:
        machine, memory = self.machine, self.memory or {}
        if not memory["active"] and self.have.active:
            machine.command("ufw", "--force", "disable", step="switching the firewall off")
        if not memory["closed"] and self.have.closed:
            machine.command("ufw", "default", "allow", "incoming", step="setting the default policy")
        ufw.act(machine, self.rules)
        for path in ufw.RULES:
            state = memory["files"][path]
            now = managed.read_state(path, root=machine.root)
            # Where somebody else has added rules since, they stay; else the file is byte for byte what it was.
            if now != state and ufw.tuples(now.content) == ufw.tuples(state.content):
                managed.put_state(path, state, root=machine.root)
        managed.drop_state(MEMORY, root=machine.root)


def _memory(machine: Machine) -> dict[str, Any] | None:
    text = machine.read(MEMORY)
    if text is None:
        return None
    with json_text.Reading(
        "the record of the firewall before the first change is damaged",
        MEMORY,
        "Delete it; the firewall then has to be restored by hand (sudo ufw status numbered)",
    ):
        document = json_text.mapping(text)
        if document["schema"] != 1:
            raise ValueError("not schema 1")
        files = {path: managed.State.from_dict(document["files"][path]) for path in ufw.RULES}
        return {"active": bool(document["active"]), "closed": bool(document["closed"]), "files": files}


def _line(active: bool, closed: bool) -> str:
    return f"{'on' if active else 'off'}, incoming {'deny' if closed else 'allow'}\n"


def _within(client: str, sources: Sequence[str]) -> bool:
    address = canonical(client)
    if not address:
        return False
    found = ipaddress.ip_address(address)
    return any(found in ipaddress.ip_network(source, strict=False) for source in sources)


@dataclass(frozen=True)
class Layer:
    """All rules of a layer, as ``ufw show added`` prints them without ``ufw`` and comment."""

    layer: str
    rules: tuple[str, ...] = ()


def ensure_rules(request: Layer, check: bool) -> Outcome:
    return layer_rules(Machine(), request.layer, request.rules, check_mode=check)


def layer_rules(machine: Machine, layer: str, rules: Sequence[str], *, check_mode: bool = False) -> Outcome:
    """Give a layer exactly ``rules``. Without rules and without ufw there is nothing to do; without a firewall that
    ``access`` switched on, rules are not placed either: nobody would take them back."""
    outcome = Outcome()
    with alone(machine, rollback.WHAT, rollback.LOCK):
        have = ufw.read(machine)
        if not have.installed:
            if rules:
                raise SparkError("ufw is not installed", "", "Run the layer access with access_firewall: true first")
            return outcome
        if rules and _memory(machine) is None and not check_mode:
            raise SparkError(
                f"the firewall is not run by this collection, so the layer {layer} places no rules",
                "ufw",
                "Run the layer access with access_firewall: true first",
            )
        outcome.previous = [rule.text for rule in have.rules if rule.comment == ufw.PREFIX + layer]
        change = ufw.compare(have.rules, {layer: rules})
        if change:
            before, after = ufw.text_of(have.rules), ufw.text_of(ufw.after(have.rules, change))
            outcome.note("; ".join(change.lines), "ufw", before, after)
            if not check_mode:
                ufw.act(machine, change)
    return outcome
