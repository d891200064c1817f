#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node
short_description: Ask a machine one question of this collection, or let it do one step
version_added: 0.3.0
description:
  - "Internal to this collection: no compatibility promise."
  - C(module_utils/_base/calls.py) says what there is to ask; request and answer of each are the dataclasses of its
    function.
  - What preflight of this run has found as it should be is not asked again, and while a call waits, it is shown how
    far it is.
options:
  call:
    description: The name of the call.
    type: str
    required: true
  request:
    description: Fields of its request.
    type: dict
    default: {}
  secrets:
    description: Fields of its request that nobody may see.
    type: dict
    default: {}
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
- name: Install nftables
  sparkmatrix.cluster.node:
    call: packages
    request:
      names: [nftables]
"""

RETURN = r""" # """

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "call": {"type": "str", "required": True},
            "request": {"type": "dict", "default": {}},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        answer = calls.run(params["call"], {**params["request"], **params["secrets"]}, module.check_mode)
    except (SparkError, OSError) as exc:
        module.fail_json(msg=str(exc))
    for warning in answer.pop("warnings", ()):
        module.warn(warning)
    (module.fail_json if answer.get("failed") else module.exit_json)(**answer)


def carried() -> None:
    """Never called: Ansible sends what it finds imported, and which of it is loaded the call decides."""
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import apply as access  # noqa: F401
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import (  # noqa: F401
        discover,
        fail2ban,
        host_key,
        node,
    )
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import (  # noqa: F401
        from_node,
        image_copy,
        inputs,
        look,
        work,
    )
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._bench import serving  # noqa: F401
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import (  # noqa: F401
        image,
        kept_plan,
        ray_cluster,
        smoke,
        version,
    )
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import (  # noqa: F401
        apply,
        bandwidth,
        neighbor_sockets,
        peermem,
        ping,
        rollback,
        traffic,
    )
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter  # noqa: F401
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import apply as gateway  # noqa: F401
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import (  # noqa: F401
        golden_check,
        units,
        verify,
        wait,
    )
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import packages, secret  # noqa: F401
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl import run  # noqa: F401
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import stabilization, update  # noqa: F401
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import reach  # noqa: F401
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import observed  # noqa: F401
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support import capture  # noqa: F401
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import store  # noqa: F401
    from ansible_collections.sparkmatrix.cluster.plugins.module_utils._web_ui import data  # noqa: F401


if __name__ == "__main__":
    main()
