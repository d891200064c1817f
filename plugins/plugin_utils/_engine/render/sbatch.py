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
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import image as engine_image
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import ENGINES

KEY_FILE = "$HOME/.config/sparkmatrix/engine-key"
MPI_STARTER = "trtllm-llmapi-launch"
# Of the service user; the job has its own.
_DROPPED = frozenset({"HOME", "RAY_AUTH_TOKEN_PATH", "VLLM_CONFIG_ROOT"})
# What starts an MPI job's ranks without Slurm.
_MPI_OWN = (paths.MPI_TOKEN, paths.NODE_PROGRAM)
# On each node's own disk. Anybody may have made a directory of this name, so the script checks whose it is before it
# writes anything.
_WORK = "/tmp/sparkmatrix-$SLURM_JOB_ID"  # noqa: S108
_JOB_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


def script(plans: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole script; ``plans`` as the engine plan returns them."""
    ordered = sorted(plans.values(), key=lambda plan: int(plan["rank"]))
    head = ordered[0]
    lines = [
        "#!/bin/bash",
        f"# {head['recipe']}: {head['engine']['name']} on {len(ordered)} node(s). Rendered by sparkmatrix.cluster.",
        "# Partition, account and time limit: sbatch --partition=... --time=... THIS_FILE",
        f"#SBATCH --job-name={_JOB_NAME.sub('-', str(head['recipe']))}",
        f"#SBATCH --nodes={len(ordered)}",
        f"#SBATCH --nodelist={','.join(str(plan['host']) for plan in ordered)}",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --exclusive",
        "#SBATCH --output=%x-%j.log",
        "set -euo pipefail",
        "umask 077",
        *_key(head),
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
        *_check_ray(head),
        "  ulimit -l unlimited || echo 'Locked memory is limited on this node: RDMA may fail' >&2",
        '  case "$SLURMD_NODENAME" in',
    ]
    for plan in ordered:
        lines += [f"  {shlex.quote(str(plan['host']))})", *_node(plan, head), "    ;;"]
    lines += [
        '  *) echo "The plan knows no node $SLURMD_NODENAME: inventory names have to be those of Slurm" >&2; exit 1 ;;',
        "  esac",
        "}",
        "export -f start",
        "",
        *_launch(head, ordered),
    ]
    return "\n".join(lines) + "\n"


def _key(head: Mapping[str, Any]) -> list[str]:
    name = ENGINES[head["engine"]["name"]].key_variable
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


def _check_ray(head: Mapping[str, Any]) -> list[str]:
    """The Ray that a node would start is asked, whatever was pinned: one that knows no tokens would ignore ours."""
    if head["backend"] != "ray":
        return []
    major, minor = engine_image.MIN_RAY
    return [
        '  if [ "$1" = ray ]; then',
        "    local ray found",
        f"    ray={shlex.quote(str(head['ray']['argv'][0]))}",
        '    found="$("$ray" --version 2>&1)" || true',
        f"    if ! [[ $found =~ version\\ ([0-9]+)\\.([0-9]+) ]] || (( BASH_REMATCH[1] < {major}"
        f" || (BASH_REMATCH[1] == {major} && BASH_REMATCH[2] < {minor}) )); then",
        f'      echo "$ray on $SLURMD_NODENAME has to be Ray {major}.{minor} or newer: older ones know no tokens, and'
        ' whoever reaches its port could run code. It says: $found" >&2',
        "      exit 1",
        "    fi",
        "  fi",
    ]


def _node(plan: Mapping[str, Any], head: Mapping[str, Any]) -> list[str]:
    """Under MPI all ranks have the head's command line, behind what starts it on each node: Slurm here."""
    engine, source = plan["engine"], (head if plan["backend"] == "mpi" else plan)["engine"]
    files = source["files"]
    lines = [
        f"    export {name}={shlex.quote(str(value))}"
        for name, value in sorted(engine["env"].items())
        if name not in _DROPPED and not name.startswith(("OMPI_MCA_plm_", "OMPI_MCA_orte_"))
    ]
    for path, content in sorted(files.items()):
        lines.append(f"    printf '%s' {shlex.quote(str(content))} > \"$work\"/{_name(path)}")
    if plan["backend"] == "ray":
        temp = plan["ray"]["temp_dir"]
        words = ['"$work/ray"' if word == temp else shlex.quote(word) for word in plan["ray"]["argv"]]
        lines.append(f'    if [ "$1" = ray ]; then exec {" ".join(words)}; fi')
    lines.append("    exec " + " ".join(_words(source["argv"], files)))
    return lines


def _words(argv: Sequence[str], files: Mapping[str, str]) -> list[str]:
    """Quoted for a shell; MPI's starter is Slurm here, and files are in the job's directory."""
    words = list(argv)
    if MPI_STARTER in [word.rpartition("/")[2] for word in words]:
        first = next(number for number, word in enumerate(words) if word.rpartition("/")[2] == MPI_STARTER)
        words = words[first:]
    return [f'"$work"/{_name(word)}' if word in files else shlex.quote(word) for word in words]


def _name(path: str) -> str:
    return shlex.quote(path.strip("/").replace("/", "_"))


def _launch(head: Mapping[str, Any], ordered: Sequence[Mapping[str, Any]]) -> list[str]:
    everywhere, here = f"--nodes={len(ordered)} --ntasks={len(ordered)}", "--nodes=1 --ntasks=1"
    srun = "srun --export=ALL --kill-on-bad-exit=1 " + _container(head)
    if head["backend"] == "ray":
        on_head = f"{srun}--overlap {here} --nodelist={shlex.quote(str(head['host']))}"
        status = shlex.quote(
            f"import ray; ray.init(address={str(head['ray']['address'])!r}, logging_level='ERROR');"
            f" raise SystemExit(sum(n['Alive'] for n in ray.nodes()) != {len(ordered)})"
        )
        python = shlex.quote(str(head["ray"]["argv"][0]).rpartition("/")[0] + "/python")
        if head["runtime"] == "container":
            python = "python3"
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
    if head["backend"] == "mpi":
        return [f"{srun}--mpi=pmix {everywhere} bash -c 'start engine'"]
    count = [plan for plan in ordered if plan["engine"]["runs_here"]]
    return [f"{srun}{everywhere if len(count) > 1 else here} bash -c 'start engine'"]


def _container(head: Mapping[str, Any]) -> str:
    """For Slurm with Pyxis and enroot, which write the registry before a #."""
    if head["runtime"] != "container":
        return ""
    registry, slash, rest = str(head["image"]).partition("/")
    image = f"{registry}#{rest}" if slash and ("." in registry or ":" in registry) else str(head["image"])
    mounts = ",".join(
        f"{mount['source']}:{mount['target']}{':ro' if mount['read_only'] else ''}"
        for mount in head["mounts"]
        if mount["target"] not in head["engine"]["files"] and mount["target"] not in ("/etc/nccl.conf", *_MPI_OWN)
    )
    return f"--container-image={shlex.quote(image)} --container-mounts={shlex.quote(mounts)},/tmp:/tmp "
