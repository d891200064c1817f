# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A node with ufw and sshd. Its files are below a temporary root; :meth:`FakeAccess.run` stands for the programs.

Like the real ones, ufw filters by what it read when it was switched on or reloaded, formats its files anew whenever it
writes them, and sshd goes by what it read when it was reloaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.paths import NODE_PROGRAM as TOOL
from fake_machine import FakeMachine

USER_RULES = "/etc/ufw/user.rules"
SSHD_CONFIG = "/etc/ssh/sshd_config"
DROP_INS = "/etc/ssh/sshd_config.d"


class FakeAccess(FakeMachine):
    looks = frozenset({"show", "status", "version", "-t", "-T", "-y", "is-active"})

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.closed_for = False  # what filters now drops what no rule allows
        self.filtering: list[str] | None = None  # the rules that filter now; None: nothing does
        self.sshd: dict[str, str] = {}  # what the running sshd goes by
        self.keys = 0
        self.socket = ""
        self.write("/etc/hosts", "127.0.0.1 localhost\n127.0.1.1 spark1\n")
        self.write("/etc/default/ufw", 'IPV6=yes\nDEFAULT_INPUT_POLICY="DROP"\n')
        self.write("/etc/ufw/ufw.conf", "ENABLED=no\nLOGLEVEL=low\n")
        self.write(USER_RULES, "*filter\n### as shipped ###\n")
        self.write("/etc/ufw/user6.rules", "*filter\n")
        self.write(SSHD_CONFIG, "Include /etc/ssh/sshd_config.d/*.conf\nPort 22\nMaxAuthTries 6\n")
        self.write(f"{DROP_INS}/50-cloud-init.conf", "PasswordAuthentication yes\n")
        self.write("/etc/ssh/ssh_host_ed25519_key.pub", "ssh-ed25519 AAAAhost root@spark1\n")
        self.write(TOOL, "tool")
        self.path(TOOL).chmod(0o755)
        self.sshd = self.settings()

    # --- files

    def machine(self) -> Machine:
        return Machine(str(self.root), self.run, self.sleep, self.clock, self.root / "sys", self.clock)

    def tree(self) -> dict[str, str]:
        found = (path for path in self.root.rglob("*") if path.is_file() or path.is_symlink())
        names = {str(path.relative_to(self.root)): path for path in found}
        return {
            name: str(path.readlink()) if path.is_symlink() else path.read_text()
            for name, path in sorted(names.items())
            if not name.startswith("run/") and not name.endswith(".sparkmatrix-new")
        }

    def state(self) -> tuple[object, ...]:
        return self.tree(), self.filtering, self.closed_for, self.sshd

    def lets_in(self, rule: str) -> bool:
        return (
            self.filtering is None
            or not self.closed_for
            or rule in [line.split(" comment ")[0] for line in self.filtering]
        )

    # --- programs

    def rules(self) -> list[str]:
        return re.findall(r"^### tuple ### (.*)$", self.read(USER_RULES), re.MULTILINE)

    def _store(self, rules: Sequence[str]) -> None:
        self.write(USER_RULES, "*filter\n" + "".join(f"### tuple ### {rule}\n" for rule in rules) + "COMMIT\n")
        if self.filtering is not None:
            self.filtering = list(rules)

    def _enabled(self, value: str) -> None:
        self.write("/etc/ufw/ufw.conf", re.sub("ENABLED=.*", f"ENABLED={value}", self.read("/etc/ufw/ufw.conf")))

    def load(self) -> None:
        """What ufw does when it starts or reloads."""
        on = "ENABLED=yes" in self.read("/etc/ufw/ufw.conf")
        self.filtering = self.rules() if on else None
        self.closed_for = on and 'INPUT_POLICY="DROP"' in self.read("/etc/default/ufw")

    def boot(self) -> None:
        self.load()
        self.sshd = self.settings()

    def _ufw(self, argv: list[str]) -> Completed | None:
        words = argv[1:]
        if words == ["version"]:
            return Completed(0, "ufw 0.36.2\n")
        if words == ["status"]:
            return Completed(0, f"Status: {'inactive' if self.filtering is None else 'active'}\n")
        if words == ["show", "added"]:
            lines = [f"ufw {rule}" for rule in self.rules()] or ["(None)"]
            return Completed(0, "\n".join(["Added user rules (see 'ufw status' for running firewall):", *lines, ""]))
        if words[0] == "--force":
            self._enabled("yes" if words[1] == "enable" else "no")
            self.load()
        elif words[0] == "reload":
            self.load()
        elif words[0] == "default":
            value = {"deny": "DROP", "allow": "ACCEPT"}[words[1]]
            text = re.sub('INPUT_POLICY=".*"', f'INPUT_POLICY="{value}"', self.read("/etc/default/ufw"))
            self.write("/etc/default/ufw", text)
            self.closed_for = self.filtering is not None and value == "DROP"
        elif words[0] == "delete" or words[:2] == ["route", "delete"]:
            text = " ".join(word for word in words if word != "delete")
            kept = [rule for rule in self.rules() if rule.split(" comment ")[0] != text]
            if kept == self.rules():
                return Completed(1, "", "Could not delete non-existent rule")
            self._store(kept)
        else:
            rule = " ".join(words[:-2]) + f" comment '{words[-1]}'" if "comment" in words else " ".join(words)
            self._store([*self.rules(), rule])
        return None

    def settings(self) -> dict[str, str]:
        """By what is on disk: the first value counts."""
        found: dict[str, str] = {}
        lines: list[str] = []
        for line in self.read(SSHD_CONFIG).splitlines():
            if line.startswith("Include"):
                lines += [
                    x for path in sorted(self.path(DROP_INS).glob("*.conf")) for x in path.read_text().splitlines()
                ]
            else:
                lines.append(line)
        for line in lines:
            name, _blank, value = line.partition(" ")
            if name and not name.startswith("#"):
                found.setdefault(name.lower(), value)
        return found

    def _ip(self, argv: list[str]) -> Completed:
        shown = [{"ifname": "enP7s7", "operstate": "UP", "addr_info": [{"local": "192.0.2.1", "scope": "global"}]}]
        return Completed(0, json.dumps(shown if "addr" in argv else []))

    def _sshd(self, argv: list[str]) -> Completed:
        found = self.settings()
        if "broken" in found:
            return Completed(255, "", f"{SSHD_CONFIG}: line 3: Bad configuration option: Broken")
        return Completed(0, "".join(f"{name} {value}\n" for name, value in found.items()) if "-T" in argv else "")

    def _systemctl(self, argv: list[str]) -> Completed | None:
        if argv[1] == "show":
            return Completed(0, self.socket or "Listen=\nActiveState=inactive\n")
        if argv[1] == "is-active":
            return Completed(0 if argv[-1] == "ssh.service" else 3)
        if argv[1] == "reload":
            self.sshd = self.settings()
        return None

    def _systemd_run(self, argv: list[str]) -> None:
        self.timer = argv[-1]

    def _ssh_keygen(self, argv: list[str]) -> Completed | None:
        path = Path(argv[argv.index("-f") + 1])
        if "-y" in argv:
            text = path.read_text()
            return Completed(0, f"ssh-ed25519 AAAA{text} \n") if text.startswith("k") else Completed(255, "", "invalid")
        self.keys += 1
        path.write_text(f"k{self.keys}")
        path.with_name(path.name + ".pub").write_text("public")
        return None
