#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_units
short_description: Start, stop or remove the engine's services on a node
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Finds the units of all services that are on this node, also of those that the inventory no longer names, and brings
    them into a state.
options:
  kind:
    description: C(keeper) starts ranks, and starts them again; C(engine) is a rank.
    type: str
    choices: [engine, keeper]
    required: true
  state:
    description:
      - V(started) starts what is installed; a keeper then starts at boot, too.
      - V(stopped) stops it; a keeper no longer starts at boot.
      - V(absent) stops it, and forgets what the keeper has kept. Unit files are left to
        M(sparkmatrix.cluster.managed_files).
    type: str
    choices: [started, stopped, absent]
    required: true
  keep:
    description: Units that are left as they are.
    type: list
    elements: str
    default: []
  service:
    description: Name of the service whose unit is meant; empty for all of them. It need not be on this node.
    type: str
    default: ""
  by:
    description: With O(kind=keeper) and O(state=stopped), the playbook that stops it; C(sparkmatrix status) names it.
    type: str
    default: ""
  user:
    description: Who runs that playbook.
    type: str
    default: ""
  return_after:
    description:
      - With O(state=stopped), the node starts the units again after so many seconds, unless somebody else has; they
        start at boot as before. 0 leaves them stopped.
    type: float
    default: 0
  timeout:
    description: Seconds that one unit may take.
    type: float
    default: 90
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Stop all keepers, and keep them from starting at boot
  sparkmatrix.cluster.engine_units:
    kind: keeper
    state: stopped
"""

RETURN = r"""
units:
  description: Units that were looked at.
  returned: success
  type: list
  elements: str
  sample: [sparkmatrix-keeper.service]
descriptions:
  description: Files that describe the services of these units.
  returned: success
  type: list
  elements: str
  sample: [/etc/sparkmatrix/engine.json]
services:
  description: Names of the services that this node takes part in; empty where one is alone, which has no name.
  returned: success
  type: list
  elements: str
  sample: [chat]
ray:
  description: Whether ranks of O(service) are in this node's Ray.
  returned: with O(state=stopped) and O(service)
  type: bool
  sample: true
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import units
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Stop, stamp


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "kind": {"type": "str", "choices": ["engine", "keeper"], "required": True},
            "state": {"type": "str", "choices": ["started", "stopped", "absent"], "required": True},
            "keep": {"type": "list", "elements": "str", "default": []},
            "service": {"type": "str", "default": ""},
            "by": {"type": "str", "default": ""},
            "user": {"type": "str", "default": ""},
            "return_after": {"type": "float", "default": 0},
            "timeout": {"type": "float", "default": 90},
        },
        supports_check_mode=True,
    )
    params = module.params
    found = {}
    try:
        if params["state"] == "stopped" and params["service"]:
            found["ray"] = units.over_ray(params["service"])
        outcome = units.bring(
            params["kind"],
            params["state"],
            keep=params["keep"],
            only=params["service"],
            timeout_s=params["timeout"],
            return_s=params["return_after"],
            stop=Stop(stamp(time.time()), params["by"], params["user"]) if params["by"] else None,
            check_mode=module.check_mode,
        )
    except (SparkError, OSError) as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(
        services=[name for name in engine_names.instances() if name],
        changed=outcome.changed,
        units=outcome.units,
        descriptions=units.descriptions(outcome.units),
        diff={"before": outcome.before, "after": outcome.after},
        **found,
    )


if __name__ == "__main__":
    main()
