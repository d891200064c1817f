# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The key that this computer logs in with: made where there is none, and never made anew."""

from __future__ import annotations

import os

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

KINDS = ("ed25519", "ecdsa", "rsa")  # of which the public half is installed on the machines


def ensure(folder: str = "~/.ssh", runner: Runner = run) -> str:
    """What was made; empty where there is a key. ssh-keygen would ask whether to overwrite a private half, so that is
    left to its owner."""
    keys = [os.path.join(os.path.expanduser(folder), f"id_{kind}") for kind in KINDS]
    if any(os.path.isfile(f"{key}.pub") for key in keys):
        return ""
    for key, kind in zip(keys, KINDS):
        if os.path.lexists(key):
            name = f"{folder}/id_{kind}"
            remedy = f"Make it from the private one: ssh-keygen -y -f {name} > {name}.pub"
            raise SparkError("the public half of your ssh key is missing", f"{name}.pub", remedy)
    os.makedirs(os.path.dirname(keys[0]), mode=0o700, exist_ok=True)
    done = runner(("ssh-keygen", "-q", "-t", KINDS[0], "-N", "", "-f", keys[0]))
    if done.rc != 0:
        raise SparkError(f"no key for ssh could be made: {done.complaint}", keys[0], "Make one: ssh-keygen")
    return f"A key for ssh was made: {folder}/id_{KINDS[0]}"
