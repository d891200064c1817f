# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import peermem
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import files as managed_files
from fake_machine import FakeFiles

EINVAL = "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument"


class Node(FakeFiles):
    """Files below a temporary root; modprobe works unless ``complaint`` is set."""

    def __init__(self, root, gb10=True):
        self.root = root
        self.complaint = {}
        self.log = []
        self.write("proc/modules", "mlx5_core 1 0 - Live 0x0\n")
        self.write("sys/class/dmi/id/product_name", "NVIDIA_DGX_Spark" if gb10 else "X12")
        self.reader = Machine(root=str(root), runner=self.run)

    def run(self, argv):
        if argv[0] != "modprobe":
            return Completed(127)
        self.log.append(" ".join(argv))
        if argv[1] in self.complaint:
            return Completed(1, "", self.complaint[argv[1]])
        self.write("proc/modules", "" if argv[1] == "-r" else "nvidia_peermem 1 0 - Live 0x0\n")
        return Completed(0)

    def exists(self):
        return (self.root / peermem.FILE.lstrip("/")).exists()


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(managed_files.os, "fchown", lambda *args: None)
    return Node(tmp_path)


def test_loaded_on_request_kept_and_taken_back(machine):
    told = peermem.reconcile(machine.reader, "true", check_mode=True)
    assert (told.changed, told.loaded, machine.log, machine.exists()) == (True, False, [], False)
    done = peermem.reconcile(machine.reader, "true")
    assert (done.changed, done.loaded, machine.exists()) == (True, True, True)
    assert not peermem.reconcile(machine.reader, "true").changed
    back = peermem.reconcile(machine.reader, "auto")
    assert (back.changed, back.loaded, machine.exists(), back.warnings) == (True, False, False, [])
    assert machine.log == ["modprobe nvidia-peermem", "modprobe -r nvidia-peermem"]
    assert not peermem.reconcile(machine.reader, "auto").changed


@pytest.mark.parametrize(
    ("complaint", "says"),
    [
        (EINVAL, "no GPUDirect RDMA, as on every GB10"),
        ("modprobe: FATAL: Module nvidia-peermem not found", "Install the module's package"),
    ],
)
def test_what_does_not_load_is_not_tried_again_at_boot(machine, complaint, says):
    machine.complaint["nvidia-peermem"] = complaint
    with pytest.raises(SparkError, match=says):
        peermem.reconcile(machine.reader, "true")
    assert not machine.exists()


def test_a_module_in_use_stays_until_the_reboot(machine):
    peermem.reconcile(machine.reader, "true")
    machine.complaint["-r"] = "Module nvidia_peermem is in use"
    outcome = peermem.reconcile(machine.reader, "false")
    assert outcome.loaded
    assert not machine.exists()
    assert "is in use" in outcome.warnings[0]


def test_what_others_loaded_is_not_unloaded(machine):
    machine.write("proc/modules", "nvidia_peermem 1 0 - Live 0x0\n")
    outcome = peermem.reconcile(machine.reader, "false")
    assert (outcome.changed, outcome.loaded, machine.log) == (False, True, [])


STALE = {
    "etc/modules": "# nvidia-peermem\nnvidia-peermem\n",
    "etc/modules-load.d/guide.conf": "; nv_peer_mem\n\nib_uverbs\n nv_peer_mem\n",
    "etc/modules-load.d/notes.txt": "nvidia-peermem\n",
    "etc/modprobe.d/rdma.conf": "blacklist nvidia_peermem\noptions nvidia_peermem peerdirect_support=1\n",
}


@pytest.mark.parametrize(
    ("load", "gb10", "warns"), [("auto", True, True), ("auto", False, False), ("false", False, True)]
)
def test_lines_of_older_guides_are_named_and_left(tmp_path, load, gb10, warns):
    machine = Node(tmp_path, gb10)
    for path, text in STALE.items():
        machine.write(path, text)
    outcome = peermem.reconcile(machine.reader, load)
    assert not outcome.changed
    assert len(outcome.warnings) == (3 if warns else 0)
    if warns:
        for place in ("/etc/modules:2", "/etc/modules-load.d/guide.conf:4", "/etc/modprobe.d/rdma.conf:2"):
            assert sum(place in warning for warning in outcome.warnings) == 1
    assert {path: (tmp_path / path).read_text() for path in STALE} == STALE


def test_the_call(machine, monkeypatch):
    monkeypatch.setattr(peermem, "Machine", lambda: machine.reader)
    machine.write("etc/modules", "nvidia-peermem\n")
    answer = calls.run("peermem", {}, check=False)
    assert (answer["changed"], answer["loaded"]) == (False, False)
    assert "/etc/modules:1" in answer["warnings"][0]
    machine.complaint["nvidia-peermem"] = EINVAL
    with pytest.raises(SparkError, match="refuses to load"):
        calls.run("peermem", {"load": "true"}, check=False)


@pytest.mark.parametrize("script", ["modprobe nvidia-peermem", "ip link set a up; modprobe nv_peer_mem || true"])
def test_a_unit_of_a_guide_that_loads_it_is_named(machine, script):
    machine.write("etc/systemd/system/rdma-optimize.service", "[Service]\nExecStart=/usr/local/bin/rdma-optimize.sh\n")
    machine.write("usr/local/bin/rdma-optimize.sh", f"#!/bin/sh\n{script}\n")
    assert peermem.quiet(machine.reader)
    machine.write("etc/systemd/system/multi-user.target.wants/rdma-optimize.service", "")
    assert not peermem.quiet(machine.reader)
    (warning,) = peermem.reconcile(machine.reader, "auto").warnings
    assert warning.startswith(
        "/usr/local/bin/rdma-optimize.sh: rdma-optimize.service loads nvidia-peermem at every boot"
    )
    assert "sudo systemctl disable --now rdma-optimize.service" in warning
    assert peermem.reconcile(machine.reader, "true").warnings == []
