# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Inject and clear faults of a running lab. Runs on the host as root.

    inject_fault.py spark2 half_down --half 1     inject
    inject_fault.py spark2 clear half_down        clear one kind
    inject_fault.py spark2 clear                  clear all of a node
    inject_fault.py all clear                     clear everything
    inject_fault.py list                          what is active

Faults compose; injecting one again with other options changes it. When the command returns, the simulated devices
show the new state.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import socket
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import network
import node_file_faults
from labstate import DEFAULT_ID, Lab, LabError, operation, write_atomically

from sim import faults, spark

SYNC_TIMEOUT_S = 20


def parser(prog: str | None = None) -> argparse.ArgumentParser:
    kinds = "\n".join(f"  {kind:16} {text}" for kind, text in faults.KINDS.items())
    made = argparse.ArgumentParser(
        prog=prog,
        description=__doc__,
        epilog=f"faults:\n{kinds}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--id", default=DEFAULT_ID, help="the lab (default: %(default)s)")
    made.add_argument("node", help="spark1, spark2, …; all (with clear); or list")
    made.add_argument("fault", nargs="?", choices=[*faults.KINDS, "clear"], metavar="fault|clear")
    made.add_argument("which", nargs="?", choices=list(faults.KINDS), metavar="fault", help="what to clear")
    made.add_argument("--half", type=int, choices=(0, 1), help="0: PCI domain 0000, 1: PCI domain 0002")
    made.add_argument("--netdev", choices=[nic.netdev for nic in spark.NICS])
    made.add_argument("--cage", type=int, choices=(0, 1), help="cable_swapped, speed_100g and others: which cage")
    made.add_argument("--to", metavar="NODE", help="cable_swapped, duplicate_mac: the other node")
    made.add_argument("--to-cage", type=int, choices=(0, 1), help="cable_swapped: the other node's cage")
    made.add_argument("--address", help="stale_ipv4, docker_subnet: address/prefix")
    made.add_argument("--width", type=int, default=2, help="degraded_pcie: lanes (default 2 of 4)")
    made.add_argument("--speed", default="32.0 GT/s PCIe", help="degraded_pcie: for example '8.0 GT/s PCIe'")
    return made


def main(argv: list[str], prog: str | None = None) -> int:
    options = parser(prog).parse_args(argv)
    lab = Lab(options.id)
    try:
        if options.node == "list":
            for fault in lab.active_faults():
                print(json.dumps({k: v for k, v in vars(fault).items() if v is not None}))
            return 0
        names = lab.record().names
        if options.node not in names and not (options.node == "all" and options.fault == "clear"):
            raise LabError(f"The lab {lab.id} has no node {options.node}, it has {', '.join(names)}")
        if options.to and options.to not in names:
            raise LabError(f"The lab {lab.id} has no node {options.to}, it has {', '.join(names)}")
        if options.fault is None:
            raise LabError(f"Say which fault: {', '.join(faults.KINDS)}; or clear")
        with operation():
            before = lab.active_faults()
            if options.fault == "clear":
                after = faults.clear(before, None if options.node == "all" else options.node, options.which)
            else:
                after = faults.inject(
                    before,
                    faults.Fault(
                        options.node,
                        options.fault,
                        options.half,
                        options.netdev,
                        options.address,
                        options.width,
                        options.speed,
                        options.cage,
                        options.to,
                        options.to_cage,
                    ),
                )
            apply(lab, before, after)
    except LabError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


def apply(lab: Lab, before: list[faults.Fault], after: list[faults.Fault]) -> None:
    """Make ``after`` true, in this order: record, cables, MAC addresses, addresses, files, what the simulators show."""
    old, new = lab.wanted(before), lab.wanted(after)
    lab.save_faults(after)
    network.wire(lab, new)
    network.set_macs(lab, old, new)
    network.set_addresses(lab, old, new)
    node_file_faults.apply(lab, old, new)
    for node, told in new.nodes.items():
        write_atomically(lab.control(node) / "faults.json", json.dumps(told) + "\n")
        sync(lab, node)


def sync(lab: Lab, node: str) -> None:
    """Returns when the simulator of a node has looked at everything; a node that is off has none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.settimeout(SYNC_TIMEOUT_S)
        try:
            control.connect(str(lab.control(node) / "socket"))
        except (FileNotFoundError, ConnectionRefusedError):
            return
        control.sendall(b"sync\n")
        if control.recv(16) != b"ok\n":
            raise LabError(f"The simulator of {node} failed: lab.py exec {node} -- journalctl -u sparksim")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
