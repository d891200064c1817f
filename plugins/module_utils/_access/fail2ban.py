# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""fail2ban's jail for sshd as it runs: the server runs, and bans nobody who must get in.

Its file is placed before (``_managed.files``). What counts is what the server says: ``fail2ban-client get sshd
ignoreip`` prints a heading and one ``|- 192.0.2.1`` or ```- 192.0.2.1`` per address; ``… banip`` prints addresses
(fail2ban-client(1)).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Diff, Flag, Words
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.settings import Settings

SETTINGS = "access_fail2ban"
SERVICE = "fail2ban.service"
JAIL = "sshd"
LOOPBACK = ("127.0.0.1/8", "::1")
START_S = 30.0  # it reads its filters and restores bans of earlier runs first
POLL_S = 0.2
_KINDS = ("enabled", "units")
_ITEM = re.compile(r"^[|`]- (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Request:
    """``ignore``: addresses that are never banned, beside loopback. ``absent`` is asked for after the jail's file is
    gone."""

    ignore: tuple[str, ...] = ()
    state: str = field(default="present", metadata=document.one_of("present", "absent"))


@dataclass
class Outcome:
    """What was done, or in check mode would be."""

    changed: Flag = False
    actions: list[Words] = field(default_factory=list)
    diff: Diff = field(default_factory=list)

    def note(self, *actions: str) -> None:
        self.changed = self.changed or bool(actions)
        self.actions += actions


def ensure(request: Request, check: bool) -> Outcome:
    jail = Jail(Machine(), check_mode=check)
    return jail.absent() if request.state == "absent" else jail.present(request.ignore)


def networks(addresses: Iterable[str]) -> set[str]:
    """In one form: ``127.0.0.1/8`` and ``127.0.0.0/8`` are the same. Host names stay as they are."""
    found = set()
    for address in addresses:
        try:
            found.add(str(ipaddress.ip_network(address, strict=False)))
        except ValueError:
            found.add(address)
    return found


def parse_ignored(text: str) -> set[str]:
    return networks(_ITEM.findall(text))


class Jail:
    def __init__(self, machine: Machine, *, check_mode: bool = False) -> None:
        self.machine = machine
        self.check_mode = check_mode
        self.settings = Settings(SETTINGS, machine, check_mode=check_mode)

    def present(self, ignore: Iterable[str]) -> Outcome:
        """Run and enable the server, and let it ignore exactly these and loopback."""
        wanted = networks([*LOOPBACK, *ignore])
        values = {"enabled": {SERVICE: "enabled"}, "units": {SERVICE: "active"}}
        done = self.settings.bring(values, _KINDS)
        outcome = Outcome()
        outcome.note(*done.actions)
        answers = self._wait() if not self.check_mode else self._client("ping").rc == 0
        now = self._ignored() if answers else set()
        lists = ("".join(f"{address}\n" for address in sorted(one)) for one in (now, wanted))
        outcome.diff.append(dict(zip(("before", "after"), lists)))
        if now != wanted:
            outcome.note(f"reload the jail {JAIL}")
            if not self.check_mode:
                self._must("reload")
                self._wait()
                self._refuse_others(wanted, self._ignored())
        banned = networks(self._must("get", JAIL, "banip").out.split()) & wanted if answers else set()
        for address in sorted(banned):
            # Banned before it was in the list; a reload keeps bans.
            outcome.note(f"unban {address}")
            if not self.check_mode:
                self._must("set", JAIL, "unbanip", str(ipaddress.ip_network(address).network_address))
        return outcome

    def absent(self) -> Outcome:
        """After the jail's file is gone: the server forgets it, and runs or not as before us."""
        outcome = Outcome()
        if self.settings.load().empty:
            return outcome
        outcome.note(f"reload the jail {JAIL}")
        # Before the record goes, so that a run that is cut off here does it again.
        if not self.check_mode and self._client("ping").rc == 0:
            self._must("reload")
        outcome.note(*self.settings.bring({}, _KINDS).actions)
        return outcome

    # -- the server

    def _client(self, *words: str) -> Completed:
        return self.machine.runner(("fail2ban-client", *words))

    def _must(self, *words: str) -> Completed:
        done = self._client(*words)
        if done.rc != 0:
            raise SparkError(
                f"fail2ban-client {' '.join(words)} failed ({done.complaint})",
                SERVICE,
                "Look at /var/log/fail2ban.log and journalctl -u fail2ban, then run again",
            )
        return done

    def _wait(self) -> bool:
        """Until the server answers and has the jail."""
        deadline = self.machine.clock() + START_S
        while self._client("ping").rc != 0 or self._client("status", JAIL).rc != 0:
            if self.machine.clock() > deadline:
                self._must("ping")
                self._must("status", JAIL)
            self.machine.sleep(POLL_S)
        return True

    def _ignored(self) -> set[str]:
        return parse_ignored(self._must("get", JAIL, "ignoreip").out)

    def _refuse_others(self, wanted: set[str], now: set[str]) -> None:
        if now == wanted:
            return
        missing = (
            f"without {' '.join(sorted(wanted - now))}" if wanted - now else f"with {' '.join(sorted(now - wanted))}"
        )
        raise SparkError(
            f"the jail {JAIL} runs {missing} in ignoreip, so it may ban nodes or let strangers try for ever",
            SERVICE,
            "A file that is read after /etc/fail2ban/jail.d/sparkmatrix.local overrides it: fail2ban-client -d",
        )
