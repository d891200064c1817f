# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The archive of what was registered on all hosts, and logs of earlier runs from this computer."""

from __future__ import annotations

import re
import stat
import tarfile
from unittest.mock import MagicMock

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.action import support_archive
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.capture import pack

GOOD = {"outputs": pack({"ip_link": "lo UP\n"}), "counts": {"tokens": 1}}
OFF = {"unreachable": True, "msg": "Failed to connect to the host via ssh\nmore of it"}


@pytest.fixture
def act(tmp_path, monkeypatch):
    logs = tmp_path / "logs"
    logs.mkdir()
    for number in range(5):
        (logs / f"20261123-10000{number}-1-site.log").write_text("ok: [desk-7] with my-become-password, key hunter2\n")
    monkeypatch.setenv("SPARKMATRIX_LOG_FOLDER", str(logs))

    def run(seen, *, check=False, others=None, **options):
        task = MagicMock(async_val=False, check_mode=check, diff=False)
        task.args = {"seen": "__seen", "file": str(tmp_path / "out.tar.gz"), "logs": True, **options}
        action = support_archive.ActionModule(task, MagicMock(), MagicMock(), MagicMock(), MagicMock(), MagicMock())
        variables = {
            "ansible_play_hosts_all": list(seen),
            "hostvars": {
                host: {"__seen": told, "ansible_user": told.get("ansible_user")} if told else {}
                for host, told in seen.items()
            }
            | (others or {}),
            "ansible_become_password": "my-become-password",
        }
        return action.run(task_vars=variables)

    return run


def test_written_for_its_owner_alone(act, tmp_path):
    result = act({"desk-7": GOOD, "desk-8": OFF, "desk-9": None})
    assert result["verdict"].endswith("1 of 3 machines; nothing of desk-8, desk-9. Read it before you send it")
    assert "desk-8: nothing, Failed to connect to the host via ssh more of it" in result["lines"]
    path = tmp_path / "out.tar.gz"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as tar:
        runs = [name for name in tar.getnames() if "/controller/logs/" in name]
        assert len(runs) == support_archive.RUNS
        assert b"my-become-password" not in tar.extractfile(runs[0]).read()
    assert list(tmp_path.glob(".out*")) == []


def test_secrets_of_all_hosts_at_any_depth_are_in_no_log(act, tmp_path, monkeypatch):
    """Of words that look like nothing, and of a machine that the run did not ask."""
    log = tmp_path / "logs/20261123-100009-1-site.log"
    words = ["plainly of alice", "plainly-of-the-other", "plainly-nested", "plainly-of-a-list"]
    log.write_text("".join(f"begin {word} end\n" for word in [*words, "plainly-no-secret", "a-lie-of-a-machine"]))
    act(
        {"desk-7": GOOD},
        others={
            "desk-8": {
                "gateway_keys": [{"name": "plainly-no-secret", "key": words[0]}],
                "engine_services": {"chat": {"environment": {"DB_PWD": words[1]}}},
                "site": {"passwords": {"a": {"b": words[2]}}, "tokens": [words[3]], "key_file": "plainly-no-secret"},
                "__doctor_outputs": {"token": "a-lie-of-a-machine"},
            }
        },
    )
    with tarfile.open(tmp_path / "out.tar.gz") as tar:
        said = tar.extractfile(f"sparkmatrix-support/controller/logs/{log.name}").read().decode()
    assert said.splitlines() == ["begin (left out) end"] * 4 + [
        "begin plainly-no-secret end",
        "begin a-lie-of-a-machine end",
    ]


@pytest.mark.parametrize("options", [{"write": False}, {"check": True}])
def test_only_said(act, tmp_path, options):
    result = act({"desk-7": GOOD}, **options)
    assert "  tools: ip_link" in result["lines"]
    assert not (tmp_path / "out.tar.gz").exists()


def test_without_names(act, tmp_path):
    off = {"msg": "no answer of desk-8, 10.7.7.7"}
    result = act(
        {"desk-7": GOOD, "desk-8": off}, anonymous=True, names={"desk-7": "spark1", "desk-8": "spark2"}, key="k"
    )
    assert not any("desk-" in line or "10.7.7.7" in line for line in (*result["lines"], result["verdict"]))
    with tarfile.open(tmp_path / "out.tar.gz") as tar:
        for entry in tar:
            assert "desk-7" not in entry.name
            assert b"desk-7" not in tar.extractfile(entry).read()


def test_without_who_ran_it_and_where(act, tmp_path, monkeypatch):
    monkeypatch.setattr(support_archive.socket, "gethostname", lambda: "walrus.lan")
    monkeypatch.setattr(support_archive.pwd, "getpwuid", lambda _uid: MagicMock(pw_name="carla"))
    log = tmp_path / "logs/20261123-100009-1-site.log"
    log.write_text("carla on Walrus ran /home/carla/x as dave\n")
    act({"desk-7": {**GOOD, "ansible_user": "dave"}}, anonymous=True, names={"desk-7": "spark1"}, key="k")
    with tarfile.open(tmp_path / "out.tar.gz") as tar:
        said = tar.extractfile(f"sparkmatrix-support/controller/logs/{log.name}").read().decode()
    assert re.fullmatch(r"(user\d+) on controller ran /home/\1/x as user\d+\n", said)


@pytest.mark.parametrize("lie", ["no archive", 7, {"x": 1}, GOOD["outputs"][:-8]])
def test_a_machine_that_answers_something_else_is_named_and_keeps_no_archive_from_the_others(act, tmp_path, lie):
    result = act({"spark1": GOOD, "spark2": {"outputs": lie}})
    assert "1 of 2 machines; nothing of spark2" in result["verdict"]
    (said,) = [line for line in result["lines"] if line.startswith("spark2: nothing, ")]
    assert "Find out what runs on this machine" in said
    with tarfile.open(tmp_path / "out.tar.gz") as tar:
        assert not [name for name in tar.getnames() if "/spark2/" in name]
