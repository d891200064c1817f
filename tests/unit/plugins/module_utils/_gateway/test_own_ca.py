# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What the certificate of our own authority is for."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import own_ca
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.listeners import Listener
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Engine, Settings


def test_names_of_the_certificate() -> None:
    settings = Settings(("enP7s7",), (Engine("chat", "tiny"),), tls="own_ca", tls_names=("api.lab",))
    listeners = [Listener(one, 8443) for one in ("127.0.0.1", "192.0.2.1", "2001:db8::1", "::")]
    names = own_ca.covered(settings, listeners, "Spark1")
    assert names == ["spark1", "spark1.local", "api.lab", "localhost", "127.0.0.1", "192.0.2.1", "2001:db8::1"]
    assert "IP:192.0.2.1" in own_ca.openssl_conf(names) and "DNS:api.lab" in own_ca.openssl_conf(names)
    assert own_ca.covered(settings, [], "not a name") == ["api.lab", "localhost"]


def issue(root: Path, *names: str) -> dict[str, str]:
    """With the real openssl; placed as the role places them."""
    made = own_ca.files(Machine(str(root)), list(names))
    for file in made:
        path = root / file.path.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content or b"")
    return {file.path.rpartition("/")[2]: (file.content or b"").decode() for file in made}


def signs(root: Path, name: str) -> bool:
    """Whether clients that trust the authority take a certificate of it for this name: of somebody who has its key."""
    tls = root / "etc/sparkmatrix/gateway/tls"
    (root / "x.cnf").write_text(own_ca.openssl_conf([name]))
    request = f"openssl req -x509 -config {root}/x.cnf -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=x"
    issuer = f"-extensions server -CA {tls}/ca.crt -CAkey {tls}/ca.key -keyout {root}/x.key -out {root}/x.crt"
    subprocess.run([*request.split(), *issuer.split()], check=True, capture_output=True)
    verify = ["openssl", "verify", "-CAfile", tls / "ca.crt", root / "x.crt"]
    return subprocess.run(verify, check=False, capture_output=True).returncode == 0


def test_the_authority_signs_for_this_network_only(tmp_path: Path) -> None:
    first = issue(
        tmp_path,
        "spark1",
        "spark1.local",
        "*.lab.example.org",
        "localhost",
        "192.168.1.10",
        "203.0.113.7",
        "2001:db8::1",
    )
    found = {
        name: signs(tmp_path, name)
        for name in ("spark2.local", "api.lab.example.org", "10.0.0.7", "fd00::7", "203.0.113.7", "2001:db8::1")
    }
    assert all(found.values()), found
    found = {name: signs(tmp_path, name) for name in ("example.org", "bank.example.com", "8.8.8.8", "2001:db8::2")}
    assert not any(found.values()), found
    # Another address of this network keeps the authority that clients trust; another domain cannot.
    second = issue(tmp_path, "spark1", "localhost", "10.7.0.1")
    assert second["ca.crt"] == first["ca.crt"] and second["server.crt"] != first["server.crt"]
    third = issue(tmp_path, "spark1", "api.example.net")
    assert third["ca.crt"] != first["ca.crt"] and signs(tmp_path, "api.example.net")
