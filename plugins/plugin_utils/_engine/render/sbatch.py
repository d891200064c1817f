# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The engine plan as a batch script for Slurm, for sites where a job and not a systemd unit holds the machines.

The same command lines and environments as the units have. What belongs to root there (state directories, files below
/etc, secrets) is replaced by a directory of the job's own on each node; the API key comes from a file of the user.
Addresses are in the plan, so the job asks for these very machines, by their names in the inventory.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image as engine_image
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan import NodePlan, RayPlan, ServicePlan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES

KEY_FILE = "$HOME/.config/sparkmatrix/engine-key"
# Of the service user; the job has its own.
_DROPPED = frozenset({"HOME", "RAY_AUTH_TOKEN_PATH", "VLLM_CONFIG_ROOT"})
# What starts an MPI job's ranks without Slurm.
_MPI_OWN = (paths.MPI_TOKEN, paths.NODE_PROGRAM)
# On each node's own disk. Anybody may have made a directory of this name, so the script checks whose it is before it
# writes anything.
_WORK = "/tmp/sparkmatrix-$SLURM_JOB_ID"  # noqa: S108
_JOB_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


def script(plans: Mapping[str, NodePlan]) -> str:
    """The whole script. ``plans``: by host, with the one service on each."""
    ordered = sorted(plans.values(), key=lambda plan: plan.here[0].rank)
    head = ordered[0]
    (first,) = head.here
    lines = [
        "#!/bin/bash",
        f"# {first.recipe}: {first.engine.name} on {len(ordered)} node(s). Rendered by sparkmatrix.cluster.",
        "# Partition, account and time limit: sbatch --partition=... --time=... THIS_FILE",
        f"#SBATCH --job-name={_JOB_NAME.sub('-', first.recipe)}",
        f"#SBATCH --nodes={len(ordered)}",
        f"#SBATCH --nodelist={','.join(plan.host for plan in ordered)}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        "#SBATCH --output=%x-%j.log",
        "set -euo pipefail",
        "umask 077",
        *_key(first),
        "",
        "# What a node runs: start ray, or start engine.",
        "start() {",
        f'  local work="{_WORK}"',
        '  mkdir "$work" 2>/dev/null || true',
        '  if [ -L "$work" ] || [ ! -d "$work" ] || [ ! -O "$work" ]; then',
        '    echo "$work on $SLURMD_NODENAME is not a directory of yours; submit the job again for another one" >&2',
        "    exit 1",
        "  fi",
        '  mkdir -p "$work/config" "$work/ray"',
        '  export VLLM_CONFIG_ROOT="$work/config" HOME="$work"',
        """  printf '["VLLM_API_KEY", "RAY_AUTH_TOKEN"]\\n' > "$work/config/ray_non_carry_over_env_vars.json\"""",
        *_check_ray(head.ray),
        "  ulimit -l unlimited || echo 'Locked memory is limited on this node: RDMA may fail' >&2",
        '  case "$SLURMD_NODENAME" in',
    ]
    for plan in ordered:
        lines += [f"  {shlex.quote(plan.host)})", *_node(plan, first), "    ;;"]
    lines += [
        '  *) echo "The plan knows no node $SLURMD_NODENAME: inventory names have to be those of Slurm" >&2; exit 1 ;;',
        "  esac",
        "}",
        "export -f start",
        "",
        *_launch(head, ordered),
    ]
    return "\n".join(lines) + "\n"


def _key(head: ServicePlan) -> list[str]:
    name = ENGINES[head.engine.name].key_variable
    if not name:
        return []
    return [
        f'key_file="${{SPARKMATRIX_KEY_FILE:-{KEY_FILE}}}"',
        'if [ -z "$(find "$key_file" -maxdepth 0 -perm 0600 2>/dev/null)" ]; then',
        '  echo "The API key has to be in $key_file, mode 0600: openssl rand -hex 32 > $key_file" >&2',
        "  exit 1",
        "fi",
        f'{name}="$(cat "$key_file")"',
        f"export {name}",
    ]


def _check_ray(ray: RayPlan) -> list[str]:
    """The Ray that a node would start is asked, whatever was pinned: one that knows no tokens would ignore ours."""
    if not ray.needed:
        return []
    major, minor = engine_image.MIN_RAY
    return [
        '  if [ "$1" = ray ]; then',
        "    local ray found",
        f"    ray={shlex.quote(ray.command.program[0])}",
        '    found="$("$ray" --version 2>&1)" || true',
        f"    if ! [[ $found =~ version\\ ([0-9]+)\\.([0-9]+) ]] || (( BASH_REMATCH[1] < {major}"
        f" || (BASH_REMATCH[1] == {major} && BASH_REMATCH[2] < {minor}) )); then",
        f'      echo "$ray on $SLURMD_NODENAME has to be Ray {major}.{minor} or newer: older ones know no tokens, and'
        ' whoever reaches its port could run code. It says: $found" >&2',
        "      exit 1",
        "    fi",
        "  fi",
    ]


def _node(plan: NodePlan, head: ServicePlan) -> list[str]:
    """Under MPI all ranks have the head's command line; what starts it on each node is Slurm here."""
    (service,) = plan.here
    engine = (head if service.backend == "mpi" else service).engine
    lines = [
        f"    export {name}={shlex.quote(value)}"
        for name, value in sorted(service.engine.env.items())
        if name not in _DROPPED
    ]
    for path, content in sorted(engine.files.items()):
        lines.append(f"    printf '%s' {shlex.quote(content)} > \"$work\"/{_name(path)}")
    if plan.ray.needed:
        temp, words = plan.ray.temp_dir, plan.ray.command.words
        quoted = ['"$work/ray"' if word == temp else shlex.quote(word) for word in words]
        lines.append(f'    if [ "$1" = ray ]; then exec {" ".join(quoted)}; fi')
    # Files are in the job's directory.
    words = [*engine.command.program, *engine.command.options]
    quoted = [f'"$work"/{_name(word)}' if word in engine.files else shlex.quote(word) for word in words]
    return [*lines, "    exec " + " ".join(quoted)]


def _name(path: str) -> str:
    return shlex.quote(path.strip("/").replace("/", "_"))


def _launch(head: NodePlan, ordered: Sequence[NodePlan]) -> list[str]:
    everywhere, here = f"--nodes={len(ordered)} --ntasks={len(ordered)}", "--nodes=1 --ntasks=1"
    srun = "srun --export=ALL --kill-on-bad-exit=1 " + _container(head.here[0])
    if head.ray.needed:
        on_head = f"{srun}--overlap {here} --nodelist={shlex.quote(head.host)}"
        status = shlex.quote(
            f"import ray; ray.init(address={head.ray.address!r}, logging_level='ERROR');"
            f" raise SystemExit(sum(n['Alive'] for n in ray.nodes()) != {len(ordered)})"
        )
        python = shlex.quote(head.ray.python)
        return [
            "# One token per job: who has it can run code on all nodes.",
            'RAY_AUTH_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d " \\n")"',
            "export RAY_AUTH_TOKEN RAY_AUTH_MODE=token",
            f"{srun}--overlap {everywhere} bash -c 'start ray' &",
            "ray_pid=$!",
            "trap 'kill $ray_pid 2>/dev/null || true' EXIT",
            "joined=",
            f"for _ in $(seq 60); do {on_head} {python} -c {status} && joined=yes && break",
            "  kill -0 $ray_pid || { echo 'Ray ended; see above' >&2; exit 1; }",
            "  sleep 5",
            "done",
            '[ "$joined" ] || { echo "Ray has not found all nodes in 5 minutes" >&2; exit 1; }',
            f"{on_head} bash -c 'start engine'",
        ]
    if head.here[0].backend == "mpi":
        return [f"{srun}--mpi=pmix {everywhere} bash -c 'start engine'"]
    count = [plan for plan in ordered if plan.here[0].engine.runs_here]
    return [f"{srun}{everywhere if len(count) > 1 else here} bash -c 'start engine'"]


def _container(head: ServicePlan) -> str:
    """For Slurm with Pyxis and enroot, which write the registry before a #."""
    if not head.contained:
        return ""
    registry, slash, rest = head.image.partition("/")
    image = f"{registry}#{rest}" if slash and ("." in registry or ":" in registry) else head.image
    mounts = ",".join(
        f"{mount.source}:{mount.target}{':ro' if mount.read_only else ''}"
        for mount in head.mounts
        if mount.target not in head.engine.files and mount.target not in ("/etc/nccl.conf", *_MPI_OWN)
    )
    return f"--container-image={shlex.quote(image)} --container-mounts={shlex.quote(mounts)},/tmp:/tmp "
