# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This file documents an action plugin of the same name; it never runs.

from __future__ import annotations

DOCUMENTATION = r"""
module: node_tool
short_description: Install sparkmatrix-node, which units on the machines call
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Packs the part of this collection that has to run on a machine without Ansible into one executable Python file and
    installs it as C(/usr/local/lib/sparkmatrix/sparkmatrix-node), through M(sparkmatrix.cluster.managed_files).
  - With it come the oneshot units that call it, and C(nvidia-modprobe), as root before Ray and an engine start.
  - For people it is C(sparkmatrix) as well, a link in C(/usr/local/bin). Something else of that name is refused.
  - A result registered as C(spark_node_tool) is remembered until the playbook ends, and the machine is not asked again
    for a tool that this run has installed.
  - The same release always gives the same bytes, whatever the controller.
options:
  state:
    description:
      - Whether the tool should be there.
      - Units of several layers call it, so C(absent) removes it only when no other set of
        M(sparkmatrix.cluster.managed_files) is left on the machine. In check mode the sets that would go before it are
        still there.
    type: str
    choices: [present, absent]
    default: present
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
seealso:
  - module: sparkmatrix.cluster.managed_files
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Install the node tool
  sparkmatrix.cluster.node_tool:
"""

RETURN = r"""
path:
  description: Where the tool is.
  returned: always
  type: str
  sample: /usr/local/lib/sparkmatrix/sparkmatrix-node
sha256:
  description: Digest of the tool.
  returned: always
  type: str
state:
  description: The state that was asked for.
  returned: success
  type: str
changed_paths:
  description: As returned by M(sparkmatrix.cluster.managed_files).
  returned: success
  type: list
  elements: str
"""
