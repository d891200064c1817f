# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The command line and environment of ``ray start`` on one node (Ray 2.60)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths, ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Command

DASHBOARD_HOST = "127.0.0.1"  # its job API runs any code that it is sent


# Bytes of shared memory. vLLM passes small messages only; Ray's default is 30 % of the memory, which is the GPU's too.
OBJECT_STORE = 512 * 1024**2


@dataclass(frozen=True)
class RaySettings:
    """What a user may change, and where it is."""

    executable: str = "/opt/sparkmatrix/engine/bin/ray"
    port: int = ports.RAY_GCS
    dashboard_port: int = ports.RAY_DASHBOARD
    temp_dir: str = paths.RAY_SESSIONS
    token_path: str = paths.RAY_TOKEN


# Else Ray takes ports by chance. Options of ``ray start``, for head and workers.
_FIXED = (
    *("--node-manager-port", str(ports.RAY_NODE_MANAGER)),
    *("--object-manager-port", str(ports.RAY_OBJECT_MANAGER)),
    *("--metrics-export-port", str(ports.RAY_METRICS)),
    *("--dashboard-agent-listen-port", str(ports.RAY_AGENT_HTTP)),
    *("--dashboard-agent-grpc-port", str(ports.RAY_AGENT_GRPC)),
    *("--runtime-env-agent-port", str(ports.RAY_RUNTIME_ENV_AGENT)),
    *("--min-worker-port", str(ports.RAY_WORKERS[0])),
    *("--max-worker-port", str(ports.RAY_WORKERS[1])),
)


def contained(settings: RaySettings) -> RaySettings:
    """The same inside a container: the image's own Ray, as another user, who cannot use the same directory."""
    return replace(settings, executable="ray", temp_dir=paths.RAY_SESSIONS_IN_CONTAINER)


def command(settings: RaySettings, own_address: str, head_address: str) -> Command:
    """``ray start`` in the foreground, for a supervisor."""
    head = own_address == head_address
    options = []
    if head:
        options += ["--head", "--port", str(settings.port)]
        options += ["--include-dashboard", "true", "--dashboard-host", DASHBOARD_HOST]
        options += ["--dashboard-port", str(settings.dashboard_port), "--temp-dir", settings.temp_dir]
        options += ["--ray-client-server-port", str(ports.RAY_CLIENT)]
    else:
        options += ["--address", f"{head_address}:{settings.port}"]
    options += [
        "--node-ip-address",
        own_address,
        "--num-gpus",
        "1",
        # vLLM's ranks ask for no CPU. A larger number only makes Ray start as many idle Python workers beforehand, in
        # memory that the model needs.
        "--num-cpus",
        "1",
        "--object-store-memory",
        str(OBJECT_STORE),
        *_FIXED,
        "--disable-usage-stats",
        # The journal shows no line with colours in it.
        "--log-color",
        "false",
        "--block",
    ]
    return Command((settings.executable, "start"), tuple(options))


def environment(settings: RaySettings, own_address: str) -> dict[str, str]:
    """What Ray and everything that it starts need, beside the fabric's own environment."""
    return {
        "VLLM_HOST_IP": own_address,
        # On unified memory the model counts as host memory, so Ray's memory monitor would kill its ranks. 0 is off.
        "RAY_memory_monitor_refresh_ms": "0",
        # Without it anyone who reaches the port can run code.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": settings.token_path,
        # A worker whose head has gone ends after this many seconds and is started again, instead of after 60.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Of the head; there is no option for them.
        "DASHBOARD_METRIC_PORT": str(ports.RAY_DASHBOARD_METRICS),
        "AUTOSCALER_METRIC_PORT": str(ports.RAY_AUTOSCALER_METRICS),
    }
