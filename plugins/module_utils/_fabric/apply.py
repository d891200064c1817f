# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Bring the fabric interfaces of one node into the planned state, and give them back.

What counts is the *effective* state: addresses and MTU that the kernel uses, not what a file says. Only our interfaces
are touched, see :mod:`_fabric.renderer`.

Order of a change. A run that dies anywhere is taken back by the node (:mod:`_fabric.rollback`) or completed by the
next::

    validate -> arm -> fact: applying -> memory of what was there -> files -> our interfaces -> wait -> sysctls -> names

The memory, ``/var/lib/sparkmatrix/fabric.json``, holds per interface what the files of :mod:`_managed.files` cannot:
MTU, administrative state and sysctls from before the first change, and every address and route that we ever placed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Diff, Flag, WordOrEmpty, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import arp, ping, rollback, wait_for_links
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import netplan as fabric_netplan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import renderer as fabric_renderer
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import (
    FACT_PATH,
    FabricFact,
    Rail,
    dump,
    load,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.foreign_files import Foreign, encoded, nic
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.interfaces import (
    ARP,
    LOCK,
    MEMORY,
    SET,
    WHAT,
    Effective,
    Memory,
    effective,
    read_sysctl,
    sysctl_name,
    sysctl_wanted,
    write_sysctl,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbor_sockets import own_macs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.validate import validate
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.wait_for_links import reached, target
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import avahi, etc_hosts
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.rollback import SECONDS

FACT_SET = "fabric_fact"
SYSCTL_FILE = "/etc/sysctl.d/90-sparkmatrix-fabric.conf"
MARGIN_S = 10  # of fabric_rollback_seconds, for everything but waiting
SYSCTLS: Mapping[str, int] = {**ARP, "disable_ipv6": 1}  # per fabric interface, see :mod:`_fabric.interfaces`
FORGOTTEN = "the unconfirmed change of an interrupted run is no longer pending"
TAKEN_OVER = "the unconfirmed change of an interrupted run is taken over"


def _fact(value: Any) -> FabricFact:
    return load(value, "this node")


@dataclass(frozen=True)
class Wanted:
    """``fact`` None: nothing is wanted, give everything back. ``hosts_lines``: for /etc/hosts. ``pings``: what is
    pinged in the same call where nothing is to be changed."""

    fact: Optional[Annotated[FabricFact, _fact]] = None
    hosts_lines: tuple[str, ...] = ()
    connection_interface: str = ""
    timeout_s: float = 30.0
    rollback_s: float = SECONDS
    backend: str = field(default="auto", metadata=document.one_of("auto", "networkd", "networkmanager"))
    foreign: str = field(default="refuse", metadata=document.one_of("refuse", "adopt"))
    macs: tuple[str, ...] = ()  # of all ports of the cluster's cards
    pings: Optional[ping.Request] = None

    @property
    def rails(self) -> tuple[Rail, ...]:
        return self.fact.rails if self.fact else ()


@dataclass
class Outcome:
    """What was done, or in check mode would be."""

    changed: Flag = False
    diff: Diff = field(default_factory=list)
    changes: list[Words] = field(default_factory=list)  # one line each, for people
    warnings: list[Words] = field(default_factory=list)
    fact_applied: Flag = False  # the fact on disk is this plan's, in state applied
    fact: Optional[Annotated[FabricFact, _fact]] = None  # the fact on disk
    transaction: WordOrEmpty = ""  # waits for its confirmation; "" when nothing does
    backend: WordOrEmpty = ""
    pings: Optional[ping.Pinged] = None  # where nothing is to be changed


@dataclass(frozen=True)
class Everything:
    """All that was there before the first change is asked back."""


def change(wanted: Wanted, check: bool) -> Outcome:
    """Changes what is not as the fact says, and leaves the change pending."""
    if wanted.fact is None:
        raise SparkError("there is no plan for this node", "fabric_change", "Run the whole fabric layer")
    outcome = reconcile(Machine(), wanted, check_mode=check)
    if wanted.pings and check and not outcome.changed:
        outcome.pings = ping.ping(wanted.pings, check)
    return outcome


def remove(_request: Everything, check: bool) -> Outcome:
    """Gives back what was there before the first change, from files to MTU, and removes the fabric fact."""
    return reconcile(Machine(), Wanted(), check_mode=check)


def default_routes(machine: Machine) -> set[str]:
    """The interfaces that carry a default route."""
    done = machine.command("ip", "-j", "-4", "route", "show", "default", step="reading the routes")
    with json_text.Reading("the output of 'ip -j route show' cannot be read", "", "Update iproute2"):
        ways = [way for entry in json_text.mappings(done.out or "[]") for way in entry.get("nexthops", [entry])]
        return {str(way["dev"]) for way in ways if "dev" in way}


def sysctls_needed(
    machine: Machine, netdevs: Iterable[str], memory: Memory, asked: Mapping[str, int]
) -> dict[tuple[str, str], int]:
    """The sysctls that have to be set because nobody else does: by what was there before us, not by what we set."""
    needed = {}
    for netdev in netdevs:
        before = memory.interfaces.get(netdev, {}).get("sysctls", {})
        for key, value in asked.items():
            own = before.get(key, read_sysctl(machine, netdev, key))
            if own is not None and sysctl_wanted(machine, key, value, own):
                needed[netdev, key] = value
    return needed


def _sysctl_text(needed: Mapping[tuple[str, str], int]) -> str:
    # systemd-udevd applies lines for an interface when it appears (99-systemd.rules), so a late NIC gets them as well.
    lines = [
        "# Written by the role fabric of sparkmatrix.cluster. Both halves of a cage share one Ethernet segment: each",
        "# answers ARP for its own address only. IPv6 addresses would shift the GIDs of RDMA.",
        *(f"{sysctl_name(netdev, key)} = {value}" for (netdev, key), value in sorted(needed.items())),
    ]
    return "\n".join(lines) + "\n"


def _diff(header: str, before: str, after: str) -> dict[str, str]:
    return {"before_header": header, "after_header": header, "before": before, "after": after}


# --- the work --------------------------------------------------------------------------------------------------------


def reconcile(
    machine: Machine, wanted: Wanted, *, check_mode: bool = False, holders: arp.Holders = arp.holders
) -> Outcome:
    """Make ``wanted`` true. Raises :class:`SparkError` that names the step; then what was there before is back.

    A change of interfaces is pending afterwards: :attr:`Outcome.transaction` has to be confirmed within
    ``wanted.rollback_s``, else the node takes it back.
    """
    least = wanted.timeout_s + MARGIN_S
    if wanted.rails and wanted.rollback_s < least:
        raise SparkError(
            f"{wanted.rollback_s:g} s are less than the {least:g} s that a change may take",
            "fabric_rollback_seconds",
            "Raise it",
        )
    if check_mode:
        return _Apply(machine, wanted, check_mode, holders).run()
    with alone(machine, WHAT, LOCK):
        return _Apply(machine, wanted, check_mode, holders).run()


class _Apply:
    def __init__(self, machine: Machine, wanted: Wanted, check_mode: bool, holders: arp.Holders) -> None:
        self.machine = machine
        self.holders = holders
        self.wanted = wanted
        self.check_mode = check_mode
        self._fact_is_this_plan = False
        self.outcome = Outcome()
        self.memory = Memory.parse(machine.read(MEMORY))
        self.pending = rollback.GUARD.pending(machine)
        self._taken_over = self.pending is not None
        self.before = effective(machine) if wanted.rails or self.memory.interfaces else {}
        self.rails = {rail.netdev: rail for rail in wanted.rails}
        self.interfaces = [
            fabric_netplan.Interface(nic(machine, rail.netdev), f"{rail.address}/{rail.prefix}", rail.mtu)
            for rail in wanted.rails
        ]
        remembered = self.memory.backend if self.memory.interfaces else ""
        self.backend = fabric_renderer.choose(machine, wanted.backend, remembered) if wanted.rails else remembered
        renderer = fabric_renderer.RENDERERS.get(self.backend, "")
        self.foreign = Foreign(machine, self.interfaces, wanted.foreign, renderer)
        self.adopted: list[managed.File] = []

    # -- compare

    def run(self) -> Outcome:
        self._read_fact()
        leaving = [netdev for netdev in self.memory.interfaces if netdev not in self.rails]
        off = [n for n, rail in self.rails.items() if not reached(self._now(n), rail)]
        after = self._remember()
        needed = sysctls_needed(self.machine, self.rails, after, SYSCTLS)
        wrong_sysctls = {
            (netdev, key): value
            for (netdev, key), value in needed.items()
            if sysctl_wanted(self.machine, key, value, read_sysctl(self.machine, netdev, key) or 0)
        }
        self.adopted = self.foreign.adopt() if self.rails else []
        files = self._files(after, needed)
        planned = self._apply_files(files, check_mode=True)
        hosts_before = self.machine.read(etc_hosts.PATH) or ""
        hosts_after = etc_hosts.with_block(hosts_before, self.wanted.hosts_lines if self.rails else (), rollback.OWNER)

        avahi_before = self.machine.read(avahi.PATH)  # None: not installed
        avahi_after = avahi_before and avahi.denying(avahi_before, self._without_names(), rollback.OWNER)

        network = bool(set(planned.changed_paths) - {MEMORY} or leaving or off)
        if network:
            ways = self._check_connection()
            if self.rails:
                self._check(off)
            manager = self.backend == fabric_renderer.NETWORKMANAGER
            validate(self.machine, self.interfaces, files, manager, ways)
        elif self.rails:
            self.outcome.warnings = self.foreign.waiting(self.adopted)
        texts = {etc_hosts.PATH: (hosts_before, hosts_after), avahi.PATH: (avahi_before or "", avahi_after or "")}
        self._describe(leaving, off, planned, wrong_sysctls, texts)
        self.outcome.backend = self.backend
        if self.check_mode or not self.outcome.changed:
            return self.outcome
        if self.rails and self.outcome.changes == [MEMORY]:
            self._apply_files(files, check_mode=False)  # what is remembered is active nowhere: nothing to take back
            return self.outcome

        if self.rails:
            self._arm(files, after, leaving)
        try:
            self._write_fact()
            if network or wrong_sysctls:
                self._change_network(files, after, needed, leaving)
            if hosts_after != hosts_before:
                etc_hosts.write(self.machine, hosts_after)
            # A run that died may have written the file and not started avahi anew.
            if avahi_after and (avahi_after != avahi_before or self._taken_over):
                avahi.write(self.machine, avahi_after, running=True)
        except SparkError as exc:
            self._roll_back(exc)
        if not self.rails:
            self._forget_guard()
        return self.outcome

    def _without_names(self) -> list[str]:
        """Where avahi is to be silent: on the fabric, and on the card's other ports, whose halves hear each other, too.
        One that has an address, or is part of something, is somebody's network."""
        found = [*self.rails]
        for netdev in sorted(self.foreign.card() - {*self.rails}) if self.rails else ():
            now = self._now(netdev)
            if not set(now.addresses) - set(self._placed(netdev)) and not now.master:
                found.append(netdev)
        return found

    def _read_fact(self) -> None:
        text = self.machine.read(FACT_PATH)
        if text is None:
            return
        with contextlib.suppress(SparkError):
            fact = load(json_text.read(text), self.wanted.fact.host if self.wanted.fact else "")
            self.outcome.fact = fact
            same = self.wanted.fact is not None and fact.plan_hash == self.wanted.fact.plan_hash
            self.outcome.fact_applied = same and fact.state == "applied"
            self._fact_is_this_plan = same

    def _remember(self) -> Memory:
        """The memory after this run: what was there is kept from the first time that an interface became ours."""
        interfaces = {name: dict(entry) for name, entry in self.memory.interfaces.items() if name in self.rails}
        for netdev, rail in self.rails.items():
            if netdev not in interfaces:
                now = self._now(netdev)
                state = rollback.interface_state(self.machine, netdev, now, SYSCTLS)
                interfaces[netdev] = {**state, "addresses": []}
            entry = interfaces[netdev]
            # What is asked for only now was not changed before.
            values = {key: read_sysctl(self.machine, netdev, key) for key in SYSCTLS if key not in entry["sysctls"]}
            entry["sysctls"] = {**entry["sysctls"], **{key: v for key, v in values.items() if v is not None}}
            entry["sysctls"].update(self._no_longer_right(netdev, entry["sysctls"]))
            ours = f"{rail.address}/{rail.prefix}"
            if ours not in entry["addresses"]:
                entry["addresses"] = sorted([*entry["addresses"], ours])
        started = self.memory.networkd_started
        if self.rails and not self.memory.interfaces:
            started = not fabric_renderer.networkd_runs(self.machine)
        return Memory(interfaces, started and bool(interfaces), self.backend)

    def _no_longer_right(self, netdev: str, before: Mapping[str, int]) -> dict[str, int]:
        """Sysctls that were right without us, and are not any more: set by hand until the next boot, for example. What
        is there now is what we change."""
        found = {}
        for key in set(before) & set(SYSCTLS):
            now = read_sysctl(self.machine, netdev, key)
            right = not sysctl_wanted(self.machine, key, SYSCTLS[key], before[key])
            if right and now is not None and sysctl_wanted(self.machine, key, SYSCTLS[key], now):
                found[key] = now
        return found

    def _files(self, memory: Memory, needed: Mapping[tuple[str, str], int]) -> list[managed.File]:
        if not self.rails:
            return []
        renderer = fabric_renderer.RENDERERS[self.backend]
        text = fabric_netplan.render(self.interfaces, renderer)
        files = [
            managed.File(fabric_netplan.FILE, content=text.encode(), mode=0o600),
            managed.File(MEMORY, content=memory.text().encode()),
            *self.adopted,
        ]
        if needed:
            files.append(managed.File(SYSCTL_FILE, content=_sysctl_text(needed).encode()))
        if self.backend == fabric_renderer.NETWORKD:
            if self.machine.exists(os.path.dirname(fabric_renderer.UNMANAGED)):
                text = fabric_renderer.unmanaged_text(self.rails)
                files.append(managed.File(fabric_renderer.UNMANAGED, content=text.encode()))
            if memory.networkd_started:
                files.append(managed.File(fabric_renderer.DAEMON, content=fabric_renderer.DAEMON_TEXT.encode()))
        return files

    def _apply_files(self, files: Sequence[managed.File], *, check_mode: bool) -> managed.Result:
        # Without files the set is given back; it is left alone if it never was there.
        if not files and not managed.known(SET, root=self.machine.root):
            return managed.Result()
        return managed.apply_set(SET, files, check_mode=check_mode, root=self.machine.root)

    def _now(self, netdev: str) -> Effective:
        return self.before.get(netdev, Effective())

    def _placed(self, netdev: str) -> Sequence[str]:
        """The addresses that we ever gave an interface."""
        found: Sequence[str] = self.memory.interfaces.get(netdev, {}).get("addresses", ())
        return found

    def _describe(
        self,
        leaving: Sequence[str],
        off: Sequence[str],
        planned: managed.Result,
        sysctls: Mapping[tuple[str, str], int],
        texts: Mapping[str, tuple[str, str]],
    ) -> None:
        out = self.outcome
        lines = [(self._now(netdev).line(netdev), target(self.rails[netdev]).line(netdev)) for netdev in off]
        for netdev in leaving:
            now, mtu = self._now(netdev), self.memory.interfaces[netdev]["mtu"]
            rest = tuple(address for address in now.addresses if address not in self._placed(netdev))
            back = replace(now, mtu=mtu, addresses=rest)
            lines.append((now.line(netdev), f"{back.line(netdev)} (given back)"))
        for (netdev, key), value in sysctls.items():
            lines.append(
                (f"{netdev}: {key} {read_sysctl(self.machine, netdev, key)}", f"{netdev}: {key} {value}"),
            )
        if lines:
            before, after = ("".join(f"{line}\n" for line in part) for part in zip(*lines))
            out.diff.append(_diff("effective state of the fabric interfaces", before, after))
        out.diff += [entry for entry in planned.diff if MEMORY not in str(entry.get("before_header"))]
        out.diff += [_diff(path, old, new) for path, (old, new) in texts.items() if old != new]
        changes = [line for _before, line in lines]
        changes += [*planned.changed_paths, *(path for path, (old, new) in texts.items() if old != new)]
        if self.wanted.fact is None:
            changes += managed.remove_set(FACT_SET, check_mode=True, root=self.machine.root).changed_paths
            changes += managed.remove_set(rollback.GUARD.name, check_mode=True, root=self.machine.root).changed_paths
        elif changes not in ([], [MEMORY]) or not self._fact_is_this_plan:
            changes.append(FACT_PATH)
        if self.pending is not None:
            changes.append(f"{rollback.GUARD.marker}: {TAKEN_OVER if self.rails else FORGOTTEN}")
        out.changes, out.changed = changes, bool(changes)
        if self.wanted.fact:
            said = [*out.warnings, *self.foreign.unasked(self.adopted)]
            out.warnings = [f"{self.wanted.fact.host}: {line}" for line in said]

    # -- refuse

    def _check(self, off: Sequence[str]) -> None:
        for netdev in self.rails:
            if netdev not in self.before:
                raise SparkError("the interface is gone", netdev, "Check the cable and dmesg, and run again")
            if self.before[netdev].master:
                raise SparkError(
                    f"is a member of {self.before[netdev].master}: a bond or bridge over the halves does not help RDMA",
                    netdev,
                    f"Take it apart (nmcli connection show; ip link set {netdev} nomaster), and run again",
                )
        if self.backend == fabric_renderer.NETWORKMANAGER and not fabric_renderer.networkmanager_runs(self.machine):
            raise SparkError(
                "NetworkManager should configure the fabric, and is not running",
                "fabric_backend",
                "Start it (systemctl start NetworkManager), or set fabric_backend: networkd",
            )
        self._check_foreign_addresses(off)
        self.foreign.check(self.adopted)
        self._check_free(off)

    def _check_free(self, off: Sequence[str]) -> None:
        """Nobody else on its segment has the address of a half. The peers' are asked for by themselves."""
        ours = {mac.lower() for mac in (*self.wanted.macs, *own_macs(self.machine.sysfs))}
        for holder in self.holders(self.machine, {netdev: [self.rails[netdev].address] for netdev in off}):
            if holder.mac not in ours:
                raise SparkError(
                    f"somebody else has the address {holder.address} already: {holder.mac} answers for it, which is no "
                    "port of this cluster",
                    holder.netdev,
                    arp.REMEDY,
                )

    def _check_connection(self) -> dict[str, str]:
        """The interfaces that lead to the machine, and what each carries. Where Ansible runs on the machine itself
        there is no connection, but its default route is not to be cut."""
        fact = self.wanted.fact or self.outcome.fact
        management = fact.management_address if fact else None
        owners = [
            netdev
            for netdev, state in self.before.items()
            if management in [address.partition("/")[0] for address in state.addresses]
        ]
        defaults = default_routes(self.machine)
        # A second default route, that DHCP gave a half, goes with our change.
        spare = defaults - {*self.rails}
        found: dict[str, str] = {}
        for names, carries, remedy in (
            (
                [self.wanted.connection_interface],
                "Ansible's connection",
                "Connect over the management network: set ansible_host to the management address",
            ),
            (
                owners,
                f"the management address {management}",
                "Set fabric_management_address to an address that is not on the fabric",
            ),
            (
                spare or defaults,
                "the default route",
                "Give the machine its default route over the management network, and run again",
            ),
        ):
            for netdev in self._with_lower(names):
                if netdev in self.rails:
                    cut = f"this interface carries {carries}, and changing it would cut the line"
                    raise SparkError(cut, netdev, remedy)
                if netdev not in self.memory.interfaces:
                    found.setdefault(netdev, carries)
        return found

    def _with_lower(self, names: Iterable[str]) -> list[str]:
        """With what a VLAN, a bond or a bridge stands on."""
        found: list[str] = []
        waiting = sorted(filter(None, names))
        while waiting:
            netdev = waiting.pop()
            if netdev not in found:
                found.append(netdev)
                links = sysfs.names(self.machine.sysfs / "class/net" / netdev) or ()
                waiting += [name.partition("_")[2] for name in links if name.startswith("lower_")]
        return found

    def _check_foreign_addresses(self, off: Sequence[str]) -> None:
        """An address that somebody set by hand would be lost when the interface is taken over."""
        for netdev in off:
            now = self.before[netdev]
            ours = {f"{self.rails[netdev].address}/{self.rails[netdev].prefix}", *self._placed(netdev), *now.dynamic}
            for address in now.addresses:
                if address not in ours and not self.foreign.names(netdev, address):
                    raise SparkError(
                        f"has the address {address}, which this collection did not place and would take away",
                        netdev,
                        f"Remove it: ip addr del {address} dev {netdev}; if it is needed, move it to another interface",
                    )

    # -- act

    def _arm(self, files: Sequence[managed.File], after: Memory, leaving: Sequence[str]) -> None:
        held = [path for name in (SET, FACT_SET) for path in managed.originals(name, root=self.machine.root)]
        manifests = [managed.manifest_path(name) for name in (SET, FACT_SET)]
        ours = [FACT_PATH, MEMORY, *(item.path for item in files)]
        paths = dict.fromkeys([*held, *ours, *manifests])
        states = {}
        for netdev in [*self.rails, *leaving]:
            if netdev in self.before:
                states[netdev] = {
                    **rollback.interface_state(self.machine, netdev, self.before[netdev], SYSCTLS),
                    "placed": after.interfaces.get(netdev, {}).get("addresses", []),
                }
        plan_hash = self.wanted.fact.plan_hash if self.wanted.fact else ""
        self.pending = rollback.arm(self.machine, plan_hash, self.wanted.rollback_s, paths, states)
        self.outcome.transaction = self.pending.id

    def _forget_guard(self) -> None:
        """Nothing is left that could be taken back."""
        if self.pending is not None:
            rollback.GUARD.disarm(self.machine, self.pending)
        rollback.GUARD.remove(self.machine)

    def _write_fact(self) -> None:
        """Before the first change: a run that dies leaves a fact that no later layer accepts."""
        fact = self.wanted.fact
        if fact is None:
            managed.remove_set(FACT_SET, root=self.machine.root)
            return
        self.outcome.fact_applied = False
        text = dump(replace(fact, state="applying"))
        managed.apply_set(FACT_SET, [managed.File(FACT_PATH, content=text.encode())], root=self.machine.root)

    def _change_network(
        self,
        files: Sequence[managed.File],
        memory: Memory,
        needed: Mapping[tuple[str, str], int],
        leaving: Sequence[str],
    ) -> None:
        self._install(files, memory, leaving)
        fabric_renderer.generate(self.machine)
        fabric_renderer.activate(self.machine, self.backend, [*self.rails])
        for netdev in leaving:
            fabric_renderer.release(self.machine, netdev, self.memory.interfaces[netdev])
        for (netdev, key), value in needed.items():
            write_sysctl(self.machine, netdev, key, value)
        wait_for_links.for_interfaces(self.machine, self.wanted.rails, self.wanted.timeout_s, self.backend)
        if not self.rails and self.memory.networkd_started:
            fabric_renderer.stop_networkd(self.machine)
        # From here on the memory need not hold what has been given back, and networkd needs no settings.
        managed.apply_set(SET, files, root=self.machine.root)
        wait_for_links.for_gids(self.machine, self.wanted.fact)

    def _current(self, files: Sequence[managed.File]) -> list[managed.File]:
        """The set as it is on disk now."""
        held = managed.originals(SET, root=self.machine.root)
        wanted = {item.path: item for item in files}
        kept = []
        for path in dict.fromkeys([*held, *wanted]):
            if os.path.islink(self.machine.real(path)):
                continue
            text = self.machine.read(path)
            if text is not None and path in held:
                mode = os.stat(self.machine.real(path)).st_mode & 0o7777
                kept.append(managed.File(path, content=encoded(text), mode=mode))
        return kept

    def _install(self, files: Sequence[managed.File], memory: Memory, leaving: Sequence[str]) -> None:
        # What leaves stays in the memory until it is given back, and everything is remembered before the first change.
        remembered = Memory(
            {**{netdev: self.memory.interfaces[netdev] for netdev in leaving}, **memory.interfaces},
            memory.networkd_started or self.memory.networkd_started,
            memory.backend,
        )
        if self.memory.interfaces and not managed.known(SET, root=self.machine.root):
            # The manifest was lost, and what we wrote would now count as the original. These paths are nobody else's.
            for path in (fabric_netplan.FILE, SYSCTL_FILE, MEMORY, fabric_renderer.UNMANAGED, fabric_renderer.DAEMON):
                managed.put_state(path, managed.State(), root=self.machine.root)
        first = managed.File(MEMORY, content=remembered.text().encode())
        current = {item.path: item for item in self._current(files) if item.path != MEMORY}
        managed.apply_set(SET, [first, *current.values()], root=self.machine.root)
        # Its settings stay while networkd runs.
        daemon = {path: item for path, item in current.items() if path == fabric_renderer.DAEMON}
        wanted = {item.path: item for item in files if item.path != MEMORY}
        managed.apply_set(SET, [first, *{**daemon, **wanted}.values()], root=self.machine.root)

    def _roll_back(self, cause: SparkError) -> None:
        """Back to the last tested state, then report the failure. What gives everything back is run again instead."""
        if self.pending is None or not self.rails:
            raise cause
        try:
            left = rollback.put_back(self.machine, self.pending)
        except SparkError as exc:
            raise SparkError(
                f"{cause.found}. Going back failed as well, the node tries again by itself: {exc.found}",
                cause.where,
                cause.remedy,
            ) from cause
        self.outcome.transaction = ""
        state = f"The previous files are active again, but {'; '.join(left)}" if left else ""
        raise SparkError(
            f"{cause.found}. {state or 'The previous configuration is active again'}", cause.where, cause.remedy
        )
