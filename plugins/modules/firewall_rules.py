#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: firewall_rules
short_description: Give a layer exactly its ufw rules
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Adds the rules of a layer that are missing and removes those that it no longer wants. Rules of a layer carry the
    comment C(sparkmatrix:<layer>); all others are left alone.
  - A rule that somebody else has already placed counts as there, and stays theirs.
  - Places rules only where the role C(access) has switched the firewall on.
options:
  layer:
    description: Name of the layer.
    type: str
    required: true
  rules:
    description: All rules of the layer, as C(ufw show added) prints them without C(ufw) and comment.
    type: list
    elements: str
    default: []
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
- name: Let the peers in
  sparkmatrix.cluster.firewall_rules:
    layer: ray
    rules:
      - allow from 192.0.2.2
      - allow from 192.0.2.3

- name: Remove all rules of a layer
  sparkmatrix.cluster.firewall_rules:
    layer: ray
"""

RETURN = r"""
changes:
  description: Rules that were added and removed, or in check mode would be.
  returned: success
  type: list
  elements: str
  sample: ["+ ufw allow from 192.0.2.2 comment 'sparkmatrix:ray'"]
previous:
  description: The rules that the layer had before.
  returned: success
  type: list
  elements: str
  sample: ["allow from 192.0.2.3"]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.apply import layer_rules
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "layer": {"type": "str", "required": True},
            "rules": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        outcome = layer_rules(Machine(), params["layer"], params["rules"], check_mode=module.check_mode)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=outcome.changed, changes=outcome.changes, previous=outcome.previous, diff=outcome.diff)


if __name__ == "__main__":
    main()
