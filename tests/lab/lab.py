#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Simulated DGX Sparks on this machine: containers with systemd, real networks and a simulated ConnectX-7.

Runs as root with Python 3.11 or later and needs nothing else of Python. One lab at a time on a machine; `up` waits for
nobody (see --wait) and says who holds it. tests/lab/README.md has the details.
"""

from __future__ import annotations

import argparse
import contextlib
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
sys.dont_write_bytecode = True  # the simulator's directory is mounted into nodes; root's caches do not belong in it

import gpu
import keeper
import kernel_log
import network
import node_image
import nodes
import overlay
from labstate import (
    CHECKOUT,
    DEFAULT_ID,
    RUN,
    Lab,
    LabError,
    Record,
    cache_dir,
    holder,
    install,
    machine_lock,
    operation,
    run,
    write_atomically,
)
from sim import faults, inject_fault, spark

TOOLS = {
    "podman": "podman",
    "crun": "crun",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "sysctl": "procps",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshpass": "sshpass",
    "nsenter": "util-linux",
    "unshare": "util-linux",
}
INOTIFY = pathlib.Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_BEFORE = RUN / "inotify.before"
INOTIFY_PER_NODE = 16  # 10 to 12 seen
FILES = {
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
    kernel_log.PROGRAM: "systemd-journal-remote",
}
FOR_THE_IMAGE = {"debootstrap", "debian-archive-keyring"}


# --- the machine -----------------------------------------------------------------------------------------------------


def missing_packages() -> list[str]:
    """Debian packages of the tools that are not there."""
    places = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    found = {package for tool, package in TOOLS.items() if not shutil.which(tool, path=places)}
    found |= {package for path, package in FILES.items() if not pathlib.Path(path).exists()}
    return sorted(found - (FOR_THE_IMAGE if node_image.path().exists() else set()))


def missing_features() -> list[str]:
    """What the kernel or our rights do not allow; tried, not guessed."""
    if sys.platform != "linux":
        return [f"The lab needs Linux; this is {sys.platform}. Use a Linux machine or virtual machine."]
    if os.geteuid() != 0:
        return ["The lab needs root: it makes network namespaces, mounts and containers. Run it with sudo."]
    problems = []
    name = f"smlab-check-{os.getpid()}"
    try:
        run(["ip", "netns", "add", name])
        try:
            for kind, words in (("veth", ["peer", "name", "check1"]), ("bridge", [])):
                try:
                    network.ip(name, "link", "add", "name", f"check-{kind}", "type", kind, *words)
                except LabError as exc:
                    problems.append(f"The kernel makes no {kind} interfaces: {exc}")
        finally:
            run(["ip", "netns", "delete", name])
    except LabError as exc:
        problems.append(f"Network namespaces cannot be made: {exc}")
    return problems + _missing_mounts()


def _missing_mounts() -> list[str]:
    place = cache_dir() / f"check-{os.getpid()}"
    script = (
        "set -e; mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged; touch merged/file; "
        "mkdir cgroup; mount -t cgroup2 cgroup2 cgroup"
    )
    try:
        for name in ("lower", "upper", "work", "merged"):
            (place / name).mkdir(parents=True)
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        result = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if result.returncode == 0:
        return []
    return [
        f"overlayfs below {cache_dir()} or cgroup2 cannot be mounted: {result.stderr.strip()}. "
        "If that directory is on an overlay itself, set SPARKMATRIX_CACHE to one on an ordinary disk."
    ]


def check(gpus: bool = False) -> int:
    packages = missing_packages()
    if packages:
        print(f"Missing packages. Install them: sudo apt-get install -y --no-install-recommends {' '.join(packages)}")
    problems = missing_features() if not packages else []
    if packages and os.geteuid() != 0:
        problems.append("The lab needs root: it makes network namespaces, mounts and containers. Run it with sudo.")
    if gpus:
        problems += gpu.missing()
    for problem in problems:
        print(problem)
    if packages or problems:
        return 1
    print("This machine can run the lab.")
    return 0


def setup(gpus: bool = False) -> int:
    install(missing_packages())
    return check(gpus)


# --- up and down -----------------------------------------------------------------------------------------------------


def up(options: argparse.Namespace) -> int:
    lab = Lab(options.id)
    faults.cables(options.topology, options.nodes)  # refuse what cannot be, before anything is touched
    if not 1 <= options.nodes <= 64:
        raise LabError("A lab has 1 to 64 nodes.")
    if os.geteuid() != 0:
        raise LabError("The lab needs root. Run it with sudo.")
    mounts = nodes.default_mounts(options.gpus)
    if options.engine_dir or options.python_dir or options.model_dir:
        mounts = nodes.engine_mounts(options.engine_dir, options.python_dir, options.model_dir)
    if options.gpus:
        mounts += gpu.driver_mounts(options.nodes)
    image = node_image.build()
    started = time.monotonic()
    with operation():
        remove(lab)  # an earlier run of this id, whatever state it is in
    lock = None if options.beside else machine_lock(lab, options.wait)
    with operation():
        record = Record(
            id=lab.id,
            topology=options.topology,
            nodes=options.nodes,
            subnet=network.free_subnet(lab),
            checkout=str(CHECKOUT),
            state=str(CHECKOUT / ".lab" / lab.id if options.beside else CHECKOUT / ".lab"),
            image=str(image),
            since=time.strftime("%Y-%m-%d %H:%M:%S"),
            mounts=mounts,
            gpus=options.gpus,
        )
        lab.save(record)
        raise_inotify(record.nodes)
        network.create(lab, record)
        keeper.start(lab, lock)
        if lock is not None:
            os.close(lock)  # from here on the keeper holds it
        try:
            warnings = nodes.boot(lab, record, overlay.client_key(record))
        except LabError as exc:
            raise LabError(f"{exc}\nWhat did boot is left for a look; the next `up` or `down` removes it.") from None
        overlay.write(lab, record)
        record.ready = True
        lab.save(record)
    for warning in warnings:
        print(f"Warning: {warning}")
    print(
        f"{record.nodes} node(s), topology {record.topology}, lab {lab.id}, up after "
        f"{time.monotonic() - started:.1f} s. Log in: ssh -F {overlay.state(record) / 'ssh_config'} spark1"
    )
    return 0


def raise_inotify(count: int) -> None:
    """systemd and udev of a dozen nodes need more than the 128 inotify instances that root has as one user."""
    current = int(INOTIFY.read_text())
    wanted = INOTIFY_PER_NODE * count * (1 + len(labs())) + 128
    if current < wanted:
        if not INOTIFY_BEFORE.exists():
            write_atomically(INOTIFY_BEFORE, f"{current}\n")
        INOTIFY.write_text(f"{wanted}\n")


def restore_inotify() -> None:
    if INOTIFY_BEFORE.exists() and not labs():
        INOTIFY.write_text(INOTIFY_BEFORE.read_text())
        INOTIFY_BEFORE.unlink()


def labs() -> list[str]:
    """Ids of the labs that are up on this machine."""
    return [path.parent.name for path in RUN.glob("*/lab.json")]


def remove(lab: Lab) -> None:
    """Everything of this lab on this machine; nothing to do is fine."""
    record = None
    with contextlib.suppress(LabError):
        record = lab.record()
    nodes.destroy(lab)
    network.destroy(lab)
    if record:
        overlay.remove(record)
    _close_ssh(lab)
    if lab.run.exists():
        shutil.rmtree(lab.run)
    restore_inotify()
    if lab.disk.parent.exists() and not any(lab.disk.parent.iterdir()):
        lab.disk.parent.rmdir()


def _close_ssh(lab: Lab) -> None:
    """Shared ssh connections into the lab would otherwise wait for nodes that are gone."""
    for control in (lab.run / "ssh").glob("*"):
        run(["ssh", "-O", "exit", "-o", f"ControlPath={control}", "lab"], check=False)


def down(options: argparse.Namespace) -> int:
    if os.geteuid() != 0:
        raise LabError("The lab needs root. Run it with sudo.")
    lab = Lab(options.id)
    with operation():
        remove(lab)
        if options.purge:
            purge()
    print(f"Lab {lab.id}: nothing is left of it{' and of the cache' if options.purge else ''}.")
    return 0


def purge() -> None:
    if labs():
        raise LabError(f"The cache is in use by the lab {', '.join(labs())}; remove that first: lab.py down --id ID")
    if cache_dir().exists():
        node_image.remove_tree(cache_dir())
    shutil.rmtree(CHECKOUT / ".lab", ignore_errors=True)


def status(options: argparse.Namespace) -> int:
    print(f"Machine: {'held by ' + (holder() or '') if holder() else 'free'}")
    lab = Lab(options.id)
    record = lab.record()
    names = {node: nodes.execute(lab, node, ["systemctl", "is-system-running"]).stdout.strip() for node in record.names}
    shown = {
        **vars(record),
        "keeper": keeper.pid(lab),
        "nodes_state": names,
        "faults": [vars(f) for f in lab.active_faults()],
    }
    print(json.dumps(shown, indent=1))
    return 0 if record.ready and keeper.pid(lab) else 1


def execute(options: argparse.Namespace) -> int:
    lab = Lab(options.id)
    _require_node(lab, options.node)
    terminal = ["--interactive", "--tty"] if sys.stdin.isatty() else ["--interactive"]
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    command = nodes.podman(lab, "exec", *terminal, lab.container(options.node), *(words or ["bash"]))
    return subprocess.run(command, check=False).returncode


def power(options: argparse.Namespace) -> int:
    lab = Lab(options.id)
    _require_node(lab, options.node)
    with operation():
        nodes.power(lab, options.node, options.action)
    return 0


def _require_node(lab: Lab, node: str) -> None:
    names = lab.record().names
    if node not in names:
        raise LabError(f"The lab {lab.id} has no node {node}, it has {', '.join(names)}")


# --- command line ----------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="action", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        if name not in ("check", "setup", "image"):
            added.add_argument("--id", default=DEFAULT_ID, help="the lab (default: %(default)s)")
        return added

    look = command("check", "say what this machine lacks; exit code 1 if anything")
    prepare = command("setup", "install the packages that are missing (as root on Debian and Ubuntu), then check")
    for added in (look, prepare):
        added.add_argument("--gpus", action="store_true", help="also for nodes with NVIDIA cards")
    command("image", "build the node image, if it is not in the cache")
    boot = command("up", "remove what an earlier run of this id left, then boot")
    boot.add_argument("--nodes", type=int, default=4)
    boot.add_argument("--topology", choices=spark.TOPOLOGIES, default="switch")
    boot.add_argument("--gpus", action="store_true", help="give each node one of this machine's NVIDIA cards")
    boot.add_argument("--engine-dir", type=pathlib.Path, help="mounted at /opt/sparkmatrix/engine, read-only")
    boot.add_argument("--python-dir", type=pathlib.Path, help="mounted at /opt/sparkmatrix/python, read-only")
    boot.add_argument("--model-dir", type=pathlib.Path, help="mounted at /opt/sparkmatrix/models/tiny-llama, read-only")
    boot.add_argument(
        "--beside",
        action="store_true",
        help="do not take the machine's lock: a second lab beside others, with its overlay in .lab/ID/",
    )
    boot.add_argument("--wait", type=float, default=0, metavar="SECONDS", help="wait that long for the machine")
    command("down", "remove every trace").add_argument("--purge", action="store_true", help="the cache as well")
    command("status", "what is up")
    inside = command("exec", "run a command on a node as root, without the network")
    inside.add_argument("node")
    inside.add_argument("command", nargs=argparse.REMAINDER)
    for name, text in (("stop", "cut the power of a node"), ("start", "boot it again"), ("restart", "both")):
        command(name, text).add_argument("node")
    commands.add_parser("fault", help="inject and clear faults; fault --help lists them", add_help=False)
    return made


def main(argv: list[str]) -> int:
    if argv[:1] == ["fault"]:
        return inject_fault.main(argv[1:], prog="lab.py fault")
    if argv[:1] == ["_keeper"]:
        return keeper.main(Lab(argv[2]), int(argv[3]))
    options = parser().parse_args(argv)
    actions = {"up": up, "down": down, "status": status, "exec": execute, "stop": power, "start": power}
    actions["restart"] = power
    try:
        if options.action == "check":
            return check(options.gpus)
        if options.action == "setup":
            return setup(options.gpus)
        if options.action == "image":
            print(node_image.build())
            return 0
        return actions[options.action](options)
    except (LabError, ValueError) as exc:
        print(exc, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"Interrupted. Remove what is there: {shlex.join(['lab.py', 'down'])}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
