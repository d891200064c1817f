# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What runs, compared with what was planned: environment of the ranks, active options, image, weights, versions; and
whether it serves. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import PASS, UNKNOWN, WARN, Verdict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observation import (
    Difference,
    Observation,
    Service,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import passed, unknown, verdict

Observed = Mapping[str, Observation]
SAME = {"bios_version": "UEFI firmware"}  # of Observation.facts: what has to be the same; preflight compares the rest
WHOLE, BROKEN, MISSING = "whole", "broken", "missing"


def judge(observed: Observed) -> list[Verdict]:
    return [
        *_services(observed),
        *environment(observed),
        *_images(observed),
        *_weights(observed),
        *_versions(observed),
    ]


def services(observed: Observed) -> list[document.Service]:
    """For the document, with the options that the engine itself says it has."""
    return [
        document.Service(
            one.instance or one.model,
            one.model,
            one.recipe,
            one.engine,
            one.version,
            one.image_running or one.image_planned or one.image,
            tuple(
                other for other, seen in observed.items() if any(one.instance == it.instance for it in seen.services)
            ),
            dict(one.options),
        )
        for seen in observed.values()
        for one in seen.services
        if one.head
    ]


def _all(observed: Observed) -> Iterator[tuple[str, Service]]:
    for host, seen in observed.items():
        for one in seen.services:
            yield host, one


def _services(observed: Observed) -> Iterator[Verdict]:
    for host, one in _all(observed):
        if one.head and one.answered:
            moved = ", ".join(f"{device} {size / 1e6:.1f} MB" for device, size in one.moved.items())
            more = f"; RDMA moved meanwhile: {moved}" if moved else ""
            yield passed("answer", "service", f"{one.model}: {one.answer}{more}", [host], one.unit)
        elif one.head:
            yield verdict("answer", "service", one.answer, "not_serving", [host], device=one.unit)
        if one.answered and one.moved and not any(one.moved.values()) and _over_rdma(observed[host], one):
            yield verdict(
                "answer",
                "service",
                f"no byte moved over RDMA while it answered ({', '.join(one.moved)})",
                "tcp_fallback",
                [host],
                device=one.unit,
            )
        if one.answered and one.ignored:
            yield verdict(
                "options",
                "service",
                f"the engine has {_shown(one.ignored)}",
                "option_ignored",
                [host],
                device=one.unit,
                evidence=[f"{it.name} {it.planned} planned, {it.found} active" for it in one.ignored],
            )
        elif one.answered:
            told = "every option that the engine tells of is as planned"
            silent = f"not compared with the plan: {one.engine or 'the engine'} does not tell which options it has"
            yield verdict(
                "options",
                "service",
                told if one.options else silent,
                outcome=PASS if one.options else UNKNOWN,
                hosts=[host],
                device=one.unit,
            )


def _over_rdma(seen: Observation, one: Service) -> bool:
    return any(rank.over_rdma for rank in seen.ranks if rank.service == one.instance)


def _shown(differences: tuple[Difference, ...]) -> str:
    return ", ".join(f"{one.name} {one.found or 'unset'} and not {one.planned or 'unset'}" for one in differences[:5])


def environment(observed: Observed) -> Iterator[Verdict]:
    good = []
    for host, seen in observed.items():
        found: dict[str, tuple[Difference, ...]] = {}
        for rank in seen.ranks:
            if rank.environment:
                found.setdefault(rank.unit, rank.environment)
        for unit, differences in found.items():
            yield verdict(
                "environment",
                "service",
                f"a running rank has {_shown(differences)}",
                "environment_differs",
                [host],
                device=unit,
                evidence=[f"{one.name}={one.found} (planned: {one.planned})" for one in differences],
            )
        other = [one.unit for one in seen.services if one.other_settings]
        for unit in other:
            yield verdict(
                "environment",
                "service",
                "it runs with other settings than those that were last written",
                "environment_differs",
                [host],
                device=unit,
            )
        unread = [rank.unit for rank in seen.ranks if not rank.environment_known]
        if unread:
            words = "the environment of a running rank cannot be read"
            yield unknown("environment", "service", words, [host], unread[0])
        elif seen.ranks and not found and not other:
            good.append(host)
    if good:
        yield passed("environment", "node", "the running ranks have the environment of the plan", good)


def _images(observed: Observed) -> Iterator[Verdict]:
    for host, one in _all(observed):
        if not one.image or not one.image_planned:
            continue
        running, named = one.image_running, one.image_named
        if running and running != one.image_planned:
            yield verdict(
                "image",
                "service",
                f"the container runs the image {_short(running)}, and {one.image} was {_short(one.image_planned)}",
                "image_differs",
                [host],
                device=one.unit,
                evidence=[running, one.image_planned],
            )
        elif named != one.image_planned:
            now = f"is {_short(named)} now" if named else "is gone"
            yield verdict(
                "image",
                "service",
                f"{one.image} {now}, and was {_short(one.image_planned)}: the next start takes another one",
                "image_differs",
                [host],
                device=one.unit,
                outcome=WARN,
                evidence=[named, one.image_planned],
            )
        else:
            yield passed("image", "service", f"{one.image} is the one that was planned", [host], one.unit)


def _short(ident: str) -> str:
    return ident.removeprefix("sha256:")[:12] or "nothing"


def _weights(observed: Observed) -> Iterator[Verdict]:
    revisions: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    good: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host, seen in observed.items():
        for one in seen.weights:
            if one.state in (BROKEN, MISSING):
                yield verdict(
                    "weights",
                    "node",
                    f"{one.name} is {'not whole' if one.state == BROKEN else 'missing'}: {one.found}",
                    "dangling_weights",
                    [host],
                )
            elif one.state == "unseen":
                yield unknown("weights", "node", f"{one.name} was not looked at: {one.found}", [host])
            else:
                good[one.name, one.state].append(host)
            if one.revision:
                revisions[one.name][one.revision].append(host)
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
    for name, title in SAME.items():
        found: dict[str, list[str]] = defaultdict(list)
        for host, seen in observed.items():
            if seen.facts.get(name):
                found[seen.facts[name]].append(host)
        if len(found) > 1:
            shown = ", ".join(f"{version} on {', '.join(hosts)}" for version, hosts in found.items())
            yield verdict(
                "versions",
                "cluster",
                f"{title} differs: {shown}",
                "firmware_differs",
                [host for hosts in found.values() for host in hosts],
            )
