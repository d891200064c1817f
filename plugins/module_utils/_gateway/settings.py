# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the gateway is asked to be, typed. Checked by :mod:`_gateway.checks` on the controller."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths, document, paths, ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import is_address
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.names import ETC

_DNS = re.compile(r"(?=.{1,253}$)([a-z0-9*]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

BURST = 100  # requests that may come at once


@dataclass(frozen=True)
class Engine:
    """One engine behind the gateway, as the head reaches it. ``key``: it asks for the one in ``key_file``."""

    name: str
    model: str
    host: str = "127.0.0.1"
    port: int = ports.API
    key: bool = True
    key_file: str = paths.ENGINE_KEY
    # What the cluster's own probe asks for.
    task: str = field(default="generate", metadata=document.one_of(*api_paths.PROBED))
    named: tuple[str, ...] = ()  # other models, that may take its place
    salted: tuple[str, ...] = ()  # paths at which it keeps clients apart in what it has computed

    @property
    def here(self) -> bool:
        """On the head engines listen on loopback only; one of another node cannot be in the way."""
        return self.host == "localhost" or (is_address(self.host) and ipaddress.ip_address(self.host).is_loopback)


@dataclass(frozen=True)
class Key:
    """Without one, ``key`` is made on the node. ``switch``: may have another model loaded."""

    name: str
    key: str = ""
    switch: bool = True


# How long the engine may send nothing: the wait in a full queue and the longest prefill, or the whole answer where it
# is not streamed.
SILENCE_S = 3600


@dataclass(frozen=True)
class Settings:
    """What the role's variables say (roles/gateway/defaults/main.yml), and the engines of the plan."""

    listen: tuple[str, ...] = ()
    engines: tuple[Engine, ...] = ()
    keys: tuple[Key, ...] = (Key("default"),)
    port: int = 8443
    local_port: int = 8081
    paths: tuple[str, ...] = (api_paths.MODELS, *api_paths.TASKS)
    max_request_mib: int = 8
    requests_per_minute: int = 600
    concurrent_requests: int = 64
    keys_per_address: int = 4
    memory_mib: int = 1024
    hold: int = 600
    tls: str = field(default="own_ca", metadata=document.one_of("off", "own_ca", "files"))
    tls_names: tuple[str, ...] = ()
    tls_certificate: str = ""
    tls_certificate_key: str = ""
    allow_from: tuple[str, ...] = ()

    @property
    def large_requests(self) -> int:
        """How many requests of the largest size fit into the memory: nginx has one copy, the relay another."""
        return self.memory_mib // (self.max_request_mib * 2)

    @property
    def hold_mib(self) -> int:
        """Of requests that wait for an engine, in the relay."""
        return max(self.memory_mib // 4, self.max_request_mib)

    @property
    def connections(self) -> int:
        """Of one address at a time, half of them idle between two requests; 0 is no limit, as for its requests."""
        return 2 * self.concurrent_requests * self.keys_per_address

    @property
    def certificate_paths(self) -> tuple[str, str]:
        """Where certificate and key come from; nginx reads copies of its own. Empty without TLS."""
        if self.tls == "own_ca":
            return f"{ETC}/tls/server.crt", f"{ETC}/tls/server.key"
        return self.tls_certificate, self.tls_certificate_key


def socket_name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_dns_name(text: str) -> bool:
    """In small letters."""
    return bool(_DNS.fullmatch(text))
