# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What units may do."""

from __future__ import annotations

import re
import subprocess

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import unit_sandbox
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import (
    engine_sandbox,
    ray_files,
    root_helpers,
    service_files,
)
from engine_plans import node_plans

UNITS = "/etc/systemd/system"
ENGINE, RAY, KEEPER, WATCHDOG, METRICS, PROMETHEUS = (
    f"{UNITS}/sparkmatrix-{name}.service"
    for name in ("engine", "ray", "keeper", "memory-watchdog", "metrics", "prometheus")
)
DROP_CACHES, GPU_DEVICES = root_helpers.units()


def files(sandboxed=True, **settings):
    plan = node_plans(2, "qwen3-235b-a22b-gptq-int4", launch="ray", **settings)["spark1"]
    made = service_files.make(
        plan.here[0], plan.ray, service_files.Settings(sandbox=sandboxed), service_files.Marks()
    ).files
    return {**made, **root_helpers.units(), **ray_files.make(plan, ray_files.Settings(sandbox=sandboxed)).files}


@pytest.mark.parametrize("path", [ENGINE, RAY])
def test_a_rank_has_no_privileges_and_writes_into_its_directories_only(path):
    lines = set(files()[path].splitlines())
    assert {*unit_sandbox.ANY, "CapabilityBoundingSet=", "ProtectSystem=strict", "ProtectHome=yes"} <= lines
    assert {"ProtectProc=invisible", "PrivateTmp=yes", "SystemCallErrorNumber=EPERM"} <= lines
    assert "ReadWritePaths=/opt/sparkmatrix/models/huggingface /var/lib/sparkmatrix/home" in lines


@pytest.mark.parametrize("path", [ENGINE, RAY])
def test_what_would_take_gpu_fabric_or_compilers_away(path):
    """ProtectClock closes all devices but the clock on some systems; memory of compiled code is written and run."""
    names = set(re.findall(r"^(\w+)=", files()[path], re.MULTILINE))
    assert not names & {"ProtectClock", "PrivateDevices", "DevicePolicy", "DeviceAllow", "MemoryDenyWriteExecute"}
    assert not names & {"PrivateNetwork", "PrivateIPC", "PrivateUsers", "ProcSubset", "IPAddressDeny"}
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK\n" in files()[path]
    (refused,) = re.findall(r"^SystemCallFilter=(.*)$", files()[path], re.MULTILINE)
    # NCCL and torch hand memory to each other with pidfd_getfd, and bind it to nodes.
    assert refused.startswith("~") and not {"@debug", "@resources", "@memlock", "@process"} & set(refused.split())


def test_off_nothing_of_it_is_there():
    without = files(sandboxed=False)
    for path in (ENGINE, RAY):
        assert "NoNewPrivileges" not in without[path]
    assert without["/etc/sparkmatrix/engine.env"] == files()["/etc/sparkmatrix/engine.env"]


@pytest.mark.parametrize(
    ("named", "homes"),
    [
        (["--temp-dir", "/var/lib/sparkmatrix/home/ray", "/opt/home/x", "a=/opt:/usr/rooted"], "yes"),
        (["/home/me/venv/bin/vllm"], "read-only"),
        (["--model=/root/models"], "read-only"),
        (["/opt/lib:/home/me/lib"], "read-only"),
        (['{"path": "/run/user/1000/x"}'], "read-only"),
    ],
)
def test_homes_are_hidden_unless_something_is_read_there(named, homes):
    assert engine_sandbox.unit(["/srv/a"], named)[-1] == f"ProtectHome={homes}"


def test_a_cache_below_a_home_stays_writable():
    lines = files(hf_home="/home/me/my models")[ENGINE].splitlines()
    assert 'ReadWritePaths="/home/me/my models" /var/lib/sparkmatrix/home' in lines
    assert "ProtectHome=read-only" in lines


def test_keeper_and_watchdog_are_root_and_no_more():
    lines = files()[KEEPER].splitlines()
    assert set(unit_sandbox.KEEPER) <= set(lines)
    # Whose memory Python's ctypes and Ray make.
    assert "MemoryDenyWriteExecute=yes" not in lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "highest"),
    [
        *((ENGINE, 3.0), (RAY, 3.0), (KEEPER, 3.0), (WATCHDOG, 1.5), (METRICS, 4.5), (PROMETHEUS, 2.2)),
        *((DROP_CACHES, 1.4), (GPU_DEVICES, 2.7)),
    ],
)
def test_the_score_of_systemd(path, highest, tmp_path):
    """Of 10, less is better; without a sandbox 9.0, and 9.6 for root."""
    unit = tmp_path / path.rpartition("/")[2]
    own = {
        WATCHDOG: unit_sandbox.WATCHDOG,
        METRICS: unit_sandbox.METRICS,
        PROMETHEUS: ("User=prometheus", *unit_sandbox.SERVER),
    }
    unit.write_text("\n".join(["[Service]", "ExecStart=/bin/true", *own[path], ""]) if path in own else files()[path])
    argv = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    (score,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert float(score) < highest
