# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What runs, compared with what was planned: environment of the ranks, active options, image, weights, versions; and
whether it serves. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import (
    Service,
    Snapshot,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import document, drift
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import WARN, Verdict
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import (
    or_passed,
    passed,
    unknown,
    verdict,
)

Observed = Mapping[str, Snapshot]
UEFI = "UEFI firmware"  # of Snapshot.versions; preflight compares the rest
WHOLE, BROKEN, MISSING = "whole", "broken", "missing"


# Kinds of drift that doctor looks at: the check, and what it is about.
CHECKS: Mapping[str, tuple[str, str]] = {
    "port_filter_off": ("port_filter", "node"),
    "environment_differs": ("environment", "service"),
    "option_ignored": ("options", "service"),
    "image_differs": ("image", "service"),
    "dangling_weights": ("weights", "node"),
}


def judge(observed: Observed) -> list[Verdict]:
    return [
        *_services(observed),
        *environment(observed),
        *(made for host, seen in observed.items() for made in _drifted(host, seen) if made.check != "environment"),
        *_as_planned(observed),
        *_weights(observed),
        *_versions(observed),
    ]


def _drifted(host: str, seen: Snapshot) -> Iterator[Verdict]:
    for one in drift.of_node(seen):
        if one.kind in CHECKS:
            outcome = WARN if one.later else ""
            yield verdict(*CHECKS[one.kind], one.found, one.kind, [host], device=one.device, outcome=outcome)
        elif one.device:
            yield unknown("environment", "service", one.found, [host], one.device)
        else:
            yield unknown("observed", "node", f"not looked at: {one.found}", [host])


def services(observed: Observed) -> list[document.Service]:
    """For the document, with the options that the engine itself says it has."""
    return [
        document.Service(
            service.instance or service.model,
            service.model,
            service.recipe,
            service.engine,
            service.version,
            service.image_running or service.image_planned or service.image,
            tuple(
                other
                for other, seen in observed.items()
                if any(service.instance == it.instance for it in seen.services)
            ),
            dict(service.options),
        )
        for seen in observed.values()
        for service in seen.services
        if service.head
    ]


def _all(observed: Observed) -> Iterator[tuple[str, Service]]:
    for host, seen in observed.items():
        for service in seen.services:
            yield host, service


def _services(observed: Observed) -> Iterator[Verdict]:
    for host, service in _all(observed):
        if service.head and service.answered:
            moved = ", ".join(f"{device} {size / 1e6:.1f} MB" for device, size in service.moved.items())
            more = f"; RDMA moved meanwhile: {moved}" if moved else ""
            yield passed("answer", "service", f"{service.model}: {service.answer}{more}", [host], service.unit)
        elif service.head:
            yield verdict("answer", "service", service.answer, "not_serving", [host], device=service.unit)
        if (
            service.answered
            and service.moved
            and not any(service.moved.values())
            and _over_rdma(observed[host], service)
        ):
            yield verdict(
                "answer",
                "service",
                f"no byte moved over RDMA while it answered ({', '.join(service.moved)})",
                "tcp_fallback",
                [host],
                device=service.unit,
            )
        if service.answered and not service.ignored and service.options:
            yield passed(
                "options", "service", "every option that the engine tells of is as planned", [host], service.unit
            )
        elif service.answered and not service.ignored:
            silent = f"not compared with the plan: {service.engine or 'the engine'} does not tell which options it has"
            yield unknown("options", "service", silent, [host], service.unit)


def _over_rdma(seen: Snapshot, service: Service) -> bool:
    return any(rank.over_rdma for rank in seen.ranks if rank.service == service.instance)


def environment(observed: Observed) -> Iterator[Verdict]:
    found = [made for host, seen in observed.items() for made in _drifted(host, seen) if made.check == "environment"]
    ranked = [host for host, seen in observed.items() if seen.ranks]
    return or_passed("environment", "the running ranks have the environment of the plan", ranked, found)


def _as_planned(observed: Observed) -> Iterator[Verdict]:
    filtered = [host for host, seen in observed.items() if not seen.filters]
    if filtered:
        yield passed("port_filter", "node", "the port filter is active", filtered)
    for host, service in _all(observed):
        if (
            service.image
            and service.image_planned == service.image_named
            and service.image_running in ("", service.image_named)
        ):
            yield passed("image", "service", f"{service.image} is the one that was planned", [host], service.unit)


def _weights(observed: Observed) -> Iterator[Verdict]:
    revisions: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    good: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host, seen in observed.items():
        for weights in seen.weights:
            if weights.state == "unseen":
                yield unknown("weights", "node", f"{weights.name} was not looked at: {weights.found}", [host])
            elif weights.state not in (BROKEN, MISSING):
                good[weights.name, weights.state].append(host)
            if weights.revision:
                revisions[weights.name][weights.revision].append(host)
    for name, found in revisions.items():
        if len(found) > 1:
            shown = ", ".join(f"{', '.join(hosts)} {revision[:12]}" for revision, hosts in found.items())
            yield verdict(
                "weights",
                "cluster",
                f"{name} is not the same everywhere: {shown}",
                "dangling_weights",
                [host for hosts in found.values() for host in hosts],
            )
            good = defaultdict(list, {of: hosts for of, hosts in good.items() if of[0] != name})
    for (name, state), hosts in good.items():
        links = f"no link of {name} leads nowhere; others have brought it, so no list of its files is here"
        yield passed("weights", "node", f"{name} is whole" if state == WHOLE else links, hosts)


def _versions(observed: Observed) -> Iterator[Verdict]:
    found: dict[str, list[str]] = defaultdict(list)
    for host, seen in observed.items():
        if seen.versions.get(UEFI):
            found[seen.versions[UEFI]].append(host)
    if len(found) > 1:
        shown = ", ".join(f"{version} on {', '.join(hosts)}" for version, hosts in found.items())
        hosts = [host for hosts in found.values() for host in hosts]
        yield verdict("versions", "cluster", f"{UEFI} differs: {shown}", "firmware_differs", hosts)
