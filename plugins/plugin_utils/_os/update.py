# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""One kernel, driver and firmware set for all nodes: what each node has to do, or why it cannot be done."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os.update import IMAGE, MARGIN_MIB, Look, version_key

# Packages of one kernel: every version of it is a package of its own, and old ones may stay where they are.
_OF_ONE_KERNEL = re.compile(r"linux-[a-z-]*?-?\d+\.\d+")


@dataclass(frozen=True)
class NodePlan:
    """``kernel``: what boots next. ``previous``: what runs now and a failure returns to; empty where it is the same."""

    kernel: str
    previous: str
    changes: tuple[str, ...]
    reboot: bool
    probation: bool = False  # the kernel that boots next, or runs, is not the default yet


@dataclass(frozen=True)
class Plan:
    nodes: dict[str, NodePlan]
    findings: tuple[Finding, ...]
    summary: tuple[str, ...]


def plan(looks: Mapping[str, Look]) -> Plan:
    findings: list[Finding] = []
    nodes: dict[str, NodePlan] = {}
    after: dict[str, dict[str, str]] = {}
    for host, look in looks.items():
        findings += [
            Finding(host, problem, "Repair the package system of this machine, then run again")
            for problem in look.problems
        ]
        findings += [
            Finding(
                host,
                note,
                "No package of this update comes from there. Repair it, or take it out of /etc/apt/sources.list.d",
                severity="warning",
            )
            for note in look.notes
        ]
        after[host] = _after(look)
        findings += _removals(host, look)
        nodes[host] = _node(look)
        if nodes[host].previous:
            findings += _fallback(host, look)
    findings += _one_set(after, nodes)
    return Plan(nodes, tuple(findings), _summary(looks, nodes))


def _after(look: Look) -> dict[str, str]:
    """Names and versions as they will be, of the packages that make the set."""
    changed = {change.name: change.new for change in look.changes}
    versions = {name: changed.get(name, version) for name, version in look.packages.items()}
    return {name: version for name, version in versions.items() if not _OF_ONE_KERNEL.match(name)}


def _removals(host: str, look: Look) -> list[Finding]:
    gone = [change.name for change in look.changes if not change.new]
    if not gone:
        return []
    return [
        Finding(
            host,
            f"apt would remove {', '.join(sorted(gone))}",
            "Name versions that fit together (os_update_versions), or remove them yourself first",
        )
    ]


def _node(look: Look) -> NodePlan:
    running = look.kernel
    new = [match[1] for change in look.changes if change.new and (match := IMAGE.match(change.name))]
    same = [kernel for kernel in {*look.kernels, *new} if _flavour(kernel) == _flavour(running)]
    kernel = max([*same, running], key=version_key)
    changes = tuple(
        f"{change.name} {change.old + ' -> ' if change.old else ''}{change.new}"
        for change in look.changes
        if change.new
    )
    reboot = bool(changes or kernel != running or look.reboot_required)
    probation = kernel != running or look.probation
    return NodePlan(kernel, running if kernel != running else "", changes, reboot, probation)


def _flavour(kernel: str) -> str:
    """6.14.0-1013-nvidia-64k -> nvidia-64k; a machine does not change its flavour because another one is installed."""
    return re.sub(r"^[\d.+~-]+", "", kernel)


def _fallback(host: str, look: Look) -> list[Finding]:
    found = [
        Finding(
            host,
            f"a failed boot of the new kernel would not return to {look.kernel}: {complaint}",
            "Update this machine by hand at its screen, or put kernels on hold (os_stabilization_hold)",
        )
        for complaint in look.grub
    ]
    if look.kernel not in look.kernels:
        found.append(
            Finding(
                host,
                f"no installed package holds the running kernel {look.kernel}, so it may be gone after the update",
                "Install its linux-image package, or reboot into a kernel that has one",
            )
        )
    new = [change for change in look.changes if change.new and IMAGE.match(change.name)]
    needed = len(new) * look.kernel_mib + MARGIN_MIB
    if new and look.boot_free_mib < needed:
        found.append(
            Finding(
                host,
                f"/boot has {look.boot_free_mib} MiB left, and the new kernel needs {needed} MiB",
                "Remove old kernels: sudo apt-get autoremove --purge",
            )
        )
    return found


def _one_set(after: Mapping[str, Mapping[str, str]], nodes: Mapping[str, NodePlan]) -> list[Finding]:
    """Every package of the set in one version wherever it is installed, and one kernel."""
    findings = []
    names = sorted({name for versions in after.values() for name in versions})
    differing = {
        name: where
        for name in names
        if len(where := _where({host: versions[name] for host, versions in after.items() if name in versions})) > 1
    }
    for name, where in differing.items():
        findings.append(
            Finding(
                _listed(where),
                f"{name} would not be the same",
                f"Give the machines the same package sources, or name a version: os_update_versions: {{{name}: …}}",
            )
        )
    kernels = _where({host: node.kernel for host, node in nodes.items()})
    if len(kernels) > 1:
        findings.append(
            Finding(
                _listed(kernels),
                "the kernel would not be the same",
                "Give the machines the same package sources and the same kernel packages",
            )
        )
    return findings


def _where(values: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for host, value in values.items():
        found[value].append(host)
    return dict(found)


def _listed(where: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{value} on {', '.join(hosts)}" for value, hosts in where.items())


def _summary(looks: Mapping[str, Look], nodes: Mapping[str, NodePlan]) -> tuple[str, ...]:
    lines = []
    for host, node in nodes.items():
        kernel = f"kernel {node.previous} -> {node.kernel}" if node.previous else f"kernel {node.kernel} stays"
        if node.probation and not node.previous:
            kernel += ", and is not the default yet"
        lines.append(f"{host}: {kernel}; " + (", ".join(node.changes) or "apt knows of nothing newer"))
        lines += [f"{host}: newer firmware, not installed: {text}" for text in looks[host].firmware]
    return tuple(lines)
