#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""os_stabilization_reboot, a node lost in the middle of the role, and the reboots of os_update on two lab nodes.

Usage: test_reboots.py [--engine] [--beside ID].

``--engine``: instead, one update of nodes that serve a model, which have to serve it again afterwards.

A reboot ends the container of a node; a thread here boots it again, as the firmware of a machine would.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import LabError, lab
from test_os_update import NAME, Updates

HOSTS = ("spark1", "spark2")
# Wants a file that only somebody's hand makes, so it fails in every boot.
BROKEN = """[Unit]\\nDescription=fails in the boot\\n[Service]\\nType=oneshot\\nExecStart=/bin/false\\n
[Install]\\nWantedBy=multi-user.target\\n"""


class Firmware(threading.Thread):
    """Boots a node whose container has ended."""

    def __init__(self, here: Updates) -> None:
        super().__init__(daemon=True)
        self.here = here
        self.done = threading.Event()
        self.boots: list[str] = []

    def run(self) -> None:
        while not self.done.wait(1):
            for host in HOSTS:
                probe = lab("exec", *self.here.lab[1], host, "--", "true")
                if subprocess.run(probe, cwd=cluster.ROOT, capture_output=True, check=False).returncode == 0:
                    continue
                start = lab("start", *self.here.lab[1], host)
                if subprocess.run(start, cwd=cluster.ROOT, capture_output=True, check=False).returncode == 0:
                    self.boots.append(host)

    def wait_for(self, host: str, limit_s: float = 120) -> None:
        """Until it has been booted, and its boot has ended."""
        command = lab("exec", *self.here.lab[1], host, "--", "systemctl", "is-system-running", "--wait")
        deadline = time.monotonic() + limit_s
        while True:
            seen = subprocess.run(command, cwd=cluster.ROOT, capture_output=True, text=True, check=False).stdout
            if host in self.boots and seen.strip() in ("running", "degraded"):
                return
            if time.monotonic() > deadline:
                raise LabError(f"{host} did not come back within {limit_s:.0f} s: {seen!r}")
            time.sleep(1)

    def took(self) -> list[str]:
        boots, self.boots = self.boots, []
        return boots


def lost_in_the_middle(here: Updates, firmware: Firmware) -> None:
    """A node goes down while the role works on it; the next run completes what is half done there."""
    os_layer, seven = "playbooks/os_stabilization.yml", ("-e", '{"os_stabilization_sysctl": {"vm.swappiness": "7"}}')
    # From nothing, so that there is a middle.
    here.play("away", "reset.yml", "--tags", "os_stabilization")
    watch = "until test -e /etc/systemd/system.conf.d/90-sparkmatrix.conf; do sleep 0.02; done; systemctl reboot -ff"
    command = lab("exec", *here.lab[1], "spark2", "--", "timeout", "300", "sh", "-c", watch)
    with subprocess.Popen(command, cwd=cluster.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        here.play("lost", os_layer, *seven, fails="[spark2]: UNREACHABLE!")
    firmware.wait_for("spark2")
    here.expect("boots of the node that was lost", firmware.took(), ["spark2"])
    here.play("found", os_layer, *seven)
    here.play("found-again", os_layer, *seven, unchanged=True)
    told = here.node("spark2", "sudo cat /var/lib/sparkmatrix/settings/os_stabilization.json")
    here.expect("nothing is pending, and the first value is known", ("pending" in told, '"60"' in told), (False, True))
    here.play("back", os_layer)


def run(here: Updates, firmware: Firmware) -> None:
    here.inventory({"spark1": 0, "spark2": 1})
    both, topics = ("--tags", "access,os_stabilization"), ("-e", "access_sshd_hardening=true")
    here.play("first", "site.yml", *both, *topics)
    here.play("second", "site.yml", *both, *topics, unchanged=True)
    here.expect(f"{here.executions} module executions per node, at most 9", here.executions <= 9, True)
    os_layer, wanted = "playbooks/os_stabilization.yml", ["spark1", "spark2"]
    here.node("spark2", "sudo touch /run/reboot-required")
    here.play("if-needed", os_layer, "-e", "os_stabilization_reboot=if_needed")
    here.expect("reboots where an update asks for one", firmware.took(), ["spark2"])
    for host in HOSTS:
        here.expect("target", here.node(host, "systemctl get-default").strip(), "multi-user.target")
    here.play("not-needed", os_layer, "-e", "os_stabilization_reboot=if_needed", unchanged=True)
    here.expect("reboots", firmware.took(), [])
    here.play("always", os_layer, "-e", "os_stabilization_reboot=always")
    here.expect("reboots, one after the other", firmware.took(), wanted)

    lost_in_the_middle(here, firmware)

    for host in HOSTS:
        here.source(host, (NAME, "1.0", ""))
        here.node(host, f"sudo apt-get -qq update && sudo apt-get -qq -y install {NAME} >/dev/null 2>&1")
        here.source(host, (NAME, "2.0", ""))
    here.play("update-reboots", "playbooks/os_update.yml")
    here.expect("reboots of os_update", firmware.took(), wanted)
    here.expect("versions", [here.version(host) for host in HOSTS], ["2.0", "2.0"])

    here.node("spark1", f"printf '{BROKEN}' | sudo tee /etc/systemd/system/lab-broken.service >/dev/null")
    here.node("spark1", "sudo systemctl enable lab-broken.service 2>/dev/null")
    here.play("unhealthy", os_layer, "-e", "os_stabilization_reboot=always", fails="lab-broken.service")
    here.expect("reboots until one is not healthy", firmware.took(), ["spark1"])


def with_engine(here: Updates, firmware: Firmware) -> None:
    here.inventory({"spark1": 0, "spark2": 1})
    here.play("serve", "site.yml")
    for host in HOSTS:
        here.source(host, (NAME, "1.0", ""))
        here.node(host, f"sudo apt-get -qq update && sudo apt-get -qq -y install {NAME} >/dev/null 2>&1")
        here.source(host, (NAME, "2.0", ""))
    here.play("update-serving", "playbooks/os_update.yml")
    here.expect("reboots of os_update", firmware.took(), ["spark1", "spark2"])
    here.expect("versions", [here.version(host) for host in HOSTS], ["2.0", "2.0"])
    here.play("serve-again", "site.yml", unchanged=True)


def main(arguments: list[str]) -> int:
    beside = arguments[arguments.index("--beside") + 1] if "--beside" in arguments else ""
    here = Updates(beside, ())
    firmware = Firmware(here)
    try:
        here.boot(2)
        firmware.start()
        (with_engine if "--engine" in arguments else run)(here, firmware)
    except (LabError, subprocess.SubprocessError) as exc:
        print(exc)
        return 1
    finally:
        firmware.done.set()
        if firmware.is_alive():
            firmware.join()
        here.down()
    cluster.say(str(here.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
