# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""TCP ports of all layers, as they are without a variable that says otherwise.

All stand below the range from which Linux takes ports for connections (32768 to 60999), so that none is taken by
chance. What an engine lets nobody choose (torch's store, gloo, NCCL's bootstrap, ZMQ) comes from that range; it is
closed by who owns the socket and not by number, see :mod:`.._firewall.port_filter`.
"""

from __future__ import annotations

API = 8000  # of the engine
RENDEZVOUS = 29501  # where ranks meet without Ray
VLLM_REPLICAS = 29550  # where vLLM's data parallel ranks meet
FABRIC_BANDWIDTH = 18515  # perftest's own
NCCL_TEST = 29562  # where the ranks of a test of NCCL meet
IMAGES = 29561  # where nodes fetch images from another one, while they are copied; there on loopback, too
PROMETHEUS = 9090  # its own; on loopback
NODE_EXPORTER = 9100  # its own; on the fabric
GRAFANA = 3000  # its own; on loopback
WEB_UI = 8080  # its own; on loopback

RAY_GCS = 6379  # Ray's own
RAY_DASHBOARD = 8265  # Ray's own; on loopback
# Ray chooses the following by chance, or within 10002 to 19999, unless it is told.
RAY_CLIENT = 21001  # cannot be switched off
RAY_NODE_MANAGER = 21002
RAY_OBJECT_MANAGER = 21003
RAY_METRICS = 21004
RAY_AGENT_HTTP = 21005
RAY_AGENT_GRPC = 21006
RAY_RUNTIME_ENV_AGENT = 21007
RAY_DASHBOARD_METRICS = 21008
RAY_AUTOSCALER_METRICS = 21009
RAY_WORKERS = (21010, 21999)  # one per process that Ray starts or that joins it
RAY_RANGE = range(RAY_CLIENT, RAY_WORKERS[1] + 1)
