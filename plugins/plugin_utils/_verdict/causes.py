# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The causes that a verdict can name, each with its remedy: the one place of both, for judges, report and the guide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import (
    FAIL,
    PASS,
    UNKNOWN,
    Limit,
    Verdict,
)


@dataclass(frozen=True)
class Cause:
    """``why`` says what it costs and how it comes about; ``otherwise`` what to do if the remedy does not help."""

    name: str
    title: str
    why: str
    remedy: str
    otherwise: str
    source: str


CAUSES: tuple[Cause, ...] = (
    Cause(
        "nic_degraded",
        "A ConnectX-7 has not initialised properly",
        "It happens when a cable is plugged in while a machine runs. Every link looks healthy, and a half carries 8 to"
        " 25 Gb/s",
        "Reboot both machines of this cable with the cable plugged in. Do not unplug it: plugging it in while they run"
        " is what causes this",
        "Switch both off, take them off power for a minute, and start them with the cable plugged in",
        "forums.developer.nvidia.com, DGX Spark, 2025-11 to 2026-09",
    ),
    Cause(
        "nic_removed",
        "The ConnectX-7 is gone",
        "A Spark removes the card from the PCI bus 5 to 20 seconds after it has started without a cable, or with one"
        " that it does not recognise: the kernel log then says Cable removal, though it had a link",
        "Switch off both machines, plug the cable at both ends, and start them with it",
        "Where the cable is in, switch the hot-plug feature off: sudo mv /etc/nvidia/cx7-hotplug-enabled"
        " /etc/nvidia/cx7-hotplug-disabled, then reboot with the cable in. The card then takes its power without a"
        " cable, too",
        "NVIDIA, Holoscan Sensor Bridge user guide, DGX Spark; forums.developer.nvidia.com, DGX Spark",
    ),
    # -- the fabric, and what ranks need of it
    Cause(
        "wrong_mtu",
        "A half has another MTU than was verified",
        "Larger packets from the other machines are lost or split there: connections stall, or are slow",
        "ansible-playbook site.yml --tags fabric, which sets it again on all machines",
        "On a switch set the MTU of the ports to 9216; find out what changed the machine: netplan get, nmcli"
        " connection",
        "docs/fabric.md",
    ),
    Cause(
        "one_half_only",
        "One half of a cable carries nothing",
        "Each cable is two network devices of 100 Gb/s; without its address or its link one of them is left out, and"
        " NCCL gets half the bandwidth, 11 to 13 GB/s, or does not start",
        "ansible-playbook site.yml --tags fabric; if it names a cable, reseat it while both machines are off. If it"
        " finds nothing, take NCCL_IB_HCA out of engine_environment and the recipe, and run playbooks/upgrade.yml",
        "Reboot both machines of this cable with the cable plugged in",
        "docs/fabric.md",
    ),
    Cause(
        "gid_missing",
        "An RDMA device has no GID for its address",
        "The driver missed the address: ping works, RDMA does not",
        "On the machine: sudo ip link set <interface> down, then sudo ip link set <interface> up",
        "Reboot the machine",
        "docs/fabric.md",
    ),
    Cause(
        "gid_mismatch",
        "A GID is not where it was when the fabric was verified",
        "Programs that were given its index use another address, or none",
        "ansible-playbook site.yml --tags fabric, which looks it up and records it again",
        "Remove addresses that this collection did not set from the interface, IPv6 ones too: each of them moves the"
        " index",
        "docs/fabric.md",
    ),
    Cause(
        "pcie_downtrained",
        "The PCIe link of a half is slower than Gen5 x4",
        "The half carries 50 to 63 Gb/s or less, and every collective waits for it",
        "Update the firmware (sudo fwupdmgr update), then take the machine off power for a minute",
        "Contact the manufacturer",
        "docs/fabric.md",
    ),
    Cause(
        "link_100g",
        "A link runs at less than 200 Gb/s",
        "The cable or the switch port halves the bandwidth",
        "Use a 200G cable; on a switch set the port to 200G without autonegotiation",
        "Try another port and another cable",
        "man page ethtool(8)",
    ),
    Cause(
        "no_infiniband",
        "A process finds no /dev/infiniband",
        "Without it NCCL uses TCP, which is several times slower",
        "On the machine: sudo modprobe ib_uverbs, then run playbooks/restart.yml; a container is given it unless"
        " engine_container_gpus is none",
        "Install rdma-core, which loads the module at boot (sudo apt-get install rdma-core), and restart the"
        " engine again",
        "docs/engine.md",
    ),
    Cause(
        "memlock",
        "A process may lock too little memory",
        "RDMA pins its buffers. With a small limit registering them fails with ENOMEM, and NCCL does not start or falls"
        " back to TCP",
        "ansible-playbook site.yml, which writes the limits of the units, then run playbooks/restart.yml",
        "On the machine: systemctl show -P LimitMEMLOCK <unit>, and systemctl cat <unit>: a drop-in file that is not of"
        " this collection may lower it",
        "docs/os.md",
    ),
    Cause(
        "wrong_cage",
        "A cable is in the wrong cage, or both cables are on one PCIe path",
        "One PCIe path carries about 110 Gb/s, so two cables on it share that. In a ring with a cable between cages of"
        " the same number NCCL's connections time out, or lose their requests (net_ib/p2p.cc)",
        "Switch the machines off and move the cable: in a ring from cage 1 of each machine to cage 0 of the next;"
        " otherwise one cable for each machine is enough, in any cage",
        "ansible-playbook site.yml --tags fabric, which prints where it found each cable",
        "github.com/luxingcom/aicad-nccl-optimization/issues/1",
    ),
    Cause(
        "firewall",
        "A firewall, or a wrong GID, blocks RDMA",
        "Pings pass, and RDMA is never acknowledged. RoCE is UDP to port 4791; a measurement also opens TCP"
        " connections, from fabric_bandwidth_port on",
        "ansible-playbook site.yml --tags access,fabric, which opens both between the machines; look for other rules:"
        " sudo nft list ruleset, sudo iptables -S",
        "Compare the GIDs of both ends (show_gids), and on a switch its access lists",
        "docs/access.md",
    ),
    Cause(
        "loss_storm",
        "Packets are lost, or have to be sent again",
        "RoCE sends everything again from the first lost packet on, so even a few losses cost much speed",
        "Reseat the cable while both machines are off. Through a switch set fabric_qos: roce, run ansible-playbook"
        " site.yml --tags fabric, and give the switch the same profile (docs/switches.md)",
        "Try another cable and another port of the switch; on the machine ethtool -S <interface> says which"
        " counter grows",
        "docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html",
    ),
    Cause(
        "pause_storm",
        "A port is made to pause for much of the time",
        "A receiver behind it cannot take packets fast enough and asks for pauses: a slow or busy machine, or a switch"
        " with a wrong profile for flow control",
        "On a switch, compare its profile with docs/switches.md; measure again while nothing else uses the fabric",
        "Measure pair by pair, and reboot the machine that is part of every slow pair",
        "docs.kernel.org/networking/device_drivers/ethernet/mellanox/mlx5/counters.html",
    ),
    Cause(
        "contention",
        "Something else uses the fabric at the same time",
        "It shares the half with the measurement, so the figure says nothing",
        "Stop it (the engine: run playbooks/stop.yml), and measure again",
        "sudo ss -tnp and sudo rdma resource show qp name the programs that use it",
        "docs/verdicts.md",
    ),
    Cause(
        "rdma_slow",
        "A half is slower than it should be, and nothing shows why",
        "Links, PCIe, packets, losses and pauses look right",
        "Reboot both machines of this cable with the cable plugged in, and measure again: ansible-playbook"
        " playbooks/benchmark.yml --tags fabric",
        "Measure with another cable or port, to see whether the fault stays with the cable, the port or the machine",
        "docs/fabric.md",
    ),
    Cause(
        "rdma_fails",
        "RDMA between two machines gives no result",
        "NCCL would fall back to TCP, hang, or fail",
        "Measure by hand between both machines, and see which one reports an error: ib_write_bw -d DEVICE on one,"
        " ib_write_bw -d DEVICE ADDRESS on the other (ibdev2netdev lists the devices)",
        "Reboot both machines of this cable with the cable plugged in",
        "github.com/linux-rdma/perftest",
    ),
    Cause(
        "tcp_fallback",
        "The ranks talk to each other over TCP instead of RDMA",
        "It looks healthy and is several times slower: about 3 GB/s and less",
        "Take NCCL_NET, NCCL_IB_DISABLE and NCCL_IB_HCA out of engine_environment and the recipe, and run"
        " playbooks/upgrade.yml",
        "Run playbooks/doctor.yml: it looks at /dev/infiniband and the limit for locked memory of the ranks. To"
        " see which network NCCL takes, set engine_environment: {NCCL_DEBUG: INFO}, run playbooks/upgrade.yml, and"
        " on the head sudo journalctl -u <unit> | grep NET/",
        "docs/performance.md",
    ),
    # -- what serves
    Cause(
        "below_expectation",
        "The service is slower than its model should be",
        "Each token reads all active weights from memory once, so its time is roughly known. If it takes longer, the"
        " GPU is slowed down, ranks talk over TCP, or an option keeps the engine from its fast kernels (eager mode)",
        "Measure what is below the engine: run playbooks/stop.yml, then run playbooks/benchmark.yml --tags fabric,nccl"
        " and run playbooks/start.yml. For faults of the machines themselves run playbooks/doctor.yml",
        "Compare the engine's options with those of the published run (docs/recipes.md); for a model that nobody has"
        " measured on so many machines, the band is an estimate",
        "docs/performance.md",
    ),
    Cause(
        "smoke_failed",
        "The service fails at a kind of request that its model can answer",
        "Clients that send such requests get errors, though plain questions are answered. The engine was started"
        " without the parser or template that they need, or with one that does not fit the model",
        "Compare your engine_options with the recipe: tool-call-parser, reasoning-parser, the chat template; then"
        " run playbooks/upgrade.yml",
        "On the head: sudo journalctl -u <unit> has the error of this request",
        "docs/recipes.md",
    ),
    Cause(
        "key_not_checked",
        "The service accepts a wrong key",
        "Whoever reaches the port can use the model. The engine was started without its key, or before the key was"
        " there",
        "Restart the service, so that it reads its key: ansible-playbook playbooks/restart.yml",
        "ansible-playbook site.yml --tags engine writes key and unit again",
        "docs/security.md",
    ),
    Cause(
        "ray_incomplete",
        "Nodes are missing in Ray",
        "A model that runs on them cannot be started again once a rank fails",
        "ansible-playbook site.yml --tags ray",
        "On the node that is missing: sudo journalctl -u sparkmatrix-ray; can it ping the head's address on the"
        " fabric?",
        "docs/engine.md",
    ),
    Cause(
        "gateway_silent",
        "The gateway does not answer",
        "Users on other computers get errors, though the engine itself answers",
        "ansible-playbook site.yml --tags gateway; on the head sudo journalctl -u sparkmatrix-gateway names the fault",
        "On the head: sudo sparkmatrix status shows address, certificate and whether it answers",
        "docs/gateway.md",
    ),
    # -- what doctor finds on a machine, or between what runs and what was planned
    Cause(
        "not_answering",
        "A machine does not answer",
        "It is off, hangs, or refuses the login. A model that runs on it does not answer either",
        "Look at the machine: does its screen show a login, does it answer a ping? If neither, hold its power button",
        "Take it off power for a minute; to put another machine in its place, run playbooks/node_replace.yml",
        "docs/tasks/wedged-node.md",
    ),
    Cause(
        "peers_unreachable",
        "The head does not reach a machine over the nodes' own ssh",
        "The head starts and watches the ranks over it, so a rank that dies there is not started again",
        "ansible-playbook site.yml --tags access",
        "On the head: sudo ssh -v -F /etc/sparkmatrix/ssh/config <machine> version",
        "docs/access.md",
    ),
    Cause(
        "not_serving",
        "A service does not answer, or no keeper watches it",
        "Requests fail now, or will after the next fault",
        "On the head: sudo sparkmatrix status. It says what the service waits for, and what to do",
        "ansible-playbook site.yml, which repairs what it finds; on the head sudo journalctl -u <unit> shows what the"
        " engine itself says",
        "docs/operations.md",
    ),
    Cause(
        "preflight",
        "A check before a run finds a fault",
        "It would make the next run of site.yml refuse, and what runs now may suffer from it already",
        "The finding names its own remedy",
        "docs/preflight.md lists every check with its reason",
        "docs/preflight.md",
    ),
    Cause(
        "not_looked_at",
        "Something on a machine cannot be checked",
        "A file that cannot be read, or a program that does not answer, is neither right nor wrong: a fault behind it"
        " would go unreported",
        "On the machine: sudo sparkmatrix drift, which names the file or program and why. Files of this collection are"
        " written anew by ansible-playbook site.yml",
        "Look for a full or broken disk (df -h, sudo journalctl -k) and, where it is Docker, at docker info",
        "docs/verdicts.md",
    ),
    Cause(
        "link_flaps",
        "A link goes down and comes back",
        "Each time the ranks stall until packets are sent again, or lose their connection. A cable that is loose,"
        " damaged or too hot causes it, and so does a switch port with autonegotiation",
        "Reseat the QSFP cable at both ends while both machines are off, then start them; on a switch set the port to"
        " 200G without autonegotiation",
        "Try another cable. If the fault stays with one machine, contact its manufacturer",
        "docs/cabling.md",
    ),
    Cause(
        "no_memory_journal",
        "The GPU's driver got no memory (NV_ERR_NO_MEMORY)",
        "CPU and GPU share one memory. A few such lines are normal at a start. Many of them come before a machine"
        " freezes without an OOM kill, until it is taken off power",
        "Give the engine less: engine_gpu_memory_utilization 0.75, a smaller engine_context or engine_concurrency,"
        " then run playbooks/upgrade.yml; stop what else uses memory (free -g)",
        "Set engine_options: {max-num-batched-tokens: 4096}; to update driver and firmware, run"
        " playbooks/os_update.yml",
        "github.com/NVIDIA/open-gpu-kernel-modules/issues/1358, github.com/vllm-project/vllm/issues/56824, 2026-09",
    ),
    Cause(
        "out_of_memory",
        "The kernel killed a process because memory ran out",
        "If it was a rank, the whole model was started again; if it was something else, it is missing now",
        "Find out what took the memory, on the machine: sudo journalctl -k -g 'Out of memory'. Lower"
        " engine_gpu_memory_utilization and run playbooks/upgrade.yml, or stop what runs beside the engine",
        "Make sure that os_stabilization_watchdog is on: it stops the engine before the kernel has to choose",
        "docs/concepts/unified-memory.md",
    ),
    Cause(
        "power_off",
        "A boot ended without a shutdown",
        "Power was lost, the machine switched itself off because of heat or its power supply, or it froze until"
        " somebody switched it off. The journal breaks off in all of these cases, and does not say which it was",
        "Ask whether somebody cut the power. If not: use the power supply that came with the machine, give it air on"
        " all sides, and cap the clock: sudo nvidia-smi -lgc 0,2000",
        "If it happens again on the same machine under the same load, contact its manufacturer",
        "github.com/tonyd2wild/DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark/issues/31, 2026-08",
    ),
    Cause(
        "gpu_slow",
        "The GPU is slowed down, or stuck in a slow state",
        "Every rank waits for the slowest one. In its low-power state the GPU answers and is busy, and nvidia-smi shows"
        " no reason",
        "If somebody has capped the clock at less than 2000 MHz, sudo nvidia-smi -rgc removes the cap. Else shut the"
        " machine down, unplug its power supply for five minutes, and start it",
        "Use the power supply that came with it, without a hub in between, and update the firmware (sudo fwupdmgr"
        " update)",
        "github.com/Blackwellboy/model-serving-minefield/pull/55, 2026-08",
    ),
    Cause(
        "gpu_error",
        "The driver reports an error of the GPU (Xid)",
        "NVIDIA says that no application causes these errors: hardware, driver or firmware do",
        "Reboot the machine; afterwards look for new ones: sudo journalctl -k -g 'NVRM: Xid'",
        "Update driver and firmware. If the same Xid comes back, contact the manufacturer",
        "docs.nvidia.com/deploy/xid-errors",
    ),
    Cause(
        "pcie_error",
        "A fatal PCIe error",
        "The device behind it may be gone, or stall the whole machine",
        "Reboot; if it comes back, take the machine off power for a minute and update its firmware (sudo fwupdmgr"
        " update)",
        "Reseat the QSFP cable while the machine is off. If the error comes back, contact the manufacturer",
        "docs.kernel.org/PCI/pcieaer-howto.html",
    ),
    Cause(
        "port_filter_off",
        "The port filter is not active",
        "Strangers in the network may reach what Ray and the ranks listen on",
        "sudo systemctl reload nftables, or run the layer that places it: ansible-playbook site.yml --tags fabric",
        "Find out what removed the tables: other firewall programs do when they start",
        "docs/security.md",
    ),
    Cause(
        "foreign_address",
        "An interface of the fabric has an address that is not ours",
        "NCCL may take its GID, and the next change of the fabric is refused because of it",
        "On the machine remove it (sudo ip addr del <address> dev <interface>), or give it to another interface",
        "Find out what sets it: netplan get, nmcli connection, NVIDIA Sync",
        "docs/fabric.md",
    ),
    Cause(
        "environment_differs",
        "A running rank has another environment than the plan",
        "It was started before the last change, or by hand, or a drop-in of its unit sets a value. So it may not use"
        " the fabric that was measured",
        "Restart it as planned: ansible-playbook playbooks/restart.yml",
        "On the machine systemctl cat <unit> shows drop-in files that are not of this collection; engine_environment"
        " and the recipe may set the variable too",
        "docs/fabric-fact.md",
    ),
    Cause(
        "option_ignored",
        "The engine does not use an option as planned",
        "It lowered or rounded the value, or this version ignores the option, so the plan's figures for memory and"
        " speed do not hold",
        "Look for the option in the engine's journal (on the head: sudo journalctl -u <unit>), which has the reason;"
        " set a value that the engine takes, and run playbooks/upgrade.yml",
        "Leave the option out, or use a newer version of the engine",
        "docs/engine.md",
    ),
    Cause(
        "image_differs",
        "A container image is not the one that was planned",
        "Its name was pulled or tagged again since then. Ranks of one model must not run different engines",
        "ansible-playbook site.yml, which takes one image for all nodes and starts the service with it",
        "Name the image with its digest (engine_image: name@sha256:…)",
        "docs.docker.com/reference/cli/docker/image/inspect",
    ),
    Cause(
        "dangling_weights",
        "A model is incomplete on a machine, or not the same on all",
        "Broken links and missing files make the next start fail; different revisions give wrong answers",
        "ansible-playbook playbooks/artifacts.yml -e artifacts_action=repair, which brings what is missing",
        "ansible-playbook playbooks/artifacts.yml -e artifacts_action=verify reads every byte, and names broken files",
        "docs/artifacts.md",
    ),
    Cause(
        "firmware_differs",
        "Kernel, driver, firmware or NCCL are not the same on all machines",
        "When NCCL fails because versions differ, the reason is hard to find",
        "To bring all machines to one set of versions, run playbooks/os_update.yml; firmware: sudo fwupdmgr update"
        " on each",
        "Update the machine that is behind by hand, with its cable plugged in, and reboot it",
        "docs/operations.md",
    ),
    # -- what tests of NCCL find
    Cause(
        "plugin_fallback",
        "NCCL uses a network plug-in instead of its own InfiniBand code",
        "Some images have plug-ins that do not know GB10 and silently fall back to sockets; a plug-in that is named and"
        " not found does the same",
        "Take NCCL_NET_PLUGIN out of engine_environment, fabric_environment and the recipe, and run ansible-playbook"
        " site.yml --tags fabric,engine, which sets it to none; an image of your own may name one in /etc/nccl.conf",
        "Use an image without the plug-in (libnccl-net*.so)",
        "NCCL, src/plugin/net.cc; NGC images on DGX Spark",
    ),
    Cause(
        "nccl_no_interface",
        "NCCL finds no network interface of the name that it was given",
        "NCCL_SOCKET_IFNAME names one that is not on this machine or has no address; names differ between machines"
        " whose cable is in another cage",
        "Take NCCL_SOCKET_IFNAME out of engine_environment and the recipe, and run ansible-playbook site.yml"
        " --tags fabric,engine: each machine gets its own",
        "On the machine: ip -brief address, and compare with NCCL_SOCKET_IFNAME in /etc/sparkmatrix/engine.env",
        "NCCL, src/bootstrap.cc",
    ),
    Cause(
        "nccl_development_build",
        "NCCL is a development build",
        "With a development branch two Sparks reached 3.04 GB/s, though all else was right; the release gave 23.74",
        "Use a release of NCCL (2.28.9 or newer): the one that the engine's packages or image bring, without"
        " LD_PRELOAD or LD_LIBRARY_PATH to another one",
        "Measure with another image of the engine, to tell the library from the cable",
        "github.com/NVIDIA/dgx-spark-playbooks/pull/103",
    ),
    Cause(
        "tree_on_ring",
        "NCCL cannot connect its tree on this ring",
        "NCCL also connects a tree, and in a ring of four or more some machines of the tree have no cable between them",
        "Use a build of NCCL that leaves the tree out (NCCL_SKIP_TREE_CONNECT), or a switch",
        "Split the service: copies on two or three machines each need no tree across the ring",
        "github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/pull/3; NVIDIA supports rings of three",
    ),
    Cause(
        "single_rank_trap",
        "The test of NCCL did not leave the machine",
        "With one rank, or with all ranks on one machine, it measures memory: 100 GB/s and more, or 0",
        "Start one rank on each machine, as playbooks/benchmark.yml --tags nccl does. For a run by hand check mpirun's"
        " host list, and that nccl-tests was built with MPI=1",
        "Look at the list of devices that nccl-tests prints: it has to name each machine once",
        "github.com/NVIDIA/nccl-tests; measured on one GPU",
    ),
    Cause(
        "nccl_slow",
        "NCCL is slower than it should be, and no finding explains it",
        "Smaller RDMA packets (MTU 1500), a 100G link, a badly initialised adapter and other traffic all look like"
        " this",
        "Measure the halves, to see whether it is the cable or NCCL: ansible-playbook playbooks/benchmark.yml --tags"
        " fabric. Stop what else uses the fabric, and compare MTU and rate of both ends",
        "Reboot both machines with the cable plugged in, and measure again",
        "docs/fabric.md",
    ),
    Cause(
        "nccl_wrong_values",
        "NCCL delivered wrong values",
        "What arrived is not what was sent: a model would answer nonsense. Memory, GPU or the library is broken",
        "Do not serve with these machines. Measure them in pairs, to find which one it is, and look for Xid and"
        " AER lines in its kernel log (sudo journalctl -k -g 'Xid|AER')",
        "Use another release of NCCL; if one machine stays at fault, ask NVIDIA to replace it",
        "github.com/NVIDIA/nccl-tests, column #wrong",
    ),
    # -- the serving benchmark
    Cause(
        "requests_failed",
        "Requests got no answer under load",
        "The engine refused requests, broke off or died while it had several: its queue or its memory was too small, or"
        " a rank was lost",
        "Look at what it said (on the head: sudo journalctl -u <unit>); lower engine_concurrency or engine_context, and"
        " run playbooks/upgrade.yml",
        "sudo sparkmatrix status on the head says why it was restarted. Measure one request at a time, to see whether"
        " load is the reason: ansible-playbook playbooks/benchmark.yml --tags serving -e"
        " '{\"benchmark_concurrency\": [1]}'",
        "roles/benchmark/README.md",
    ),
    Cause(
        "regression",
        "The service is slower than it was",
        "It is slower than the slowest repetition of the last runs, so this is more than chance. Updates of driver,"
        " firmware or image, another option, heat or a lost half cause it",
        "Undo, one by one, the changes that the evidence lists; for the engine run playbooks/rollback.yml",
        "Run playbooks/doctor.yml, and reboot all machines",
        "roles/benchmark/README.md",
    ),
    Cause(
        "speculation_rejected",
        "Most drafted tokens are thrown away",
        "A draft costs time, and pays only where the model agrees with it. A draft for another model or version, or"
        " for another kind of text, is wrong most of the time",
        "Use the draft that belongs to this model and revision (recipe, draft), or fewer tokens per draft",
        "Serve without a draft, and compare the two runs",
        "docs.vllm.ai, Speculative Decoding, 2026-11",
    ),
    Cause(
        "assumption_wrong",
        "A machine is not as this collection assumes",
        "Much of it was written without a real Spark, so what depends on this assumption may not work here",
        "Send the file that playbooks/first_contact.yml has written to the project (docs/verdicts.md), and go on"
        " with care",
        "Update this collection, and run it again",
        "docs/tested.md",
    ),
)
BY_NAME = {cause.name: cause for cause in CAUSES}
# What an owner sees, and the causes it may have: the headings of docs/troubleshooting.md.
SYMPTOMS: Mapping[str, tuple[str, ...]] = {
    "A cable or a half is slow, or carries nothing": (
        *(
            "nic_degraded",
            "nic_removed",
            "one_half_only",
            "pcie_downtrained",
            "link_100g",
            "wrong_cage",
            "wrong_mtu",
            "link_flaps",
        ),
        *("loss_storm", "pause_storm", "contention", "rdma_slow"),
    ),
    "RDMA does not work, or the ranks do not use it": (
        *("tcp_fallback", "gid_missing", "gid_mismatch", "foreign_address", "memlock", "no_infiniband", "firewall"),
        "rdma_fails",
    ),
    "NCCL is slow, or does not start": (
        *("plugin_fallback", "nccl_no_interface", "nccl_development_build", "tree_on_ring", "single_rank_trap"),
        *("nccl_slow", "nccl_wrong_values"),
    ),
    "A service does not answer as it should": (
        *("not_serving", "ray_incomplete", "gateway_silent", "smoke_failed", "requests_failed", "key_not_checked"),
        "port_filter_off",
    ),
    "A service is slower than expected": ("below_expectation", "regression", "speculation_rejected"),
    "A machine is in trouble": (
        *("not_answering", "peers_unreachable", "power_off", "no_memory_journal", "out_of_memory", "gpu_slow"),
        *("gpu_error", "pcie_error", "preflight", "not_looked_at"),
    ),
    "What runs is not what was planned": (
        *("environment_differs", "option_ignored", "image_differs", "dangling_weights", "firmware_differs"),
        "assumption_wrong",
    ),
}


def verdict(
    check: str,
    scope: str,
    found: str,
    *,
    cause: str = "",
    outcome: str = FAIL,
    hosts: Sequence[str] = (),
    device: str = "",
    value: float = 0,
    limit: Limit | None = None,
    evidence: Sequence[str] = (),
    remedy: str = "",
) -> Verdict:
    """A verdict with the remedy of its cause, or with one of its own where the machine tells more."""
    if (cause == "") == (outcome not in (PASS, UNKNOWN)):
        raise ValueError(f"{check}: the verdict {outcome} {'needs a' if cause == '' else 'has no'} cause")
    known = BY_NAME[cause] if cause else None
    return Verdict(
        check=check,
        outcome=outcome,
        scope=scope,
        found=found,
        hosts=tuple(hosts),
        device=device,
        value=value,
        limit=(limit,) if limit else (),
        cause=cause,
        evidence=tuple(evidence),
        remedy=remedy or (known.remedy if known else ""),
        otherwise=known.otherwise if known else "",
    )
