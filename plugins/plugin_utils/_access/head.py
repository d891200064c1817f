# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The machine of rank 0 of an inventory, and how Ansible logs in to it: for whoever asks it without a playbook."""

from __future__ import annotations

from pathlib import Path

from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible.vars.manager import VariableManager
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import login


def find(inventory: Path) -> login.Login:
    """Raises :class:`SparkError` for an inventory that has none, or cannot be read."""
    loader = DataLoader()
    # Variables are read beside the inventory, and beside a playbook, of which there is none: not in the current folder.
    loader.set_basedir(str(inventory if inventory.is_dir() else inventory.parent))
    try:
        known = InventoryManager(loader=loader, sources=[str(inventory)])
        manager = VariableManager(loader=loader, inventory=known)
        hosts = {host.name: manager.get_vars(host=host) for host in known.get_hosts("sparks")}
        ranks = {name: int(values.get("spark_rank", 0)) for name, values in hosts.items()}
        name = min(ranks, key=ranks.__getitem__)
        templar = Templar(loader=loader, variables=hosts[name])
        own = {key: templar.template(hosts[name][key]) for key in login.VARIABLES if key in hosts[name]}
    except (AnsibleError, TypeError, ValueError) as exc:
        what = "its group sparks has no machine with a rank (spark_rank)" if isinstance(exc, ValueError) else str(exc)
        raise SparkError("no head is known", str(inventory), what) from exc
    return login.login(name, {**login.configured(), **own})
