# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Checks that each machine has one rank, and keeps it, with the addresses that follow from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import addresses
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.base import Context, as_list, whole


def check_ranks(context: Context) -> Iterator[Finding]:
    owners: dict[int, list[str]] = defaultdict(list)
    complete = True
    for host, values in context.hosts.items():
        rank = values.get("spark_rank")
        if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
            owners[rank].append(host)
            continue
        complete = False
        if rank is None:
            found = "spark_rank is not set"
        elif isinstance(rank, str) and rank.strip().isdigit():
            found = f"spark_rank is the text {rank!r}, not a number"
        else:
            found = f"spark_rank is {rank!r}, expected a whole number from 0"
        yield Finding(
            host, found, "Give each machine its own spark_rank in the inventory, without quotes; 0 is the head"
        )
    for rank, hosts in sorted(owners.items()):
        if len(hosts) > 1:
            complete = False
            yield Finding(
                ", ".join(hosts), f"spark_rank {rank} is given {len(hosts)} times", "Give each machine its own"
            )
    if complete and owners and 0 not in owners:
        yield Finding("inventory", "no machine is the head (spark_rank 0)", "Give one machine spark_rank: 0")


def check_rank_gaps(context: Context) -> Iterator[Finding]:
    """A removed machine leaves a gap, and whoever closed it would renumber another; so does a typing mistake."""
    if any(check_ranks(context)):
        return
    numbers = {int(values["spark_rank"]) for values in context.hosts.values()}
    gaps = sorted(set(range(max(numbers, default=0))) - numbers)
    if gaps:
        shown = ", ".join(map(str, gaps[:8])) + (", …" if len(gaps) > 8 else "")
        yield Finding("inventory", f"no machine has spark_rank {shown}, and one has {max(numbers)}")


def check_readdressed(context: Context) -> Iterator[Finding]:
    for host in context.nodes:
        fact, values = context.fact(host), context.hosts.get(host, {})
        if fact is None or fact.state != "applied":
            continue
        rank = values.get("spark_rank")
        if fact.host != host:
            yield Finding(
                host,
                f"this machine was set up as {fact.host!r}",
                "Correct names and addresses in the inventory; if it comes from another cluster, run reset.yml with "
                "that inventory first",
            )
        elif fact.rank != rank:
            yield Finding(
                host,
                f"it was set up with spark_rank {fact.rank}, and the inventory says {rank}",
                "Give it its rank back: ranks stay with their machine, a removed one leaves a gap, and a new machine "
                "takes a free rank",
            )
        else:
            yield from _readdressed(context, host, fact)


def _readdressed(context: Context, host: str, fact: fabric_fact.FabricFact) -> Iterator[Finding]:
    listed = as_list(context.value(host, "fabric_subnets", []))
    offset = whole(context.value(host, "fabric_host_offset", 10))
    own = context.value(host, "fabric_addresses", {})
    settings = Settings(subnets=[str(subnet) for subnet in listed], host_offset=offset)
    given = {str(key): str(text) for key, text in own.items()} if isinstance(own, Mapping) else {}
    ranks = {name: values.get("spark_rank") for name, values in context.hosts.items()}
    moved = []
    for rail in fact.rails:
        pair = addresses.pair_of(fact, rail, fact.rank, ranks)
        if pair is not None and not addresses.stays(settings, rail, fact.rank, pair, given):
            moved.append(rail)
    if moved:
        yield Finding(
            host,
            f"its fabric has {', '.join(f'{rail.address}/{rail.prefix}' for rail in moved)}, and the inventory gives it"
            f" other addresses (fabric_subnets {', '.join(settings.subnets)}, fabric_host_offset {offset}"
            f"{', fabric_addresses' if given else ''})",
            "Give these variables their former values back",
            ", ".join(rail.netdev for rail in moved),
        )
