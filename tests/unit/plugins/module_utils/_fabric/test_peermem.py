# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import peermem
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from fake_machine import FakeFiles


class Node(FakeFiles):
    """Files below a temporary root."""

    def __init__(self, root, gb10=True):
        self.root = root
        self.write("sys/class/dmi/id/product_name", "NVIDIA_DGX_Spark" if gb10 else "X12")
        self.reader = Machine(root=str(root), runner=lambda argv: Completed(127))


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(managed_files.os, "fchown", lambda *args: None)
    return Node(tmp_path)


def test_what_an_earlier_release_has_placed_goes(machine):
    root, placed = str(machine.root), machine.root / peermem.FILE.lstrip("/")
    managed_files.apply_set(peermem.SET, [managed_files.File(peermem.FILE, content=b"nvidia-peermem\n")], root=root)
    assert not peermem.quiet(machine.reader)
    assert peermem.reconcile(machine.reader, check_mode=True).changed and placed.exists()
    assert peermem.reconcile(machine.reader).changed and not placed.exists()
    assert peermem.quiet(machine.reader) and not peermem.reconcile(machine.reader).changed


STALE = {
    "etc/modules": "# nvidia-peermem\nnvidia-peermem\n",
    "etc/modules-load.d/guide.conf": "; nv_peer_mem\n\nib_uverbs\n nv_peer_mem\n",
    "etc/modules-load.d/notes.txt": "nvidia-peermem\n",
    "etc/modprobe.d/rdma.conf": "blacklist nvidia_peermem\noptions nvidia_peermem peerdirect_support=1\n",
}


@pytest.mark.parametrize("gb10", [True, False])
def test_lines_of_older_guides_are_named_and_left(tmp_path, gb10):
    machine = Node(tmp_path, gb10)
    for path, text in STALE.items():
        machine.write(path, text)
    outcome = peermem.reconcile(machine.reader)
    assert not outcome.changed
    assert len(outcome.warnings) == (3 if gb10 else 0)
    if gb10:
        for place in ("/etc/modules:2", "/etc/modules-load.d/guide.conf:4", "/etc/modprobe.d/rdma.conf:2"):
            assert sum(place in warning for warning in outcome.warnings) == 1
    assert {path: (tmp_path / path).read_text() for path in STALE} == STALE


def test_the_call(machine, monkeypatch):
    monkeypatch.setattr(peermem, "Machine", lambda: machine.reader)
    machine.write("etc/modules", "nvidia-peermem\n")
    answer = calls.run("peermem", {}, check=False)
    assert not answer["changed"] and "/etc/modules:1" in answer["warnings"][0]


@pytest.mark.parametrize("script", ["modprobe nvidia-peermem", "ip link set a up; modprobe nv_peer_mem || true"])
def test_a_unit_of_a_guide_that_loads_it_is_named(machine, script):
    machine.write("etc/systemd/system/rdma-optimize.service", "[Service]\nExecStart=/usr/local/bin/rdma-optimize.sh\n")
    machine.write("usr/local/bin/rdma-optimize.sh", f"#!/bin/sh\n{script}\n")
    assert peermem.quiet(machine.reader)
    machine.write("etc/systemd/system/multi-user.target.wants/rdma-optimize.service", "")
    assert not peermem.quiet(machine.reader)
    (warning,) = peermem.reconcile(machine.reader).warnings
    assert warning.startswith(
        "/usr/local/bin/rdma-optimize.sh: rdma-optimize.service loads nvidia-peermem at every boot"
    )
    assert "sudo systemctl disable --now rdma-optimize.service" in warning
