# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import pwd
import sys
import types

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import node_health as nh
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import node_info as ni
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import PARTS, Environment, Nccl, Node

# Lines as the kernel writes them: Linux 6.8 ("Uncorrected"), Linux 6.14 and later ("Uncorrectable").
FATAL_OLD = """pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0
pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)
pcieport 0000:00:03.0:   device [6f08:8086] error status/mask=00004020/00000000
pcieport 0000:00:03.0: AER: device recovery failed
"""
FATAL_NEW = """pcieport 0002:00:00.0: AER: Uncorrectable (Fatal) error message received from 0002:01:00.0
mlx5_core 0002:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)
"""
HARMLESS = """pcieport 0000:00:1b.2: AER: Correctable error message received from 0000:03:04.0
pcieport 0000:03:04.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)
pcieport 0000:03:04.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer
mlx5_core 0000:01:00.0: mlx5_pcie_event:310:(pid 412): Detected insufficient power on the PCIe slot (27W).
"""
LOST = "mlx5_core 0000:01:00.0: Unable to change power state from D3cold to D0, device inaccessible\n"

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FATAL_OLD, [("aer_fatal", "0000:00:03.0", 3)]),
        (FATAL_NEW, [("aer_fatal", "0002:00:00.0", 1), ("aer_fatal", "0002:01:00.0", 1)]),
        (LOST * 2, [("low_power", "0000:01:00.0", 2)]),
        (HARMLESS, []),
        ("AER: device recovery failed", [("aer_fatal", "", 1)]),
        ("", []),
    ],
)
def test_kernel_log(text, expected):
    found = nh.parse_kernel_log(text)
    assert [(one.kind, one.device, one.count) for one in found] == expected
    assert all(one.line in text for one in found)


@pytest.mark.parametrize(("config", "missing"), [(b"\xb3\x15", False), (b"\xff\xff", True), (None, True), (b"", False)])
def test_a_device_that_came_back_is_not_missing(tmp_path, config, missing):
    place = tmp_path / "bus/pci/devices/0000:01:00.0"
    if config is not None:
        place.mkdir(parents=True)
        (place / "config").write_bytes(config)
    assert nh.kernel_log(lambda argv: Completed(0, LOST), tmp_path)[0].missing is missing


def test_a_journal_that_does_not_answer(tmp_path):
    assert nh.kernel_log(lambda argv: Completed(1, "", "no"), tmp_path) is None
    asked = []
    assert nh.kernel_log(lambda argv: asked.append(argv) or Completed(0, LOST), tmp_path)[0].kind == "low_power"
    assert asked[0][asked[0].index("-n") + 1] == str(nh.KERNEL_LINES)


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        (Completed(0, "answer 0 CUDA_SUCCESS\n"), (True, True, 0, "CUDA_SUCCESS")),
        (Completed(0, "answer 999 CUDA_ERROR_UNKNOWN\n"), (True, False, 999, "CUDA_ERROR_UNKNOWN")),
        (Completed(0, "answer 100 \n"), (True, False, 100, "")),
        (Completed(0, "absent libcuda.so.1: cannot open\n"), (False, None, None, "libcuda.so.1: cannot open")),
        (Completed(124, "", "gave no answer"), (True, False, None, "cuInit gives no answer")),
        (Completed(-11, "", ""), (True, False, None, "it printed nothing")),
        (Completed(1, "", "Traceback"), (False, None, None, "Traceback")),
        (Completed(0, "", ""), (False, None, None, "it printed nothing")),
    ],
)
def test_cuda(done, expected):
    found = nh.cuda(lambda argv: done)
    assert (found.checked, found.ok, found.code, found.message) == expected


def test_the_program_that_asks_cuda_runs():
    found = nh.cuda()
    assert found.ok if found.checked else "libcuda.so.1" in found.message


def test_a_library_that_answers(monkeypatch, capsys):
    asked = []

    class Library:
        def __init__(self, name):
            asked.append(name)

        def cuInit(self, flags):
            return 999

        def cuGetErrorName(self, code, name):
            name.value = b"CUDA_ERROR_UNKNOWN"

    stand_in = types.SimpleNamespace(
        CDLL=Library, c_char_p=lambda: types.SimpleNamespace(value=None), byref=lambda name: name
    )
    monkeypatch.setitem(sys.modules, "ctypes", stand_in)
    exec(nh._CU_INIT, {})
    assert capsys.readouterr().out == "answer 999 CUDA_ERROR_UNKNOWN\n"
    assert asked == ["libcuda.so.1"]


def place(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def test_environments(tmp_path):
    place(tmp_path, "opt/a/bin/python", "opt/a/lib/python3.12/site-packages/nvidia_nccl_cu13-2.30.7.dist-info/METADATA")
    (tmp_path / "opt/b/bin").mkdir(parents=True)
    (tmp_path / "opt/b/bin/python").symlink_to("/nowhere/python3.11")
    assert nh.environments(tmp_path, ["/opt/a", "/opt/b", "/opt/c"], [ME]) == {
        "/opt/a": Environment(True, "2.30.7"),
        "/opt/b": Environment(True, None),
        "/opt/c": Environment(False, None),
    }
    (tmp_path / "opt/a/bin").chmod(0o777)
    found = nh.environments(tmp_path, ["/opt/a"], [ME])
    assert found["/opt/a"].distrusted == "everybody may write to /opt/a/bin"


def test_system_nccl(tmp_path):
    assert nh.system_nccl(tmp_path) is None
    library = "usr/lib/aarch64-linux-gnu/libnccl.so.2"
    place(tmp_path, library, f"{library}.28.9", f"{library}.30.10", "usr/local/lib/libnccl.so.2.9.1")
    assert nh.system_nccl(tmp_path) == "2.30.10"


def test_interpreters():
    def runner(argv):
        return {"good": Completed(0, "3.12.3\n"), "odd": Completed(0, "hello\n")}.get(argv[0], Completed(127, "", "no"))

    assert nh.interpreters(runner, ["good", "odd", "none"]) == {"good": "3.12.3", "odd": None, "none": None}


def test_root_runs_no_python_of_somebody_else(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(nh.trusted, "distrusted", lambda path, users: f"of {path}, not {users}")
    path = str(tmp_path / "bin/python")
    assert nh.interpreters(lambda argv: ran.append(argv[0]) or Completed(0, "3.12.3"), [path, "python3"], ["me"]) == {
        path: None,
        "python3": "3.12.3",
    }
    assert ran == ["python3"]


def test_nccl_settings(tmp_path):
    assert nh.nccl_settings(tmp_path, ["sparkmatrix"]) == {}
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\nbroken\nsm:x:9:9::/srv/sm/:/bin/false\n")
    (tmp_path / "etc/nccl.conf").write_text("# NCCL_DEBUG=INFO\nNCCL_IB_HCA==mlx5_0\n\nnothing\n")
    (tmp_path / "srv/sm").mkdir(parents=True)
    (tmp_path / "srv/sm/.nccl.conf").write_text(" NCCL_ALGO = Ring\n")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/.nccl.conf").write_text("NCCL_DEBUG=INFO\n")
    assert nh.nccl_settings(tmp_path, ["sm", "nobody"]) == {
        "/etc/nccl.conf": {"NCCL_IB_HCA": "=mlx5_0"},
        "/srv/sm/.nccl.conf": {"NCCL_ALGO": "Ring"},
    }


# -- as parts of node_info


def test_parts_of_node_info(sysfs):
    sysfs.spark(cabled={0}).address("rocep1s0f0", 2, "192.168.100.10", "enp1s0f0np0")
    silent = Machine(root=str(sysfs.root.parent), runner=lambda argv: Completed(127))
    node = ni.gather(ni.Request(parts=PARTS, users=["root"]), silent, lambda argv: Completed(1))
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
