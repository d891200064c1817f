# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Does the machine that answers show the host key that the operator knows? Runs on the operator's computer.

ssh itself judges, with the operator's own configuration (aliases, jump hosts, certificates). Another key is taken over
only when its fingerprint was confirmed by somebody who has read it at the machine.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Runner, run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.host_keys import forget
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, WordOrEmpty, Words

# No authentication takes place, and no shared connection answers for the machine.
_QUIET = ("BatchMode=yes", "ControlMaster=no", "ControlPath=none", "ConnectTimeout=10", "PreferredAuthentications=none")


def several(value: Any) -> tuple[str, ...]:
    """Fingerprints, which -e gives as one text with commas between them."""
    texts = value.split(",") if isinstance(value, str) else value
    return tuple(word for text in texts if (word := str(text).strip()))


@dataclass(frozen=True)
class Target:
    """Where ssh goes: ``arguments`` are texts that Ansible uses (``ansible_ssh_common_args`` and the like).
    ``confirmed``: fingerprints (``SHA256:…``) that somebody has read at the machine."""

    host: str
    port: str = ""
    user: str = ""
    arguments: tuple[str, ...] = ()
    confirmed: Annotated[tuple[str, ...], several] = ()

    @property
    def name(self) -> str:
        """As known hosts have it."""
        return f"[{self.host}]:{self.port}" if self.port not in ("", "22") else self.host

    def command(self, *options: str, words: Sequence[str] = ()) -> list[str]:
        # The first value of an option counts, so ours come first.
        own = [word for option in options for word in ("-o", option)]
        port = ["-p", self.port] if self.port else []
        user = ["-l", self.user] if self.user else []
        arguments = [word for text in self.arguments for word in shlex.split(text)]
        return ["ssh", "-T", *own, *port, *user, *arguments, *words, self.host]


@dataclass
class Judged:
    """``state``: known, changed, unknown, unreachable. ``fingerprint`` and ``kind`` of the key that was shown;
    ``forget``: the command that removes the one that is known."""

    state: WordOrEmpty = ""  # of a task that was skipped
    fingerprint: WordOrEmpty = ""
    kind: WordOrEmpty = ""
    complaint: Words = ""
    changed: Flag = False
    forget: Words = ""


def ask(request: Target, check: bool) -> Judged:
    return judge(request, check_mode=check)


def judge(target: Target, *, runner: Runner = run, check_mode: bool = False) -> Judged:
    """Compare; with a confirmed fingerprint, write the new key into the operator's known hosts."""
    found = _ask(target, runner)
    if found.state not in ("changed", "unknown"):
        return found
    with tempfile.TemporaryDirectory() as scratch:
        file = os.path.join(scratch, "known_hosts")
        _offered(target, file, found, runner)
        if not found.fingerprint or found.fingerprint not in target.confirmed:
            return found
        found.changed = True
        if check_mode:
            return found
        _take_over(target, file, runner)
    again = _ask(target, runner)
    if again.state != "known":
        raise SparkError(
            f"the new key was written to your known hosts, and ssh still refuses it: {again.complaint}",
            target.host,
            "Remove the old key where ssh names it",
        )
    return Judged("known", found.fingerprint, found.kind, changed=True)


def _ask(target: Target, runner: Runner) -> Judged:
    done = runner(target.command(*_QUIET, "StrictHostKeyChecking=yes"))
    text = " ".join(done.err.split())
    if "IDENTIFICATION HAS CHANGED" in text or "differs from the key for the IP" in text:
        return Judged("changed", complaint=text, forget=forget(text, shlex.quote(target.name)))
    if "host key is known for" in text:
        return Judged("unknown", complaint=text)
    # Not let in, as asked for, by a machine whose key was right.
    if done.rc == 0 or "Permission denied" in text or "Too many authentication failures" in text:
        return Judged("known")
    return Judged("unreachable", complaint=done.complaint)


def _offered(target: Target, file: str, found: Judged, runner: Runner) -> None:
    runner(
        target.command(
            *_QUIET,
            "StrictHostKeyChecking=accept-new",
            f"UserKnownHostsFile={file}",
            "GlobalKnownHostsFile=/dev/null",
            "HashKnownHosts=no",
            "CheckHostIP=no",
        )
    )
    # "256 SHA256:abc… name (ED25519)"
    words = runner(("ssh-keygen", "-l", "-f", file)).out.split()
    if len(words) >= 4:
        found.fingerprint, found.kind = words[1], words[-1].strip("()")


def _take_over(target: Target, file: str, runner: Runner) -> None:
    settings: dict[str, str] = {}
    for line in runner(target.command(words=("-G",))).out.splitlines():
        name, _blank, value = line.partition(" ")
        settings.setdefault(name, value)
    places = shlex.split(settings.get("userknownhostsfile", ""))
    if not places or places[0] in ("/dev/null", "none"):
        raise SparkError(
            "your ssh configuration keeps no known hosts (UserKnownHostsFile)", target.host, "Name a file there"
        )
    place = os.path.expanduser(places[0])
    with open(file, encoding="ascii", errors="replace") as stream:
        line = stream.read()
    folder = os.path.dirname(place)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    # For each machine at the same time, and ssh-keygen writes the file anew: what another one has added would be lost.
    alone = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX)
        if os.path.exists(place):
            name = line.split(" ", 1)[0].split(",", 1)[0]
            done = runner(("ssh-keygen", "-R", name, "-f", place))
            if done.rc != 0:
                remedy = "Remove it with ssh-keygen -R"
                raise SparkError(f"the old key cannot be removed: {done.complaint}", place, remedy)
        with open(place, "ab+") as stream:
            stream.seek(max(0, stream.seek(0, os.SEEK_END) - 1))
            torn = stream.read(1) not in (b"", b"\n")  # somebody's last line has no end
            stream.write(b"\n" * torn + line.encode("ascii", "replace"))
        os.chmod(place, 0o600)
    finally:
        os.close(alone)
