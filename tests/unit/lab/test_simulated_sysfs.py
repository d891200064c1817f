# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The simulator's tree and tools, read by the collection's own modules: both sides must mean the same."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import ibdev2netdev, show_gids
from sim import daemon, gidtable, rtnl, spark, sysfs

TOOLS = pathlib.Path(daemon.__file__).parent / "bin"


def link(nic: spark.Nic, carrier: bool) -> rtnl.Link:
    return rtnl.Link(3, nic.netdev, spark.mac(1, nic.mac_offset), 9000, True, carrier, 0, "veth")


def tree(root: pathlib.Path) -> pathlib.Path:
    """Cage 0 cabled and addressed, cage 1 empty."""
    for nic in spark.NICS:
        found = link(nic, carrier=nic.cage == 0)
        table = gidtable.GidTable(found.mac, nic.netdev)
        if nic.cage == 0:
            table.add(f"192.168.10{nic.half}.1", nic.netdev)
        image = spark.mac(1, 0)
        place(root / "class/infiniband" / nic.rdma, sysfs.rdma(nic, found, table, image, "spark1"))
        place(root / "bus/pci/devices" / nic.pci, sysfs.pci(nic, found, image, sysfs.PciLink(width=2)))
        (root / "class/infiniband" / nic.rdma / "device").symlink_to(f"../../../bus/pci/devices/{nic.pci}")
        live = {"carrier": "1" if found.carrier else "0", "flags": "0x1003", "mtu": "9000", "address": found.mac}
        place(root / "class/net" / nic.netdev, {**live, **sysfs.overrides(nic, found, image)})
    return root


def place(base: pathlib.Path, files: dict[str, sysfs.Value]) -> None:
    for name, value in files.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(value, str):
            path.write_text(value + "\n")
        else:  # unreadable here as well as on a node
            path.mkdir()


def tool(name: str, root: pathlib.Path, *options: str) -> str:
    result = subprocess.run(
        [sys.executable, TOOLS / name, *options],
        env={"SIM_SYSFS": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout


def test_the_module_finds_two_cages_with_two_halves(tmp_path: pathlib.Path) -> None:
    ports = ibdev2netdev.read(tree(tmp_path))
    found = {
        cage.cage: [(half.netdev, half.rdma_state, half.rate_gbps, half.speed_gbps) for half in cage.halves]
        for cage in ibdev2netdev.cages(ports)
    }
    assert found == {
        0: [("enp1s0f0np0", "ACTIVE", 200.0, 200.0), ("enP2p1s0f0np0", "ACTIVE", 200.0, 200.0)],
        1: [("enp1s0f1np1", "DOWN", None, None), ("enP2p1s0f1np1", "DOWN", None, None)],
    }
    assert {port.pci.link_width for port in ports if port.pci} == {2}
    assert {port.sys_image_guid for port in ports} == {"4821:0b03:0096:01c0"}


def test_tools_and_tree_tell_the_same(tmp_path: pathlib.Path) -> None:
    root = tree(tmp_path)
    ports = {(port.rdma_device, port.netdev, port.carrier) for port in ibdev2netdev.read(root)}
    for options in ((), ("-v",)):
        parsed = ibdev2netdev.parse(tool("ibdev2netdev", root, *options))
        assert {(port.rdma_device, port.netdev, port.carrier) for port in parsed} == ports
    gids = tool("show_gids", root)
    assert "rocep1s0f0\t1\t3\t0000:0000:0000:0000:0000:ffff:c0a8:6401\t192.168.100.1  \tv2\tenp1s0f0np0\n" in gids
    assert gids.endswith("n_gids_found=12\n")
    assert len(show_gids.parse(gids)) == 12


def test_a_tree_changes_in_place_and_vanishes_at_once(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "RUN", tmp_path)
    found = daemon.Tree(tmp_path / "infiniband/rocep1s0f0", {"device": "../device"})
    found.update({"a": "1", "ports/1/b": sysfs.NO_VALUE})
    base = tmp_path / "infiniband/rocep1s0f0"
    assert (base / "a").read_text() == "1\n"
    assert (base / "ports/1/b").readlink() == pathlib.Path(daemon.EINVAL_FILE)
    found.update({"a": "2", "ports/1/b": "3"})
    assert (base / "a").read_text() == "2\n"
    assert (base / "ports/1/b").read_text() == "3\n"
    found.update({"a": "2"})
    assert not (base / "ports/1/b").exists()
    found.remove()
    assert not base.exists()
