# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the certificate of our own authority is for."""

from __future__ import annotations

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
