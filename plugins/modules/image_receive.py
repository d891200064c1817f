#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_receive
short_description: Get container images from another node
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Lets Docker fetch images that another node offers (M(sparkmatrix.cluster.image_offer)). To Docker that node is a
    registry on loopback; its configuration is not changed, and nothing of that stays.
options:
  receipts:
    description: One for each image.
    type: list
    elements: dict
    required: true
    suboptions:
      image:
        description: Its name.
        type: str
        required: true
      source:
        description: The node that offers it, for messages.
        type: str
        required: true
      addresses:
        description: Addresses of that node. Connections are spread over them.
        type: list
        elements: str
        required: true
  token:
    description: One-time token of this copy.
    type: str
    required: true
  offered:
    description: By node, the digests of what it offers, as M(sparkmatrix.cluster.image_offer) has returned them.
    type: dict
    default: {}
  timeout:
    description: How long one of them may take, in seconds.
    type: float
    default: 7200
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
- name: Get an image
  sparkmatrix.cluster.image_receive:
    receipts:
      - image: nvcr.io/nvidia/vllm:26.10-py3
        source: spark1
        addresses: [10.10.0.1, 10.10.1.1]
    token: "{{ token_of_this_copy }}"
    offered:
      spark1:
        nvcr.io/nvidia/vllm:26.10-py3: sha256:77aa
"""

RETURN = r"""
received:
  description: Images that were not there.
  returned: success
  type: list
  sample: [nvcr.io/nvidia/vllm:26.10-py3]
"""

from functools import partial

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import image_copy
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import command, json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError


def main() -> None:
    receipt = {
        "image": {"type": "str", "required": True},
        "source": {"type": "str", "required": True},
        "addresses": {"type": "list", "elements": "str", "required": True},
    }
    module = AnsibleModule(
        argument_spec={
            "receipts": {"type": "list", "elements": "dict", "required": True, "options": receipt},
            "token": {"type": "str", "required": True, "no_log": True},
            "offered": {"type": "dict", "default": {}},
            "timeout": {"type": "float", "default": 7200},
        },
        supports_check_mode=True,
    )
    params, received = module.params, []
    run = partial(command.run, timeout_s=params["timeout"])
    try:
        for wanted in params["receipts"]:
            name, source = wanted["image"], wanted["source"]
            digest = str(json_text.entry(params["offered"], source).get(name) or "")
            one = image_copy.Receipt(name, source, wanted["addresses"], digest)
            if module.check_mode or image_copy.receive(one, params["token"], run):
                received.append(name)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=bool(received), received=received)


if __name__ == "__main__":
    main()
