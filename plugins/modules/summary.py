#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: summary
short_description: Make the last lines of a playbook
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Says in at most twelve lines which layers ran, what serves, where, with which key and how fast, what changed, what
    to run next and how to undo it, and returns it for programs as C(set_stats) does.
  - Fails in a check that found a difference where C(spark_drift) is C(fail).
  - Goes by what the layers of this run have registered. Contacts no host.
options:
  playbook:
    description: Name of the playbook.
    type: str
    required: true
  leaving:
    description: Hosts that have left the cluster in this run.
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
- name: Make the summary
  sparkmatrix.cluster.summary:
    playbook: site
  run_once: true
  register: spark_summary
"""

RETURN = r"""
lines:
  description: The lines.
  returned: success
  type: list
  elements: str
  sample: ["site.yml: 2 nodes serve qwen3-8b"]
"""
