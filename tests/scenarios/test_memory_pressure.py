#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Memory protection and swap policies of os_stabilization on kernels of their own, under real pressure.

Two services hold the same memory, one of them protected by the role. A third takes more memory than the machine has:
the protected one has to stay in memory, the other one has to go to swap; logins meanwhile are counted.
Then system.slice, the ancestor of both, loses its protection, and with it the protected one: what the role gives to
ancestors is needed.
Switching swap off is refused here: a machine of 1 GiB has not the 2 GiB to spare that the role asks for.

Usage: test_memory_pressure.py [--id ID]. Boots virtual machines (tests/lab/vm), and removes them.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
import time
from typing import Any

LAB = pathlib.Path(__file__).resolve().parents[1] / "lab"
sys.path[:0] = [str(LAB), str(LAB / "vm")]

import cluster
import machine
import vm_image
from cluster import LabError, say
from labstate import LabError as VmError
from labstate import operation
from machine import Vms

NODE = "spark1"
HELD_MIB = 16  # beside some 8 MiB of Python itself
PROTECTED_MIB = 28
MIB = 2**20
HOLD = f"import time; b = bytearray({HELD_MIB} << 20); b[::4096] = b'x' * len(b[::4096]); time.sleep(1e6)"
# All that is available and a quarter of the machine more. It writes down itself what it sees then: where nothing
# protects sshd, nobody can log in to look.
HOG = """
import re, time
kib = dict(re.findall(r'(\\w+): +(\\d+)', open('/proc/meminfo').read()))
b = bytearray((int(kib['MemAvailable']) + int(kib['MemTotal']) // 4) << 10)
for start in range(0, len(b), 1 << 20):
    part = len(range(start, min(start + (1 << 20), len(b)), 4096))
    b[start:start + (1 << 20):4096] = b'y' * part
lines = []
for unit in ('lab-kept.service', 'lab-lost.service', 'ssh.service'):
    files = [f'/sys/fs/cgroup/system.slice/{unit}/memory.{name}' for name in ('min', 'current', 'swap.current')]
    lines.append(' '.join([unit, *(open(file).read().strip() for file in files)]))
open('/run/seen', 'w').write(chr(10).join(lines))
"""
PREPARE = f"""
set -eu
dd if=/dev/zero of=/swapfile bs=1M count=768 status=none
chmod 600 /swapfile
mkswap -q /swapfile
echo '/swapfile none swap sw 0 0' >> /etc/fstab
mkdir -p /srv/lab
cat > /srv/lab/hold.py <<'TEXT'
{HOLD}
TEXT
cat > /srv/lab/hog.py <<'TEXT'
{HOG}
TEXT
for name in kept lost; do
  printf '[Service]\\nExecStart=/usr/bin/python3 -I /srv/lab/hold.py\\n' > /etc/systemd/system/lab-$name.service
done
systemctl daemon-reload
systemctl start swapfile.swap lab-kept.service lab-lost.service
"""


class Pressure:
    def __init__(self, ident: str) -> None:
        self.vms = Vms(ident)
        self.figures: dict[str, Any] = {}

    def boot(self) -> None:
        """One of the two machines that are there at least: the other one would only take time."""
        image = vm_image.build()
        with operation():
            machine.destroy(self.vms)
            record = machine.create(self.vms, 2, image)
        started = time.monotonic()
        machine.power_on(self.vms, record, NODE)
        warning = machine.wait_ready(self.vms, record, NODE)
        say(f"   {NODE} ({record.acceleration}) is up after {time.monotonic() - started:.0f} s {warning}")

    def down(self) -> None:
        with operation():
            machine.destroy(self.vms)

    def inside(self, script: str, timeout_s: float = 600) -> str:
        words = machine.ssh(self.vms.record(), NODE, ["sudo", "sh", "-c", script])
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise LabError(f"{NODE}: {script.strip()[:200]}: {done.stdout}{done.stderr}")
        return done.stdout

    def inventory(self) -> None:
        overlay = self.vms.record().place / "overlay"
        place = self.vms.record().place / "pressure"
        (place / "group_vars").mkdir(parents=True, exist_ok=True)
        (place / "group_vars/sparks.yml").write_text((overlay / "group_vars/sparks.yml").read_text())
        text = (overlay / "hosts.yml").read_text()
        (place / "hosts.yml").write_text(text.split("        spark2:")[0] + "          spark_rank: 0\n")

    def role(self, name: str, fails: str = "", **options: object) -> str:
        path = str(self.vms.record().place / "pressure")
        wanted = {f"os_stabilization_{key}": value for key, value in options.items()}
        words = ("-e", json.dumps(wanted))
        run = cluster.play(
            f"pressure-{name}",
            *words,
            playbook="playbooks/os_stabilization.yml",
            inventory=path,
            overlay=path,
            show=False,
        )
        said = (cluster.STATE / f"pressure-{name}.log").read_text(errors="replace")
        if bool(run.code) != bool(fails) or fails not in said:
            raise LabError(f"{name}: ended with {run.code}\n{cluster.log_tail(f'pressure-{name}', 50)}")
        say(f"   {name}: {run.seconds:.0f} s")
        return said

    def press(self, name: str) -> dict[str, list[int]]:
        """Take more memory than there is; bytes protected, in memory and in swap by unit, while it is taken."""
        self.inside("systemctl restart lab-kept.service lab-lost.service; sleep 5; rm -f /run/seen")
        self.inside("systemd-run --quiet --unit=lab-hog --slice=hog.slice /usr/bin/python3 -I /srv/lab/hog.py")
        started, said, failed, slowest = time.monotonic(), "", 0, 0.0
        while "ssh.service" not in said:
            login = time.monotonic()
            if login - started > 900:
                raise LabError("the hog did not get its memory within 900 s")
            try:
                said = self.inside("cat /run/seen 2>/dev/null || true", timeout_s=120)
                slowest = max(slowest, time.monotonic() - login)
            except (LabError, subprocess.TimeoutExpired):
                failed += 1
            time.sleep(3)
        seen = {line.split()[0]: [int(word) for word in line.split()[1:]] for line in said.splitlines()}
        self.figures[name] = {
            "seconds": round(time.monotonic() - started),
            "slowest_login_s": round(slowest, 1),
            "failed_logins": failed,
            **{unit: f"min {a // MIB}, memory {b // MIB}, swap {c // MIB} MiB" for unit, (a, b, c) in seen.items()},
        }
        say(f"   {name}: {self.figures[name]}")
        return seen

    def expect(self, what: str, holds: bool) -> None:
        if not holds:
            raise LabError(f"{what}: not so. {self.figures}")


def run(here: Pressure) -> None:
    here.inventory()
    here.inside(PREPARE)
    protected = {"ssh.service": 8, "lab-kept.service": PROTECTED_MIB}
    said = here.role("protect", swappiness=100, memory_min_mib=protected, watchdog_available_mib=0)
    here.expect("no warning about the memory controller", "MemoryMin" not in said)
    here.expect("the kernel's swappiness", here.inside("cat /proc/sys/vm/swappiness").strip() == "100")

    seen = here.press("protected")
    here.expect("the kernel protects it", seen["lab-kept.service"][0] == PROTECTED_MIB * MIB)
    here.expect("the other one went to swap", seen["lab-lost.service"][2] > HELD_MIB // 2 * MIB)
    here.expect("the protected one did not", seen["lab-kept.service"][2] < MIB)
    here.expect("nor did as much of sshd as is protected", seen["ssh.service"][1] > 4 * MIB)

    here.inside("systemctl set-property --runtime system.slice MemoryMin=0")
    seen = here.press("without the ancestor")
    here.expect("without its ancestor's protection it goes to swap", seen["lab-kept.service"][2] > HELD_MIB // 2 * MIB)
    refusal = "this would freeze the machine"
    here.role("swap-off", fails=refusal, swap_policy="off", memory_min_mib=protected, watchdog_available_mib=0)
    here.expect("swap is still on", "/swapfile" in here.inside("swapon --show --noheadings"))


def main(arguments: list[str]) -> int:
    here = Pressure(arguments[arguments.index("--id") + 1] if "--id" in arguments else "pressure")
    try:
        here.boot()
        run(here)
    except (LabError, VmError, subprocess.SubprocessError) as exc:
        print(exc)
        return 1
    finally:
        here.down()
    say(json.dumps(here.figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
