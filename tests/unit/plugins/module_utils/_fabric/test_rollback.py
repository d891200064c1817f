# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The dead-man rollback: wherever a change is cut off, the node finds its way back to exactly what was there before."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.paths import NODE_PROGRAM as TOOL
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import apply as fabric_apply
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import netplan, rollback
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import status as fabric_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.apply import TAKEN_OVER
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.rollback import (
    GUARD,
    confirm,
    restore,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from fabric_change import NICS, NOTHING, A, B, apply, machine, verify, wanted
from fake_machine import Killed
from fake_node import FakeNode
from module_runner import run_program
from root_or_not import root_or_not

assert root_or_not  # a fixture

PENDING, BOOT_UNIT, BOOT_LINK = GUARD.marker, GUARD.boot_unit, GUARD.boot_link

NEXT = {"subnets": ["10.40.0.0/24", "10.41.0.0/24"], "mtu": 4200}


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "root", NICS)


def snapshot(node: FakeNode) -> Any:
    found = sorted(path for path in node.path("/proc").rglob("*") if path.is_file())
    sysctls = {str(path.relative_to(node.root)): path.read_text().strip() for path in found}
    # A temporary file that a cut leaves is overwritten by the next write of the same file.
    tree = {n: c for n, c in node.tree().items() if not n.startswith("proc/") and not n.endswith(".sparkmatrix-new")}
    return tree, node.state(), sysctls, node.networkd, sorted(node.nm_managed), node.avahi_denies


def configured(node: FakeNode) -> None:
    apply(node, wanted())
    verify(node, wanted())


def pristine(_node: FakeNode) -> None:
    """The first change ever."""


def elsewhere(node: FakeNode) -> None:
    """Somebody else's netplan file configures the same addresses."""
    node.networkd = True
    node.write("/etc/netplan/40-cx7.yaml", f"network:\n  ethernets:\n    {A}:\n      addresses: [192.168.100.10/24]\n")
    node._netplan(["netplan", "generate"])
    node._configure(A)


# --- the transaction -------------------------------------------------------------------------------------------------


def test_a_change_is_armed_before_anything_is_touched(node: FakeNode) -> None:
    outcome = apply(node, wanted(), hold=True)
    (unit,) = node.timers
    assert unit == f"sparkmatrix-fabric-restore-{outcome.transaction}"
    assert node.timers[unit] == [TOOL, "fabric-restore", "--transaction", outcome.transaction]
    armed = next(line for line in node.log if line.startswith("systemd-run"))
    assert "--on-active=140s" in armed  # the restore itself must be over after 150
    assert node.log.index(armed) < node.log.index("netplan generate")
    assert node.path(PENDING).stat().st_mode & 0o777 == 0o600
    assert node.path(PENDING).parent.stat().st_mode & 0o777 == 0o700
    unit_text = node.read(BOOT_UNIT)
    assert f"ConditionPathExists={PENDING}" in unit_text and "Before=network-pre.target" in unit_text
    assert node.path(BOOT_LINK).readlink() == Path(BOOT_UNIT)


def test_confirmed(node: FakeNode) -> None:
    outcome = apply(node, wanted(), hold=True)
    confirm(machine(node), outcome.transaction)
    assert not node.path(PENDING).exists() and not node.timers
    assert restore(machine(node), outcome.transaction) is None
    assert restore(machine(node)) is None
    assert node.state()[A] == (9000, True, ["192.168.100.10/24"])
    with pytest.raises(
        SparkError, match=r"already taken the change of the fabric back.*fabric_rollback_seconds; raise it, and run"
    ):
        confirm(machine(node), outcome.transaction)


def test_without_the_tool_nothing_is_changed(node: FakeNode) -> None:
    node.path(TOOL).chmod(0o644)
    before = snapshot(node)
    with pytest.raises(SparkError, match="is not installed; nothing was changed"):
        apply(node, wanted())
    assert snapshot(node) == before


def test_what_cannot_be_armed_is_not_changed(node: FakeNode) -> None:
    before = snapshot(node)
    node.fail = {"systemd-run": "Failed to connect to bus"}
    with pytest.raises(SparkError, match="arming the rollback failed"):
        apply(node, wanted())
    assert snapshot(node) == before


def test_too_short_a_time_is_refused(node: FakeNode) -> None:
    with pytest.raises(SparkError, match=r"fabric_rollback_seconds: 14 s are less than the 15 s"):
        apply(node, replace(wanted(), rollback_s=14))


@pytest.mark.parametrize("prepare", [pristine, configured, elsewhere])
def test_the_timer_brings_back_what_was_there(node: FakeNode, prepare: Callable[[FakeNode], None]) -> None:
    prepare(node)
    before = snapshot(node)
    outcome = apply(node, wanted(**NEXT) if prepare is not elsewhere else wanted(), hold=True)
    assert snapshot(node) != before
    assert restore(machine(node), outcome.transaction) == []
    assert snapshot(node) == before
    assert not node.timers
    assert restore(machine(node), outcome.transaction) is None


def test_what_others_wrote_to_hosts_meanwhile_stays(node: FakeNode) -> None:
    outcome = apply(node, wanted(), hold=True)
    node.write("/etc/hosts", node.read("/etc/hosts") + "10.0.0.7 printer\n")
    restore(machine(node), outcome.transaction)
    assert node.read("/etc/hosts") == "127.0.0.1 localhost\n10.0.0.7 printer\n"


def test_a_cable_that_moved_goes_back(node: FakeNode) -> None:
    configured(node)
    before = snapshot(node)
    outcome = apply(node, wanted(cage=1), hold=True)
    assert restore(machine(node), outcome.transaction) == []
    assert snapshot(node) == before


def test_without_a_cable_the_addresses_are_not_waited_for(node: FakeNode) -> None:
    configured(node)
    outcome = apply(node, wanted(**NEXT), hold=True)
    node.nics[B].carrier = False
    start = node.now
    assert restore(machine(node), outcome.transaction) == []
    assert node.now - start < 5
    assert node.state()[B] == (9000, True, [])


def test_what_does_not_come_back_is_told(node: FakeNode) -> None:
    configured(node)
    outcome = apply(node, wanted(**NEXT), hold=True)
    node.fail = {"ip link set": "Operation not permitted"}
    node.delay = 10**6
    left = restore(machine(node), outcome.transaction) or []
    assert f"{A}: up, MTU 4200, 10.40.0.10/24; before: {A}: up, MTU 9000, 192.168.100.10/24" in left
    assert not node.path(PENDING).exists()


def test_a_restore_that_fails_may_be_repeated(node: FakeNode) -> None:
    configured(node)
    before = snapshot(node)
    outcome = apply(node, wanted(**NEXT), hold=True)
    node.fail = {"networkctl": "Access denied"}
    with pytest.raises(SparkError, match="Access denied"):
        restore(machine(node), outcome.transaction)
    assert node.path(PENDING).exists()
    node.fail = {}
    assert restore(machine(node), outcome.transaction) == []
    assert snapshot(node) == before


# --- cut off anywhere ------------------------------------------------------------------------------------------------


class Cut:
    """Ends the run before the change number ``at``: of the disk, or a program's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, node: FakeNode, at: int) -> None:
        self.count, self.at, self.armed = 0, at, True
        run = node.run

        def step(_disk: Any, _what: str, _path: str) -> None:
            self.tick()

        def counted(argv: Any) -> Completed:
            if "is-active" not in argv and "-j" not in argv and "show" not in argv and "--root-dir" not in argv:
                self.tick()
            return run(argv)

        monkeypatch.setattr(managed_files._Disk, "step", step)
        monkeypatch.setattr(node, "run", counted)

    def tick(self) -> None:
        self.count += 1
        if self.armed and self.count > self.at:
            raise Killed


def cut(monkeypatch: pytest.MonkeyPatch, node: FakeNode, at: int, action: Callable[[], Any]) -> bool:
    """Run ``action`` until its step ``at``; whether it was cut off there."""
    with monkeypatch.context() as patch:
        limit = Cut(patch, node, at)
        try:
            action()
        except Killed:
            return True
        finally:
            limit.armed = False
    return False


def every_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[FakeNode], None], step: int
) -> list[FakeNode]:
    """Nodes on which the change was cut off, each at another step."""
    nodes = []
    for at in range(0, 10**6, step):
        made = FakeNode(tmp_path / f"cut{at}", NICS)
        prepare(made)
        if not cut(monkeypatch, made, at, lambda node=made: apply(node, wanted(**NEXT), hold=True)):
            return nodes
        nodes.append(made)
    raise AssertionError


@pytest.mark.parametrize("prepare", [pristine, configured])
def test_the_timer_heals_every_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[FakeNode], None]
) -> None:
    reference = FakeNode(tmp_path / "reference", NICS)
    prepare(reference)
    expected = snapshot(reference)
    nodes = every_cut(tmp_path, monkeypatch, prepare, 2 if prepare is pristine else 1)
    assert len(nodes) > 15
    for number, node in enumerate(nodes):
        for argv in list(node.timers.values()):
            # The restore is cut off as well, once; systemd starts it again.
            cut(monkeypatch, node, number % 12, lambda node=node, argv=argv: restore(machine(node), argv[-1]))
            restore(machine(node), argv[-1])
        if not node.path(PENDING).exists():
            assert snapshot(node) == expected, number
        else:
            raise AssertionError(f"cut {number}: the marker has no timer")


@pytest.mark.parametrize("prepare", [pristine, configured])
def test_the_boot_unit_heals_every_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[FakeNode], None]
) -> None:
    reference = FakeNode(tmp_path / "reference", NICS)
    prepare(reference)
    reference.reboot()
    reference.start_network()
    expected = snapshot(reference)
    for number, node in enumerate(every_cut(tmp_path, monkeypatch, prepare, 2 if prepare is pristine else 1)):
        node.reboot()
        if node.path(BOOT_LINK).is_symlink() and node.path(PENDING).exists():
            cut(monkeypatch, node, number % 12, lambda node=node: restore(machine(node), boot=True))
            if node.path(PENDING).exists():
                node.reboot()
            restore(machine(node), boot=True)
        node.start_network()
        if node.path(PENDING).exists():  # cut between marker and boot unit: nothing was changed yet
            assert "etc/netplan" not in str(node.path(PENDING).parent)
            restore(machine(node))
        assert snapshot(node) == expected, number


@pytest.mark.parametrize("prepare", [pristine, configured])
def test_the_next_run_takes_every_cut_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[FakeNode], None]
) -> None:
    done, before = FakeNode(tmp_path / "done", NICS), FakeNode(tmp_path / "before", NICS)
    for reference in (done, before):
        prepare(reference)
    apply(done, wanted(**NEXT))
    for number, node in enumerate(every_cut(tmp_path, monkeypatch, prepare, 3)):
        old = dict(node.timers)
        pending = node.path(PENDING).exists()
        check = apply(node, wanted(**NEXT), check=True)
        assert any(TAKEN_OVER in line for line in check.changes) == pending
        outcome = apply(node, wanted(**NEXT), hold=True)
        assert outcome.transaction
        for argv in old.values():  # what is left of the old timer does nothing
            assert restore(machine(node), argv[-1]) is None
        if number % 2:
            confirm(machine(node), outcome.transaction)
            assert snapshot(node) == snapshot(done), number
        else:
            restore(machine(node), outcome.transaction)
            assert snapshot(node) == snapshot(before), number


def test_a_reset_ends_a_pending_change(node: FakeNode) -> None:
    before = snapshot(node)
    apply(node, wanted(), hold=True)
    outcome = apply(node, NOTHING)
    assert any("no longer pending" in line for line in outcome.changes)
    assert snapshot(node) == before and not node.timers


def test_another_run_cannot_confirm(node: FakeNode) -> None:
    first = apply(node, wanted(), hold=True)
    second = apply(node, wanted(), hold=True)
    with pytest.raises(SparkError, match="another run has taken over"):
        confirm(machine(node), first.transaction)
    confirm(machine(node), second.transaction)


# --- the subcommands -------------------------------------------------------------------------------------------------


def test_the_subcommand_restores(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rollback, "Machine", lambda: machine(node))
    assert run_program(rollback) == 0
    assert capsys.readouterr().out == "No change of the fabric is pending\n"
    before = snapshot(node)
    outcome = apply(node, wanted(), hold=True)
    assert run_program(rollback, "--transaction", "other") == 0
    capsys.readouterr()
    node.fail = {"netplan": "gone"}
    assert run_program(rollback, "--transaction", outcome.transaction) == 1
    assert "generating the previous configuration failed" in capsys.readouterr().err
    node.fail = {}
    assert run_program(rollback, "--transaction", outcome.transaction) == 0
    assert "was taken back" in capsys.readouterr().out
    assert snapshot(node) == before


def test_the_subcommand_shows_the_state(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fabric_status, "Machine", lambda: machine(node))
    monkeypatch.setattr(fabric_status.os, "geteuid", lambda: 0)
    fabric_status.configure(argparse.ArgumentParser())

    def shown() -> list[str]:
        assert fabric_status.run(argparse.Namespace()) == 0
        return capsys.readouterr().out.splitlines()

    assert shown() == ["fabric: not configured", "pending: nothing"]
    apply(node, wanted(), hold=True)
    lines = shown()
    assert lines[0].startswith("fabric: switch, applying, plan ")
    assert lines[1] == f"{A}: up, MTU 9000, 192.168.100.10/24"
    assert "the node takes it back in 1" in lines[-1]
    node.now += 1000
    assert shown()[-1].endswith("takes it back now")
    node.write(FACT_PATH, "{")
    assert fabric_status.run(argparse.Namespace()) == 1  # nobody can tell, so it is not well
    assert f"fabric: {FACT_PATH} is not readable. Run the fabric layer" in capsys.readouterr().out
    node.write(PENDING, "{")
    assert fabric_status.run(argparse.Namespace()) == 1
    assert "is damaged" in capsys.readouterr().err
    # Only root may ask the kernel for the port filter, so nobody else is told that it is gone.
    monkeypatch.setattr(fabric_status.os, "geteuid", lambda: 1000)
    assert fabric_status.run(argparse.Namespace()) == 1
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "this needs root: sudo sparkmatrix fabric-status\n")


# --- NetworkManager --------------------------------------------------------------------------------------------------


def by_nm(**options: Any) -> fabric_apply.Wanted:
    return replace(wanted(), backend="networkmanager", **options)


def test_networkmanager_configures(node: FakeNode) -> None:
    before = snapshot(node)
    outcome = apply(node, by_nm())
    assert outcome.backend == "networkmanager"
    assert "renderer: NetworkManager" in node.read(netplan.FILE)
    assert node.state()[A] == (9000, True, ["192.168.100.10/24"])
    assert f"nmcli -w 20 connection up netplan-{A} ifname {A}" in node.log
    assert not any("enP7s7" in line for line in node.log) and not node.networkd
    assert node.read(f"/proc/sys/net/ipv6/conf/{A}/disable_ipv6") == "1\n"
    # `auto` goes on with what is there.
    assert not apply(node, wanted()).changed
    outcome = apply(node, replace(by_nm(), fact=wanted(**NEXT).fact), hold=True)
    assert restore(machine(node), outcome.transaction) == []
    assert node.state()[A] == (9000, True, ["192.168.100.10/24"])
    # Its activation has turned IPv6 on, which the rollback takes back, too.
    assert node.read(f"/proc/sys/net/ipv6/conf/{A}/disable_ipv6") == "1\n"
    apply(node, NOTHING)
    assert snapshot(node) == before


def test_the_backend_changes(node: FakeNode) -> None:
    apply(node, by_nm())
    outcome = apply(node, replace(wanted(), backend="networkd"))
    assert outcome.changed and outcome.backend == "networkd"
    assert f"networkctl reconfigure {A} {B}" in node.log
    assert not apply(node, wanted()).changed


def test_auto_takes_networkmanager_where_networkd_is_masked(node: FakeNode) -> None:
    node.masked = True
    assert apply(node, wanted()).backend == "networkmanager"


def test_networkmanager_has_to_run(node: FakeNode) -> None:
    node.nm = False
    with pytest.raises(SparkError, match=r"fabric_backend: NetworkManager should configure the fabric, and is not"):
        apply(node, by_nm())


# --- foreign files ---------------------------------------------------------------------------------------------------

CX7 = f"""\
network:
  version: 2
  renderer: networkd
  ethernets:
    {A}:
      mtu: 1500
      addresses: [10.77.0.1/24]
    {NICS[2]}:
      dhcp4: true
"""


def adopting(**settings: Any) -> fabric_apply.Wanted:
    return replace(wanted(**settings), foreign="adopt")


@pytest.fixture
def nic(node: FakeNode) -> FakeNode:
    node.path("/sys/class/net/enP7s7").mkdir(parents=True)
    for netdev in NICS:
        node.path(f"/sys/class/infiniband/roce_{netdev}/device/net/{netdev}").mkdir(parents=True)
    return node


def test_a_foreign_file_is_adopted_and_given_back(nic: FakeNode) -> None:
    node, path = nic, "/etc/netplan/40-cx7.yaml"
    node.networkd = True
    node.write(path, CX7)
    node.path(path).chmod(0o644)
    node._netplan(["netplan", "generate"])
    node._configure(A)
    before = snapshot(node)
    with pytest.raises(SparkError, match="Set fabric_foreign: adopt to have it disabled until a reset"):
        apply(node, wanted())
    outcome = apply(node, adopting())
    assert path in outcome.changes
    assert node.state()[A][2] == ["192.168.100.10/24"]
    assert "renderer: networkd" in node.read(path) and A not in node.read(path)
    # Once adopted it stays so, also without being asked again.
    assert not apply(node, adopting()).changed and not apply(node, wanted()).changed
    taken = apply(node, adopting(**NEXT), hold=True)
    restore(machine(node), taken.transaction)
    assert node.state()[A][2] == ["192.168.100.10/24"] and A not in node.read(path)
    # Somebody writes it anew: their text is not thrown away.
    ours = node.read(path)
    node.write(path, CX7.replace("10.77.0.1", "10.78.0.1"))
    with pytest.raises(SparkError, match="was adopted before and has been changed since"):
        apply(node, adopting())
    node.write(path, ours)
    apply(node, NOTHING)
    for _look in range(4):  # networkd works in the background
        node._show()
    assert snapshot(node) == before


def test_an_adoption_is_taken_back(nic: FakeNode) -> None:
    node = nic
    node.networkd = True
    node.write("/etc/netplan/40-cx7.yaml", CX7)
    node._netplan(["netplan", "generate"])
    node._configure(A)
    before = snapshot(node)
    outcome = apply(node, adopting(), hold=True)
    assert restore(machine(node), outcome.transaction) == []
    assert snapshot(node) == before


def test_a_profile_is_adopted(nic: FakeNode) -> None:
    node, path = nic, f"{netplan.KEYFILES}/cx7.nmconnection"
    text = f"[connection]\nid=cx7\nautoconnect=true\ninterface-name={B}\n[ipv4]\nmethod=manual\naddress1=10.77.0.1/24\n"
    node.write(path, text)
    apply(node, adopting())
    assert "[connection]\nautoconnect=false\nid=cx7\n" in node.read(path)
    assert "autoconnect=true" not in node.read(path)
    assert not apply(node, wanted()).changed
    apply(node, NOTHING)
    assert node.read(path) == text


REFUSED = [
    (CX7 + "    all-en: {match: {name: 'en*'}, dhcp4: true}\n", "also configures enP7s7"),
    (CX7.replace("dhcp4: true", "routes: [{to: default, via: 10.0.0.1}]"), "has routes for enp1s0f1np1"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED)
def test_what_cannot_be_adopted_is_refused(nic: FakeNode, text: str, why: str) -> None:
    nic.write("/etc/netplan/40-cx7.yaml", text)
    before = snapshot(nic)
    with pytest.raises(SparkError, match=rf"It cannot be adopted \(/etc/netplan/40-cx7.yaml {why}"):
        apply(nic, adopting())
    assert snapshot(nic) == before


def test_neither_packages_nor_bonds_are_touched(nic: FakeNode) -> None:
    nic.write("/lib/netplan/40-cx7.yaml", CX7)
    with pytest.raises(SparkError, match="belongs to a package"):
        apply(nic, adopting())
    nic.path("/lib/netplan/40-cx7.yaml").unlink()
    text = f"[connection]\nid=slave\ninterface-name={B}\ncontroller=bond0\n"
    nic.write(f"{netplan.KEYFILES}/s.nmconnection", text)
    with pytest.raises(SparkError, match="is part of bond0"):
        apply(nic, adopting())
    nic.path(f"{netplan.KEYFILES}/s.nmconnection").unlink()
    nic.masters[A] = "bond0"
    with pytest.raises(SparkError, match=f"{A}: is a member of bond0"):
        apply(nic, adopting())


# --- the line that must not be cut -----------------------------------------------------------------------------------


def test_the_management_address_is_not_cut(node: FakeNode) -> None:
    want = wanted()
    assert want.fact
    node.nics[B].addresses = [f"{want.fact.management_address}/24"]
    with pytest.raises(SparkError, match=f"{B}: this interface carries the management address"):
        apply(node, replace(want, connection_interface=""))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"schema": 2}, "not schema 1"),
        ({"id": ""}, "no id"),
        ({"seconds": "soon"}, "seconds is 'soon'"),
        ({"hosts": "a"}, "hosts is 'a'"),
        ({"networkd": 1}, "networkd is 1"),
        ({"files": []}, "no attribute"),
        ({"files": {"/a": {"kind": "pipe"}}}, "kind is 'pipe'"),
        ({"more": 1}, "no attribute 'more'"),
    ],
)
def test_a_damaged_snapshot_is_refused(values: dict[str, Any], found: str) -> None:
    text = GUARD.kind("id", 60, 1.5, {}, ["/b"]).text()
    assert GUARD.parse(text).made == ["/b"]
    with pytest.raises(SparkError, match="the snapshot of an interrupted change is damaged") as refused:
        GUARD.parse(json.dumps({**json.loads(text), **values}))
    assert found in refused.value.found
