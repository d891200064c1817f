# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import functools
import os
import stat

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine as Node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import settings as os_settings
from fake_os import FakeOs

RECORD = "var/lib/sparkmatrix/settings/demo.json"


class Machine:
    """/proc/sys as files, and a systemd that reads ``configured`` when told to."""

    def __init__(self, root):
        self.root = root
        self.effective = {"DefaultLimitMEMLOCK": "8388608:8388608", "DefaultLimitNOFILE": "1024:524288"}
        self.configured = dict(self.effective)
        self.reads_on = "daemon-reload"
        self.calls = []
        self.refuse = {}
        self.set("vm.swappiness", "60")
        self.set("net.core.rmem", "1\t2  3")

    def set(self, key, value):
        path = self.root / "proc/sys" / key.replace(".", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")

    def get(self, key):
        return (self.root / "proc/sys" / key.replace(".", "/")).read_text().strip()

    def __call__(self, argv):
        verb = argv[1]
        if verb in self.refuse:
            return Completed(1, "", self.refuse[verb])
        if verb == "show":
            names = argv[2].split("=")[1].split(",")
            lines = []
            for name in names:
                soft, hard = self.effective.get(name.removesuffix("Soft"), ":").split(":")
                if hard:
                    lines.append(f"{name}={soft if name.endswith('Soft') else hard}\n")
            return Completed(0, "".join(lines))
        self.calls.append(verb)
        if verb == self.reads_on:
            self.effective = dict(self.configured)
        return Completed(0)

    def settings(self, check_mode=False):
        return os_settings.Settings("demo", Node(str(self.root), self), check_mode=check_mode)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def bring(settings, sysctl=(), limits=(), **others):
    return settings.bring({"sysctl": dict(sysctl), "limits": dict(limits), **others}, os_settings.KINDS)


def test_sysctl_and_back(machine):
    result = bring(machine.settings(), {"vm.swappiness": "10"}, {})
    assert (result.before, result.after) == ({"vm.swappiness": "60"}, {"vm.swappiness": "10"})
    assert result.actions == ["vm.swappiness: 60 -> 10"]
    assert machine.get("vm.swappiness") == "10"
    assert stat.S_IMODE((machine.root / RECORD).stat().st_mode) == 0o600
    assert not bring(machine.settings(), {"vm.swappiness": "10"}, {}).changed
    bring(machine.settings(), {"vm.swappiness": "1"}, {})
    result = bring(machine.settings())
    assert (machine.get("vm.swappiness"), result.after) == ("60", {"vm.swappiness": "60"})
    assert not (machine.root / "var/lib/sparkmatrix").exists()
    assert not bring(machine.settings()).changed


def test_a_value_that_was_right_already_is_remembered_too(machine):
    assert not bring(machine.settings(), {"vm.swappiness": "60", "net.core.rmem": "1 2 3"}, {}).changed
    bring(machine.settings(), {"vm.swappiness": "10"}, {})
    bring(machine.settings())
    assert machine.get("vm.swappiness") == "60"


def test_what_leaves_the_group_comes_back(machine):
    machine.configured["DefaultLimitMEMLOCK"] = "infinity:infinity"
    bring(machine.settings(), {"vm.swappiness": "10"}, {"DefaultLimitMEMLOCK": "infinity"})
    machine.configured["DefaultLimitMEMLOCK"] = "8388608:8388608"
    result = bring(machine.settings(), {}, {"DefaultLimitNOFILE": "1024:524288"})
    assert result.after == {"vm.swappiness": "60", "DefaultLimitMEMLOCK": "8388608:8388608"}
    assert machine.settings().load().values == {"limits": {"DefaultLimitNOFILE": "1024:524288"}}


@pytest.mark.parametrize(
    ("reads_on", "calls"), [("daemon-reload", ["daemon-reload"]), ("daemon-reexec", ["daemon-reload", "daemon-reexec"])]
)
def test_limits(machine, reads_on, calls):
    machine.reads_on = reads_on
    machine.configured["DefaultLimitMEMLOCK"] = "infinity:infinity"
    told = bring(machine.settings(check_mode=True), {}, {"DefaultLimitMEMLOCK": "unlimited"})
    assert machine.calls == []
    result = bring(machine.settings(), {}, {"DefaultLimitMEMLOCK": "unlimited"})
    assert (told.before, told.after) == (result.before, result.after)
    assert result.before == {"DefaultLimitMEMLOCK": "8388608:8388608"}
    assert result.after == {"DefaultLimitMEMLOCK": "infinity:infinity"}
    assert machine.calls == calls
    machine.calls.clear()
    assert not bring(machine.settings(), {}, {"DefaultLimitMEMLOCK": "infinity"}).changed
    assert machine.calls == []


def test_a_limit_that_another_file_overrides(machine):
    with pytest.raises(SparkError, match=r"infinity:infinity but is 8388608.*cat-config"):
        bring(machine.settings(), {}, {"DefaultLimitMEMLOCK": "infinity"})


def test_an_old_limit_that_does_not_return_is_not_ours(machine):
    machine.configured["DefaultLimitMEMLOCK"] = "infinity:infinity"
    bring(machine.settings(), {}, {"DefaultLimitMEMLOCK": "infinity"})
    assert bring(machine.settings()).changed  # somebody else's file keeps it at infinity
    assert not bring(machine.settings()).changed


def test_check_mode_touches_nothing(machine):
    told = bring(machine.settings(check_mode=True), {"vm.swappiness": "10"}, {})
    assert machine.get("vm.swappiness") == "60"
    assert not (machine.root / "var").exists()
    assert told.after == bring(machine.settings(), {"vm.swappiness": "10"}, {}).after
    assert bring(machine.settings(check_mode=True)).changed
    assert machine.get("vm.swappiness") == "10"


def test_an_interruption_loses_no_original(machine, monkeypatch):
    def cut(self, *_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os_settings.Path, "write_text", cut)
        with pytest.raises(KeyboardInterrupt):
            bring(machine.settings(), {"vm.swappiness": "10"}, {})
    machine.set("vm.swappiness", "10")  # as if it had been cut just after the write
    bring(machine.settings(), {"vm.swappiness": "10"}, {})
    bring(machine.settings())
    assert machine.get("vm.swappiness") == "60"


@pytest.mark.parametrize("verb", ["show", "daemon-reload"])
def test_systemd_refuses(machine, verb):
    machine.refuse[verb] = "System has not been booted with systemd"
    with pytest.raises(SparkError, match="has not been booted"):
        bring(machine.settings(), {}, {"DefaultLimitMEMLOCK": "infinity"})


@pytest.mark.parametrize(
    ("does", "number", "said"),
    [("write_text", 30, "cannot set it to '10': Read-only file system"), ("read_text", 13, "cannot read")],
)
def test_a_kernel_that_refuses(machine, monkeypatch, does, number, said):
    def refuse(self, *_args, **_kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os_settings.Path, does, refuse)
    with pytest.raises(SparkError, match=rf"sysctl vm.swappiness: {said}"):
        bring(machine.settings(), {"vm.swappiness": "10"}, {})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"schema": 2}',
        '{"schema": 1, "sysctl": []}',
        '{"schema": 1, "merged": {"a": 1}}',
    ],
)
def test_damaged_record(machine, text):
    (machine.root / RECORD).parent.mkdir(parents=True)
    (machine.root / RECORD).write_text(text)
    with pytest.raises(SparkError, match=r"record of the earlier settings is damaged.*delete it"):
        bring(machine.settings())


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("infinity", "infinity:infinity"),
        ("unlimited", "infinity:infinity"),
        ("18446744073709551615", "infinity:infinity"),
        ("8M", "8388608:8388608"),
        ("1024:524288", "1024:524288"),
        ("64K: infinity", "65536:infinity"),
    ],
)
def test_parse_limit(text, limit):
    assert os_settings.parse_limit(text) == limit
    assert os_settings.parse_limit(limit) == limit


@pytest.mark.parametrize("text", ["", "x", "1:2:3", "2:1", "infinity:1", "-1", "1.5", "8m", "٣"])
def test_parse_limit_refuses(text):
    with pytest.raises(ValueError, match="limit"):
        os_settings.parse_limit(text)


def test_other_kinds_and_back(tmp_path):
    node = FakeOs(tmp_path)
    node.swap("/swap.img", priority=7)
    node.holds = {"bash"}
    before = node.state()
    wanted = {"holds": {"bash": "hold", "nvidia-modprobe": "hold"}, "swaps": {"/swap.img": "off"}}
    wanted |= {"units": {"ssh.socket": "active"}, "enabled": {"ssh.socket": "disabled"}}
    demo = functools.partial(os_settings.Settings, "demo", Node(str(tmp_path), node.run))
    assert bring(demo(), **wanted).after["/swap.img"] == "off"
    assert not bring(demo(), **wanted).changed
    bring(demo())
    assert node.state() == before
    assert "swapon -p 7 /swap.img" in node.calls
    bring(demo(), **wanted)
    (tmp_path / "swap.img").unlink()  # somebody removed it: it cannot come back, and is no reason to fail
    bring(demo())
    assert node.swaps == {}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"swaps": {"/nothing": "off"}}, "swaps /nothing: there is no such thing"),
        ({"units": {"nothing.service": "active"}}, "there is no such thing"),
    ],
)
def test_bad_values_of_other_kinds(tmp_path, wanted, message):
    node = FakeOs(tmp_path)
    with pytest.raises(SparkError, match=message):
        bring(os_settings.Settings("demo", Node(str(tmp_path), node.run)), **wanted)
    assert node.calls == []


def test_tools_that_refuse_or_lie(tmp_path):
    node = FakeOs(tmp_path)
    demo = os_settings.Settings("demo", Node(str(tmp_path), node.run))
    node.fail["apt-mark hold"] = "Could not get lock"
    with pytest.raises(SparkError, match=r"apt-mark hold failed \(Could not get lock\).*no other apt"):
        bring(demo, holds={"bash": "hold"})
    node.fail.clear()
    node._apt_mark = lambda argv: Completed(0)
    with pytest.raises(SparkError, match="holds bash: it was told to be hold but is no"):
        bring(demo, holds={"bash": "hold"})
    node.fail["env DEBIAN"] = "Unable to locate package"
    with pytest.raises(SparkError, match=r"apt-get install failed \(Unable to locate"):
        bring(demo, packages={"earlyoom": "installed"})
