# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a container's root leaves in a directory of the node makes nobody root. With real mounts, where that can be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import nosuid

COLLECTIONS = Path(__file__).resolve().parents[5] / "collections"
PRIVATE = ["unshare", "--mount", "--propagation", "shared"]
CAN_MOUNT = os.geteuid() == 0 and subprocess.run([*PRIVATE, "true"], check=False, capture_output=True).returncode == 0
# In mounts of its own. `id` of root with the setuid bit, as a container's root can make it, run by another account.
INSIDE = """
import json, os, shutil, subprocess, sys
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import nosuid
place, run = sys.argv[1:]
nosuid.NOTE, nosuid._LOCK = f"{run}/note", f"{run}/lock"
cache, below = f"{place}/the cache", f"{place}/the cache/disk"
os.makedirs(below)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", below], check=True)
def left():
    seen = []
    for path in (cache, below):
        shutil.copy("/usr/bin/id", f"{path}/id")
        os.chmod(f"{path}/id", 0o4755)
        argv = [f"{path}/id", "-u"]
        ran = subprocess.run(argv, user=1, group=1, extra_groups=[], capture_output=True, text=True)
        seen.append(ran.stdout.strip())
    return seen
told = {"before": left(), "changed": nosuid.guard([cache], Machine()), "held": nosuid.held(cache, Machine())}
told |= {"after": left(), "again": nosuid.guard([cache], Machine()), "undone": nosuid.undo(Machine()), "end": left()}
told |= {"nothing": nosuid.undo(Machine()), "still": nosuid.held(cache, Machine()), "below": os.path.ismount(below)}
print(json.dumps(told))
"""


@pytest.mark.skipif(not CAN_MOUNT, reason="mounts")
def test_a_setuid_file_that_a_container_left_makes_nobody_root():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as place, tempfile.TemporaryDirectory() as run:
        os.chmod(place, 0o755)
        argv = [*PRIVATE, sys.executable, "-B", "-c", INSIDE, place, run]
        ended = subprocess.run(
            argv, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(COLLECTIONS)}
        )
        told = json.loads(ended.stdout)
        cache = f"{place}/the cache"
    assert told == {
        "before": ["0", "0"],
        "changed": [cache],
        "held": True,
        "after": ["1", "1"],
        "again": [],
        "undone": [cache],
        "end": ["0", "0"],
        "nothing": [],
        "still": False,
        "below": True,
    }


def test_a_mount_that_fails_is_told_and_keeps_the_container_from_starting(tmp_path):
    machine = Machine(str(tmp_path), lambda _argv: Completed(1, "", "not permitted"))
    with pytest.raises(SparkError, match=r"mounting /srv/models over itself failed: mount .*not permitted"):
        nosuid.guard(["/srv/models"], machine)
