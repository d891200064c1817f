# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A certificate of an ACME authority (RFC 8555) for the door. Pure; :mod:`_gateway.certificate` acts.

certbot, because it is the client that the authors of the protocol keep, Debian and Ubuntu package it, and its options
have been the same for years. It answers the challenge (HTTP-01) by a server of its own that is there for these seconds
only; nginx needs no certificate to get one, and nothing listens on port 80 in between. Account and certificates are in
a directory of ours, one for each authority, so that changing it leaves the old one whole until the new one works;
certbot's own timer and ``/etc/letsencrypt`` are not used.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import sentence

LETS_ENCRYPT = "https://acme-v02.api.letsencrypt.org/directory"
CERTBOT = "/usr/bin/certbot"
PLACE = "/etc/sparkmatrix/gateway/acme"
SERVICE = "sparkmatrix-gateway-acme.service"
TIMER = "sparkmatrix-gateway-acme.timer"
LINEAGE = "door"
# What authorities call, whatever port this machine answers at (RFC 8555, 8.3).
CALLED_PORT = 80
# An authority tries more than once, from several places.
TIMEOUT_S = 300

_DIRECTORY = re.compile(r"^https://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]*)?$")
_EMAIL = re.compile(r"^[A-Za-z0-9._+-]+@[A-Za-z0-9.-]+$")
_FILE = re.compile(r"^/[A-Za-z0-9._/+@-]+$")
_NAME = re.compile(r"^(?=.{1,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
_SPOKEN = re.compile(r"^\s*Domain: (?P<name>\S+)\s+Type: +(?P<kind>\S+)\s+Detail: (?P<detail>.+)$", re.M)

# What certbot prints around what is wrong.
_NOISE = ("Ask for help", "Saving debug log", "See the logfile", "Some challenges have failed", "Hint:")


@dataclass(frozen=True)
class Acme:
    """Who signs, and how it comes in. ``port``: where it arrives here; something may forward port 80 to it."""

    directory: str = LETS_ENCRYPT
    email: str = ""
    agree_tos: bool = False
    port: int = CALLED_PORT
    ca_certificate: str = ""
    allow_from: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        return f"{PLACE}/{hashlib.sha256(self.directory.encode()).hexdigest()[:12]}"

    @property
    def certificate_paths(self) -> tuple[str, str]:
        live = f"{self.place}/live/{LINEAGE}"
        return f"{live}/fullchain.pem", f"{live}/privkey.pem"


def problems(acme: Acme, names: Sequence[str], taken: Mapping[int, str]) -> list[str]:
    """Everything that is wrong with the settings. ``taken``: ``{port: variable}`` of the door and its engines."""
    found = []
    if not names:
        found.append(
            sentence(
                "gateway_tls_names is empty",
                "",
                "With gateway_tls: acme it has the DNS names by which clients call the head",
            )
        )
    for name in names:
        if _is_address(name) or not _NAME.match(name):
            found.append(
                sentence(
                    f"gateway_tls_names has {name!r}, for which the challenge HTTP-01 does not work",
                    "",
                    "Write DNS names in small letters, without wildcards",
                )
            )
    if not acme.agree_tos:
        found.append(
            sentence(
                "gateway_acme_agree_tos is false",
                "",
                f"Read the terms of service of the authority ({acme.directory} links to them) and set it to true",
            )
        )
    if not _DIRECTORY.match(acme.directory):
        found.append(sentence(f"gateway_acme_directory is {acme.directory!r}", "", f"Write a URL like {LETS_ENCRYPT}"))
    if acme.email and not _EMAIL.match(acme.email):
        found.append(sentence(f"gateway_acme_email is {acme.email!r}", "", "Write one address, or none"))
    if acme.ca_certificate and not _FILE.match(acme.ca_certificate):
        found.append(
            sentence(
                f"gateway_acme_ca_certificate is {acme.ca_certificate!r}",
                "",
                "It names a file on the head with the certificate that the authority's own https is signed by",
            )
        )
    if not 1 <= acme.port <= 65535:
        found.append(f"gateway_acme_port is {acme.port}, expected 1 to 65535.")
    elif acme.port in taken:
        found.append(
            sentence(
                f"gateway_acme_port is {acme.port}, which {taken[acme.port]} is, too", "", "Choose another for one"
            )
        )
    for item in acme.allow_from:
        try:
            ipaddress.ip_network(item, strict=False)
        except ValueError:
            found.append(
                sentence(
                    f"gateway_acme_allow_from has {item!r}, no address and no network", "", "Write it like 192.0.2.7"
                )
            )
    return found


def judge_names(
    resolved: Mapping[str, Sequence[str]], own: Sequence[str], port: int = CALLED_PORT
) -> tuple[list[str], list[str]]:
    """(refusals, warnings) about where the names lead. ``own``: the addresses at which the door listens.

    An address of this machine's own loopback says nothing: Debian writes it into /etc/hosts for the host's name.
    """
    refused, warned = [], []
    here = ", ".join(own)
    for name, addresses in resolved.items():
        if not addresses:
            refused.append(
                sentence(f"{name} of gateway_tls_names does not resolve", "", f"Make a DNS record for it: {here}")
            )
            continue
        told = [one for one in addresses if not ipaddress.ip_address(one).is_loopback]
        elsewhere = [one for one in told if one not in own]
        if not elsewhere:
            continue
        where = ", ".join(elsewhere)
        if len(elsewhere) < len(told):
            warned.append(f"{name} leads to {where} as well, which is not this door: the authority may ask there.")
        elif _forwarded(elsewhere, own):
            warned.append(
                f"{name} leads to {where}, which is no address of this machine: port {CALLED_PORT} there has to be"
                f" forwarded to port {port} of {here}."
            )
        else:
            refused.append(
                sentence(
                    f"{name} of gateway_tls_names leads to {where}, and the door is at {here}",
                    "",
                    "Correct the DNS record, or gateway_listen",
                )
            )
    return refused, warned


def _forwarded(elsewhere: Sequence[str], own: Sequence[str]) -> bool:
    """A public address, and a door that has none: a router between both may lead in."""
    return all(not _private(one) for one in elsewhere) and all(_private(one) for one in own)


def _private(address: str) -> bool:
    return not ipaddress.ip_address(address).is_global


def challenge_address(resolved: Mapping[str, Sequence[str]], own: Sequence[str]) -> str:
    """Where the challenge is answered: one address where that can be known, otherwise all (empty)."""
    told = {one for addresses in resolved.values() for one in addresses}
    fitting = [one for one in own if one in told] or list(own)
    return fitting[0] if len(fitting) == 1 else ""


def argv(acme: Acme, names: Sequence[str], address: str) -> list[str]:
    """Get the certificate, or renew it when it is time; nothing happens in between."""
    contact = ["--email", acme.email, "--no-eff-email"] if acme.email else ["--register-unsafely-without-email"]
    return [
        *(CERTBOT, "certonly", "--non-interactive", "--standalone", "--preferred-challenges", "http-01"),
        *("--server", acme.directory, "--agree-tos", *contact),
        *("--config-dir", acme.place, "--work-dir", f"{acme.place}/work", "--logs-dir", f"{acme.place}/logs"),
        *("--max-log-backups", "5", "--cert-name", LINEAGE, "--key-type", "ecdsa"),
        *("--keep-until-expiring", "--renew-with-new-domains", "--http-01-port", str(acme.port)),
        *(("--http-01-address", address) if address else ()),
        *("--domains", ",".join(names)),
    ]


def units(acme: Acme, names: Sequence[str], address: str) -> dict[str, str]:
    """The service that gets and renews, and the timer that asks it to."""
    head = "# Managed by sparkmatrix.cluster (role gateway).\n[Unit]\nDescription="
    trust = [f"Environment=REQUESTS_CA_BUNDLE={acme.ca_certificate}"] if acme.ca_certificate else []
    service = [
        f"{head}Certificate of the door from {acme.directory}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=oneshot",
        f"TimeoutStartSec={TIMEOUT_S}",
        "UMask=0077",
        "Environment=LC_ALL=C.UTF-8",
        *trust,
        f"ExecStart={' '.join(argv(acme, names, address))}",
        "CapabilityBoundingSet=CAP_NET_BIND_SERVICE",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        f"ReadWritePaths={acme.place}",
        "ProtectHome=read-only",
        "PrivateTmp=yes",
        "PrivateDevices=yes",
        "ProtectKernelTunables=yes",
        "ProtectKernelModules=yes",
        "ProtectKernelLogs=yes",
        "ProtectControlGroups=yes",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
        "RestrictNamespaces=yes",
        "RestrictRealtime=yes",
        "RestrictSUIDSGID=yes",
        "LockPersonality=yes",
        "SystemCallArchitectures=native",
        "",
    ]
    # Four times a day: internal authorities give certificates for a day, too.
    timer = [
        f"{head}Renew the certificate of the door in time",
        "",
        "[Install]",
        "WantedBy=timers.target",
        "",
        "[Timer]",
        "OnCalendar=*-*-* 00/6:00:00",
        "RandomizedDelaySec=2h",
        "Persistent=yes",
        "",
    ]
    return {SERVICE: "\n".join(service), TIMER: "\n".join(timer)}


def complaint(text: str) -> str:
    """What the authority or certbot said is wrong, of all that certbot prints."""
    spoken = [f"{one['name']}: {one['detail'].strip()} ({one['kind']})" for one in _SPOKEN.finditer(text)]
    if spoken:
        return "; ".join(dict.fromkeys(spoken))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(" ")]
    told = [line for line in lines if not line.startswith(_NOISE)]
    return " ".join(told[-2:]) or "it printed nothing"


def remedy(text: str, acme: Acme) -> str:
    """What to do about it."""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "Name the certificate that the authority's own https is signed by: gateway_acme_ca_certificate"
    if "urn:ietf:params:acme:error:rateLimited" in text or "Type:   rateLimited" in text:
        return "Wait as long as it says; try with the authority's directory for tests (staging) first"
    if "ConnectionError" in text or "Max retries" in text:
        return f"Look whether the head reaches {acme.directory}"
    if "Could not bind" in text:
        return (
            f"Something else listens at port {acme.port} of this machine: ss -ltnp names it. Stop it, or choose another"
            " gateway_acme_port"
        )
    if _SPOKEN.search(text):
        return (
            f"The authority asks http://NAME:{CALLED_PORT}/.well-known/acme-challenge/, which has to come in at port"
            f" {acme.port} of this machine: look at DNS, routers and firewalls between both"
        )
    return f"journalctl -u {SERVICE} has all of it"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
