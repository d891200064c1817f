# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Rules about cables, halves, addresses and RDMA."""

from __future__ import annotations

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import counters
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.limits import DEFAULTS as LIMITS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.rule import (
    AFTER_FABRIC,
    ANY,
    FABRIC,
    FAIL,
    HALF,
    NODE,
    WARN,
    WHOLE,
    Alert,
    Rule,
    half_drifted,
)

_LOST = "|".join((*counters.REPEATED, *counters.DROPPED))
SLOW = (
    Rule(
        "nic_degraded",
        "A ConnectX-7 has not initialised properly",
        "It happens when a cable is plugged in while a machine runs. Every link looks healthy, and a half carries 8"
        " to 25 Gb/s",
        "Reboot both machines of this cable with the cable plugged in. Do not unplug it: plugging it in while they"
        " run is what causes this",
        "Switch both off, take them off power for a minute, and start them with the cable plugged in",
        "forums.developer.nvidia.com, DGX Spark, 2025-11 to 2026-09",
    ),
    Rule(
        "nic_removed",
        "The ConnectX-7 is gone",
        "A Spark removes the card from the PCI bus 5 to 20 seconds after it has started without a cable, or with"
        " one that it does not recognise: the kernel log then says Cable removal, though it had a link",
        "Switch off both machines, plug the cable at both ends, and start them with it",
        "Where the cable is in, switch the hot-plug feature off: sudo mv /etc/nvidia/cx7-hotplug-enabled"
        " /etc/nvidia/cx7-hotplug-disabled, then reboot with the cable in. The card then takes its power without a"
        " cable, too",
        "NVIDIA, Holoscan Sensor Bridge user guide, DGX Spark; forums.developer.nvidia.com, DGX Spark",
        layers=WHOLE,
        needs=frozenset({"rdma"}),
    ),
    Rule(
        "one_half_only",
        "One half of a cable carries nothing",
        "Each cable is two network devices of 100 Gb/s; without its address or its link one of them is left out,"
        " and NCCL gets half the bandwidth, 11 to 13 GB/s, or does not start",
        "ansible-playbook site.yml --tags fabric; if it names a cable, reseat it while both machines are off. If it"
        " finds nothing, take NCCL_IB_HCA out of engine_environment and the recipe, and run playbooks/upgrade.yml",
        "Reboot both machines of this cable with the cable plugged in",
        "docs/fabric.md",
        layers=WHOLE,
        needs=frozenset({"rdma"}),
        alerts=(
            Alert("sparkmatrix_half_up == 0", HALF, "1m", "link"),
            half_drifted("one_half_only", "drift"),
        ),
    ),
    Rule(
        "pcie_downtrained",
        "The PCIe link of a half is slower than Gen5 x4",
        "The half carries 50 to 63 Gb/s or less, and every collective waits for it",
        "Update the firmware (sudo fwupdmgr update), then take the machine off power for a minute",
        "Contact the manufacturer",
        "docs/fabric.md",
        severity=WARN,
        layers=WHOLE,
        needs=frozenset({"rdma"}),
    ),
    Rule(
        "link_100g",
        "A link runs at less than 200 Gb/s",
        "The cable or the switch port halves the bandwidth",
        "Use a 200G cable; on a switch set the port to 200G without autonegotiation",
        "Try another port and another cable",
        "man page ethtool(8)",
        severity=WARN,
        layers=WHOLE,
        needs=frozenset({"rdma"}),
    ),
    Rule(
        "wrong_cage",
        "A cable is in the wrong cage, or both cables are on one PCIe path",
        "One PCIe path carries about 110 Gb/s, so two cables on it share that. In a ring with a cable between cages"
        " of the same number NCCL's connections time out, or lose their requests (net_ib/p2p.cc)",
        "Switch the machines off and move the cable: in a ring from cage 1 of each machine to cage 0 of the next;"
        " otherwise one cable for each machine is enough, in any cage",
        "ansible-playbook site.yml --tags fabric, which prints where it found each cable",
        "github.com/luxingcom/aicad-nccl-optimization/issues/1",
    ),
    Rule(
        "wrong_mtu",
        "A half has another MTU than was verified",
        "Larger packets from the other machines are lost or split there: connections stall, or are slow",
        "ansible-playbook site.yml --tags fabric, which sets it again on all machines",
        "On a switch set the MTU of the ports to 9216; find out what changed the machine: netplan get, nmcli"
        " connection",
        "docs/fabric.md",
        layers=WHOLE,
        alerts=(half_drifted("wrong_mtu"),),
    ),
    Rule(
        "link_flaps",
        "A link goes down and comes back",
        "Each time the ranks stall until packets are sent again, or lose their connection. A cable that is loose,"
        " damaged or too hot causes it, and so does a switch port with autonegotiation",
        "Reseat the QSFP cable at both ends while both machines are off, then start them; on a switch set the port"
        " to 200G without autonegotiation",
        "Try another cable. If the fault stays with one machine, contact its manufacturer",
        "docs/cabling.md",
        severity=WARN,
        alerts=(Alert(f"changes(sparkmatrix_half_up[1d]) > {2 * LIMITS['links_down_per_day'].value:g}", HALF, "0s"),),
    ),
    Rule(
        "loss_storm",
        "Packets are lost, or have to be sent again",
        "RoCE sends everything again from the first lost packet on, so even a few losses cost much speed",
        "Reseat the cable while both machines are off. Through a switch set fabric_qos: roce, run ansible-playbook"
        " site.yml --tags fabric, and give the switch the same profile (docs/switches.md)",
        "Try another cable and another port of the switch; on the machine ethtool -S <interface> says which counter"
        " grows",
        "docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html",
        severity=WARN,
        alerts=(
            Alert(
                f'sum by (node, interface) (rate(sparkmatrix_rdma_events_total{{counter=~"{_LOST}"}}[5m])) > 10',
                HALF,
                "5m",
            ),
        ),
    ),
    Rule(
        "pause_storm",
        "A port is made to pause for much of the time",
        "A receiver behind it cannot take packets fast enough and asks for pauses: a slow or busy machine, or a"
        " switch with a wrong profile for flow control",
        "On a switch, compare its profile with docs/switches.md; measure again while nothing else uses the fabric",
        "Measure pair by pair, and reboot the machine that is part of every slow pair",
        "docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html",
        severity=WARN,
        alerts=(
            Alert(
                "max by (node, interface) (rate(sparkmatrix_rdma_events_total"
                f'{{counter=~"{counters.PAUSED.pattern}"}}[5m])) > {LIMITS["pause_share"].value * 1e6:g}',
                HALF,
                "5m",
            ),
        ),
    ),
    Rule(
        "contention",
        "Something else uses the fabric at the same time",
        "It shares the half with the measurement, so the figure says nothing",
        "Stop it (the engine: run playbooks/stop.yml), and measure again",
        "sudo ss -tnp and sudo rdma resource show qp name the programs that use it",
        "docs/verdicts.md",
        severity=WARN,
    ),
    Rule(
        "rdma_slow",
        "A half is slower than it should be, and nothing shows why",
        "Links, PCIe, packets, losses and pauses look right",
        "Reboot both machines of this cable with the cable plugged in, and measure again: ansible-playbook"
        " playbooks/benchmark.yml --tags fabric",
        "Measure with another cable or port, to see whether the fault stays with the cable, the port or the machine",
        "docs/fabric.md",
        severity=WARN,
    ),
)

RDMA = (
    Rule(
        "tcp_fallback",
        "The ranks talk to each other over TCP instead of RDMA",
        "It looks healthy and is several times slower: about 3 GB/s and less",
        "Take NCCL_NET, NCCL_IB_DISABLE and NCCL_IB_HCA out of engine_environment and the recipe, and run"
        " playbooks/upgrade.yml",
        "Run playbooks/doctor.yml: it looks at /dev/infiniband and the limit for locked memory of the ranks. To see"
        " which network NCCL takes, set engine_environment: {NCCL_DEBUG: INFO}, run playbooks/upgrade.yml, and on"
        " the head sudo journalctl -u <unit> | grep NET/",
        "docs/performance.md",
    ),
    Rule(
        "gid_missing",
        "An RDMA device has no GID for its address",
        "The driver missed the address: ping works, RDMA does not",
        "On the machine: sudo ip link set <interface> down, then sudo ip link set <interface> up",
        "Reboot the machine",
        "docs/fabric.md",
        layers=WHOLE,
        needs=frozenset({"gids", "rdma"}),
        alerts=(half_drifted("gid_missing"),),
    ),
    Rule(
        "gid_mismatch",
        "A GID is not where it was when the fabric was verified",
        "Programs that were given its index use another address, or none",
        "ansible-playbook site.yml --tags fabric, which looks it up and records it again",
        "Remove addresses that this collection did not set from the interface, IPv6 ones too: each of them moves"
        " the index",
        "docs/fabric.md",
        severity=WARN,
        layers=WHOLE,
        needs=frozenset({"gids"}),
        alerts=(half_drifted("gid_mismatch", severity=FAIL),),
    ),
    Rule(
        "foreign_address",
        "An interface of the fabric has an address that is not ours",
        "NCCL may take its GID, and the next change of the fabric is refused because of it",
        "On the machine remove it (sudo ip addr del <address> dev <interface>), or give it to another interface",
        "Find out what sets it: netplan get, nmcli connection, NVIDIA Sync",
        "docs/fabric.md",
        severity=WARN,
        layers=WHOLE,
        alerts=(half_drifted("foreign_address"),),
    ),
    Rule(
        "memlock",
        "A process may lock too little memory",
        "RDMA pins its buffers. With a small limit registering them fails with ENOMEM, and NCCL does not start or"
        " falls back to TCP",
        "ansible-playbook site.yml, which writes the limits of the units, then run playbooks/restart.yml",
        "On the machine: systemctl show -P LimitMEMLOCK <unit>, and systemctl cat <unit>: a drop-in file that is"
        " not of this collection may lower it",
        "docs/os.md",
    ),
    Rule(
        "no_infiniband",
        "A process finds no /dev/infiniband",
        "Without it NCCL uses TCP, which is several times slower",
        "On the machine: sudo modprobe ib_uverbs, then run playbooks/restart.yml; a container is given it"
        " unless engine_container_gpus is none",
        "Install rdma-core, which loads the module at boot (sudo apt-get install rdma-core), and restart the engine"
        " again",
        "docs/engine.md",
    ),
    Rule(
        "firewall",
        "A firewall, or a wrong GID, blocks RDMA",
        "Pings pass, and RDMA is never acknowledged. RoCE is UDP to port 4791; a measurement also opens TCP"
        " connections, from 18515 on",
        "ansible-playbook site.yml --tags access,fabric, which opens both between the machines; look for other"
        " rules: sudo nft list ruleset, sudo iptables -S",
        "Compare the GIDs of both ends (show_gids), and on a switch its access lists",
        "docs/access.md",
    ),
    Rule(
        "rdma_fails",
        "RDMA between two machines gives no result",
        "NCCL would fall back to TCP, hang, or fail",
        "Measure by hand between both machines, and see which one reports an error: ib_write_bw -d DEVICE on one,"
        " ib_write_bw -d DEVICE ADDRESS on the other (ibdev2netdev lists the devices)",
        "Reboot both machines of this cable with the cable plugged in",
        "github.com/linux-rdma/perftest",
    ),
)

CHECKS = (
    Rule(
        "subnets",
        "A fabric subnet overlaps an address or route in use",
        "Addresses outside the fabric would be lost",
        "Choose other fabric_subnets",
        layers=FABRIC,
        fixed="addresses outside the fabric would be lost",
    ),
    Rule(
        "routing_rules",
        "A routing rule, of a VPN for example, comes before the routes of the fabric and takes its packets",
        "Pings and connections between the halves go into the tunnel, or nowhere",
        severity=WARN,
        layers=FABRIC,
    ),
    Rule(
        "docker_subnet",
        "A network of Docker (docker0) overlaps a fabric or management subnet",
        "Packets for other machines end in Docker's bridge",
        'Set "bip" and "default-address-pools" in /etc/docker/daemon.json to other networks, then systemctl'
        " restart docker (docker network rm for networks of your own)",
        layers=WHOLE,
    ),
    Rule(
        "management",
        "Ansible's own connection runs over a fabric interface (only a note without the layer fabric)",
        "The layer fabric reconfigures the interface, and the machine would be cut off",
        layers=ANY,
        fixed="the machine would be cut off",
    ),
    Rule(
        "vanished",
        "A job of AWX sees fewer machines than the fabric was made for",
        "A host that is disabled in AWX is missing in its jobs, and the others would be set up as a smaller cluster",
        "Switch the disabled hosts of the inventory on again in AWX; a machine that leaves is moved to"
        " sparks_leaving, and leaves with playbooks/node_remove.yml",
        layers=FABRIC | {"access"},
    ),
    Rule(
        "readdressed",
        "A machine that has a fabric would get another name, rank or fabric address",
        "What serves over these addresses would end because of a slip in the inventory",
        layers=FABRIC | {"access"},
    ),
    Rule(
        "management_address",
        "No address of a machine fits as management address, it sends over another one, or two machines have the same",
        "Names, keys, firewall rules and the start of NCCL use it",
        layers=FABRIC | {"access"},
        fixed="the machines would not find each other",
    ),
    Rule(
        "management_kept",
        "A machine keeps a management address that would not be chosen today, or has lost it",
        "Whoever looks at the machine today expects another one",
        severity=WARN,
        layers=WHOLE,
    ),
    Rule(
        "management_reach",
        "A machine does not reach another one at its management address (ping, else ssh)",
        "NCCL starts over it, and the head starts and watches the others there",
        layers=WHOLE,
    ),
    Rule(
        "fabric_fact",
        "The fabric was not applied, or for another inventory",
        "Every later layer takes addresses and environment from it",
        layers=AFTER_FABRIC,
        fixed="there would be no addresses to work with",
        alerts=(Alert("sparkmatrix_fabric_applied == 0", NODE, "30m", severity=WARN),),
    ),
    Rule(
        "cables",
        "The cables do not fit `fabric_topology`, or no topology at all; checked where no earlier run has applied it",
        "The layer fabric would refuse it after the layers before it have changed the machines",
        layers=FABRIC,
        needs=frozenset({"rdma"}),
    ),
    Rule(
        "leftover_unit",
        "An enabled unit, or a file such as rc.local, that somebody has made changes an interface of the ConnectX"
        " at every boot",
        "Guides switch ports off or set an MTU with units of their own, and undo after a reboot what was set up here",
        severity=WARN,
        layers=WHOLE,
    ),
    Rule(
        "half_uplink",
        "A half has the machine's only default route (a note: it has one beside another, or an address of DHCP)",
        "The layer takes routes and leases of its interfaces away; the last default route is a machine's way out",
        layers=FABRIC,
        needs=frozenset({"rdma"}),
    ),
    Rule(
        "bond",
        "A bond or bridge holds a fabric interface, or a bond without members is left over",
        "RDMA does not use both halves through a bond, and addresses of its members are ignored",
        layers=FABRIC,
    ),
    Rule(
        "duplicate_mac",
        "Two machines have one MAC address on fabric or management",
        "Switches send the frames of both to one of them",
        "Take away macaddress/cloned-mac-address in netplan, NetworkManager or udev on all but one",
        layers=WHOLE,
    ),
    Rule(
        "netplan_mode",
        "Others than root can read a netplan file",
        "netplan complains at every call; such files hold Wi-Fi and VPN secrets",
        severity=WARN,
        layers=FABRIC,
    ),
    Rule(
        "lldpad",
        "Lldpad runs",
        "It owns DCB and undoes PFC and trust settings",
        "sudo systemctl disable --now lldpad.service lldpad.socket (lldpd, another program, may stay)",
        severity=WARN,
        layers=FABRIC,
    ),
)
