# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The door: from what the user wants to the files of an nginx of our own. Pure; :mod:`_gateway.apply` acts.

nginx, because the distribution keeps it (Ubuntu main), limits rates and sizes without additions, and on a reload lets
the old workers finish their streams. It listens on what was asked for and on one loopback port, which the probes use.
One engine gets every request as it is; several are told apart by the model in the request (:mod:`_gateway.route`).
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, sentence
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import route
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import secret as managed_secret

SET = "gateway"
UNIT = "sparkmatrix-gateway.service"
WATCH = "sparkmatrix-gateway-certificate"
USER = "sparkmatrix-gateway"
NGINX = "/usr/sbin/nginx"
ETC = paths.GATEWAY
RUN = "/run/sparkmatrix-gateway"
DESCRIPTION = f"{paths.ETC}/gateway.json"
ROUTE = f"{ETC}/route.js"
NJS = "/usr/lib/nginx/modules/ngx_http_js_module.so"
STATUS_SOCKET = f"{RUN}/status.sock"
# The client that the cluster's own probes are; not limited, so that a busy door is no dead door.
PROBE = "probe"
AUTHORITY = "sparkmatrix.cluster gateway CA"
TLS_MODES = ("off", "own_ca", "files")
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
# Not for clients, with or without a key of theirs.
CLOSED = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
PRIVILEGED_PORTS = 1024

_CLIENT = re.compile(r"^[a-z0-9][a-z0-9_.-]{0,31}$")
_PATH = re.compile(r"^/v1/[A-Za-z0-9_./-]*[A-Za-z0-9_]$")
_NETDEV = re.compile(r"^[A-Za-z][A-Za-z0-9_.-]{0,14}$")
_DNS = re.compile(r"^(?=.{1,253}$)([a-z0-9*]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
_FILE = re.compile(r"^/[A-Za-z0-9._/+@-]+$")
_HOST = re.compile(r"^[A-Za-z0-9][A-Za-z0-9.-]*$|^[0-9a-fA-F:]+$")
_LOOPBACK = "127.0.0.1"
# Compared with what listens already; nothing is bound to it.
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104


@dataclass(frozen=True)
class Engine:
    """One engine behind the door, as the head reaches it. ``key_file`` empty: it asks for no key."""

    name: str
    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    key_file: str = paths.ENGINE_KEY
    task: str = "generate"  # what the cluster's own probe asks for

    @property
    def where(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def here(self) -> bool:
        """On the head engines listen on loopback only; one of another node cannot be in the way."""
        return self.host == "localhost" or (bool(_address(self.host)) and ipaddress.ip_address(self.host).is_loopback)

    @property
    def key_conf(self) -> str:
        return f"{ETC}/engine-key-{self.name}.conf"


@dataclass(frozen=True)
class Door:
    """What the role's variables say (roles/gateway/defaults/main.yml), and the engines of the plan.

    ``keys`` maps names of clients to the keys that were given for them; empty: one is made on the node.
    """

    listen: tuple[str, ...]
    engines: tuple[Engine, ...]
    keys: Mapping[str, str] = field(default_factory=lambda: {"default": ""})
    port: int = 8443
    local_port: int = 8081
    paths: tuple[str, ...] = PATHS
    max_request_mib: int = 8
    requests_per_minute: int = 600
    burst: int = 100
    concurrent: int = 64
    timeout_s: int = 3600
    tls: str = "off"
    tls_names: tuple[str, ...] = ()
    certificate: str = ""
    certificate_key: str = ""
    allow_from: tuple[str, ...] = ()
    limit_nofile: int = 16384

    @property
    def routed(self) -> bool:
        """Several engines: nginx has to read requests."""
        return len(self.engines) > 1

    @property
    def certificate_paths(self) -> tuple[str, str]:
        """Where certificate and key come from; nginx reads copies of its own."""
        if self.tls == "own_ca":
            return f"{ETC}/tls/server.crt", f"{ETC}/tls/server.key"
        return self.certificate, self.certificate_key


@dataclass(frozen=True)
class Listener:
    address: str
    port: int
    tls: bool = False

    @property
    def where(self) -> str:
        shown = f"[{self.address}]" if ":" in self.address else self.address
        return f"{shown}:{self.port}"


def door(params: Mapping[str, Any]) -> Door:
    """From the options of the module. Raises :class:`SparkError` for two keys of one name."""
    names = [str(item["name"]) for item in params["keys"]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SparkError(f"gateway_keys has {', '.join(twice)} more than once", "", "Give each key a name of its own")
    return Door(
        listen=tuple(params["listen"]),
        engines=tuple(
            Engine(
                str(item["name"]),
                str(item["model"]),
                str(item["host"]),
                int(item["port"]),
                str(item["key_file"]) if item["key"] else "",
                str(item["task"]),
            )
            for item in params["engines"]
        ),
        keys={str(item["name"]): str(item.get("key") or "") for item in params["keys"]},
        port=params["port"],
        local_port=params["local_port"],
        paths=tuple(params["paths"]),
        max_request_mib=params["max_request_mib"],
        requests_per_minute=params["requests_per_minute"],
        burst=params["burst"],
        concurrent=params["concurrent"],
        timeout_s=params["timeout"],
        tls=params["tls"],
        tls_names=tuple(params["tls_names"]),
        certificate=params["certificate"] or "",
        certificate_key=params["certificate_key"] or "",
        allow_from=tuple(params["allow_from"]),
        limit_nofile=params["limit_nofile"],
    )


# --- judging ---------------------------------------------------------------------------------------------------------


def problems(door: Door) -> list[str]:
    """Everything that is wrong with the settings, each with what to change."""
    found = []
    for item in door.listen:
        if not _address(item) and not _NETDEV.match(item):
            found.append(
                sentence(
                    f"gateway_listen has {item!r}, no address and no interface", "", "Write 192.168.1.10 or enP7s7"
                )
            )
    for name, port in (("gateway_port", door.port), ("gateway_local_port", door.local_port)):
        if not 1 <= port <= 65535:
            found.append(f"{name} is {port}, expected 1 to 65535.")
        elif port in {engine.port for engine in door.engines if engine.here}:
            found.append(sentence(f"{name} is {port}, the engine's own port", "", f"Choose another {name}"))
    if door.port == door.local_port:
        found.append(
            sentence(
                f"gateway_port and gateway_local_port are both {door.port}", "", "Choose another gateway_local_port"
            )
        )
    found += _engine_problems(door.engines)
    for name in door.keys:
        if name == PROBE:
            found.append(
                sentence(f"gateway_keys has the name {PROBE!r}", "", "It is taken by the cluster's own probes")
            )
        elif not _CLIENT.match(name):
            found.append(
                sentence(
                    f"gateway_keys has the name {name!r}", "", "Use up to 32 small letters, digits and . _ - for a name"
                )
            )
    for name, key in door.keys.items():
        if key and not managed_secret.usable(key):
            found.append(
                sentence(
                    f"the key of {name} in gateway_keys is shorter than {managed_secret.MIN_LENGTH} characters or has"
                    " characters that need quoting",
                    "",
                    "Use letters, digits and . _ ~ + / = -, or give no key and one is made",
                )
            )
    given = [key for key in door.keys.values() if key]
    if len(set(given)) != len(given):
        found.append(
            sentence("two names in gateway_keys have the same key", "", "Removing one of them would not close it")
        )
    for path in door.paths:
        if path in CLOSED or not _PATH.match(path) or "//" in path or "/." in path:
            found.append(
                sentence(
                    f"gateway_paths has {path!r}",
                    "",
                    "Paths below /v1/ can be opened, without those that change the engine; the rest tells or does more"
                    " than a client needs",
                )
            )
    ranges = (
        ("gateway_max_request_mib", door.max_request_mib, 1, 1024),
        ("gateway_requests_per_minute", door.requests_per_minute, 0, 1000000),
        ("gateway_burst", door.burst, 0, 100000),
        ("gateway_concurrent_requests", door.concurrent, 0, 65535),
        ("gateway_timeout_s", door.timeout_s, 60, 86400),
    )
    found += [
        f"{name} is {value}, expected {low} to {high}." for name, value, low, high in ranges if not low <= value <= high
    ]
    if door.tls not in TLS_MODES:
        found.append(f"gateway_tls is {door.tls!r}, expected one of {', '.join(TLS_MODES)}.")
    if door.tls == "files":
        for name, path in (
            ("gateway_tls_certificate", door.certificate),
            ("gateway_tls_certificate_key", door.certificate_key),
        ):
            if not _FILE.match(path):
                found.append(sentence(f"{name} is {path!r}", "", "With gateway_tls: files it names a file on the head"))
    for name in door.tls_names:
        if not _address(name) and not _DNS.match(name):
            found.append(
                sentence(f"gateway_tls_names has {name!r}", "", "Write a DNS name in small letters, or an address")
            )
    for item in door.allow_from:
        try:
            ipaddress.ip_network(item, strict=False)
        except ValueError:
            found.append(
                sentence(
                    f"gateway_allow_from has {item!r}, no address and no network", "", "Write it like 192.168.1.0/24"
                )
            )
    return found


def _engine_problems(engines: Sequence[Engine]) -> list[str]:
    if not engines:
        return [
            sentence("there is no engine to lead to", "gateway engines", "Run the layers plan and gateway together")
        ]
    found = []
    for engine in engines:
        if not _CLIENT.match(engine.name):
            found.append(
                sentence(
                    f"an engine has the name {engine.name!r}", "", "Use small letters, digits and . _ - for a name"
                )
            )
        if not _HOST.match(engine.host) or not 1 <= engine.port <= 65535:
            found.append(f"the engine {engine.name} is at {engine.host!r}, port {engine.port}, which is no address.")
    for what, values in (("name", [one.name for one in engines]), ("model", [one.model for one in engines])):
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            found.append(
                sentence(
                    f"several engines have the {what} {', '.join(twice)}",
                    "",
                    "Requests are told apart by it: give one of them another name (engine_served_model_name)",
                )
            )
    return found


def warnings(door: Door, listeners: Sequence[Listener]) -> list[str]:
    wide = [item for item in listeners if not ipaddress.ip_address(item.address).is_loopback]
    if wide and door.tls == "off":
        where = ", ".join(item.where for item in wide)
        return [
            f"The API listens on {where} without TLS: keys and prompts can be read on the way. Set gateway_tls: own_ca,"
            " or keep it to a network that you trust."
        ]
    return []


def resolve(door: Door, interfaces: Mapping[str, Sequence[str]]) -> list[Listener]:
    """Addresses and interfaces as listeners, the one on loopback first. ``interfaces``: ``{name: [addresses]}``."""
    found = [Listener(_LOOPBACK, door.local_port)]
    missing = []
    for item in door.listen:
        addresses = [item] if _address(item) else list(interfaces.get(item, ()))
        if not addresses:
            why = (
                "has no address" if item in interfaces else f"is not there (there are {', '.join(sorted(interfaces))})"
            )
            missing.append(f"the interface {item} {why}")
        own = {one for several in interfaces.values() for one in several}
        for address in addresses:
            parsed = ipaddress.ip_address(address)
            if not parsed.is_unspecified and str(parsed) not in own:
                missing.append(f"this node has no address {address} (it has {', '.join(sorted(own))})")
            found.append(Listener(str(parsed), door.port, door.tls != "off"))
    if missing:
        raise SparkError("; ".join(missing), "gateway_listen", "Name addresses or interfaces of the head")
    return list(dict.fromkeys(found))


def interfaces(document: Any) -> dict[str, list[str]]:
    """``ip -json address`` as ``{interface: [addresses]}``, without link-local ones: those need a zone."""
    found: dict[str, list[str]] = {}
    for link in document if isinstance(document, list) else []:
        if isinstance(link, Mapping) and link.get("ifname"):
            own = found.setdefault(str(link["ifname"]), [])
            for item in link.get("addr_info") or []:
                if item.get("scope") in ("global", "host") and not item.get("deprecated"):
                    own.append(str(item.get("local")))
    return found


def collide(one: str, other: str) -> bool:
    """Whether two sockets of the same port are in each other's way. Whether ``::`` is IPv4 as well cannot be seen."""
    return one == other or one in EVERYWHERE or other in EVERYWHERE


def firewall(listeners: Sequence[Listener], allow_from: Sequence[str]) -> list[str]:
    """What has to be opened, in the words of ``ufw show added``; nothing for loopback."""
    rules: list[str] = []
    for item in listeners:
        address = ipaddress.ip_address(item.address)
        if address.is_loopback:
            continue
        target = "any" if address.is_unspecified else item.address
        sources = [ipaddress.ip_network(text, strict=False) for text in allow_from]
        fitting = [one for one in sources if one.version == address.version]
        if not sources and target == "any":
            rules.append(f"allow {item.port}/tcp")
        elif not sources:
            rules.append(f"allow to {target} port {item.port} proto tcp")
        for one in fitting:
            source = str(one.network_address) if one.num_addresses == 1 else str(one)
            rules.append(f"allow from {source} to {target} port {item.port} proto tcp")
    return rules


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""


# --- certificates ----------------------------------------------------------------------------------------------------


def certificate_names(door: Door, listeners: Sequence[Listener], hostname: str) -> list[str]:
    """Names and addresses that the certificate is for, the host's name first where it is one."""
    addresses = [item.address for item in listeners if not ipaddress.ip_address(item.address).is_unspecified]
    own = [hostname.lower()] if _DNS.match(hostname.lower()) else []
    return list(dict.fromkeys([*own, *door.tls_names, "localhost", *addresses]))


def openssl_conf(names: Sequence[str]) -> str:
    """For ``openssl req -x509``, with a section for the authority and one for the certificate; nothing of /etc/ssl."""
    kinds = ", ".join(f"{'IP' if _address(name) else 'DNS'}:{name}" for name in names)
    return f"""[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = {kinds}
authorityKeyIdentifier = keyid
"""


# --- what is written -------------------------------------------------------------------------------------------------


def error(message: str, kind: str, code: str) -> str:
    """An error as OpenAI's API has them, as a quoted word of nginx's configuration."""
    text = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    if "'" in text or "$" in text or "\\" in text:
        raise ValueError(f"a message that nginx would read differently: {text}")
    return f"'{text}'"


def answers(door: Door) -> dict[str, tuple[int, str, str]]:
    """``{name: (status, header, body)}`` of what the door says itself."""
    return {
        "unknown": (
            404,
            "",
            error(
                f"There is no such path here. Open are {', '.join(door.paths)}.",
                "invalid_request_error",
                "unknown_path",
            ),
        ),
        "unauthorized": (
            401,
            'WWW-Authenticate "Bearer"',
            error(
                "The API key is missing or wrong. Send it as Authorization: Bearer <key>; keys are given out by whoever"
                " runs this cluster.",
                "invalid_request_error",
                "invalid_api_key",
            ),
        ),
        "too_large": (
            413,
            "",
            error(
                f"The request is larger than {door.max_request_mib} MiB. Shorten the prompt or scale images down; the"
                " limit is gateway_max_request_mib.",
                "invalid_request_error",
                "request_too_large",
            ),
        ),
        "too_many": (
            429,
            'Retry-After "10"',
            error(
                "Too many requests with this key at once or in this minute. Wait and try again.",
                "rate_limit_error",
                "rate_limit_exceeded",
            ),
        ),
        "engine_down": (
            503,
            'Retry-After "30"',
            error(
                "The engine does not answer: it is starting, stopped or has failed. Try again in a minute; on the head,"
                " systemctl status sparkmatrix-engine says more.",
                "server_error",
                "engine_unavailable",
            ),
        ),
        "engine_slow": (
            504,
            "",
            error(
                f"The engine sent nothing for {door.timeout_s} s. Stream the answer, or ask for fewer tokens.",
                "server_error",
                "engine_timeout",
            ),
        ),
        "engine_key": (
            502,
            "",
            error(
                "The engine refused the key of this gateway; yours is right. Run the layer gateway again, which reads"
                " the key of the engine anew.",
                "server_error",
                "gateway_misconfigured",
            ),
        ),
    }


def nginx_conf(door: Door, listeners: Sequence[Listener], config_hash: str) -> str:
    """The whole configuration, without secrets."""
    size = f"{door.max_request_mib}m"
    # The script reads what is in memory. Of a request in chunks the lengths of the chunks are there too.
    kept = f"{door.max_request_mib * 2 if door.routed else door.max_request_mib}m"
    limits = ["limit_req_status 429;", "limit_conn_status 429;"]
    zones = ["limit_req_zone $binary_remote_addr zone=strangers:1m rate=60r/m;"]
    if door.requests_per_minute:
        zones.append(f"limit_req_zone $gateway_limited zone=requests:1m rate={door.requests_per_minute}r/m;")
        limits.append(f"limit_req zone=requests{f' burst={door.burst} nodelay' if door.burst else ''};")
    if door.concurrent:
        zones.append("limit_conn_zone $gateway_limited zone=streams:1m;")
        limits.append(f"limit_conn streams {door.concurrent};")
    tls = []
    if any(item.tls for item in listeners):
        tls = [
            f"ssl_certificate {RUN}/tls.crt;",
            f"ssl_certificate_key {RUN}/tls.key;",
            "ssl_protocols TLSv1.2 TLSv1.3;",
            "ssl_session_cache shared:tls:2m;",
            "ssl_session_tickets off;",
        ]
    said = answers(door)
    lines = [
        "# Managed by sparkmatrix.cluster (role gateway).",
        *([f"load_module {NJS};"] if door.routed else []),
        f"pid {RUN}/nginx.pid;",
        "error_log stderr warn;",
        "worker_processes 4;",
        "events { worker_connections 2048; }",
        "http {",
        *_indented(
            "server_tokens off;",
            "default_type application/json;",
            *(f"{part}_temp_path {RUN}/{part};" for part in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")),
            "log_format door '$remote_addr $gateway_client $request_method $uri $status $bytes_sent bytes"
            " $request_time s, engine $upstream_status';",
            "access_log syslog:server=unix:/dev/log,nohostname,tag=sparkmatrix_gateway door;",
            f"include {ETC}/keys.conf;",
            f'map $gateway_client $gateway_limited {{ default $gateway_client; {PROBE} ""; }}',
            *zones,
            *_upstreams(door),
            "",
            "# Which configuration runs, asked by the role after a reload.",
            "server {",
            *_indented(
                f"listen unix:{STATUS_SOCKET};",
                "access_log off;",
                f"location = /configuration {{ default_type text/plain; return 200 {config_hash}; }}",
            ),
            "}",
            "",
            "server {",
            *_indented(
                *(f"listen {item.where}{' ssl' if item.tls else ''};" for item in listeners),
                *tls,
                "client_header_timeout 30s;",
                "client_body_timeout 60s;",
                "send_timeout 300s;",
                f"client_max_body_size {size};",
                "# Prompts stay in memory: nothing of them is written to a disk.",
                f"client_body_buffer_size {kept};",
                *limits,
                "",
                "proxy_http_version 1.1;",
                "proxy_buffering off;",
                "proxy_buffer_size 16k;",
                "proxy_buffers 8 16k;",
                "proxy_connect_timeout 5s;",
                "proxy_send_timeout 60s;",
                f"proxy_read_timeout {door.timeout_s}s;",
                "proxy_next_upstream off;",
                *([] if door.routed else _headers(door.engines[0])),
                "# The engine's own errors pass, but for a 401: that one is not about the client's key.",
                "proxy_intercept_errors on;",
                "error_page 401 = @engine_key;",
                "error_page 413 = @too_large;",
                "error_page 429 = @too_many;",
                "error_page 502 = @engine_down;",
                "error_page 504 = @engine_slow;",
                *_answer_locations(said),
                "",
                "# A wrong key ends here, and who tries many has to wait.",
                "location = /.sparkmatrix/unauthorized {",
                *_indented(
                    "internal;",
                    "limit_req zone=strangers burst=30 nodelay;",
                    "error_page 403 = @unauthorized;",
                    "error_page 404 = @unknown;",
                    "error_page 429 = @too_many;",
                    "deny all;",
                ),
                "}",
                "",
                "# The path is written out: what the client wrote may mean another one to the engine.",
                *(line for path in door.paths for line in _open(door, path)),
                *(line for number, engine in enumerate(door.engines) for line in _engine(door, number, engine)),
                f"location / {{ return 404 {said['unknown'][2]}; }}",
            ),
            "}",
        ),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _answer_locations(said: Mapping[str, tuple[int, str, str]]) -> list[str]:
    found = []
    for name, (status, header, body) in said.items():
        told = f"add_header {header} always; " if header else ""
        found.append(f"location @{name} {{ {told}return {status} {body}; }}")
    return found


def _upstreams(door: Door) -> list[str]:
    if not door.routed:
        return [f"upstream engine {{ server {door.engines[0].where} max_fails=0; }}"]
    return [
        *(f"upstream engine{n} {{ server {one.where} max_fails=0; }}" for n, one in enumerate(door.engines)),
        f"js_import route from {ROUTE};",
        "# A list of models.",
        "subrequest_output_buffer_size 1m;",
    ]


def _headers(engine: Engine) -> list[str]:
    return [f"include {engine.key_conf};", 'proxy_set_header X-Forwarded-For "";']


def _open(door: Door, path: str) -> list[str]:
    if not door.routed:
        target = f"proxy_pass http://engine{path};"
    else:
        target = f"js_content route.{'models' if path == MODELS else 'pick'};"
    return [
        f"location = {path} {{",
        *_indented('if ($gateway_client = "") { rewrite ^ /.sparkmatrix/unauthorized last; }', target),
        "}",
    ]


def _engine(door: Door, number: int, engine: Engine) -> list[str]:
    """Where the script leads to: requests for an engine, and the question which models it has."""
    if not door.routed:
        return []
    return [
        f"location @engine{number} {{",
        # The path here is one of those that are open, letter by letter.
        *_indented(*_headers(engine), f"proxy_pass http://engine{number}$uri$is_args$args;"),
        "}",
        f"location = {route.INSIDE}{number} {{",
        *_indented(
            "internal;",
            "error_page 404 = @unknown;",
            *_headers(engine),
            "proxy_pass_request_headers off;",
            "proxy_pass_request_body off;",
            'proxy_set_header Content-Length "";',
            "proxy_connect_timeout 2s;",
            "proxy_read_timeout 10s;",
            f"proxy_pass http://engine{number}{MODELS};",
        ),
        "}",
    ]


def _indented(*lines: str) -> list[str]:
    return [f"    {line}" if line else "" for line in lines]


def keys_conf(keys: Mapping[str, str]) -> str:
    """Who is who. As expressions, because nginx compares plain words without regard to case."""
    lines = [f'    "~^[Bb]earer {_literal(key)}$" {name};' for name, key in sorted(keys.items()) if key]
    head = [
        "# Managed by sparkmatrix.cluster (role gateway).",
        "map $http_authorization $gateway_client {",
        '    default "";',
    ]
    return "\n".join([*head, *lines, "}"]) + "\n"


def _literal(key: str) -> str:
    """A key as a regular expression; of its characters only these two mean something else."""
    return re.sub(r"([.+])", r"[\1]", key)


def engine_key_conf(key: str) -> str:
    """Never the client's own key, also where the engine asks for none."""
    value = f"Bearer {key}" if key else ""
    return f'# Managed by sparkmatrix.cluster (role gateway).\nproxy_set_header Authorization "{value}";\n'


def route_js(door: Door) -> str:
    return route.script([engine.model for engine in door.engines])


def unit_text(door: Door) -> str:
    """The unit. Its hash is an argument of nginx, whose title keeps it: so the process tells what it was started as."""
    text = _unit(door)
    mark = config_hash(text)
    return text.replace("@MARK@", mark)


def unit_mark(text: str) -> str:
    """The hash in a unit or in the title of a process."""
    found = re.search(r"SPARKMATRIX_UNIT=([0-9a-f]{12})", text)
    return found[1] if found else ""


def _unit(door: Door) -> str:
    copy = []
    if door.tls != "off":
        certificate, key = door.certificate_paths
        install = f"/usr/bin/install -o {USER} -g {USER} -m 0400"
        copy = [f"{install} {certificate} {RUN}/tls.crt", f"{install} {key} {RUN}/tls.key"]
    capabilities = "CAP_NET_BIND_SERVICE" if door.port < PRIVILEGED_PORTS else ""
    reload = [*(f"ExecReload=+{command}" for command in copy), "ExecReload=/bin/kill -HUP $MAINPID"]
    return "\n".join(
        [
            "# Managed by sparkmatrix.cluster (role gateway).",
            "[Unit]",
            "Description=Door to the inference engine (nginx)",
            "Documentation=https://nginx.org/en/docs/",
            f"Wants=network-online.target{f' {WATCH}.path' if door.tls == 'files' else ''}",
            "After=network-online.target",
            "# An address may come later than the boot: it is tried until it is there.",
            "StartLimitIntervalSec=0",
            "",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
            "[Service]",
            "Type=exec",
            f"User={USER}",
            f"Group={USER}",
            f"RuntimeDirectory={RUN.rpartition('/')[2]}",
            "RuntimeDirectoryMode=0700",
            "UMask=0077",
            *(f"ExecStartPre=+{command}" for command in copy),
            f'ExecStart={NGINX} -c {ETC}/nginx.conf -g "daemon off; env SPARKMATRIX_UNIT=@MARK@;"',
            *reload,
            "# Answers that are being written get half a minute.",
            "KillSignal=SIGQUIT",
            "KillMode=mixed",
            "TimeoutStopSec=30",
            "Restart=always",
            "RestartSec=5",
            f"LimitNOFILE={door.limit_nofile}",
            f"CapabilityBoundingSet={capabilities}",
            f"AmbientCapabilities={capabilities}",
            "NoNewPrivileges=yes",
            "ProtectSystem=strict",
            "ProtectHome=yes",
            "PrivateTmp=yes",
            "PrivateDevices=yes",
            "ProtectKernelTunables=yes",
            "ProtectKernelModules=yes",
            "ProtectKernelLogs=yes",
            "ProtectControlGroups=yes",
            "ProtectClock=yes",
            "ProtectHostname=yes",
            "ProtectProc=invisible",
            "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
            "RestrictNamespaces=yes",
            "RestrictRealtime=yes",
            "RestrictSUIDSGID=yes",
            "LockPersonality=yes",
            "MemoryDenyWriteExecute=yes",
            "SystemCallArchitectures=native",
            "SystemCallFilter=@system-service",
            "",
        ]
    )


def watch_units(door: Door) -> dict[str, str]:
    """Units that take a renewed certificate up, whoever renews it; they start and stop with the service."""
    if door.tls != "files":
        return {}
    head = "# Managed by sparkmatrix.cluster (role gateway).\n[Unit]\nDescription="
    certificate = door.certificate_paths[0]
    return {
        f"{WATCH}.path": f"{head}Certificate of the door\nPartOf={UNIT}\n\n[Path]\n"
        "# Of a link, systemd watches what it leads to; ACME clients lead it elsewhere. So the directory, too.\n"
        f"PathChanged={certificate}\nPathChanged={certificate.rpartition('/')[0] or '/'}\nUnit={WATCH}.service\n",
        f"{WATCH}.service": f"{head}Take up the renewed certificate of the door\n\n[Service]\nType=oneshot\n"
        "# Certificate and key are replaced one after the other, and what changes meanwhile starts nothing anew.\n"
        "ExecStartPre=/usr/bin/sleep 2\n"
        f"ExecStart=/usr/bin/systemctl reload {UNIT}\n",
    }


def description(door: Door, listeners: Sequence[Listener]) -> str:
    """``/etc/sparkmatrix/gateway.json``: the door as ``sparkmatrix-node probe --config`` reads it, and where it is."""
    document = {
        "host": _LOOPBACK,
        "port": door.local_port,
        "model": door.engines[0].model,
        "task": door.engines[0].task,
        "models": [engine.model for engine in door.engines],
        "key_file": f"{ETC}/keys/{PROBE}.key",
        "endpoints": endpoints(door, listeners),
    }
    return json.dumps(document, indent=4, sort_keys=True) + "\n"


def endpoints(door: Door, listeners: Sequence[Listener]) -> list[str]:
    shown = [item for item in listeners if item.port != door.local_port] or list(listeners)
    return [f"{'https' if item.tls else 'http'}://{item.where}/v1" for item in shown]
