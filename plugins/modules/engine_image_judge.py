#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_image_judge
short_description: Judge whether the ranks of each service have the same container image
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Fails with every service whose nodes have different images under one name. Services that share no rank may differ.
  - Warns where a plan is served again, and an image of it is gone whose name another one has by now.
  - Runs once per play on the controller and contacts no host.
options:
  plans:
    description: Per host its part of the plan, as M(sparkmatrix.cluster.engine_plan) returns it.
    type: dict
    required: true
  images:
    description: Per host the result of M(sparkmatrix.cluster.engine_image), also a skipped one.
    type: dict
    required: true
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
seealso:
  - module: sparkmatrix.cluster.engine_image
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Judge the images of all nodes
  sparkmatrix.cluster.engine_image_judge:
    plans: "{{ plan.plans }}"
    images: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'image'))) }}"
  run_once: true
"""

RETURN = r"""
findings:
  description: Every finding, as C(host), C(device), C(found), C(remedy) and C(severity).
  returned: always
  type: list
  elements: dict
"""
