#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_peermem
short_description: Load nvidia-peermem where it was asked for, and name what loads it where it cannot work
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - GB10 has no GPUDirect RDMA, and nvidia-peermem refuses to load there. Older guides load it all the same.
  - Removes its own file only. Lines of other origin are named in a warning with what to do.
  - In a run of C(playbooks/site.yml) a machine that preflight has found to be exactly so is not asked once more.
options:
  load:
    description:
      - V(true) loads the kernel module now and at every boot, and fails where it cannot be loaded.
      - V(false) takes that back and warns about lines in C(/etc/modules), C(/etc/modules-load.d) and
        C(/etc/modprobe.d) that load or configure it.
      - V(auto) is the same as V(false), but warns on GB10 only.
    type: str
    choices: [auto, 'true', 'false']
    default: auto
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
    details: Whether the kernel module can be loaded is not known before it is tried.
  diff_mode:
    support: full
  idempotent:
    support: full
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Make sure that nvidia-peermem is not loaded on GB10
  sparkmatrix.cluster.fabric_peermem:
"""

RETURN = r"""
loaded:
  description: Whether the kernel module is loaded.
  returned: success
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import peermem


def main() -> None:
    module = AnsibleModule(
        argument_spec={"load": {"type": "str", "choices": list(peermem.CHOICES), "default": "auto"}},
        supports_check_mode=True,
    )
    try:
        outcome = peermem.reconcile(Machine(), module.params["load"], check_mode=module.check_mode)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    for warning in outcome.warnings:
        module.warn(warning)
    module.exit_json(changed=outcome.changed, loaded=outcome.loaded, diff=outcome.diff)


if __name__ == "__main__":
    main()
