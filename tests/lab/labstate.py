# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""One lab: its names, its places on disk, its record, its locks."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence

from sim import faults, spark

HERE = pathlib.Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
RUN = pathlib.Path("/run/sparkmatrix-lab")
DEFAULT_ID = os.environ.get("SPARKMATRIX_LAB_ID", "lab")


class LabError(Exception):
    """What was found and what to do about it."""


def cache_dir() -> pathlib.Path:
    """Where images and environments are kept between runs and checkouts."""
    base = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path.home() / ".cache")
    return pathlib.Path(os.environ.get("SPARKMATRIX_CACHE") or f"{base}/sparkmatrix")


def run(command: Sequence[str | pathlib.Path], check: bool = True, stdin: str | None = None) -> str:
    """Standard output of a command; LabError with its complaint when it fails."""
    result = subprocess.run(
        [str(word) for word in command], input=stdin or "", capture_output=True, text=True, check=False
    )
    if check and result.returncode:
        said = (result.stderr.strip() or result.stdout.strip())[-2000:]
        raise LabError(f"{shlex.join(map(str, command))} failed with exit code {result.returncode}: {said}")
    return result.stdout


def install(packages: Sequence[str]) -> None:
    """Where there is a right to; who checks afterwards sees what is missing."""
    if not packages or os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    print(f"Installing {' '.join(packages)}", flush=True)
    if subprocess.run(command, env=environment, check=False).returncode:
        subprocess.run(["apt-get", "update"], env=environment, check=True)
        subprocess.run(command, env=environment, check=True)


@dataclasses.dataclass(frozen=True)
class Lab:
    """Everything that is derived from the id of a lab."""

    id: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,19}", self.id):
            raise LabError(f"The lab id {self.id!r} is not 1 to 20 lower-case letters, digits and dashes.")

    @property
    def run(self) -> pathlib.Path:
        """State that ends with the machine: sockets, faults, pids."""
        return RUN / self.id

    @property
    def disk(self) -> pathlib.Path:
        """What the nodes write, and podman's own storage."""
        return cache_dir() / "labs" / self.id

    @property
    def tag(self) -> str:
        """Interface names have 15 characters: a short form of the id."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:6]

    @property
    def fabric(self) -> str:
        """The network namespace of switches and cables."""
        return f"smlab-{self.id}-fabric"

    @property
    def uplink(self) -> str:
        """The host's own interface on the management network."""
        return f"smlab{self.tag}"

    @property
    def cgroup(self) -> str:
        return f"smlab-{self.id}"

    def netns(self, node: str) -> str:
        return f"smlab-{self.id}-{node}"

    def container(self, node: str) -> str:
        return f"smlab-{self.id}-{node}"

    def disk_of(self, node: str) -> pathlib.Path:
        return self.disk / "nodes" / node

    def control(self, node: str) -> pathlib.Path:
        return self.run / "ctl" / node

    # --- record ---------------------------------------------------------------------------------------------------

    def save(self, record: Record) -> None:
        write_atomically(self.run / "lab.json", json.dumps(dataclasses.asdict(record), indent=1) + "\n")

    def record(self) -> Record:
        try:
            return Record(**json.loads((self.run / "lab.json").read_text()))
        except (OSError, ValueError, TypeError):
            raise LabError(
                f"The lab {self.id} is not up. Boot it: python3 tests/lab/lab.py up --id {self.id}"
            ) from None

    def active_faults(self) -> list[faults.Fault]:
        try:
            return [faults.Fault(**entry) for entry in json.loads((self.run / "faults.json").read_text())]
        except FileNotFoundError:
            return []

    def save_faults(self, active: list[faults.Fault]) -> None:
        text = json.dumps([dataclasses.asdict(fault) for fault in active], indent=1)
        write_atomically(self.run / "faults.json", text + "\n")

    def wanted(self, active: list[faults.Fault] | None = None) -> faults.Lab:
        record = self.record()
        return faults.wanted(record.topology, record.nodes, self.active_faults() if active is None else active)


@dataclasses.dataclass
class Record:
    """What is up; kept in lab.json of the lab."""

    id: str
    topology: str
    nodes: int
    subnet: str  # management network, a /24: its first three numbers
    checkout: str
    state: str  # where overlay inventory, ssh configuration and keys are: .lab in the checkout
    image: str
    since: str
    ready: bool = False
    mounts: list[str] = dataclasses.field(default_factory=list)
    gpus: bool = False  # node 1 has this machine's first card, and so on

    @property
    def names(self) -> list[str]:
        return spark.node_names(self.nodes)

    def address(self, node: str) -> str:
        return f"{self.subnet}.{10 + spark.node_number(node)}"

    @property
    def gateway(self) -> str:
        return f"{self.subnet}.1"


def write_atomically(path: pathlib.Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.touch(mode=mode)
    draft.write_text(text)
    draft.replace(path)


# --- locks -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def operation() -> Iterator[None]:
    """Changes of any lab on this machine happen one after the other."""
    RUN.mkdir(parents=True, exist_ok=True)
    with (RUN / "operation.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def wiring() -> Iterator[None]:
    """The keeper and the fault command both move cables."""
    with (RUN / "wiring.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def machine_lock(lab: Lab, wait_s: float) -> int:
    """The descriptor of the lock 'one lab at a time'. The keeper of a lab holds it for as long as the lab is up."""
    RUN.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(RUN / "lab.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    deadline = time.monotonic() + wait_s
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace").strip() or "unknown"
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise LabError(
                    f"One lab at a time: this machine is held by {holder}. Use that one, wait for it (--wait SECONDS) "
                    "or remove it: python3 tests/lab/lab.py down --id ID (the demo's: make demo-down)"
                ) from None
            if not told:
                print(f"Waiting for {holder}", flush=True)
                told = True
            time.sleep(1)
        else:
            os.ftruncate(descriptor, 0)
            text = f"lab {lab.id} of {CHECKOUT}, since {time.strftime('%Y-%m-%d %H:%M:%S')}"
            os.pwrite(descriptor, text.encode(), 0)
            return descriptor


def holder() -> str | None:
    """Who holds the machine, None when nobody does."""
    with contextlib.suppress(FileNotFoundError), (RUN / "lab.lock").open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return handle.read().strip()
    return None
