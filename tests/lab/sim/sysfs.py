# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The sysfs files of one simulated ConnectX-7 function, as text. Pure: the daemon writes what this returns.

File list: Linux 6.12 drivers/infiniband/core/sysfs.c and drivers/infiniband/hw/mlx5/main.c.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim import gidtable, rtnl, spark

FIRMWARE = "28.45.4028"
CABLE_MBPS = 200000
RATES = {200000: "200 Gb/sec (2X NDR)", 100000: "100 Gb/sec (2X HDR)"}
BOARD = "NVD0000000087"
COUNTERS = [
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
    "VL15_dropped",
]
HW_COUNTERS = [
    "duplicate_request",
    "implied_nak_seq_err",
    "lifespan",
    "local_ack_timeout_err",
    "np_cnp_sent",
    "np_ecn_marked_roce_packets",
    "out_of_buffer",
    "out_of_sequence",
    "packet_seq_err",
    "req_cqe_error",
    "req_cqe_flush_error",
    "req_remote_access_errors",
    "req_remote_invalid_request",
    "resp_cqe_error",
    "resp_cqe_flush_error",
    "resp_local_length_error",
    "resp_remote_access_errors",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
    "roce_adp_retrans_to",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
    "rp_cnp_handled",
    "rp_cnp_ignored",
    "rx_atomic_requests",
    "rx_icrc_encapsulated",
    "rx_read_requests",
    "rx_write_requests",
]


@dataclass(frozen=True)
class PciLink:
    width: int = 4
    speed: str = "32.0 GT/s PCIe"


class NoValue:
    """A file that exists and fails with EINVAL when it is read."""


NO_VALUE = NoValue()
Value = str | NoValue


def active(link: rtnl.Link) -> bool:
    return link.up and link.carrier


def speed_mbps(link: rtnl.Link, speed: int = CABLE_MBPS) -> int:
    """mlx5 reports 200000 for a Spark's cable; a port that is down reports -1 (unknown)."""
    return speed if active(link) else -1


def rdma(
    nic: spark.Nic,
    link: rtnl.Link,
    table: gidtable.GidTable,
    image_mac: str,
    host: str,
    *,
    speed: int = CABLE_MBPS,
) -> dict[str, Value]:
    """Files below /sys/class/infiniband/<device>. ``image_mac`` is that of the first function (system image GUID)."""
    port = "ports/1"
    files: dict[str, Value] = {
        "board_id": BOARD,
        "fw_ver": FIRMWARE,
        "hca_type": "MT4129",
        "hw_rev": "0",
        "node_desc": f"{host} {nic.rdma}",
        "node_guid": spark.guid(link.mac),
        "sys_image_guid": spark.guid(image_mac),
        "node_type": "1: CA",
        f"{port}/cap_mask": "0x04010000",
        f"{port}/lid": "0x0",
        f"{port}/lid_mask_count": "0",
        f"{port}/link_layer": "Ethernet",
        f"{port}/sm_lid": "0x0",
        f"{port}/sm_sl": "0",
        # A port that is down claims 40 Gb/s (4X QDR): the driver's default for an unknown speed.
        f"{port}/rate": RATES[speed] if active(link) else "40 Gb/sec (4X QDR)",
        f"{port}/state": "4: ACTIVE" if active(link) else "1: DOWN",
        f"{port}/phys_state": "5: LinkUp" if active(link) else "3: Disabled",
    }
    files |= {f"{port}/counters/{name}": "0" for name in COUNTERS}
    files |= {f"{port}/hw_counters/{name}": "10" if name == "lifespan" else "0" for name in HW_COUNTERS}
    for index in range(table.size):
        entry = table.entries.get(index)
        files[f"{port}/gids/{index}"] = entry.gid if entry else gidtable.ZERO
        files[f"{port}/gid_attrs/types/{index}"] = entry.kind if entry else NO_VALUE
        files[f"{port}/gid_attrs/ndevs/{index}"] = entry.netdev if entry else NO_VALUE
    return files


def pci(nic: spark.Nic, link: rtnl.Link, image_mac: str, pcie: PciLink, speed: int = CABLE_MBPS) -> dict[str, Value]:
    """Files of the PCI function, with the netdev's own below net/."""
    files: dict[str, Value] = {
        "vendor": "0x15b3",
        "device": "0x1021",
        "subsystem_vendor": "0x15b3",
        "subsystem_device": "0x0000",
        "class": "0x020000",
        "revision": "0x00",
        "numa_node": "-1",
        "current_link_width": str(pcie.width),
        "current_link_speed": pcie.speed,
        "max_link_width": "4",
        "max_link_speed": "32.0 GT/s PCIe",
        "uevent": (
            "DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:1021\nPCI_SUBSYS_ID=15B3:0000\n"
            f"PCI_SLOT_NAME={nic.pci}\nMODALIAS=pci:v000015B3d00001021sv000015B3sd00000000bc02sc00i00"
        ),
    }
    net = f"net/{nic.netdev}"
    files |= {f"{net}/{name}": value for name, value in overrides(nic, link, image_mac, speed).items()}
    files |= {f"{net}/address": link.mac, f"{net}/dev_port": "0", f"{net}/dev_id": "0x0", f"{net}/mtu": str(link.mtu)}
    return files


def overrides(nic: spark.Nic, link: rtnl.Link, image_mac: str, speed: int = CABLE_MBPS) -> dict[str, Value]:
    """What a ConnectX netdev says in /sys/class/net/<netdev>/ where a veth device says something else."""
    return {
        "phys_port_name": f"p{nic.cage}",
        "phys_switch_id": "".join(reversed(image_mac.split(":"))) + "0000",
        "speed": str(speed_mbps(link, speed)),
    }
