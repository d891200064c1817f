#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: show_gids
short_description: List the GID tables of RDMA ports and select the entry that NCCL takes
version_added: 0.1.0
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
description:
  - Reports every used GID table entry with its RoCE version, IPv4 address and netdev, like the vendor's tool
    C(show_gids), in a fraction of its time.
  - When any of O(family), O(roce_version), O(cidr), O(netdev) and O(device) is given, it also selects one entry per
    port, the one that NCCL 2.21 and newer takes with the same settings, and fails when that is not certain.
  - The index of an address differs between ports and nodes and changes when addresses come and go. Use it for
    perftest and diagnosis, compare nodes by the C(gid) in RV(selected), and do not export it to NCCL.
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
options:
  family:
    description:
      - Address family of the GID to select, as in C(NCCL_IB_ADDR_FAMILY).
      - V(ipv4) when another selection option is given and this one is not.
    type: str
    choices: [ipv4, ipv6]
  roce_version:
    description:
      - RoCE version of the GID to select, as in C(NCCL_IB_ROCE_VERSION_NUM).
      - V(2) when another selection option is given and this one is not.
    type: int
    choices: [1, 2]
  cidr:
    description:
      - Networks, in one of which the address must lie. One network acts as C(NCCL_IB_ADDR_RANGE) does.
    type: list
    elements: str
  netdev:
    description:
      - Only select entries of these netdevs. Every port that has entries of them must resolve.
      - NCCL itself cannot tell netdevs apart, so prefer O(cidr) where a VLAN shares a port with its parent.
    type: list
    elements: str
  device:
    description:
      - Select for these RDMA devices, all of which must resolve.
      - Without O(device) and O(netdev) all RoCE ports in state ACTIVE must resolve, as NCCL uses no others. The text of
        the tool does not tell the state, so all of its ports must.
    type: list
    elements: str
  source:
    description:
      - V(sysfs) reads sysfs, V(command) runs the tool C(show_gids).
      - V(auto) reads sysfs, unless C(/sys/class/infiniband) is missing and the tool is there.
    type: str
    choices: [auto, sysfs, command]
    default: auto
seealso:
  - module: sparkmatrix.cluster.ibdev2netdev
"""

EXAMPLES = r"""
- name: List all GIDs
  sparkmatrix.cluster.show_gids:
  register: table

- name: Resolve the RoCE v2 entry of the fabric address on both halves
  sparkmatrix.cluster.show_gids:
    device: [rocep1s0f1, roceP2p1s0f1]
    cidr: 192.168.100.0/22
  register: fabric

- name: Show the index for ib_write_bw -x
  ansible.builtin.debug:
    msg: "{{ fabric.selected['rocep1s0f1:1'].index }}"
"""

RETURN = r"""
gids:
  description: Every used entry by device, port and index, whatever is selected.
  returned: success
  type: list
  elements: dict
  contains:
    device: {description: Name of the RDMA device., type: str, sample: rocep1s0f1}
    port: {description: Port of the RDMA device., type: int, sample: 1}
    index: {description: Index in the table., type: int, sample: 3}
    gid:
      description: The GID, written in full.
      type: str
      sample: "0000:0000:0000:0000:0000:ffff:c0a8:640a"
    version:
      description: RoCE version. 1 on InfiniBand ports, null where the kernel does not tell.
      type: int
      sample: 2
    ipv4: {description: The IPv4 address if the GID is one., type: str, sample: 192.168.100.10}
    netdev: {description: The netdev with this address; null on InfiniBand ports., type: str, sample: enp1s0f1np1}
selected:
  description:
    - The selected entry per port, keyed by device and port as in V(rocep1s0f1:1), with the keys of RV(gids).
  returned: success
  type: dict
  sample:
    "rocep1s0f1:1":
      device: rocep1s0f1
      port: 1
      index: 3
      gid: "0000:0000:0000:0000:0000:ffff:c0a8:640a"
      version: 2
      ipv4: 192.168.100.10
      netdev: enp1s0f1np1
source:
  description: What was read, V(sysfs) or V(command).
  returned: success
  type: str
  sample: sysfs
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.show_gids import (
    Gid,
    active_ports,
    parse,
    read,
    select,
)


def run_tool(module: AnsibleModule, tool: str) -> list[Gid]:
    code, out, err = module.run_command([tool], environ_update={"LC_ALL": "C"})
    if code != 0:
        raise SparkError(f"exit code {code}, {(err or out).strip()}", tool, "Use source: sysfs, which needs no tool")
    return parse(out)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "family": {"type": "str", "choices": ["ipv4", "ipv6"]},
            "roce_version": {"type": "int", "choices": [1, 2]},
            "cidr": {"type": "list", "elements": "str"},
            "netdev": {"type": "list", "elements": "str"},
            "device": {"type": "list", "elements": "str"},
            "source": {"type": "str", "choices": ["auto", "sysfs", "command"], "default": "auto"},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    root = sysfs.root()
    selected: dict[str, Gid] = {}
    try:
        tool = module.get_bin_path("show_gids")
        command = sysfs.use_command(wanted["source"], root, tool, "show_gids")
        gids = run_tool(module, tool) if command else read(root)
        if any(wanted[option] for option in ("family", "roce_version", "cidr", "netdev", "device")):
            selected = select(
                gids,
                family=wanted["family"] or "ipv4",
                roce_version=wanted["roce_version"] or 2,
                cidrs=wanted["cidr"] or (),
                netdevs=wanted["netdev"] or (),
                devices=wanted["device"] or (),
                active=None if command else active_ports(root),
            )
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(
        changed=False,
        gids=[gid.as_dict() for gid in gids],
        selected={name: gid.as_dict() for name, gid in selected.items()},
        source="command" if command else "sysfs",
    )


if __name__ == "__main__":
    main()
