# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: layers
short_description: Tell which layers a run touches
version_added: 0.1.0
description:
  - Narrows the layers of a playbook by the tags of the run and refuses a tag that no layer has.
  - Refuses an inventory without hosts in the group C(sparks), which Ansible itself would treat as success.
  - Runs on the controller and contacts no host.
options:
  playbook_layers:
    description: Layers that the playbook contains. Empty means all of them.
    type: list
    elements: str
    default: []
  run_tags:
    description: The value of C(ansible_run_tags).
    type: list
    elements: str
    default: []
  skip_tags:
    description: The value of C(ansible_skip_tags).
    type: list
    elements: str
    default: []
  sparks:
    description: The hosts of the group C(sparks).
    type: list
    elements: str
    default: []
  inventory_sources:
    description: The value of C(ansible_inventory_sources), named in the refusal.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Find the layers of this run
  sparkmatrix.cluster.layers:
    run_tags: "{{ ansible_run_tags }}"
    skip_tags: "{{ ansible_skip_tags }}"
    sparks: "{{ groups['sparks'] | default([]) }}"
"""

RETURN = r"""
layers:
  description: The selected layers in running order.
  returned: success
  type: list
  elements: str
  sample: [fabric]
"""
