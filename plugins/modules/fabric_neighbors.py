#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_neighbors
short_description: Find out which node is at the other end of each QSFP cable
version_added: 0.1.0
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
description:
  - Sends a small Ethernet frame (EtherType 0x88B5, broadcast) about ten times per second on every Ethernet port of an
    RDMA device, and listens for those of the other nodes. No IP address is needed.
  - Has to run on all nodes at the same time. Each waits for the others, so it does not matter when they start within
    O(timeout), and it ends on all of them as soon as everybody has heard and was heard, within about a second.
  - Listens for LLDP frames meanwhile, and asks lldpd (C(lldpcli)) where it runs, since switches speak only every 30
    seconds.
  - Ports that are administratively down are switched on for the time of the probe and off again, and nothing else is
    changed. A process that is killed with SIGKILL leaves such a port switched on, and nothing else.
  - A node that does not answer is no failure. RV(notes) says who was missing and what was odd.
options:
  node:
    description: The name of this node.
    type: str
    required: true
  nodes:
    description: The names of all nodes that take part, the same list on each of them.
    type: list
    elements: str
    required: true
  cluster:
    description:
      - Any text that is the same on all nodes of this cluster and different in another cluster on the same switch.
    type: str
    default: ""
  timeout:
    description: Seconds to wait for nodes that are not heard.
    type: float
    default: 10
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
attributes:
  check_mode:
    support: full
    details:
      - Frames are sent and heard, since they change nothing. Ports that are switched off stay off, which a note says.
notes:
  - Needs CAP_NET_RAW, and CAP_NET_ADMIN to switch ports on, so run it with C(become).
  - A port that is switched on may get an IPv6 link-local address from the kernel, and a profile of NetworkManager, for
    as long as it is on.
  - Both ports of a cage hear the same, because the adapter switches between them. What one port of a cage sends and the
    other hears is left out; what another cage of the same node hears is reported, with RV(heard[].node) being the
    node itself.
seealso:
  - module: sparkmatrix.cluster.ibdev2netdev
"""

EXAMPLES = r"""
- name: Find out who is at the other end of each cable
  sparkmatrix.cluster.fabric_neighbors:
    node: "{{ inventory_hostname }}"
    nodes: "{{ ansible_play_hosts_all }}"
  register: result
"""

RETURN = r"""
heard:
  description: Everybody who was heard, once per own port and port at the other end.
  returned: success
  type: list
  elements: dict
  contains:
    netdev: {description: Own port., type: str, sample: enp1s0f0np0}
    cage: {description: "Its cage, null where the adapter does not tell.", type: int, sample: 0}
    source: {description: V(probe) or V(lldp)., type: str, sample: probe}
    node:
      description: The node at the other end; empty for LLDP from a device that is none.
      type: str
      sample: spark2
    peer_netdev: {description: Port at the other end. May be empty for LLDP., type: str, sample: enp1s0f1np1}
    peer_cage: {description: Its cage. May be null for LLDP., type: int, sample: 1}
    peer_mac: {description: MAC address of the sender., type: str, sample: "48:21:0b:96:02:c1"}
    both_ways:
      description: The other end has heard this port too. Null for LLDP, which does not tell.
      type: bool
      sample: true
    system: {description: "LLDP: system name, or the chassis identifier.", type: str, sample: ""}
    port: {description: "LLDP: port identifier.", type: str, sample: ""}
    ids:
      description: "LLDP: MAC and IP addresses of the device beside RV(heard[].peer_mac)."
      type: list
      elements: str
      sample: []
interfaces:
  description: By own port.
  returned: success
  type: dict
  contains:
    carrier: {description: There is a link., type: bool, sample: true}
    brought_up: {description: The port was switched off and was switched on for the probe., type: bool, sample: false}
    module_serial:
      description:
        - Serial number of the cable (C(ethtool -m)), empty if it cannot be read. Often the same at both ends.
      type: str
      sample: APF21330038TKU
  sample: {enp1s0f0np0: {carrier: true, brought_up: false, module_serial: ""}}
notes:
  description: What was odd, for people.
  returned: success
  type: list
  elements: str
  sample: ["not heard, neither directly nor through others: spark3"]
complete:
  description: All nodes took part; those that are not adjacent were heard of through others.
  returned: success
  type: bool
  sample: true
seconds:
  description: How long it took.
  returned: success
  type: float
  sample: 0.61
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import sysfs
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import read
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbor_sockets import (
    Wire,
    ends,
    own_macs,
    probe,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Conversation


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "nodes": {"type": "list", "elements": "str", "required": True},
            "cluster": {"type": "str", "default": ""},
            "timeout": {"type": "float", "default": 10},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    root = sysfs.root()
    try:
        own = ends(read(root))
        talk = Conversation(
            wanted["node"], wanted["nodes"], own, wanted["cluster"], time.monotonic(), own=own_macs(root)
        )
        wire = Wire([end.netdev for end in own], root)
        try:
            found = probe(talk, wire, wanted["timeout"], may_switch_on=not module.check_mode)
        finally:
            wire.close()
    except (SparkError, ValueError) as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
