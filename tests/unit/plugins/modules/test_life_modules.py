# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""operator_host_key and os_update as Ansible calls them."""

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.host_key import Judged
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os.update import Look
from ansible_collections.sparkmatrix.cluster.plugins.modules import operator_host_key, os_update
from module_runner import run_module


@pytest.mark.parametrize(
    ("judged", "failed", "changed"),
    [
        (Judged("known"), False, False),
        (Judged("unreachable"), False, False),
        (Judged("changed", "SHA256:x", "RSA", forget="ssh-keygen -R 192.0.2.1"), False, False),
        (Judged("known", "SHA256:x", "RSA", changed=True), False, True),
        (SparkError("no file"), True, False),
    ],
)
def test_operator_host_key(monkeypatch, judged, failed, changed):
    def judge(target, confirmed, check_mode):
        assert target.command(words=["-G"])[-4:] == ["-F", "a b", "-G", "192.0.2.1"]
        assert list(confirmed) == ["SHA256:x"]
        if isinstance(judged, SparkError):
            raise judged
        return judged

    monkeypatch.setattr(operator_host_key, "judge", judge)
    args = {"host": "192.0.2.1", "arguments": ["-F 'a b'", ""], "confirmed": ["SHA256:x"]}
    result, has_failed = run_module(operator_host_key, args)
    assert has_failed is failed
    if not failed:
        assert (result["changed"], result["state"]) == (changed, judged.state)


@pytest.fixture(name="calls")
def _calls(monkeypatch):
    calls = []
    look = Look(packages={"nvidia-a": "1"}, changes=[{"name": "nvidia-a", "old": "1", "new": "2"}], held=["nvidia-a"])

    def record(name, result=None):
        return lambda _machine, *args, **kwargs: calls.append((name, *args)) or result

    monkeypatch.setattr(os_update.os_update, "look", record("look", look))
    monkeypatch.setattr(os_update.os_update, "install", record("install"))
    monkeypatch.setattr(os_update.os_update, "try_kernel", record("try"))
    monkeypatch.setattr(os_update.os_update, "keep_kernel", record("keep", True))
    monkeypatch.setattr(os_update.os_update, "update_firmware", record("firmware"))
    return calls, look


@pytest.mark.parametrize(
    ("phase", "last"),
    [
        ("look", ("look", ["nvidia-*"], {"nvidia-a": "2"})),
        ("install", ("install", {"nvidia-a": "1"}, {"nvidia-a": "2"}, ["nvidia-a"])),
        ("try_kernel", ("try", "new", "old")),
        ("keep_kernel", ("keep", "new")),
        ("firmware", ("firmware",)),
    ],
)
def test_os_update(calls, phase, last):
    args = {"phase": phase, "packages": ["nvidia-*"], "versions": {"nvidia-a": "2"}, "kernel": "new", "previous": "old"}
    result, failed = run_module(os_update, args)
    assert not failed
    assert calls[0][-1] == last
    assert result["changed"] is (phase != "look")
    calls[0].clear()
    run_module(os_update, args, check=True)
    assert [call[0] for call in calls[0]] == (["look"] if phase == "look" else [])


def test_os_update_installs_nothing_on_a_broken_package_system(calls):
    calls[1].problems = ["half configured"]
    result, failed = run_module(os_update, {"phase": "install"})
    assert failed and "half configured" in result["msg"]
    assert [call[0] for call in calls[0]] == ["look"]
