# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Put the door of :mod:`_gateway.nginx` on this node: keys, certificate, files, tested before they replace what runs.

Whether a reload is due is asked of the running nginx, which answers with the hash of its configuration on a socket that
only root opens: a run that died between "files written" and "reloaded" heals on the next one. A configuration that does
not come up is taken back.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import nginx
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import status as gateway_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.nginx import (
    ETC,
    RUN,
    SET,
    UNIT,
    Door,
    Engine,
    Listener,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import secret as managed_secret
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File, Result
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import Service, Wanted
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import node_info

WHAT = "the door"
LOCK = "/run/lock/sparkmatrix-gateway.lock"
# The certificate that nginx reads: a copy, made at each start and reload.
LOADED = f"{RUN}/tls.crt"
RELOAD_TIMEOUT_S = 15.0
POLL_S = 0.1
KEY_BYTES = 32
CA_DAYS = 3650
# 825 days is the most that Apple's clients accept; renewed by a run when less than a quarter of a year is left.
CERTIFICATE_DAYS = 825
RENEW_S = 90 * 86400


@dataclass
class Outcome:
    changed: bool = False
    action: str = "none"  # none, started, restarted, reloaded, stopped
    diff: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    endpoints: list[str] = field(default_factory=list)
    firewall: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)


def listening(ports: Sequence[int]) -> Sequence[Mapping[str, Any]] | None:
    return node_info.listening(Machine(), ports)


@dataclass
class Node:
    """This node; tests replace what asks the running system."""

    machine: Machine = field(default_factory=Machine)
    ask: Callable[[str], str] = gateway_status.configuration
    service: Callable[[Wanted], Any] = Service
    listening: Callable[[Sequence[int]], Sequence[Mapping[str, Any]] | None] = listening


def apply(node: Node, door: Door, *, check_mode: bool = False) -> Outcome:
    """Make ``door`` true. Raises :class:`SparkError`; then what ran before runs."""
    found = nginx.problems(door)
    if found:
        raise SparkError("these settings cannot work:\n  - " + "\n  - ".join(found), "role gateway")
    with alone(node.machine, WHAT, LOCK):
        return _Gateway(node, door, check_mode).apply()


def remove(node: Node, *, check_mode: bool = False) -> Outcome:
    """Stop the door and take its files and keys away."""
    outcome = Outcome()
    with alone(node.machine, WHAT, LOCK):
        state = node.machine.runner(["systemctl", "show", "-p", "ActiveState,UnitFileState", UNIT]).out
        if "ActiveState=inactive" not in state or "UnitFileState=enabled" in state:
            outcome.changed, outcome.action = True, "stopped"
            if not check_mode:
                node.machine.command("systemctl", "disable", "--now", UNIT, step="stopping the door")
        result = managed_files.remove_set(SET, check_mode=check_mode, root=node.machine.root)
        outcome.changed |= result.changed
        outcome.diff += result.diff
        if result.changed and not check_mode:
            node.machine.command("systemctl", "daemon-reload", step="forgetting the unit")
            node.machine.runner(["systemctl", "reset-failed", UNIT])
    return outcome


class _Gateway:
    def __init__(self, node: Node, door: Door, check_mode: bool) -> None:
        self.node = node
        self.machine = node.machine
        self.door = door
        self.check_mode = check_mode

    def apply(self) -> Outcome:
        if not Path(self.machine.real(nginx.NGINX)).exists() and not self.check_mode:
            raise SparkError("nginx is not installed", nginx.NGINX, "Install it: apt-get install nginx")
        if self.door.routed and not Path(self.machine.real(nginx.NJS)).exists() and not self.check_mode:
            raise SparkError(
                "several engines need nginx's JavaScript, which is not installed",
                nginx.NJS,
                "Install it: apt-get install libnginx-mod-http-js",
            )
        listeners = nginx.resolve(self.door, self._interfaces())
        self._refuse_taken_ports(listeners)
        keys = self._keys()
        files = self._files(listeners, keys)
        wanted = self._hash(files, listeners)
        files.append(self._own(f"{ETC}/nginx.conf", nginx.nginx_conf(self.door, listeners, wanted), 0o640))
        outcome = Outcome(
            warnings=nginx.warnings(self.door, listeners),
            endpoints=nginx.endpoints(self.door, listeners),
            firewall=nginx.firewall(listeners, self.door.allow_from),
            keys=sorted(keys),
        )
        told = managed_files.apply_set(SET, files, check_mode=True, root=self.machine.root)
        unit = next(
            str(item.content, "utf-8") for item in files if item.path == f"{paths.UNITS}/{UNIT}" and item.content
        )
        outcome.action = self._due(wanted, nginx.unit_mark(unit))
        outcome.diff, outcome.changed = told.diff, told.changed or outcome.action != "none"
        if outcome.changed and not self.check_mode:
            outcome.diff = self._place(files, wanted, outcome.action, tested=told.changed).diff
        return outcome

    def _place(self, files: Sequence[File], wanted: str, action: str, *, tested: bool) -> Result:
        """Have nginx run these files; where it does not, whatever this run has placed is taken back."""
        if tested:
            self._test(files)
        before = self._standing()
        try:
            result = managed_files.apply_set(SET, files, root=self.machine.root)
            self._run(action, wanted)
        except SparkError as exc:
            self._take_back(before, action)
            raise SparkError(
                f"the new configuration did not come up, and what was there before is back: {exc}", UNIT
            ) from exc
        return result

    # -- reading

    def _interfaces(self) -> dict[str, list[str]]:
        text = self.machine.command("ip", "-json", "address", "show", step="reading the addresses").out
        try:
            return nginx.interfaces(json.loads(text))
        except ValueError as exc:
            raise SparkError("ip -json printed no JSON", "ip address", "Install iproute2") from exc

    def _refuse_taken_ports(self, listeners: Sequence[Listener]) -> None:
        """Somebody else's listener would keep ours from coming up, after what ran before has been replaced."""
        ports = {item.port for item in listeners}
        taken: dict[str, str] = {}
        for one in self.node.listening(sorted(ports)) or ():
            if one.get("unit") == UNIT:
                continue
            address = str(one.get("address"))
            for item in listeners:
                if item.port == one.get("port") and nginx.collide(address, item.address):
                    who = one.get("process") or "an unknown process"
                    of = f" of {one['unit']}" if one.get("unit") else ""
                    taken.setdefault(item.where, f"{item.where} is taken by {who}{of} at {address}")
        if taken:
            raise SparkError(
                "; ".join(taken.values()),
                "gateway_listen",
                "Stop it, or choose another gateway_port or gateway_local_port; it stays as it is",
            )

    def _keys(self) -> dict[str, str]:
        """Given keys, those that an earlier run made, and new ones. Empty in check mode where one would be made."""
        found = {}
        for name, given in {**self.door.keys, nginx.PROBE: ""}.items():
            own = managed_secret.parse(self.machine.read(f"{ETC}/keys/{name}.key") or "")
            found[name] = given or own or ("" if self.check_mode else secrets.token_urlsafe(KEY_BYTES))
        twice = [key for key in found.values() if key]
        if len(set(twice)) != len(twice):
            raise SparkError(
                "a given key is the one that another name has already",
                "gateway_keys",
                "Give each name a key of its own: removing one would not close it",
            )
        return found

    def _engine_key(self, engine: Engine) -> str:
        if not engine.key_file or (self.check_mode and self.machine.read(engine.key_file) is None):
            return ""
        return probe.read_key(self.machine.real(engine.key_file))

    # -- what is wanted

    def _own(self, path: str, text: str, mode: int = 0o600) -> File:
        """A file that nginx reads as its own user."""
        secret = mode == 0o600
        return File(path, text.encode(), owner=nginx.USER, group=nginx.USER, mode=mode, secret=secret)

    def _files(self, listeners: Sequence[Listener], keys: Mapping[str, str]) -> list[File]:
        door = self.door
        files = [
            self._own(f"{ETC}/keys.conf", nginx.keys_conf(keys)),
            *(self._own(one.key_conf, nginx.engine_key_conf(self._engine_key(one))) for one in door.engines),
            File(f"{paths.UNITS}/{UNIT}", nginx.unit_text(door).encode()),
            File(nginx.DESCRIPTION, nginx.description(door, listeners).encode()),
        ]
        files += [
            File(f"{ETC}/keys/{name}.key", managed_secret.render(key).encode(), mode=0o600, secret=True)
            for name, key in keys.items()
            if key
        ]
        files += [File(f"{paths.UNITS}/{name}", text.encode()) for name, text in nginx.watch_units(door).items()]
        if door.routed:
            files.append(self._own(nginx.ROUTE, nginx.route_js(door), 0o640))
        if door.tls == "own_ca":
            files += self._authority(listeners)
        return files

    def _hash(self, files: Sequence[File], listeners: Sequence[Listener]) -> str:
        """Changes with everything that nginx reads. Certificates of others are compared as files."""
        parts = [nginx.nginx_conf(self.door, listeners, "")]
        for item in sorted(files, key=lambda one: one.path):
            if item.path.startswith((f"{ETC}/keys.conf", f"{ETC}/engine", f"{ETC}/route", f"{ETC}/tls/")):
                parts += [item.path, (item.content or b"").decode()]
        return config_hash(*parts)

    # -- certificates of our own authority

    def _authority(self, listeners: Sequence[Listener]) -> list[File]:
        names = nginx.certificate_names(self.door, listeners, socket.gethostname())
        paths = {name: f"{ETC}/tls/{name}" for name in ("ca.crt", "ca.key", "server.crt", "server.key", "names")}
        have = {name: self.machine.read(path) or "" for name, path in paths.items()}
        if self.check_mode and not have["ca.crt"]:
            return []
        fresh = have["ca.crt"] and have["ca.key"] and have["server.crt"] and have["server.key"]
        if not fresh or have["names"].split() != names or self._runs_out(paths["server.crt"]):
            if self.check_mode:
                return []
            have = self._issue(have, names)
        secret = {"ca.key", "server.key"}
        return [
            File(paths[name], have[name].encode(), mode=0o600 if name in secret else 0o644, secret=name in secret)
            for name in paths
        ]

    def _runs_out(self, path: str) -> bool:
        return not self.machine.works(
            "openssl", "x509", "-in", self.machine.real(path), "-noout", "-checkend", str(RENEW_S)
        )

    def _issue(self, have: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
        with tempfile.TemporaryDirectory(prefix="sparkmatrix-gateway-") as place:  # 0700
            at = Path(place)
            (at / "openssl.cnf").write_text(nginx.openssl_conf(names))
            request = ("openssl", "req", "-x509", "-config", str(at / "openssl.cnf"), "-newkey", "ec", "-nodes")
            curve = ("-pkeyopt", "ec_paramgen_curve:P-256")
            if have["ca.crt"] and have["ca.key"]:
                (at / "ca.crt").write_text(have["ca.crt"])
                (at / "ca.key").write_text(have["ca.key"])
            else:
                out = ("-keyout", str(at / "ca.key"), "-out", str(at / "ca.crt"))
                kind = ("-extensions", "authority", "-days", str(CA_DAYS), "-subj", f"/CN={nginx.AUTHORITY}")
                self.machine.command(*request, *curve, *kind, *out, step="making the authority")
            out = ("-keyout", str(at / "server.key"), "-out", str(at / "server.crt"))
            kind = ("-extensions", "server", "-days", str(CERTIFICATE_DAYS), "-subj", f"/CN={names[0]}")
            issuer = ("-CA", str(at / "ca.crt"), "-CAkey", str(at / "ca.key"))
            self.machine.command(*request, *curve, *kind, *issuer, *out, step="making the certificate")
            made = {name: (at / name).read_text() for name in ("ca.crt", "ca.key", "server.crt", "server.key")}
        return {**made, "names": "\n".join(names) + "\n"}

    # -- acting

    def _due(self, wanted: str, mark: str) -> str:
        values = self._show(UNIT)
        if values.get("ActiveState") not in ("active", "reloading"):
            return "started"
        title = self.machine.read(f"/proc/{values.get('MainPID')}/cmdline") or ""
        if nginx.unit_mark(title) != mark or values.get("UnitFileState") != "enabled":
            return "restarted"
        # A certificate of somebody else may have changed while nobody watched it.
        fresh = self.door.tls != "files" or self.machine.read(self.door.certificate) == self.machine.read(LOADED)
        return "none" if fresh and self.node.ask(nginx.STATUS_SOCKET) == wanted else "reloaded"

    def _show(self, unit: str) -> dict[str, str]:
        what = "ActiveState,MainPID,UnitFileState"
        shown = self.machine.command("systemctl", "show", "-p", what, unit, step="reading the unit").out
        return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)

    def _test(self, files: Sequence[File]) -> None:
        """nginx reads a copy of all files below a directory of their own; nothing that runs sees it."""
        place = tempfile.mkdtemp(prefix="sparkmatrix-gateway-")  # 0700: keys are in it
        try:
            for item in files:
                if item.path.startswith(f"{ETC}/") and item.content is not None:
                    target = Path(place, item.path[len(ETC) + 1 :])
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_text(item.content.decode().replace(ETC, place).replace(RUN, place))
                    target.chmod(0o600)
            if self.door.tls != "off":
                for source, name in zip(self.door.certificate_paths, ("tls.crt", "tls.key")):
                    inside = Path(place, source[len(ETC) + 1 :]) if self.door.tls == "own_ca" else None
                    text = inside.read_text() if inside else self.machine.read(source)
                    if text is None:
                        raise SparkError("the certificate is not there", source, "Put it there, readable for root")
                    Path(place, name).write_text(text)
            done = self.machine.runner([nginx.NGINX, "-t", "-q", "-c", f"{place}/nginx.conf", "-e", "stderr"])
            if done.rc != 0:
                raise SparkError(
                    f"nginx does not accept the configuration: {done.complaint.replace(place, ETC)}",
                    "nginx -t",
                    "The door runs as before",
                )
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _run(self, action: str, wanted: str) -> None:
        if action == "restarted":
            self.node.service(Wanted(UNIT, state="stopped")).run()
        if action in ("started", "restarted", "none"):
            self.node.service(Wanted(UNIT, enabled=True)).run()
        if action == "reloaded":
            self.machine.command("systemctl", "daemon-reload", step="reading the units")
            self.machine.command("systemctl", "reload", UNIT, step="reloading the door")
        self._await(wanted)

    def _await(self, wanted: str) -> None:
        deadline = self.machine.clock() + RELOAD_TIMEOUT_S
        while (running := self.node.ask(nginx.STATUS_SOCKET)) != wanted:
            if self.machine.clock() > deadline:
                journal = self.machine.runner(
                    ["journalctl", "-u", UNIT, "-n", "8", "--no-pager", "-o", "cat", "-q"]
                ).out.strip()
                raise SparkError(
                    f"nginx runs {running or 'no configuration'} instead of {wanted} after {RELOAD_TIMEOUT_S:g} s",
                    UNIT,
                    f"The last lines of its journal:\n{journal or '(nothing)'}",
                )
            self.machine.sleep(POLL_S)

    def _standing(self) -> list[File]:
        """The files of the door as they are now, to come back to."""
        found = []
        for path in managed_files.originals(SET, root=self.machine.root):
            state = managed_files.read_state(path, root=self.machine.root)
            if state.kind == "file":
                owner, group = str(state.uid), str(state.gid)
                found.append(File(path, state.content, owner=owner, group=group, mode=state.mode, secret=True))
        return found

    def _take_back(self, before: Sequence[File], action: str) -> None:
        managed_files.apply_set(SET, before, root=self.machine.root)
        self.machine.runner(["systemctl", "daemon-reload"])
        if before:
            verb = "reload-or-restart" if action == "reloaded" else "restart"
            self.machine.runner(["systemctl", verb, UNIT])
        else:
            self.machine.runner(["systemctl", "disable", "--now", UNIT])
            self.machine.runner(["systemctl", "reset-failed", UNIT])
