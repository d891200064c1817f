# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Boot and remove the nodes of a lab: podman containers whose root is an overlay over the node image."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

import gpu
import keeper
import network
from labstate import HERE, Lab, LabError, Record, cache_dir, run, write_atomically
from sim import spark

ROOTFS = HERE / "node/rootfs"
MODES = {"etc/sudoers.d/dgx": 0o440, "etc/netplan/01-network-manager-all.yaml": 0o600}
DGX = 1000
READY_TIMEOUT_S = 90
HELPER_TIMEOUT_S = 5
CAP_SYS_RESOURCE = 24


# --- podman ----------------------------------------------------------------------------------------------------------


def podman(lab: Lab, *words: str) -> list[str]:
    """A podman call in the lab's namespace, with storage and settings of its own: the user's podman is not touched."""
    settings = [f"CONTAINERS_CONF={lab.run / 'containers.conf'}", f"CONTAINERS_STORAGE_CONF={lab.run / 'storage.conf'}"]
    return [*keeper.inside(lab), "env", *settings, "podman", *words]


def configure_podman(lab: Lab) -> None:
    write_atomically(
        lab.run / "containers.conf",
        f"""[containers]
default_ulimits = [{", ".join(f'"{limit}"' for limit in limits())}]
pids_limit = 0
log_driver = "k8s-file"
[network]
network_config_dir = "{lab.run / "networks"}"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
runtime = "crun"
tmp_dir = "{lab.run / "libpod"}"
""",
    )
    write_atomically(
        lab.run / "storage.conf",
        f'[storage]\ndriver = "overlay"\nrunroot = "{lab.run / "podman"}"\ngraphroot = "{lab.disk / "podman"}"\n',
    )


def limits() -> list[str]:
    """Without CAP_SYS_RESOURCE no limit can be raised above ours, not even to what podman takes as default."""
    if can_raise_limits():
        return ["nofile=1048576:1048576"]
    files = min(16384, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    processes = min(32768, resource.getrlimit(resource.RLIMIT_NPROC)[1])
    return [f"nofile={files}:{files}", f"nproc={processes}:{processes}"]


def can_raise_limits() -> bool:
    status = pathlib.Path("/proc/self/status").read_text()
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))
    return bool(int(effective, 16) >> CAP_SYS_RESOURCE & 1)


# --- boot ------------------------------------------------------------------------------------------------------------


def prepare(lab: Lab, record: Record, node: str, key: str) -> None:
    """The node's own files, in the upper directory of its overlay."""
    disk = lab.disk_of(node)
    for name in ("upper", "work", "root", "docker", "containerd"):
        (disk / name).mkdir(parents=True)
    image = pathlib.Path(record.image)
    upper = disk / "upper"
    upper.chmod(0o755)

    def put(name: str, data: bytes, mode: int = 0o644, owner: int = 0) -> None:
        _directories(image, upper, pathlib.PurePath(name).parent)
        target = upper / name
        target.write_bytes(data)
        target.chmod(mode)
        os.chown(target, owner, owner)

    for source in sorted(ROOTFS.rglob("*")):
        if source.is_file():
            name = str(source.relative_to(ROOTFS))
            put(name, source.read_bytes(), MODES.get(name, 0o644))
    put("etc/hosts", f"127.0.0.1\tlocalhost\n127.0.1.1\t{node}\n::1\tip6-localhost ip6-loopback\n".encode())
    put("etc/ssh/ssh_host_ed25519_key", host_key(lab, node).read_bytes(), 0o600)
    put("etc/ssh/ssh_host_ed25519_key.pub", host_key(lab, node).with_suffix(".pub").read_bytes())
    _directories(image, upper, pathlib.PurePath("home/dgx"))
    (upper / "home/dgx/.ssh").mkdir(mode=0o700)
    os.chown(upper / "home/dgx/.ssh", DGX, DGX)
    put("home/dgx/.ssh/authorized_keys", key.encode(), 0o600, DGX)
    _directories(image, upper, pathlib.PurePath("etc/systemd/system"))
    (upper / "etc/systemd/system/sysinit.target.wants").mkdir(mode=0o755)
    (upper / "etc/systemd/system/sysinit.target.wants/sparksim.service").symlink_to("../sparksim.service")
    lab.control(node).mkdir(parents=True)
    # Some topologies are about the links as well (100 Gb/s).
    write_atomically(lab.control(node) / "faults.json", json.dumps(lab.wanted([]).nodes[node]) + "\n")


def _directories(image: pathlib.Path, upper: pathlib.Path, path: pathlib.PurePath) -> None:
    """Directories of the upper layer hide the attributes of those below: take them over."""
    current = pathlib.PurePath()
    for part in path.parts:
        current /= part
        target = upper / current
        if not target.exists():
            target.mkdir()
            below = image / current
            mode, owner, group = 0o755, 0, 0
            if below.exists():
                stat = below.stat()
                mode, owner, group = stat.st_mode & 0o7777, stat.st_uid, stat.st_gid
            target.chmod(mode)
            os.chown(target, owner, group)


def host_key(lab: Lab, node: str) -> pathlib.Path:
    return lab.run / "keys" / f"{node}_host"


def make_key(path: pathlib.Path, comment: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])


def start(lab: Lab, record: Record, node: str) -> None:
    disk = lab.disk_of(node)
    options = f"lowerdir={record.image},upperdir={disk / 'upper'},workdir={disk / 'work'}"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(disk / "root")]
    run([*keeper.inside(lab), *mount])
    volumes = [
        f"{disk / 'docker'}:/var/lib/docker",
        f"{disk / 'containerd'}:/var/lib/containerd",
        f"{HERE / 'sim'}:/opt/spark-lab/sim:ro",
        f"{HERE / 'tools'}:/opt/spark-lab/tools:ro",
        f"{lab.control(node)}:/run/sim/ctl",
        *record.mounts,
        *(gpu.hidden(spark.node_number(node), gpu.cards()) if record.gpus else ()),
    ]
    run(
        podman(
            lab,
            "run",
            "--detach",
            f"--name={lab.container(node)}",
            f"--hostname={node}",
            f"--network=ns:{network.netns_file(lab.netns(node))}",
            "--systemd=always",
            "--privileged",
            "--cap-drop=SYS_MODULE,SYS_TIME,SYS_RAWIO",
            "--cgroupns=private",
            f"--cgroup-parent=/{lab.cgroup}",
            "--no-hosts",
            "--dns=none",
            "--shm-size=16g",
            "--security-opt=apparmor=unconfined",
            "--security-opt=label=disable",
            *(f"--volume={volume}" for volume in volumes),
            "--rootfs",
            str(disk / "root"),
            "/sbin/init",
        )
    )


def wait_ready(lab: Lab, record: Record, node: str) -> str:
    """Wait until systemd has settled and sshd answers; returns a warning that names failed units, or nothing."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    state = ""
    while state not in ("running", "degraded"):
        if time.monotonic() > deadline:
            jobs = execute(lab, node, ["systemctl", "list-jobs", "--no-legend"]).stdout
            raise LabError(f"{node} did not finish booting in {READY_TIMEOUT_S} s (state {state or 'none'}): {jobs}")
        state = execute(lab, node, ["timeout", "20", "systemctl", "is-system-running", "--wait"]).stdout.strip()
        if state not in ("running", "degraded"):
            time.sleep(0.2)
    while not _greets(record.address(node)):
        if time.monotonic() > deadline:
            raise LabError(f"sshd of {node} does not answer at {record.address(node)} port 22")
        time.sleep(0.1)
    if state == "degraded":
        failed = execute(lab, node, ["systemctl", "--failed", "--plain", "--no-legend"]).stdout
        return f"{node}: failed units: {', '.join(line.split()[0] for line in failed.splitlines())}"
    return ""


def _greets(address: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, 22), timeout=2) as connection:
        return connection.recv(4) == b"SSH-"
    return False


def execute(lab: Lab, node: str, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command on a node as root, without the network."""
    return subprocess.run(
        podman(lab, "exec", lab.container(node), *command),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def boot(lab: Lab, record: Record, client_key: pathlib.Path) -> list[str]:
    """Boot all nodes at once; returns warnings."""
    configure_podman(lab)
    make_key(client_key, "sparkmatrix lab")
    key = client_key.with_suffix(".pub").read_text()

    def one(node: str) -> str:
        make_key(host_key(lab, node), node)
        prepare(lab, record, node, key)
        start(lab, record, node)
        if record.gpus:
            execute(lab, node, ["ldconfig"])  # Triton asks it where libcuda is
        return wait_ready(lab, record, node)

    with concurrent.futures.ThreadPoolExecutor(max_workers=8) as pool:
        return [warning for warning in pool.map(one, record.names) if warning]


def power(lab: Lab, node: str, action: str) -> None:
    """stop (as pulling the plug), start or restart one node; its disk and its cables stay."""
    record = lab.record()
    if action in ("stop", "restart"):
        run(podman(lab, "stop", "--time=0", lab.container(node)))
    if action in ("start", "restart"):
        run(podman(lab, "start", lab.container(node)))
        wait_ready(lab, record, node)


# --- remove ----------------------------------------------------------------------------------------------------------


def destroy(lab: Lab) -> None:
    """Remove the nodes of any earlier run, whatever state it is in."""
    names = network.namespaces(lab)
    if names or (lab.disk / "podman").exists():
        if keeper.pid(lab) is None:
            keeper.start(lab, None)
        if not (lab.run / "containers.conf").exists():
            configure_podman(lab)
        run(podman(lab, "rm", "--all", "--force", "--time=0"), check=False)
        # Processes of the nodes are those in their network namespaces: certain, even when podman has lost track.
        for name in names:
            for pid in run(["ip", "netns", "pids", name]).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        end_helpers(lab)
        groups = ["find", f"/sys/fs/cgroup/{lab.cgroup}", "-depth", "-type", "d", "-exec", "rmdir", "{}", "+"]
        run([*keeper.inside(lab), *groups], check=False)
    keeper.stop(lab)
    if lab.disk.exists():
        shutil.rmtree(lab.disk)


def end_helpers(lab: Lab) -> None:
    """Wait for podman's own processes, which tidy up after a container and write to the disk; at last kill them."""
    deadline = time.monotonic() + HELPER_TIMEOUT_S
    while helpers := _helpers(lab):
        if time.monotonic() > deadline:
            for pid in helpers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _helpers(lab: Lab) -> list[int]:
    """conmon and podman processes that were given this lab's storage."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if os.path.basename(words[0]) in (b"conmon", b"podman") and str(lab.disk / "podman").encode() in words:
            found.append(int(path.parent.name))
    return found


def default_mounts(gpus: bool = False) -> list[str]:
    """The engine environment, where it has been built, and that of the chat page."""
    cache = cache_dir()
    mounts = gpu.environment_mounts(cache / "gpu") if gpus else []
    if not gpus and (cache / ".engine.stamp").exists():
        mounts = engine_mounts(cache / "engine", cache / "python", cache / "models/tiny-llama")
    if mounts and (cache / ".web-ui.stamp").exists():
        mounts.append(f"{cache / 'web-ui'}:/opt/sparkmatrix/web-ui:ro")
    return mounts


def engine_mounts(engine: pathlib.Path | None, python: pathlib.Path | None, model: pathlib.Path | None) -> list[str]:
    mounts = []
    for source, target in ((engine, "engine"), (python, "python"), (model, "models/tiny-llama")):
        if source is not None:
            if not source.is_dir():
                raise LabError(f"{source} is not a directory; it was to be mounted at /opt/sparkmatrix/{target}")
            mounts.append(f"{source.resolve()}:/opt/sparkmatrix/{target}:ro")
    return mounts
