# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: artifacts_send
short_description: Send a model from the controller to a node
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Reads a directory or a cache of Hugging Face on the controller, and sends what the node lacks of it over the
    connection that Ansible has. What arrived stays when it is interrupted; each file counts with its SHA-256.
  - The node needs the node program, see M(sparkmatrix.cluster.node_tool); the controller needs nothing but Python.
options:
  state:
    description: Whether the model is sent, or only looked at.
    type: str
    choices: [looked, sent]
    default: sent
  home:
    description: Directory for downloaded models on the node (HF_HOME of the engine).
    type: str
    required: true
  name:
    description: Name at the hub.
    type: str
    required: true
  ref:
    description: Branch, tag or commit; empty for main.
    type: str
    default: ''
  path:
    description: Where it is on the controller.
    type: str
    required: true
  pickle:
    description: Let in weights that can run programs of whoever made them.
    type: bool
    default: false
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
- name: Send a model
  sparkmatrix.cluster.artifacts_send:
    home: /opt/sparkmatrix/models/huggingface
    name: Qwen/Qwen3-8B
    path: ~/models/qwen3-8b
"""

RETURN = r"""
listing:
  description: What there is on the controller.
  returned: success
  type: dict
  sample: {name: Qwen/Qwen3-8B, revision: '', hub: /mnt/qwen3-8b on this computer, files: 15, size: 16400000000,
           copied: 16400000000, left_out: {}}
sent:
  description: Bytes that the node lacked.
  returned: with O(state=sent), not in check mode
  type: int
result:
  description: What was done.
  returned: with O(state=sent), not in check mode
  type: dict
"""
