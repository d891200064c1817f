#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: operator_host_key
short_description: Ask ssh whether the operator knows the host key of a machine, and take over one that was confirmed
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Runs on the controller. Lets ssh judge the host key that a machine shows, with the operator's own configuration, and
    logs in nowhere.
  - Another key, or the first one, is written to the operator's known hosts only when its fingerprint is among
    O(confirmed). Whoever calls it refuses the others, and what does not answer.
options:
  host:
    description: Name or address for ssh.
    type: str
    required: true
  port:
    description: Port of sshd. Empty, what the ssh configuration says.
    type: str
    default: ''
  user:
    description: The user, as far as the ssh configuration depends on it.
    type: str
    default: ''
  arguments:
    description: Arguments for ssh as Ansible has them, for example C(ansible_ssh_common_args).
    type: list
    elements: str
    default: []
  confirmed:
    description: Fingerprints (C(SHA256:…)) that somebody has read at the machine.
    type: list
    elements: str
    default: []
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
- name: Check the host key
  sparkmatrix.cluster.operator_host_key:
    host: "{{ ansible_host | default(inventory_hostname) }}"
    confirmed: "{{ node_fingerprint | default([]) }}"
  delegate_to: localhost
"""

RETURN = r"""
state:
  description: V(known), V(unknown), V(changed) where another one is known, or V(unreachable).
  returned: success
  type: str
  sample: known
fingerprint:
  description: Of the key that the machine shows, where it is not known or was confirmed.
  returned: success
  type: str
  sample: SHA256:uNiVztksCsDhcc0u9e8BrqhF5Cnj0eTWIC1U2q3BM1M
kind:
  description: Of that key.
  returned: success
  type: str
  sample: ED25519
complaint:
  description: What ssh says.
  returned: success
  type: str
forget:
  description: The command that removes the key that is known, where the machine shows another one.
  returned: success
  type: str
  sample: ssh-keygen -R 192.168.1.20
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.host_key import Target, judge, split
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "port": {"type": "str", "default": ""},
            "user": {"type": "str", "default": ""},
            "arguments": {"type": "list", "elements": "str", "default": []},
            "confirmed": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    params = module.params
    target = Target(params["host"], params["port"], params["user"], split(*params["arguments"]))
    try:
        found = judge(target, params["confirmed"], check_mode=module.check_mode)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(**found.as_dict())


if __name__ == "__main__":
    main()
