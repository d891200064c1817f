# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A table of nftables of our own: active now and after every boot, and removed without a trace.

What the kernel has is compared, not what a file says: the table carries a mark of its content, and a table that was
flushed is loaded again by the next run. It is replaced in one step, so there is no moment without it.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Diff, Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File

FABRIC, SERVICES = "fabric", "services"
# Each has a slice for its units and containers. Not below that of the engine, whose sockets are closed to strangers.
GATEWAY, WEB_UI, OBSERVABILITY = "gateway", "web_ui", "observability"
NAMES = (FABRIC, SERVICES, GATEWAY, WEB_UI, OBSERVABILITY)
# Of all units and containers of Ray and the engine: what a service listens on is told by it.
SLICE = "sparkmatrix-engine.slice"
CGROUP = "sparkmatrix.slice"  # the control group above it
ACCOUNTS = "accounts"  # what the rules call the accounts that may reach the ranks
STATE = "@STATE@"  # in the rules: becomes the mark of their content
LOCK = f"{paths.RUN}/port-filter.lock"
_MARK = re.compile("sparkmatrix [0-9a-f]+")
_TRIAL = f"{paths.RUN}/port-filter.nft"
_OFF = "or set spark_port_filter: false, which leaves Ray, the ranks and the ports of all services open"


@dataclass(frozen=True)
class Request:
    """``rules``: the whole table, as the planners print it. ``users``: accounts that they call ``$accounts``, beside
    root. ``absent``, and empty ``rules``, take table, unit and file away; ``in_force`` changes nothing, and refuses
    where a table that the node keeps is not what the kernel has."""

    name: str = field(default="", metadata=document.one_of("", *NAMES))
    rules: str = ""
    users: tuple[str, ...] = ()
    state: str = field(default="present", metadata=document.one_of("present", "absent", "in_force"))


@dataclass
class Outcome:
    """What was done, or in check mode would be."""

    changed: Flag = False
    changes: list[Words] = field(default_factory=list)
    diff: Diff = field(default_factory=list)


def ensure(request: Request, check: bool) -> Outcome:
    machine = Machine()
    if request.state == "in_force":
        for name in NAMES:
            require(machine, name)
        return Outcome()
    if request.state == "present" and request.rules:
        done = present(machine, request.name, request.rules, request.users, check_mode=check)
    else:
        done = absent(machine, request.name, check_mode=check)
    done.changed = bool(done.changes)
    return done


def table(name: str) -> str:
    return f"inet sparkmatrix_{name}"


def slice_of(name: str) -> str:
    """In which the programs run whose sockets the table knows; the table of the fabric knows none."""
    return {FABRIC: "", SERVICES: SLICE}.get(name, f"system-sparkmatrix_{name}.slice")


def cgroup(name: str) -> str:
    """Its control group, below /sys/fs/cgroup, as nft names it."""
    return CGROUP if name == SERVICES else f"system.slice/{slice_of(name)}"


def path(name: str) -> str:
    return f"{paths.ETC}/port-filter/{name}.nft"


def unit(name: str) -> str:
    return f"sparkmatrix-port-filter-{name}.service"


def present(machine: Machine, name: str, rules: str, users: Sequence[str] = (), *, check_mode: bool = False) -> Outcome:
    """``rules`` active, now and after every boot. ``users``: accounts that they call ``$accounts``, beside root."""
    text, mark = _text(name, rules, _numbers(users, check_mode))
    files = _files(name, text)
    outcome = Outcome()
    if not check_mode:
        _refuse_without_nft(machine)
    with alone(machine, "the port filter", LOCK):
        live = _live(machine, name, mark)
        compared = managed.apply_set(file_set(name), files, check_mode=True, root=machine.root)
        if not check_mode and (compared.changed or not live):
            _try(machine, name, text)
        placed = managed.apply_set(file_set(name), files, check_mode=check_mode, root=machine.root)
        outcome.diff += placed.diff
        outcome.changes += [f"place {changed_path}" for changed_path in placed.changed_paths]
        state = machine.unit(unit(name))
        if placed.changed and not check_mode:
            machine.command("systemctl", "daemon-reload", step="reading the units")
        if not state.is_enabled:
            outcome.changes.append(f"enable {unit(name)}")
        if not live or not state.running:
            outcome.changes.append(f"load table {table(name)}")
        if outcome.changes and not check_mode:
            # Loaded first: whatever cuts this off, the next run sees that the unit is not as it has to be.
            verb = "reload" if state.running else "start"
            machine.command("systemctl", verb, unit(name), step="loading the port filter", remedy=_journal(name))
            machine.command("systemctl", "enable", unit(name), step="enabling the port filter")
            if not _live(machine, name, mark):
                raise SparkError(
                    f"table {table(name)} is not active after it was loaded",
                    "nftables",
                    f"Does something else flush all tables? nft list ruleset; {_journal(name)}",
                )
    return outcome


def wanted(name: str, rules: str, numbers: Sequence[int] = ()) -> list[File]:
    """The files that :func:`present` places; ``numbers``: those of the accounts."""
    return _files(name, _text(name, rules, numbers)[0])


def in_force(machine: Machine, name: str) -> bool:
    """Whether the kernel has the table that the node keeps, and gets it again at every boot."""
    mark = _MARK.search(machine.text(path(name)) or "")
    if not mark or not _live(machine, name, mark[0]):
        return False
    state = machine.unit(unit(name))
    return state.running and state.is_enabled and not state.needs_reload


def absent(machine: Machine, name: str, *, check_mode: bool = False) -> Outcome:
    outcome = Outcome()
    with alone(machine, "the port filter", LOCK):
        state = machine.unit(unit(name))
        if state.running or state.is_enabled:
            outcome.changes.append(f"stop {unit(name)}")
            if not check_mode:
                machine.command("systemctl", "disable", "--now", unit(name), step="removing the port filter")
        if machine.works("nft", "list", "table", *table(name).split()):
            if not state.running:
                outcome.changes.append(f"delete table {table(name)}")
            if not check_mode and machine.works("nft", "list", "table", *table(name).split()):
                machine.command("nft", "delete", "table", *table(name).split(), step="removing the port filter")
        removed = managed.remove_set(file_set(name), check_mode=check_mode, root=machine.root)
        outcome.diff += removed.diff
        outcome.changes += [f"remove {changed_path}" for changed_path in removed.changed_paths]
        if removed.changed and not check_mode:
            machine.command("systemctl", "daemon-reload", step="reading the units")
            # With the filter switched off, the services go on in it.
            events = machine.text(f"/sys/fs/cgroup/{cgroup(name)}/cgroup.events") if slice_of(name) else None
            if "populated 0" in (events or ""):
                last = cgroup(name).rpartition("/")[2]
                machine.command("systemctl", "stop", last, step="removing the control group of the services")
    return outcome


def require(machine: Machine, name: str) -> None:
    """Refuse where the kernel has not the table that the node keeps. Every node keeps that of the services."""
    text = machine.text(path(name))
    if text is None and name != SERVICES:
        return
    mark = _MARK.search(text or "")
    if not mark or not _live(machine, name, mark[0]):
        raise SparkError(
            f"{_open(name)}: the table is not active as the last run left it"
            " (nft flush ruleset and stopping nftables.service take it away)",
            f"table {table(name)}",
            f"systemctl restart {unit(name)}; or run site.yml",
        )


def _open(name: str) -> str:
    if name in (FABRIC, SERVICES):
        return "Ray and the ranks may be open to the network"
    return f"whoever takes a port of the layer {name} while that is down may get what is sent there"


def file_set(name: str) -> str:
    return f"port_filter_{name}"


def _journal(name: str) -> str:
    return f"journalctl -u {unit(name)}"


def _numbers(users: Sequence[str], check_mode: bool) -> list[int]:
    """By number: a name may not be known yet when the node boots."""
    numbers = [0] if users else []
    for user in users:
        try:
            numbers.append(pwd.getpwnam(user).pw_uid)
        except KeyError:
            if not check_mode:
                raise SparkError(
                    f"there is no account {user!r}", "spark_service_user", "Run the whole layer, which makes it"
                ) from None
    return numbers


def _text(name: str, rules: str, numbers: Sequence[int]) -> tuple[str, str]:
    made = f"# Managed by sparkmatrix.cluster. What is active: nft list table {table(name)}\n"
    if numbers:
        made += f"define {ACCOUNTS} = {{ {', '.join(map(str, dict.fromkeys((0, *numbers))))} }}\n"
    mark = f"sparkmatrix {config_hash(made, rules)}"
    return made + rules.replace(STATE, mark), mark


def _files(name: str, text: str) -> list[File]:
    return [
        File(path(name), content=text.encode()),
        File(f"{paths.UNITS}/{unit(name)}", content=_unit(name).encode()),
    ]


def _refuse_without_nft(machine: Machine) -> None:
    if not machine.works("nft", "--version"):
        raise SparkError(
            "the program nft is missing, so nothing keeps strangers from the ports of the services",
            "nftables",
            f"Install the package nftables, as the layer fabric does (sudo apt-get install nftables), {_OFF}",
        )


def _live(machine: Machine, name: str, mark: str) -> bool:
    listed = machine.output("nft", "list", "table", *table(name).split())
    if listed is None or mark not in listed:
        return False
    # A control group that was made anew has another number, and nft then knows no path for the old one.
    return not slice_of(name) or f'"{cgroup(name)}"' in listed


def _try(machine: Machine, name: str, text: str) -> None:
    """By the kernel itself, without any effect."""
    if slice_of(name):
        machine.command("systemctl", "start", slice_of(name), step="making the control group of the services")
    managed.write_state(_TRIAL, text.encode(), root=machine.root)
    done = machine.runner(["nft", "--check", "--file", machine.real(_TRIAL)])
    managed.put_state(_TRIAL, managed.State(), root=machine.root)
    if done.rc != 0:
        raise SparkError(
            f"the kernel or nft refuses the port filter: {done.complaint}",
            f"table {table(name)}",
            "It needs 'socket cgroupv2', 'tproxy', 'fib' and for the gateway 'ct count' of nftables (Linux 5.13,"
            " modules nft_socket, nft_tproxy, nft_fib_inet and nft_connlimit), and control groups of version 2 at"
            f" /sys/fs/cgroup. Boot a kernel that has them, {_OFF}",
        )


def _unit(name: str) -> str:
    load = f"/usr/sbin/nft -f {path(name)}"
    what = {FABRIC: "addresses on the fabric", SERVICES: "sockets of Ray and the engine"}.get(name, f"ports of {name}")
    lines = [
        "# Managed by sparkmatrix.cluster",
        "[Unit]",
        f"Description=Close what strangers must not reach ({what})",
        "Documentation=man:nft(8)",
        "# Before there is a network.",
        "DefaultDependencies=no",
        "Wants=network-pre.target",
        "Before=network-pre.target",
        "# When it starts or reloads it flushes all tables, ours too.",
        "After=local-fs.target nftables.service",
        "PartOf=nftables.service",
        "ReloadPropagatedFrom=nftables.service",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        *([f"Slice={slice_of(name)}"] if slice_of(name) else []),
        f"ExecStart={load}",
        f"ExecReload={load}",
        f"ExecStop=-/usr/sbin/nft delete table {table(name)}",
    ]
    return "\n".join(lines) + "\n"
