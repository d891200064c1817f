# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Put the gateway on this node: keys, certificate, rendered files, tested before they replace what runs.

Whether a reload is due is asked of the running nginx, which answers with the hash of its configuration on a socket that
only root opens: a run that died between "files written" and "reloaded" heals on the next one. A configuration that does
not come up is taken back.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document, json_text, listening, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.config_hash import config_hash
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import (
    Address,
    Diff,
    Flag,
    Port,
    Url,
    Word,
    Words,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine, alone
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import keys as gateway_keys
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import listeners as gateway_listeners
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import names, own_ca
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import status as gateway_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.listeners import Listener
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.names import ETC, LOADED, RUN, SET, UNIT
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.relay_config import Config
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Engine, Key, Settings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import secret as managed_secret
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import File, Result
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import (
    Service,
    Wanted,
    hash_of,
    parse_environ,
)

WHAT = "the gateway"
LOCK = f"{paths.RUN}/gateway.lock"
# What nginx includes from the node itself: where it listens, and the hash of all that it reads.
LISTEN = f"{ETC}/listen.conf"
CONFIGURATION = f"{ETC}/configuration.conf"
RELAY = names.RELAY_UNIT
RELOAD_TIMEOUT_S = 15.0
POLL_S = 0.1


@dataclass(frozen=True)
class Request:
    """``rendered``: files by path, which the controller has made of the settings."""

    state: str = field(default="present", metadata=document.one_of("present", "absent"))
    settings: Settings = field(default_factory=Settings)
    rendered: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)  # those that were given, by name of the client


@dataclass(frozen=True)
class Place:
    address: Address
    port: Port


@dataclass
class Answer:
    """What was done, or in check mode would be."""

    changed: Flag = False
    action: Word = "none"  # none, started, restarted, reloaded, stopped
    diff: Diff = field(default_factory=list)
    warnings: list[Words] = field(default_factory=list)
    endpoints: list[Url] = field(default_factory=list)
    firewall: list[Words] = field(default_factory=list)
    ports: list[Place] = field(default_factory=list)  # where it listens
    sets: list[Word] = field(default_factory=list)  # of names.SETS, before


@dataclass
class Node:
    """This node; tests replace what asks the running system."""

    machine: Machine = field(default_factory=Machine)
    ask: Callable[[str], str] = gateway_status.configuration
    relay: Callable[[], str] = lambda: (gateway_status.relay() or gateway_status.Relayed()).configuration
    service: Callable[[Wanted, Machine], Any] = Service
    listening: Callable[[Machine, Sequence[int]], Sequence[listening.Listener] | None] = listening.listening


def ensure(request: Request, check: bool) -> Answer:
    """The gateway runs as it was rendered, or is taken away."""
    if request.state == "absent":
        return remove(Node(), check_mode=check)
    keys = tuple(Key(key.name, request.keys.get(key.name, "")) for key in request.settings.keys)
    return apply(Node(), replace(request.settings, keys=keys), request.rendered, check_mode=check)


def _mark_of(files: Sequence[File]) -> str:
    """The hash that is in the relay's configuration."""
    content = next(file.content for file in files if file.path == names.RELAY_CONFIG)
    return str(json_text.mapping(content or b"")["mark"])


def unit_mark(text: str) -> str:
    """The hash in a unit or in the title of a process."""
    found = re.search(r"SPARKMATRIX_UNIT=([0-9a-f]{12})", text)
    return found[1] if found else ""


def apply(node: Node, settings: Settings, rendered: Mapping[str, str], *, check_mode: bool = False) -> Answer:
    """Have the gateway of ``settings`` run, with the files that were rendered of them. Raises :class:`SparkError`; then
    what ran before runs."""
    with alone(node.machine, WHAT, LOCK):
        return _Gateway(node, settings, rendered, check_mode).apply()


def remove(node: Node, *, check_mode: bool = False) -> Answer:
    """Stop the gateway and take its files and keys away."""
    made = Answer()
    with alone(node.machine, WHAT, LOCK):
        made.sets = [name for name in managed_files.names(root=node.machine.root) if name in names.SETS]
        state = node.machine.unit(UNIT)
        if state.active != "inactive" or state.is_enabled:
            made.changed, made.action = True, "stopped"
            if not check_mode:
                node.machine.command("systemctl", "disable", "--now", UNIT, step="stopping the gateway")
        if names.SET in made.sets and not check_mode:
            node.machine.runner(["systemctl", "stop", *names.RELAY_UNITS])
        result = managed_files.remove_set(SET, check_mode=check_mode, root=node.machine.root)
        made.changed |= result.changed
        made.diff += result.diff
        if result.changed and not check_mode:
            node.machine.command("systemctl", "daemon-reload", step="forgetting the unit")
            node.machine.runner(["systemctl", "reset-failed", UNIT, *names.RELAY_UNITS])
    return made


class _Gateway:
    def __init__(self, node: Node, settings: Settings, rendered: Mapping[str, str], check_mode: bool) -> None:
        self.node = node
        self.machine = node.machine
        self.settings = settings
        self.rendered = rendered
        self.check_mode = check_mode

    def apply(self) -> Answer:
        self._refuse_missing_programs()
        listeners = gateway_listeners.resolve(self.settings, self._interfaces())
        self._refuse_taken_ports(listeners)
        files = self._files(listeners)
        wanted = self._hash(files)
        files.append(self._own(CONFIGURATION, f"return 200 {wanted};\n", 0o640))
        made = Answer(
            warnings=gateway_listeners.warnings(self.settings, listeners),
            endpoints=gateway_listeners.endpoints(self.settings, listeners, socket.gethostname()),
            firewall=gateway_listeners.firewall(listeners, self.settings.allow_from),
            ports=[Place(item.address, item.port) for item in listeners],
        )
        told = managed_files.apply_set(SET, files, check_mode=True, root=self.machine.root)
        made.warnings += self._new_authority(files)
        relay, action = self._relay_due(files), self._due(wanted)
        made.action = relay if action == "none" else action
        made.diff, made.changed = told.diff, told.changed or made.action != "none"
        if made.changed and not self.check_mode:
            made.diff = self._place(files, wanted, action, relay, tested=told.changed).diff
        return made

    def _place(self, files: Sequence[File], wanted: str, action: str, relay: str, *, tested: bool) -> Result:
        """Have nginx and relay run these files; where they do not, whatever this run has placed is taken back."""
        if tested:
            self._test(files)
        before = self._standing()
        try:
            result = managed_files.apply_set(SET, files, root=self.machine.root)
            self._run_relay(relay, _mark_of(files))
            self._run(action, wanted)
        except SparkError as exc:
            self._take_back(before, action)
            raise SparkError(
                f"the new configuration did not come up, and what was there before is back: {exc}", UNIT
            ) from exc
        return result

    # -- reading

    def _refuse_missing_programs(self) -> None:
        if self.check_mode:
            return
        if not Path(self.machine.real(names.NGINX)).exists():
            raise SparkError("nginx is not installed", names.NGINX, "Install it: apt-get install nginx")

    def _interfaces(self) -> dict[str, list[str]]:
        text = self.machine.command("ip", "-json", "address", "show", step="reading the addresses").out
        with json_text.Reading("what ip -json printed cannot be read", "ip address", "Install iproute2"):
            return gateway_listeners.interfaces(json_text.mappings(text))

    def _refuse_taken_ports(self, listeners: Sequence[Listener]) -> None:
        """Somebody else's listener would keep ours from coming up, after what ran before has been replaced."""
        ports = {item.port for item in listeners}
        taken: dict[str, str] = {}
        for listener in self.node.listening(self.machine, sorted(ports)) or ():
            if listener.unit == UNIT:
                continue
            for item in listeners:
                if item.port == listener.port and gateway_listeners.collide(listener.address, item.address):
                    of = f" of {listener.unit}" if listener.unit else ""
                    who = f"{listener.process or 'an unknown process'}{of} at {listener.address}"
                    taken.setdefault(item.where, f"{item.where} is taken by {who}")
        if taken:
            raise SparkError(
                "; ".join(taken.values()),
                "gateway_listen",
                "Stop it, or choose another gateway_port or gateway_local_port; it stays as it is",
            )

    def _engine_key(self, engine: Engine) -> str:
        if not engine.key or (self.check_mode and self.machine.read(engine.key_file) is None):
            return ""
        return probe.read_key(self.machine.real(engine.key_file))

    # -- what is wanted

    def _own(self, path: str, text: str, mode: int = 0o600) -> File:
        """A file that nginx reads as its own user."""
        secret = mode == 0o600
        return File(path, text.encode(), owner=names.USER, group=names.USER, mode=mode, secret=secret)

    def _files(self, listeners: Sequence[Listener]) -> list[File]:
        settings = self.settings
        keys = gateway_keys.find(self.machine, settings.keys, check_mode=self.check_mode)
        salt = self._salt()
        files = [
            self._own(path, text, 0o640) if path.startswith(f"{ETC}/") else File(path, text.encode())
            for path, text in self.rendered.items()
            if path != names.RELAY_CONFIG
        ]
        files += [
            self._own(LISTEN, gateway_listeners.conf(listeners), 0o640),
            self._own(f"{ETC}/keys.conf", gateway_keys.clients_conf(keys)),
            self._relay_config(salt),
            File(names.DESCRIPTION, self._description(listeners).encode()),
        ]
        own = {names.SALT: salt, **{gateway_keys.path(name): key for name, key in keys.items()}}
        files += [
            File(path, managed_secret.render(key).encode(), mode=0o600, secret=True) for path, key in own.items() if key
        ]
        if settings.tls == "own_ca":
            covered = own_ca.covered(settings, listeners, socket.gethostname())
            files += own_ca.files(self.machine, covered, check_mode=self.check_mode)
        return files

    def _salt(self) -> str:
        """Made once: with another one nothing that is kept would be found again."""
        if not any(engine.salted for engine in self.settings.engines):
            return ""
        own = managed_secret.parse(self.machine.read(names.SALT) or "")
        return own or ("" if self.check_mode else secrets.token_urlsafe(gateway_keys.BYTES))

    def _relay_config(self, salt: str) -> File:
        """As it was rendered, with the keys of the engines, and a hash by which the relay tells what it has read."""
        made = document.load(Config, json_text.mapping(self.rendered[names.RELAY_CONFIG]))
        keys = {engine.name: self._engine_key(engine) for engine in self.settings.engines}
        made = replace(made, engines=tuple(replace(one, key=keys[one.name]) for one in made.engines), salt=salt)
        text = json.dumps(document.plain(replace(made, mark=config_hash(json.dumps(document.plain(made))))), indent=1)
        user = names.RELAY_USER
        return File(names.RELAY_CONFIG, f"{text}\n".encode(), owner=user, group=user, mode=0o600, secret=True)

    def _new_authority(self, files: Sequence[File]) -> list[str]:
        path = f"{ETC}/tls/ca.crt"
        before, made = self.machine.read(path), next((file.content for file in files if file.path == path), None)
        if not before or made is None or made.decode() == before:
            return []
        return [
            f"The authority of the gateway is a new one: the old one may not sign for a name or an address of the"
            f" gateway, or its files were damaged. Clients have to trust the new {path}."
        ]

    def _description(self, listeners: Sequence[Listener]) -> str:
        """For ``sparkmatrix-node probe --config`` and the keeper, and where it is for people."""
        first = self.settings.engines[0]
        document = {
            "host": gateway_listeners.LOOPBACK,
            "port": self.settings.local_port,
            "model": first.model,
            "task": first.task,
            "models": [model for engine in self.settings.engines for model in (engine.model, *engine.named)],
            "key_file": gateway_keys.path(names.PROBE),
            "endpoints": gateway_listeners.endpoints(self.settings, listeners, socket.gethostname()),
        }
        return json.dumps(document, indent=4, sort_keys=True) + "\n"

    def _hash(self, files: Sequence[File]) -> str:
        """Changes with everything that nginx reads. A certificate of somebody else is compared as a file."""
        others = (f"{ETC}/keys/", names.RELAY_CONFIG, names.SALT)
        read = [file for file in files if file.path.startswith(f"{ETC}/") and not file.path.startswith(others)]
        texts = sorted((file.path, (file.content or b"").decode()) for file in read)
        return config_hash(*(text for pair in texts for text in pair))

    # -- acting

    def _due(self, wanted: str) -> str:
        state = self.machine.unit(UNIT)
        if not state.running:
            return "started"
        title = self.machine.read(f"/proc/{state.main_pid}/cmdline") or ""
        if unit_mark(title) != unit_mark(self.rendered[f"{paths.UNITS}/{UNIT}"]) or not state.is_enabled:
            return "restarted"
        # After an update of nginx or of a library that it has loaded: a reload keeps the old program.
        maps = (self.machine.read(f"/proc/{state.main_pid}/maps") or "").splitlines()
        if any(line.endswith(" (deleted)") and (names.NGINX in line or ".so" in line) for line in maps):
            return "restarted"
        # A certificate of somebody else may have changed while nobody watched it.
        certificate = self.settings.tls_certificate
        fresh = self.settings.tls != "files" or self.machine.read(certificate) == self.machine.read(LOADED)
        return "none" if fresh and self.node.ask(names.STATUS_SOCKET) == wanted else "reloaded"

    def _relay_due(self, files: Sequence[File]) -> str:
        """As :meth:`_due`: a relay of another unit or program is started anew, else it reads its file again."""
        state = self.machine.unit(RELAY)
        if not state.running:
            return "started"
        ran = parse_environ(self.machine.content(f"/proc/{state.main_pid}/environ") or b"")
        if ran != hash_of(self.rendered[f"{paths.UNITS}/{RELAY}"]):
            return "restarted"
        return "none" if self.node.relay() == _mark_of(files) else "reloaded"

    def _run_relay(self, action: str, mark: str) -> None:
        if action in ("started", "restarted"):
            unit = hash_of(self.rendered[f"{paths.UNITS}/{RELAY}"])
            self.node.service(Wanted(RELAY, config_hash=unit), self.machine).run()
        elif action == "reloaded":
            self.machine.command("systemctl", "reload", RELAY, step="reloading the relay")
        self._until(self.node.relay, mark, RELAY, "the relay")

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
            if self.settings.tls != "off":
                for source, name in zip(self.settings.certificate_paths, ("tls.crt", "tls.key")):
                    inside = Path(place, source[len(ETC) + 1 :]) if self.settings.tls == "own_ca" else None
                    text = inside.read_text() if inside else self.machine.read(source)
                    if text is None:
                        raise SparkError("the certificate is not there", source, "Put it there, readable for root")
                    Path(place, name).write_text(text)
            done = self.machine.runner([names.NGINX, "-t", "-q", "-c", f"{place}/nginx.conf", "-e", "stderr"])
            if done.rc != 0:
                raise SparkError(
                    f"nginx does not accept the configuration: {done.complaint.replace(place, ETC)}",
                    "nginx -t",
                    "The gateway runs as before",
                )
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _run(self, action: str, wanted: str) -> None:
        if action == "restarted":
            self.node.service(Wanted(UNIT, state="stopped"), self.machine).run()
        if action in ("started", "restarted", "none"):
            self.node.service(Wanted(UNIT, enabled=True), self.machine).run()
        if action == "reloaded":
            self.machine.command("systemctl", "daemon-reload", step="reading the units")
            self.machine.command("systemctl", "reload", UNIT, step="reloading the gateway")
        self._until(lambda: self.node.ask(names.STATUS_SOCKET), wanted, UNIT, "nginx")

    def _until(self, ask: Callable[[], str], wanted: str, unit: str, who: str) -> None:
        deadline = self.machine.clock() + RELOAD_TIMEOUT_S
        while (running := ask()) != wanted:
            if self.machine.clock() > deadline:
                journal = self.machine.runner(
                    ["journalctl", "-u", unit, "-n", "8", "--no-pager", "-o", "cat", "-q"]
                ).out.strip()
                raise SparkError(
                    f"{who} runs {running or 'no configuration'} instead of {wanted} after {RELOAD_TIMEOUT_S:g} s",
                    unit,
                    f"The last lines of its journal:\n{journal or '(nothing)'}",
                )
            self.machine.sleep(POLL_S)

    def _standing(self) -> list[File]:
        """The files of the gateway as they are now, to come back to."""
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
        if any(file.path == f"{paths.UNITS}/{RELAY}" for file in before):
            self.machine.runner(["systemctl", "restart", RELAY])
        else:
            self.machine.runner(["systemctl", "stop", *names.RELAY_UNITS])
        if before:
            verb = "reload-or-restart" if action == "reloaded" else "restart"
            self.machine.runner(["systemctl", verb, UNIT])
        else:
            self.machine.runner(["systemctl", "disable", "--now", UNIT])
            self.machine.runner(["systemctl", "reset-failed", UNIT])
