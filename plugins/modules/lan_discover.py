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
  - Logs in nowhere and changes nothing; host keys are read (C(ssh-keyscan)) and trusted by nobody.
options:
  where:
    description:
      - A private IPv4 network of up to 1024 addresses, or addresses and names with blanks between them.
      - Empty, mDNS is asked; where no Spark announces itself, the private networks of the machine that asks, too.
    type: str
    default: ''
    aliases: [cidr]
  confirmed:
    description:
      - Fingerprints (C(SHA256:…)) that somebody has read at the machines. C(known_hosts) then has the keys with these
        fingerprints and no others. None, it has all that a machine shows.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
  - sparkmatrix.cluster.attributes.info_module
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Look for machines
  sparkmatrix.cluster.lan_discover:
    where: 192.168.1.0/24
  delegate_to: localhost
"""

RETURN = r"""
candidates:
  description:
    - An entry per address; a machine with several addresses answers at each of them. One that was named and does not
      answer has neither C(banner) nor C(fingerprint).
    - C(interface), where the asking machine heard it, is known by C(avahi-browse) only, C(banner) without it.
      C(likely) tells whether the name is like that of a Spark, C(own) whether the address is of the machine that asks.
      C(fingerprint) and C(kind) are those of the host key that it shows, C(known_hosts) a line for each of its keys.
  returned: success
  type: list
  elements: dict
  sample:
    - address: 192.168.1.20
      name: spark-1a2b
      banner: ''
      interface: enP7s7
      likely: true
      own: false
      fingerprint: SHA256:uNiVztksCsDhcc0u9e8BrqhF5Cnj0eTWIC1U2q3BM1M
      kind: ED25519
      known_hosts: [192.168.1.20 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI...]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.discover import confirmed, find
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError


def main() -> None:
    spec = {
        "where": {"type": "str", "default": "", "aliases": ["cidr"]},
        "confirmed": {"type": "list", "elements": "str", "default": []},
    }
    module = AnsibleModule(argument_spec=spec, supports_check_mode=True)
    try:
        found = find(module.params["where"])
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    known = [one for one in module.params["confirmed"] if one]
    found = [confirmed(one, known) for one in found] if known else found
    module.exit_json(changed=False, candidates=[candidate.as_dict() for candidate in found])


if __name__ == "__main__":
    main()
