# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Boot, break and remove the virtual machines.

Each has a disk that keeps what is written (a qcow2 over the image), a management NIC behind a QEMU user network of its
own, with ssh forwarded from 127.0.0.1, and two NICs that are the halves of cage 0. The halves of all machines are on
one Ethernet segment, as on a Spark, where the NIC itself switches between the halves of a cage: a hub in each QEMU, and
between that of spark1 and each other a pair of Unix datagram sockets. They hold a sender back, where UDP multicast
between emulated machines lost every second frame, and a machine that comes back needs nothing from the others.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from typing import Any

import nodes
import overlay
from labstate import CHECKOUT, Lab, LabError, cache_dir, run, write_atomically
from labstate import HERE as LAB
from sim import spark

RUN = pathlib.Path("/run/sparkmatrix-vm")
NICS = [nic for nic in spark.NICS if nic.cage == 0]
MANAGEMENT = "10.77.0"  # inside QEMU's user network, on no interface of the host
MEMORY_MIB = 1024
READY_TIMEOUT_S = 240
KVM_PROBE_S = 20
KERNEL_WORDS = (
    "root=/dev/vda rw rootfstype=ext4 console=ttyS0 quiet mitigations=off panic=-1 cryptomgr.notests "
    # Emulated on a busy host the kernel measures its TSC wrongly, and its clock then runs at several times the speed:
    # every time limit in the machine is over too soon.
    "clocksource=acpi_pm tsc=unstable"
)
DGX = nodes.DGX


@dataclasses.dataclass(frozen=True)
class Vms:
    """Everything that is derived from the id."""

    id: str

    def __post_init__(self) -> None:
        Lab(self.id)  # the same rules for ids

    @property
    def run(self) -> pathlib.Path:
        return RUN / self.id

    @property
    def disk(self) -> pathlib.Path:
        return cache_dir() / "vms" / self.id

    def monitor(self, node: str) -> pathlib.Path:
        return self.run / f"{node}.qmp"

    def console(self, node: str) -> pathlib.Path:
        return self.run / f"{node}.console"

    def host_key(self, node: str) -> pathlib.Path:
        return self.run / "keys" / f"{node}_host"

    def pid(self, node: str) -> int | None:
        """The process of a machine that is on."""
        try:
            pid = int((self.run / f"{node}.pid").read_text())
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        return pid if f"sparkvm-{self.id}-{node}".encode() in words else None

    def save(self, record: VmRecord) -> None:
        write_atomically(self.run / "vm.json", json.dumps(dataclasses.asdict(record), indent=1) + "\n")

    def record(self) -> VmRecord:
        try:
            return VmRecord(**json.loads((self.run / "vm.json").read_text()))
        except (OSError, ValueError, TypeError):
            raise LabError(f"There are no virtual machines {self.id}: python3 tests/lab/vm/vm.py up") from None


@dataclasses.dataclass
class VmRecord:
    """What is up; kept in vm.json."""

    id: str
    nodes: int
    image: str
    acceleration: str  # "kvm" or "tcg"
    ssh_ports: list[int]
    state: str  # where overlay inventory, ssh configuration and keys are
    since: str

    @property
    def names(self) -> list[str]:
        return spark.node_names(self.nodes)

    @property
    def place(self) -> pathlib.Path:
        return pathlib.Path(self.state)

    def ssh_port(self, node: str) -> int:
        return self.ssh_ports[self.names.index(node)]

    def address(self, node: str) -> str:
        return f"{MANAGEMENT}.{10 + spark.node_number(node)}"


# --- create ----------------------------------------------------------------------------------------------------------


def create(vms: Vms, count: int, image: pathlib.Path) -> VmRecord:
    """Disks, keys and inventory; nothing runs yet."""
    ports = _free_ports(count)
    record = VmRecord(
        id=vms.id,
        nodes=count,
        image=str(image),
        acceleration=acceleration(image),
        ssh_ports=ports,
        state=str(CHECKOUT / ".lab" / vms.id),
        since=time.strftime("%Y-%m-%d %H:%M:%S"),
    )
    vms.run.mkdir(parents=True)
    vms.run.chmod(0o700)
    vms.disk.mkdir(parents=True)
    vms.save(record)
    key = record.place / "ssh/id_ed25519"
    nodes.make_key(key, "sparkmatrix lab")
    for node in record.names:
        nodes.make_key(vms.host_key(node), node)
        seed(vms, record, node, key.with_suffix(".pub").read_text())
        base = ["-b", str(image / "disk.raw"), "-F", "raw"]
        run(["qemu-img", "create", "-q", "-f", "qcow2", *base, str(_disk(vms, node))])
    sockets = vms.run / "ssh"
    sockets.mkdir(mode=0o700)
    logins = {
        node: overlay.Login("127.0.0.1", record.ssh_port(node), vms.host_key(node).with_suffix(".pub").read_text())
        for node in record.names
    }
    variables = (LAB / "vm/overlay_vars.yml").read_text().replace("@CHECKOUT@", str(CHECKOUT))
    overlay.publish(record.place, logins, sockets, variables)
    return record


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) for _ in range(count)]
        for sock in bound:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in bound]


def _disk(vms: Vms, node: str) -> pathlib.Path:
    return vms.disk / f"{node}.qcow2"


def seed(vms: Vms, record: VmRecord, node: str, key: str) -> None:
    """What makes a disk one machine, as a tar archive that the initial file system unpacks once."""
    number = spark.node_number(node)
    with tarfile.open(vms.disk / f"{node}.seed", "w") as archive:

        def put(name: str, data: bytes, mode: int = 0o644, owner: int = 0) -> None:
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.uid, info.gid, info.mtime = len(data), mode, owner, owner, int(time.time())
            archive.addfile(info, io.BytesIO(data))

        for source in sorted(nodes.ROOTFS.rglob("*")):
            if source.is_file() and source.name != "sparksim.service":
                name = str(source.relative_to(nodes.ROOTFS))
                put(name, source.read_bytes(), nodes.MODES.get(name, 0o644))
        for folder in ("sim", "tools", "vm/guest"):
            for source in sorted((LAB / folder).rglob("*")):
                if source.is_file() and "__pycache__" not in source.parts:
                    mode = 0o755 if os.access(source, os.X_OK) else 0o644
                    put(f"opt/spark-lab/{source.relative_to(LAB)}", source.read_bytes(), mode)
        put("etc/hostname", f"{node}\n".encode())
        put("etc/machine-id", (hashlib.sha256(f"{vms.id} {node}".encode()).hexdigest()[:32] + "\n").encode(), 0o444)
        put("etc/hosts", f"127.0.0.1\tlocalhost\n127.0.1.1\t{node}\n::1\tip6-localhost ip6-loopback\n".encode())
        put("etc/ssh/ssh_host_ed25519_key", vms.host_key(node).read_bytes(), 0o600)
        put("etc/ssh/ssh_host_ed25519_key.pub", vms.host_key(node).with_suffix(".pub").read_bytes())
        folder_info = tarfile.TarInfo("home/dgx/.ssh")
        folder_info.type, folder_info.mode, folder_info.uid, folder_info.gid = tarfile.DIRTYPE, 0o700, DGX, DGX
        archive.addfile(folder_info)
        put("home/dgx/.ssh/authorized_keys", key.encode(), 0o600, DGX)
        names = {nic.netdev: spark.mac(number, nic.mac_offset) for nic in NICS}
        for netdev, mac in {spark.MANAGEMENT: spark.management_mac(number), **names}.items():
            text = f"[Match]\nMACAddress={mac}\n[Link]\nName={netdev}\n"
            put(f"etc/systemd/network/10-lab-{netdev}.link", text.encode())
        text = f"[Match]\nName={spark.MANAGEMENT}\n[Network]\nAddress={record.address(node)}/24\n"
        put(f"etc/systemd/network/10-lab-{spark.MANAGEMENT}.network", text.encode())


# --- QEMU ------------------------------------------------------------------------------------------------------------


def acceleration(image: pathlib.Path) -> str:
    """``kvm`` if a kernel really starts with it: the device may be there, and the guest die at once."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    known = RUN / "acceleration"  # until the next boot of this machine
    if not known.exists():
        write_atomically(known, _probe_kvm(image))
    return known.read_text()


def _probe_kvm(image: pathlib.Path) -> str:
    command = ["qemu-system-x86_64", "-accel", "kvm", "-cpu", "host", "-m", "256", "-nodefaults", "-display", "none"]
    command += ["-serial", "stdio", "-no-reboot", "-kernel", str(image / "vmlinuz")]
    command += ["-append", "console=ttyS0 panic=-1"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=KVM_PROBE_S, check=False
        ).stdout
    except subprocess.TimeoutExpired as exc:
        done = exc.stdout or b""
    # Without a disk a kernel that runs gets as far as this.
    return "kvm" if b"Unable to mount root fs" in done else "tcg"


def qemu(vms: Vms, record: VmRecord, node: str) -> list[str]:
    image, number = pathlib.Path(record.image), spark.node_number(node)
    address = record.address(node)
    accelerated = record.acceleration == "kvm"
    words = ["qemu-system-x86_64", "-name", f"sparkvm-{vms.id}-{node}", "-nodefaults", "-display", "none"]
    words += ["-machine", "q35,usb=off,smm=off", "-smp", "1", "-m", str(MEMORY_MIB)]
    # Without five page-table levels emulation walks one less for every miss.
    words += (
        ["-accel", "kvm", "-cpu", "host"] if accelerated else ["-accel", "tcg,thread=multi", "-cpu", "max,la57=off"]
    )
    words += [
        "-kernel",
        str(image / "vmlinuz"),
        "-initrd",
        str(image / "initrd"),
        "-append",
        f"{KERNEL_WORDS} {os.environ.get('SPARKVM_KERNEL_WORDS', '')}",
    ]
    words += ["-drive", f"file={_disk(vms, node)},if=none,id=root,format=qcow2,cache=writeback,discard=unmap"]
    words += ["-device", "virtio-blk-pci,drive=root"]
    words += ["-drive", f"file={vms.disk / f'{node}.seed'},if=none,id=seed,format=raw,readonly=on"]
    words += ["-device", "virtio-blk-pci,drive=seed", "-device", "virtio-rng-pci"]
    # A network per machine: QEMU's user network would answer frames of the others if they shared a segment.
    forward = f"hostfwd=tcp:127.0.0.1:{record.ssh_port(node)}-{address}:22"
    words += ["-netdev", f"user,id=management,ipv6=off,net={MANAGEMENT}.0/24,host={MANAGEMENT}.1,restrict=on,{forward}"]
    mac = spark.management_mac(number)
    words += ["-device", f"virtio-net-pci,id={spark.MANAGEMENT},netdev=management,mac={mac},romfile="]
    for nic in NICS:
        words += ["-netdev", f"hubport,id=n{nic.half},hubid=0"]
        mac = spark.mac(number, nic.mac_offset)
        words += ["-device", f"virtio-net-pci,id={nic.netdev},netdev=n{nic.half},host_mtu=9000,mac={mac},romfile="]
    first = record.names[0]
    for other in record.names[1:] if node == first else [first]:
        local = f"local.type=unix,local.path={vms.run}/{node}-{other}"
        remote = f"remote.type=unix,remote.path={vms.run}/{other}-{node}"
        words += ["-netdev", f"dgram,id=to-{other},{local},{remote}"]
        words += ["-netdev", f"hubport,id=port-{other},hubid=0,netdev=to-{other}"]
    words += ["-chardev", f"socket,id=tty,path={vms.run / node}.tty,server=on,wait=off,logfile={vms.console(node)}"]
    words += ["-serial", "chardev:tty", "-qmp", f"unix:{vms.monitor(node)},server=on,wait=off"]
    return [*words, "-daemonize", "-pidfile", str(vms.run / f"{node}.pid")]


def command(vms: Vms, node: str, name: str, arguments: dict[str, Any] | None = None) -> None:
    """One command of QEMU's monitor."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as monitor:
        monitor.settimeout(10)
        monitor.connect(str(vms.monitor(node)))
        stream = monitor.makefile("rw")
        stream.readline()
        for words in ({"execute": "qmp_capabilities"}, {"execute": name, "arguments": arguments or {}}):
            stream.write(json.dumps(words) + "\n")
            stream.flush()
            while "return" not in (answer := json.loads(stream.readline())):
                if "error" in answer:
                    raise LabError(f"{node}: QEMU refused {name}: {answer['error'].get('desc')}")


# --- power -----------------------------------------------------------------------------------------------------------


def power_on(vms: Vms, record: VmRecord, node: str) -> None:
    if vms.pid(node) is None:
        run(qemu(vms, record, node))


def power_off(vms: Vms, node: str) -> None:
    """End the process: the disk has what the guest had written, as when the plug is pulled."""
    pid = vms.pid(node)
    if pid is None:
        return
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while vms.pid(node) is not None:
        if time.monotonic() > deadline:
            raise LabError(f"{node}: process {pid} does not end")
        time.sleep(0.05)


def reboot(vms: Vms, record: VmRecord, node: str) -> None:
    before = _boot_id(record, node)
    subprocess.run(ssh(record, node, ["sudo", "systemctl", "reboot"]), capture_output=True, check=False)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while _boot_id(record, node) in ("", before):
        _in_time(deadline, vms, node)
        time.sleep(0.5)
    wait_ready(vms, record, node)


def _boot_id(record: VmRecord, node: str) -> str:
    return _said(record, node, ["cat", "/proc/sys/kernel/random/boot_id"])


def set_link(vms: Vms, node: str, netdev: str, carrier: bool) -> None:
    command(vms, node, "set_link", {"name": netdev, "up": carrier})


def boot(vms: Vms, record: VmRecord) -> list[str]:
    """Boot all at once; returns warnings."""

    def one(node: str) -> str:
        power_on(vms, record, node)
        return wait_ready(vms, record, node)

    with concurrent.futures.ThreadPoolExecutor(max_workers=record.nodes) as pool:
        return [warning for warning in pool.map(one, record.names) if warning]


def wait_ready(vms: Vms, record: VmRecord, node: str) -> str:
    """Wait until systemd has settled; returns a warning that names failed units, or nothing."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while (now := state(record, node)) not in ("running", "degraded"):
        _in_time(deadline, vms, node)
        time.sleep(0.5)
    if now == "running":
        return ""
    failed = _said(record, node, ["systemctl", "--failed", "--plain", "--no-legend"])
    return f"{node}: failed units: {', '.join(line.split()[0] for line in failed.splitlines())}"


def _in_time(deadline: float, vms: Vms, node: str) -> None:
    if time.monotonic() < deadline and vms.pid(node) is not None:
        return
    with contextlib.suppress(OSError):
        print("".join(vms.console(node).read_text(errors="replace").splitlines(keepends=True)[-20:]), file=sys.stderr)
    why = "QEMU ended" if vms.pid(node) is None else f"it did not come up in {READY_TIMEOUT_S} s"
    raise LabError(f"{node}: {why}. Its console is above and in {vms.console(node)}")


def state(record: VmRecord, node: str) -> str:
    """What systemd says of itself, nothing while sshd does not answer."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", record.ssh_port(node)), 2) as login:
        login.settimeout(3)
        if login.recv(4) == b"SSH-":
            return _said(record, node, ["timeout", "60", "systemctl", "is-system-running", "--wait"])
    return ""


def ssh(record: VmRecord, node: str, words: Sequence[str], terminal: bool = False) -> list[str]:
    options = ["-F", str(record.place / "ssh_config"), *(["-t"] if terminal else [])]
    return ["ssh", *options, node, shlex.join(words)]


def _said(record: VmRecord, node: str, words: Sequence[str]) -> str:
    """Standard output without the last line break; nothing when the machine does not answer."""
    done = subprocess.run(
        ssh(record, node, words), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


# --- remove ----------------------------------------------------------------------------------------------------------


def destroy(vms: Vms) -> None:
    """Remove what any earlier run of this id left; nothing to do is fine."""
    record = None
    with contextlib.suppress(LabError):
        record = vms.record()
    for path in vms.run.glob("*.pid"):
        power_off(vms, path.stem)
    for control in (vms.run / "ssh").glob("*"):
        run(["ssh", "-O", "exit", "-o", f"ControlPath={control}", "vm"], check=False)
    for place in (vms.run, vms.disk):
        if place.exists():
            shutil.rmtree(place)
    if record:
        overlay.withdraw(record.place)
        with contextlib.suppress(OSError):
            record.place.rmdir()
    with contextlib.suppress(OSError):
        vms.disk.parent.rmdir()
