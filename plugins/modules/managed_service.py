#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: managed_service
short_description: Run a systemd unit with exactly the wanted configuration
version_added: 0.1.0
description:
  - Starts, restarts or stops a systemd unit. Whether a restart is due is read from the running process, not from
    whether a file was changed in this run, so a run that died between writing a file and restarting the service heals
    on the next one.
  - The unit file carries C(Environment=SPARKMATRIX_CONFIG_HASH=<hash>). The unit is restarted when the main process has
    another hash than O(config_hash).
  - Waits until the unit is up. When it fails, the message holds the last lines of its journal.
  - In a run of C(playbooks/site.yml) a machine that preflight has found to be exactly so is not asked once more.
options:
  name:
    description: The unit, with its ending.
    type: str
    required: true
  state:
    description:
      - V(started) and V(stopped) as they say.
      - V(absent) stops and disables the unit. A unit that does not exist is nothing to do.
    type: str
    choices: [started, stopped, absent]
    default: started
  enabled:
    description: Whether the unit starts at boot. Left alone when not given. It is enabled only after it has started.
    type: bool
  config_hash:
    description: Hash of the configuration that the process has to run with. Without it any running process will do.
    type: str
  start_timeout:
    description: How long to wait for the unit to be up, or to be stopped, in seconds.
    type: float
    default: 90
  return_after:
    description:
      - With O(state=stopped), the unit comes back by itself after so many seconds, unless another call for it comes
        before. So a run that dies in between leaves nothing stopped for good. V(0) leaves it stopped.
    type: float
    default: 0
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
notes:
  - In check mode a unit that does not exist yet counts as one that would be started.
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Run the service
  sparkmatrix.cluster.managed_service:
    name: sparkmatrix-ray.service
    enabled: true
    config_hash: 0f3a9c52

- name: Stop and disable the service
  sparkmatrix.cluster.managed_service:
    name: sparkmatrix-ray.service
    state: absent
"""

RETURN = r"""
action:
  description: What was done, or in check mode would be.
  returned: success
  type: str
  choices: [none, started, restarted, stopped]
  sample: restarted
due:
  description: Whether anything had to be done, whatever C(changed_when) makes of it.
  returned: success
  type: bool
  sample: true
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import Service, Wanted


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["started", "stopped", "absent"], "default": "started"},
            "enabled": {"type": "bool"},
            "config_hash": {"type": "str"},
            "start_timeout": {"type": "float", "default": 90},
            "return_after": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    params = module.params
    wanted = Wanted(
        name=params["name"],
        state=params["state"],
        enabled=params["enabled"],
        config_hash=params["config_hash"] or "",
        start_timeout_s=params["start_timeout"],
        return_s=params["return_after"],
    )
    try:
        result = Service(wanted, Machine(), check_mode=module.check_mode).run()
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=result.changed, due=result.changed, action=result.action, diff=result.diff)


if __name__ == "__main__":
    main()
