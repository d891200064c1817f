# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import service as ms

UNIT = "sparkmatrix-ray.service"


class Systemd:
    """As much of systemd as the code sees: `show` prints the properties, verbs queue what the next readings bring."""

    def __init__(self, root, **properties):
        self.root = root
        self.now = 0.0
        self.calls = []
        self.refuse = {}
        self.on = {}
        self.queue = []
        self.properties = {
            "LoadState": "loaded",
            "ActiveState": "inactive",
            "SubState": "dead",
            "UnitFileState": "disabled",
            "MainPID": "0",
            "NeedDaemonReload": "no",
            "Result": "success",
            "ExecMainStatus": "0",
            "NRestarts": "0",
            "InvocationID": "",
            "ConditionResult": "yes",
        }
        self.properties.update(properties)
        self.journal = "".join(f"line {number}\n" for number in range(30))

    def process(self, pid, config_hash):
        directory = self.root / "proc" / str(pid)
        directory.mkdir(parents=True, exist_ok=True)
        entries = [b"PATH=/usr/bin", b"NOT_SPARKMATRIX_CONFIG_HASH=no"]
        if config_hash is not None:
            entries.append(f"{ms.HASH_VARIABLE}={config_hash}".encode())
        (directory / "environ").write_bytes(b"\0".join(entries) + b"\0")

    def __call__(self, argv):
        argv = list(argv)
        if argv[0] == "journalctl":
            self.journal_argv = argv
            return Completed(0, self.journal)
        timer = self.root / f"run/systemd/transient/{UNIT[:-8]}-return.timer"
        if argv[0] == "systemd-run":
            assert f"--unit={timer.name}" in argv and argv[-5:] == ["systemctl", "--no-block", "start", "--", UNIT]
            self.calls.append(next(word for word in argv if word.startswith("--on-active")))
            if "systemd-run" in self.refuse:
                return Completed(1, "", self.refuse["systemd-run"])
            timer.parent.mkdir(parents=True, exist_ok=True)
            timer.touch(exist_ok=False)
            return Completed(0)
        assert argv[0] == "systemctl"
        if argv[-1] == timer.name:
            timer.unlink()
            self.calls.append(f"{argv[1]} timer")
            return Completed(0)
        if argv[1] == "show":
            if self.queue:
                self.properties.update(self.queue.pop(0))
            return Completed(0, "".join(f"{key}={value}\n" for key, value in self.properties.items()) + "Junk\n")
        verb = next(word for word in argv[1:] if not word.startswith("-"))
        self.calls.append(verb)
        if verb in self.refuse:
            return Completed(1, "", self.refuse[verb])
        self.queue = list(self.on.get(verb, []))
        if verb == "daemon-reload":
            self.properties["NeedDaemonReload"] = "no"
        if verb == "enable" and verb not in self.on:
            self.properties["UnitFileState"] = "enabled"
        if verb == "disable":
            self.properties["UnitFileState"] = "disabled"
        return Completed(0)

    def sleep(self, seconds):
        assert seconds <= 0.2
        self.now += seconds

    def run(self, check_mode=False, **wanted):
        wanted.setdefault("name", UNIT)
        machine = Machine(str(self.root), self, self.sleep, lambda: self.now, now=lambda: 1234.5)
        return ms.Service(ms.Wanted(**wanted), machine, check_mode=check_mode).run()


UP = {"ActiveState": "active", "SubState": "running", "MainPID": "42", "InvocationID": "new", "Job": "0"}
STARTING = {"ActiveState": "activating", "SubState": "start", "Job": "7", "MainPID": "42", "InvocationID": "new"}
DOWN = {"ActiveState": "inactive", "SubState": "dead", "MainPID": "0"}
RUNNING = {**UP, "InvocationID": "old", "UnitFileState": "enabled", "MainPID": "41"}


@pytest.fixture
def systemd(tmp_path):
    def make(**properties):
        fake = Systemd(tmp_path, **properties)
        fake.process(42, "new-hash")
        fake.process(41, "old-hash")
        fake.on["start"] = [STARTING, UP]
        fake.on["restart"] = [{"ActiveState": "deactivating", "Job": "8"}, {**STARTING, "NRestarts": "0"}, UP]
        fake.on["stop"] = [{"ActiveState": "deactivating"}, DOWN]
        return fake

    return make


def test_start_then_nothing(systemd):
    fake = systemd()
    result = fake.run(enabled=True, config_hash="new-hash")
    assert (result.action, result.changed) == ("started", True)
    assert fake.calls == ["start", "enable"]
    assert result.diff == {
        "before": {"state": "stopped", "enabled": False, "config_hash": ""},
        "after": {"state": "started", "enabled": True, "config_hash": "new-hash"},
    }
    fake.calls.clear()
    result = fake.run(enabled=True, config_hash="new-hash")
    assert (result.action, result.changed, fake.calls) == ("none", False, [])


OLD_FILE = {**RUNNING, "NeedDaemonReload": "yes"}


@pytest.mark.parametrize(
    ("properties", "wanted", "action", "calls"),
    [
        (OLD_FILE, {"config_hash": "new-hash"}, "restarted", ["daemon-reload", "restart"]),
        ({**RUNNING, "NRestarts": "3"}, {"config_hash": "new-hash"}, "restarted", ["restart"]),
        (RUNNING, {}, "none", []),
        (OLD_FILE, {"config_hash": "old-hash"}, "none", ["daemon-reload"]),
        ({**RUNNING, "UnitFileState": "disabled"}, {"enabled": True}, "none", ["enable"]),
        (RUNNING, {"enabled": False}, "none", ["disable"]),
    ],
)
def test_of_a_unit_that_runs(systemd, properties, wanted, action, calls):
    fake = systemd(**properties)
    result = fake.run(**wanted)
    assert (result.action, result.changed, fake.calls) == (action, bool(calls), calls)
    if action == "restarted":
        assert (result.before["config_hash"], result.after["config_hash"]) == ("old-hash", "new-hash")


def test_enable_without_install_section(systemd):
    fake = systemd(**{**RUNNING, "UnitFileState": "static"})
    fake.on["enable"] = [{}]
    with pytest.raises(SparkError, match=r"still not enabled.*WantedBy="):
        fake.run(enabled=True)


@pytest.mark.parametrize(
    ("properties", "action"),
    [
        ({"LoadState": "not-found", "UnitFileState": ""}, "started"),
        ({}, "started"),
        (RUNNING, "restarted"),
        ({"ActiveState": "failed"}, "started"),
    ],
)
def test_check_mode_tells_and_touches_nothing(systemd, properties, action):
    fake = systemd(**properties)
    result = fake.run(check_mode=True, enabled=True, config_hash="new-hash")
    assert (result.action, result.changed, fake.calls) == (action, True, [])
    assert result.after == {"state": "started", "enabled": True, "config_hash": "new-hash"}


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        ({"LoadState": "masked", "UnitFileState": "masked"}, "unmask"),
        ({"LoadState": "not-found"}, "not-found"),
        ({"LoadState": "bad-setting", "LoadError": "odd"}, "bad-setting: odd"),
    ],
)
def test_a_unit_that_cannot_be_started(systemd, properties, found):
    with pytest.raises(SparkError, match=found):
        systemd(**properties).run()


def test_a_failed_unit_is_reset_first(systemd):
    fake = systemd(ActiveState="failed", Result="start-limit-hit")
    assert fake.run(config_hash="new-hash").action == "started"
    assert fake.calls == ["reset-failed", "start"]


@pytest.mark.parametrize(
    ("readings", "message"),
    [
        (
            [
                STARTING,
                {**DOWN, "ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainStatus": "3"},
            ],
            r"did not start \(failed/failed, Result=exit-code, exit status 3\)",
        ),
        (
            [{**STARTING, "SubState": "auto-restart", "Result": "signal", "Job": "0"}],
            r"activating/auto-restart, Result=signal",
        ),
        ([STARTING, {**STARTING, "NRestarts": "1"}], "did not start"),
        ([STARTING, {**DOWN, "ConditionResult": "no"}], "a Condition= of the unit is not met"),
        ([STARTING, {**DOWN, "StatusText": "no model"}], "no model"),
        (
            [{**DOWN, "Result": "signal", "ExecMainCode": "2", "ExecMainStatus": "9"}],
            "Result=signal, killed by signal 9",
        ),
    ],
)
def test_failing_start_shows_result_and_journal(systemd, readings, message):
    fake = systemd()
    fake.on["start"] = [{**reading, "Job": reading.get("Job", "0")} for reading in readings]
    with pytest.raises(SparkError, match=message) as caught:
        fake.run(enabled=True, config_hash="new-hash")
    text = str(caught.value)
    assert "    line 29" in text
    assert "    line 10" in text
    assert "line 9\n" not in text
    assert fake.journal_argv[-1] == "--since=@1234"
    assert "enable" not in fake.calls


def test_start_timeout(systemd):
    fake = systemd()
    fake.on["start"] = [STARTING]
    with pytest.raises(SparkError, match="not up after 5 s"):
        fake.run(config_hash="new-hash", start_timeout_s=5)
    assert 5 < fake.now < 5.5


def test_wrong_hash_after_the_start_is_no_endless_restart(systemd):
    fake = systemd()
    with pytest.raises(SparkError, match=r"has SPARKMATRIX_CONFIG_HASH=new-hash, expected third"):
        fake.run(config_hash="third")


def test_environment_of_a_process_that_execs_late(systemd):
    fake = systemd()
    fake.process(43, None)
    fake.on["start"] = [{**UP, "MainPID": "43"}, {**UP, "MainPID": "44"}, UP]
    assert fake.run(config_hash="new-hash").action == "started"


def test_refused_verb(systemd):
    fake = systemd()
    fake.refuse["start"] = "Unit is odd."
    with pytest.raises(SparkError, match=r"systemctl start was refused \(Unit is odd.\)"):
        fake.run()


def test_an_earlier_start_in_progress_is_waited_for(systemd):
    fake = systemd(**{**STARTING, "NRestarts": "2"})
    fake.queue = [{}, {}, UP]
    result = fake.run(config_hash="new-hash")
    assert (result.action, fake.calls) == ("started", [])


def test_an_earlier_start_with_another_unit_file_is_not_waited_for(systemd):
    fake = systemd(**{**STARTING, "NeedDaemonReload": "yes"})
    fake.on["restart"] = [{**UP, "InvocationID": "newer"}]
    assert fake.run(config_hash="new-hash").action == "restarted"


def test_a_start_that_somebody_else_began_shows_the_whole_journal(systemd):
    fake = systemd(**STARTING)
    with pytest.raises(SparkError, match="not up after"):
        fake.run(config_hash="new-hash", start_timeout_s=1)
    assert fake.journal_argv[-1] == "-q"


def test_a_crash_loop_is_restarted(systemd):
    fake = systemd(**{**STARTING, "SubState": "auto-restart", "NRestarts": "9"})
    fake.on["restart"] = [{**UP, "InvocationID": "newer", "NRestarts": "0"}]
    assert fake.run(config_hash="new-hash").action == "restarted"


def test_oneshot_is_remembered_by_note(systemd):
    done = {**UP, "SubState": "exited", "MainPID": "0"}
    fake = systemd()
    fake.on["start"] = [STARTING, done]
    fake.on["restart"] = [{**done, "InvocationID": "newer"}]
    assert fake.run(config_hash="one").action == "started"
    assert fake.run(config_hash="one").action == "none"
    assert fake.run(config_hash="two").action == "restarted"
    assert fake.run(config_hash="two").action == "none"
    fake.properties["InvocationID"] = "by hand"
    assert fake.run(config_hash="two", check_mode=True).action == "restarted"
    fake.on["stop"] = [DOWN]
    fake.run(state="absent")
    assert not list((fake.root / ms.NOTE_DIR[1:]).iterdir())


def test_damaged_note_means_restart(systemd):
    fake = systemd(**{**UP, "MainPID": "0"})
    (fake.root / ms.NOTE_DIR[1:]).mkdir(parents=True)
    (fake.root / ms.NOTE_DIR[1:] / f"{UNIT}.json").write_text("[]")
    assert fake.run(config_hash="one", check_mode=True).action == "restarted"


def test_stop(systemd):
    fake = systemd(**RUNNING)
    result = fake.run(state="stopped")
    assert (result.action, result.changed, fake.calls) == ("stopped", True, ["stop"])
    assert result.after == {"state": "stopped", "enabled": True, "config_hash": ""}
    assert fake.run(state="stopped").changed is False
    fake.properties["UnitFileState"] = "disabled"
    fake.calls.clear()
    result = fake.run(state="stopped", enabled=True)
    assert (result.action, result.changed, fake.calls) == ("none", True, ["enable"])


def test_absent(systemd):
    fake = systemd(**RUNNING)
    fake.on["stop"] = [{**DOWN, "ActiveState": "failed"}]
    told = fake.run(state="absent", check_mode=True)
    done = fake.run(state="absent")
    assert (told.action, told.diff) == (done.action, done.diff)
    assert fake.calls == ["disable", "stop", "reset-failed"]
    fake.properties.update({**DOWN, "LoadState": "not-found", "UnitFileState": ""})
    assert fake.run(state="absent").changed is False


def test_absent_of_a_process_whose_unit_file_is_gone(systemd):
    fake = systemd(**{**RUNNING, "LoadState": "not-found", "UnitFileState": ""})
    assert fake.run(state="absent").action == "stopped"


def test_stop_that_hangs(systemd):
    fake = systemd(**RUNNING)
    fake.on["stop"] = [{"ActiveState": "deactivating", "SubState": "stop-sigterm"}]
    with pytest.raises(SparkError, match="not stopped within 3 s"):
        fake.run(state="stopped", start_timeout_s=3)


@pytest.mark.parametrize("name", ["", "ray", "--x.service", "a b.service"])
def test_unit_names(systemd, name):
    if name == "--x.service":
        systemd().run(name=name, check_mode=True)  # harmless: always behind "--"
        return
    with pytest.raises(SparkError, match="no unit name"):
        systemd().run(name=name)


def test_unreadable_environment(systemd, monkeypatch):
    fake = systemd(**RUNNING)

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ms.Path, "read_bytes", refuse)
    with pytest.raises(SparkError, match="become"):
        fake.run(config_hash="x")


# -- a stop that ends by itself


def test_a_run_that_dies_leaves_nothing_stopped_for_good(systemd):
    fake = systemd(**RUNNING)
    assert fake.run(state="stopped", return_s=480).changed
    assert fake.calls == ["--on-active=480s", "stop"]  # armed first
    assert ms.returning(UNIT, str(fake.root))
    # The next run finds it stopped: it counts anew, and starting it ends that.
    fake.calls.clear()
    assert not fake.run(state="stopped", return_s=480).changed
    assert fake.calls == ["stop timer", "--on-active=480s"]
    fake.calls.clear()
    fake.run(state="started")
    assert fake.calls == ["start", "stop timer"]
    assert not ms.returning(UNIT, str(fake.root))


def test_what_somebody_stops_stays_stopped(systemd):
    fake = systemd(**RUNNING)
    fake.run(state="stopped", return_s=480)
    fake.calls.clear()
    assert not fake.run(state="stopped").changed
    assert fake.calls == ["stop timer"]
    fake.calls.clear()
    fake.run(state="stopped", return_s=480)  # it was stopped already, and by nobody who wants it back
    assert fake.calls == []


def test_check_mode_arms_nothing(systemd):
    fake = systemd(**RUNNING)
    assert fake.run(check_mode=True, state="stopped", return_s=480).changed
    fake.run(check_mode=True, state="started")
    assert fake.calls == []


def test_without_a_timer_it_is_not_stopped(systemd):
    fake = systemd(**RUNNING)
    fake.refuse["systemd-run"] = "no bus"
    with pytest.raises(SparkError, match=r"cannot be armed; it was not stopped \(no bus\)"):
        fake.run(state="stopped", return_s=480)
    assert "stop" not in fake.calls
