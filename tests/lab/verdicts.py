#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Every cabling that the lab can wire, with every fault that preflight knows: is the verdict the right one?

    tests/lab/verdicts.py      the table in Markdown; exit code 1 for a wrong verdict. Needs no lab and no privilege.

The lab's own description of cables and faults (`sim/faults.py`, `node_file_faults.py`) becomes a file tree per node:
sysfs as the simulator writes it, /proc, /etc, and what `ip`, `journalctl` and `systemctl` print. `node_info` reads the
tree with the code of the nodes, preflight judges all nodes with the code of the controller. A verdict is right when
exactly the expected check finds something, on the expected host and device, and nothing else does.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests/lab")]

import node_file_faults
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import node_info
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import PARTS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node as Read
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import checks as preflight_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import machines as preflight_machines
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables as preflight_variables
from sim import faults, gidtable, rtnl, spark, sysfs

FAULTY = "spark1"
TOPOLOGIES = (
    ("single", 1),
    ("direct", 2),
    ("direct_crossed", 2),
    ("direct_two", 2),
    ("crossed_100g", 2),
    ("ring", 3),
    ("ring", 4),
    ("switch", 2),
    ("switch", 4),
    ("switch", 8),
    ("switch_two", 4),
)
# Before the fabric layer and after it, which repairs some of what a later layer refuses.
RUNS = (frozenset({"fabric"}), frozenset({"plan", "ray", "engine", "verify"}))
FACT_TOPOLOGY = {"ring": "ring", "single": "single"}
NETPLAN = node_file_faults.NETPLAN
GIDS = 8  # length of the tables; 256 on hardware, where everything above these is empty
SKIPPED = ("counters", "hw_counters")  # nobody reads them here
MEMORY = "/dev/shm"  # thousands of small files
Verdict = tuple[str, str, str]  # check, host, device


@dataclasses.dataclass
class Half:
    nic: spark.Nic
    carrier: bool
    mac: str
    addresses: list[str]
    speed: int
    pcie: dict[str, Any]
    blind: bool = False  # the RDMA driver missed the addresses


@dataclasses.dataclass
class Node:
    """One machine before it becomes files. ``absent``: it does not answer."""

    name: str
    halves: list[Half]
    files: dict[str, tuple[str, int]]
    journal: str = ""
    units: dict[str, str] = dataclasses.field(default_factory=dict)
    docker: str = "172.17.0.1/16"
    kernel: str = "6.14.0-1013-nvidia"
    driver: str = "580.95.05"
    firmware: str = sysfs.FIRMWARE
    nccl: str = "2.30.7"
    machine_id: str = ""
    skew_s: float = 0.0
    cma_leak: bool = False
    cuda: str = "answer 0 CUDA_SUCCESS"
    absent: bool = False

    @property
    def number(self) -> int:
        return spark.node_number(self.name)


Cluster = dict[str, Node]


# --- from cables and faults to machines ------------------------------------------------------------------------------


def addresses(topology: str, nodes: int) -> dict[tuple[str, str], str]:
    """A planned address for every cabled half, by node and netdev: a subnet per half of a cable, or per rail."""
    planned = {}
    for place, ends in enumerate(faults.cables(topology, nodes).values()):
        for node, cage in ends:
            for nic in spark.NICS:
                if nic.cage == cage:
                    rail = cage if topology in ("switch_two", "crossed_100g") else 0
                    planned[node, nic.netdev] = (
                        f"192.168.{100 + 4 * place + 2 * rail + nic.half}.{9 + spark.node_number(node)}"
                    )
    return planned


def cluster(topology: str, nodes: int, injected: Sequence[faults.Fault] = ()) -> Cluster:
    lab = faults.wanted(topology, nodes, injected)
    planned = addresses(topology, nodes)
    ends = {name: {(port.node, port.nic.cage) for port in ports} for name, ports in lab.segments().items()}
    made: Cluster = {}
    for name in spark.node_names(nodes):
        told = lab.nodes[name]
        halves = []
        for nic in spark.NICS:
            port = lab.ports[name, nic.netdev]
            if not port.present:
                continue
            plugged = port.segment is not None and (
                not faults.is_cable(port.segment) or len(ends.get(port.segment, ())) > 1
            )
            extra = [address for netdev, address in lab.addresses[name] if netdev == nic.netdev]
            own = [f"{planned[name, nic.netdev]}/24"] if (name, nic.netdev) in planned else []
            order = [*extra, *own] if nic.netdev in told["ipv6_first"] else [*own, *extra]
            speed = told["speed"].get(nic.netdev, sysfs.CABLE_MBPS)
            pcie = told["pcie"].get(nic.netdev, {})
            halves.append(Half(nic, plugged, port.mac, order, speed, pcie, nic.netdev in told["gid_missing"]))
        node = Node(name, halves, {NETPLAN: ("network: {renderer: NetworkManager}\n", 0o600)})
        node.machine_id = f"{node.number:032x}"
        node.cma_leak = told["cma_leak"]
        node.absent = not lab.management[name]
        for kind in lab.on_node[name]:
            ON_NODE[kind](node)
        made[name] = node
    return made


def _file(path: str, text: str, mode: int = 0o644) -> Callable[[Node], None]:
    return lambda node: node.files.update({path: (text, mode)})


def _set(**values: Any) -> Callable[[Node], None]:
    def change(node: Node) -> None:
        for name, value in values.items():
            setattr(node, name, value)

    return change


ON_NODE: dict[str, Callable[[Node], None]] = {
    "stale_nccl_conf": _file("/etc/nccl.conf", node_file_faults.NCCL),
    "lldpad": _set(units={"lldpad.service": "active"}),
    "bond": _file("/etc/netplan/70-bond.yaml", node_file_faults.BOND, 0o600),
    "netplan_mode": _file(NETPLAN, "network: {renderer: NetworkManager}\n"),
    "docker_subnet": _set(docker=node_file_faults.DOCKER_SUBNET),
    "aer_journal": _set(journal="\n".join(node_file_faults.KERNEL_LOG)),
}


# --- from machines to what node_info reads ---------------------------------------------------------------------------


def place(base: pathlib.Path, files: dict[str, sysfs.Value]) -> None:
    """Attributes without a value and empty GIDs read the same when they are not there at all."""
    made = set()
    for name, value in files.items():
        if isinstance(value, str) and value != gidtable.ZERO and not any(part in SKIPPED for part in name.split("/")):
            path = base / name
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            path.write_text(value + "\n")


def write(root: pathlib.Path, node: Node) -> None:
    """The files of one machine."""
    image = spark.mac(node.number, 0)
    (root / "sys/class/infiniband").mkdir(parents=True)
    for half in node.halves:
        nic = half.nic
        link = rtnl.Link(3, nic.netdev, half.mac, 9000, True, half.carrier, 0, "veth")
        table = gidtable.GidTable(link.mac, nic.netdev, GIDS)
        for address in half.addresses:
            if not (half.blind and ":" not in address):
                table.add(address.partition("/")[0], nic.netdev)
        device = root / "sys/class/infiniband" / nic.rdma
        place(device, sysfs.rdma(nic, link, table, image, node.name, speed=half.speed) | {"fw_ver": node.firmware})
        pci = sysfs.pci(nic, link, image, sysfs.PciLink(**half.pcie), half.speed)
        place(root / "sys/bus/pci/devices" / nic.pci, pci)
        (device / "device").symlink_to(f"../../../bus/pci/devices/{nic.pci}")
        live: dict[str, sysfs.Value] = {"carrier": str(int(half.carrier)), "flags": "0x1003", "mtu": "9000"}
        place(root / "sys/class/net" / nic.netdev, live | sysfs.overrides(nic, link, image, half.speed))
    leak = "CmaTotal:              0 kB\nCmaFree:          913408 kB\n" if node.cma_leak else ""
    texts = {
        "proc/sys/kernel/hostname": node.name,
        "proc/sys/kernel/osrelease": node.kernel,
        "proc/1/comm": "systemd",
        "proc/meminfo": f"MemTotal:       124780544 kB\n{leak}",
        "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {node.driver}  x\n",
        "proc/driver/nvidia/gpus/000f:01:00.0/information": "Model: \t\t NVIDIA GB10\n",
        "etc/machine-id": node.machine_id,
        "etc/dgx-release": "DGX_NAME=x\n",
        f"usr/lib/aarch64-linux-gnu/libnccl.so.{node.nccl}": "",
    }
    place(root, dict(texts))
    for name, (text, mode) in node.files.items():
        place(root, {name.lstrip("/"): text})
        (root / name.lstrip("/")).chmod(mode)


def answers(node: Node) -> Callable[[Sequence[str]], Completed]:
    """What the programs of one machine print."""
    interfaces: list[dict[str, Any]] = [
        _interface("enP7s7", spark.management_mac(node.number), [f"198.51.100.{10 + node.number}/24"]),
        {**_interface("docker0", "02:42:ac:11:00:01", [node.docker]), "linkinfo": {"info_kind": "bridge"}},
        *(_interface(half.nic.netdev, half.mac, half.addresses) for half in node.halves),
    ]
    units = "\n".join(f"LoadState=loaded\nActiveState={state}\n" for state in node.units.values())
    outputs = {
        ("ip", "-j", "-d", "addr"): json.dumps(interfaces),
        ("ip", "-j", "route"): json.dumps([{"dst": "default", "gateway": "198.51.100.1", "dev": "enP7s7"}]),
        ("journalctl",): node.journal,
        (sys.executable, "-I"): node.cuda,
        ("systemctl", "show"): units or "LoadState=not-found\nActiveState=inactive\n",
    }

    def run(argv: Sequence[str]) -> Completed:
        for start, text in outputs.items():
            if tuple(argv[: len(start)]) == start:
                return Completed(0, text)
        return Completed(127)

    return run


def _interface(name: str, mac: str, own: Sequence[str]) -> dict[str, Any]:
    infos = []
    for item in own:
        address, _slash, prefix = item.partition("/")
        family = "inet6" if ":" in address else "inet"
        scope = "link" if address.startswith("fe80") else "global"
        infos.append({"family": family, "local": address, "prefixlen": int(prefix), "scope": scope})
    return {"ifname": name, "address": mac, "mtu": 9000, "operstate": "UP", "addr_info": infos}


def read(node: Node) -> Read:
    """What ``node_info`` returns for the machine, as preflight reads it."""
    found = json.loads(_read(json.dumps(dataclasses.asdict(node)), Box(node)))
    return document.load_known(Read, found)


class Box:
    """Equal to every other: only the text beside it is the key of the cache."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box)

    def __hash__(self) -> int:
        return 0


@functools.cache
def _read(_key: str, box: Box) -> str:
    node = box.node
    where = MEMORY if pathlib.Path(MEMORY).is_dir() else None
    with tempfile.TemporaryDirectory(dir=where) as place_of_files:
        root = pathlib.Path(place_of_files)
        write(root, node)
        machine = Machine(
            root=str(root),
            runner=answers(node),
            environment={"SSH_CONNECTION": f"198.51.100.1 5000 198.51.100.{10 + node.number} 22"},
            now=lambda: 1000.0 + node.skew_s,
        )
        asked = node_info.Request(parts=PARTS, units=["lldpad.service"], controller_time=1000.0)
        found = node_info.shown(node_info.gather(asked, machine))
    # What is this machine's own and not of the tree.
    commands = {name: name for layer in preflight_machines.COMMANDS.values() for name in layer}
    return json.dumps({**found, "arch": "aarch64", "uid": 0, "commands": commands})


# --- the verdict -----------------------------------------------------------------------------------------------------


def facts(topology: str, nodes: int) -> dict[str, Any]:
    """The fabric facts that an earlier run left, when all was well."""
    planned = addresses(topology, nodes)
    made = {}
    for rank, name in enumerate(spark.node_names(nodes)):
        cabled = [nic for nic in spark.NICS if (name, nic.netdev) in planned]
        rails = tuple(
            fabric_fact.Rail(
                index,
                nic.cage,
                nic.pci[:4],
                nic.netdev,
                nic.rdma,
                1,
                planned[name, nic.netdev],
                24,
                9000,
                200.0,
                gid_index=3,
            )
            for index, nic in enumerate(cabled)
        )
        management = f"198.51.100.{11 + rank}"
        fact = fabric_fact.FabricFact(
            name,
            "applied",
            FACT_TOPOLOGY.get(topology.partition("_")[0], "direct" if topology in spark.PAIRS else "switch"),
            "rdma",
            rank,
            nodes,
            management,
            management,
            "enP7s7",
            rails,
        )
        made[name] = json.loads(fabric_fact.dump(fact))
    return made


@functools.cache
def variables() -> dict[str, preflight_variables.Variable]:
    return preflight_variables.load()


def judge(topology: str, nodes: int, machines: Cluster) -> set[Verdict]:
    """What preflight refuses or warns of, before the fabric layer and after it. Notes do not count."""
    known = {name: read(node) for name, node in machines.items() if not node.absent}
    lost = {name: "Connection timed out" for name, node in machines.items() if node.absent}
    names, planned = spark.node_names(nodes), addresses(topology, nodes)
    found = set()
    for layers in RUNS:
        context = base.Context(
            layers=layers,
            hosts={
                name: {
                    "spark_rank": rank,
                    "engine_recipe": "qwen3-8b",
                    "fabric_addresses": {
                        netdev: address for (node, netdev), address in planned.items() if node == name
                    },
                }
                for rank, name in enumerate(names)
            },
            play_hosts=names,
            variables=variables(),
            nodes=known,
            failures=lost,
            earlier=facts(topology, nodes),
        )
        for finding in preflight_checks.run(preflight_checks.JUDGES, context):
            if finding.severity != "info":
                found.add((finding.rule, finding.host, finding.device))
    return found


Expected = Callable[[str, Cluster], set[Verdict]]  # of topology and machines


def _nothing(_topology: str, _machines: Cluster) -> set[Verdict]:
    return set()


def _one(check: str, device: str = "") -> Expected:
    return lambda _topology, _machines: {(check, FAULTY, device)}


def _several(verdict: Verdict) -> Expected:
    """A machine alone has no fabric, and nobody to differ from."""
    return lambda _topology, machines: {verdict} if len(machines) > 1 else set()


def _halves(check: str, number: int | None = None) -> Expected:
    """This check for every cabled half of the faulty node, or only for those of one PCIe path."""

    def expected(_topology: str, machines: Cluster) -> set[Verdict]:
        return {
            (check, FAULTY, f"{half.nic.rdma} ({half.nic.netdev})")
            for half in machines[FAULTY].halves
            if half.carrier and number in (None, half.nic.half)
        }

    return expected


def _slow(topology: str, machines: Cluster) -> set[Verdict]:
    # With two 100G cables on every machine, 100 Gb/s is what was bought.
    return set() if topology == "crossed_100g" else _halves("link_100g")(topology, machines)


def _skew(_topology: str, machines: Cluster) -> set[Verdict]:
    return {("firmware_differs", f"all {len(machines)} sparks", "")} if len(machines) > 1 else set()


def _ring(topology: str, machines: Cluster) -> set[Verdict]:
    return {("nccl_ring", name, "") for name in machines} if topology == "ring" else set()


def _aer(_topology: str, _machines: Cluster) -> set[Verdict]:
    return {("pcie_error", FAULTY, device) for device in ("0000:00:00.0", "0000:01:00.0")}


def _lose_address(node: Node) -> None:
    for half in node.halves:
        if half.nic.half == 1:
            half.addresses = []


Change = Callable[[Node], None]


@dataclasses.dataclass(frozen=True)
class Case:
    """A fault of the lab (``kind`` with its options), or a change of the faulty node that the lab cannot make."""

    name: str
    expected: Expected
    kind: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    change: Change = lambda _node: None
    everywhere: bool = False


LOST = "mlx5_core 0009:01:00.0: Unable to change power state from D3cold to D0, device inaccessible"
CASES = (
    Case("NIC removed by hot-plug", _several(("nic_removed", FAULTY, "ConnectX-7")), "nic_removed"),
    Case("half without address", _halves("one_half_only", 1), change=_lose_address),
    Case("PCIe x2", _halves("pcie_downtrained"), "degraded_pcie"),
    Case("PCIe Gen3", _halves("pcie_downtrained"), "degraded_pcie", {"width": 4, "speed": "8.0 GT/s PCIe"}),
    Case("100G negotiated", _slow, "speed_100g"),
    Case("kernel with the CMA leak", _one("cma"), "cma_leak"),
    Case("stale /etc/nccl.conf", _one("nccl_conf", "/etc/nccl.conf"), "stale_nccl_conf"),
    Case("docker0 on a fabric subnet", _several(("docker_subnet", FAULTY, "docker0")), "docker_subnet"),
    Case(
        "docker0 on the management subnet",
        _one("docker_subnet", "docker0"),
        change=_set(docker="198.51.100.129/25"),
    ),
    Case("kernel skew", _skew, change=_set(kernel="6.17.0-1031-nvidia")),
    Case("driver skew", _skew, change=_set(driver="590.10.01")),
    Case("firmware skew", _skew, change=_set(firmware="28.40.1000")),
    Case("NCCL skew", _skew, change=_set(nccl="2.31.0")),
    Case("leftover bond", _one("bond", "/etc/netplan/70-bond.yaml"), "bond"),
    Case("duplicate MAC", _several(("duplicate_mac", "spark1, spark2", "enp1s0f0np0")), "duplicate_mac"),
    Case("duplicate machine-id", _several(("clones", "spark1, spark2", "")), change=_set(machine_id=f"{2:032x}")),
    Case("clock skew", _several(("clock", FAULTY, "")), change=_set(skew_s=-90.0)),
    Case("netplan file mode", _one("netplan_mode", NETPLAN), "netplan_mode"),
    Case("lldpad running", _one("lldpad", "lldpad.service"), "lldpad"),
    Case("GID missing", _halves("gid_missing"), "gid_missing"),
    Case("GID drift", _halves("gid_mismatch"), "extra_ipv6"),
    Case("cuInit fails", _one("gpu", "NVIDIA GB10"), change=_set(cuda="answer 999 CUDA_ERROR_UNKNOWN")),
    Case("fatal AER in the journal", _aer, "aer_journal"),
    Case("low-power state in the journal", _one("low_power", "0009:01:00.0"), change=_set(journal=LOST)),
    Case("NCCL too old for a ring", _ring, change=_set(nccl="2.28.9"), everywhere=True),
    Case("management cable pulled", _one("not_answering"), "management_lost"),
)


def verdict(topology: str, nodes: int, case: Case) -> tuple[set[Verdict], set[Verdict]]:
    """What was found, and what had to be."""
    injected = [faults.Fault(FAULTY, case.kind, **case.options)] if case.kind else []
    machines = cluster(topology, nodes, injected)
    for name, node in machines.items():
        if name == FAULTY or case.everywhere:
            case.change(node)
    return judge(topology, nodes, machines), case.expected(topology, machines)


def label(topology: str, nodes: int) -> str:
    return f"{topology} {nodes}"


def table() -> tuple[list[str], int]:
    """Lines of the table, and the number of wrong verdicts."""
    columns = [label(*item) for item in TOPOLOGIES]
    lines = [f"| Fault | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    wrong = 0
    for case in (Case("none", _nothing), *CASES):
        cells = []
        for topology, nodes in TOPOLOGIES:
            found, expected = verdict(topology, nodes, case)
            if found == expected:
                cells.append(", ".join(sorted({f"`{check}`" for check, _host, _device in found})) or "-")
            else:
                wrong += 1
                cells.append(f"WRONG: {sorted(found)} instead of {sorted(expected)}")
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
    return lines, wrong


def main() -> int:
    lines, wrong = table()
    print("\n".join(lines))
    print(
        f"\n{len(TOPOLOGIES)} topologies x {len(CASES)} faults = {len(TOPOLOGIES) * len(CASES)} verdicts, {wrong} wrong"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
