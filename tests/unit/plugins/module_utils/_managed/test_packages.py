# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import packages

BROKEN = "E: The repository 'https://download.docker.com/linux/ubuntu noble InRelease' is not signed."
BUSY = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 4711 (apt-get)"


class Node:
    """apt as it answers on a machine; ``policies`` is what policy-rc.d said at each installation."""

    def __init__(self, root: Path, update: Sequence[Completed] = (), install: Completed | None = None) -> None:
        self.root = root
        self.updates = list(update)
        self.install = install or Completed(0)
        self.stale = False  # the lists name a version that the mirror has replaced
        self.calls: list[list[str]] = []
        self.policies: list[str | None] = []
        self.now = 10_000.0
        self.machine = Machine(str(root), self.run, self.sleep, lambda: self.now, now=lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, argv: Sequence[str]) -> Completed:
        self.calls.append(list(argv))
        if argv[0] == "dpkg-query":
            return Completed(1, "tmux installed\nnginx config-files\n", "no packages found matching nftables")
        if argv[:2] == ("apt-get", "update"):
            self.stale = False
            return self.updates.pop(0) if self.updates else Completed(0)
        if self.stale:
            return Completed(100, "", "E: Failed to fetch http://ports.ubuntu.com/nftables.deb  404  Not Found")
        self.policies.append(self.machine.read(packages.POLICY))
        return self.install

    def lists(self, age_s: float) -> None:
        place = self.root / packages.LISTS[1:]
        place.mkdir(parents=True)
        (place / "deb.debian.org_debian_dists_trixie_main_binary-arm64_Packages").write_text("")
        os.utime(place, (self.now - age_s, self.now - age_s))

    @property
    def updated(self) -> int:
        return sum(call[:2] == ["apt-get", "update"] for call in self.calls)


def test_what_is_installed(tmp_path: Path) -> None:
    assert packages.installed(Node(tmp_path).machine, ["tmux", "nginx", "nftables"]) == ["tmux"]


def test_a_broken_source_of_others_is_no_obstacle(tmp_path: Path) -> None:
    node = Node(tmp_path, [Completed(100, "", BROKEN)])
    packages.install(node.machine, ["nftables"])
    last = node.calls[-1]
    assert last[:3] == ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"] and last[-2:] == ["install", "nftables"]
    assert "--no-install-recommends" in last and "DPkg::Lock::Timeout=600" in last


def test_what_cannot_be_installed_says_what_the_sources_said(tmp_path: Path) -> None:
    node = Node(tmp_path, [Completed(100, "", BROKEN)], Completed(100, "", "E: Unable to locate package nftables"))
    with pytest.raises(SparkError, match=r"nftables: apt-get install failed \(.*Unable to locate.*is not signed"):
        packages.install(node.machine, ["nftables"])


def test_lists_that_name_what_is_gone_are_read_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.lists(10)
    node.stale = True
    packages.install(node.machine, ["nftables"])
    assert node.updated == 1 and node.calls[-1][-2:] == ["install", "nftables"]


def test_removed_with_their_configuration(tmp_path: Path) -> None:
    node = Node(tmp_path)
    packages.purge(node.machine, ["nginx"])
    assert node.calls[-1][-2:] == ["purge", "nginx"] and node.updated == 0
    with pytest.raises(SparkError, match=r"nginx: apt-get purge failed \(held\)"):
        packages.purge(Node(tmp_path, install=Completed(100, "", "held")).machine, ["nginx"])


def test_the_lists_are_waited_for_and_read_once_an_hour(tmp_path: Path) -> None:
    node = Node(tmp_path / "busy", [Completed(100, "", BUSY)] * 3)
    packages.install(node.machine, ["x"])
    assert (node.updated, node.now) == (4, 10_015.0)
    for age_s, updated in ((10, 0), (4000, 1)):
        node = Node(tmp_path / str(age_s))
        node.lists(age_s)
        packages.install(node.machine, ["x"], recommends=True)
        assert node.updated == updated and "--no-install-recommends" not in node.calls[-1]


@pytest.mark.parametrize("before", [None, "#!/bin/sh\nexit 0\n", packages._NO_START.decode()])
def test_services_do_not_start(tmp_path: Path, before: str | None) -> None:
    node = Node(tmp_path, install=Completed(1, "", "no"))
    path = tmp_path / packages.POLICY[1:]
    path.parent.mkdir(parents=True)
    if before is not None:
        path.write_text(before)
    with pytest.raises(SparkError):
        packages.install(node.machine, ["nginx"], start=False)
    assert node.policies == [packages._NO_START.decode()]
    left = None if before == packages._NO_START.decode() else before  # one of a run that died goes
    assert (path.read_text() if path.exists() else None) == left


def test_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[list[str], bool, bool]] = []
    monkeypatch.setattr(packages, "installed", lambda _machine, names: [name for name in names if name == "tmux"])
    gone: list[list[str]] = []
    monkeypatch.setattr(packages, "purge", lambda _machine, names: gone.append(names))
    monkeypatch.setattr(
        packages, "install", lambda _machine, names, *, recommends, start: done.append((names, recommends, start))
    )
    assert calls.run("packages", {"names": ["tmux"]}, check=False)["changed"] is False
    result = calls.run("packages", {"names": ["tmux", "nginx"]}, check=True)
    assert result["changed"] and result["diff"][0]["after"] == "package nginx\n" and not done
    both = {"names": ["tmux", "nginx"]}
    assert calls.run("packages", {**both, "start": False}, check=False)["packages"] == ["nginx"]
    assert calls.run("packages", {**both, "state": "absent"}, check=False)["packages"] == ["tmux"]
    assert calls.run("packages", {"names": ["nginx"], "state": "absent"}, check=False)["changed"] is False
    assert gone == [["tmux"]]
    assert done == [(["nginx"], False, False)]
