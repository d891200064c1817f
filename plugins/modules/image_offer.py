#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: image_offer
short_description: Fetch container images to this node, and offer them to the others
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Fetches images with Docker, from their registries or from an archive of this node, or builds them.
  - Offers images to other nodes as a registry that can only be read, from Docker's store or from the archive, without a
    copy. A transient unit does it, until O(state=absent) or until nobody has asked for a quarter of an hour.
options:
  fetch:
    description: Images that have to be there. One that Docker has is not fetched.
    type: list
    elements: str
    default: []
  images:
    description: Images to offer, those of O(fetch) among them. Empty means that none are.
    type: list
    elements: str
    default: []
  addresses:
    description: Addresses of this node, on which they are offered.
    type: list
    elements: str
    default: []
  allowed:
    description: Addresses of the nodes that may read them.
    type: list
    elements: str
    default: []
  token:
    description: One-time token of this copy, of 32 characters at least, which whoever reads them has to have.
    type: str
    default: ''
  archive:
    description: A file of this node with images (OCI archive, or what C(docker save) writes). Empty means registries.
    type: str
    default: ''
  builds:
    description: Those of O(fetch) that are built, by name, with C(dockerfile) (its text) and C(arguments).
    type: dict
    default: {}
  login:
    description: A directory of this node with a C(config.json) of Docker, for registries that ask for a password.
    type: str
    default: ''
  timeout:
    description: How long fetching one of them may take, in seconds.
    type: float
    default: 7200
  state:
    description: V(absent) ends the offer.
    type: str
    choices: [present, absent]
    default: present
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
- name: Fetch an image, for two nodes
  sparkmatrix.cluster.image_offer:
    fetch: [nvcr.io/nvidia/vllm:26.10-py3]
    images: [nvcr.io/nvidia/vllm:26.10-py3]
    addresses: [10.10.0.1]
    allowed: [10.10.0.2]
    token: "{{ token_of_this_copy }}"
"""

RETURN = r"""
fetched:
  description:
    - Images that Docker has now and did not have.
    - One from an OCI archive comes by M(sparkmatrix.cluster.image_receive).
  returned: success
  type: list
  sample: [nvcr.io/nvidia/vllm:26.10-py3]
ids:
  description: Ids of those of O(fetch) that Docker has now.
  returned: success
  type: dict
  sample:
    nvcr.io/nvidia/vllm:26.10-py3: sha256:1f0c
offered:
  description: Digests of O(images), as they are offered.
  returned: success
  type: dict
  sample:
    nvcr.io/nvidia/vllm:26.10-py3: sha256:77aa
"""

from functools import partial

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import image_blobs, image_copy
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import command, ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image as engine_image


def main() -> None:
    names = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            **dict.fromkeys(("fetch", "images", "addresses", "allowed"), names),
            "builds": {"type": "dict", "default": {}},
            "token": {"type": "str", "default": "", "no_log": True},
            "archive": {"type": "str", "default": ""},
            "login": {"type": "str", "default": ""},
            "timeout": {"type": "float", "default": 7200},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    params = module.params
    run = partial(command.run, timeout_s=params["timeout"])
    fetched, archived, offers = [], {}, {}
    try:
        if module.check_mode:
            there = ids(params["fetch"])
            fetched = [name for name in params["fetch"] if name not in there]
            module.exit_json(changed=bool(fetched), fetched=fetched, ids=there, offered={})
        if params["state"] == "absent":
            image_copy.withdraw(run)
            module.exit_json(changed=False, fetched=[], ids={}, offered={})
        for name in params["fetch"]:
            build = params["builds"].get(name)
            offered, changed = image_copy.obtain(name, params["archive"], params["login"], run, build)
            if offered:
                archived[name] = offered
            if changed:
                fetched.append(name)
        if params["images"]:
            to = image_blobs.Offer(ports.IMAGES, *(params[name] for name in ("token", "addresses", "allowed")))
            offers = image_copy.offer(params["images"], to, archived, run, login=params["login"])
        there = ids(params["fetch"])
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=bool(fetched), fetched=fetched, ids=there, offered=offers)


def ids(names: list[str]) -> dict[str, str]:
    found = {name: engine_image.find(name).id for name in names}
    return {name: one for name, one in found.items() if one}


if __name__ == "__main__":
    main()
