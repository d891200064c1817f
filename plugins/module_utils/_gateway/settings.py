# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the gateway is asked to be: the options of the module, typed. Checked by :mod:`_gateway.checks`, controller."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths, ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import is_address
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.names import ETC

_DNS = re.compile(r"(?=.{1,253}$)([a-z0-9*]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

MODELS = "/v1/models"
PATHS = (
    MODELS,
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/responses",
)

# Options of the module; the role has each as gateway_<option>, but for engines, which come from the plan.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "listen": {"type": "list", "elements": "str", "default": []},
    "port": {"type": "int", "default": 8443},
    "local_port": {"type": "int", "default": 8081},
    "engines": {
        "type": "list",
        "elements": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "model": {"type": "str", "required": True},
            "host": {"type": "str", "default": "127.0.0.1"},
            "port": {"type": "int", "default": ports.API},
            "key": {"type": "bool", "default": True, "no_log": False},
            "key_file": {"type": "path", "default": paths.ENGINE_KEY, "no_log": False},
            "task": {"type": "str", "choices": ["generate", "embed", "rank"], "default": "generate"},
        },
    },
    "keys": {
        "type": "list",
        "elements": "dict",
        "default": [{"name": "default"}],
        "no_log": False,
        "options": {"name": {"type": "str", "required": True}, "key": {"type": "str", "no_log": True}},
    },
    "paths": {"type": "list", "elements": "str", "default": list(PATHS)},
    "max_request_mib": {"type": "int", "default": 8},
    "requests_per_minute": {"type": "int", "default": 600},
    "burst": {"type": "int", "default": 100},
    "concurrent_requests": {"type": "int", "default": 64},
    "keys_per_address": {"type": "int", "default": 4, "no_log": False},
    "memory_mib": {"type": "int", "default": 1024},
    "timeout_s": {"type": "int", "default": 3600},
    "tls": {"type": "str", "choices": ["off", "own_ca", "files"], "default": "own_ca"},
    "tls_names": {"type": "list", "elements": "str", "default": []},
    "tls_certificate": {"type": "str", "default": ""},
    "tls_certificate_key": {"type": "str", "default": "", "no_log": False},
    "allow_from": {"type": "list", "elements": "str", "default": []},
    "limit_nofile": {"type": "int", "default": 16384},
}


@dataclass(frozen=True)
class Engine:
    """One engine behind the gateway, as the head reaches it. ``key_file`` empty: it asks for no key."""

    name: str
    model: str
    host: str = "127.0.0.1"
    port: int = ports.API
    key_file: str = paths.ENGINE_KEY
    task: str = "generate"  # what the cluster's own probe asks for

    @property
    def where(self) -> str:
        return socket_name(self.host, self.port)

    @property
    def here(self) -> bool:
        """On the head engines listen on loopback only; one of another node cannot be in the way."""
        return self.host == "localhost" or (is_address(self.host) and ipaddress.ip_address(self.host).is_loopback)

    @property
    def key_conf(self) -> str:
        return f"{ETC}/engine-key-{self.name}.conf"


@dataclass(frozen=True)
class Key:
    """``text`` empty: one is made on the node."""

    name: str
    text: str = ""


@dataclass(frozen=True)
class Settings:
    """What the role's variables say (roles/gateway/defaults/main.yml), and the engines of the plan."""

    listen: tuple[str, ...]
    engines: tuple[Engine, ...]
    keys: tuple[Key, ...] = (Key("default"),)
    port: int = 8443
    local_port: int = 8081
    paths: tuple[str, ...] = PATHS
    max_request_mib: int = 8
    requests_per_minute: int = 600
    burst: int = 100
    concurrent_requests: int = 64
    keys_per_address: int = 4
    memory_mib: int = 1024
    timeout_s: int = 3600
    tls: str = "own_ca"
    tls_names: tuple[str, ...] = ()
    tls_certificate: str = ""
    tls_certificate_key: str = ""
    allow_from: tuple[str, ...] = ()
    limit_nofile: int = 16384

    @property
    def routed(self) -> bool:
        """Several engines: nginx has to read requests."""
        return len(self.engines) > 1

    @property
    def large_requests(self) -> int:
        """How many requests of the largest size fit into the memory; the script that reads them has copies."""
        return self.memory_mib // (self.max_request_mib * (3 if self.routed else 1))

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


def read(options: Mapping[str, Any]) -> Settings:
    """From options that fit :data:`ARGUMENTS`."""
    values = {name: options[name] for name in ARGUMENTS}
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    values["engines"] = tuple(
        Engine(one["name"], one["model"], one["host"], one["port"], one["key_file"] if one["key"] else "", one["task"])
        for one in options["engines"] or ()
    )
    values["keys"] = tuple(Key(one["name"], one.get("key") or "") for one in options["keys"])
    return Settings(**values)


def socket_name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_dns_name(text: str) -> bool:
    """In small letters."""
    return bool(_DNS.fullmatch(text))
