# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.ibdev2netdev import (
    Cage,
    PciFunction,
    RdmaPort,
    cages,
    explain_absence,
    parse,
    read,
    select,
)
from hypothesis import given
from hypothesis import strategies as st
from sysfs_tree import SysfsTree

GUID = "4cbb:4703:002e:104f"


def by_name(ports: list[RdmaPort]) -> dict[str, RdmaPort]:
    return {port.rdma_device: port for port in ports}


# --- sysfs -----------------------------------------------------------------------------------------------------------


def test_every_value_of_a_cabled_half(sysfs: SysfsTree) -> None:
    ports = read(sysfs.spark(cabled={1}).root)
    assert [port.rdma_device for port in ports] == ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1"]
    assert ports[3] == RdmaPort(
        rdma_device="roceP2p1s0f1",
        port=1,
        driver="mlx5_core",
        link_layer="Ethernet",
        rdma_state="ACTIVE",
        phys_state="LinkUp",
        rate_gbps=200.0,
        netdev="enP2p1s0f1np1",
        netdev_source="gid",
        carrier=True,
        admin_up=True,
        operstate="up",
        speed_gbps=200.0,
        mtu=9000,
        mac="4c:bb:47:2e:10:54",
        phys_port_name="p1",
        phys_switch_id="4f102e0047bb4c",
        firmware="28.45.4028",
        board_id="NVD0000000087",
        hca_type="MT4129",
        node_guid="4cbb:4703:002e:1054",
        sys_image_guid=GUID,
        part_id=None,
        description=None,
        pci=PciFunction("0002:01:00.1", "0x15b3", "0x1021", None, 32.0, 4, 32.0, 4),
    )


def test_a_down_port_has_no_rate(sysfs: SysfsTree) -> None:
    """The driver claims 40 Gb/s for it."""
    down = by_name(read(sysfs.spark(cabled={1}).root))["rocep1s0f0"]
    assert sysfs.path("class/infiniband/rocep1s0f0/ports/1/rate").read_text() == "40 Gb/sec (4X QDR)\n"
    assert (down.rdma_state, down.phys_state, down.rate_gbps) == ("DOWN", "Disabled", None)
    assert (down.carrier, down.admin_up, down.operstate, down.speed_gbps, down.mtu) == (False, True, "down", None, 1500)
    assert not down.active


@pytest.mark.parametrize(
    ("cabled", "expected"),
    [((), [False, False]), ((0,), [True, False]), ((1,), [False, True]), ((0, 1), [True, True])],
)
def test_cages(sysfs: SysfsTree, cabled: tuple[int, ...], expected: list[bool]) -> None:
    found = cages(read(sysfs.spark(cabled=cabled).root))
    assert [cage.cage for cage in found] == [0, 1]
    assert [cage.port_name for cage in found] == ["p0", "p1"]
    assert [cage.cabled for cage in found] == expected
    assert [cage.admin_down for cage in found] == [False, False]
    assert [[half.netdev for half in cage.halves] for cage in found] == [
        ["enp1s0f0np0", "enP2p1s0f0np0"],
        ["enp1s0f1np1", "enP2p1s0f1np1"],
    ]
    assert [[half.pci.path for half in cage.halves if half.pci] for cage in found] == [["0000", "0002"]] * 2
    assert {cage.sys_image_guid for cage in found} == {GUID}


def test_names_that_mislead(sysfs: SysfsTree) -> None:
    """Numbered device names, and netdev names that pair the wrong ports: only the hardware counts."""
    names = {
        "0000:01:00.0": ("mlx5_0", "enp1s0f1np1"),
        "0000:01:00.1": ("mlx5_1", "enp1s0f0np0"),
        "0002:01:00.0": ("mlx5_10", "eth0"),
        "0002:01:00.1": ("mlx5_2", "eth1"),
    }
    ports = read(sysfs.spark(cabled={0}, names=names).root)
    assert [port.rdma_device for port in ports] == ["mlx5_0", "mlx5_1", "mlx5_10", "mlx5_2"], "PCI order"
    assert [[(h.rdma_device, h.netdev) for h in cage.halves] for cage in cages(ports)] == [
        [("mlx5_0", "enp1s0f1np1"), ("mlx5_10", "eth0")],
        [("mlx5_1", "enp1s0f0np0"), ("mlx5_2", "eth1")],
    ]
    assert [cage.cabled for cage in cages(ports)] == [True, False]


def test_two_adapters_have_their_own_cages(sysfs: SysfsTree) -> None:
    sysfs.mlx5("0001:01:00.0", "mlx5_0", "eth0", "p0", 0x10, adapter=0x10)
    sysfs.mlx5("0003:01:00.0", "mlx5_1", "eth1", "p0", 0x20, adapter=0x20)
    sysfs.mlx5("0003:01:00.1", "mlx5_2", "eth2", "p10", 0x21, adapter=0x20, up=False)
    found = cages(read(sysfs.root))
    assert [(cage.sys_image_guid, cage.cage, len(cage.halves)) for cage in found] == [
        ("4cbb:4703:002e:1010", 0, 1),
        ("4cbb:4703:002e:1020", 0, 1),
        ("4cbb:4703:002e:1020", 10, 1),
    ]
    assert found[2].port_name == "p10"


@pytest.mark.parametrize("port_name", [None, "pf0vf1", "p0s1", "p", "xp0", "P0", "p1234"])
def test_ports_without_a_cage(sysfs: SysfsTree, port_name: str | None) -> None:
    """Virtual functions, representors and split ports."""
    sysfs.mlx5("0000:01:00.2", "mlx5_4", "eth4", port_name, 0x60)
    ports = read(sysfs.root)
    assert [port.phys_port_name for port in ports] == [port_name]
    assert cages(ports) == []


@pytest.mark.parametrize("guid", [None, "", "0000:0000:0000:0000"])
def test_no_cage_without_an_adapter_guid(guid: str | None) -> None:
    assert cages([RdmaPort("mlx5_0", 1, phys_port_name="p0", sys_image_guid=guid)]) == []


@pytest.mark.parametrize(
    ("state", "carrier", "cabled"), [("ACTIVE", False, True), ("DOWN", True, True), (None, None, False)]
)
def test_carrier_or_rdma_state_prove_a_cable(state: str | None, carrier: bool | None, cabled: bool) -> None:
    half = RdmaPort("d", 1, rdma_state=state, carrier=carrier)
    assert Cage(0, "p0", GUID, (half,)).cabled is cabled


def test_administratively_down(sysfs: SysfsTree) -> None:
    """The carrier of such a netdev cannot be read (EINVAL)."""
    sysfs.spark(cabled=())
    for netdev in ("enp1s0f0np0", "enP2p1s0f0np0"):
        sysfs.remove(f"class/net/{netdev}/carrier")
        sysfs.write(f"class/net/{netdev}/flags", "0x1002")
    first, second = cages(read(sysfs.root))
    assert [(half.carrier, half.admin_up) for half in first.halves] == [(False, False)] * 2
    assert (first.admin_down, first.cabled) == (True, False)
    assert second.admin_down is False
    sysfs.write("class/net/enp1s0f0np0/flags", "0x1003")
    assert cages(read(sysfs.root))[0].admin_down is False


def test_soft_roce(sysfs: SysfsTree) -> None:
    (port,) = read(sysfs.rxe("rxe0", "eth1").root)
    assert (port.driver, port.link_layer, port.rdma_state, port.rate_gbps) == ("rdma_rxe", "Ethernet", "ACTIVE", 2.5)
    assert (port.netdev, port.netdev_source, port.phys_port_name, port.pci) == ("eth1", "gid", None, None)
    assert cages([port]) == []


def test_soft_roce_without_a_gid_uses_its_parent(sysfs: SysfsTree) -> None:
    sysfs.rxe("rxe0", "eth1").remove("class/infiniband/rxe0/ports/1/gid_attrs")
    (port,) = read(sysfs.root)
    assert (port.netdev, port.netdev_source, port.mtu) == ("eth1", "parent", 1500)


def test_soft_iwarp(sysfs: SysfsTree) -> None:
    sysfs.netdev("eth3")
    sysfs.rdma("siw0", "devices/virtual")
    sysfs.write("class/infiniband/siw0/node_desc", "Software iWARP stack")
    sysfs.rdma("siw1", "devices/virtual")
    sysfs.write("class/infiniband/siw1/node_type", "4: RNIC")
    # Older kernels hang the device below the PCI function of its netdev, whose driver is not the RDMA driver.
    sysfs.rdma("siw2", "devices/virtual")
    sysfs.write("class/infiniband/siw2/node_desc", "Software iWARP stack")
    sysfs.link("class/infiniband/siw2/device", sysfs.pci("0005:00:00.0", "0x1af4", driver="virtio-pci"))
    sysfs.netdev("eth5", "devices/pci0005:00/0005:00:00.0/0005:00:00.0")
    ports = by_name(read(sysfs.root))
    assert {name: port.driver for name, port in ports.items()} == {"siw0": "siw", "siw1": "siw", "siw2": "siw"}
    assert (ports["siw0"].netdev, ports["siw0"].netdev_source, ports["siw0"].carrier) == (None, None, None)
    assert (ports["siw2"].netdev, ports["siw2"].netdev_source) == ("eth5", "pci")


def test_a_bond(sysfs: SysfsTree) -> None:
    """Entry 0 names the bond; what the hardware knows still comes from the port's own netdev."""
    sysfs.spark(cabled={0})
    sysfs.netdev("bond0", address="4c:bb:47:00:00:99", speed=400000, mtu=4200, operstate="dormant", carrier=0)
    sysfs.write("class/infiniband/rocep1s0f0/ports/1/gid_attrs/ndevs/0", "bond0")
    port = by_name(read(sysfs.root))["rocep1s0f0"]
    assert (port.netdev, port.netdev_source) == ("bond0", "gid")
    assert (port.mac, port.mtu, port.operstate, port.carrier) == ("4c:bb:47:00:00:99", 4200, "dormant", False)
    assert (port.phys_port_name, port.phys_switch_id, port.speed_gbps) == ("p0", "4f102e0047bb4c", 200.0)
    assert len(cages(read(sysfs.root))[0].halves) == 2


def test_a_netdev_in_another_network_namespace(sysfs: SysfsTree) -> None:
    sysfs.spark(cabled={0})
    sysfs.remove("class/net/enp1s0f0np0")
    sysfs.remove("class/infiniband/rocep1s0f0/device/net")
    port = by_name(read(sysfs.root))["rocep1s0f0"]
    assert (port.netdev, port.carrier, port.mtu, port.rdma_state) == ("enp1s0f0np0", None, None, "ACTIVE")


def test_a_two_port_device(sysfs: SysfsTree) -> None:
    """ConnectX-3: one function, two RDMA ports, two netdevs that differ in dev_port."""
    pci = sysfs.pci("0000:03:00.0", driver="mlx4_core")
    directory = sysfs.rdma("mlx4_0", pci)
    sysfs.rdma_port("mlx4_0", directory, 2, up=False)
    sysfs.link(f"{directory}/device", pci)
    sysfs.netdev("eth4", pci, dev_port=0, mtu=1501)
    sysfs.netdev("eth5", pci, dev_port=1, mtu=1502)
    sysfs.write(f"{directory}/ports/2/link_layer", "InfiniBand")
    assert [(p.port, p.netdev, p.mtu, p.link_layer, p.active) for p in read(sysfs.root)] == [
        (1, "eth4", 1501, "Ethernet", True),
        (2, "eth5", 1502, "InfiniBand", False),
    ]


def test_representors_beside_the_physical_port(sysfs: SysfsTree) -> None:
    sysfs.mlx5("0000:01:00.0", "mlx5_0", "eth0", "p0", 1)
    sysfs.remove("class/infiniband/mlx5_0/ports/1/gid_attrs")
    pci = "devices/pci0000:01/0000:00:00.0/0000:01:00.0"
    sysfs.netdev("eth0_rep", pci, phys_port_name="pf0vf0")
    assert [(p.netdev, p.phys_port_name) for p in read(sysfs.root)] == [("eth0", "p0")]
    sysfs.write(f"{pci}/net/eth0_rep/phys_port_name", "p0")
    assert [(p.netdev, p.phys_port_name) for p in read(sysfs.root)] == [(None, None)], "two that look alike: none"


@pytest.mark.parametrize(
    ("attribute", "content", "field", "value"),
    [
        ("ports/1/state", "2: INIT", "rdma_state", "INIT"),
        ("ports/1/state", "", "rdma_state", None),
        ("ports/1/rate", "100 Gb/sec (4X EDR)", "rate_gbps", 100.0),
        ("ports/1/rate", "", "rate_gbps", None),
        ("fw_ver", "", "firmware", None),
        ("device/net/enp1s0f0np0/speed", "-1", "speed_gbps", None),
        ("device/net/enp1s0f0np0/speed", "4294967295", "speed_gbps", None),
        ("device/net/enp1s0f0np0/speed", "2500", "speed_gbps", 2.5),
        ("device/net/enp1s0f0np0/carrier", "2", "carrier", False),
    ],
)
def test_values_of_one_attribute(sysfs: SysfsTree, attribute: str, content: str, field: str, value: object) -> None:
    sysfs.spark()
    sysfs.write(f"class/infiniband/rocep1s0f0/{attribute}", content)
    assert getattr(by_name(read(sysfs.root))["rocep1s0f0"], field) == value


@pytest.mark.parametrize(
    ("attribute", "content", "field", "value"),
    [
        ("numa_node", "0", "numa_node", 0),
        ("numa_node", "-1", "numa_node", None),
        ("current_link_speed", "16.0 GT/s PCIe", "link_speed_gts", 16.0),
        ("current_link_speed", "Unknown speed", "link_speed_gts", None),
        ("current_link_width", "255", "link_width", None),
    ],
)
def test_values_of_the_pci_function(sysfs: SysfsTree, attribute: str, content: str, field: str, value: object) -> None:
    sysfs.spark()
    sysfs.write(f"class/infiniband/rocep1s0f0/device/{attribute}", content)
    assert getattr(by_name(read(sysfs.root))["rocep1s0f0"].pci, field) == value


@pytest.mark.parametrize(
    ("speed", "width", "gbps"),
    [
        (32.0, 4, 126.0),
        (16.0, 16, 252.1),
        (8.0, 4, 31.5),
        (None, 4, None),
        (32.0, None, None),
    ],
)
def test_bandwidth_of_a_pcie_link(speed: float | None, width: int | None, gbps: float | None) -> None:
    function = PciFunction("000f:01:00.0", link_speed_gts=speed, link_width=width)
    assert function.bandwidth_gbps == gbps
    assert function.path == "000f"


def test_the_function_leaves_while_it_is_read(sysfs: SysfsTree) -> None:
    """Hot-plug: the class still has the link, the directory is gone."""
    sysfs.spark()
    sysfs.remove("devices/pci0000:01")
    assert [port.rdma_device for port in read(sysfs.root)] == ["roceP2p1s0f0", "roceP2p1s0f1"]


@given(
    st.dictionaries(
        st.sampled_from(
            ["ports/1/state", "ports/1/rate", "ports/1/gid_attrs/ndevs/0", "sys_image_guid", "parent", "node_desc",
             "device/uevent", "device/net/n/speed", "device/net/n/mtu", "device/net/n/phys_port_name",
             "device/net/n/flags", "device/numa_node", "device/current_link_speed"]
        ),
        st.binary(max_size=20),
    )
)  # fmt: skip
def test_any_content_gives_a_result(tmp_path_factory: pytest.TempPathFactory, content: dict[str, bytes]) -> None:
    tree = SysfsTree(tmp_path_factory.mktemp("sys"))
    for name, data in content.items():
        tree.write(f"class/infiniband/d/{name}", data)
    tree.write("class/infiniband/d/ports/1/lid", "0")
    (port,) = read(tree.root)
    port.as_dict()
    cages([port])


# --- nothing there ---------------------------------------------------------------------------------------------------


def test_no_rdma_at_all(sysfs: SysfsTree) -> None:
    sysfs.pci("0007:01:00.0", vendor="0x10ec", driver="r8127")
    assert read(sysfs.root) == []
    absence = explain_absence(sysfs.root)
    assert absence.reason == "class_missing"
    assert str(sysfs.path("class/infiniband")) in absence.message


@pytest.mark.parametrize(
    "sign",
    [
        "module/mlx5_core/refcnt",
        "bus/platform/drivers/cx7-pcie-hotplug/uevent",
        "../etc/udev/rules.d/90-mtk-hotplug.rules",
        "../lib/udev/rules.d/90-mtk-hotplug.rules",
        "../usr/lib/udev/rules.d/90-mtk-hotplug.rules",
        "../etc/dgx-release",
        "class/infiniband/.keep",
    ],
)
def test_the_nic_was_removed(sysfs: SysfsTree, sign: str) -> None:
    sysfs.write(sign, "")
    sysfs.pci("0007:01:00.0", vendor="0x10ec", driver="r8127")
    assert read(sysfs.root) == []
    absence = explain_absence(sysfs.root)
    assert absence.reason == "nic_removed"
    assert "no QSFP cable is plugged" in absence.message
    assert "Power off both machines" in absence.message


def test_the_driver_is_not_loaded(sysfs: SysfsTree) -> None:
    sysfs.pci("0002:01:00.0", driver="")
    sysfs.pci("0000:01:00.1", driver="")
    sysfs.pci("0007:01:00.0", vendor="0x10ec", driver="r8127")
    for there in (False, True):
        assert read(sysfs.root) == []
        absence = explain_absence(sysfs.root)
        assert absence.reason == "driver_not_loaded"
        assert "0000:01:00.1, 0002:01:00.0 are on the PCI bus" in absence.message
        assert "modprobe mlx5_ib" in absence.message
        if not there:
            sysfs.path("class/infiniband").mkdir(parents=True)


def test_the_tool_is_silent_about_what_the_kernel_has(sysfs: SysfsTree) -> None:
    sysfs.rxe("rxe10", "eth1").rxe("rxe2", "eth2")
    absence = explain_absence(sysfs.root)
    assert absence.reason == "not_listed"
    assert "rxe2, rxe10" in absence.message
    assert "source: sysfs" in absence.message


# --- filters ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        ({}, ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1", "rxe0"]),
        ({"driver": "mlx5_core"}, ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1"]),
        ({"state": "active"}, ["rocep1s0f1", "roceP2p1s0f1", "rxe0"]),
        ({"state": "down"}, ["rocep1s0f0", "roceP2p1s0f0"]),
        ({"name": "rocep*"}, ["rocep1s0f0", "rocep1s0f1"]),
        ({"name": "enP2p1s0f?np1"}, ["roceP2p1s0f1"]),
        ({"driver": "mlx5_core", "state": "active", "name": "*np1"}, ["rocep1s0f1", "roceP2p1s0f1"]),
    ],
)
def test_filters(sysfs: SysfsTree, criteria: dict[str, str], expected: list[str]) -> None:
    sysfs.spark(cabled={1}).rxe("rxe0", "eth1")
    assert [port.rdma_device for port in select(read(sysfs.root), **criteria)] == expected


# --- the tool's text -------------------------------------------------------------------------------------------------


def row(device: str, netdev: str | None, carrier: bool | None, port: int = 1, **more: object) -> RdmaPort:
    values = {"netdev": netdev, "netdev_source": "tool" if netdev else None, "carrier": carrier, **more}
    return replace(RdmaPort(device, port), **values)  # type: ignore[arg-type]


FW = "28.45.1020"
DIALECTS = {
    "plain.txt": [
        row("roceP2p1s0f0", "enP2p1s0f0np0", False),
        row("roceP2p1s0f1", "enP2p1s0f1np1", True),
        row("rocep1s0f0", "enp1s0f0np0", False),
        row("rocep1s0f1", "enp1s0f1np1", True),
    ],
    "infiniband.txt": [
        row("mlx5_0", "ib0", True),
        row("mlx5_1", "ib1", False),
        row("mlx5_1", "ens9", None, 2),
        row("mlx5_bond_0", "bond0", None),
        row("mlx5_4", None, False),
    ],
    "old_style.txt": [row("mlx4_0", "eth2", None), row("mlx4_0", "ib0", None, 2)],
    "verbose.txt": [
        row("rocep1s0f0", "enp1s0f0np0", True, rdma_state="ACTIVE", firmware=FW, hca_type="MT4129", part_id="GX7-55A",
            description="Acme ConnectX-7, 2-port 200GbE (QSFP112), PCIe 5.0, x4", pci=PciFunction("0000:01:00.0")),
        row("rocep1s0f1", "enp1s0f1np1", False, rdma_state="DOWN", firmware=FW, hca_type="MT4129", part_id="GX7-55A",
            description="Acme ConnectX-7, 2-port 200GbE (QSFP112), PCIe 5.0, x4", pci=PciFunction("0000:01:00.1")),
        row("roceP2p1s0f0", "enP2p1s0f0np0", False, rdma_state="INIT", firmware=FW, hca_type="MT4130",
            pci=PciFunction("0002:01:00.0")),
        row("rocesim0", "veth0", None),
        row("mlx5_6", "ib0", True, 2, rdma_state="ACTIVE", hca_type="MT4123", part_id="MCX6", description="CX6",
            pci=PciFunction("0000:02:00.0")),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_dialects(fixtures: Path, name: str) -> None:
    text = (fixtures / "ibdev2netdev" / name).read_bytes().decode()
    assert parse(text) == DIALECTS[name]
    assert cages(parse(text)) == [], "text does not tell the cage"


@pytest.mark.parametrize(
    "text",
    [
        "bash: ibdev2netdev: command not found",
        "mlx5_0 port 1 ==> eth0",
        "mlx5_0 port 1 ==> eth0 (Sideways)",
        "mlx5_1 port 1 ==> eth1 (Up)\nmlx5_0 port",
        "0000:01:00.0 mlx5_0 (MT4129) CX7 fw 1.2 port 1 (ACTIVE) ==> eth0 (Up)",
    ],
)
def test_text_that_cannot_be_read(text: str) -> None:
    with pytest.raises(SparkError, match="cannot read the row") as raised:
        parse(text)
    assert raised.value.where == "output of ibdev2netdev"
