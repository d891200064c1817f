# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The tables of who listens and of secrets can be read, and have every port and secret that the code names. That they
have what there is on machines: the Molecule scenario `site`."""

from __future__ import annotations

import guide_tables
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths, ports


def test_the_guide_lists_every_port_of_the_code() -> None:
    listed = [one for number in (0, 1) for row in guide_tables.listeners(number=number) for one in row.ports]
    named = {
        name: value if isinstance(value, tuple) else (value,)
        for name, value in vars(ports).items()
        if name.isupper() and isinstance(value, (int, tuple))
    }
    assert len(named) > 15
    missing = [name for name, values in named.items() for port in values if not any(port in one for one in listed)]
    assert missing == []


def test_a_row_of_a_cluster_that_serves_is_no_wide_range_but_for_the_ranks() -> None:
    """Or it would admit whatever listens."""
    for row in guide_tables.listeners():
        assert all(len(port) < 1000 for port in row.ports) or row.program == "Ranks", row
        places = ("all interfaces", "loopback", "cluster address", "`gateway_listen`")
        assert any(place in row.where for place in places), row


def test_the_guide_lists_every_secret_of_the_code() -> None:
    known = guide_tables.secrets()
    named = [paths.ENGINE_KEY, paths.MPI_TOKEN, paths.RAY_TOKEN, paths.WEB_UI_KEY, f"{paths.SSH}/id_ed25519"]
    gateway = [f"{paths.GATEWAY}/{name}" for name in ("keys/alice.key", "keys.conf", "relay.json", "tls/ca.key")]
    assert [path for path in (*named, *gateway) if not any(one.fullmatch(path) for one in known)] == []
    assert not any(one.fullmatch(f"{paths.GATEWAY}/nginx.conf") for one in known)
