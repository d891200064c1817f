# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Where things are on a node: what several rooms, or a role's variables, name. The rest stands in its own module, below
one of the directories.
"""

from __future__ import annotations

ETC = "/etc/sparkmatrix"
STATE = "/var/lib/sparkmatrix"
RUN = "/run/sparkmatrix"  # locks and signs of life; only root writes there, unlike in /run/lock
UNITS = "/etc/systemd/system"

NODE_PROGRAM = "/usr/local/lib/sparkmatrix/sparkmatrix-node"
COMMAND = "/usr/local/bin/sparkmatrix"  # the same, for people
ENGINE = f"{ETC}/engine.json"  # what the keeper is told; those of other services: engine-<name>.json
BENCH_PROGRAM = f"{STATE}/vllm-bench"  # a generator that was downloaded
ENGINE_KEY = f"{ETC}/engine-key.env"
FABRIC_BANDWIDTH = f"{STATE}/fabric-bandwidth.json"  # what was measured
FABRIC_QOS = f"{STATE}/fabric_qos.json"  # what interfaces had before the profile
GATEWAY = f"{ETC}/gateway"
HOME = f"{STATE}/home"  # of the user whom the engine runs as
KEEPER = f"{STATE}/keeper"  # what the keepers remember
KERNELS = f"{STATE}/kernels"  # what engines in containers have compiled
MANAGED = f"{STATE}/managed"  # which files a role has placed here, with what they replaced
METRICS = f"{STATE}/metrics"  # files of the textfile collector of node_exporter
MPI_TOKEN = f"{ETC}/mpi.token"
PREFIXES = f"{STATE}/prefixes"  # what engines have computed of prompts
PROMETHEUS = f"{STATE}/prometheus"  # series that were collected
RAY_TOKEN = f"{ETC}/ray.token"
RAY_SESSIONS = f"{HOME}/ray"
RAY_SESSIONS_IN_CONTAINER = f"{STATE}/ray"
SSH = f"{ETC}/ssh"  # the keys and names with which nodes reach each other
VERDICTS = f"{STATE}/verdicts"  # of runs of verify, doctor and benchmark; on the head
WEB_UI = f"{STATE}/web-ui"  # accounts, chats and files of the page
WEB_UI_BACKUPS = f"{STATE}/web-ui-backups"
WEB_UI_KEY = f"{ETC}/web-ui.key"  # signs its logins
