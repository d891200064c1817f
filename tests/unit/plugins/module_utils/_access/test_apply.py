# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""sshd and the firewall of one node: wherever a change is cut off, nobody is locked out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import apply as access_apply
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import node as access_node
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import rollback, sshd
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.apply import (
    Outcome,
    Wanted,
    give_back,
    layer_rules,
    marks,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.rollback import GUARD, confirm, restore
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.paths import NODE_PROGRAM as TOOL
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Member
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import ufw
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import forced_command
from fake_access import SSHD_CONFIG, USER_RULES, FakeAccess
from fake_machine import Killed
from module_runner import run_program
from root_or_not import root_or_not

assert root_or_not  # a fixture

FIRST = ("192.0.2.9", "50000", "192.0.2.1", "22")
FRESH = ("192.0.2.9", "50001", "192.0.2.1", "22")
SSHD = {"MaxAuthTries": "10", "PasswordAuthentication": "no"}
RULES = {"ray": ["allow from 192.0.2.2"], "fabric": ["allow in on enp1s0f0np0 from 192.168.100.11"]}
ALL = Wanted(sshd=SSHD, firewall=True, rules=RULES, rollback_seconds=60)
OPS = "allow from 10.9.9.9 to any port 9100 proto tcp comment 'monitoring (ops)'"

PENDING = GUARD.marker


@pytest.fixture
def node(tmp_path: Path) -> FakeAccess:
    return FakeAccess(tmp_path / "root")


def reconcile(machine: Any, wanted: Wanted, connection: Any = FIRST, *, check_mode: bool = False) -> Outcome:
    return access_apply.reconcile(machine, wanted, connection, check_mode=check_mode)


def in_force(node: FakeAccess) -> None:
    outcome = reconcile(node.machine(), ALL)
    confirm(node.machine(), outcome.transaction, FRESH)


def test_a_second_look_names_the_layers_whose_rules_are_as_asked(node: FakeAccess) -> None:
    assert reconcile(node.machine(), ALL, check_mode=True).settled == {}
    in_force(node)
    assert reconcile(node.machine(), ALL, check_mode=True).settled == marks(RULES)
    more = replace(ALL, rules={**RULES, "ray": [*RULES["ray"], "allow from 192.0.2.3"]})
    assert reconcile(node.machine(), more, check_mode=True).settled == {"fabric": marks(RULES)["fabric"]}
    assert reconcile(node.machine(), replace(more, sshd={}), check_mode=True).settled == {}


def test_everything_on_confirmed_and_given_back(node: FakeAccess) -> None:
    before = node.state()
    told = reconcile(node.machine(), ALL, check_mode=True)
    assert node.state() == before
    outcome = reconcile(node.machine(), ALL)
    assert outcome.changes == told.changes and outcome.diff == told.diff
    assert node.sshd["maxauthtries"] == "10" and node.sshd["passwordauthentication"] == "no"
    assert node.lets_in("allow 22/tcp") and not node.lets_in("allow 80/tcp")
    assert node.lets_in("allow from 192.0.2.2"), "a cluster that runs already goes on"
    assert node.log[-1] != "ufw --force enable", "what is active is read again"
    confirm(node.machine(), outcome.transaction, FRESH)
    assert not node.path(PENDING).exists()
    assert not reconcile(node.machine(), ALL).changed
    assert give_back(node.machine(), check_mode=True).changed
    assert give_back(node.machine()).changed
    assert node.state() == before
    assert node.log[-1] == "systemctl daemon-reload", "a unit without a file is listed until then"
    assert not give_back(node.machine()).changed


def test_switching_one_topic_off_takes_it_back(node: FakeAccess) -> None:
    in_force(node)
    outcome = reconcile(node.machine(), replace(ALL, firewall=False))
    confirm(node.machine(), outcome.transaction, FRESH)
    assert node.filtering is None and "as shipped" in node.read(USER_RULES)
    outcome = reconcile(node.machine(), replace(ALL, sshd={}, firewall=False))
    confirm(node.machine(), outcome.transaction, FRESH)
    assert node.sshd["maxauthtries"] == "6"
    assert not reconcile(node.machine(), Wanted()).changed


@pytest.mark.parametrize("boot", [False, True])
def test_cut_off_anywhere_the_node_takes_it_back(tmp_path: Path, boot: bool) -> None:
    cuts = 0
    while True:
        node = FakeAccess(tmp_path / f"cut{cuts}")
        node._store([OPS])
        before = node.state()
        node.kill_at = cuts
        try:
            reconcile(node.machine(), ALL)
        except Killed:
            node.kill_at = None
        else:
            break
        if boot:
            restore(node.machine(), boot=True)
            node.boot()
        else:
            restore(node.machine())
        assert node.state() == before, f"after {cuts} commands"
        cuts += 1
    assert cuts > 5
    assert node.kill_at is not None


def test_cut_off_anywhere_the_next_run_completes_it(tmp_path: Path) -> None:
    for cut in range(20):
        node = FakeAccess(tmp_path / f"cut{cut}")
        before = node.state()
        node.kill_at = cut
        try:
            reconcile(node.machine(), ALL)
        except Killed:
            node.kill_at = None
        else:
            break
        in_force(node)
        assert node.filtering and node.sshd["maxauthtries"] == "10", cut
        assert not reconcile(node.machine(), ALL).changed
        give_back(node.machine())
        assert node.state() == before, cut
    assert 5 <= cut < 19


def test_a_change_that_waits_is_taken_back_with_everything_else(node: FakeAccess) -> None:
    before = node.state()
    reconcile(node.machine(), ALL)
    give_back(node.machine())
    assert node.state() == before


def test_an_old_connection_confirms_nothing(node: FakeAccess) -> None:
    outcome = reconcile(node.machine(), ALL)
    for connection in (FIRST, ()):
        with pytest.raises(SparkError, match="not a fresh login"):
            confirm(node.machine(), outcome.transaction, connection)
    confirm(node.machine(), outcome.transaction, (), elsewhere=True)
    with pytest.raises(SparkError, match="already taken"):
        confirm(node.machine(), outcome.transaction, FRESH)


def test_another_run_takes_over(node: FakeAccess) -> None:
    first = reconcile(node.machine(), ALL)
    second = reconcile(node.machine(), ALL)
    assert second.changes == ["an earlier change that was not confirmed"]
    with pytest.raises(SparkError, match="another run has taken over"):
        confirm(node.machine(), first.transaction, FRESH)
    assert restore(node.machine(), first.transaction) is None, "its timer finds nothing of its own"
    confirm(node.machine(), second.transaction, FRESH)


def test_an_sshd_that_is_broken_already_is_refused_before_anything(node: FakeAccess) -> None:
    node.write(SSHD_CONFIG, node.read(SSHD_CONFIG) + "Broken yes\n")
    before = node.state()
    with pytest.raises(SparkError, match=r"does not accept its configuration as it is.*Nothing was changed"):
        reconcile(node.machine(), replace(ALL, firewall=False))
    assert node.state() == before


def test_broken_later_our_part_is_given_back_and_sshd_goes_on(node: FakeAccess) -> None:
    in_force(node)
    node.write(SSHD_CONFIG, node.read(SSHD_CONFIG) + "Broken yes\n")
    give_back(node.machine())
    assert not node.path(sshd.FILE).exists()
    assert node.sshd["maxauthtries"] == "10", "not reloaded: it would have ended"


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"Broken": "yes"}, "does not accept the settings"), ({"Port": "22", "Odd": "1"}, "settings have no effect")],
)
def test_settings_that_do_not_work_are_taken_back_at_once(
    node: FakeAccess, settings: dict[str, str], says: str
) -> None:
    if "Odd" in settings:
        node.write(SSHD_CONFIG, "Port 22\nMaxAuthTries 6\n")  # reads no drop-ins
        node.sshd = node.settings()
    before = node.state()
    with pytest.raises(SparkError, match=f"{says}.*previous settings are active again"):
        reconcile(node.machine(), Wanted(sshd=settings))
    assert node.state() == before


def test_going_back_fails_too(node: FakeAccess) -> None:
    node.fail = {"ufw --force": "iptables: no", "ufw default": "no"}
    node.write("/etc/default/ufw", 'DEFAULT_INPUT_POLICY="ACCEPT"\n')
    with pytest.raises(SparkError, match=r"Going back failed too .* tries again by itself"):
        reconcile(node.machine(), ALL)
    node.fail = {}
    assert restore(node.machine()) == []
    assert "as shipped" in node.read(USER_RULES)


def test_rules_of_a_second_operator_stay(node: FakeAccess) -> None:
    node._store([OPS, "allow 22/tcp"])
    node.load()
    in_force(node)
    assert node.rules()[:2] == [OPS, "allow 22/tcp"]
    assert sum("22/tcp" in rule for rule in node.rules()) == 1, "theirs counts, and stays theirs"
    node._store([*node.rules(), "allow from 10.8.8.8"])
    give_back(node.machine())
    assert node.rules() == [OPS, "allow 22/tcp", "allow from 10.8.8.8"]


def test_a_firewall_that_somebody_else_runs_stays_on(node: FakeAccess) -> None:
    node._store([OPS])
    node._enabled("yes")
    node.write("/etc/default/ufw", 'DEFAULT_INPUT_POLICY="ACCEPT"\n')
    node.load()
    before = node.state()
    in_force(node)
    assert node.closed_for
    give_back(node.machine())
    assert node.state() == before
    reconcile(node.machine(), ALL)
    restore(node.machine())
    assert node.state() == before


@pytest.mark.parametrize("rule", ["deny 22/tcp", "reject ssh", "deny OpenSSH", "deny in"])
def test_rules_that_turn_ssh_away_first_are_refused(node: FakeAccess, rule: str) -> None:
    node._store([rule])
    before = node.state()
    with pytest.raises(SparkError, match="turn ssh away before any other rule"):
        reconcile(node.machine(), ALL)
    assert node.state() == before


@pytest.mark.parametrize(
    "rules", [["allow ssh", "deny 22/tcp"], ["deny from 10.0.0.1"], ["deny 80/tcp"], ["deny out 22"]]
)
def test_rules_that_are_no_danger(node: FakeAccess, rules: list[str]) -> None:
    node._store(rules)
    in_force(node)
    assert node.lets_in("allow 22/tcp")


def test_a_restriction_that_leaves_ansible_out_is_refused(node: FakeAccess) -> None:
    with pytest.raises(SparkError, match=r"comes from 192\.0\.2\.9, and access_ssh_from allows only 10\.0\.0\.0/8"):
        reconcile(node.machine(), replace(ALL, ssh_sources=["10.0.0.0/8"]))
    outcome = reconcile(node.machine(), replace(ALL, ssh_sources=["192.0.2.0/24", "10.1.1.1"]))
    confirm(node.machine(), outcome.transaction, FRESH)
    assert "allow from 192.0.2.0/24 to any port 22 proto tcp comment 'sparkmatrix:access'" in node.rules()
    assert not access_apply._within("not an address", ["10.0.0.0/8"])
    assert access_apply._within("::ffff:10.0.0.1", ["10.0.0.0/8"])


def test_every_port_of_sshd_stays_open(node: FakeAccess) -> None:
    node.socket = "Listen=[::]:2222 (Stream)\nListen=0.0.0.0:2200 (Stream)\nActiveState=active\n"
    in_force(node)
    assert [node.lets_in(f"allow {port}/tcp") for port in (22, 2200, 2222, 23)] == [True, True, True, False]
    node.socket = "Listen=/run/x (Stream)\nActiveState=active\n"
    with pytest.raises(SparkError, match="port of sshd is not known"):
        reconcile(node.machine(), ALL, ())


def test_without_the_tool_nothing_is_changed(node: FakeAccess) -> None:
    node.path(TOOL).unlink()
    with pytest.raises(SparkError, match="nothing was changed"):
        reconcile(node.machine(), ALL)
    assert node.filtering is None


def test_no_ufw(node: FakeAccess) -> None:
    node.path("/etc/ufw/ufw.conf").unlink()
    with pytest.raises(SparkError, match="apt install ufw"):
        reconcile(node.machine(), ALL)
    assert not layer_rules(node.machine(), "ray", []).changed
    with pytest.raises(SparkError, match="ufw is not installed"):
        layer_rules(node.machine(), "ray", ["allow from 192.0.2.2"])


def test_a_firewall_that_does_not_come_up(node: FakeAccess) -> None:
    before = node.state()
    node.load = lambda: None  # type: ignore[method-assign]
    with pytest.raises(SparkError, match="the firewall is not as wanted: off"):
        reconcile(node.machine(), ALL)
    assert node.state() == before


def test_layer_rules(node: FakeAccess) -> None:
    with pytest.raises(SparkError, match="not run by this collection"):
        layer_rules(node.machine(), "ray", ["allow from 192.0.2.2"])
    in_force(node)
    assert not layer_rules(node.machine(), "ray", RULES["ray"]).changed
    told = layer_rules(node.machine(), "ray", ["allow from 192.0.2.3"], check_mode=True)
    assert told.changes == [
        "+ ufw allow from 192.0.2.3 comment 'sparkmatrix:ray'; - ufw allow from 192.0.2.2 comment 'sparkmatrix:ray'"
    ]
    done = layer_rules(node.machine(), "ray", ["allow from 192.0.2.3"])
    assert done.changes == told.changes and done.previous == list(RULES["ray"])
    # What a fabric that is taken back needs again.
    assert layer_rules(node.machine(), "ray", done.previous).previous == ["allow from 192.0.2.3"]
    layer_rules(node.machine(), "ray", ["allow from 192.0.2.3"])
    assert node.lets_in("allow from 192.0.2.3") and not node.lets_in("allow from 192.0.2.2")
    layer_rules(node.machine(), "ray", [])
    assert not [rule for rule in node.rules() if "ray" in rule] and node.lets_in(RULES["fabric"][0])


@pytest.mark.parametrize("path", [PENDING, access_apply.MEMORY])
@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 2}', '{"schema": 1, "files": 3}'])
def test_damaged_records_are_named(node: FakeAccess, path: str, text: str) -> None:
    node.write(path, text)
    with pytest.raises(SparkError, match="damaged"):
        reconcile(node.machine(), ALL, check_mode=True)


def test_the_command_of_the_timer(node: FakeAccess, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(rollback, "Machine", node.machine)
    outcome = reconcile(node.machine(), ALL)
    assert node.timer == outcome.transaction
    node.fail = {"ufw --force": "busy"}
    assert run_program(rollback, "--transaction", node.timer) == 1
    node.fail = {}
    assert run_program(rollback, "--transaction", node.timer) == 0
    assert node.filtering is None
    assert run_program(rollback) == 0
    assert capsys.readouterr().out.endswith("is pending\n")


# --- the node's key --------------------------------------------------------------------------------------------------


def test_the_key_is_made_once_and_rotated_on_demand(node: FakeAccess) -> None:
    machine = replace(node.machine(), environment={"SSH_CONNECTION": " ".join(FIRST)}, pid=1)

    def look(**options: Any) -> access_node.Look:
        return access_node.look(machine, "root", **options)

    told = look(check_mode=True)
    assert told.changed and not told.public_key
    assert not node.path(access_node.KEY).exists()
    made = look()
    assert (made.changed, made.public_key) == (True, "ssh-ed25519 AAAAk1")
    assert made.connection == list(FIRST) and made.ssh_ports == [22] and made.account
    assert made.host_keys == ["ssh-ed25519 AAAAhost"] and made.fact is None
    assert node.path(access_node.KEY).stat().st_mode & 0o777 == 0o600
    again = look()
    assert (again.changed, again.public_key) == (False, made.public_key)
    assert look(rotate=True, check_mode=True).public_key == made.public_key
    assert look(rotate=True).public_key == "ssh-ed25519 AAAAk2"
    node.write(access_node.KEY, "damaged")
    assert look().public_key == "ssh-ed25519 AAAAk3"
    assert [path.name for path in node.path(access_node.DIRECTORY).iterdir()] == ["id_ed25519"], "nothing is left"
    assert access_node.remove_key(node.machine(), check_mode=True) and access_node.remove_key(node.machine())
    assert not access_node.remove_key(node.machine()) and not node.path("/etc/sparkmatrix").exists()


def test_facts_and_host_keys(node: FakeAccess) -> None:
    machine = replace(node.machine(), environment={}, pid=1)
    node.write("/etc/ansible/facts.d/sparkmatrix.fact", '{"schema": 2}')
    found = access_node.look(machine, "no-such-user")
    assert (found.fact, found.account, found.connection) == ({"schema": 2}, False, [])
    node.write("/etc/ansible/facts.d/sparkmatrix.fact", "{")
    assert access_node.look(machine, "root").fact == "{", "torn is not none"
    node.path("/etc/ssh/ssh_host_ed25519_key.pub").write_text("x")
    with pytest.raises(SparkError, match="no public host key"):
        access_node.host_keys(node.machine())


def test_a_key_that_cannot_be_made(node: FakeAccess) -> None:
    node.write("/etc/sparkmatrix", "a file")
    with pytest.raises(SparkError, match="cannot be made"):
        access_node.make_key(node.machine())
    node.path("/etc/sparkmatrix").unlink()
    node._ssh_keygen = lambda argv: None  # type: ignore[method-assign]
    with pytest.raises(SparkError, match="cannot be made"):
        access_node.make_key(node.machine())


# --- what peers may run ----------------------------------------------------------------------------------------------


def say(asked: str, key: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """As sshd runs it, for the key whose line says ``peer <key>``."""
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", asked)
    return run_program(forced_command, *key.split())


@pytest.mark.parametrize("asked", ["", "id", "version; id", "drop-caches --x", "sudo id", "$(id)", "peer"])
def test_a_peer_gets_nothing_that_is_not_on_the_list(asked: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert say(asked, "spark1 --head", monkeypatch) == forced_command.REFUSED
    assert "version, fabric-status, drop-caches" in capsys.readouterr().err


def test_a_peer_gets_what_is_on_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr(forced_command.subprocess, "call", lambda argv, stdin: called.append((argv, stdin)) or 0)
    for asked, key in (("drop-caches", "spark1 --head"), ("model", "spark3"), ("switch-place", "spark1 --head")):
        assert say(asked, key, monkeypatch) == 0
    assert called == [
        (["sudo", "-n", TOOL, "drop-caches"], forced_command.subprocess.DEVNULL),
        (["sudo", "-n", TOOL, "artifacts", "serve"], None),  # who reads a model asks for its files
        (["sudo", "-n", TOOL, "switch", "place"], None),  # who switches names a model
    ]
    assert (
        f"p ALL=(root) NOPASSWD: {TOOL} fabric-status, {TOOL} drop-caches, {TOOL} logs --peer follow, "
        in forced_command.sudoers("p")
    )


@pytest.mark.parametrize(
    ("key", "served", "everything"),
    [
        ("spark1 --head", True, True),
        ("spark1 --head", False, True),
        ("spark2", True, True),  # the head of the service whose ranks are here
        ("spark2", False, False),
        ("spark3", True, False),
        ("spark3 ", False, False),
        ("", True, True),  # a line of an earlier release
    ],
)
def test_what_stops_and_reads_logs_is_for_heads(key, served, everything, tmp_path, monkeypatch) -> None:
    told = tmp_path / "engine.json"
    members = [Member("spark3", 1, "10.0.0.3", True, True), Member("spark2", 0, "10.0.0.2", True, True)]
    if served:
        description = Description("10.0.0.1", 8000, "tiny", "", ("a.service",), tuple(members), nodes=2)
        told.write_text(json.dumps(description.as_dict()))
    monkeypatch.setattr(forced_command.rank, "config", lambda: str(told))
    called: list[list[str]] = []
    monkeypatch.setattr(forced_command.subprocess, "call", lambda argv, stdin: called.append(argv) or 0)
    let = {word for word in forced_command.ALLOWED if say(word, key, monkeypatch) == 0}
    some = {word for word in forced_command.ALLOWED if key or not word.startswith("switch-")}
    assert let == (some if everything else set(forced_command.COMMON))


def test_sources_have_to_be_networks() -> None:
    with pytest.raises(SparkError, match="no address and no network"):
        ufw.network("home")


def test_status_that_says_nothing() -> None:
    with pytest.raises(SparkError, match="does not say"):
        ufw.parse_active("ERROR: You need to be root")


def test_sshd_without_a_service_reads_its_files_at_the_next_login(node: FakeAccess) -> None:
    node.fail = {"systemctl is-active": "inactive"}
    sshd.reload(node.machine())
    assert "systemctl reload ssh.service" not in node.log


def test_the_guard_of_another_node_is_not_mine(node: FakeAccess) -> None:
    assert GUARD.pending(node.machine()) is None
