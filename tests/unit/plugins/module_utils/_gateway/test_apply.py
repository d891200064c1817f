# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The gateway on a node: what is written, when it is reloaded, and the way back when it does not come up."""

from __future__ import annotations

import dataclasses
import getpass
import json
import re
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls, paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.listening import Listener
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import apply as gateway_apply
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import status as gateway_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.apply import Place
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.settings import Engine, Key, Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._gateway import render
from fake_machine import FakeFiles
from root_or_not import root_or_not

assert root_or_not  # a fixture

PLAIN = Settings(("enP7s7",), (Engine("chat", "tiny"),), (Key("alice"),), tls="off")
SEVERAL = (*PLAIN.engines, Engine("embedding", "bge", "10.10.0.2", 8001, key_file="/etc/sparkmatrix/other-key.env"))
BOB = Key("bob", "key-that-bob-gave")
UNIT = f"/etc/systemd/system/{names.UNIT}"
LINKS = [{"ifname": "enP7s7", "addr_info": [{"local": "192.0.2.1", "scope": "global"}]}]


class Fake(FakeFiles):
    """A node whose nginx reads its files when it is started or reloaded, as the real one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.active = False
        self.enabled = False
        self.title = ""
        self.running = ""
        self.deaf = False  # nginx keeps what it has, as when it cannot bind
        self.refuse: dict[str, str] = {}
        self.log: list[str] = []
        self.taken: list[dict[str, Any]] = []
        self.now = 0.0
        self.write(names.NGINX, "")
        self.relaying = ""  # the mark of what the relay has read
        self.write(paths.ENGINE_KEY, 'VLLM_API_KEY="key-of-the-engine-123"\n')

    def load(self) -> None:
        if not self.deaf:
            source = re.search(r"-m 0400 (\S+) \S+tls\.crt", self.read(UNIT))
            if source:
                self.write(gateway_apply.LOADED, self.read(source[1]))
            found = re.search(r"return 200 (\w+);", self.read(gateway_apply.CONFIGURATION))
            self.running = found[1] if found else ""

    def reads(self) -> None:
        """As the relay does when it is started or reloaded."""
        self.relaying = json.loads(self.read(names.RELAY_CONFIG))["mark"]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self, argv: Sequence[str]) -> Completed:
        line = " ".join(argv)
        self.log.append(line)
        for part, message in self.refuse.items():
            if part in line:
                return Completed(1, "", message)
        if line.startswith(f"{names.NGINX} -t"):
            conf = Path(argv[argv.index("-c") + 1]).read_text()
            absent = [
                path for path in re.findall(r"ssl_certificate(?:_key)? ([^;]+);", conf) if not Path(path).exists()
            ]
            return Completed(1, "", f"emerg: cannot load {absent}") if absent else Completed(0)
        if argv[0] == "ip":
            return Completed(0, json.dumps(LINKS))
        if argv[0] == "openssl":
            return self.openssl(list(argv))
        if argv[:2] == ["systemctl", "show"] and names.RELAY_UNITS[1] in line:
            state, pid = ("active", 78) if self.relaying else ("inactive", 0)
            return Completed(0, f"LoadState=loaded\nActiveState={state}\nMainPID={pid}\nUnitFileState=static\n")
        if line.startswith("systemctl stop") and names.RELAY_UNITS[1] in line:
            self.relaying = ""
        if line in (f"systemctl reload {names.RELAY_UNITS[1]}", f"systemctl restart {names.RELAY_UNITS[1]}"):
            self.reads()
        if argv[:2] == ["systemctl", "show"] or line.startswith("systemctl show"):
            state = "active" if self.active else "inactive"
            load = "loaded" if self.path(UNIT).exists() else "not-found"
            pid = 77 if self.active else 0
            file = "enabled" if self.enabled else "disabled"
            return Completed(0, f"LoadState={load}\nActiveState={state}\nMainPID={pid}\nUnitFileState={file}\n")
        if line == f"systemctl reload {names.UNIT}":
            self.load()
        if line == f"systemctl disable --now {names.UNIT}":
            self.active = self.enabled = False
            self.running = ""
        return Completed(0)

    def openssl(self, argv: list[str]) -> Completed:
        if "-out" in argv:
            Path(argv[argv.index("-out") + 1]).write_text("certificate\n")
            Path(argv[argv.index("-keyout") + 1]).write_text("private key\n")
        return Completed(0)

    def service(self, wanted: Any, _machine: Any) -> Any:
        fake = self

        class Runs:
            def run(self) -> None:
                if wanted.name == names.RELAY_UNITS[1]:
                    fake.log.append("service relay")
                    fake.write("/proc/78/environ", f"SPARKMATRIX_CONFIG_HASH={wanted.config_hash}\0")
                    fake.reads()
                    return
                fake.log.append(f"service {wanted.state}")
                if wanted.state == "stopped":
                    fake.active, fake.running = False, ""
                    return
                if "start" in fake.refuse:
                    raise SparkError(fake.refuse["start"], names.UNIT)
                fake.active = fake.enabled = True
                mark = gateway_apply.unit_mark(fake.read(UNIT))
                fake.write("/proc/77/cmdline", f"nginx: master process SPARKMATRIX_UNIT={mark}")
                fake.load()

        return Runs()

    def node(self) -> gateway_apply.Node:
        machine = Machine(str(self.root), self, self.sleep, lambda: self.now)
        return gateway_apply.Node(
            machine,
            lambda _path: self.running,
            lambda: self.relaying,
            self.service,
            lambda _machine, _ports: self.taken,
        )

    def apply(self, check: bool = False, **changes: Any) -> gateway_apply.Answer:
        settings = dataclasses.replace(PLAIN, **changes)
        return gateway_apply.apply(self.node(), settings, render.files(settings), check_mode=check)

    def tree(self) -> dict[str, str]:
        found = (path for path in self.root.rglob("*") if path.is_file())
        names = {str(path.relative_to(self.root)): path for path in found}
        return {name: path.read_text() for name, path in names.items() if name.startswith("etc/")}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.setattr(names, "USER", getpass.getuser())
    monkeypatch.setattr(names, "RELAY_USER", getpass.getuser())
    return Fake(tmp_path / "root")


def test_from_nothing_to_a_gateway_and_back(fake: Fake) -> None:
    before = fake.tree()
    told = fake.apply(check=True)
    assert told.changed and told.action == "started" and fake.tree() == before
    done = fake.apply()
    assert done.action == "started" and done.endpoints == ["http://192.0.2.1:8443/v1"]
    assert done.ports == [Place("127.0.0.1", 8081), Place("192.0.2.1", 8443)]
    assert done.firewall == ["allow to 192.0.2.1 port 8443 proto tcp"] and "without TLS" in done.warnings[0]
    key = fake.read(f"{names.ETC}/keys/alice.key").strip()
    assert len(key) >= 32 and key in fake.read(f"{names.ETC}/keys.conf")
    relay = json.loads(fake.read(names.RELAY_CONFIG))
    assert relay["engines"][0]["key"] == "key-of-the-engine-123"
    assert fake.path(names.RELAY_CONFIG).stat().st_mode & 0o777 == 0o600
    assert fake.path(f"{names.ETC}/keys/alice.key").stat().st_mode & 0o777 == 0o600
    assert key not in str(done.diff) and "key-of-the-engine" not in str(done.diff)
    again = fake.apply()
    assert not again.changed and again.action == "none" and not again.diff
    assert not fake.apply(check=True).changed
    assert gateway_apply.remove(fake.node(), check_mode=True).changed
    assert gateway_apply.remove(fake.node()).action == "stopped"
    assert fake.tree() == before and not fake.active
    assert not gateway_apply.remove(fake.node()).changed


def test_keys_come_and_go_with_a_reload(fake: Fake) -> None:
    fake.apply()
    alice = fake.read(f"{names.ETC}/keys/alice.key")
    done = fake.apply(keys=(Key("alice"), BOB))
    assert done.action == "reloaded" and fake.read(f"{names.ETC}/keys/alice.key") == alice
    assert fake.apply(keys=(BOB,)).action == "reloaded"
    assert not fake.path(f"{names.ETC}/keys/alice.key").exists()
    assert alice.strip() not in fake.read(f"{names.ETC}/keys.conf")
    with pytest.raises(SparkError, match="the one that another name has already"):
        fake.apply(keys=(BOB, Key("eve", fake.read(f"{names.ETC}/keys/probe.key").strip())))


def test_a_run_that_died_before_the_reload_heals(fake: Fake) -> None:
    fake.apply()
    fake.running = "older"
    assert fake.apply().action == "reloaded"


def test_a_changed_unit_needs_a_restart(fake: Fake) -> None:
    fake.apply()
    assert fake.apply(port=443).action == "restarted"
    assert fake.apply(port=443).action == "none"
    row = "7f00-7f01 r-xp 00000000 08:01 1234 {}\n"
    for mapped, action in (("/dev/zero (deleted)", "none"), (f"{names.NGINX} (deleted)", "restarted"),
                           ("/usr/lib/aarch64-linux-gnu/libssl.so.3 (deleted)", "restarted")):  # fmt: skip
        fake.write("/proc/77/maps", row.format(mapped))
        assert fake.apply(check=True, port=443).action == action
    fake.path("/proc/77/maps").unlink()
    assert fake.log.count("service stopped") == 1
    assert fake.apply(port=443).action == "none"


def test_a_new_key_of_the_engine_is_taken_up(fake: Fake) -> None:
    fake.apply()
    fake.write(paths.ENGINE_KEY, 'VLLM_API_KEY="another-key-of-the-engine"\n')
    assert fake.apply().action == "reloaded"


def test_a_second_engine_comes_and_goes(fake: Fake) -> None:
    fake.apply()
    one = fake.tree()
    with pytest.raises(SparkError, match=r"other-key\.env"):
        fake.apply(engines=SEVERAL)
    assert fake.tree() == one
    fake.write(SEVERAL[1].key_file, 'VLLM_API_KEY="key-of-the-other-engine"\n')
    assert fake.apply(engines=SEVERAL).action == "reloaded"
    relay = json.loads(fake.read(names.RELAY_CONFIG))
    assert [(one["model"], one["key"]) for one in relay["engines"]][1] == ("bge", "key-of-the-other-engine")
    assert fake.relaying == relay["mark"]
    assert not fake.apply(engines=SEVERAL).changed
    renamed = (PLAIN.engines[0], dataclasses.replace(SEVERAL[1], model="bge-2"))
    assert fake.apply(engines=renamed).action == "reloaded"  # only the relay's
    assert f"systemctl reload {names.UNIT}" not in fake.log
    assert fake.apply().action == "reloaded"
    fake.path(SEVERAL[1].key_file).unlink()
    assert fake.tree() == one


def test_an_engine_that_asks_for_no_key(fake: Fake) -> None:
    fake.path(paths.ENGINE_KEY).unlink()
    fake.apply(engines=(Engine("chat", "tiny", key=False),))
    assert json.loads(fake.read(names.RELAY_CONFIG))["engines"][0]["key"] == ""


def test_by_what_clients_are_kept_apart_is_made_once(fake: Fake) -> None:
    one = dataclasses.replace(PLAIN.engines[0], salted=("/v1/completions",), named=("other",))
    fake.apply()
    fake.apply(check=True, engines=(one,))
    assert not fake.path(names.SALT).exists()
    fake.apply(engines=(one,))
    salt = json.loads(fake.read(names.RELAY_CONFIG))["salt"]
    assert len(salt) >= 43 and salt in fake.read(names.SALT)
    assert fake.path(names.SALT).stat().st_mode & 0o777 == 0o600
    assert not fake.apply(engines=(one,)).changed
    assert json.loads(fake.read(names.RELAY_CONFIG))["salt"] == salt
    assert json.loads(fake.read(names.DESCRIPTION))["models"] == ["tiny", "other"]  # whose keepers come in by it
    fake.apply()
    assert not fake.path(names.SALT).exists() and not json.loads(fake.read(names.RELAY_CONFIG))["salt"]


def test_the_relay_heals_and_is_started_anew_with_another_program(fake: Fake) -> None:
    fake.apply()
    before, fake.relaying = fake.relaying, "older"
    assert fake.apply().action == "reloaded" and fake.relaying == before
    fake.write("/proc/78/environ", "SPARKMATRIX_CONFIG_HASH=older\0")
    assert fake.apply(check=True).action == "restarted"
    assert fake.apply().action == "restarted" and not fake.apply().changed
    fake.relaying = ""
    assert fake.apply().action == "started"
    fake.refuse = {f"reload {names.RELAY_UNITS[1]}": "it died"}
    tree = fake.tree()
    with pytest.raises(SparkError, match="what was there before is back"):
        fake.apply(hold=0)
    assert fake.tree() == tree


def test_what_is_missing_is_named(fake: Fake) -> None:
    fake.path(paths.ENGINE_KEY).unlink()
    assert fake.apply(check=True).changed
    with pytest.raises(SparkError, match="Run the engine layer"):
        fake.apply()
    fake.path(names.NGINX).unlink()
    with pytest.raises(SparkError, match="nginx is not installed"):
        fake.apply()


@pytest.mark.parametrize(
    ("listener", "refused"),
    [
        (Listener(8443, "0.0.0.0", None, "caddy", "caddy.service"), True),
        (Listener(8081, "127.0.0.1", None, None, None), True),
        (Listener(8443, "0.0.0.0", None, "nginx", names.UNIT), False),
        (Listener(8081, "192.0.2.1", None, "caddy", None), False),
    ],
)
def test_a_port_of_somebody_else(fake: Fake, listener: dict[str, Any], refused: bool) -> None:
    fake.taken = [listener]
    if not refused:
        assert fake.apply().changed
        return
    with pytest.raises(SparkError, match=r"is taken by (caddy of caddy\.service|an unknown process)"):
        fake.apply()
    assert not fake.active


def test_a_configuration_that_nginx_does_not_accept(fake: Fake) -> None:
    fake.apply()
    before = fake.tree()
    fake.refuse = {"/usr/sbin/nginx -t": "emerg: no"}
    with pytest.raises(SparkError, match="nginx does not accept the configuration: emerg: no"):
        fake.apply(requests_per_minute=7)
    assert fake.tree() == before


@pytest.mark.parametrize(
    ("change", "verb"), [({"requests_per_minute": 7}, "reload-or-restart"), ({"port": 443}, "restart")]
)
def test_a_configuration_that_does_not_come_up_is_taken_back(fake: Fake, change: dict[str, int], verb: str) -> None:
    fake.apply()
    before = fake.tree()
    fake.deaf = True
    with pytest.raises(SparkError, match="what was there before is back"):
        fake.apply(**change)
    assert fake.tree() == before and fake.log[-1] == f"systemctl {verb} {names.UNIT}"


def test_a_first_start_that_fails_leaves_nothing(fake: Fake) -> None:
    before = fake.tree()
    fake.refuse = {"start": "it died"}
    with pytest.raises(SparkError, match="it died"):
        fake.apply()
    assert fake.tree() == before


def test_an_authority_of_our_own(fake: Fake) -> None:
    assert fake.apply(check=True, tls="own_ca").changed
    done = fake.apply(tls="own_ca", tls_names=("api.lab",))
    assert done.endpoints == ["https://api.lab:8443/v1", "https://192.0.2.1:8443/v1"] and not done.warnings
    assert "api.lab" in fake.read(f"{names.ETC}/tls/names").split()
    assert fake.path(f"{names.ETC}/tls/ca.key").stat().st_mode & 0o777 == 0o600
    made = [line for line in fake.log if line.startswith("openssl req")]
    assert len(made) == 2
    assert not fake.apply(tls="own_ca", tls_names=("api.lab",)).changed
    # Another name: a new certificate of the same authority.
    assert fake.apply(tls="own_ca", tls_names=("other.lab",)).action == "reloaded"
    assert len([line for line in fake.log if line.startswith("openssl req")]) == 3
    fake.refuse = {"-checkend": "it expires"}
    assert fake.apply(check=True, tls="own_ca", tls_names=("other.lab",)).changed
    fake.apply(tls="own_ca", tls_names=("other.lab",))
    assert len([line for line in fake.log if line.startswith("openssl req")]) == 4


FILES = {"tls": "files", "tls_certificate": "/etc/x/c.pem", "tls_certificate_key": "/etc/x/k.pem"}


def test_a_certificate_of_somebody_else_is_watched(fake: Fake) -> None:
    with pytest.raises(SparkError, match=r"/etc/x/c\.pem: the certificate is not there"):
        fake.apply(**FILES)
    fake.write("/etc/x/c.pem", "c")
    fake.write("/etc/x/k.pem", "k")
    fake.apply(**FILES)
    watch = f"/etc/systemd/system/{names.WATCH}.path"
    assert f"PartOf={names.UNIT}" in fake.read(watch) and f"{names.WATCH}.path" in fake.read(UNIT)
    assert not fake.apply(**FILES).changed
    assert fake.apply().action == "restarted"  # which stops the watch, too
    assert not fake.path(watch).exists() and names.WATCH not in fake.read(UNIT)


def test_a_certificate_that_changed_while_nobody_watched(fake: Fake) -> None:
    fake.write("/etc/x/c.pem", "c")
    fake.write("/etc/x/k.pem", "k")
    fake.apply(**FILES)
    fake.write("/etc/x/c.pem", "another")
    assert fake.apply(check=True, **FILES).action == "reloaded"
    assert fake.apply(**FILES).action == "reloaded" and not fake.apply(**FILES).changed


STUB = "Active connections: 3 \nserver accepts handled requests\n 16 16 31 \nReading: 0 Writing: 1 Waiting: 2 \n"


@pytest.mark.parametrize(
    ("said", "ask", "none", "found"),
    [
        ("abc123", gateway_status.configuration, "", "abc123"),
        (STUB, gateway_status.connections, None, {"reading": 0, "writing": 1, "waiting": 2, "requests": 31}),
        ("<html>404 Not Found", gateway_status.connections, None, {}),  # one of an earlier release
    ],
)
def test_the_running_gateway_is_asked_over_its_socket(
    tmp_path: Path, said: str, ask: Any, none: Any, found: Any
) -> None:
    place = str(tmp_path / "s")
    assert ask(place) == none
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen(1)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())

        thread = threading.Thread(target=answer)
        thread.start()
        assert ask(place) == found
        thread.join()


def test_the_call(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    node = fake.node()
    monkeypatch.setattr(gateway_apply, "Node", lambda: node)
    settings = {"listen": ["enP7s7"], "engines": [{"name": "chat", "model": "tiny"}], "tls": "off"}
    settings["keys"] = [{"name": "alice"}, {"name": "bob"}]
    asked = {"settings": settings, "rendered": render.files(PLAIN), "keys": {"bob": BOB.key}}
    done = calls.run("gateway", asked, check=False)
    assert done["changed"] and done["action"] == "started"
    assert fake.read(f"{names.ETC}/keys/bob.key").strip() == BOB.key
    assert not calls.run("gateway", asked, check=False)["changed"]
    with pytest.raises(SparkError, match="interface eth7 is not there"):
        calls.run("gateway", {**asked, "settings": {**settings, "listen": ["eth7"]}}, check=True)
    assert calls.run("gateway", {"state": "absent"}, check=True)["sets"] == ["gateway"] and fake.active
    assert calls.run("gateway", {"state": "absent"}, check=False)["action"] == "stopped"


def test_the_description_is_one_that_the_probe_reads(fake: Fake) -> None:
    fake.apply(tls="own_ca")
    document = probe.read_config(str(fake.path(names.DESCRIPTION)))
    assert document.endpoints == ("https://192.0.2.1:8443/v1",)
    assert (document.host, document.port, document.model) == ("127.0.0.1", 8081, "tiny")
    assert (document.models, document.task) == (("tiny",), "generate")
    assert fake.path(document.key_file).exists()
