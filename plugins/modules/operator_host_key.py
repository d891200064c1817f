#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: operator_host_key
short_description: Refuse a machine whose host key the operator does not know, unless it was confirmed
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Runs on the controller. Lets ssh judge the host key that a machine shows, with the operator's own configuration, and
    logs in nowhere.
  - Another key, or the first one, is refused with its fingerprint. It is written to the operator's known hosts only
    when its fingerprint is among O(confirmed).
  - A machine that does not answer is left to whoever connects next.
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
  name:
    description: The machine in messages. Empty, O(host).
    type: str
    default: ''
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
  description: V(known), or V(unreachable).
  returned: success
  type: str
  sample: known
fingerprint:
  description: Of a key that was confirmed.
  returned: success
  type: str
  sample: SHA256:uNiVztksCsDhcc0u9e8BrqhF5Cnj0eTWIC1U2q3BM1M
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.host_key import Target, judge, refusal, split
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "host": {"type": "str", "required": True},
            "port": {"type": "str", "default": ""},
            "user": {"type": "str", "default": ""},
            "arguments": {"type": "list", "elements": "str", "default": []},
            "name": {"type": "str", "default": ""},
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
    if found.state in ("changed", "unknown") and not found.changed:
        module.fail_json(msg=str(refusal(params["name"] or params["host"], found)))
    module.exit_json(changed=found.changed, state=found.state, fingerprint=found.fingerprint)


if __name__ == "__main__":
    main()
