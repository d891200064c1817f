#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: artifacts_state
short_description: See which models and images this node has, and remove what nobody needs
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Reads manifests and sizes, no content of models. Asks a hub only with O(ask).
options:
  home:
    description: Directory for downloaded models (HF_HOME of the engine).
    type: path
    required: true
  models:
    description: Models that are wanted.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name at the hub.
        type: str
        required: true
      ref:
        description: Branch, tag or commit; empty for main.
        type: str
        default: ''
  ask:
    description: Ask the hub what a model consists of; nothing is downloaded.
    type: dict
    suboptions:
      name:
        description: Name at the hub.
        type: str
        required: true
      ref:
        description: Branch, tag or commit; empty for main.
        type: str
        default: ''
      environment:
        description: Of the engine, which says which hub it is and where a token is.
        type: dict
        default: {}
      pickle:
        description: Let in weights that can run programs of whoever made them.
        type: bool
        default: false
  source:
    description: See what a directory or an archive of this node has of a model.
    type: dict
    suboptions:
      name:
        description: Name at the hub.
        type: str
        required: true
      ref:
        description: Branch, tag or commit; empty for main.
        type: str
        default: ''
      path:
        description: Where it is.
        type: path
        required: true
      pickle:
        description: Let in weights that can run programs of whoever made them.
        type: bool
        default: false
  manifest:
    description: Return the manifest of this revision.
    type: dict
    suboptions:
      name:
        description: Name at the hub.
        type: str
        required: true
      revision:
        description: The commit.
        type: str
        required: true
  remove:
    description: Revisions to remove, with what no other revision has.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name at the hub.
        type: str
        required: true
      revision:
        description: The commit.
        type: str
        required: true
  images:
    description: Return the container images of this node, too.
    type: bool
    default: false
  remove_images:
    description: Names of container images to remove. One that has no name left goes with its last name.
    type: list
    elements: dict
    default: []
    suboptions:
      id:
        description: Its id.
        type: str
        required: true
      names:
        description: Which of its names go.
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
- name: See what is in the cache
  sparkmatrix.cluster.artifacts_state:
    home: /opt/sparkmatrix/models/huggingface
"""

RETURN = r"""
room:
  description: Bytes of the file system that the cache is on.
  returned: success
  type: dict
  sample: {free: 7000000000, total: 1000000000000}
models:
  description: What is here of O(models).
  returned: success
  type: list
  elements: dict
  sample: [{name: Qwen/Qwen3-8B, ref: '', state: whole, revision: b968826d9c46dd6066d109eabc6255188de91218,
            digest: '', size: 16400000000, there: 16400000000, found: ''}]
kept:
  description: Every revision of every model in the cache, whoever brought it.
  returned: success
  type: list
  elements: dict
referred:
  description: Models of the plan that serves on this node, and of the one before it.
  returned: success
  type: list
  elements: dict
  sample: [{name: Qwen/Qwen3-8B, ref: '', why: serves now}]
plans:
  description: Why a plan of this node cannot be read, so that nobody knows all that it refers to. Mostly empty.
  returned: success
  type: str
  sample: ''
images:
  description: Every container image that Docker has here, whoever brought it.
  returned: with O(images)
  type: list
  elements: dict
docker:
  description: Why Docker does not tell its images. Mostly empty.
  returned: with O(images)
  type: str
  sample: ''
listing:
  description: What the hub, or the source, has.
  returned: with O(ask) or O(source)
  type: dict
  sample: {name: Qwen/Qwen3-8B, revision: b968826d9c46dd6066d109eabc6255188de91218, hub: 'https://huggingface.co',
           files: 15, size: 16400000000, left_out: {}}
manifest:
  description: A manifest as JSON.
  returned: with O(manifest)
  type: str
freed:
  description: Bytes that removing has freed, or would free.
  returned: with O(remove)
  type: int
"""

import json
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import hub, image_list, look
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.cache import Cache
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan


def main() -> None:
    name = {"name": {"type": "str", "required": True}}
    ref = {**name, "ref": {"type": "str", "default": ""}}
    revision = {**name, "revision": {"type": "str", "required": True}}
    asked = {**ref, "environment": {"type": "dict", "default": {}}, "pickle": {"type": "bool", "default": False}}
    sourced = {**ref, "path": {"type": "path", "required": True}, "pickle": {"type": "bool", "default": False}}
    image = {"id": {"type": "str", "required": True}, "names": {"type": "list", "elements": "str", "default": []}}
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "models": {"type": "list", "elements": "dict", "default": [], "options": ref},
            "ask": {"type": "dict", "options": asked},
            "source": {"type": "dict", "options": sourced},
            "manifest": {"type": "dict", "options": revision},
            "remove": {"type": "list", "elements": "dict", "default": [], "options": revision},
            "images": {"type": "bool", "default": False},
            "remove_images": {"type": "list", "elements": "dict", "default": [], "options": image},
        },
        supports_check_mode=True,
    )
    params = module.params
    cache = Cache(params["home"])
    result: dict[str, Any] = {}
    try:
        if params["ask"]:
            listing = hub.ask(params["ask"]["name"], params["ask"]["ref"], params["ask"]["environment"])
            choice = listing.choose(params["ask"]["pickle"])
            sizes = {one.blob: one.size for one in listing.files if one.path in choice.paths}
            result["listing"] = {
                "name": listing.name,
                "revision": listing.revision,
                "hub": listing.hub,
                "files": len(choice.paths),
                "size": sum(sizes.values()),
                "left_out": dict(choice.left_out),
            }
        if params["source"]:
            result["listing"] = look.source(cache, **params["source"])
        if params["manifest"]:
            of = caches.read(cache, params["manifest"]["name"], params["manifest"]["revision"])
            if of is None:
                raise SparkError("there is no manifest of it", params["manifest"]["name"], "Run the layer artifacts")
            result["manifest"] = json.dumps(of.as_dict())
        if params["remove"]:
            result["freed"] = sum(
                caches.remove(cache, one["name"], one["revision"], module.check_mode) for one in params["remove"]
            )
        for one in [] if module.check_mode else params["remove_images"]:
            image_list.remove(one["id"], one["names"])
        kept = kept_plan.read()
        if params["images"]:
            images, result["docker"] = image_list.listed(kept)
            result["images"] = document.plain(images)
        result["room"] = look.room(cache)
        result["models"] = [look.held(cache, one["name"], one["ref"]).as_dict() for one in params["models"]]
        result["kept"] = look.listed(cache)
        result["referred"], result["plans"] = look.referred(kept), kept.refused
    except (SparkError, OSError, ValueError) as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=bool(params["remove"] or params["remove_images"]), **result)


if __name__ == "__main__":
    main()
