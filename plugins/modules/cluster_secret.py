#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_secret
short_description: Keep a secret that all nodes share in a file of mode 0600
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Makes a secret where there is none, or places the one that is given. It lives in a file of its own, mode C(0600).
  - The usual way is one call on the head, and one on each worker with the head's RV(secret). Both tasks need C(no_log).
options:
  name:
    description: Name of the secret, and of the set of files that it is placed as.
    type: str
    required: true
  path:
    description: The file.
    type: path
    required: true
  variable:
    description: Write C(<variable>="<secret>") for a service manager to read, instead of the bare secret.
    type: str
  value:
    description:
      - The secret. When it is not given, the one in the file stays, and one is made where there is no file.
      - A file that is empty or damaged is refused then, since a new secret would lock out whoever has the old one.
    type: str
  required:
    description: Fail instead of making a secret.
    type: bool
    default: false
  owner:
    description: Owner of the file.
    type: str
    default: root
  group:
    description: Group of the file.
    type: str
    default: root
  state:
    description:
      - Whether the secret should be there. V(absent) brings back what was at O(path) before. V(read) only looks, at one
        of another layer, and returns no more than its fingerprint.
    type: str
    choices: [present, absent, read]
    default: present
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Shows that the file changes, never the secret.
  idempotent:
    support: full
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Make the token on the head
  sparkmatrix.cluster.cluster_secret:
    name: ray_token
    path: /etc/sparkmatrix/ray.token
    owner: sparkmatrix
    group: sparkmatrix
  register: token
  no_log: true
  when: inventory_hostname == 'spark1'

- name: Copy the token to the workers
  sparkmatrix.cluster.cluster_secret:
    name: ray_token
    path: /etc/sparkmatrix/ray.token
    value: "{{ hostvars['spark1'].token.secret }}"
    required: true
    owner: sparkmatrix
    group: sparkmatrix
  no_log: true
  when: inventory_hostname != 'spark1'
"""

RETURN = r"""
secret:
  description: The secret, for the tasks of other nodes. Empty in check mode where one would be made.
  returned: success with O(state=present)
  type: str
replaced:
  description: Whether a new one was made in place of one that was here before, and whose file is gone.
  returned: success with O(state=present)
  type: bool
  sample: false
fingerprint:
  description: Changes with the secret and does not tell it, for hashes of configurations. Empty where there is none.
  returned: success with O(state=present) or O(state=read)
  type: str
  sample: 5d2c0a3fb1e7
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import secret as managed_secret


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "path": {"type": "path", "required": True},
            "variable": {"type": "str"},
            "value": {"type": "str", "no_log": True},
            "required": {"type": "bool", "default": False},
            "owner": {"type": "str", "default": "root"},
            "group": {"type": "str", "default": "root"},
            "state": {"type": "str", "choices": ["present", "absent", "read"], "default": "present"},
        },
        supports_check_mode=True,
    )
    params = module.params
    wanted = managed_secret.Wanted(
        name=params["name"],
        path=params["path"],
        variable=params["variable"] or "",
        value=params["value"] or "",
        owner=params["owner"],
        group=params["group"],
        required=params["required"],
    )
    act = {"absent": managed_secret.remove, "read": managed_secret.read}.get(params["state"], managed_secret.ensure)
    try:
        outcome = act(wanted, check_mode=module.check_mode)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    for warning in outcome.result.warnings:
        module.warn(warning)
    result = {"changed": outcome.result.changed, "diff": outcome.result.diff}
    if params["state"] == "present":
        result.update(secret=outcome.secret, replaced=outcome.replaced)
    if params["state"] != "absent":
        result.update(fingerprint=outcome.fingerprint)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
