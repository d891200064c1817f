#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: ray_files
short_description: Turn a node's part of the engine plan into Ray's files
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Computes what lies on a node for Ray, which is its unit and environment and, where it runs in a container, what that
    is made from, with a hash that changes with everything that needs a restart.
  - Runs on the controller and contacts no host. The files are placed by M(sparkmatrix.cluster.managed_files).
options:
  plan:
    description: The node's part of the plan, as M(sparkmatrix.cluster.engine_plan) returns it.
    type: dict
    required: true
  user:
    description: The account that Ray runs as in a Python environment.
    type: str
    default: sparkmatrix
  group:
    description: Its group.
    type: str
    default: sparkmatrix
  memlock:
    description: LimitMEMLOCK of the service in a Python environment.
    type: str
    default: infinity
  nofile:
    description: LimitNOFILE of the service in a Python environment.
    type: str
    default: "65536"
  token_mark:
    description: Fingerprint of the cluster's token.
    type: str
    default: ""
  image_mark:
    description: Id of the container image.
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
- name: Compute Ray's files
  sparkmatrix.cluster.ray_files:
    plan: "{{ spark_plan }}"
  register: made

- name: Place them
  sparkmatrix.cluster.managed_files:
    name: ray
    files: "{{ made.files }}"
"""

RETURN = r"""
files:
  description: Path and content of each file, for M(sparkmatrix.cluster.managed_files).
  returned: success
  type: list
  elements: dict
  sample: [{path: /etc/sparkmatrix/ray.env, content: "RAY_AUTH_MODE=token"}]
config_hash:
  description: Changes with everything that needs a restart.
  returned: success
  type: str
  sample: 3f2a9c0d1e5b
"""
