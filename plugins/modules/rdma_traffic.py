#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: rdma_traffic
short_description: Read how many bytes RDMA has moved over each half
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Reads the port counters of the halves that the fabric fact wants RDMA on.
options: {}
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Read what RDMA has moved so far
  sparkmatrix.cluster.rdma_traffic:
  register: before
"""

RETURN = r"""
moved:
  description: Bytes in both directions by RDMA device, null where it does not count. Empty without RDMA in the fact.
  returned: success
  type: dict
  sample: {rocep1s0f0: 14200000, roceP2p1s0f0: 13900000}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import traffic


def main() -> None:
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    machine = Machine()
    module.exit_json(changed=False, moved=traffic.read(machine, traffic.planned(machine)))


if __name__ == "__main__":
    main()
