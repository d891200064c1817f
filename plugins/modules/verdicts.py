#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verdicts
short_description: Keep the verdicts of runs on the head
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Keeps what runs of verify, doctor and benchmark have measured and found in C(/var/lib/sparkmatrix/verdicts), the
    newest 50 of them.
options:
  state:
    description:
      - V(present) writes O(run) down. What was measured is no change of the machine, so the task is never C(changed).
      - V(read) only returns what is kept.
      - V(absent) forgets all of it.
    type: str
    choices: [present, read, absent]
    default: present
  run:
    description: The document of a run (C(docs/verdicts.schema.json)).
    type: dict
  most:
    description: With O(state=read), how many runs are wanted.
    type: int
    default: 50
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
- name: Read the last runs
  sparkmatrix.cluster.verdicts:
    state: read
    most: 10
  register: kept
"""

RETURN = r"""
path:
  description: Where the run is kept.
  returned: with O(state=present), outside of check mode
  type: str
  sample: /var/lib/sparkmatrix/verdicts/20261123T073000Z-verify.json
runs:
  description: Documents of the newest runs, the newest first.
  returned: with O(state=read)
  type: list
  elements: dict
refused:
  description: What is wrong with files that cannot be read.
  returned: with O(state=read)
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import document, store


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "read", "absent"], "default": "present"},
            "run": {"type": "dict"},
            "most": {"type": "int", "default": store.KEPT},
        },
        required_if=[("state", "present", ("run",))],
        supports_check_mode=True,
    )
    try:
        if module.params["state"] == "absent":
            module.exit_json(changed=store.forget(check_mode=module.check_mode))
        if module.params["state"] == "read":
            runs, refused = store.read(module.params["most"])
            module.exit_json(changed=False, runs=[run.as_dict() for run in runs], refused=refused)
        run = document.load(module.params["run"], "verdicts")
        kept = {} if module.check_mode else {"path": store.keep(run)}
        module.exit_json(changed=False, **kept)
    except SparkError as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
