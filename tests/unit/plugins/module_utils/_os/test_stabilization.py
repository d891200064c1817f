# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import grp
import json
import os
import pwd

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import stabilization as os_stabilization
from fake_machine import Killed
from fake_os import FakeOs

EVERYTHING = {
    "headless": "now",
    "swap_policy": "off",
    "hold": True,
    "earlyoom": "prefer_engine",
    "upgrades": "off",
}
DOCKER = "/etc/docker/daemon.json"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    # On a node the files are root's; here they are whoever runs the tests.
    me, group = pwd.getpwuid(os.getuid()), grp.getgrgid(os.getgid())
    monkeypatch.setattr(managed_files.pwd, "getpwnam", lambda name: me)
    monkeypatch.setattr(managed_files.grp, "getgrnam", lambda name: group)
    return FakeOs(tmp_path)


def stabilization(machine, check=False):
    ticks = iter(range(10**6))
    return os_stabilization.Stabilization(
        Machine(str(machine.root), machine.run, machine.sleep, lambda: float(next(ticks))), check_mode=check
    )


@pytest.mark.parametrize("options", [{}, EVERYTHING, {"swap_policy": "keep", "limits": False, "memory_min_mib": {}}])
def test_there_and_back(machine, options):
    machine.swap("/swap.img", priority=5)
    machine.swap_units.append("swap.img.swap")
    machine.write(DOCKER, '{\n  "features": {"cdi": true}\n}')
    before = machine.state()
    told = stabilization(machine, check=True).present(options)
    assert machine.state() == before
    assert machine.calls == []
    done = stabilization(machine).present(options)
    assert told.changed
    assert done.changed
    assert [entry["after"] for entry in told.diff if "config_hash" not in entry["after"]] == [
        entry["after"] for entry in done.diff if "config_hash" not in entry["after"]
    ]
    assert done.warnings == []
    machine.calls.clear()
    again = stabilization(machine).present(options)
    assert (again.changed, again.actions, machine.calls) == (False, [], [])
    back = stabilization(machine, check=True).absent()
    assert back.changed
    assert machine.calls == []
    stabilization(machine).absent()
    after = machine.state()
    assert after == before
    assert not stabilization(machine).absent().changed


def test_the_clock_of_the_gpu_is_capped_and_given_back(machine):
    machine.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module  580.95.05\n")
    before = machine.state()
    capped = {"gpu_clock_max_mhz": 2000}
    assert stabilization(machine).present(capped).changed
    assert (machine.clock_mhz, machine.units["sparkmatrix-gpu-clock.service"]["UnitFileState"]) == (2000, "enabled")
    assert not stabilization(machine).present(capped).changed
    for path in machine.path("/run").rglob("*.json"):
        path.unlink()  # as a boot does
    assert not stabilization(machine).present(capped).changed
    stabilization(machine).present({"gpu_clock_max_mhz": "1800"})
    assert machine.clock_mhz == 1800
    stabilization(machine).present({})
    assert machine.clock_mhz is None and "sparkmatrix-gpu-clock.service" not in machine.units
    stabilization(machine).present(capped)
    stabilization(machine).absent()
    assert (machine.state(), machine.clock_mhz) == (before, None)


def test_a_gpu_whose_clock_cannot_be_capped(machine):
    machine.write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module  580.95.05\n")
    machine.fail["nvidia-smi"] = "Setting locked GPU clocks is not supported for GPU 0000000F:01:00.0."
    with pytest.raises(SparkError, match=r"(?s)sparkmatrix-gpu-clock\.service: .*not supported for GPU"):
        stabilization(machine).present({"gpu_clock_max_mhz": 2000})
    assert machine.units["sparkmatrix-gpu-clock.service"]["UnitFileState"] == "disabled"
    stabilization(machine).absent()
    assert "sparkmatrix-gpu-clock.service" not in machine.units


def test_what_is_in_force(machine):
    machine.swap("/swap.img")
    machine.swap_units.append("swap.img.swap")
    done = stabilization(machine).present(EVERYTHING)
    assert machine.swaps == {}
    assert str(machine.path("/etc/systemd/system/swap.img.swap").readlink()) == "/dev/null"
    assert machine.holds == {"nvidia-modprobe", "linux-image-6.17-nvidia"}
    assert machine.units["display-manager.service"]["ActiveState"] == "inactive"
    assert "--prefer '^(VLLM" in machine.read("/etc/default/earlyoom")
    assert machine.limits["DefaultLimitMEMLOCK"] == "infinity:infinity"
    assert done.memory_min["system.slice"] == (64 + 64 + 32) * 2**20
    assert done.memory_min["user.slice"] == 512 * 2**20
    assert done.reboot == []
    assert json.loads(machine.read(DOCKER))["default-ulimits"]["memlock"] == {"Name": "memlock", "Hard": -1, "Soft": -1}
    assert "systemctl try-restart docker.service" in machine.calls
    assert machine.units["sparkmatrix-memory-watchdog.service"]["UnitFileState"] == "enabled"


def test_topics_that_are_switched_off_go_back(machine):
    before = machine.state()
    stabilization(machine).present({})
    off = {
        **dict.fromkeys(("limits", "power", "logs"), False), "headless": "off", "swap_policy": "keep", "sysctl": {},
        "upgrades": "keep", "memory_min_mib": {}, "watchdog_available_mib": 0,
    }  # fmt: skip
    stabilization(machine).present(off)
    assert machine.state() == before


@pytest.mark.parametrize(
    "cut",
    ["systemctl daemon-reload", "systemctl try-restart docker", "systemctl try-restart systemd-journald", "swapoff"],
)
@pytest.mark.parametrize("second", ["present", "absent"])
def test_an_interrupted_run_is_finished_by_the_next(machine, cut, second):
    machine.swap("/swap.img")
    before = machine.state()
    reference = None
    if second == "present":
        stabilization(machine).present(EVERYTHING)
        reference = machine.state()
        stabilization(machine).absent()
        assert machine.state() == before
    machine.kill_at = cut
    with pytest.raises(Killed):
        stabilization(machine).present(EVERYTHING)
    machine.kill_at = ""
    machine.calls.clear()
    if second == "present":
        stabilization(machine).present(EVERYTHING)
        assert machine.state() == reference
        assert any(cut in call for call in machine.calls)
    else:
        stabilization(machine).absent()
        assert machine.state() == before


def test_running_containers_keep_docker_running(machine):
    machine.containers = ["web"]
    done = stabilization(machine).present({})
    assert any("docker.service: its new configuration is not active: containers run (web)" in w for w in done.warnings)
    assert "systemctl try-restart docker.service" not in machine.calls
    again = stabilization(machine).present({})
    assert not again.changed
    assert any("containers run" in warning for warning in again.warnings)
    assert stabilization(machine).present({"docker_restart": "never"}).warnings[0].count("never") == 1
    machine.containers = []
    last = stabilization(machine).present({})
    assert last.actions == ["systemctl try-restart docker.service"]
    assert not stabilization(machine).present({}).changed


def test_a_docker_that_was_restarted_meanwhile(machine):
    machine.containers = ["web"]
    stabilization(machine).present({})
    machine.units["docker.service"]["InvocationID"] = "9"
    again = stabilization(machine).present({})
    assert (again.changed, again.warnings) == (False, [])


def test_what_others_changed_in_dockers_configuration_stays(machine):
    machine.write(DOCKER, '{"log-opts": {"max-size": "7m"}, "features": {"cdi": true}}')
    done = stabilization(machine).present({})
    assert [w for w in done.warnings if "log-opts.max-size is set to '7m' already" in w]
    text = json.loads(machine.read(DOCKER))
    text["runtimes"] = {"nvidia": {"path": "x"}}
    machine.write(DOCKER, json.dumps(text))
    assert not stabilization(machine).present({}).changed
    stabilization(machine).present({"memlock": "1024", "nofile": "5"})
    stabilization(machine).absent()
    assert json.loads(machine.read(DOCKER)) == {
        "log-opts": {"max-size": "7m"},
        "features": {"cdi": True},
        "runtimes": {"nvidia": {"path": "x"}},
    }


def test_docker_went_away_and_its_file_with_it(machine):
    machine.write(DOCKER, '{"features": {}}')
    stabilization(machine).present({})
    machine.path(DOCKER).unlink()
    del machine.units["docker.service"]
    stabilization(machine).present({})
    stabilization(machine).absent()
    assert not machine.path(DOCKER).exists()


def test_a_linked_docker_configuration(machine):
    machine.write("/etc/docker/real.json", "{}")
    machine.link(DOCKER, "real.json")
    done = stabilization(machine).present({})
    assert any("it is a link" in warning for warning in done.warnings)
    assert machine.read("/etc/docker/real.json") == "{}"


def test_a_broken_docker_configuration_is_named(machine):
    machine.write(DOCKER, "{")
    before = machine.state()
    with pytest.raises(SparkError, match=r"daemon.json: this is no JSON"):
        stabilization(machine).present({})
    assert machine.state() == before


def test_all_refusals_at_once(machine):
    machine.swap("/swap.img", used_gib=99)
    before = machine.state()
    with pytest.raises(SparkError) as refused:
        stabilization(machine).present({"swap_policy": "off", "memory_min_mib": {"user.slice": 99999}})
    text = str(refused.value)
    assert "nothing was changed" in text
    assert f"1. {os.uname().nodename} " in text
    for part in ("99.0 GiB in swap", "100031 MiB would be protected"):
        assert part in text
    assert machine.state() == before


def test_protection_that_somebody_overrides(machine):
    real = machine._reload

    def reload():
        real()
        machine.write("/sys/fs/cgroup/user.slice/memory.min", "0\n")

    machine._reload = reload
    done = stabilization(machine).present({})
    assert any("memory.min of user.slice: 0 bytes are protected" in warning for warning in done.warnings)


def test_no_memory_controller(machine):
    machine.write("/sys/fs/cgroup/cgroup.controllers", "hugetlb\n")
    done = stabilization(machine).present({})
    assert done.memory_min == {}
    assert any("no memory controller" in warning for warning in done.warnings)


def test_a_reload_that_fails(machine):
    machine.fail["systemctl try-restart systemd-journald"] = "Access denied"
    with pytest.raises(SparkError, match=r"try-restart systemd-journald\.service failed"):
        stabilization(machine).present({})
    machine.fail.clear()
    assert stabilization(machine).present({}).changed
    assert not stabilization(machine).present({}).changed


def test_the_reason_of_the_watchdog_goes_too(machine):
    stabilization(machine).present({})
    machine.write("/var/lib/sparkmatrix/watchdog/reason.json", "{}")
    stabilization(machine).absent()
    assert not machine.path("/var/lib/sparkmatrix").exists()


def test_the_desktop_in_use_stays(machine):
    session = {"Id": "3", "Name": "ann", "Type": "wayland", "Class": "user", "Remote": "yes", "State": "active"}
    machine.sessions.append(session)
    done = stabilization(machine).present({"headless": "idle"})
    assert any("session 3 of ann (wayland, remote)" in warning for warning in done.warnings)
    assert machine.units["display-manager.service"]["ActiveState"] == "active"
    assert done.reboot == ["the desktop still runs and keeps 1.2 to 3 GiB"]
    session["Class"] = "greeter"
    stabilization(machine).present({"headless": "idle"})
    assert machine.units["display-manager.service"]["ActiveState"] == "inactive"
    stabilization(machine).present({"headless": "boot"})
    assert machine.units["display-manager.service"]["ActiveState"] == "inactive"
    stabilization(machine).absent()
    assert machine.units["display-manager.service"]["ActiveState"] == "active"


def test_a_machine_that_goes_down_after_the_files_keeps_the_values_that_it_had(machine, monkeypatch):
    before = machine.state()
    real = managed_files.apply_set

    def down_afterwards(*args, check_mode=False, **options):
        done = real(*args, check_mode=check_mode, **options)
        if not check_mode:
            raise Killed
        return done

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(managed_files, "apply_set", down_afterwards)
        stabilization(machine).present({"sysctl": {"vm.swappiness": "7"}})
    # The boot brings what the files say.
    machine.write("/proc/sys/vm/swappiness", "7\n")
    machine.run(["systemctl", "daemon-reload"])
    stabilization(machine).present({"sysctl": {"vm.swappiness": "7"}})
    stabilization(machine).absent()
    assert machine.state() == before
