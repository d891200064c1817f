# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What is refused of the gateway's settings before a machine is asked for anything: a table of checks, all made."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import is_address
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.names import PROBE
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import (
    Settings,
    is_dns_name,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import secret as managed_secret

# Not for clients, with or without a key of theirs.
CLOSED = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
RANGES = {
    "port": (1, 65535),
    "local_port": (1, 65535),
    "max_request_mib": (1, 1024),
    "requests_per_minute": (0, 1000000),
    "concurrent_requests": (0, 65535),
    "keys_per_address": (0, 1000),
    "memory_mib": (1, 65535),
    "hold": (0, 3000),
}

_CLIENT = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}")
_PATH = re.compile(r"/v1/[A-Za-z0-9_./-]*[A-Za-z0-9_]")
_NETDEV = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,14}")
_FILE = re.compile(r"/[A-Za-z0-9._/+@-]+")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*|[0-9a-fA-F:]+")

Findings = Iterator[Finding]


def read(options: Mapping[str, Any]) -> tuple[Settings | None, list[Finding]]:
    """Settings from options as they were written, and everything that is wrong with them. None: they have no shape."""
    keys = options.get("keys", [])
    if not isinstance(keys, list) or not all(isinstance(key, Mapping) and "name" in key for key in keys):
        return None, [_wrong("gateway_keys is no list of {name, key}", "Write - name: alice, with or without a key")]
    tls = options.get("tls")
    if isinstance(tls, Mapping):
        if set(tls) != {"certificate", "key"}:
            return None, [_wrong("gateway_tls is no mapping of certificate and key", "Name both files on the head")]
        options = {**options, "tls": "files", "tls_certificate": tls["certificate"], "tls_certificate_key": tls["key"]}
    try:
        settings: Settings = document.load(Settings, options, "gateway", spoken=True)
    except (TypeError, ValueError) as exc:
        return None, [_wrong(f"gateway settings: {exc}", "Write it as docs/gateway.md shows")]
    return settings, [finding for check in CHECKS for finding in check(settings)]


def _wrong(found: str, remedy: str) -> Finding:
    return Finding("", found, remedy)


def check_listen(settings: Settings) -> Findings:
    for item in settings.listen:
        if not is_address(item) and not _NETDEV.fullmatch(item):
            yield _wrong(f"gateway_listen has {item!r}, no address and no interface", "Write 192.168.1.10 or enP7s7")


def check_ranges(settings: Settings) -> Findings:
    for name, (low, high) in RANGES.items():
        value = getattr(settings, name)
        if not low <= value <= high:
            yield _wrong(f"gateway_{name} is {value}, expected {low} to {high}", "")


def check_memory(settings: Settings) -> Findings:
    if settings.max_request_mib > 0 and settings.large_requests < 2:
        yield _wrong(
            f"gateway_memory_mib is {settings.memory_mib}, too little for two requests of gateway_max_request_mib"
            f" ({settings.max_request_mib})",
            "Each takes twice its size: raise the one or lower the other",
        )


def check_ports(settings: Settings) -> Findings:
    taken = {engine.port for engine in settings.engines if engine.here}
    for name in ("port", "local_port"):
        port = getattr(settings, name)
        if port in taken:
            yield _wrong(f"gateway_{name} is {port}, the engine's own port", f"Choose another gateway_{name}")
    if settings.port == settings.local_port:
        yield _wrong(
            f"gateway_port and gateway_local_port are both {settings.port}", "Choose another gateway_local_port"
        )


def check_engines(settings: Settings) -> Findings:
    if not settings.engines:
        yield _wrong("there is no engine to lead to", "Run the layers plan and gateway together")
    for engine in settings.engines:
        if not _CLIENT.fullmatch(engine.name):
            yield _wrong(f"an engine has the name {engine.name!r}", "Use small letters, digits and . _ - for a name")
        if not _HOST.fullmatch(engine.host) or not 1 <= engine.port <= 65535:
            yield _wrong(f"the engine {engine.name} is at {engine.host!r}, port {engine.port}, which is no address", "")
    for what, values in (
        ("name", [one.name for one in settings.engines]),
        ("model", [one.model for one in settings.engines]),
    ):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            yield _wrong(
                f"several engines have the {what} {', '.join(twice)}",
                "Requests are told apart by it: give one of them another name (engine_served_model_name)",
            )


def check_keys(settings: Settings) -> Findings:
    names = [key.name for key in settings.keys]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        yield _wrong(f"gateway_keys has {', '.join(twice)} more than once", "Give each key a name of its own")
    for key in settings.keys:
        if key.name == PROBE:
            yield _wrong(f"gateway_keys has the name {PROBE!r}", "It is taken by the cluster's own probes")
        elif not _CLIENT.fullmatch(key.name):
            yield _wrong(
                f"gateway_keys has the name {key.name!r}", "Use up to 32 small letters, digits and . _ - for a name"
            )
        if key.key and not managed_secret.usable(key.key):
            yield _wrong(
                f"the key of {key.name} in gateway_keys is shorter than {managed_secret.MIN_LENGTH} characters or has"
                " characters that need quoting",
                "Use letters, digits and . _ ~ + / = -, or give no key and one is made",
            )
    given = [key.key for key in settings.keys if key.key]
    if len(set(given)) != len(given):
        yield _wrong("two names in gateway_keys have the same key", "Removing one of them would not close it")


def check_paths(settings: Settings) -> Findings:
    for path in settings.paths:
        if path in CLOSED or not _PATH.fullmatch(path) or "//" in path or "/." in path:
            yield _wrong(
                f"gateway_paths has {path!r}",
                "Paths below /v1/ can be opened, without those that change the engine; the rest tells or does more than"
                " a client needs",
            )


def check_tls(settings: Settings) -> Findings:
    for name in ("tls_certificate", "tls_certificate_key"):
        path = getattr(settings, name)
        if settings.tls == "files" and not _FILE.fullmatch(path):
            yield _wrong(f"gateway_tls has {path!r}", "Write {certificate: PATH, key: PATH}, two files on the head")
    for name in settings.tls_names:
        if not is_address(name) and not is_dns_name(name):
            yield _wrong(f"gateway_tls_names has {name!r}", "Write a DNS name in small letters, or an address")


def check_allow_from(settings: Settings) -> Findings:
    for item in settings.allow_from:
        try:
            if "%" in str(ipaddress.ip_network(item, strict=False)):  # Python takes any text for the zone of an address
                raise ValueError(item)
        except ValueError:
            yield _wrong(f"gateway_allow_from has {item!r}, no address and no network", "Write it like 192.168.1.0/24")


CHECKS: tuple[Callable[[Settings], Findings], ...] = (
    check_listen,
    check_ranges,
    check_memory,
    check_ports,
    check_engines,
    check_keys,
    check_paths,
    check_tls,
    check_allow_from,
)
