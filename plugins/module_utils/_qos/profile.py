# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The QoS profile of the fabric interfaces of one node, and ``sparkmatrix-node qos-apply``, which keeps it.

``roce`` is one profile: trust DSCP, DSCP 26 in priority 3, PFC on priority 3 and on no other. NCCL marks its packets
for it with ``NCCL_IB_TC=106`` (DSCP 26, ECN-capable); that half of the profile is in the fabric fact. A node has the
profile on all interfaces or on none (``port.bring``).

The NIC forgets its settings with every reboot and with every removal of its PCI functions (a Spark without a cable). So
the profile is in a file, and an instance of a template unit for each interface's device unit applies it whenever the
device appears. A record holds what each interface had before the first change; without a record nothing is given back.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, paths, sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import (
    File,
    apply_set,
    drop_state,
    remove_set,
    write_state,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import port as qos_port
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import state as qos_state
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.port import Outcome
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos.state import COUNT, QosState

HELP = "apply the QoS profile of the fabric to an interface"
PRIORITY = 3
DSCP = 26  # 106 >> 2, what NCCL_IB_TC=106 puts into the packets
PROFILES: Mapping[str, qos_state.Wanted] = {
    "roce": qos_state.Wanted(
        trust="dscp",
        dscp2prio={DSCP: PRIORITY},
        pfc=tuple(int(priority == PRIORITY) for priority in range(COUNT)),
    )
}
SET = "fabric_qos"
WANTED = f"{paths.ETC}/qos.json"
RECORD = paths.FABRIC_QOS
UNIT = "sparkmatrix-qos@.service"
SCHEMA_VERSION = 1

# No default dependencies and before network-pre.target: at boot the port goes down and up before anything configures
# it or uses it. Started by the device unit alone, so a boot without the NIC waits for nothing.
UNIT_TEXT = f"""\
# Managed by sparkmatrix.cluster (role fabric). Undo: fabric_qos: none
[Unit]
Description=RoCE QoS profile of %I
DefaultDependencies=no
BindsTo=sys-subsystem-net-devices-%i.device
After=sys-subsystem-net-devices-%i.device
Before=network-pre.target shutdown.target
Wants=network-pre.target
Conflicts=shutdown.target
RequiresMountsFor={WANTED} {paths.NODE_PROGRAM}

[Service]
Type=oneshot
ExecStart={paths.NODE_PROGRAM} qos-apply %I
TimeoutStartSec=30
"""


# -- what is wanted at boot


def wanted_text(profile: str, interfaces: Sequence[str]) -> str:
    wanted = {"schema": SCHEMA_VERSION, "profile": profile, "interfaces": sorted(interfaces)}
    return json.dumps(wanted, indent=1, sort_keys=True) + "\n"


def parse_wanted(text: str | None) -> tuple[str, tuple[str, ...]]:
    """Profile and interfaces of the file; ``("none", ())`` without a file."""
    if text is None:
        return "none", ()
    with json_text.Reading("the file is damaged", WANTED, "Run the fabric layer again"):
        known = json_text.mapping(text)
        if known["schema"] != SCHEMA_VERSION or known["profile"] not in PROFILES:
            raise ValueError(f"schema {known['schema']!r}, profile {known['profile']!r}")
        return str(known["profile"]), tuple(qos_state.interface_name(str(name)) for name in known["interfaces"])


def escape(name: str) -> str:
    """A netdev's name as part of a unit's name (systemd.unit(5), "String Escaping for Inclusion in Unit Names")."""
    plain = {*"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789:_."}
    return "".join(
        char
        if char in plain and not (index == 0 and char == ".")
        else "".join(f"\\x{byte:02x}" for byte in char.encode())
        for index, char in enumerate(name)
    )


def device_unit(interface: str) -> str:
    return f"sys-subsystem-net-devices-{escape(interface)}.device"


def service_unit(interface: str) -> str:
    return UNIT.replace("@", f"@{escape(interface)}")


def wants_link(interface: str) -> str:
    return f"{paths.UNITS}/{device_unit(interface)}.wants/{service_unit(interface)}"


def files(profile: str, interfaces: Sequence[str]) -> list[File]:
    """Everything that makes the profile come back: the wanted profile, the template unit, an instance per interface."""
    return [
        File(WANTED, content=wanted_text(profile, interfaces).encode()),
        File(f"{paths.UNITS}/{UNIT}", content=UNIT_TEXT.encode()),
        *(File(wants_link(name), link_to=f"{paths.UNITS}/{UNIT}") for name in sorted(interfaces)),
    ]


# -- what was there before


def parse_record(text: str | None) -> dict[str, QosState]:
    if text is None:
        return {}
    with json_text.Reading(
        "the record of the QoS settings from before the first change is damaged",
        RECORD,
        "Delete it; the present settings then stay until the next reboot",
    ):
        known = json_text.mapping(text)
        if known["schema"] != SCHEMA_VERSION:
            raise ValueError(f"schema {known['schema']!r}")
        record = {}
        for name, entry in known["interfaces"].items():
            state = document.load_known(QosState, entry)
            if state.trust not in (None, *qos_state.TRUST) or len(state.pfc) != COUNT or not {*state.pfc} <= {0, 1}:
                raise ValueError(f"{name} has {entry}")
            record[qos_state.interface_name(str(name))] = state
        return record


# -- the work


def reconcile(machine: Machine, profile: str, interfaces: Sequence[str], outcome: Outcome, *, check_mode: bool) -> None:
    """Bring ``interfaces`` to ``profile``, and give back what other interfaces had. ``none``: give all of them back.

    Everything that stands in the way is raised, and kept in ``outcome.problems``, before anything changes.
    """
    want = PROFILES.get(profile)
    names = [qos_state.interface_name(name) for name in interfaces] if want else []
    record = parse_record(machine.read(RECORD))
    goals: dict[str, qos_state.Wanted | QosState] = {name: want for name in names if want}
    for name in record:
        # A device that is gone took its settings along.
        if name not in goals and sysfs.exists(machine.sysfs / "class/net" / name):
            goals[name] = record[name]
    qos_port.look(machine, goals, outcome)
    qos_port.refuse(outcome, check_mode=check_mode)
    stale = [name for name in record if name not in names]
    fresh = [name for name in names if name not in record]
    outcome.kept = bool(stale or fresh)
    if not check_mode and want:
        if fresh:
            _keep(machine, {**record, **{name: outcome.interfaces[name].before for name in fresh}})
        qos_port.bring(machine, outcome)
    _place(machine, profile, names, outcome, check_mode)
    if not check_mode:
        if not want:
            qos_port.bring(machine, outcome)
        if stale:
            record = parse_record(machine.read(RECORD))
            _keep(machine, {name: state for name, state in record.items() if name in names})


def _keep(machine: Machine, record: Mapping[str, QosState]) -> None:
    if not record:
        drop_state(RECORD, root=machine.root)
        return
    text = json.dumps({"schema": SCHEMA_VERSION, "interfaces": document.plain(record)}, indent=1, sort_keys=True)
    write_state(RECORD, f"{text}\n".encode(), root=machine.root)


def _place(machine: Machine, profile: str, names: Sequence[str], outcome: Outcome, check_mode: bool) -> None:
    """Files and units, and what systemd knows of them."""
    if names:
        result = apply_set(SET, files(profile, names), check_mode=check_mode, root=machine.root)
    else:
        result = remove_set(SET, check_mode=check_mode, root=machine.root)
    outcome.diff += result.diff
    outcome.warnings += result.warnings
    reload_due = result.changed or not _known(machine, names)
    outcome.kept = outcome.kept or reload_due
    if reload_due and not check_mode:
        done = machine.runner(["systemctl", "daemon-reload"])
        if done.rc != 0:
            raise SparkError(
                f"systemctl daemon-reload failed ({done.complaint})", UNIT, "On this node: systemctl daemon-reload"
            )


def _known(machine: Machine, names: Sequence[str]) -> bool:
    """Whether systemd will start our unit with each device: a run may have died between the files and the reload."""
    if not names:
        return True
    done = machine.runner(["systemctl", "show", "--property=Wants", *(device_unit(name) for name in names)])
    return done.rc != 0 or all(service_unit(name) in done.out.replace("\\\\", "\\") for name in names)


# -- the subcommand


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("interface", help="netdev; nothing is done for one that the profile is not meant for")


def run(arguments: argparse.Namespace, machine: Machine | None = None) -> int:
    machine = machine or Machine()
    name = str(arguments.interface)
    outcome = Outcome()
    try:
        profile, interfaces = parse_wanted(machine.read(WANTED))
        if name not in interfaces:
            sys.stdout.write(f"{name}: no QoS profile is wanted\n")
            return 0
        qos_port.ensure(machine, {name: PROFILES[profile]}, outcome, check_mode=False)
    except SparkError as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    for warning in outcome.warnings:
        sys.stderr.write(f"{warning}\n")
    applied = ", ".join(outcome.interfaces[name].applied) or "nothing"
    sys.stdout.write(f"{name}: QoS profile {profile}, changed: {applied}\n")
    return 0
