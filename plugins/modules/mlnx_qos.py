#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mlnx_qos
short_description: Set priority flow control and trust of ConnectX interfaces
version_added: 0.1.0
description:
  - Reads the QoS state of the interfaces, compares it with the options, applies only what differs, and reads it back.
  - All interfaces are set or none. When one refuses, those that were changed before it get back what they had.
  - Options that are left out stay as they are on the NIC.
  - A changed PFC mask makes the driver take the port down and up. Do not change it while a job uses the port.
  - Single settings do not survive a reboot or a removal of the NIC. A O(profile) does, see there.
  - Reads and sets with C(dcb) of iproute2, which is on every Ubuntu and DGX OS. NVIDIA's program of the module's name
    sets the same things and may be used beside it.
options:
  interfaces:
    description:
      - Netdevs of the ports, not virtual functions, bonds or VLANs.
      - For O(profile=roce) those that should have the profile, both halves of every cage in use. Others that this
        module gave the profile get back what they had.
    type: list
    elements: str
  profile:
    description:
      - V(roce) is trust DSCP, DSCP 26 in priority 3, priority flow control on priority 3 only. A unit applies it again
        whenever an interface appears, so it survives a reboot and an unplugged cable. What each interface had before
        the first change is recorded.
      - V(none) gives back what the profile changed. An interface that never had it is left alone.
      - Needs M(sparkmatrix.cluster.node_tool) on the machine.
    type: str
    choices: [none, roce]
  wait_carrier:
    description: Seconds to wait until all interfaces have carrier, 0 not to wait. Does not fail; see RV(interfaces).
    type: float
    default: 0
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
  allow_lldpad:
    description: Change single settings although C(lldpad) runs, which may overwrite them at any time.
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
    interfaces: [enp1s0f0np0, enP2p1s0f0np0]
  register: qos

- name: Make priority 3 lossless for packets with DSCP 26, until the next reboot
  sparkmatrix.cluster.mlnx_qos:
    interfaces: [enp1s0f0np0]
    trust: dscp
    dscp2prio:
      26: 3
    pfc: [0, 0, 0, 1, 0, 0, 0, 0]

- name: Go back to the factory settings
  sparkmatrix.cluster.mlnx_qos:
    interfaces: [enp1s0f0np0]
    trust: pcp
    pfc: [0, 0, 0, 0, 0, 0, 0, 0]

- name: Make both halves lossless for RoCE, for good
  sparkmatrix.cluster.mlnx_qos:
    profile: roce
    interfaces: [enp1s0f0np0, enP2p1s0f0np0]

- name: Give back what was there before the profile
  sparkmatrix.cluster.mlnx_qos:
    profile: none
"""

RETURN = r"""
interfaces:
  description: What happened per interface. In check mode what would happen.
  returned: when the settings could be read
  type: dict
  contains:
    applied:
      description: Names of the settings that were changed.
      type: list
      elements: str
      sample: [trust, pfc]
    commands:
      description: The commands that changed settings.
      type: list
      elements: list
      sample: [[dcb, pfc, set, dev, enp1s0f0np0, prio-pfc, "all:off", "3:on"]]
    link_bounced:
      description: Whether the PFC mask changed, so that the port went down and up.
      type: bool
    carrier:
      description: Whether the port has a link.
      type: bool
    state:
      description:
        - The settings after the module ran, in check mode the expected ones.
        - A value is V(null) when the NIC does not report it. DSCP codes are strings.
      type: dict
      sample:
        dcbx: os
        trust: dscp
        dscp2prio: {"26": 3, "48": 6}
        pfc: [0, 0, 0, 1, 0, 0, 0, 0]
link_bounced:
  description: Whether any of the ports went down and up, or in check mode would.
  returned: always
  type: bool
problems:
  description: What makes the change impossible, as C(device), C(found) and C(remedy). A failure names all of them.
  returned: always
  type: list
  elements: dict
engines:
  description: Signs of a running engine, one line each. Looked for in check mode.
  returned: always
  type: list
  elements: str
  sample: [unit sparkmatrix-engine.service is active]
differs:
  description: The same as C(changed), which a task may override, so that all machines can be judged together.
  returned: always
  type: bool
"""

from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import running_engines
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import port as qos_port
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import profile as qos_profile
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import state as qos_state

ARGUMENT_SPEC: dict[str, Any] = {
    "interfaces": {"type": "list", "elements": "str"},
    "profile": {"type": "str", "choices": ["none", *qos_profile.PROFILES]},
    "wait_carrier": {"type": "float", "default": 0},
    "trust": {"type": "str", "choices": ["pcp", "dscp"]},
    "dscp2prio": {"type": "dict"},
    "dscp2prio_purge": {"type": "bool", "default": False},
    "pfc": {"type": "list", "elements": "int"},
    "allow_lldpad": {"type": "bool", "default": False},
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        supports_check_mode=True,
        required_one_of=[("interfaces", "profile")],
        mutually_exclusive=[("profile", name) for name in qos_state.SETTINGS],
    )
    options = module.params
    machine, outcome = Machine(), qos_port.Outcome()

    def leave(exit_module: Callable[..., None], **values: Any) -> None:
        for warning in outcome.warnings:
            module.warn(warning)
        engines = running_engines.running() if outcome.interfaces and module.check_mode else []
        exit_module(**document.plain(outcome.answer(engines)), **values)

    try:
        names = options["interfaces"] or []
        if options["profile"]:
            qos_profile.reconcile(machine, options["profile"], names, outcome, check_mode=module.check_mode)
        else:
            want = qos_state.wanted(options, ", ".join(names))
            goals = {qos_state.interface_name(name): want for name in names}
            qos_port.ensure(machine, goals, outcome, check_mode=module.check_mode, allow_lldpad=options["allow_lldpad"])
        if options["wait_carrier"]:
            qos_port.wait_for_carrier(machine, outcome, options["wait_carrier"])
    except SparkError as exc:
        leave(module.fail_json, msg=str(exc))
    leave(module.exit_json)


if __name__ == "__main__":
    main()
