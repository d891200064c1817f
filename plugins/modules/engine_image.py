#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_image
short_description: Look which container images this node has, and what is in them
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Fetches nothing (the calls image_fetch and image_receive); an image that has come
    with a digest gets the tag by which the nodes name it.
  - Fails where Docker or its Compose plug-in cannot be used, where an image lacks the Ray that is asked for, or where a
    container sees no GPU.
options:
  images:
    description: One for each service in a container.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The image, best with its digest.
        type: str
        required: true
      ray:
        description:
          - Whether a Ray is started from it. The image is asked for it then, in a container without network, once for
            each id. It has to be 2.52 or newer, which knows tokens.
        type: bool
        default: false
      nccl:
        description:
          - Whether ranks of several nodes start from it. The image is asked for its NCCL then, once for each id.
        type: bool
        default: false
      gpus:
        description:
          - How ranks are given the GPU. Whether a container sees one is tried then, once for each id and driver.
        type: str
        choices: [all, cdi, none]
        default: none
      patches:
        description: Files of this node that will lie over files of the image, each with C(source) and C(target).
        type: list
        elements: dict
        default: []
  ids:
    description:
      - Ids that images had when a plan served, by name. One that is still on the node is given its name back, in case
        the name means another image by now.
    type: dict
    default: {}
  archive:
    description: A file of this node from which images may come.
    type: str
    default: ''
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
- name: Look for the image
  sparkmatrix.cluster.engine_image:
    images:
      - name: nvcr.io/nvidia/vllm:26.10-py3
"""

RETURN = r"""
images:
  description: The images by their names. C(id) is empty where one is not there.
  returned: success
  type: dict
  sample:
    nvcr.io/nvidia/vllm:26.10-py3:
      id: sha256:1f0c
      content: content:9e41
      digests: [nvcr.io/nvidia/vllm@sha256:77aa]
      size: 21474836480
      platform: linux/arm64
      ray: 2.60.0
      nccl: 2.30.7
ids:
  description: Their ids alone.
  returned: success
  type: dict
  sample:
    nvcr.io/nvidia/vllm:26.10-py3: sha256:1f0c
nccl:
  description: Versions of NCCL alone, where an image was asked.
  returned: success
  type: dict
  sample:
    nvcr.io/nvidia/vllm:26.10-py3: 2.30.7
platforms:
  description: For which platform each of them is.
  returned: success
  type: dict
  sample:
    nvcr.io/nvidia/vllm:26.10-py3: linux/arm64
platform:
  description: That of the node.
  returned: success
  type: str
  sample: linux/arm64
archive:
  description: Whether the archive is on this node.
  returned: success
  type: bool
  sample: false
contents:
  description: What is the same for the same image on every node, whichever store Docker keeps it in.
  returned: success
  type: dict
  sample:
    nvcr.io/nvidia/vllm:26.10-py3: content:9e41
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image as engine_image


def main() -> None:
    one = {
        "name": {"type": "str", "required": True},
        "ray": {"type": "bool", "default": False},
        "nccl": {"type": "bool", "default": False},
        "gpus": {"type": "str", "choices": ["all", "cdi", "none"], "default": "none"},
        "patches": {"type": "list", "elements": "dict", "default": []},
    }
    module = AnsibleModule(
        argument_spec={
            "images": {"type": "list", "elements": "dict", "required": True, "options": one},
            "ids": {"type": "dict", "default": {}},
            "archive": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    params, changed = module.params, False
    images = {}

    def asked(image: engine_image.Image, question: str, ask: Callable[[], str], changing: bool = False) -> str:
        """Files of the node that lie over those of the image may change what it says."""
        if changing:
            return ask()
        answer = engine_image.remembered(
            image.id, question, lambda: {"version": ask()}, check_mode=bool(module.check_mode)
        )
        return str(answer.get("version") or "")

    def ray(wanted: Mapping[str, Any]) -> str:
        return engine_image.ray_version(wanted["name"], wanted["patches"])

    try:
        platform = engine_image.check_docker()
        driver = engine_image.driver()
        for wanted in params["images"]:
            name = wanted["name"]
            image, before = engine_image.find(name), params["ids"].get(name) or ""
            if before not in ("", image.id) and engine_image.inspect(before).id:
                changed = True
                if not module.check_mode:
                    image = engine_image.give_back(name, before)
            elif image.id and not engine_image.inspect(engine_image.local_name(name)).id:
                changed = True
                if not module.check_mode:
                    image = engine_image.give_back(name, image.id)
            if not image.id or (platform and image.platform != platform):
                images[name] = image.as_dict()
                continue  # of another platform, no program of it starts
            engine_image.note(image.id, name, check_mode=bool(module.check_mode))
            if wanted["gpus"] != "none":
                asked(image, f"gpu {wanted['gpus']} {driver}", partial(engine_image.check_gpu, name, wanted["gpus"]))
            if wanted["ray"]:
                image = replace(image, ray=asked(image, "ray", partial(ray, wanted), bool(wanted["patches"])))
            if wanted["nccl"]:
                image = replace(image, nccl=asked(image, "nccl", partial(engine_image.nccl_version, name)))
            images[name] = image.as_dict()
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(
        changed=changed,
        images=images,
        ids={name: image["id"] for name, image in images.items()},
        nccl={name: image["nccl"] for name, image in images.items() if image["nccl"]},
        platforms={name: image["platform"] for name, image in images.items()},
        platform=platform,
        archive=bool(params["archive"]) and Path(params["archive"]).is_file(),
        contents={name: image["content"] for name, image in images.items()},
    )


if __name__ == "__main__":
    main()
