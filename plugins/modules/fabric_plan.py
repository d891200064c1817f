#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_plan
short_description: Plan the fabric of all nodes, and judge what they measured
version_added: 0.1.0
description:
  - In phase V(plan) it turns what every node found into one fabric fact per node, or into one refusal that lists every
    reason on every node.
  - In phase V(seal) it takes the results of M(sparkmatrix.cluster.fabric_probe) and M(sparkmatrix.cluster.show_gids) of
    all nodes and returns the facts in state V(applied). If a half does not work it returns RV(refusal), and the facts
    in state V(applying), so that they can be written before the play fails.
  - Plans one node, two nodes on one cable or two, three nodes in a ring, any number of nodes on one switch with one
    cage or two each, and mixtures of switch and cables.
  - What the nodes heard from their neighbours tells the cabling; where nobody heard anything and O(cables) is empty,
    two nodes are taken to share a cable, and more to share a switch.
  - Runs once per play on the controller and contacts no host.
options:
  phase:
    description: What to do.
    type: str
    choices: [plan, seal]
    default: plan
  nodes:
    description:
      - Phase V(plan). Per host a mapping with the keys C(rank), C(network) (the key of the same name of
        M(sparkmatrix.cluster.node_info)), C(rdma) (the result of M(sparkmatrix.cluster.ibdev2netdev)),
        C(neighbors) (the result of M(sparkmatrix.cluster.fabric_neighbors)), C(management_address), C(cages),
        C(addresses) and C(environment).
    type: dict
    default: {}
  sparks:
    description: Phase V(plan). All hosts that the plan is for; it is refused when one of them is not in O(nodes).
    type: list
    elements: str
    default: []
  topology:
    description:
      - V(auto), V(single), V(direct), V(ring), V(switch) or V(mixed). A named topology is compared with what was heard.
    type: str
    default: auto
  subnets:
    description:
      - One subnet per half of the cage. In a ring every cable takes two; when only two are listed, those that follow.
    type: list
    elements: str
    default: [192.168.100.0/24, 192.168.101.0/24]
  host_offset:
    description: A node's number in each subnet is this plus its rank.
    type: int
    default: 10
  mtu:
    description: MTU of the fabric interfaces in bytes.
    type: int
    default: 9000
  transport:
    description: V(auto) and V(rdma) use RDMA, V(socket) TCP. It never falls back to TCP by itself.
    type: str
    default: auto
  cables:
    description:
      - What the user says about the cabling, one entry per cable, C(spark1.0 spark2.1) for cage 0 of C(spark1) and
        cage 1 of C(spark2), C(spark1.1 switch) or C(spark1.1 switch:NAME). It is compared with what was heard.
    type: list
    elements: str
    default: []
  allow_large_ring:
    description: Plan rings of four nodes and more, which NVIDIA does not support.
    type: bool
    default: false
  qos:
    description: V(roce) adds the traffic class of the profile to the environment of NCCL. Refused on direct cables.
    type: str
    choices: [none, roce]
    default: none
  qos_force:
    description: Accept V(roce) on direct cables.
    type: bool
    default: false
  export_gid_index:
    description:
      - Phase V(seal). Add C(NCCL_IB_GID_INDEX) to the environment, which is refused where no index fits all halves of a
        node.
    type: bool
    default: false
  facts:
    description: Phase V(seal). The facts that phase V(plan) returned.
    type: dict
    default: {}
  measured:
    description: Phase V(seal). Per host a mapping with C(gids) and C(probes).
    type: dict
    default: {}
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Plan the fabric
  sparkmatrix.cluster.fabric_plan:
    nodes: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'my_node'))) }}"
    topology: switch
  run_once: true
  register: plan
"""

RETURN = r"""
topology:
  description: The topology that was planned.
  returned: success
  type: str
  sample: switch
facts:
  description: The fabric fact of each host.
  returned: success
  type: dict
texts:
  description: The same as the text of C(/etc/ansible/facts.d/sparkmatrix.fact).
  returned: success
  type: dict
paths:
  description: What each host pings to prove its halves, as option C(paths) of M(sparkmatrix.cluster.fabric_probe).
  returned: success
  type: dict
own_hosts_lines:
  description: Per host, lines for C(/etc/hosts) that only this host has. In rings and mixed cablings all of them.
  returned: success
  type: dict
  sample: {}
hosts_lines:
  description: Lines for C(/etc/hosts) that are the same on all hosts.
  returned: success
  type: list
  elements: str
  sample: [192.168.100.10 spark1-fabric spark1-fabric0, 192.168.101.10 spark1-fabric1]
firewall:
  description: Per host, rules that let the other hosts in on its fabric, for M(sparkmatrix.cluster.firewall_rules).
  returned: success
  type: dict
  sample: {spark1: [allow in on enp1s0f0np0 from 192.168.100.11]}
cable_map:
  description: What each cage is plugged into, one line per cable. Part of the message when the plan is refused.
  returned: success
  type: list
  elements: str
  sample: [spark1 cage 0 - spark2 cage 1  200 Gb/s  heard]
refusal:
  description: Phase V(seal). Every half that does not work and what to do about it, null when all do.
  returned: success
  type: str
  sample: null
summary:
  description: For people, one line each. In phase V(plan) the plan as a table, in phase V(seal) what was proved.
  returned: success
  type: list
  elements: str
"""
