# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The certificate of ``gateway_tls: own_ca``: an authority made on the node, and a certificate that it signs."""

from __future__ import annotations

import ipaddress
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.address import is_address
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.listeners import Listener, host_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.names import ETC
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Settings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File

NAME = "sparkmatrix.cluster gateway CA"
FILES = ("ca.crt", "ca.key", "server.crt", "server.key")
SECRET = ("ca.key", "server.key")
CA_DAYS = 3650
# 825 days is the most that Apple's clients accept; renewed by a run when less than a quarter of a year is left.
CERTIFICATE_DAYS = 825
RENEW_S = 90 * 86400
# What the authority may sign for, beside the names and addresses of the first certificate: whoever steals its key is no
# other site to the clients that trust it, and another address of the head needs no other authority.
_LOCAL = ("local", "localhost")
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "127.0.0.0/8", "fc00::/7", "::1/128")


def files(machine: Machine, names: Sequence[str], *, check_mode: bool = False) -> list[File]:
    """Its files for these names: as they are, or made anew. None in check mode where they would be."""
    paths = {name: f"{ETC}/tls/{name}" for name in (*FILES, "names")}
    have = {name: machine.read(path) or "" for name, path in paths.items()}
    if not all(have[name] for name in FILES) or have["names"].split() != names or _runs_out(machine, paths):
        if check_mode:
            return []
        have = _issue(machine, have, names)
    return [
        File(paths[name], have[name].encode(), mode=0o600 if name in SECRET else 0o644, secret=name in SECRET)
        for name in paths
    ]


def _runs_out(machine: Machine, paths: Mapping[str, str]) -> bool:
    path = machine.real(paths["server.crt"])
    return not machine.works("openssl", "x509", "-in", path, "-noout", "-checkend", str(RENEW_S))


def _issue(machine: Machine, have: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="sparkmatrix-gateway-") as place:  # 0700
        at = Path(place)
        (at / "openssl.cnf").write_text(openssl_conf(names))
        request = ("openssl", "req", "-x509", "-config", str(at / "openssl.cnf"), "-newkey", "ec", "-nodes")
        curve = ("-pkeyopt", "ec_paramgen_curve:P-256")

        def authority() -> None:
            out = ("-keyout", str(at / "ca.key"), "-out", str(at / "ca.crt"))
            kind = ("-extensions", "authority", "-days", str(CA_DAYS), "-subj", f"/CN={NAME}")
            machine.command(*request, *curve, *kind, *out, step="making the authority")

        def certificate() -> None:
            out = ("-keyout", str(at / "server.key"), "-out", str(at / "server.crt"))
            kind = ("-extensions", "server", "-days", str(CERTIFICATE_DAYS), "-subj", f"/CN={names[0]}")
            issuer = ("-CA", str(at / "ca.crt"), "-CAkey", str(at / "ca.key"))
            machine.command(*request, *curve, *kind, *issuer, *out, step="making the certificate")

        if have["ca.crt"] and have["ca.key"]:
            (at / "ca.crt").write_text(have["ca.crt"])
            (at / "ca.key").write_text(have["ca.key"])
        else:
            authority()
        certificate()
        if not machine.works("openssl", "verify", "-CAfile", str(at / "ca.crt"), str(at / "server.crt")):
            authority()  # a name that it may not sign for, or its end
            certificate()
        made = {name: (at / name).read_text() for name in FILES}
    return {**made, "names": "\n".join(names) + "\n"}


def covered(settings: Settings, listeners: Sequence[Listener], hostname: str) -> list[str]:
    """Names and addresses that the certificate is for, the host's name first where it is one."""
    addresses = [item.address for item in listeners if not ipaddress.ip_address(item.address).is_unspecified]
    return list(dict.fromkeys([*host_names(hostname), *settings.tls_names, "localhost", *addresses]))


def openssl_conf(names: Sequence[str]) -> str:
    """For ``openssl req -x509``, with a section for the authority and one for the certificate; nothing of /etc/ssl."""
    kinds = ", ".join(f"{'IP' if is_address(name) else 'DNS'}:{name}" for name in names)
    own = [name.removeprefix("*.") for name in names if not is_address(name)]
    networks = [ipaddress.ip_network(item) for item in (*_PRIVATE, *filter(is_address, names))]
    allowed = [f"DNS:{name}" for name in dict.fromkeys((*_LOCAL, *own))]
    allowed += [f"IP:{item.network_address}/{item.netmask}" for item in networks]
    return f"""[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign, cRLSign
nameConstraints = {", ".join(f"permitted;{one}" for one in allowed)}
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectAltName = {kinds}
authorityKeyIdentifier = keyid
"""
