# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A table: loaded, flushed by others, cut off half way, refused, and gone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter as pf
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.files import fingerprint, fingerprints
from root_or_not import root_or_not

assert root_or_not  # a fixture

RULES = 'table inet sparkmatrix_services {\n    socket cgroupv2 level 1 "sparkmatrix.slice" drop comment "@STATE@"\n}\n'


class Killed(BaseException):
    """The run ends here, as if the power had gone."""


class Node:
    """nft and systemd, as far as a table of ours meets them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tables: dict[str, str] = {}
        self.active: set[str] = set()
        self.enabled: set[str] = set()
        self.installed = True
        self.log: list[list[str]] = []
        self.refuses = ""
        self.kill_at = -1
        self.changing = 0

    def machine(self) -> Machine:
        return Machine(str(self.root), self.run)

    def run(self, argv: Sequence[str]) -> Completed:
        words = list(argv)
        self.log.append(words)
        if words[0] == "nft":
            return self.nft(words[1:])
        if words[1] == "show":
            return Completed(0, "\n\n".join(self.shown(name) for name in words if name.endswith(".service")) + "\n")
        self.changing += 1
        if self.changing == self.kill_at:
            raise Killed
        name = words[-1]
        if words[1] in ("start", "reload") and name.endswith(".service"):
            self.active.add(name)
            self.nft(["-f", self.exec_start(name)])
        if words[1] == "enable":
            self.enabled.add(name)
        if words[1] == "disable":
            self.enabled.discard(name)
            self.active.discard(name)
            self.tables.pop(name.split("-")[-1].split(".")[0], None)
        return Completed(0)

    def shown(self, name: str) -> str:
        there = (self.root / f"etc/systemd/system/{name}").exists()
        return "\n".join(
            [
                f"Id={name}",
                f"LoadState={'loaded' if there else 'not-found'}",
                f"ActiveState={'active' if name in self.active else 'inactive'}",
                f"UnitFileState={'enabled' if name in self.enabled else 'disabled' if there else ''}",
            ]
        )

    def exec_start(self, name: str) -> str:
        text = (self.root / f"etc/systemd/system/{name}").read_text()
        return str(self.root) + re.findall(r"ExecStart=\S+ -f (\S+)", text)[0]

    def nft(self, words: Sequence[str]) -> Completed:
        if not self.installed:
            return Completed(127, "", "nft: No such file or directory")
        if words[0] == "list":
            text = self.tables.get(words[3].removeprefix("sparkmatrix_"))
            return Completed(1, "", "No such file") if text is None else Completed(0, text)
        if words[0] == "--check":
            return Completed(1, "", self.refuses) if self.refuses else Completed(0)
        if words[0] == "-f":
            text = Path(words[1]).read_text()
            self.tables[Path(words[1]).stem] = text
        if words[0] == "delete":
            self.tables.pop(words[3].removeprefix("sparkmatrix_"))
        return Completed(0)

    def bring(self, rules: str = RULES, check: bool = False) -> list[str]:
        return pf.present(self.machine(), "services", rules, ["daemon"], check_mode=check).changes


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_it_is_in_force_now_and_at_every_boot(node):
    told = node.bring(check=True)
    assert not node.tables and not (node.root / "etc").exists()
    assert node.bring() == told
    name = "sparkmatrix-port-filter-services.service"
    assert name in node.active and name in node.enabled
    assert "define accounts = { 0, 1 }" in node.tables["services"] and "@STATE@" not in node.tables["services"]
    assert node.bring() == []
    assert node.bring(check=True) == []


def test_a_look_at_it_finds_nothing_to_do_where_a_run_would_find_nothing(node):
    def settled():
        return pf.in_force(node.machine(), "services")

    assert not settled()
    node.bring()
    assert settled()
    files = fingerprint(pf.wanted("services", RULES, [1]))
    assert fingerprints(root=str(node.root))["port_filter_services"] == files
    assert files != fingerprint(pf.wanted("services", RULES))
    kept, enabled = dict(node.tables), set(node.enabled)
    node.tables["services"] = node.tables["services"].replace("sparkmatrix ", "")
    assert not settled()
    node.tables = kept
    node.enabled.clear()
    assert not settled()
    node.enabled = enabled
    assert settled()
    node.active.clear()
    assert not settled()


def test_what_others_flush_is_loaded_again(node):
    node.bring()
    node.tables.clear()
    assert node.bring() == ["load table inet sparkmatrix_services"]
    assert node.tables
    # The slice was stopped and made anew: the rule has the number of the old one.
    node.tables["services"] = node.tables["services"].replace('"sparkmatrix.slice"', "4711")
    assert node.bring() == ["load table inet sparkmatrix_services"]


def test_verify_sees_what_is_gone(node):
    pf.require(node.machine(), "fabric")  # a node without a fabric has no table for it
    with pytest.raises(SparkError, match="not active"):
        pf.require(node.machine(), "services")
    node.bring()
    pf.require(node.machine(), "services")
    full = node.tables["services"]
    # The table without its rules is as open as none.
    node.tables["services"] = "table inet sparkmatrix_services {\n}\n"
    with pytest.raises(SparkError, match=r"not active.*systemctl restart sparkmatrix-port-filter-services"):
        pf.require(node.machine(), "services")
    node.tables["services"] = full.replace('"sparkmatrix.slice"', "4711")
    with pytest.raises(SparkError, match="not active"):
        pf.require(node.machine(), "services")


def test_what_the_kernel_refuses_is_not_placed(node):
    node.bring()
    before = dict(node.tables), (node.root / pf.path("services")[1:]).read_text()
    node.refuses = "Could not process rule: No such file or directory"
    with pytest.raises(SparkError, match=r"socket cgroupv2.*spark_port_filter: false"):
        node.bring(RULES + "# another\n")
    assert (dict(node.tables), (node.root / pf.path("services")[1:]).read_text()) == before
    assert not (node.root / "run/sparkmatrix/port-filter.nft").exists()


def test_without_nft_it_says_so(node):
    node.installed = False
    with pytest.raises(SparkError, match="as the layer fabric does"):
        node.bring()
    assert node.bring(check=True)


def test_an_account_that_is_not_there(node):
    with pytest.raises(SparkError, match="no account 'nobody-knows'"):
        pf.present(node.machine(), "services", RULES, ["nobody-knows"])


def test_a_run_that_dies_anywhere_is_finished_by_the_next(node):
    steps = 0
    while True:
        steps += 1
        node.kill_at, node.changing = steps, 0
        try:
            node.bring(RULES + f"# {steps}\n")
        except Killed:
            node.kill_at = -1
            node.bring(RULES + f"# {steps}\n")
            assert node.bring(RULES + f"# {steps}\n") == []
            assert f"# {steps}\n" in node.tables["services"]
        else:
            break
    assert steps > 3


def test_it_goes_without_a_trace(node):
    node.bring()
    told = pf.absent(node.machine(), "services", check_mode=True).changes
    assert pf.absent(node.machine(), "services").changes == told != []
    assert not node.tables and not node.enabled
    assert not [path for path in node.root.rglob("*") if path.is_file() and "/run/" not in str(path)]
    assert pf.absent(node.machine(), "services").changes == []
    # Whoever took nft away took the table with it.
    node.installed = False
    assert pf.absent(node.machine(), "services").changes == []


@pytest.mark.parametrize(("events", "stopped"), [("populated 0\nfrozen 0\n", True), ("populated 1\n", False)])
def test_the_slice_goes_when_nothing_is_in_it(node, events, stopped):
    node.bring()
    group = node.root / "sys/fs/cgroup/sparkmatrix.slice"
    group.mkdir(parents=True)
    (group / "cgroup.events").write_text(events)
    pf.absent(node.machine(), "services")
    assert (["systemctl", "stop", "sparkmatrix.slice"] in node.log) == stopped


def test_the_call(node, monkeypatch):
    monkeypatch.setattr(pf, "Machine", node.machine)
    asked = pf.Request("services", RULES, ("daemon",))
    done = pf.ensure(asked, False)
    assert done.changed and [part["after_header"] for part in done.diff]
    assert not pf.ensure(asked, False).changed
    assert not pf.ensure(pf.Request(state="in_force"), False).changed
    assert pf.ensure(pf.Request("services", state="absent"), False).changed
    # No rules: a node without a fabric.
    assert not pf.ensure(pf.Request("services"), False).changed
    with pytest.raises(SparkError, match="no account"):
        pf.ensure(replace(asked, users=("nobody-knows",)), False)
    with pytest.raises(SparkError):
        pf.ensure(pf.Request(state="in_force"), False)
