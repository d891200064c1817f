# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import unit_sandbox
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.systemd import Unit
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.settings import Record, Swap, parse_swaps
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import topics
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os.machine_state import (
    Reading,
    Session,
    parse_packages,
    parse_sessions,
    read,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os.options import Options
from hypothesis import given
from hypothesis import strategies as st

GIB = 2**30
MIB = 2**20


def running(name, cgroup="", **more):
    return Unit(name, "loaded", active="active", enabled="enabled", cgroup=cgroup, slice="system.slice", **more)


def machine(*units, **values):
    known = {unit.name: unit for unit in units}
    values.setdefault("memory_total", 128 * GIB)
    values.setdefault("memory_available", 100 * GIB)
    values.setdefault("memory_controller", True)
    values.setdefault("recursive_protection", True)
    return Reading(units=known, **values)


def content(part, path):
    return next(item.content.decode() for item in part.files if item.path == path)


def texts(part):
    return " ".join(str(finding) for finding in part.findings)


# -- headless

DESKTOP = running("display-manager.service")
PERSON = Session("3", "ann", "x11", "user")


@pytest.mark.parametrize(
    ("when", "units", "sessions", "known", "expected"),
    [
        ("boot", [DESKTOP], [], {}, (False, 1, False)),
        ("boot", [], [], {}, (False, 0, False)),
        ("idle", [DESKTOP], [], {}, (True, 0, False)),
        ("idle", [DESKTOP], [PERSON], {}, (False, 1, True)),
        ("idle", [DESKTOP], [Session("c1", "gdm", "wayland", "greeter")], {}, (True, 0, False)),
        ("idle", [DESKTOP], [Session("4", "ann", "tty", "user", remote=True, service="sshd")], {}, (True, 0, False)),
        (
            "idle",
            [DESKTOP],
            [Session("5", "ann", "", "user", remote=True, service="xrdp-sesman")],
            {},
            (False, 1, True),
        ),
        ("now", [DESKTOP], [PERSON], {}, (True, 0, False)),
        ("boot", [Unit(DESKTOP.name, "loaded")], [], {DESKTOP.name: "active"}, (True, 0, False)),
        ("boot", [Unit(DESKTOP.name, "loaded")], [], {}, (False, 0, False)),
    ],
)
def test_headless(when, units, sessions, known, expected):
    part = topics.headless(Options(headless=when), machine(*units, sessions=sessions), Record({"units": known}))
    assert part.files[0].link_to == "/usr/lib/systemd/system/multi-user.target"
    stopped = part.values.get("units") == {DESKTOP.name: "inactive"}
    assert (stopped, len(part.reboot), bool(part.findings)) == expected


# -- swap, sysctl


def test_swap_off():
    swaps = [Swap("/swap.img", 16 * GIB, 90 * GIB, -2)]
    node = machine(swaps=swaps, swap_units=["swap.img.swap"], swap_files=frozenset({"/old"}))
    part = topics.swap(Options(swap_policy="off"), node, Record({"swaps": {"/old": "on", "/gone": "on"}}))
    assert part.values == {"swaps": {"/swap.img": "off", "/old": "off"}}
    assert [(item.path, item.link_to) for item in part.files] == [("/etc/systemd/system/swap.img.swap", "/dev/null")]
    assert part.findings == []
    refused = topics.swap(Options(swap_policy="off"), machine(swaps=swaps, memory_available=91 * GIB), Record())
    assert "90.0 GiB in swap" in texts(refused)
    assert topics.swap(Options(), node, Record()).values == {"sysctl": {"vm.swappiness": "10"}}


@pytest.mark.parametrize(
    ("rule", "now", "before", "expected"),
    [
        (">=5", "4", None, "5"),
        (">=5", "5", None, None),
        (">=5", "5", "4", "5"),  # ours: still needed
        (">=5", "9", "6", None),
        ("5", "6", None, "5"),
        ("5", "5", None, None),
        (">=5", "odd", None, "5"),
        (">=5", "", None, None),  # no such setting: a warning
        ("-1", "0", None, "-1"),
    ],
)
def test_sysctl(rule, now, before, expected):
    known = Record({"sysctl": {"vm.x": before}} if before else {})
    part = topics.sysctl(Options(sysctl={"vm.x": rule}), machine(sysctl={"vm.x": now}), known)
    assert part.values.get("sysctl", {}).get("vm.x") == expected
    assert bool(part.findings) is (now == "")


# -- limits


# -- memory


@pytest.mark.parametrize(
    ("cgroup", "slice_name", "expected"),
    [
        ("/system.slice/ssh.service", "x", ["system.slice"]),
        ("/user.slice", "", []),
        ("", "system.slice", ["system.slice"]),
        ("", "a-b-c.slice", ["a.slice", "a-b.slice", "a-b-c.slice"]),
        ("", "-.slice", []),
        ("", "", []),
    ],
)
def test_ancestors(cgroup, slice_name, expected):
    assert topics.ancestors(cgroup, slice_name) == expected


@given(st.dictionaries(st.sampled_from(["a.service", "b.service", "c.service"]), st.integers(1, 100)))
def test_what_a_slice_has_is_the_sum_of_what_is_below(leaves):
    units = {name: Unit(name, cgroup=f"/system.slice/x-y.slice/{name}") for name in leaves}
    total = topics.protection(leaves, units)
    for parent in ("system.slice", "x-y.slice"):
        assert total.get(parent, 0) == sum(leaves.values())


def test_memory_min_of_a_socket_with_instances():
    ssh = running("ssh.service", "/system.slice/ssh.service")
    node = machine(ssh, running("ssh.socket", accept=True))
    part = topics.memory_min(Options(memory_min_mib={"ssh.service": 64, "user.slice": 0}), node, Record())
    assert part.protect["system-ssh.slice"] == 64 * MIB
    assert part.protect["system.slice"] == (64 + 64 + 32) * MIB
    assert "[Slice]" in content(part, "/etc/systemd/system/system-ssh.slice.d/90-sparkmatrix.conf")
    assert "[Service]" in content(part, "/etc/systemd/system/ssh@.service.d/90-sparkmatrix.conf")
    assert "there is no such unit" in texts(part)  # user.slice is not in this reading


def test_memory_min_elsewhere():
    node = machine(running("sshd.service", "/system.slice/sshd.service"), recursive_protection=False)
    part = topics.memory_min(Options(memory_min_mib={"ssh.service": 64}, watchdog_available_mib=0), node, Record())
    assert part.protect == {"sshd.service": 64 * MIB, "system.slice": 64 * MIB}
    assert "memory_recursiveprot" in texts(part)


def test_memory_min_is_bounded():
    node = machine(running("user.slice", "/user.slice"), memory_total=10 * GIB)
    part = topics.memory_min(Options(memory_min_mib={"user.slice": 481}), node, Record())
    assert "513 MiB would be protected, more than 5%" in texts(part)
    part = topics.memory_min(Options(memory_min_mib={"user.slice": 480}), node, Record())
    assert part.findings == []


def test_earlyoom():
    options = Options(earlyoom="avoid_engine")
    part = topics.earlyoom(options, machine(running("earlyoom.service")), Record())
    text = content(part, "/etc/default/earlyoom")
    assert "--prefer" not in text
    assert "VLLM::" in text
    assert "-m 3 -s 100,100" in text
    assert "sparkmatrix-nod" in text
    assert "packages" not in part.values
    ours = Record({"packages": {"earlyoom": "absent"}})
    for node, record in ((machine(), Record()), (machine(running("earlyoom.service")), ours)):
        assert topics.earlyoom(options, node, record).values["packages"] == {"earlyoom": "installed"}


def test_a_clock_is_capped_where_there_is_a_driver():
    options = Options(gpu_clock_max_mhz=2000)
    assert "no NVIDIA driver" in str(topics.gpu_clock(options, machine(), Record()).findings[0])
    part = topics.gpu_clock(options, machine(nvidia_driver=True), Record())
    text = content(part, "/etc/systemd/system/sparkmatrix-gpu-clock.service")
    assert "ExecStart=nvidia-smi --lock-gpu-clocks=0,2000\n" in text and "--reset-gpu-clocks" in text
    assert list(part.services) == [topics.CLOCK_UNIT] and not part.findings


def test_the_watchdogs_hash_follows_its_unit():
    part = topics.watchdog(Options(), machine(), Record())
    other = topics.watchdog(Options(watchdog_available_mib=64), machine(), Record())
    assert part.services != other.services
    text = content(part, "/etc/systemd/system/sparkmatrix-memory-watchdog.service")
    assert f"SPARKMATRIX_CONFIG_HASH={part.services[topics.WATCHDOG_UNIT]}\n" in text
    units = ("sparkmatrix-engine.service", "sparkmatrix-engine-*.service", "sparkmatrix-ray.service")
    assert " ".join(f"--unit {unit}" for unit in units) in text
    assert set(unit_sandbox.WATCHDOG) <= set(text.splitlines())


# -- packages


PACKAGES = {"nvidia-modprobe": "580.95-1", "bash": "5.2"}


def test_hold():
    part = topics.hold(Options(), machine(packages=PACKAGES), Record())
    assert part.values == {"holds": {"nvidia-modprobe": "hold"}}
    assert "no kernel or driver" in texts(topics.hold(Options(), machine(), Record()))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"nvidia-*": ("580.*",)}, ""),
        ({"nvidia-*": ("570.*", "575.1-1")}, "version 580.95-1 is not on the known-good list (570.*, 575.1-1)"),
        ({"cuda-*": ("1",)}, "it is not installed"),
    ],
)
def test_known_good(known, expected):
    part = topics.known_good(Options(known_good=known), machine(packages=PACKAGES), Record())
    assert expected in texts(part)
    assert bool(expected) == bool(part.findings)
    assert all(finding.severity == "warning" for finding in part.findings)


def test_upgrades():
    assert "Blacklist {" in content(
        topics.upgrades(Options(), machine(), Record()), "/etc/apt/apt.conf.d/99sparkmatrix"
    )
    part = topics.upgrades(Options(upgrades="off"), machine(), Record())
    assert 'Unattended-Upgrade "0"' in content(part, "/etc/apt/apt.conf.d/99sparkmatrix")
    part = topics.upgrades(Options(), machine(apt=False), Record())
    assert (part.files, "there is no apt" in texts(part)) == ([], True)


# -- power, logs, time


@pytest.mark.parametrize(
    ("driver", "unit", "warned"),
    [
        (False, Unit("nvidia-persistenced.service"), False),
        (True, Unit("nvidia-persistenced.service"), True),
        (True, Unit("nvidia-persistenced.service", "loaded"), True),
        (True, running("nvidia-persistenced.service"), False),
    ],
)
def test_power(driver, unit, warned):
    part = topics.power(Options(), machine(unit, nvidia_driver=driver), Record())
    assert len(part.files) == 5
    assert bool(part.findings) is warned


@pytest.mark.parametrize(
    ("config", "bounded"), [(None, True), (b'{"log-driver": "local"}', True), (b'{"log-driver": "journald"}', False)]
)
def test_logs(config, bounded):
    part = topics.logs(Options(), machine(running("docker.service"), docker_config=config), Record())
    assert bool(part.merged) is bounded


@pytest.mark.parametrize(
    ("units", "synchronized", "expected"),
    [
        ([], True, "no service keeps the clock"),
        ([running("chrony.service")], False, "not synchronized"),
        ([running("chrony.service")], None, ""),
        ([running("systemd-timesyncd.service")], True, ""),
    ],
)
def test_time_sync(units, synchronized, expected):
    part = topics.time_sync(Options(), machine(*units, clock_synchronized=synchronized), Record())
    assert expected in texts(part)
    assert bool(expected) == bool(part.findings)


def test_plan():
    assert [topic.name for topic in topics.TOPICS] == list(dict.fromkeys(topic.name for topic in topics.TOPICS))
    nothing = Options(
        headless="off", swap_policy="keep", sysctl={}, limits=False, memory_min_mib={}, watchdog_available_mib=0,
        upgrades="keep", power=False, logs=False,
    )  # fmt: skip
    assert topics.plan(nothing, machine(running("chrony.service")), Record()) == topics.Part()
    part = topics.plan(Options(), machine(reboot_required=True, sysctl={"vm.max_map_count": "1"}), Record())
    assert "vm.max_map_count = 262144\nvm.swappiness = 10\n" in content(part, "/etc/sysctl.d/zz-sparkmatrix.conf")
    assert part.reboot == ["an update asks for it (/run/reboot-required)"]
    paths = [item.path for item in part.files]
    assert len(paths) == len(set(paths))


# -- the reading


def test_parsers():
    sessions = parse_sessions(
        "Id=1\nState=closing\n\nId=2\nName=ann\nType=x11\nClass=user\nRemote=no\nState=active\n\n\n"
    )
    assert [str(session) for session in sessions] == ["session 2 of ann (x11)"]
    assert parse_packages("ii \ta\t1\nrc \tb\t2\nhi \tc\t3\nodd\n") == {"a": "1", "c": "3"}
    swaps = parse_swaps("Filename Type\n/a\\040b file 1024 512 -2\nbroken line\n/c file x 1 2\n")
    assert swaps == [Swap("/a b", MIB, MIB // 2, -2)]


def test_a_machine_without_systemd(tmp_path):
    node = Machine(str(tmp_path), lambda argv: Completed(1, "", "not booted"))
    with pytest.raises(SparkError, match=r"ssh.service .*: systemctl show failed \(not booted\)"):
        read(node)
