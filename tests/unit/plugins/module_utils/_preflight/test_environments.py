# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import pwd

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import environments as pythons
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import node_info as ni
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import PARTS, Environment, Nccl, Node

ME = pwd.getpwuid(os.getuid()).pw_name


def place(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def test_environments(tmp_path):
    place(tmp_path, "opt/a/bin/python", "opt/a/lib/python3.12/site-packages/nvidia_nccl_cu13-2.30.7.dist-info/METADATA")
    (tmp_path / "opt/b/bin").mkdir(parents=True)
    (tmp_path / "opt/b/bin/python").symlink_to("/nowhere/python3.11")
    assert pythons.environments(Machine(str(tmp_path)), ["/opt/a", "/opt/b", "/opt/c"], [ME]) == {
        "/opt/a": Environment(True, "2.30.7"),
        "/opt/b": Environment(True, None),
        "/opt/c": Environment(False, None),
    }
    (tmp_path / "opt/a/bin").chmod(0o777)
    found = pythons.environments(Machine(str(tmp_path)), ["/opt/a"], [ME])
    assert found["/opt/a"].distrusted == "everybody may write to /opt/a/bin"


def test_system_nccl(tmp_path):
    assert pythons.system_nccl(Machine(str(tmp_path))) is None
    library = "usr/lib/aarch64-linux-gnu/libnccl.so.2"
    place(tmp_path, library, f"{library}.28.9", f"{library}.30.10", "usr/local/lib/libnccl.so.2.9.1")
    assert pythons.system_nccl(Machine(str(tmp_path))) == "2.30.10"


def test_interpreters():
    def runner(argv):
        return {"good": Completed(0, "3.12.3\n"), "odd": Completed(0, "hello\n")}.get(argv[0], Completed(127, "", "no"))

    assert pythons.interpreters(Machine(runner=runner), ["good", "odd", "none"]) == {
        "good": "3.12.3",
        "odd": None,
        "none": None,
    }


def test_root_runs_no_python_of_somebody_else(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(pythons.trusted, "distrusted", lambda path, users: f"of {path}, not {users}")
    path = str(tmp_path / "bin/python")
    machine = Machine(runner=lambda argv: ran.append(argv[0]) or Completed(0, "3.12.3"))
    assert pythons.interpreters(machine, [path, "python3"], ["me"]) == {
        path: None,
        "python3": "3.12.3",
    }
    assert ran == ["python3"]


def test_nccl_settings(tmp_path):
    assert pythons.nccl_settings(Machine(str(tmp_path)), ["sparkmatrix"]) == {}
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\nbroken\nsm:x:9:9::/srv/sm/:/bin/false\n")
    (tmp_path / "etc/nccl.conf").write_text("# NCCL_DEBUG=INFO\nNCCL_IB_HCA==mlx5_0\n\nnothing\n")
    (tmp_path / "srv/sm").mkdir(parents=True)
    (tmp_path / "srv/sm/.nccl.conf").write_text(" NCCL_ALGO = Ring\n")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/.nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    assert pythons.nccl_settings(Machine(str(tmp_path)), ["sm", "nobody"]) == {
        "/etc/nccl.conf": {"NCCL_IB_HCA": "=mlx5_0"},
        "/srv/sm/.nccl.conf": {"NCCL_ALGO": "Ring"},
    }


# -- as parts of node_info


def test_parts_of_node_info(sysfs):
    sysfs.spark(cabled={0}).address("rocep1s0f0", 2, "192.168.100.10", "enp1s0f0np0")
    silent = Machine(root=str(sysfs.root.parent), runner=lambda argv: Completed(127))
    node = ni.gather(ni.Request(parts=PARTS, users=["root"]), silent)
    assert {cage.cage: cage.cabled for cage in node.rdma.cages} == {0: True, 1: False}
    assert node.rdma.reason is None
    assert [(gid.index, gid.ipv4) for gid in node.gids if gid.ipv4] == [(2, "192.168.100.10"), (3, "192.168.100.10")]
    assert node.unread("kernel_log") and not node.unread("gids")
    assert node.gpu.checked is False
    assert node.nccl == Nccl()
    # As the controller reads it; and what nobody has asked for is not there.
    assert document.load(Node, json.loads(json.dumps(ni.shown(node)))) == node
    assert not set(PARTS) & set(ni.shown(ni.gather(ni.Request(), silent)))


def test_a_machine_without_rdma(tmp_path):
    reader = Machine(root=str(tmp_path))
    assert ni.rdma(reader).reason == "class_missing"
    assert ni.read_part(reader, ni.Request(), "gids") == ()
    with pytest.raises(SparkError, match="there is no part 'odd'"):
        ni.read_part(reader, ni.Request(), "odd")


def test_an_unreadable_sysfs(tmp_path, monkeypatch):
    def refuse(root):
        raise SparkError("no permission to read", "/sys")

    monkeypatch.setattr(ni.ibdev2netdev, "read", refuse)
    monkeypatch.setattr(ni.show_gids, "read", refuse)
    reader = Machine(root=str(tmp_path))
    assert (ni.rdma(reader).reason, ni.read_part(reader, ni.Request(), "gids")) == ("unreadable", None)


def test_netplan_modes_and_bonds(tmp_path):
    place(tmp_path, "etc/netplan/a.yaml", "etc/netplan/b.yaml")
    (tmp_path / "etc/netplan/a.yaml").chmod(0o640)
    (tmp_path / "etc/netplan/b.yaml").write_text(
        "network:\n  # bonds: none\n  ethernets:\n    enP7s7: {}\n  bonds:\n    bond0:\n"
        "      interfaces: [enp1s0f0np0, enP2p1s0f0np0]  # enp9\n"
    )
    reader = Machine(root=str(tmp_path))
    assert ni.mode(reader, "/etc/netplan/a.yaml") == "0640"
    assert ni.mode(reader, "/etc/netplan/none.yaml") is None
    assert ni.netplan_bonds(reader) == {"/etc/netplan/b.yaml": ("enP2p1s0f0np0", "enp1s0f0np0")}
