#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How long a model takes to N nodes, against one copy at the rate of the line, and against other tools. As root:

    .venv/bin/python tests/bench/fan_out.py --receivers 3 --size 400 --rate 200

Nodes are network namespaces of this machine behind one switch (a bridge in a namespace of its own). Each has a cable of
``--rate`` Mbit/s in both directions, shaped by tbf on both ends, so that the cable and not this machine is the limit.
``--rate 0`` is a cable without limit: then disk, hash or processor hold it. With ``--halves 2`` the cable consists of
two halves of half the rate, as that of a Spark does; other tools use one address, and so one half.

A time runs from the start of the program that sends (or of those that fetch) to the end of the last one. Programs that
wait for it are started before.
Afterwards every file on every node is read and compared. Tools that are not installed are named. Processor time is that
of all processes of the method, memory the largest process of it; less than this program's own (27 MiB) is not seen.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "collections")]

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import from_node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts.manifest import File, Manifest, parse

PREFIX = "fanbench"
MIB = 1024 * 1024
SSH_PORT, RSYNC_PORT, RAW_PORT = 2222, 8730, 8732
NODE = """
import json, sys
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache, manifest, from_node
base, node, addresses, rate, connect = json.loads(sys.argv[1])
of = manifest.parse(json.load(open(f"{base}/manifest.json")))
home = cache.Cache(f"{base}/home{node}")
from_node.pull(home, of, of.files, from_node.Way("seed", addresses, rate, connect), tell=lambda done: 0, note=print)
"""
PLACE = "ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts"
SERVE = f"from {PLACE} import from_node; from_node.serve({{!r}})"
RAW_RECEIVER = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("ready", flush=True)
one = listener.accept()[0]
view = memoryview(bytearray(1 << 20))
while one.recv_into(view): pass
one.sendall(b"x")
"""
RAW_SENDER = """
import socket, sys
one = socket.create_connection((sys.argv[1], int(sys.argv[2])))
for path in sys.argv[3:]:
    with open(path, "rb") as stream: one.sendfile(stream)
one.shutdown(socket.SHUT_WR)
one.recv(1)
"""


def run(*argv: str) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


class Network:
    """Namespaces ``fanbench-0`` (the seed) and so on, addresses ``10.231.<half>.<node + 1>``."""

    def __init__(self, nodes: int, halves: int, rate: int) -> None:
        self.nodes, self.halves, self.rate = nodes, halves, rate
        self.switch = f"{PREFIX}-switch"

    def address(self, node: int, half: int = 0) -> str:
        return f"10.231.{half}.{node + 1}"

    def inside(self, node: int, *argv: str) -> list[str]:
        return ["ip", "netns", "exec", f"{PREFIX}-{node}", *argv]

    def __enter__(self) -> Network:
        self.remove()
        run("ip", "netns", "add", self.switch)
        for half in range(self.halves):
            run("ip", "-n", self.switch, "link", "add", f"br{half}", "mtu", "9000", "type", "bridge")
            run("ip", "-n", self.switch, "link", "set", f"br{half}", "up")
        for node in range(self.nodes):
            name = f"{PREFIX}-{node}"
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            for half in range(self.halves):
                near, far = f"h{half}", f"p{half}n{node}"
                run(*f"ip -n {name} link add {near} mtu 9000 type veth peer name {far} netns {self.switch}".split())
                run(*f"ip -n {self.switch} link set {far} mtu 9000 master br{half} up".split())
                run(*f"ip -n {name} addr add {self.address(node, half)}/24 dev {near}".split())
                run(*f"ip -n {name} link set {near} up".split())
                if self.rate:
                    shape = f"root tbf rate {self.rate // self.halves}mbit burst 256kb latency 20ms"
                    run(*f"tc -n {name} qdisc add dev {near} {shape}".split())
                    run(*f"tc -n {self.switch} qdisc add dev {far} {shape}".split())
        return self

    def __exit__(self, *_why: object) -> None:
        self.remove()

    def remove(self) -> None:
        there = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout.split()
        for name in there:
            if name.startswith(f"{PREFIX}-"):
                run("ip", "netns", "del", name)


@dataclass
class Bench:
    """``base``: directory of it all; ``source``: the model; ``to(node)``: where a node's files arrive."""

    network: Network
    base: Path
    files: Mapping[str, str]  # name -> SHA-256
    manifest: Manifest
    tools: str
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)
    processor: float = 0.0  # seconds of all that has ended
    memory: float = 0.0  # MiB of the largest process

    @property
    def source(self) -> Path:
        return self.base / "source"

    @property
    def receivers(self) -> range:
        return range(1, self.network.nodes)

    def to(self, node: int) -> Path:
        return self.base / f"node{node}"

    def has(self, *names: str) -> bool:
        return all(shutil.which(name, path=self.path) for name in names)

    @property
    def path(self) -> str:
        more = [f"{self.tools}/usr/bin", f"{self.tools}/usr/sbin"] if self.tools else []
        return os.pathsep.join([*more, os.environ["PATH"], "/usr/sbin", "/sbin"])

    @property
    def environment(self) -> dict[str, str]:
        libraries = os.pathsep.join(str(path) for path in Path(self.tools).glob("**/*-linux-gnu")) if self.tools else ""
        return {
            **os.environ,
            "PATH": self.path,
            "PYTHONPATH": str(REPOSITORY / "collections"),
            **({"LD_LIBRARY_PATH": libraries} if libraries else {}),
        }

    def start(self, node: int, *argv: str, wait_for: bytes = b"") -> subprocess.Popen[bytes]:
        with (self.base / "output").open("ab") as output:
            made = subprocess.Popen(
                self.network.inside(node, *argv),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if wait_for else output,
                stderr=output,
            )
        if wait_for and made.stdout:
            assert wait_for in made.stdout.readline()
        return made

    def daemon(self, node: int, *argv: str, wait_for: bytes = b"") -> None:
        self.daemons.append(self.start(node, *argv, wait_for=wait_for))

    def reap(self, process: subprocess.Popen[bytes]) -> int:
        _pid, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.processor += used.ru_utime + used.ru_stime
        self.memory = max(self.memory, used.ru_maxrss / 1024)
        return process.returncode

    def wait_for(self, node: int, port: int) -> None:
        there = f"/dev/tcp/{self.network.address(node)}/{port}"
        script = f"until (exec 3<>{there}) 2>/dev/null; do sleep 0.2; done"
        subprocess.run(self.network.inside(node, "timeout", "60", "bash", "-c", script), check=True)

    def finish(self, running: Sequence[subprocess.Popen[bytes]]) -> None:
        bad = [process.args for process in running if self.reap(process)]
        if bad:
            raise SystemExit(f"{bad}: see {self.base / 'output'}")

    def stop(self) -> None:
        for process in self.daemons:
            os.kill(process.pid, signal.SIGTERM)
        for process in self.daemons:
            self.reap(process)
        self.daemons.clear()

    def check(self) -> None:
        for node in self.receivers:
            for name, sha256 in self.files.items():
                for path in (self.to(node) / name, self.to(node) / sha256):
                    if path.exists() and digest(path) == sha256:
                        break
                else:
                    raise SystemExit(f"node {node}: {name} is not what it should be")


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- the methods: each returns the seconds ---


def timed(work: Callable[[], None]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def line(bench: Bench) -> float:
    """One TCP stream to one receiver, which throws it away."""
    bench.daemon(1, sys.executable, "-c", RAW_RECEIVER, bench.network.address(1), str(RAW_PORT), wait_for=b"ready")
    paths = [str(bench.source / name) for name in bench.files]
    sender = [sys.executable, "-c", RAW_SENDER, bench.network.address(1), str(RAW_PORT), *paths]
    return timed(lambda: bench.finish([bench.start(0, *sender)]))


def pulls(bench: Bench, rate: int = 0) -> dict[int, list[str]]:
    """What each receiver runs to pull from the seed, and to verify. Its home is on the disk of what is compared."""
    home = bench.base / "seed"
    blobs = home / "hub/models--bench--model/blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    for name, sha256 in bench.files.items():
        (blobs / sha256).unlink(missing_ok=True)
        (blobs / sha256).hardlink_to(bench.source / name)
    from_node.publish(from_node.Offer(str(home), "bench/model"), str(bench.base / "run"))
    python = f"env PYTHONPATH={REPOSITORY / 'collections'} {sys.executable} -c"
    options = _sshd(bench, [0], f"{python} {shlex.quote(SERVE.format(str(bench.base / 'run')))}")
    connect = ["ssh", "-p", str(SSH_PORT), *options, "-o", "Ciphers=^aes128-gcm@openssh.com", "%H", "model"]
    addresses = [bench.network.address(0, half) for half in range(bench.network.halves)]
    argvs = {}
    for node in bench.receivers:
        argvs[node] = [sys.executable, "-c", NODE, json.dumps([str(bench.base), node, addresses, rate, connect])]
        (bench.base / f"home{node}").mkdir()
    return argvs


def ours(bench: Bench) -> float:
    argvs = pulls(bench)
    took = timed(lambda: bench.finish([bench.start(node, *argv) for node, argv in argvs.items()]))
    for node in bench.receivers:
        arrived = bench.base / f"home{node}/sparkmatrix/partial" / bench.manifest.revision / "blobs"
        for name, sha256 in bench.files.items():
            (arrived / sha256).rename(bench.to(node) / name)
        shutil.rmtree(bench.base / f"home{node}")
    return took


def _sshd(bench: Bench, nodes: Iterable[int], forced: str = "") -> list[str]:
    """sshd on these nodes, with one command where it is given; returns the options of ssh."""
    key = bench.base / "key"
    if not key.exists():
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    for name in ("passwd",):
        text = Path(f"/etc/{name}").read_text(encoding="utf-8")
        extra = "" if "\nsshd:" in text else "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n"
        (bench.base / name).write_text(text + extra, encoding="utf-8")
    (bench.base / "authorized").write_text((bench.base / "key.pub").read_text(encoding="utf-8"), encoding="utf-8")
    options = f"-h {key} -o StrictModes=no -o UsePAM=no -o AuthorizedKeysFile={bench.base / 'authorized'}"
    options += f" -o MaxStartups=100 -o ForceCommand={shlex.quote(forced)}" if forced else ""
    program = shutil.which("sshd", path=bench.path)
    mounts = f"mount --bind {bench.base / 'passwd'} /etc/passwd; mount -t tmpfs none /run; mkdir /run/sshd"
    for node in nodes:
        bench.daemon(node, "sh", "-c", f"{mounts}; exec {program} -D -e -f /dev/null -p {SSH_PORT} {options}")
    for node in nodes:
        bench.wait_for(node, SSH_PORT)
    quiet = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    return ["-i", str(key), *quiet.split()]


def _rsync_ssh(bench: Bench, options: Sequence[str], node: int) -> list[str]:
    shell = f"ssh -p {SSH_PORT} {' '.join(options)}"
    far = f"--rsync-path=env LD_LIBRARY_PATH={bench.environment.get('LD_LIBRARY_PATH', '')} {_which(bench, 'rsync')}"
    where = f"{bench.network.address(node)}:{bench.to(node)}/"
    return ["rsync", "-a", "--whole-file", "-e", shell, far, f"{bench.source}/", where]


def _which(bench: Bench, name: str) -> str:
    return shutil.which(name, path=bench.path) or name


def rsync_parallel(bench: Bench) -> float:
    options = _sshd(bench, bench.receivers)
    argvs = [_rsync_ssh(bench, options, node) for node in bench.receivers]
    return timed(lambda: bench.finish([bench.start(0, *argv) for argv in argvs]))


def rsync_daemon_parallel(bench: Bench) -> float:
    """Every receiver pulls from a daemon on the seed."""
    config = bench.base / "rsyncd.conf"
    config.write_text(f"use chroot = no\n[model]\npath = {bench.source}\n", encoding="utf-8")
    bench.daemon(0, "rsync", "--daemon", "--no-detach", f"--config={config}", f"--port={RSYNC_PORT}")
    bench.wait_for(0, RSYNC_PORT)
    where = f"rsync://{bench.network.address(0)}:{RSYNC_PORT}/model/"
    argvs = {node: ["rsync", "-a", "--whole-file", where, f"{bench.to(node)}/"] for node in bench.receivers}
    return timed(lambda: bench.finish([bench.start(node, *argv) for node, argv in argvs.items()]))


METHODS: Mapping[str, tuple[Callable[[Bench], float], tuple[str, ...]]] = {
    "one copy at line rate": (line, ()),
    "this collection": (ours, ("rsync", "sshd")),
    "rsync over ssh in parallel": (rsync_parallel, ("rsync", "sshd")),
    "rsync daemon in parallel": (rsync_daemon_parallel, ("rsync",)),
}


def make_model(base: Path, size: int, count: int) -> tuple[dict[str, str], Manifest]:
    """``count`` files of random bytes; the manifest beside them."""
    (base / "source").mkdir(parents=True)
    made, names = [], {}
    for number in range(count):
        name = f"model-{number + 1:05d}.safetensors"
        whole = hashlib.sha256()
        with (base / "source" / name).open("wb") as stream:
            left = size // count
            while left:
                data = random.Random(f"{number} {left}").randbytes(min(left, MIB))
                stream.write(data)
                whole.update(data)
                left -= len(data)
        names[name] = whole.hexdigest()
        made.append(File(name, size // count, names[name], names[name]))
    manifest = parse(Manifest("bench/model", "a" * 40, tuple(made)).as_dict())
    (base / "manifest.json").write_text(json.dumps(manifest.as_dict()), encoding="utf-8")
    return names, manifest


@contextmanager
def receivers_of(bench: Bench) -> Iterator[None]:
    for node in bench.receivers:
        bench.to(node).mkdir()
    try:
        yield
    finally:
        bench.stop()
        for node in bench.receivers:
            shutil.rmtree(bench.to(node))


def measure(bench: Bench, name: str) -> tuple[float, float, float]:
    """Seconds, processor seconds, and MiB of the largest process."""
    method, _needs = METHODS[name]
    with receivers_of(bench):
        bench.processor = bench.memory = 0.0
        took = method(bench)
        bench.stop()
        if method is not line:
            bench.check()
    return took, bench.processor, bench.memory


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--receivers", type=int, default=3)
    parser.add_argument("--size", type=int, default=400, help="MB of the model")
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rate", type=int, default=200, help="Mbit/s of each node's cable; 0: no limit")
    parser.add_argument("--halves", type=int, default=1)
    parser.add_argument("--base", type=Path, default=Path("/dev/shm/fanbench"), help="emptied before and after")
    parser.add_argument("--tools", default="", help="directory with further tools, as dpkg -x unpacks them")
    parser.add_argument("--only", default=",".join(METHODS))
    options = parser.parse_args()
    shutil.rmtree(options.base, ignore_errors=True)
    size = options.size * 1_000_000
    nodes = options.receivers + 1
    try:
        files, manifest = make_model(options.base, size, options.files)
        with Network(nodes, options.halves, options.rate) as network:
            bench = Bench(network, options.base, files, manifest, options.tools)
            print(f"{nodes - 1} receivers, {options.size} MB, cable of {options.rate or 'no'} Mbit/s")
            first = 0.0
            for name in options.only.split(","):
                if not bench.has(*METHODS[name][1]):
                    print(f"{name:28} not installed: {', '.join(METHODS[name][1])}")
                    continue
                took, processor, memory = measure(bench, name)
                first = first or took
                speed = size / took / 1e9
                print(
                    f"{name:28} {took:7.2f} s {took / first:6.2f} x {speed:6.3f} GB/s per receiver"
                    f" {processor:6.1f} s of processor, {memory:5.0f} MiB at most",
                    flush=True,
                )
    finally:
        shutil.rmtree(options.base, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
