#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_files
short_description: Turn a node's part of the engine plan into files and units
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Computes what lies on a node for the engine, which is the description that C(sparkmatrix-node) reads, environment,
    units and what a rank needs beside them, with hashes that change with everything that needs a restart.
  - Runs on the controller and contacts no host. The files are placed by M(sparkmatrix.cluster.managed_files).
options:
  plan:
    description: The node's part of the plan, as M(sparkmatrix.cluster.engine_plan) returns it.
    type: dict
    required: true
  user:
    description: The account that the engine runs as.
    type: str
    default: sparkmatrix
  group:
    description: Its group.
    type: str
    default: sparkmatrix
  drop_caches:
    description: Drop the page cache before each start.
    type: bool
    default: true
  login_environment:
    description: Give login shells the engine's environment.
    type: bool
    default: false
  stop_timeout_s:
    description: Seconds that the engine has for ending its requests when it is stopped.
    type: int
    default: 60
  memlock:
    description: LimitMEMLOCK of the service.
    type: str
    default: infinity
  nofile:
    description: LimitNOFILE of the service.
    type: str
    default: "65536"
  keeper:
    description: Settings of the keeper; what is left out is as the keeper has it. Times in seconds.
    type: dict
    default: {}
    suboptions:
      probe_interval_s:
        description: Between two probes.
        type: float
      probe_timeout_s:
        description: For one probe.
        type: float
      hang_s:
        description: Without an answer and without progress.
        type: float
      lost_s:
        description: Without an answer while a node is off the fabric.
        type: float
      ready_s:
        description: From a start to the first token.
        type: float
      memory_wait_s:
        description: For memory to be returned.
        type: float
      start_limit:
        description: Failures in a row after which it gives up.
        type: int
      backoff_s:
        description: Before the start after the second failure.
        type: float
      stable_s:
        description: Of serving, after which earlier failures are forgotten.
        type: float
  key_mark:
    description: Fingerprint of the API key where the node has it.
    type: str
    default: ""
  image_marks:
    description: Ids of the container images by their names.
    type: dict
    default: {}
  tool_mark:
    description: Digest of the node tool.
    type: str
    default: ""
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Compute files and units
  sparkmatrix.cluster.engine_files:
    plan: "{{ spark_plan }}"
  register: made

- name: Place them
  sparkmatrix.cluster.managed_files:
    name: engine
    files: "{{ made.files }}"
"""

RETURN = r"""
files:
  description: Path and content of each file, for M(sparkmatrix.cluster.managed_files).
  returned: success
  type: list
  elements: dict
  sample: [{path: /etc/sparkmatrix/engine.json, content: "{}"}]
units:
  description: Units among them.
  returned: success
  type: list
  elements: str
  sample: [sparkmatrix-engine.service, sparkmatrix-keeper.service]
keepers:
  description: Per service whose head is this node, its keeper's unit with hash, and its description.
  returned: success
  type: list
  elements: dict
  sample:
    - unit: sparkmatrix-keeper.service
      config_hash: 3f2a9c0d1e5b
      description: /etc/sparkmatrix/engine.json
      nodes: 2
"""
