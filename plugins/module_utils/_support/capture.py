# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What a machine prints, for somebody who was not there: outputs of tools, and with ``logs`` also journals, settings,
the engine plan, verdicts and the keeper's history. Secrets do not leave the machine. Changes nothing.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import pwd
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import folders
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text, paths, strict, trusted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import names as gateway_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.redaction import Redactor

MOST = 200_000  # characters of one output; of a log it is the end
MAX_ALL = 6_000_000  # of all outputs of a machine
MAX_BYTES = 4 * MAX_ALL  # of them as JSON
WIDTH = 100  # of the line that says how much of an output is left out
COMMAND_S = 30.0
RAY_LOGS = 24  # the newest
VERDICTS = 5  # runs
MAX_NAMES = 50
FIRST_PERSON, LAST_PERSON = 1000, 60000  # ids of accounts, by login.defs(5)
MAX_FILES = 10000  # of a directory of others

TOOLS: Mapping[str, Sequence[str]] = {
    "ip_link": ("ip", "-br", "link"),
    "ip_addr": ("ip", "-br", "addr"),
    "networkctl": ("networkctl", "list", "--no-legend", "--no-pager"),
    "nmcli": ("nmcli", "-t", "-f", "DEVICE,TYPE,STATE", "device"),
    "lspci": ("lspci", "-nn", "-tv"),
    "lspci_mellanox": ("lspci", "-vv", "-d", "15b3:"),
    "ibdev2netdev": ("ibdev2netdev",),
    "show_gids": ("show_gids",),
    "rdma_link": ("rdma", "link"),
    "nvidia_smi": ("nvidia-smi",),
    "nvidia_smi_clock": ("nvidia-smi", "-q", "-d", "CLOCK,PERFORMANCE,TEMPERATURE,POWER"),
    "grub": ("grub-editenv", "list"),
    "boots": ("journalctl", "--list-boots", "--no-pager", "-q"),
    "kernel_journal": (
        *("journalctl", "-b", "_TRANSPORT=kernel", "--no-pager", "-q", "-o", "short-monotonic", "-n", "2000"),
        "--grep=mlx5|[Aa][Ee][Rr]|pcieport|NVRM|D3cold|hotplug|thermal|MTU|Link",
    ),
    "docker": ("docker", "info", "--format", "{{.ServerVersion}} {{.Driver}} {{.CgroupDriver}}"),
}
_JOURNAL = ("journalctl", "--no-pager", "-q", "-o", "short-iso")
# Whose journals are read: of this collection, and of what it stands on. Those of all others, sudo's too, have nothing
# that helps and secrets of whoever works there. init.scope is systemd itself.
_UNITS = tuple(
    word
    for unit in (
        *("sparkmatrix-*", "init.scope", "systemd-networkd.service", "systemd-udevd.service", "NetworkManager.service"),
        *("avahi-daemon.service", "docker.service", "containerd.service", "ssh.service", "fail2ban.service"),
        *("systemd-oomd.service", "earlyoom.service", "nvidia-persistenced.service"),
    )
    for word in ("-u", unit)
)
# Of what this collection does. Arguments of processes are not asked for: those of other programs may have secrets.
LOGS: Mapping[str, Sequence[str]] = {
    "status": (paths.COMMAND, "status"),
    "fabric_status": (paths.COMMAND, "fabric-status"),
    "units": ("systemctl", "list-units", "--all", "--plain", "--no-pager", "sparkmatrix-*"),
    "timers": ("systemctl", "list-timers", "--all", "--no-pager", "sparkmatrix-*"),
    "failed": ("systemctl", "list-units", "--failed", "--plain", "--no-pager"),
    "unit_files": ("systemctl", "cat", "--no-pager", "sparkmatrix-*"),
    "journal_keeper": (*_JOURNAL, "-n", "1500", "-u", "sparkmatrix-keeper*"),
    "journal_engine": (*_JOURNAL, "-n", "3000", "-u", "sparkmatrix-engine*"),
    "journal_ray": (*_JOURNAL, "-n", "1500", "-u", "sparkmatrix-ray*"),
    "journal_gateway": (*_JOURNAL, "-n", "500", "-u", "sparkmatrix-gateway*", "-u", "sparkmatrix-relay*"),
    "journal_ours": (*_JOURNAL, "-n", "500", "-t", "sparkmatrix-node", "_UID=0"),
    "journal_nccl": (*_JOURNAL, "-n", "1000", "-u", "sparkmatrix-*", "--grep=NCCL"),
    "journal_errors": (*_JOURNAL, "-b", "-p", "err", "-n", "500", *_UNITS),
    "journal_kernel": (*_JOURNAL, "-k", "-n", "1000"),
    "journal_last_boot": (*_JOURNAL, "-b", "-1", "-n", "200", *_UNITS),
    "journal_last_boot_kernel": (*_JOURNAL, "-b", "-1", "-k", "-n", "200"),
    "processes": ("ps", "-eo", "pid,ppid,user:32,rss,pcpu,etimes,stat,comm", "--sort=-rss"),
    "listening": ("ss", "-ltn"),
    "disks": ("df", "-h", "-x", "tmpfs", "-x", "overlay"),
    "containers": ("docker", "ps", "-a", "--format", "{{.Names}} {{.Image}} {{.Status}}"),
    "files": ("find", paths.ETC, paths.STATE, "-maxdepth", "2", "-printf", "%M %u %s %TF %p\n"),
}
FILES = (
    "/etc/dgx-release",
    "/etc/os-release",
    "/etc/avahi/avahi-daemon.conf",
    "/proc/cmdline",
    "/proc/meminfo",
    "/proc/driver/nvidia/version",
    "/sys/class/dmi/id/product_name",
    "/sys/class/dmi/id/sys_vendor",
    "/sys/class/dmi/id/bios_version",
)
FOLDERS = ("/etc/netplan", "/etc/NetworkManager/conf.d", "/etc/systemd/network", "/boot/grub")
PORTS = ("speed", "carrier", "operstate", "mtu", "phys_port_name", "phys_switch_id")
# Settings and memory of this collection: files that only root writes, by pattern. None of them holds a secret on
# purpose; those that do are below.
OURS = (
    fact.FACT_PATH,
    f"{paths.ETC}/engine*.json",
    f"{paths.ETC}/engine*.env",
    f"{paths.ETC}/ray*.env",
    f"{paths.ETC}/engine*/compose.yml",
    f"{paths.ETC}/ray/*",
    f"{paths.ETC}/web-ui.env",
    f"{paths.GATEWAY}/gateway.json",
    *(f"{kept_plan.DIRECTORY}/{name}.json" for name in (kept_plan.CURRENT, kept_plan.PREVIOUS)),
    f"{paths.KEEPER}/*.json",
    f"{paths.KEEPER}/*/*.json",
    paths.FABRIC_BANDWIDTH,
    "/proc/pressure/*",
    "/proc/uptime",
)
# Files with secrets. They are read for what must not be in the rest, and never taken along.
SECRETS = (
    f"{paths.ETC}/*.token",
    f"{paths.ETC}/*key*.env",
    f"{paths.ETC}/*.key",
    f"{paths.GATEWAY}/keys/*",
    f"{paths.GATEWAY}/*.key",
    f"{paths.GATEWAY}/*/*.key",
    f"{gateway_names.RUN}/tls.key",
    f"{paths.SSH}/id_*",
    "/etc/ssh/ssh_host_*_key",
    "/root/.docker/config.json",
    "/root/.ssh/id_*",
    "/root/.netrc",
    "/root/.cache/huggingface/token",
)
# Of the user whom the engine runs as, below the home directory.
SECRETS_OF_THE_ENGINE = (".docker/config.json", ".cache/huggingface/token", ".netrc")
_PUBLIC = (".pub", ".json.example")
_SETTING = re.compile(
    r"[ \t]*(?:Environment=\"?)?[\w.-]{0,100}?(?i:key|token|secret|passw\w{0,9}|credential|auth)\w{0,100}"
    r"[ \t]*=[ \t]*(\S.*)"
)
_POINTER = re.compile(r"""[ \t]*(?:Environment="?)?\w{0,100}(?:TOKEN|KEY|PASSWORD|SECRET)_(?:PATH|FILE)="?(/[^"]+)""")
_QUOTED = re.compile(
    r"\"((?:auth|password|identitytoken|registrytoken|secret|token)\w{0,100})\"\s{0,9}:\s{0,9}\"([^\"]{4,})\""
)
# A secret that somebody has made, and not a word that stands in logs: what others than root write is believed only so.
_MADE = re.compile(r"(?=.{0,200}[a-z])(?=.{0,200}[A-Z])(?=.{0,200}\d)[\w.~+/=-]{12,1000}")
MAX_MADE = 20  # of a file
MAX_NAMED = 50  # files that settings name
MAX_LINE = 8192
MAX_SECRET = 65536  # bytes of a file
SHORTEST_LINE = 12


# -- the way to the controller


def pack(outputs: Mapping[str, str]) -> str:
    """Text that compresses to a tenth. As UTF-8, so that no sign in a log makes it larger than the controller reads."""
    text = json.dumps(outputs, ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode("utf-8", "replace"), 6)).decode()


def unpacked(value: Any) -> dict[str, str]:
    """What :func:`pack` made, or whatever else a machine answered."""
    try:
        packer = zlib.decompressobj()
        text = packer.decompress(base64.b64decode(value, validate=True), MAX_BYTES)
        if packer.unconsumed_tail:
            raise ValueError("it is too large")
        found = json_text.mapping(text)
    except (TypeError, ValueError, zlib.error, SparkError) as exc:
        raise ValueError(f"is not what was packed ({type(exc).__name__})") from exc
    return {_name(name): _output(text) for name, text in found.items()}


def _output(value: Any) -> str:
    """Several lines of a tool, without control characters."""
    if not isinstance(value, str) or len(value) > MOST + WIDTH:
        raise ValueError("is no text, or too long")
    return "".join(sign if sign.isprintable() or sign in "\n\t" else " " for sign in value)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w/.@:-]{1,200}", value, re.ASCII) or ".." in value.split("/"):
        raise ValueError("is no name of an output")
    return value


@dataclass(frozen=True)
class Request:
    """``logs``: also journals, settings, engine plan, verdicts and the keeper's history. ``anonymous``: leave out
    addresses, names, serial numbers and identities, too. ``names``: of machines, and what stands for each; ``name``:
    what stands for this one; ``key``: what stands for an address is made from it, the same on all machines of a run."""

    logs: bool = False
    anonymous: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    key: str = ""


@dataclass(frozen=True)
class Answer:
    """``outputs``: as :func:`pack` makes them of a text by name of a tool or path of a file, empty where the call has
    failed; ``counts``: what was taken out, by kind."""

    outputs: Annotated[Any, unpacked] = ""
    counts: Mapping[Words, float] = field(default_factory=dict)
    changed: Flag = False


def support(request: Request, _check: bool) -> Answer:
    redactor = Redactor(anonymous=request.anonymous, names=request.names, key=request.key)
    outputs = capture(Machine(runner=runner), redactor, logs=request.logs, name=request.name)
    return Answer(pack(outputs), redactor.counts)


def capture(machine: Machine, redactor: Redactor, *, logs: bool = False, name: str = "") -> dict[str, str]:
    """What is not there is left out. ``name`` stands for that of the machine itself."""
    commands = {**TOOLS, **(LOGS if logs else {})}
    with ThreadPoolExecutor(max_workers=8) as pool:
        done = dict(zip(commands, pool.map(machine.runner, commands.values())))
    found = {name: one.out or one.err for name, one in done.items() if one.rc != 127}
    found |= {path: text for path in FILES if (text := machine.text(path)) is not None}
    found |= {path: "\n".join(names) for path in FOLDERS if (names := machine.names(path))}
    for netdev in machine.names("/sys/class/net"):
        place = f"/sys/class/net/{netdev}"
        if (machine.text(f"{place}/device/vendor") or "") == "0x15b3":
            for kind in PORTS:
                value = machine.text(f"{place}/{kind}")
                # The kernel refuses to tell the speed of a port without a link (EINVAL).
                found[f"{place}/{kind}"] = "(not readable)" if value is None else value
    last = ray_logs(machine) if logs else {}  # of others: however long they are, all of the rest is there
    found |= {**(_ours(machine) if logs else {}), **last}
    known = replace(
        redactor,
        known=(*redactor.known, *secrets(machine, found.get("unit_files", ""))),
        names={**redactor.names, **(dict.fromkeys(_own_names(machine), name) if name else {})},
        users=(*redactor.users, *_people(machine)),
    )
    outputs: dict[str, str] = {}
    left = MAX_ALL
    for output, text in sorted(found.items(), key=lambda one: (one[0] in last, one[0])):
        shown = _end(known.redact(text[-2 * MOST :]), min(MOST, left))
        outputs[_shown(output, known)] = shown
        left = max(left - len(shown), 0)
    return outputs


def _own_names(machine: Machine) -> set[str]:
    """What it is called, and what it was called when lines of its journal were written."""
    told = machine.runner(["journalctl", "-F", "_HOSTNAME"]).out.splitlines()
    names = {line.strip() for line in (machine.text("/proc/sys/kernel/hostname") or "", *told[:MAX_NAMES])}
    names = {own for own in names if re.fullmatch(r"[\w.-]{1,253}", own) and own != "localhost"}
    return names | {own.partition(".")[0] for own in names if own.partition(".")[0]}


def _people(machine: Machine) -> set[str]:
    """Accounts of people, and who runs this; by their names in full as well."""
    found = {machine.environment.get("SUDO_USER", "")}
    for line in (machine.text("/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) > 4 and FIRST_PERSON <= (strict.digits(fields[2]) or 0) < LAST_PERSON:
            found |= {fields[0], fields[4].partition(",")[0]}
    return found - {""}


def runner(argv: Sequence[str]) -> Completed:
    """One that hangs in the kernel is left behind."""
    return run(argv, COMMAND_S)


def _shown(name: str, redactor: Redactor) -> str:
    return re.sub(r"[^\w/.@:-]", "-", redactor.redact(name), flags=re.ASCII)[:200]


def _end(text: str, most: int) -> str:
    """The last lines; a secret that is cut in two is no secret any more, so this comes after the redaction."""
    if len(text) <= most:
        return text
    cut = text[len(text) - most :]
    return f"(the first {len(text) - most} characters are left out)\n{cut.partition(chr(10))[2]}"


def _matching(machine: Machine, pattern: str) -> Iterator[tuple[str, Path]]:
    """Paths of the node, and where they are; regular files, and not through a link at the end."""
    root = Path(machine.real("/"))
    for place in sorted(root.glob(pattern.lstrip("/"))):
        try:
            if stat.S_ISREG(place.lstat().st_mode):
                yield f"/{place.relative_to(root)}", place
        except OSError:
            continue


def _ours(machine: Machine) -> dict[str, str]:
    secret = {name for pattern in SECRETS for name, _place in _matching(machine, pattern)}
    found = {
        name: text
        for pattern in OURS
        for name, _place in _matching(machine, pattern)
        if name not in secret and (text := machine.text(name)) is not None
    }
    runs = sorted((name for name, _place in _matching(machine, f"{paths.VERDICTS}/*.json")), reverse=True)
    return {**found, **{name: machine.text(name) or "" for name in runs[:VERDICTS]}}


def ray_logs(machine: Machine) -> dict[str, str]:
    """Who writes them may put anything in their place: no link is followed, and nothing but a file is opened."""
    found: dict[str, str] = {}
    for base in (paths.RAY_SESSIONS, paths.RAY_SESSIONS_IN_CONTAINER):
        above, _slash, last = base.rpartition("/")  # where a link can only be root's
        with contextlib.suppress(OSError, ValueError, SparkError):
            with folders.inside(machine.real(above), [last]) as sessions:
                newest = _newest_session(sessions)
            with folders.inside(machine.real(above), [last, newest, "logs"]) as logs:
                texts = {name: _tail(name, logs) for name in _newest(logs)}
            found |= {f"{base}/session_latest/logs/{name}": text for name, text in texts.items() if text}
    return found


def _newest_session(sessions: int) -> str:
    """Ray's link has a path of the container, so only its last part counts."""
    try:
        return os.path.basename(os.readlink("session_latest", dir_fd=sessions))
    except OSError:
        return "session_latest"


def _newest(logs: int) -> list[str]:
    times = {}
    with os.scandir(logs) as entries:
        for entry in itertools.islice(entries, MAX_FILES):
            with contextlib.suppress(OSError):
                seen = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(seen.st_mode) and seen.st_size:
                    times[entry.name] = seen.st_mtime
    return sorted(times, key=lambda name: times[name], reverse=True)[:RAY_LOGS]


def _tail(name: str, directory: int) -> str:
    """Nothing where it is no file any more."""
    try:
        opened = folders.open_file(name, directory)
    except OSError:
        return ""
    with os.fdopen(opened, "rb") as stream:
        stream.seek(max(os.fstat(opened).st_size - MOST, 0))
        return stream.read(MOST).decode("utf-8", "replace")


def settings(machine: Machine) -> dict[str, str]:
    """Environments of our services, which name secrets and files of them; only root writes them."""
    patterns = [pattern for pattern in OURS if pattern.endswith(".env")]
    names = [name for pattern in patterns for name, _place in _matching(machine, pattern)]
    return {name: text for name in names if (text := machine.text(name)) is not None}


def secrets(machine: Machine, units: str = "") -> list[str]:
    """Values that may stand nowhere: the contents of files with secrets, and what settings and ``units`` name as such.

    What others than root have written teaches no word that may stand in a log: nobody can have his traces left out.
    """
    lines = [*_lines("\n".join(settings(machine).values())), *_lines(units)]
    values = {match[1].strip("\"'") for line in lines if (match := _SETTING.match(line))}
    named = [match[1] for line in lines if (match := _POINTER.match(line))]
    patterns = {name for pattern in SECRETS for name, _place in _matching(machine, pattern)}
    for name in sorted({*patterns, *named[:MAX_NAMED]}):
        if not name.endswith(_PUBLIC):
            told = list(_values(_small(machine, name)))
            values |= set(told if name in patterns or _of_root(machine, name) else _made(told))
    for name in SECRETS_OF_THE_ENGINE:
        *above, last = name.split("/")
        with contextlib.suppress(OSError, SparkError), folders.inside(machine.real(paths.HOME), above) as directory:
            content = folders.read(directory, last, MAX_SECRET) or b""
            values |= set(_made(_values(content.decode("utf-8", "replace"))))
    return sorted(value for value in values if len(value.strip()) >= 8 and not value.startswith("/"))


def _lines(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if len(line) <= MAX_LINE)


def _values(text: str) -> Iterator[str]:
    """Of a file with secrets."""
    for match in _QUOTED.finditer(text):
        yield match[2]
    for line in _lines(text):
        plain, setting = line.strip(), _SETTING.match(line)
        if setting:
            yield setting[1].strip().strip("\"'")
        if len(plain) >= SHORTEST_LINE and not plain.startswith(("-----", "#", "{", "}", '"')) and " " not in plain:
            yield plain


def _made(values: Iterable[str]) -> Iterator[str]:
    return itertools.islice((value for value in values if _MADE.fullmatch(value)), MAX_MADE)


def _of_root(machine: Machine, name: str) -> bool:
    own = pwd.getpwuid(os.geteuid()).pw_name
    return not trusted.distrusted(name, (own,), machine.root)


def _small(machine: Machine, name: str) -> str:
    """Regular files only: it may have become something else meanwhile."""
    above, _slash, last = machine.real(name).rpartition("/")
    try:
        with folders.inside(above or "/", []) as directory:
            return (folders.read(directory, last, MAX_SECRET) or b"").decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
