#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: artifacts_work
short_description: Download, copy or check a model on this node, and wait for it
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Starts a transient systemd unit, which goes on when this computer is lost, and waits for its end. How far it is, is
    shown meanwhile; on the node C(sudo sparkmatrix artifacts status) tells at any time.
  - A copy needs all its nodes at once, so it is started on all of them before anybody waits.
options:
  state:
    description: What to do.
    type: str
    choices: [started, waited]
    default: started
  work:
    description: What is to be done, as the planners of the layer artifacts say it.
    type: dict
    default: {}
  manifest:
    description: Manifest of the model as JSON, for a copy.
    type: str
    default: ''
  token:
    description: One-time token of a copy.
    type: str
    default: ''
  certificate:
    description: Key and certificate that all nodes of a copy share, as PEM. Without it the copy is not encrypted.
    type: str
    default: ''
  id:
    description: What to wait for.
    type: str
    default: ''
  part:
    description: Return RV(waiting) after this many seconds. Set by the controller.
    type: float
    default: 10
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: none
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Check every byte of a model
  sparkmatrix.cluster.artifacts_work:
    work:
      kind: check
      home: /opt/sparkmatrix/models/huggingface
      name: Qwen/Qwen3-8B
      revision: b968826d9c46dd6066d109eabc6255188de91218
      full: true
  register: started

- name: Wait for it
  sparkmatrix.cluster.artifacts_work:
    state: waited
    id: "{{ started.id }}"
"""

RETURN = r"""
id:
  description: What to wait for.
  returned: with O(state=started)
  type: str
waiting:
  description: How far it is.
  returned: with O(state=waited), while it goes on
  type: dict
  sample: {words: 'copying Qwen/Qwen3-8B: 7.1 of 16.4 GB, 1.1 GB/s, 8 s left', notes: []}
result:
  description: What was done.
  returned: with O(state=waited), at its end
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import work as works
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["started", "waited"], "default": "started"},
            "work": {"type": "dict", "default": {}},
            "manifest": {"type": "str", "default": ""},
            "token": {"type": "str", "default": "", "no_log": True},
            "certificate": {"type": "str", "default": "", "no_log": True},
            "id": {"type": "str", "default": ""},
            "part": {"type": "float", "default": 10},
        },
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode:
        module.exit_json(changed=True, id="", result=document.plain(works.Result()))
    try:
        if params["state"] == "started":
            wanted = {**params["work"], **{name: params[name] for name in ("manifest", "token", "certificate")}}
            made = works.start(Machine(), works.parse(wanted))
            module.exit_json(changed=True, id=made)
        now = works.wait(Machine(), params["id"], params["part"])
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    notes = list(now.notes)
    if not now.ended:
        module.exit_json(changed=False, waiting={"words": now.words, "notes": notes})
    module.exit_json(changed=now.result.changed, result=document.plain(now.result), notes=notes)


if __name__ == "__main__":
    main()
