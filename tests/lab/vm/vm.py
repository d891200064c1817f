#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Two to four virtual Sparks: QEMU machines with a kernel of their own, and soft RoCE instead of a ConnectX-7.

Runs as root with Python 3.11 or later. KVM where it works, emulation otherwise. tests/lab/README.md has the details.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

if sys.version_info < (3, 11):
    sys.exit(f"The lab needs Python 3.11 or later, this is {sys.version.split()[0]}")
sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import machine
import vm_image
from labstate import LabError, install, operation
from machine import Vms
from sim import spark

TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "debootstrap": "debootstrap",
    "mkfs.ext4": "e2fsprogs",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
}
FILES = {"/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring"}
DEFAULT_ID = os.environ.get("SPARKMATRIX_VM_ID", "vm")


# --- the machine -----------------------------------------------------------------------------------------------------


def missing_packages() -> list[str]:
    places = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    found = {package for tool, package in TOOLS.items() if not shutil.which(tool, path=places)}
    return sorted(found | {package for path, package in FILES.items() if not pathlib.Path(path).exists()})


def check() -> int:
    problems = []
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        problems.append(f"The virtual machines need Linux on x86_64; this is {sys.platform} on {os.uname().machine}.")
    if os.geteuid() != 0:
        problems.append("Building the image needs root. Run it with sudo.")
    packages = missing_packages()
    if packages:
        problems.append(f"Missing packages: sudo apt-get install -y --no-install-recommends {' '.join(packages)}")
    for problem in problems:
        print(problem)
    if not problems:
        print("This machine can run virtual machines.")
    return 1 if problems else 0


def setup() -> int:
    install(missing_packages())
    return check()


# --- commands --------------------------------------------------------------------------------------------------------


def up(options: argparse.Namespace) -> int:
    if not 2 <= options.nodes <= 4:
        raise LabError("Two to four virtual machines.")
    vms = Vms(options.id)
    image = vm_image.build()
    started = time.monotonic()
    with operation():
        machine.destroy(vms)
        record = machine.create(vms, options.nodes, image)
    warnings = machine.boot(vms, record)
    for warning in warnings:
        print(f"Warning: {warning}")
    print(
        f"{record.nodes} virtual machines ({record.acceleration}) up after {time.monotonic() - started:.1f} s. "
        f"Log in: ssh -F {record.place / 'ssh_config'} spark1"
    )
    return 0


def down(options: argparse.Namespace) -> int:
    with operation():
        machine.destroy(Vms(options.id))
        if options.purge:
            shutil.rmtree(vm_image.path().parent, ignore_errors=True)
    print(f"Virtual machines {options.id}: nothing is left{' and no image' if options.purge else ''}.")
    return 0


def status(options: argparse.Namespace) -> int:
    vms = Vms(options.id)
    record = vms.record()
    states = {node: "powered off" if vms.pid(node) is None else machine.state(record, node) for node in record.names}
    print(json.dumps({**vars(record), "nodes_state": states}, indent=1))
    return 0 if all(vms.pid(node) for node in record.names) else 1


def execute(options: argparse.Namespace) -> int:
    record = _record_with(options)
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    command = machine.ssh(record, options.node, ["sudo", *(words or ["bash"])], terminal=sys.stdin.isatty())
    return subprocess.run(command, check=False).returncode


def power_off(options: argparse.Namespace) -> int:
    _record_with(options)
    machine.power_off(Vms(options.id), options.node)
    return 0


def power_on(options: argparse.Namespace) -> int:
    record, vms, started = _record_with(options), Vms(options.id), time.monotonic()
    machine.power_on(vms, record, options.node)
    machine.wait_ready(vms, record, options.node)
    print(f"{options.node} is up after {time.monotonic() - started:.1f} s")
    return 0


def reboot(options: argparse.Namespace) -> int:
    record, started = _record_with(options), time.monotonic()
    machine.reboot(Vms(options.id), record, options.node)
    print(f"{options.node} is up after {time.monotonic() - started:.1f} s")
    return 0


def link(options: argparse.Namespace) -> int:
    _record_with(options)
    machine.set_link(Vms(options.id), options.node, options.netdev, options.state == "on")
    return 0


def _record_with(options: argparse.Namespace) -> machine.VmRecord:
    record = Vms(options.id).record()
    if options.node not in record.names:
        raise LabError(f"There is no virtual machine {options.node}, only {', '.join(record.names)}")
    return record


# --- command line ----------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="action", required=True)

    def command(name: str, text: str, node: bool = False) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        if name not in ("check", "setup", "image"):
            added.add_argument("--id", default=DEFAULT_ID, help="which virtual machines (default: %(default)s)")
        if node:
            added.add_argument("node")
        return added

    command("check", "say what this machine lacks; exit code 1 if anything")
    command("setup", "install the packages that are missing (as root on Debian and Ubuntu), then check")
    command("image", "build the image, if it is not in the cache")
    command("up", "remove what an earlier run of this id left, then boot").add_argument(
        "--nodes", type=int, default=2, help="2 to 4 (default: %(default)s)"
    )
    command("down", "remove every trace").add_argument("--purge", action="store_true", help="the image as well")
    command("status", "what is up")
    command("exec", "run a command as root, over ssh", node=True).add_argument("command", nargs=argparse.REMAINDER)
    command("power-off", "pull the plug; what was not written to the disk is lost", node=True)
    command("power-on", "boot it again", node=True)
    command("reboot", "reboot, and wait until it is up", node=True)
    cable = command("link", "take or give the carrier of one interface", node=True)
    cable.add_argument("netdev", choices=[spark.MANAGEMENT, *(nic.netdev for nic in machine.NICS)])
    cable.add_argument("state", choices=["on", "off"])
    return made


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    try:
        if options.action == "check":
            return check()
        if options.action == "setup":
            return setup()
        if os.geteuid() != 0:
            raise LabError("The virtual machines need root. Run it with sudo.")
        if options.action == "image":
            print(vm_image.build())
            return 0
        actions = {"up": up, "down": down, "status": status, "exec": execute, "reboot": reboot, "link": link}
        return {**actions, "power-off": power_off, "power-on": power_on}[options.action](options)
    except (LabError, ValueError) as exc:
        print(exc, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"Interrupted. Remove what is there: {shlex.join(['vm.py', 'down'])}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
