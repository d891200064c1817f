# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What earlier runs have left on a node, in one look: what is as the plan wants it, no layer has to ask for again.

Read by ``plugin_utils/_base/settled.py``. What cannot be read is left out, and the layer asks for itself.
"""

from __future__ import annotations

import contextlib
import pwd
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import node as access_node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import bandwidth, peermem
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import etc_hosts
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import secret as managed_secret
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import Service, Wanted, returning

SERVING = "serving"
QOS = "fabric_qos"  # the profile's set of files (_qos/profile.py, which takes longer to load than this to answer)
PEERS = "peers"  # whose block in /etc/hosts has the names of the nodes (roles/peers)


def gather(machine: Machine, engine_units: Sequence[str]) -> dict[str, Any]:
    """The keys are documented in the module ``node_info``."""
    parts: Mapping[str, Callable[[], Any]] = {
        "files": lambda: managed_files.fingerprints(root=machine.root),
        "units": lambda: units(machine, engine_units),
        "filters": lambda: filters(machine),
        "accounts": accounts,
        "plan": lambda: plan(machine),
        "peermem": lambda: peermem.quiet(machine),
        "qos": lambda: not machine.exists(paths.FABRIC_QOS) and QOS not in managed_files.names(root=machine.root),
        "secrets": lambda: {
            "ray_token": managed_secret.placed(paths.RAY_TOKEN, root=machine.root),
            "engine_key": managed_secret.placed(paths.ENGINE_KEY, "VLLM_API_KEY", root=machine.root),
        },
        "bandwidth": lambda: bandwidth.without_devices(machine),
        "peer": lambda: peer(machine),
        "names": lambda: etc_hosts.block_of(machine.text(etc_hosts.PATH) or "", PEERS),
    }
    found: dict[str, Any] = {}
    for name, read in parts.items():
        with contextlib.suppress(SparkError):
            found[name] = read()
    return found


def filters(machine: Machine) -> dict[str, bool]:
    """Those that every run asks for, and those that the node keeps."""
    always = (port_filter.FABRIC, port_filter.SERVICES)
    found = [name for name in port_filter.NAMES if name in always or machine.exists(port_filter.path(name))]
    return {name: port_filter.in_force(machine, name) for name in found}


def accounts() -> dict[str, int]:
    """The numbers of accounts that are ours by their names."""
    return {entry.pw_name: entry.pw_uid for entry in pwd.getpwall() if entry.pw_name.startswith("sparkmatrix")}


def units(machine: Machine, engine_units: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What Ray and the keepers run with; one that is about to be started or read anew is left out."""
    instances = map(engine_names.instance_of, engine_units)
    keepers = {engine_names.Names(instance).keeper: instance for instance in instances}
    found = {}
    for name in (engine_names.RAY_UNIT, *sorted(keepers)):
        unit = Service(Wanted(name), machine).read()
        if unit.running and not unit.job and not unit.needs_reload and not returning(name, machine.root):
            found[name] = {
                "enabled": unit.is_enabled,
                "config_hash": unit.running_hash or "",
                "serving": name in keepers and Store(machine.root, keepers[name]).read().phase == SERVING,
            }
    return found


def plan(machine: Machine) -> dict[str, Any] | None:
    """Which plan the node keeps."""
    current = kept_plan.read(machine.root).current
    return {"identity": current.identity, "image_ids": dict(current.image_ids)} if current else None


def peer(machine: Machine) -> dict[str, Any]:
    """What the call ``peer`` answers, without what ``node_info`` says besides; no key is made."""
    look = access_node.look(machine, access_node.USER, check_mode=True)
    return {name: value for name, value in vars(look).items() if name not in ("network", "fact", "changed")}
