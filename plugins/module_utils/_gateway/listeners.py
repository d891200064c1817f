# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Where the gateway listens on this node, and what a firewall has to open for that. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import is_address
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import (
    Settings,
    is_dns_name,
    socket_name,
)

LOOPBACK = "127.0.0.1"
# Compared with what listens already; nothing is bound to it.
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104


@dataclass(frozen=True)
class Listener:
    address: str
    port: int
    tls: bool = False

    @property
    def where(self) -> str:
        return socket_name(self.address, self.port)


def resolve(settings: Settings, interfaces: Mapping[str, Sequence[str]]) -> list[Listener]:
    """Addresses and interfaces as listeners, the one on loopback first. ``interfaces``: ``{name: [addresses]}``."""
    found = [Listener(LOOPBACK, settings.local_port)]
    own = {one for several in interfaces.values() for one in several}
    missing = []
    for item in settings.listen:
        addresses = [item] if is_address(item) else list(interfaces.get(item, ()))
        if not addresses:
            why = (
                "has no address" if item in interfaces else f"is not there (there are {', '.join(sorted(interfaces))})"
            )
            missing.append(f"the interface {item} {why}")
        for one in addresses:
            parsed = ipaddress.ip_address(one)
            if not parsed.is_unspecified and str(parsed) not in own:
                missing.append(f"this node has no address {one} (it has {', '.join(sorted(own))})")
            found.append(Listener(str(parsed), settings.port, settings.tls != "off"))
    if missing:
        raise SparkError("; ".join(missing), "gateway_listen", "Name addresses or interfaces of the head")
    return list(dict.fromkeys(found))


def interfaces(links: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """``ip -json address`` as ``{interface: [addresses]}``, without link-local ones: those need a zone."""
    found: dict[str, list[str]] = {}
    for link in links:
        if link.get("ifname"):
            own = found.setdefault(str(link["ifname"]), [])
            for item in json_text.entries(link, "addr_info"):
                if item.get("scope") in ("global", "host") and not item.get("deprecated"):
                    own.append(str(item.get("local")))
    return found


def collide(one: str, other: str) -> bool:
    """Whether two sockets of the same port are in each other's way. Whether ``::`` is IPv4 as well cannot be seen."""
    return one == other or one in EVERYWHERE or other in EVERYWHERE


def conf(listeners: Sequence[Listener]) -> str:
    """For nginx, which includes it."""
    lines = [f"listen {item.where}{' ssl' if item.tls else ''};" for item in listeners]
    return "\n".join(["# Managed by sparkmatrix.cluster (role gateway).", *lines]) + "\n"


def host_names(hostname: str) -> list[str]:
    """By which clients may call this node; the second one is what mDNS answers to."""
    own = hostname.lower()
    return [name for name in (own, f"{own}.local") if is_dns_name(name)]


def endpoints(settings: Settings, listeners: Sequence[Listener], hostname: str) -> list[str]:
    """URLs that a client can resolve: names that were asked for, then addresses. A mere host name is none."""
    shown = [item for item in listeners if item.port != settings.local_port]
    if not shown:
        return [f"http://{item.where}/v1" for item in listeners]
    hosts = [name for name in settings.tls_names if "*" not in name]
    hosts += [item.address for item in shown if item.address not in EVERYWHERE]
    hosts = hosts or host_names(hostname)[-1:] or [shown[0].address]
    scheme = "https" if shown[0].tls else "http"
    return [f"{scheme}://{socket_name(host, settings.port)}/v1" for host in dict.fromkeys(hosts)]


def warnings(settings: Settings, listeners: Sequence[Listener]) -> list[str]:
    wide = [item for item in listeners if not ipaddress.ip_address(item.address).is_loopback]
    if wide and settings.tls == "off":
        where = ", ".join(item.where for item in wide)
        return [
            f"The API listens on {where} without TLS: keys and prompts can be read on the way. Take gateway_tls: off"
            " out of the inventory, or keep it to a network that you trust."
        ]
    return []


def firewall(listeners: Sequence[Listener], allow_from: Sequence[str]) -> list[str]:
    """What has to be opened, in the words of ``ufw show added``; nothing for loopback."""
    rules: list[str] = []
    for item in listeners:
        parsed = ipaddress.ip_address(item.address)
        if parsed.is_loopback:
            continue
        target = "any" if parsed.is_unspecified else item.address
        sources = [ipaddress.ip_network(text, strict=False) for text in allow_from]
        if not sources and target == "any":
            rules.append(f"allow {item.port}/tcp")
        elif not sources:
            rules.append(f"allow to {target} port {item.port} proto tcp")
        for one in sources:
            if one.version == parsed.version:
                source = str(one.network_address) if one.num_addresses == 1 else str(one)
                rules.append(f"allow from {source} to {target} port {item.port} proto tcp")
    return rules
