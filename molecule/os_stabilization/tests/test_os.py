# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import pathlib

import pytest

VICTIM = pathlib.Path(__file__).with_name("earlyoom_victim.sh")
TOOL = "/usr/local/lib/sparkmatrix/sparkmatrix-node"
ONE = "spark1"  # where what the node tool does is tried; it is the same everywhere


def name(host):
    return host.backend.host.name


def test_the_machine_boots_without_desktop(host):
    assert host.check_output("systemctl get-default") == "multi-user.target"


def test_swappiness_is_set_now_and_for_the_next_boot(host):
    effective = host.check_output("sysctl -n vm.swappiness")
    persistent = host.check_output("systemd-analyze cat-config sysctl.d")
    last = [line for line in persistent.splitlines() if line.replace(" ", "").startswith("vm.swappiness=")][-1]
    assert last.replace(" ", "") == f"vm.swappiness={effective}"


def test_limits_reach_new_services(host):
    manager = dict(
        line.split("=", 1) for line in host.check_output("systemctl show -p DefaultLimitNOFILE").splitlines()
    )
    seen = host.check_output("systemd-run --wait --pipe --quiet sh -c 'ulimit -Hn'")
    assert seen == manager["DefaultLimitNOFILE"]


def test_caches_are_dropped_on_demand_only(host):
    done = host.run(f"{TOOL} drop-caches")
    assert done.rc == 0, done.stderr
    scheduled = host.check_output(
        "systemctl list-timers --all --no-legend; cat /etc/cron*/* /etc/crontab 2>/dev/null || true"
    )
    assert "drop" not in scheduled


def test_every_file_of_a_topic_is_in_force(host):
    assert host.check_output("systemctl is-enabled sleep.target suspend.target || true").split() == ["masked"] * 2
    assert int(host.check_output("sysctl -n vm.max_map_count")) >= 262144
    shown = host.check_output("systemctl show -p MemoryMin --value ssh.service system.slice user.slice").split()
    ssh, system, user = map(int, shown)
    assert (ssh, user) == (64 * 2**20, 512 * 2**20)
    assert (
        system == (64 + 64 + 32) * 2**20
    )  # ssh, the journal, the watchdog: protection counts only where slices grant it
    upgrades = host.check_output("apt-config dump Unattended-Upgrade")
    assert '"nvidia-"' in upgrades
    assert 'Automatic-Reboot "false"' in upgrades
    assert "SystemMaxUse=4096M" in host.check_output("systemd-analyze cat-config systemd/journald.conf")


def test_protection_is_in_the_cgroup_where_there_is_a_memory_controller(host):
    if "memory" not in host.check_output("cat /sys/fs/cgroup/cgroup.controllers").split():
        pytest.skip("systemd has no memory controller in this node: its host has it in cgroup v1")
    for unit in ("system.slice", "system.slice/ssh.service", "user.slice"):
        assert int(host.check_output("cat /sys/fs/cgroup/%s/memory.min", unit)) > 0


def test_dockers_defaults(host):
    config = json.loads(host.file("/etc/docker/daemon.json").content_string)
    soft, hard = host.check_output("systemctl show --value -p DefaultLimitNOFILESoft -p DefaultLimitNOFILE").split()
    limits = config["default-ulimits"]["nofile"]
    assert {str(limits["Soft"]), str(limits["Hard"])} == {soft, hard}
    assert config["log-opts"] == {"max-size": "100m", "max-file": "3"}


def test_the_watchdog_runs(host):
    unit = host.service("sparkmatrix-memory-watchdog")
    assert unit.is_running
    assert unit.is_enabled


def test_the_watchdog_stops_what_it_was_told_and_nothing_else(host):
    if name(host) != ONE:
        return
    command = f"""
        for name in victim bystander; do systemd-run --quiet --collect --unit=spark-test-$name sleep 600; done
        timeout 20 {TOOL} watch-memory --unit spark-test-absent.service --unit spark-test-victim.service \\
            --available-mib 100000000 --seconds 1 --reason-file /run/spark-test/reason.json &
        for _ in $(seq 60); do systemctl is-active --quiet spark-test-victim || break; sleep 0.25; done
        systemctl is-active spark-test-victim spark-test-bystander
        kill $!
        systemctl stop spark-test-bystander
    """
    assert host.run(command).stdout.split()[:2] == ["inactive", "active"]


def test_files_are_evicted_without_root(host):
    if name(host) != ONE:
        return
    command = f"head -c 1000000 /dev/zero > /tmp/blob; {TOOL} evict /tmp/blob; code=$?; rm /tmp/blob; exit $code"
    done = host.run("su -s /bin/sh -c %s nobody", command)
    assert done.rc == 0, done.stderr
    assert done.stdout.startswith("Evicted 1 files")


def test_a_second_look_finds_nothing_pending(host):
    record = json.loads(host.file("/var/lib/sparkmatrix/settings/os_stabilization.json").content_string)
    assert not record["pending"]
    assert record["sysctl"]["vm.swappiness"] == "60"


def test_earlyoom_runs_and_would_end_the_engine_first(host):
    assert host.service("earlyoom").is_running and host.service("earlyoom").is_enabled
    pid = host.check_output("systemctl show --property=MainPID --value earlyoom")
    command = host.check_output("tr '\\0' ' ' < /proc/%s/cmdline", pid)
    assert " -m 3 -s 100,100 --avoid ^(systemd|" in command and " --prefer ^(VLLM::|" in command
    if name(host) == ONE:
        assert host.check_output("sh -c %s", VICTIM.read_text()).endswith('"VLLM::EngineCor"')
