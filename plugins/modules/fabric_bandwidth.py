#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_bandwidth
short_description: Measure the halves of a fabric cable with RDMA writes
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Runs C(ib_write_bw) and C(ib_write_lat) of perftest, as server on one node and as client on the other. A
    ConnectX-7 that initialised badly shows a full link and answers pings; only this test shows it.
  - Two nodes have to run it at the same time, with the tests that M(sparkmatrix.cluster.plan) gives
    them. They keep to the order of C(slot); tests of one slot run at the same time.
  - Whatever it has started ends with it, also when it is killed.
  - Server and connection data use the fabric address of the half; nothing listens on another address.
  - A test without a result is reported with a reason and a remedy; the module does not fail, so that the results of all
    nodes can be judged together.
  - In a run of C(playbooks/site.yml) a machine that preflight has found to be exactly so is not asked once more.
options:
  phase:
    description: V(look) only says whether this node can be measured now, V(measure) does O(tests).
    type: str
    choices: [look, measure]
    default: look
  engine_units:
    description: Phase V(look). Units that must not run during a measurement.
    type: list
    elements: str
    default: [sparkmatrix-engine.service, sparkmatrix-engine-*.service]
  tests:
    description: Phase V(measure). This node's part, as M(sparkmatrix.cluster.plan) returns it.
    type: list
    elements: dict
    default: []
    suboptions:
      slot: {description: Position in the order of both nodes., type: int, required: true}
      role: {description: This node's part., type: str, choices: [server, client], required: true}
      test:
        description: What is measured.
        type: str
        choices: [write, write_both_directions, latency]
        required: true
      rail: {description: Number of the rail., type: int, required: true}
      device: {description: Own RDMA device., type: str, required: true}
      port: {description: Port of the RDMA device., type: int, required: true}
      netdev: {description: Its interface., type: str, required: true}
      gid_index: {description: Entry of the GID table; the tool chooses when it is not known., type: int}
      source: {description: Own address on this rail., type: str, required: true}
      peer: {description: Name of the other node., type: str, required: true}
      address: {description: Address of the other node on this rail., type: str, required: true}
      tcp_port: {description: Port for the connection data., type: int, required: true}
      software: {description: One of the two ends is soft RoCE; smaller queues then., type: bool, default: false}
  duration:
    description: Seconds per test of a rate.
    type: int
    default: 5
  wait:
    description: Seconds that one end waits for the other.
    type: float
    default: 30
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Can this node be measured?
  sparkmatrix.cluster.fabric_bandwidth:
    phase: look
  register: ready

- name: Do this node's part
  sparkmatrix.cluster.fabric_bandwidth:
    phase: measure
    tests: "{{ schedule.tests[inventory_hostname] }}"
"""

RETURN = r"""
ready:
  description:
    - C(tool), the path of C(ib_write_bw) or null; C(verbs), whether programs reach RDMA devices; C(busy), the units
      that run; C(software), the soft RoCE devices; C(record), the kept measurement; C(ports) and C(gids), as
      M(sparkmatrix.cluster.ibdev2netdev) and M(sparkmatrix.cluster.show_gids) return them.
  returned: phase V(look)
  type: dict
  sample: {tool: /usr/bin/ib_write_bw, verbs: true, busy: [], software: [], record: null, ports: [], gids: []}
outcomes:
  description: One entry per test that was tried.
  returned: phase V(measure)
  type: list
  elements: dict
  contains:
    slot: {description: As given., type: int, sample: 0}
    role: {description: As given., type: str, sample: client}
    test: {description: As given., type: str, sample: write}
    rail: {description: As given., type: int, sample: 0}
    peer: {description: As given., type: str, sample: spark1}
    device: {description: As given., type: str, sample: rocep1s0f0}
    value: {description: Rate in Gb/s or microseconds; null without a result., type: float, sample: 98.04}
    rdma_mtu: {description: Size of the RDMA packets in bytes., type: int, sample: 4096}
    cause: {description: Name of the cause of a failure., type: str, sample: ""}
    reason: {description: Why there is no result., type: str, sample: null}
    remedy: {description: What to do next., type: str, sample: null}
idle:
  description: Bytes/s that RDMA moved over each device before the first test.
  returned: phase V(measure)
  type: dict
  sample: {rocep1s0f0: 0.0}
counted:
  description: What was added to each device's counters of repeats, drops and pauses, and to its bytes.
  returned: phase V(measure)
  type: dict
  sample: {rocep1s0f0: {out_of_sequence: 0, bytes: 61000000000}}
seconds:
  description: How long it took.
  returned: phase V(measure)
  type: float
  sample: 41.2
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import bandwidth as fabric_bandwidth


def main() -> None:
    number, text = {"type": "int", "required": True}, {"type": "str", "required": True}
    module = AnsibleModule(
        argument_spec={
            "phase": {"type": "str", "choices": ["look", "measure"], "default": "look"},
            "engine_units": {
                "type": "list",
                "elements": "str",
                "default": list(fabric_bandwidth.ENGINE_UNITS),
            },
            "tests": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "slot": number,
                    "role": {"type": "str", "choices": ["server", "client"], "required": True},
                    "test": {"type": "str", "choices": list(fabric_bandwidth.TESTS), "required": True},
                    "rail": number,
                    "device": text,
                    "port": number,
                    "netdev": text,
                    "gid_index": {"type": "int"},
                    "source": text,
                    "peer": text,
                    "address": text,
                    "tcp_port": number,
                    "software": {"type": "bool", "default": False},
                },
            },
            "duration": {"type": "int", "default": 5},
            "wait": {"type": "float", "default": 30},
        },
        supports_check_mode=True,
    )
    params, machine = module.params, Machine()
    try:
        if params["phase"] == "look":
            module.exit_json(changed=False, ready=fabric_bandwidth.look(params["engine_units"], machine))
        tests = [] if module.check_mode else fabric_bandwidth.parse_tests(params["tests"])
        measured = fabric_bandwidth.measure(tests, params["duration"], params["wait"], machine)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, **measured.as_dict())


if __name__ == "__main__":
    main()
