# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import re

HEAD = "spark1"


def name(host):
    return host.backend.host.name


def test_every_node_runs_its_rank_and_no_ray(host):
    assert host.service("sparkmatrix-engine").is_running
    assert not host.file("/etc/systemd/system/sparkmatrix-ray.service").exists
    rank = int(name(host)[-1]) - 1
    assert f"--node-rank {rank}" in host.check_output("docker top sparkmatrix-engine")


def test_the_container_has_what_it_needs_and_no_more(host):
    (found,) = json.loads(host.check_output("docker inspect sparkmatrix-engine"))
    settings = found["HostConfig"]
    assert not settings["Privileged"]
    # What the engine's processes really have: CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID and IPC_LOCK.
    status = host.file(f"/proc/{found['State']['Pid']}/status").content_string
    assert int(re.findall(r"^CapBnd:\s+(\w+)$", status, re.MULTILINE)[0], 16) == 0x40EB
    assert re.findall(r"^NoNewPrivs:\s+(\d)$", status, re.MULTILINE) == ["1"]
    assert (settings["NetworkMode"], settings["IpcMode"]) == ("host", "host")
    assert {limit["Name"] for limit in settings["Ulimits"]} == {"memlock", "nofile", "stack"}


def test_the_api_listens_on_loopback_of_the_head_only(host):
    addresses = {line.split()[3] for line in host.check_output("ss -Hltn").splitlines()}
    assert {address for address in addresses if address.endswith(":8000")} == (
        {"127.0.0.1:8000"} if name(host) == HEAD else set()
    )


def test_the_key_is_in_no_file_that_others_read_and_in_no_command_line(host):
    if name(host) != HEAD:
        assert not host.file("/etc/sparkmatrix/engine-key.env").exists
        return
    key = re.split('["=]+', host.file("/etc/sparkmatrix/engine-key.env").content_string.strip())[1]
    assert len(key) > 24
    visible = host.check_output(
        "cat /etc/sparkmatrix/engine/* /etc/sparkmatrix/engine.env /etc/sparkmatrix/engine.json; ps axww -o args;"
        " systemctl cat sparkmatrix-engine; journalctl --no-pager -u sparkmatrix-engine"
    )
    assert key not in visible
    assert key in host.check_output("docker exec sparkmatrix-engine python3 -c 'import os; print(os.environ)'")
