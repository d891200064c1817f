#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_info
short_description: Read what the checks before a run need to know about a machine
version_added: 0.1.0
description:
  - Reads machine, operating system, memory, disk space, network, listeners and services in one call.
  - What cannot be read, because a tool or file is missing, is V(none); the module does not fail for it.
options:
  paths:
    description: Paths whose disk space is wanted. A path need not exist; then the nearest directory above it counts.
    type: list
    elements: str
    default: []
  commands:
    description: Programs to look for.
    type: list
    elements: str
    default: []
  units:
    description: systemd units whose state is wanted.
    type: list
    elements: str
    default: []
  ports:
    description: TCP ports of which the listening process and its unit are wanted.
    type: list
    elements: int
    default: []
  parts:
    description:
      - What to read beyond that. V(rdma) is what M(sparkmatrix.cluster.ibdev2netdev) returns, V(gids) what
        M(sparkmatrix.cluster.show_gids) does, both from sysfs.
      - V(kernel_log) are fatal PCIe errors and lost devices in the kernel's journal of this boot.
      - V(gpu) is whether CUDA can be initialized, V(clocks) how fast the GPU runs now, V(nccl) the version and the
        settings files of NCCL.
      - V(session) is whose profile of NetworkManager Ansible's connection has.
      - V(settled) is what earlier runs have left, so that modules of this collection that find it as it should be need
        not ask the machine once more in the same run.
    type: list
    elements: str
    choices: [rdma, gids, kernel_log, gpu, clocks, nccl, session, settled]
    default: []
  environments:
    description: Python environments (venv) to look at.
    type: list
    elements: str
    default: []
  interpreters:
    description: Python interpreters whose version is wanted.
    type: list
    elements: str
    default: []
  users:
    description: Users who serve. With O(parts=nccl) their C(~/.nccl.conf) is wanted; an environment may belong to them.
    type: list
    elements: str
    default: []
  connection_host:
    description: The address that Ansible used to reach the machine, for the case that the ssh session cannot be found.
    type: str
    default: ''
  controller_time:
    description: The controller's clock in seconds since 1970, to compare clocks.
    type: float
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Read the machine
  sparkmatrix.cluster.node_info:
    paths: [/opt/sparkmatrix]
    commands: [netplan, ip]
    connection_host: "{{ ansible_host }}"
  register: result
"""

RETURN = r"""
fact:
  description: The fabric fact on disk, not validated; null where there is none, and its text where it is no JSON.
  returned: success
  type: raw
node:
  description: The machine. Sizes are in bytes, times in seconds.
  returned: success
  type: dict
  contains:
    hostname: {description: Host name of the kernel., type: str, sample: spark-1a2b}
    machine:
      description: Maker, product, GPU name; C(is_gb10) with its C(evidence), the GPU's name or else the DMI product.
      type: dict
      sample: {vendor: NVIDIA, product: NVIDIA_DGX_Spark, gpu: NVIDIA GB10, is_gb10: true, evidence: GPU NVIDIA GB10}
    machine_id: {description: Content of C(/etc/machine-id)., type: str}
    boot_id: {description: Changes with every boot., type: str}
    kernel: {description: Kernel release., type: str, sample: 6.14.0-1013-nvidia}
    arch: {description: Machine name of the kernel., type: str, sample: aarch64}
    os: {description: C(/etc/os-release) with keys in lower case., type: dict}
    dgx: {description: C(/etc/dgx-release) with keys in lower case., type: dict}
    nvidia_driver: {description: Version of the loaded driver., type: str, sample: 580.95.05}
    verdicts: {description: How many runs the machine has kept the verdicts of., type: int, sample: 12}
    python: {description: Version and executable that ran this module., type: dict}
    memory: {description: 'total, available, swap_total, swap_free, cma_total, cma_free.', type: dict}
    paths: {description: 'Per path: exists, at (the directory measured), total, free, read_only.', type: dict}
    network:
      description:
        - interfaces, routes, default_gateway. rules are those of IPv4 (C(ip rule)) that every packet meets before the
          table main.
        - rdma_interfaces are those of the ConnectX-7, kept is the management address (address, interface) in the fabric
          fact of an earlier run, and which machine it was then (host, rank, nodes).
        - connection_address and connection_interface carry Ansible's own connection. connection_source tells how they
          were found, V(ssh), V(host) (from O(connection_host)) or V(default_route).
      type: dict
    listening: {description: 'Listening TCP sockets: port, address, and for O(ports) process, pid, unit.', type: list}
    commands: {description: 'Per program its path, or none.', type: dict}
    units: {description: 'Per unit: load, active, sub, enabled.', type: dict}
    managed:
      description: Names of the sets of M(sparkmatrix.cluster.managed_files) on the machine, none without root.
      type: list
    accounts: {description: 'Per account of ours: home, shell, has_home (whether that directory is there).', type: dict}
    engine_units: {description: Units of the engine and of its keeper that are installed., type: list}
    netplan_modes: {description: 'Permission bits of each of them, for example 0600.', type: dict}
    netplan_bonds: {description: 'Those that declare bonds, with the interfaces named below that key.', type: dict}
    leftover_units:
      description: >-
        Enabled units of others that change interfaces of the fabric: unit (empty for files that are run without one),
        file, line, netdevs.
      type: list
    environments: {description: 'Per environment: exists, nccl (version), distrusted (why not to run it).', type: dict}
    interpreters: {description: 'Per interpreter its version, or none.', type: dict}
    rdma: {description: 'With O(parts=rdma): devices, cages, reason, message.', type: dict}
    gids: {description: With O(parts=gids)., type: list}
    kernel_log:
      description: 'With O(parts=kernel_log): kind (aer_fatal, low_power), device, line, count, missing (gone now).'
      type: list
    gpu: {description: 'With O(parts=gpu): checked, ok, code (CUresult), message.', type: dict}
    clocks:
      description: 'With O(parts=clocks): busy (percent), celsius, mhz (of the SMs), slowed (why it is held down now).'
      type: dict
    session:
      description: 'With O(parts=session): interface, uuid, users, secret of the connection in NetworkManager.'
      type: dict
    settled:
      description:
        - With O(parts=settled). files is a digest per set of M(sparkmatrix.cluster.managed_files); units what Ray and
          the keepers run with; filters which tables of the port filter are active; accounts the
          numbers of our accounts; names our lines in C(/etc/hosts).
        - plan is the identity of the kept engine plan; peermem whether nothing loads nvidia-peermem; qos whether none
          of a QoS profile is left; secrets a mark and the owner of Ray's token, which do not tell it.
        - bandwidth and peer are of what the bandwidth test and the call C(peer)
          return.
      type: dict
    nccl: {description: 'With O(parts=nccl): system (version of the package), settings per file.', type: dict}
    systemd: {description: Whether systemd is the init system., type: bool}
    limits:
      description: Hard limits of the init system, memlock in bytes and nofile, -1 for unlimited; can_raise.
      type: dict
    uid: {description: User id that the module ran with., type: int}
    sudo_user: {description: User that sudo was called by., type: str}
    time: {description: Clock of the machine., type: float}
    clock_offset:
      description: Its clock minus O(controller_time), too large by the time that the call took to get here.
      type: float
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import PARTS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node_info import Request, gather, shown


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "str", "default": []},
            "commands": {"type": "list", "elements": "str", "default": []},
            "units": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
            "parts": {"type": "list", "elements": "str", "choices": list(PARTS), "default": []},
            "environments": {"type": "list", "elements": "str", "default": []},
            "interpreters": {"type": "list", "elements": "str", "default": []},
            "users": {"type": "list", "elements": "str", "default": []},
            "connection_host": {"type": "str", "default": ""},
            "controller_time": {"type": "float"},
        },
        supports_check_mode=True,
    )
    node = gather(Request(**module.params))
    module.exit_json(changed=False, node=shown(node), fact=fact.on_disk(Machine()))


if __name__ == "__main__":
    main()
