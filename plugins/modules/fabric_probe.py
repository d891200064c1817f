#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_probe
short_description: Test the halves of a fabric cable with full-size pings
version_added: 0.1.0
description:
  - Pings every given address from the given own address with packets of full MTU that must not be fragmented, all at
    the same time, and repeats until each has answered or O(timeout) is over.
  - An answer confirms the MTU in both directions, on both ends and on everything between them.
  - A path that does not answer is reported with a reason and a remedy; the module does not fail, so that the results of
    all nodes can be judged together.
  - At the same time it asks (ARP) who has these addresses. A ping does not tell whether somebody else answers.
options:
  paths:
    description: What to ping.
    type: list
    elements: dict
    required: true
    suboptions:
      rail:
        description: Number of the rail, handed back in the result.
        type: int
        required: true
      netdev:
        description: Own interface of this rail, on which is asked who has O(paths[].source) and O(paths[].address).
        type: str
        required: true
      source:
        description: Own address on this rail.
        type: str
        required: true
      peer:
        description: Name of the other node, handed back in the result.
        type: str
        required: true
      address:
        description: Address of the other node on this rail.
        type: str
        required: true
      mtu:
        description: Size of the packets in bytes, IP header included.
        type: int
        default: 9000
  timeout:
    description:
      - Seconds after which a path that has not answered has failed. The first packets after a change are lost to ARP,
        and a switch port may take seconds before it forwards.
    type: float
    default: 40
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Test both halves to one peer
  sparkmatrix.cluster.fabric_probe:
    paths:
      - {rail: 0, netdev: enp1s0f0np0, source: 192.168.100.10, peer: spark2, address: 192.168.100.11, mtu: 9000}
      - {rail: 1, netdev: enP2p1s0f0np0, source: 192.168.101.10, peer: spark2, address: 192.168.101.11, mtu: 9000}
  register: result
"""

RETURN = r"""
probes:
  description: One entry per path, in the given order.
  returned: success
  type: list
  elements: dict
  contains:
    rail: {description: As given., type: int, sample: 0}
    peer: {description: As given., type: str, sample: spark2}
    source: {description: As given., type: str, sample: 192.168.100.10}
    address: {description: As given., type: str, sample: 192.168.100.11}
    ok: {description: The peer answered a packet of full size., type: bool, sample: true}
    rtt_ms: {description: Time of the answer in milliseconds., type: float, sample: 0.042}
    attempts: {description: How often it was tried., type: int, sample: 1}
    cause:
      description: V(mtu_local), V(mtu_path), V(no_address), V(unreachable), V(silent) or V(failed); null when it
        answered.
      type: str
      sample: mtu_path
    reason: {description: The cause as text., type: str, sample: nobody answers for the address (ARP)}
    remedy: {description: What to do next., type: str, sample: Check the cable}
holders:
  description: Everybody who says that one of the addresses is theirs.
  returned: success
  type: list
  elements: dict
  contains:
    netdev: {description: Where it was heard., type: str, sample: enp1s0f0np0}
    address: {description: The address., type: str, sample: 192.168.100.11}
    mac: {description: Who has it., type: str, sample: 4c:bb:47:00:00:01}
"""

from concurrent.futures import ThreadPoolExecutor

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import arp
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ping import parse_paths, probe


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "paths": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "rail": {"type": "int", "required": True},
                    "netdev": {"type": "str", "required": True},
                    "source": {"type": "str", "required": True},
                    "peer": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                    "mtu": {"type": "int", "default": 9000},
                },
            },
            "timeout": {"type": "float", "default": 40},
        },
        supports_check_mode=True,
    )
    try:
        asked: dict[str, set[str]] = {}
        for path in module.params["paths"]:
            asked.setdefault(path["netdev"], set()).update((path["source"], path["address"]))
        with ThreadPoolExecutor(max_workers=1) as pool:
            answers = pool.submit(arp.holders, Machine(), asked)
            verdicts = probe(parse_paths(module.params["paths"]), module.params["timeout"])
            holders = answers.result()
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, probes=[verdict.as_dict() for verdict in verdicts], holders=holders)


if __name__ == "__main__":
    main()
