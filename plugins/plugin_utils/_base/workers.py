# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What Ansible's workers need, loaded once before they are forked.

Ansible forks a worker per task and machine, also for one that is skipped, and each of them loads for itself what is not
there yet: Jinja's tables, all filters and tests, the plugin of the connection, our planners. That is a quarter of the
processor time of a run that changes nothing (docs/performance.md).
"""

from __future__ import annotations

import gc
import os
from importlib import import_module

from ansible.parsing.dataloader import DataLoader
from ansible.plugins import loader
from ansible.template import Templar, trust_as_template

ACTIONS = "ansible_collections.sparkmatrix.cluster.plugins.action"
OURS = ("engine_plan", "managed_files", "managed_service", "node", "node_tool", "plan", "preflight")
BUILTIN = ("assert", "debug", "normal", "set_fact", "validate_argument_spec")


def prepare() -> None:
    """Of no consequence but time: what is missing here a worker loads."""
    # A worker that looks for garbage writes to every object, and the kernel then copies all of the controller's memory.
    os.register_at_fork(after_in_child=gc.freeze)
    templar = Templar(DataLoader(), {"a": 1})
    templar.template(trust_as_template("{{ a | default(1) }}"))
    templar.evaluate_conditional(trust_as_template("a | default(1) | int in [1] and a is defined"))
    loader.connection_loader.get("ansible.builtin.ssh", class_only=True)
    loader.shell_loader.get("ansible.builtin.sh", class_only=True)
    loader.become_loader.get("ansible.builtin.sudo", class_only=True)
    for name in BUILTIN:
        loader.action_loader.get(f"ansible.builtin.{name}", class_only=True)
    for name in OURS:
        import_module(f"{ACTIONS}.{name}")


def share() -> None:
    """Called before each play: garbage goes, and what is there stays in one place in memory until the next play.

    Neither the controller nor a worker then writes to all objects when it looks for garbage. What is frozen is only
    left out of that search; what nobody refers to any more goes as before.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
