#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_image
short_description: Have a container image on this node, and say which one it is
version_added: 0.1.0
description:
  - Fetches the image with Docker where it is not there yet. An image that is there is not looked for anywhere else.
  - Fails where Docker or its Compose plug-in cannot be used, or where the image lacks the Ray that is asked for.
options:
  name:
    description: The image, best with its digest.
    type: str
    required: true
  timeout:
    description: How long fetching may take, in seconds.
    type: float
    default: 7200
  ray:
    description:
      - Whether it has to bring Ray 2.52 or newer, which knows tokens. It is asked in a container without network.
    type: bool
    default: false
  patches:
    description: Files of this node that will lie over files of the image, each with C(source) and C(target).
    type: list
    elements: dict
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
- name: Have the image
  sparkmatrix.cluster.engine_image:
    name: nvcr.io/nvidia/vllm:26.10-py3
"""

RETURN = r"""
image:
  description: The image. C(id) is empty in check mode where it would be fetched.
  returned: success
  type: dict
  sample:
    id: sha256:1f0c
    digests: [nvcr.io/nvidia/vllm@sha256:77aa]
    size: 21474836480
    platform: linux/arm64
    ray: 2.60.0
"""

from dataclasses import replace

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _command, _engine_image
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import SparkError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "timeout": {"type": "float", "default": 7200},
            "ray": {"type": "bool", "default": False},
            "patches": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    name, changed = module.params["name"], False
    try:
        _engine_image.check_docker()
        image = _engine_image.inspect(name)
        if not image.id:
            changed = True
            if not module.check_mode:
                image = _engine_image.pull(name, lambda argv: _command.run(argv, module.params["timeout"]))
        if module.params["ray"] and image.id:
            image = replace(image, ray=_engine_image.ray_version(name, module.params["patches"]))
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=changed, image=image.as_dict())


if __name__ == "__main__":
    main()
