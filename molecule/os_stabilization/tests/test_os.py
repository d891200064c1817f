# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

TOOL = "/usr/local/lib/sparkmatrix/sparkmatrix-node"


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
