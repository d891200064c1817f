#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ibdev2netdev
short_description: List RDMA devices, their netdevs and the QSFP cages they share
version_added: 0.1.0
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
description:
  - Reports every port of every RDMA device with its netdev, RDMA state, link, firmware and PCIe link, like the vendor's
    tool C(ibdev2netdev -v) and more.
  - Groups the ports into QSFP cages. The ports of a cage, its halves, have the same C(sys_image_guid) and
    C(phys_port_name); names and PCI addresses do not tell which ports are twins.
  - Reads sysfs, which needs neither the vendor's tool nor privileges, and works for NVIDIA adapters as well as for soft
    RoCE and soft iWARP.
  - A machine without any RDMA device is no failure. The list is empty and RV(reason) says why. A DGX Spark removes its
    network functions while no QSFP cable is plugged.
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
options:
  driver:
    description: Only list ports of this kernel driver in RV(devices), for example V(mlx5_core) or V(rdma_rxe).
    type: str
  state:
    description:
      - Only list ports in this state in RV(devices).
      - V(active) is the RDMA state ACTIVE, V(down) every other state.
      - Where only the tool's plain text is known, the carrier of the netdev decides.
    type: str
    choices: [active, down]
  name:
    description: Only list ports whose RDMA device or netdev matches this shell pattern in RV(devices).
    type: str
  source:
    description:
      - V(sysfs) reads sysfs, V(command) runs C(ibdev2netdev), which knows less and gives no RV(cages).
      - V(auto) reads sysfs, unless C(/sys/class/infiniband) is missing and the tool is there.
    type: str
    choices: [auto, sysfs, command]
    default: auto
notes:
  - The filters apply to RV(devices). RV(cages) always shows the whole machine when sysfs is read.
seealso:
  - module: sparkmatrix.cluster.show_gids
"""

EXAMPLES = r"""
- name: List all RDMA ports and cages
  sparkmatrix.cluster.ibdev2netdev:
  register: rdma

- name: Name the netdevs of both halves of the cabled cages
  ansible.builtin.debug:
    msg: "{{ rdma.cages | selectattr('cabled') | map(attribute='halves') | flatten | map(attribute='netdev') }}"

- name: List the NVIDIA ports that are up
  sparkmatrix.cluster.ibdev2netdev:
    driver: mlx5_core
    state: active
"""

RETURN = r"""
devices:
  description:
    - One entry per RDMA device and port, ordered by PCI address. Values that are not known are null.
  returned: success
  type: list
  elements: dict
  contains:
    rdma_device: {description: Name of the RDMA device., type: str, sample: roceP2p1s0f1}
    port: {description: Number of the port. The first is 1., type: int, sample: 1}
    driver: {description: Kernel driver; V(rdma_rxe) and V(siw) for software devices., type: str, sample: mlx5_core}
    link_layer: {description: Ethernet or InfiniBand., type: str, sample: Ethernet}
    rdma_state: {description: Logical state of the port., type: str, sample: ACTIVE}
    phys_state: {description: Physical state of the port., type: str, sample: LinkUp}
    rate_gbps:
      description: Rate in Gb/s. Only while the port is ACTIVE, since a down mlx5 port claims 40 Gb/s.
      type: float
      sample: 200.0
    netdev: {description: Name of the netdev., type: str, sample: enP2p1s0f1np1}
    netdev_source:
      description: How the netdev was found, by GID entry 0, PCI function, parent netdev or the tool.
      type: str
      sample: gid
    carrier:
      description: The netdev has a link. False as well while the netdev is administratively down.
      type: bool
      sample: true
    admin_up: {description: The netdev is administratively up., type: bool, sample: true}
    operstate: {description: Operational state of the netdev., type: str, sample: up}
    speed_gbps: {description: Speed of the netdev in Gb/s., type: float, sample: 200.0}
    mtu: {description: MTU of the netdev in bytes., type: int, sample: 9000}
    mac: {description: Hardware address of the netdev., type: str, sample: "4c:bb:47:00:00:02"}
    phys_port_name: {description: Physical port; V(p0) is cage 0., type: str, sample: p1}
    phys_switch_id: {description: Switch identity of the adapter., type: str, sample: 0200000047bb4c00}
    firmware: {description: Firmware version., type: str, sample: 28.45.4028}
    board_id: {description: Board identity (PSID)., type: str, sample: NVD0000000087}
    hca_type: {description: Adapter type., type: str, sample: MT4129}
    node_guid: {description: GUID of this function., type: str, sample: "4cbb:4703:0000:0002"}
    sys_image_guid: {description: GUID of the whole adapter., type: str, sample: "4cbb:4703:0000:0001"}
    part_id: {description: Part number; only from the tool., type: str, sample: P3740-0002}
    description: {description: Product description; only from the tool., type: str, sample: ConnectX-7}
    pci_address: {description: Address of the PCI function., type: str, sample: "0002:01:00.1"}
    pcie_path: {description: PCI domain of the function., type: str, sample: "0002"}
    pci:
      description: The PCI function; null for software devices.
      type: dict
      contains:
        address: {description: PCI address., type: str, sample: "0002:01:00.1"}
        vendor: {description: Vendor id., type: str, sample: "0x15b3"}
        device: {description: Device id., type: str, sample: "0x1021"}
        numa_node: {description: NUMA node. Null where the platform names none., type: int, sample: 0}
        link_speed_gts: {description: Speed per lane in GT/s., type: float, sample: 32.0}
        link_width: {description: Lanes in use., type: int, sample: 4}
        max_link_speed_gts: {description: Highest speed per lane in GT/s., type: float, sample: 32.0}
        max_link_width: {description: Lanes of the function., type: int, sample: 4}
        bandwidth_gbps: {description: Capacity of the link in Gb/s., type: float, sample: 126.0}
cages:
  description: QSFP cages, ordered by adapter and number. Empty where the ports do not tell their cage.
  returned: success
  type: list
  elements: dict
  contains:
    cage: {description: Number of the cage., type: int, sample: 1}
    port_name: {description: The C(phys_port_name) of its halves., type: str, sample: p1}
    sys_image_guid: {description: GUID of the adapter., type: str, sample: "4cbb:4703:0000:0001"}
    cabled: {description: A half has a link., type: bool, sample: true}
    admin_down:
      description: All halves are administratively down, so RV(cages[].cabled) cannot be known and is false.
      type: bool
      sample: false
    halves:
      description: The ports behind this cage, each as in RV(devices), ordered by PCI address.
      type: list
      elements: dict
source:
  description: What was read, V(sysfs) or V(command).
  returned: success
  type: str
  sample: sysfs
reason:
  description:
    - Why RV(devices) is empty, null when it is not.
    - V(class_missing), no RDMA subsystem and no NVIDIA network function on the PCI bus.
    - V(nic_removed), the machine took its network functions away (DGX Spark without a cable).
    - V(driver_not_loaded), the functions are there, their RDMA driver is not.
    - V(not_listed), the tool does not list what the kernel has.
    - V(filtered), there are ports, but the filter matches none.
  returned: success
  type: str
  sample: nic_removed
message:
  description: RV(reason) as a sentence with what to do, null when there is no reason.
  returned: success
  type: str
  sample: No NVIDIA network function is on the PCI bus.
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import (
    Rdma,
    RdmaPort,
    cages,
    explain_absence,
    parse,
    read,
    select,
)


def run_tool(module: AnsibleModule, tool: str) -> list[RdmaPort]:
    """The tool's ports: -v tells more, but not every version has it."""
    for options in (["-v"], []):
        code, out, err = module.run_command([tool, *options], environ_update={"LC_ALL": "C"})
        # 255 and not a word: the RDMA subsystem is not loaded.
        if out.strip() and code == 0:
            return parse(out)
    if err.strip():
        raise SparkError(f"exit code {code}, {err.strip()}", tool, "Use source: sysfs, which needs no tool")
    return []


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "driver": {"type": "str"},
            "state": {"type": "str", "choices": ["active", "down"]},
            "name": {"type": "str"},
            "source": {"type": "str", "choices": ["auto", "sysfs", "command"], "default": "auto"},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    root = sysfs.root()
    try:
        tool = module.get_bin_path("ibdev2netdev")
        command = sysfs.use_command(wanted["source"], root, tool, "ibdev2netdev")
        ports = run_tool(module, tool) if command else read(root)
        listed = select(ports, wanted["driver"], wanted["state"], wanted["name"])
        absence = Rdma()
        if not ports:
            absence = explain_absence(root)
        elif not listed:
            absence = Rdma(reason="filtered", message=f"The filter matches none of the {len(ports)} RDMA port(s).")
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(
        changed=False,
        devices=[port.as_dict() for port in listed],
        cages=[cage.as_dict() for cage in cages(ports)],
        source="command" if command else "sysfs",
        reason=absence.reason,
        message=absence.message,
    )


if __name__ == "__main__":
    main()
