# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""access_node, access_apply and firewall_rules as Ansible calls them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.modules import access_apply, access_node, firewall_rules
from fake_access import FakeAccess
from module_runner import run_module
from root_or_not import root_or_not

assert root_or_not  # a fixture


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeAccess:
    found = FakeAccess(tmp_path / "root")
    for module in (access_node, access_apply, firewall_rules):
        monkeypatch.setattr(module, "Machine", found.machine)
    login(monkeypatch, 50000)
    return found


def login(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setenv("SSH_CONNECTION", f"192.0.2.9 {port} 192.0.2.1 22")


def run(module: ModuleType, check: bool = False, **args: Any) -> dict[str, Any]:
    result, failed = run_module(module, args, check=check, diff=True)
    return {**result, "failed": failed}


def test_the_firewall_from_off_to_confirmed_and_back(node: FakeAccess, monkeypatch: pytest.MonkeyPatch) -> None:
    told = run(access_apply, check=True, firewall=True, sshd={"MaxAuthTries": 10})
    done = run(access_apply, firewall=True, sshd={"MaxAuthTries": 10})
    assert done["changed"] and done["diff"] == told["diff"] and done["transaction"] and not told["transaction"]
    refused = run(access_apply, transaction=done["transaction"])
    assert refused["failed"] and "not a fresh login" in refused["msg"]
    login(monkeypatch, 50001)
    assert not run(access_apply, check=True, transaction=done["transaction"])["failed"]
    assert not run(access_apply, transaction=done["transaction"])["failed"]
    assert not run(access_apply, firewall=True, sshd={"MaxAuthTries": 10})["changed"]
    assert run(firewall_rules, layer="ray", rules=["allow from 192.0.2.2"])["changed"]
    assert not run(firewall_rules, check=True, layer="ray", rules=["allow from 192.0.2.2"])["changed"]
    assert run(access_apply, state="absent")["changed"]
    refused = run(firewall_rules, layer="ray", rules=["allow from 192.0.2.2"])
    assert refused["failed"] and "access_firewall: true first" in refused["msg"]


def test_the_key(node: FakeAccess) -> None:
    assert run(access_node, check=True)["public_key"] == ""
    made = run(access_node)
    assert made["changed"] and made["public_key"] == "ssh-ed25519 AAAAk1"
    assert made["connection"] == ["192.0.2.9", "50000", "192.0.2.1", "22"]
    assert (
        made["network"]["interfaces"][0]["addresses"][0]["address"] == "192.0.2.1" and made["network"]["kept"] is None
    )
    assert run(access_node, state="absent")["changed"]
    node.path("/etc/ssh/ssh_host_ed25519_key.pub").unlink()
    assert "no public host key" in run(access_node)["msg"]
