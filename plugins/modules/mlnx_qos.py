#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mlnx_qos
short_description: Set priority flow control, trust, traffic classes and buffers of a ConnectX interface
version_added: 0.1.0
description:
  - Reads the QoS state of one interface, compares it with the options, applies only what differs, and reads it back.
  - Options that are left out stay as they are on the NIC.
  - A changed PFC mask makes the driver take the port down and up. Do not change it while a job uses the port.
  - Settings do not survive a reboot or a removal of the NIC.
options:
  interface:
    description: Netdev of the port, not a virtual function, a bond or a VLAN.
    type: str
    required: true
  pfc:
    description: Priority flow control, V(0) or V(1) for each of the priorities 0 to 7.
    type: list
    elements: int
  trust:
    description:
      - What decides about the priority of a received packet, the VLAN tag (V(pcp)) or the DSCP field (V(dscp)).
      - With V(pcp) the map of O(dscp2prio) is lost. V(dscp) begins with the map DSCP / 8.
    type: str
    choices: [pcp, dscp]
  dscp2prio:
    description:
      - Priority (0 to 7) per DSCP code (0 to 63). Needs trust V(dscp), present or wanted.
      - Other entries stay, unless O(dscp2prio_purge=true).
    type: dict
  dscp2prio_purge:
    description: Remove all entries that O(dscp2prio) does not name. Their packets get priority 0.
    type: bool
    default: false
  prio_tc:
    description: Traffic class (0 to 7) for each of the priorities 0 to 7.
    type: list
    elements: int
  tsa:
    description: Transmission algorithm (V(strict), V(ets) or V(vendor)) for each of the traffic classes 0 to 7.
    type: list
    elements: str
  tcbw:
    description:
      - Guaranteed bandwidth in percent for each of the traffic classes 0 to 7.
      - Adds up to 100 over the classes with algorithm V(ets), 0 for all others.
    type: list
    elements: int
  ratelimit:
    description: Rate limit in Gb/s (0 to 255) for each of the traffic classes 0 to 7. 0 is unlimited.
    type: list
    elements: int
  cable_len:
    description: Length of the cable in metres (1 to 999). The driver sizes the buffers of lossless priorities with it.
    type: int
  prio2buffer:
    description: Receive buffer (0 to 7) for each of the priorities 0 to 7.
    type: list
    elements: int
  buffer_size:
    description:
      - Size in bytes for each of the receive buffers 0 to 7.
      - The NIC rounds down to whole cells (144 bytes on ConnectX-7, 128 before). So does the comparison.
    type: list
    elements: int
  backend:
    description:
      - The command that reads and sets. V(auto) takes C(mlnx_qos) if it is installed, C(dcb) of iproute2 otherwise.
      - V(dcb) cannot set O(ratelimit), because released versions mix up bits and bytes. It switches O(trust) by adding
        and removing DSCP entries, as C(mlnx_qos) does on a kernel without MLNX_OFED.
    type: str
    choices: [auto, mlnx_qos, dcb]
    default: auto
  allow_lldpad:
    description: Change settings although C(lldpad) runs, which may overwrite them at any time.
    type: bool
    default: false
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Show the present settings
  sparkmatrix.cluster.mlnx_qos:
    interface: enp1s0f0np0
  register: qos

- name: Make priority 3 lossless for packets with DSCP 26
  sparkmatrix.cluster.mlnx_qos:
    interface: enp1s0f0np0
    trust: dscp
    dscp2prio:
      26: 3
    pfc: [0, 0, 0, 1, 0, 0, 0, 0]

- name: Go back to the factory settings
  sparkmatrix.cluster.mlnx_qos:
    interface: enp1s0f0np0
    trust: pcp
    pfc: [0, 0, 0, 0, 0, 0, 0, 0]
"""

RETURN = r"""
backend:
  description: The command that was used.
  returned: when a backend was found
  type: str
  sample: mlnx_qos
state:
  description:
    - The settings after the module ran. In check mode those that are expected.
    - A value is V(null) when the NIC or the backend does not report it. DSCP codes are strings.
  returned: when the settings could be read
  type: dict
  sample:
    dcbx: os
    trust: dscp
    dscp2prio: {"26": 3, "48": 6}
    default_priority: []
    pfc: [0, 0, 0, 1, 0, 0, 0, 0]
    prio_tc: [1, 0, 2, 3, 4, 5, 6, 7]
    tsa: [vendor, vendor, vendor, vendor, vendor, vendor, vendor, vendor]
    tcbw: [0, 0, 0, 0, 0, 0, 0, 0]
    ratelimit: [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    cable_len: 7
    prio2buffer: [1, 1, 1, 1, 1, 1, 1, 1]
    buffer_size: [0, 523296, 0, 0, 0, 0, 0, 0]
    buffer_total: 2039616
    lldpad: false
applied:
  description: Names of the settings that were changed. In check mode those that would be.
  returned: always
  type: list
  elements: str
  sample: [trust, pfc]
not_applied:
  description: Names of the settings that were still to be changed when a command failed, the failing one first.
  returned: when a command failed
  type: list
  elements: str
  sample: [prio2buffer, buffer_size]
commands:
  description: The commands that changed settings. In check mode those that would.
  returned: always
  type: list
  elements: list
  sample: [[/usr/bin/mlnx_qos, -i, enp1s0f0np0, --trust, dscp]]
link_bounced:
  description: Whether the PFC mask changed, so that the port went down and up. In check mode whether it would.
  returned: always
  type: bool
  sample: false
"""

from collections.abc import Callable, Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import port as qos_port
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import state as qos_state

LOCALE = {"LANG": "C", "LC_ALL": "C", "LANGUAGE": "C"}
ARGUMENT_SPEC: dict[str, Any] = {
    "interface": {"type": "str", "required": True},
    "trust": {"type": "str", "choices": ["pcp", "dscp"]},
    "dscp2prio": {"type": "dict"},
    "dscp2prio_purge": {"type": "bool", "default": False},
    "tsa": {"type": "list", "elements": "str"},
    "cable_len": {"type": "int"},
    "backend": {"type": "str", "choices": ["auto", "mlnx_qos", "dcb"], "default": "auto"},
    "allow_lldpad": {"type": "bool", "default": False},
    **{name: {"type": "list", "elements": "int"} for name in qos_state.LIST_RANGES},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    options = module.params
    outcome = qos_port.Outcome()

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        rc, out, err = module.run_command(list(argv), environ_update=LOCALE)
        return rc, out, err

    def leave(exit_module: Callable[..., None], **values: Any) -> None:
        for warning in outcome.warnings:
            module.warn(warning)
        exit_module(**outcome.as_result(), **values)

    try:
        interface = qos_state.interface_name(options["interface"])
        want = qos_state.wanted(options, interface)
        qos_port.require_interface(interface)
        port = qos_port.find_port(interface, options["backend"], module.get_bin_path, run)
        qos_port.ensure(port, want, outcome, module.check_mode, options["allow_lldpad"])
    except SparkError as exc:
        leave(module.fail_json, msg=str(exc))
    leave(module.exit_json)


if __name__ == "__main__":
    main()
