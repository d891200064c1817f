# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Faults of a node's files and services: a script that makes each, and one that restores what was there.

Both may run twice. ``$1`` is the argument of the fault, where it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import kernel_log
import nodes
from labstate import Lab, LabError
from sim import faults

NCCL = """# Left over from another set-up
NCCL_SOCKET_IFNAME=enp1s0f1np1
NCCL_IB_GID_INDEX=5
NCCL_IB_HCA=mlx5_2
"""
LLDPAD = """[Unit]
Description=Link Layer Discovery Protocol Agent Daemon
[Service]
ExecStart=/usr/bin/sleep infinity
"""
BOND = """network:
  version: 2
  bonds:
    bond0:
      interfaces: [enp1s0f0np0, enP2p1s0f0np0]
      parameters: {mode: balance-xor}
"""
NETPLAN = "/etc/netplan/01-network-manager-all.yaml"
DOCKER_SUBNET = "192.168.100.1/24"
KERNEL_LOG = (
    "pcieport 0000:00:00.0: AER: Multiple Uncorrectable (Fatal) error message received from 0000:01:00.0",
    "mlx5_core 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Requester ID)",
    "mlx5_core 0000:01:00.0: mlx5_pcie_event:310:(pid 412): Detected insufficient power on the PCIe slot (27W).",
)


def _drop(path: str, text: str, mode: str = "0644") -> str:
    """Put a file in the place of another, once; what was there waits beside the faults of the lab."""
    kept = f"/root/.lab-fault{path.replace('/', '_')}"
    return (
        f"[ -e {kept} ] || {{ [ -e {path} ] && cp -a {path} {kept} || touch {kept}.none; }}\n"
        f"cat > {path} <<'END'\n{text}END\nchmod {mode} {path}"
    )


def _put_back(path: str) -> str:
    kept = f"/root/.lab-fault{path.replace('/', '_')}"
    return f"if [ -e {kept} ]; then mv {kept} {path}; else rm -f {path}; fi; rm -f {kept}.none"


# Kind to (make, restore); what depends on the moment is made then.
SCRIPTS: Mapping[str, tuple[str | Callable[[], str], str]] = {
    "stale_nccl_conf": (_drop("/etc/nccl.conf", NCCL), _put_back("/etc/nccl.conf")),
    "lldpad": (
        f"cat > /run/systemd/system/lldpad.service <<'END'\n{LLDPAD}END\n"
        "systemctl daemon-reload; systemctl start lldpad",
        "systemctl stop lldpad; rm -f /run/systemd/system/lldpad.service; systemctl daemon-reload",
    ),
    "bond": (
        _drop("/etc/netplan/70-bond.yaml", BOND, "0600")
        + "\nip link show bond0 >/dev/null 2>&1 || ip link add bond0 type bond 2>/dev/null || true",
        _put_back("/etc/netplan/70-bond.yaml") + "; ip link delete bond0 2>/dev/null || true",
    ),
    "netplan_mode": (f"chmod 0644 {NETPLAN}", f"chmod 0600 {NETPLAN}"),
    "docker_subnet": (
        "ip link show docker0 >/dev/null 2>&1 || { ip link add docker0 type bridge; touch /root/.lab-fault-docker0; }\n"
        f'ip addr replace "${{1:-{DOCKER_SUBNET}}}" dev docker0; ip link set docker0 up',
        "if [ -e /root/.lab-fault-docker0 ]; then ip link delete docker0 || true; rm /root/.lab-fault-docker0\n"
        f'else ip addr delete "${{1:-{DOCKER_SUBNET}}}" dev docker0 || true; fi',
    ),
    "aer_journal": (
        lambda: kernel_log.script("aer", [kernel_log.Line(line) for line in KERNEL_LOG]),
        kernel_log.removed("aer"),
    ),
}


def apply(lab: Lab, before: faults.Lab, after: faults.Lab) -> None:
    for node, wanted in after.on_node.items():
        for kind, argument in before.on_node[node].items():
            if kind not in wanted or wanted[kind] != argument:
                _run(lab, node, kind, SCRIPTS[kind][1], argument)
        for kind, argument in wanted.items():
            if before.on_node[node].get(kind) != argument:
                _run(lab, node, kind, SCRIPTS[kind][0], argument)


def _run(lab: Lab, node: str, kind: str, script: str | Callable[[], str], argument: str) -> None:
    words = script if isinstance(script, str) else script()
    done = nodes.execute(lab, node, ["sh", "-ec", words, kind, argument])
    if done.returncode:
        raise LabError(f"The fault {kind} of {node} could not be changed: {done.stderr.strip() or done.stdout.strip()}")
