# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import fail2ban
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from fake_os import FakeOs

UNIT = "fail2ban.service"
RECORD = "/var/lib/sparkmatrix/settings/access_fail2ban.json"
PEERS = ["192.0.2.11", "192.0.2.12"]
IN_FORCE = {"127.0.0.0/8", "::1/128", "192.0.2.11/32", "192.0.2.12/32"}


class Server(FakeOs):
    """A fail2ban that reads ``configured`` when it starts or is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.unit(UNIT, active="inactive", enabled="disabled")
        self.configured = [*fail2ban.LOOPBACK, *PEERS]
        self.ignored: list[str] = []
        self.banned: list[str] = []
        self.busy = 0  # so often it does not answer yet
        self.now = 0.0

    def jail(self, check_mode: bool = False) -> fail2ban.Jail:
        machine = Machine(str(self.root), self.run, self.pass_time, lambda: self.now)
        return fail2ban.Jail(machine, check_mode=check_mode)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def _systemctl(self, argv: list[str]) -> Completed:
        before = self.units.get(UNIT, {}).get("ActiveState")
        done = super()._systemctl(argv)
        if before == "inactive" and self.units[UNIT]["ActiveState"] == "active":
            self.ignored = list(self.configured)
        return done

    def _fail2ban_client(self, argv: Sequence[str]) -> Completed:
        words = list(argv[1:])
        if self.units[UNIT]["ActiveState"] != "active" or self.busy > 0:
            self.busy -= 1
            return Completed(255, "", "Failed to access socket path: /var/run/fail2ban/fail2ban.sock")
        if words == ["reload"]:
            self._changed(list(argv))
            self.ignored = list(self.configured)
        elif words == ["get", "sshd", "ignoreip"]:
            if not self.ignored:
                return Completed(0, "No IP address/network is ignored\n")
            shown = [item.replace("127.0.0.1/8", "127.0.0.0/8") for item in self.ignored]
            lines = [f"|- {item}" for item in shown[:-1]] + [f"`- {shown[-1]}"]
            return Completed(0, "These IP addresses/networks are ignored:\n" + "\n".join(lines) + "\n")
        elif words == ["get", "sshd", "banip"]:
            return Completed(0, "".join(f"{item}\n" for item in self.banned))
        elif words[:3] == ["set", "sshd", "unbanip"]:
            self._changed(list(argv))
            self.banned.remove(words[3])
        return Completed(0)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_from_off_to_in_force_and_back(server: Server) -> None:
    before = server.state()
    server.busy = 3
    told = server.jail(check_mode=True).present(PEERS)
    assert told.changed and server.state() == before
    done = server.jail().present(PEERS)
    assert done.changed and set(done.diff[0]["after"].split()) == IN_FORCE
    assert (server.units[UNIT]["ActiveState"], server.units[UNIT]["UnitFileState"]) == ("active", "enabled")
    assert not server.jail().present(PEERS).changed
    assert server.jail(check_mode=True).absent().changed and server.path(RECORD).exists()
    assert server.jail().absent().changed
    assert server.state() == before
    assert not server.jail().absent().changed


def test_one_that_ran_before_goes_on_without_our_list(server: Server) -> None:
    server.unit(UNIT)
    server.ignored = ["10.0.0.1"]
    done = server.jail().present(PEERS)
    assert done.diff[0]["before"] == "10.0.0.1/32\n" and "reload the jail sshd" in done.actions
    server.configured = []
    assert server.jail().absent().changed
    assert (server.units[UNIT]["ActiveState"], server.ignored) == ("active", [])


def test_a_node_that_is_banned_already_is_let_in(server: Server) -> None:
    server.unit(UNIT)
    server.banned = ["198.51.100.7", "192.0.2.12"]
    assert "unban 192.0.2.12/32" in server.jail(check_mode=True).present(PEERS).actions
    assert "unban 192.0.2.12/32" in server.jail().present(PEERS).actions
    assert server.banned == ["198.51.100.7"]


@pytest.mark.parametrize(
    ("configured", "says"),
    [(["127.0.0.1/8", "::1"], "without 192.0.2.11/32 192.0.2.12/32"), (None, "with 0.0.0.0/0")],
)
def test_another_file_overrides_ours(server: Server, configured: list[str] | None, says: str) -> None:
    server.configured = [*server.configured, "0.0.0.0/0"] if configured is None else configured
    with pytest.raises(SparkError, match=says):
        server.jail().present(PEERS)


def test_a_server_that_does_not_come_up_is_not_waited_for_for_ever(server: Server) -> None:
    server.busy = 10_000
    with pytest.raises(SparkError, match=r"fail2ban-client ping failed .*journalctl"):
        server.jail().present(PEERS)


def test_names_are_compared_as_they_are() -> None:
    assert fail2ban.networks(["laptop.local", "127.0.0.1/8"]) == {"laptop.local", "127.0.0.0/8"}
