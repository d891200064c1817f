# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Names and places of the gateway on a node, for all who deal with it."""

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths

SET = "gateway"
# All sets of files that the role keeps on a node: its own, its rules, and which packages it, or an earlier release
# (njs), has installed.
SETS = (SET, "gateway_nginx", "gateway_njs", "port_filter_gateway")
UNIT = "sparkmatrix-gateway.service"
WATCH = "sparkmatrix-gateway-certificate"
USER = "sparkmatrix-gateway"
NGINX = "/usr/sbin/nginx"
ETC = paths.GATEWAY
RUN = "/run/sparkmatrix-gateway"
# The gateway as `sparkmatrix-node probe --config` reads it, and where clients reach it.
DESCRIPTION = f"{paths.ETC}/gateway.json"
STATUS_SOCKET = f"{RUN}/status.sock"
LOADED = f"{RUN}/tls.crt"  # the certificate that it shows
# The client that the cluster's own probes are; not limited, so that a busy gateway is no dead one.
PROBE = "probe"
RELAY = "sparkmatrix-relay"
RELAY_UNIT = f"{RELAY}.service"
RELAY_UNITS = (f"{RELAY}.socket", RELAY_UNIT)
RELAY_USER = "sparkmatrix-relay"
RELAY_SOCKET = "/run/sparkmatrix-relay.sock"
RELAY_CONFIG = f"{ETC}/relay.json"  # with the keys of the engines
SALT = f"{ETC}/salt.key"  # by which the relay keeps clients apart in what engines have computed
RELAY_STATUS = "/.sparkmatrix/status"
CLIENT = "X-Sparkmatrix-Client"  # what nginx tells the relay: whose key it was
HELD = "X-Sparkmatrix-Held"  # seconds that a request has waited for its engine
