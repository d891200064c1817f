# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How fast is the module show_gids against a shell loop over the same GID tables?

    .venv/bin/python tests/bench/bench_show_gids.py [--devices 4] [--table 256] [--used 4] [--rounds 5]

Builds a synthetic sysfs on tmpfs (--devices ports with --table entries, --used of them filled) and runs alternately,
so that a change of load on the machine hits all of them:

- ``loop``: a bash script that works like the vendor's, one ``cat`` per entry and a few more processes per used entry;
- ``read``: the module's reader, in this process;
- ``module``: the whole module as Ansible runs it on a node, from the start of the interpreter to the JSON result,
  without ssh. The interpreter is the one that runs this script.
- ``start``: the same without any RDMA device, that is what Ansible needs to start any module at all.

Prints the median times; the last line is one JSON object. Exit code 1 when the results differ.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.executor import module_common
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests/unit"))
# Before the first import from the collection: modify_module() finds module_utils only through Ansible's own importer.
init_plugin_loader([str(REPOSITORY / "collections")])

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import show_gids
from sysfs_tree import SysfsTree

LOOP = r"""
cd "$1/class/infiniband" || exit 1
found=0
for device in $(ls); do
  for port in $(ls "$device/ports"); do
    for index in $(ls "$device/ports/$port/gids"); do
      gid=$(cat "$device/ports/$port/gids/$index")
      [ "$gid" = 0000:0000:0000:0000:0000:0000:0000:0000 ] && continue
      netdev=$(cat "$device/ports/$port/gid_attrs/ndevs/$index" 2>/dev/null)
      version=$(cat "$device/ports/$port/gid_attrs/types/$index" 2>/dev/null | grep -o 'v[12]')
      if [ "$(echo "$gid" | cut -d : -f 1)" = 0000 ]; then
        digits=$(echo "$gid" | cut -c 31- | tr -d :)
        address=$(printf '%d.%d.%d.%d' $(echo "$digits" | sed 's/../0x& /g'))
      else
        address=
      fi
      printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$device" "$port" "$index" "$gid" "$address" "$version" "$netdev"
      found=$(expr $found + 1)
    done
  done
done
echo "n_gids_found=$found"
"""


def build(root: Path, devices: int, table: int, used: int) -> None:
    tree = SysfsTree(root, table)
    for number in range(devices):
        device, netdev = f"rocep{number}s0", f"enp{number}s0np0"
        tree.mlx5(f"{number:04x}:01:00.0", device, netdev, "p0", number + 1)
        for index in range(2, used, 2):
            tree.address(device, index, f"192.168.{100 + number}.{index}", netdev)


def packed_module() -> bytes:
    """The payload that Ansible sends to a node: module and module_utils in one executable Python file."""
    built: Any = module_common.modify_module(
        module_name="ansible_collections.sparkmatrix.cluster.plugins.modules.show_gids",
        module_path=str(REPOSITORY / "plugins/modules/show_gids.py"),
        module_args={"source": "sysfs", "_ansible_verbosity": 0},
        templar=Templar(DataLoader()),
        task_vars={"ansible_python_interpreter": sys.executable},
        module_compression="ZIP_DEFLATED",
    )
    data: bytes = built.b_module_data if hasattr(built, "b_module_data") else built[0]
    return data


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("devices", 4), ("table", 256), ("used", 4), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()

    # tmpfs: sysfs lives in memory as well, a disk would favour whoever runs second.
    base = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        root = base / "sys"
        build(root, options.devices, options.table, options.used)
        script, payload = base / "loop.sh", base / "payload.py"
        script.write_text(LOOP)
        payload.write_bytes(packed_module())
        environment = {**os.environ, "LC_ALL": "C"}

        def run(*argv: str, sysfs: Path = root) -> str:
            environment["SPARKMATRIX_SYSFS_ROOT"] = str(sysfs)
            return subprocess.run(argv, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout

        contestants: dict[str, Callable[[], Any]] = {
            "loop": lambda: show_gids.parse(run("bash", str(script), str(root))),
            "read": lambda: show_gids.read(root),
            "module": lambda: json.loads(run(sys.executable, str(payload)))["gids"],
            "start": lambda: run(sys.executable, str(payload), sysfs=base),
        }
        times: dict[str, list[float]] = {name: [] for name in contestants}
        results: dict[str, Any] = {}
        for _round in range(options.rounds):
            for name, call in contestants.items():
                seconds, results[name] = timed(call)
                times[name].append(seconds)
    finally:
        shutil.rmtree(base)

    median = {name: statistics.median(values) for name, values in times.items()}
    same = sorted(results["loop"], key=str) == sorted(results["read"], key=str) and results["module"] == [
        gid.as_dict() for gid in results["read"]
    ]
    for name, seconds in median.items():
        print(f"{name:8}{seconds * 1000:10.1f} ms   {median['loop'] / seconds:8.1f} x   (runs: "
              + ", ".join(f"{value * 1000:.0f}" for value in times[name]) + ")")  # fmt: skip
    print(
        json.dumps(
            {
                "benchmark": "show_gids",
                "entries": options.devices * options.table,
                "used": len(results["read"]),
                "rounds": options.rounds,
                "loop_s": round(median["loop"], 4),
                "read_s": round(median["read"], 5),
                "module_s": round(median["module"], 4),
                "start_s": round(median["start"], 4),
                "ratio_read": round(median["loop"] / median["read"], 1),
                "ratio_module": round(median["loop"] / median["module"], 1),
                "same_result": same,
            }
        )
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
