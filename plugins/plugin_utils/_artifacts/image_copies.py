# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which node gets which container image from which other one, over cables that both have.

One node fetches what nobody has. Where not all reach it over the fabric (a ring), those that have it by then offer it
in the next round. Who shares no cable with any of them fetches it for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.image_copy import Coming
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._artifacts import fanout

OWN = "127.0.0.2"  # where a node reaches what it offers itself; its way to the others listens on 127.0.0.1
FROM_OWN = "127.0.0.1"


@dataclass
class Offer:
    """``fetch``: what is not there yet, from a registry, an archive or a Dockerfile. ``images``: what others get.
    Addresses of this node, and those of the nodes that may read. ``builds``: Dockerfile and arguments."""

    fetch: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    builds: dict[str, Any] = field(default_factory=dict)


@dataclass
class Round:
    offers: dict[str, Offer] = field(default_factory=dict)
    receipts: dict[str, list[Coming]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rounds(
    wanted: Mapping[str, Sequence[str]],
    there: Mapping[str, Sequence[str]],
    facts: Mapping[str, FabricFact | None],
    archives: Sequence[str] = (),
    *,
    from_peers: bool = True,
    built: Collection[str] = (),
) -> list[Round]:
    """By host: images that its plan names, and those that it has. ``archives``: hosts that have the archive. ``built``:
    images that are built, which no archive has, and of which two are never the same."""
    made: list[Round] = [Round()]
    images = dict.fromkeys(image for host in wanted for image in wanted[host])
    for image in images:
        lacking = [host for host in wanted if image in wanted[host] and image not in there[host]]
        holders = [host for host in wanted if image in there[host]]
        having = () if image in built else archives
        if not from_peers and image not in built:
            for host in lacking:
                _offer(made[0], host).fetch.append(image)
                if host in having:
                    _own(made[0], host, image)
            continue
        if lacking and not holders:
            source = next((host for host in lacking if host in having), lacking[0])
            _offer(made[0], source).fetch.append(image)
            holders = [source]
            lacking.remove(source)
            if source in having:
                _own(made[0], source, image)
        copies, apart = fanout.rounds(facts, holders, lacking)
        made += [Round() for _more in range(len(copies) - len(made))]
        for one, copy in zip(made, copies):
            for host, pull in copy.items():
                _receipt(one, host, image, pull)
        for host in apart:
            _offer(made[0], host).fetch.append(image)
    return [one for one in made if one.offers]


def _offer(where: Round, host: str) -> Offer:
    return where.offers.setdefault(host, Offer())


def _own(where: Round, host: str, image: str) -> None:
    _receipt(where, host, image, fanout.Pull(host, (OWN,), (FROM_OWN,)))


def _receipt(where: Round, host: str, image: str, pull: fanout.Pull) -> None:
    offer = _offer(where, pull.host)
    for known, more in ((offer.images, [image]), (offer.addresses, pull.addresses), (offer.allowed, pull.own)):
        known += [one for one in more if one not in known]
    where.receipts.setdefault(host, []).append(Coming(image, pull.host, pull.addresses))
