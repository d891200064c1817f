#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kept_plan
short_description: Keep the engine plan that a node serves by, and the one before it
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Keeps the node's part of the engine plan in C(/var/lib/sparkmatrix/plan) once the engine has answered, so that an
    upgrade that fails, or that you do not want, can be taken back.
  - In a run of C(playbooks/site.yml) a machine that preflight has found to be exactly so is not asked once more.
options:
  state:
    description:
      - V(present) makes O(plan) the current one; another one that was current becomes the previous one.
      - V(read) only returns what is kept.
      - V(restored) keeps exactly O(plan) and O(previous), as they were read before an upgrade.
      - V(absent) forgets both, and what images have said of themselves.
    type: str
    choices: [present, read, restored, absent]
    default: present
  plan:
    description:
      - The node's part of the plan, as M(sparkmatrix.cluster.engine_plan) returns it.
      - With O(state=read), what the current one is compared with, in place of the previous one.
    type: dict
  change:
    description:
      - With O(state=read), fail where this node could not serve another plan with a way back. V(upgrade) is to O(plan),
        V(rollback) to the previous one.
    type: str
    choices: [upgrade, rollback]
  nodes:
    description: With O(change=rollback), how many nodes the inventory has.
    type: int
    default: 0
  service:
    description: With O(change), the only service that may be served otherwise; empty means any.
    type: str
    default: ''
  previous:
    description: With O(state=restored), the plan before O(plan); empty where there was none.
    type: dict
    default: {}
  images:
    description:
      - With O(state=present), ids of the plan's container images by name, as returned by
        M(sparkmatrix.cluster.engine_image). They are kept in the plan as C(image_ids).
    type: dict
    default: {}
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
- name: Keep the plan that serves
  sparkmatrix.cluster.kept_plan:
    plan: "{{ spark_plan }}"

- name: Read what is kept
  sparkmatrix.cluster.kept_plan:
    state: read
  register: kept
"""

RETURN = r"""
current:
  description: The plan that serves, empty where none is kept.
  returned: with O(state=read)
  type: dict
  sample: {}
previous:
  description: The plan before it, empty where there was none.
  returned: with O(state=read)
  type: dict
  sample: {}
refused:
  description: Why a kept plan cannot be used, where it was kept by another release or is damaged; else empty.
  returned: with O(state=read)
  type: str
  sample: ''
differing:
  description: Names of the services that would be served otherwise here by O(plan), or by the previous plan.
  returned: with O(state=read)
  type: list
  elements: str
  sample: [chat]
services:
  description: Names of all services here by the current plan, and by O(plan) or the previous one; one alone has none.
  returned: with O(state=read)
  type: list
  elements: str
  sample: [chat, embedding]
"""

from dataclasses import replace

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image, kept_plan, way_back
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document as engine_plan


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "read", "restored", "absent"], "default": "present"},
            "plan": {"type": "dict"},
            "change": {"type": "str", "choices": [way_back.UPGRADE, way_back.ROLLBACK]},
            "nodes": {"type": "int", "default": 0},
            "service": {"type": "str", "default": ""},
            "previous": {"type": "dict", "default": {}},
            "images": {"type": "dict", "default": {}},
        },
        required_if=[("state", "present", ("plan",)), ("state", "restored", ("plan",))],
        supports_check_mode=True,
    )
    state = module.params["state"]
    try:
        if state == "read":
            kept = kept_plan.read()
            both = kept.current, engine_plan.load(module.params["plan"]) if module.params["plan"] else kept.previous
            if module.params["change"]:
                way_back.check(module.params["change"], kept, both[1], module.params["nodes"], module.params["service"])
            module.exit_json(
                changed=False,
                current=kept.current.as_dict() if kept.current else {},
                previous=kept.previous.as_dict() if kept.previous else {},
                refused=kept.refused,
                differing=kept_plan.differing(*both),
                services=kept_plan.services(*both),
            )
        if state == "absent":
            gone = [one.forget(check_mode=module.check_mode) for one in (kept_plan, image)]
            module.exit_json(changed=any(gone))
        if state == "restored":
            previous = module.params["previous"]
            plans = engine_plan.load(module.params["plan"]), engine_plan.load(previous) if previous else None
            module.exit_json(changed=kept_plan.put(*plans, check_mode=module.check_mode))
        plan = engine_plan.load(module.params["plan"])
        if module.params["images"]:
            plan = replace(plan, image_ids=module.params["images"])
        module.exit_json(changed=kept_plan.keep(plan, check_mode=module.check_mode))
    except SparkError as exc:
        module.fail_json(msg=str(exc))


if __name__ == "__main__":
    main()
