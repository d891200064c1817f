#!/usr/bin/python
# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway
short_description: Run the API gateway of the inference engine
version_added: 0.1.0
description:
  - "Internal to this collection: no compatibility promise."
  - Runs an nginx of its own, C(sparkmatrix-gateway.service), that lets clients with a key reach a few paths of the
    engines. The distribution's C(nginx.service) and its configuration are not touched.
  - The settings are checked on the controller, which renders the files; everything wrong is reported at once.
  - The configuration is tested on the node before it replaces the one that runs, then loaded without ending answers
    that are being written. One that does not come up is taken back.
  - Keys that are not given are made on the node and kept in C(/etc/sparkmatrix/gateway/keys), mode C(0600). The key of
    the engine is read on the node; clients never see it.
options:
  state:
    description: Whether there is a gateway. V(absent) takes keys and configuration away too.
    type: str
    choices: [present, absent]
    default: present
  listen:
    description: Addresses of this node, or interfaces, at which clients are served.
    type: list
    elements: str
    default: []
  port:
    description: TCP port at these addresses.
    type: int
    default: 8443
  local_port:
    description: TCP port on 127.0.0.1, without TLS, for the cluster's own probes.
    type: int
    default: 8081
  engines:
    description:
      - The engines that requests are led to. Required for O(state=present).
      - With one, requests pass as they are. With several the model in each request decides, C(/v1/models) lists the
        models of all, and nginx needs its JavaScript module (C(libnginx-mod-http-js)).
    type: list
    elements: dict
    suboptions:
      name:
        description: Name of the service.
        type: str
        required: true
      model:
        description: Name that its model is served under.
        type: str
        required: true
      host:
        description: Address that it listens on, as this node reaches it.
        type: str
        default: 127.0.0.1
      port:
        description: Port that it listens on.
        type: int
        default: 8000
      key:
        description: Whether it asks for a key.
        type: bool
        default: true
      key_file:
        description: File on this node with its key.
        type: path
        default: /etc/sparkmatrix/engine-key.env
      task:
        description: What it is for. The cluster's own probe asks the first engine for that.
        type: str
        choices: [generate, embed, rank]
        default: generate
  keys:
    description: Who may come in.
    type: list
    elements: dict
    default: [{name: default}]
    suboptions:
      name:
        description: Name of the client; it stands in the log, and two keys with two names make a rotation.
        type: str
        required: true
      key:
        description: The key. One is made on the node where it is not given.
        type: str
  paths:
    description: Paths that are open, exactly as written, below C(/v1/).
    type: list
    elements: str
    default: [/v1/models, /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/rerank, /v1/score, /v1/responses]
  max_request_mib:
    description: Largest request, in MiB.
    type: int
    default: 8
  requests_per_minute:
    description: Requests of one key in a minute; 0 is no limit.
    type: int
    default: 600
  burst:
    description: Requests of one key that may come at once before O(requests_per_minute) counts.
    type: int
    default: 100
  concurrent_requests:
    description: Requests of one key that may be answered at the same time; 0 is no limit.
    type: int
    default: 64
  keys_per_address:
    description: One address gets as much as this many keys, whatever keys it shows; 0 is no limit. Loopback has none.
    type: int
    default: 4
  memory_mib:
    description: MiB that requests of more than 1 MB take at most, all together; one key gets half of it.
    type: int
    default: 1024
  timeout_s:
    description: How long the engine may send nothing, in seconds.
    type: int
    default: 3600
  tls:
    description:
      - V(off), a certificate of an authority made on this node (V(own_ca)), or given V(files), which are taken up again
        whenever they change.
    type: str
    choices: ['off', own_ca, files]
    default: own_ca
  tls_names:
    description: More names and addresses for the certificate of V(own_ca).
    type: list
    elements: str
    default: []
  tls_certificate:
    description: File on this node with certificate and chain, for O(tls=files).
    type: str
    default: ""
  tls_certificate_key:
    description: File on this node with the private key, for O(tls=files).
    type: str
    default: ""
  allow_from:
    description: Addresses and networks that may come in, and that RV(firewall) is for; all when empty.
    type: list
    elements: str
    default: []
  limit_nofile:
    description: Open files of the service.
    type: int
    default: 16384
  rendered:
    description: Texts by their paths on the node; made by the action plugin of this name, not for you.
    type: dict
extends_documentation_fragment:
  - sparkmatrix.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
    details:
      - Shows that a file with a secret changes, never the secret.
  idempotent:
    support: full
author:
  - The sparkmatrix.cluster authors (@sparkmatrix)
"""

EXAMPLES = r"""
- name: Open the API on the management network
  sparkmatrix.cluster.gateway:
    listen: [enP7s7]
    engines:
      - name: chat
        model: qwen3-8b
    keys:
      - name: alice
      - name: bob
        key: "{{ vault_bob_key }}"

- name: Lead to two services by the model in each request
  sparkmatrix.cluster.gateway:
    listen: [enP7s7]
    engines:
      - name: chat
        model: qwen3-8b
      - name: embedding
        model: bge-m3
        host: 10.10.0.2
        port: 8001

- name: Take it away
  sparkmatrix.cluster.gateway:
    state: absent
"""

RETURN = r"""
action:
  description: What was done, or in check mode would be.
  returned: success
  type: str
  choices: [none, started, restarted, reloaded, stopped]
  sample: reloaded
endpoints:
  description: Where clients reach the API.
  returned: success with O(state=present)
  type: list
  elements: str
  sample: ["https://192.168.1.10:8443/v1"]
firewall:
  description: Rules that let clients in, for M(sparkmatrix.cluster.firewall_rules).
  returned: success with O(state=present)
  type: list
  elements: str
  sample: [allow to 192.168.1.10 port 8443 proto tcp]
filter:
  description: Rules for M(sparkmatrix.cluster.port_filter), which the action plugin of this name makes.
  returned: success with O(state=present)
  type: str
sets:
  description: File sets of the role gateway that were on the node before.
  returned: success with O(state=absent)
  type: list
  elements: str
  sample: [gateway, gateway_nginx]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import apply as gateway_apply
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import settings as gateway_settings


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "rendered": {"type": "dict"},
            **gateway_settings.ARGUMENTS,
        },
        required_if=[("state", "present", ["engines", "rendered"])],
        supports_check_mode=True,
    )
    params = module.params
    try:
        if params["state"] == "absent":
            outcome = gateway_apply.remove(gateway_apply.Node(), check_mode=module.check_mode)
        else:
            settings = gateway_settings.read(params)
            outcome = gateway_apply.apply(
                gateway_apply.Node(), settings, params["rendered"], check_mode=module.check_mode
            )
    except SparkError as exc:
        module.fail_json(msg=str(exc))
    for warning in outcome.warnings:
        module.warn(warning)
    module.exit_json(
        changed=outcome.changed,
        action=outcome.action,
        diff=outcome.diff,
        endpoints=outcome.endpoints,
        firewall=outcome.firewall,
        ports=outcome.ports,
        sets=outcome.sets,
    )


if __name__ == "__main__":
    main()
