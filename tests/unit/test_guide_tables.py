# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The tables of who listens and of secrets can be read, and have every port and secret that the code names. That they
have what there is on machines: the Molecule scenario `site`."""

from __future__ import annotations

import guide_tables
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths, ports

PAGE = """# Access

### What listens

Words.

| Port | Who | Where | Proof |
|---|---|---|---|
| 22, or yours | sshd | all interfaces | key |
| 8000 (`port_1234`) | engine, head | loopback; elsewhere the cluster address | a \\| b |
| 21010 to 21999 | Ray: one per process | cluster address | token |
| 32768 and above | Ranks | cluster address | none |
| 8443 | gateway, head | `gateway_listen` | key |

More.

| Port | Who | Where | Proof |
|---|---|---|---|
| 8080 | page, head | loopback | login |

## Next

| Port | Who | Where | Proof |
|---|---|---|---|
| 1 | nobody | nowhere | none |
"""
SECRETS = """## Secrets

| Secret | Where |
|---|---|
| a token | `/etc/x/ray.token` on every node |
| keys | `/etc/x/keys/<name>.key` and `/var/lib/x` on the head, as `KEY="…"` |
"""


@pytest.mark.parametrize(
    ("address", "port", "head", "expected"),
    [
        ("0.0.0.0", 22, False, ["sshd"]),
        ("127.0.0.1", 8000, True, ["engine"]),
        ("10.0.0.1", 8000, True, ["engine"]),
        ("::", 8000, True, []),
        ("127.0.0.1", 8000, False, []),
        ("10.0.0.1", 21010, False, ["Ray"]),
        ("10.0.0.1", 21999, False, ["Ray"]),
        ("10.0.0.2", 21999, False, []),
        ("10.0.0.1", 22000, False, []),
        ("10.0.0.1", 65535, False, ["Ranks"]),
        ("192.0.2.1", 8443, True, ["gateway"]),
        ("127.0.0.1", 8443, True, []),
        ("127.0.0.1", 1234, True, []),
        ("127.0.0.1", 8080, True, []),
    ],
)
def test_a_listener_is_found_in_its_row(address: str, port: int, head: bool, expected: list[str]) -> None:
    found = guide_tables.listeners(PAGE)
    assert [one.program for one in found if one.admits(address, port, own="10.0.0.1", head=head)] == expected


def test_the_second_table_is_one_of_its_own() -> None:
    (row,) = guide_tables.listeners(PAGE, 1)
    assert row.admits("::1", 8080, own="10.0.0.1", head=True)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/etc/x/ray.token", True),
        ("/etc/x/ray-token", False),
        ("/etc/x/ray.token2", False),
        ("/etc/x/keys/alice.key", True),
        ("/etc/x/keys/more/alice.key", False),
        ("/var/lib/x/managed.json", True),
        ("/var/lib/xy", False),
    ],
)
def test_a_secret_is_found_in_its_row(path: str, expected: bool) -> None:
    assert any(one.fullmatch(path) for one in guide_tables.secrets(SECRETS)) == expected


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
        assert all(len(one) < 1000 for one in row.ports) or row.program == "Ranks", row
        places = ("all interfaces", "loopback", "cluster address", "`gateway_listen`")
        assert any(place in row.where for place in places), row


def test_the_guide_lists_every_secret_of_the_code() -> None:
    known = guide_tables.secrets()
    named = [paths.ENGINE_KEY, paths.MPI_TOKEN, paths.RAY_TOKEN, paths.WEB_UI_KEY, f"{paths.SSH}/id_ed25519"]
    gateway = [f"{paths.GATEWAY}/{name}" for name in ("keys/alice.key", "keys.conf", "engine-key-x.conf", "tls/ca.key")]
    assert [path for path in (*named, *gateway) if not any(one.fullmatch(path) for one in known)] == []
    assert not any(one.fullmatch(f"{paths.GATEWAY}/nginx.conf") for one in known)
