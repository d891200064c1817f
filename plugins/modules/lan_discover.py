#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: lan_discover
short_description: List machines on the local network that answer ssh
version_added: 0.1.0
description:
  - Asks mDNS (C(avahi-browse)) for machines that announce ssh, or reads the ssh banner of every address of a network.
  - Logs in nowhere and changes nothing.
options:
  cidr:
    description: A private IPv4 network of up to 1024 addresses. Empty, mDNS is asked.
    type: str
    default: ''
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Look for machines
  sparkmatrix.cluster.lan_discover:
    cidr: 192.168.1.0/24
  delegate_to: localhost
"""

RETURN = r"""
candidates:
  description: Address, name (by mDNS), banner, and whether the name is like that of a Spark.
  returned: success
  type: list
  elements: dict
  sample: [{address: 192.168.1.20, name: spark-1a2b, banner: '', likely: true}]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.discover import addresses, parse_avahi, scan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError


def main() -> None:
    module = AnsibleModule(argument_spec={"cidr": {"type": "str", "default": ""}}, supports_check_mode=True)
    cidr = module.params["cidr"]
    try:
        if cidr:
            found = scan(addresses(cidr))
        else:
            done = run(["avahi-browse", "--parsable", "--resolve", "--terminate", "_ssh._tcp"], 20)
            if done.rc == NOT_FOUND:
                raise SparkError(
                    "avahi-browse is not on this machine", "", "Install avahi-utils, or name the network: cidr"
                )
            found = parse_avahi(done.out)
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(changed=False, candidates=[candidate.as_dict() for candidate in found])


if __name__ == "__main__":
    main()
