#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_qos
short_description: Bring all fabric interfaces of a machine to one QoS profile, and keep it over reboots
version_added: 0.1.0
description:
  - Sets the profile with the code of M(sparkmatrix.cluster.mlnx_qos), on all interfaces or on none. When one of them
    refuses, those that were changed before it get back what they had.
  - Places a unit that applies the profile again whenever an interface appears, since the NIC forgets it with every
    reboot and when it is removed from the PCI bus.
  - Records what each interface had before the first change. With profile V(none) that is restored; an interface that
    this module never changed is left alone.
  - A changed PFC mask makes the driver take the port down and up. Run the module in check mode on all machines first
    and hand the results to M(sparkmatrix.cluster.fabric_qos_judge).
options:
  profile:
    description:
      - V(roce) is trust DSCP, DSCP 26 in priority 3, priority flow control on priority 3 only.
      - V(none) gives back what this module changed.
    type: str
    choices: [none, roce]
    default: none
  interfaces:
    description: Netdevs that shall have the profile, both halves of every cage in use. Not used for profile V(none).
    type: list
    elements: str
    default: []
  wait_carrier:
    description: Seconds to wait until all interfaces have carrier, 0 not to wait. Does not fail; see RV(interfaces).
    type: float
    default: 0
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
    details: What stands in the way of a change is returned in RV(problems) instead of a failure.
  diff_mode:
    support: full
  idempotent:
    support: full
seealso:
  - module: sparkmatrix.cluster.mlnx_qos
  - module: sparkmatrix.cluster.fabric_qos_judge
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Make the fabric lossless for RoCE
  sparkmatrix.cluster.fabric_qos:
    profile: roce
    interfaces: [enp1s0f0np0, enP2p1s0f0np0]

- name: Give back what was there before
  sparkmatrix.cluster.fabric_qos:
"""

RETURN = r"""
profile:
  description: The profile that was asked for.
  returned: success
  type: str
  sample: roce
differs:
  description: The same as C(changed), which a task may override, so that all machines can be judged together.
  returned: success
  type: bool
interfaces:
  description:
    - Per interface C(changes) (names of the settings that were changed, in check mode those that would be), C(bounces)
      (whether the port went down and up, or would), C(carrier), C(state) as returned by
      M(sparkmatrix.cluster.mlnx_qos), and C(wanted).
  returned: success
  type: dict
engines:
  description: Signs of a running engine, one line each. Looked for when something is to be changed.
  returned: success
  type: list
  elements: str
  sample: [unit sparkmatrix-engine.service is active]
problems:
  description: In check mode, what would make the change fail, as C(device), C(found) and C(remedy).
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import running_engines
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._qos import profile as qos_profile


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "profile": {"type": "str", "choices": ["none", "roce"], "default": "none"},
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "wait_carrier": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    options = module.params
    node = qos_profile.Node()
    try:
        outcome = qos_profile.reconcile(node, options["profile"], options["interfaces"], check_mode=module.check_mode)
        if options["wait_carrier"]:
            found = qos_profile.wait_for_carrier(node, list(outcome.interfaces), options["wait_carrier"])
            for name, carrier in found.items():
                outcome.interfaces[name]["carrier"] = carrier
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    for warning in outcome.warnings:
        module.warn(warning)
    module.exit_json(
        changed=outcome.changed,
        profile=options["profile"],
        differs=outcome.changed,
        interfaces=outcome.interfaces,
        engines=running_engines.running() if outcome.interfaces and module.check_mode else [],
        problems=[{"device": exc.where, "found": exc.found, "remedy": exc.remedy} for exc in outcome.problems],
        diff=outcome.diff,
    )


if __name__ == "__main__":
    main()
