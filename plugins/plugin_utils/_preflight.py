# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The checks before a run. Two tables, one for the inventory alone and one for what ``node_info`` read on the nodes.

A check names the layers it is for; a run makes only the checks of its layers, all of them, and reports every finding.
"""

from __future__ import annotations

import difflib
import fnmatch
import ipaddress
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

from ansible_collections.sparkmatrix.cluster.plugins.module_utils import _fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._findings import Finding, SparkError
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils import _variables
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._variables import Variable

GIB = 2**30
ANY = frozenset({"preflight", "os_stabilization", "fabric", "plan", "ray", "engine", "verify"})
# Layers whose result on one node depends on all the others.
WHOLE = frozenset({"fabric", "plan", "ray", "engine", "verify"})
AFTER_FABRIC = frozenset({"plan", "ray", "engine", "verify"})
SERVING = frozenset({"ray", "engine"})

# Programs per layer, with the Debian/Ubuntu package that has each.
COMMANDS: Mapping[str, Mapping[str, str]] = {
    "os_stabilization": {"systemctl": "systemd", "sysctl": "procps"},
    "fabric": {
        "ip": "iproute2",
        "netplan": "netplan.io",
        "networkctl": "systemd",
        "ping": "iputils-ping",
        "systemd-run": "systemd",
    },
    "ray": {"systemctl": "systemd", "journalctl": "systemd"},
    "engine": {"systemctl": "systemd", "journalctl": "systemd"},
}
# Ports that a layer opens on the head: variables that hold them, with what is assumed where none of them is documented.
PORTS: Mapping[str, Mapping[str, int]] = {
    "ray": {"ray_port": 6379, "ray_dashboard_port": 8265},
    "engine": {"engine_port": 8000},
}
OUR_UNITS = "sparkmatrix-"
STATE_DIR = "/var/lib/sparkmatrix"
# The two ConnectX-7 functions of each cage, as systemd names them (net naming scheme: f<function>np<port>).
_CONNECTX_NAME = re.compile(r"^en[pP]\d+[a-zA-Z0-9]*f\d+np\d+$")
_LABEL = re.compile(r"^(?!-)[A-Za-z0-9-]{1,63}(?<!-)$")

Network = Union[ipaddress.IPv4Network, ipaddress.IPv6Network]


@dataclass(frozen=True)
class Settings:
    """The role's own variables, see roles/preflight/defaults/main.yml."""

    require_gb10: bool = True
    min_memory_gib: float = 110
    min_disk_gib: float = 20
    max_clock_skew_s: float = 10
    ignored_variables: tuple[str, ...] = ()
    skip_checks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Context:
    """What the checks see.

    ``hosts`` maps every host of the group ``sparks`` to its variables, those outside ``--limit`` too; ``broken`` holds
    variables that could not be evaluated, as ``{host: {name: message}}``. ``nodes`` maps hosts to the ``node`` of
    ``node_info``; ``failures`` to the message where there is none. ``local_facts`` maps hosts to ``ansible_local``,
    where it was read.
    """

    layers: frozenset[str]
    hosts: Mapping[str, Mapping[str, Any]]
    play_hosts: Sequence[str] = ()
    settings: Settings = field(default_factory=Settings)
    variables: Mapping[str, Variable] = field(default_factory=dict)
    broken: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    local_facts: Mapping[str, Any] = field(default_factory=dict)

    def value(self, host: str, name: str, fallback: Any = None) -> Any:
        """A variable as the role will see it: what the inventory says, else the documented default."""
        if name in self.hosts.get(host, {}):
            return self.hosts[host][name]
        documented = self.variables.get(name)
        return fallback if documented is None or documented.default is None else documented.default

    @property
    def head(self) -> str | None:
        return next((host for host, values in self.hosts.items() if values.get("spark_rank") == 0), None)

    def who(self, hosts: Iterable[str]) -> str:
        named = list(hosts)
        if len(named) > 1 and len(named) == len(self.hosts):
            return f"all {len(named)} sparks"
        return ", ".join(named)


Judge = Callable[[Context], Iterable[Finding]]


@dataclass(frozen=True)
class Check:
    """``firm``: what follows cannot work without it, so it cannot be skipped."""

    name: str
    layers: frozenset[str]
    judge: Judge
    firm: bool = False


def run(checks: Sequence[Check], context: Context) -> list[tuple[Check, Finding]]:
    """Make the checks of the selected layers; every finding with the check that made it."""
    selected = context.layers | {"preflight"}
    return [
        (check, finding)
        for check in checks
        if check.layers & selected and (check.firm or check.name not in context.settings.skip_checks)
        for finding in check.judge(context)
    ]


def request(context: Context) -> dict[str, Any]:
    """What ``node_info`` has to look for, so that one call per node is enough."""
    commands = {name for layer in context.layers for name in COMMANDS.get(layer, {})}
    return {
        "paths": sorted(_paths(context)),
        "commands": sorted(commands),
        "ports": sorted(_ports(context)),
    }


# -- the inventory


def check_names(context: Context) -> Iterator[Finding]:
    for host in context.hosts:
        labels = host.rstrip(".").split(".")
        if _address(host) is None and (len(host) > 253 or not all(_LABEL.match(label) for label in labels)):
            yield Finding(
                host,
                "the inventory name is no valid host name, and other nodes will know the machine by it",
                "Use letters, digits and '-' (RFC 1123); the address belongs in ansible_host",
            )


def check_ranks(context: Context) -> Iterator[Finding]:
    owners: dict[int, list[str]] = defaultdict(list)
    complete = True
    for host, values in context.hosts.items():
        rank = values.get("spark_rank")
        if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0:
            owners[rank].append(host)
            continue
        complete = False
        if rank is None:
            found = "spark_rank is not set"
        elif isinstance(rank, str) and rank.strip().isdigit():
            found = f"spark_rank is the text {rank!r}, not a number"
        else:
            found = f"spark_rank is {rank!r}, expected a whole number from 0"
        yield Finding(
            host, found, "Give each machine its own spark_rank in the inventory, without quotes; 0 is the head"
        )
    for rank, hosts in sorted(owners.items()):
        if len(hosts) > 1:
            complete = False
            yield Finding(
                ", ".join(hosts), f"spark_rank {rank} is given {len(hosts)} times", "Give each machine its own"
            )
    if complete and owners:
        missing = [rank for rank in range(max(owners) + 1) if rank not in owners]
        # Ranks are sparse only by mistake: addresses, Ray and the engine count from 0 without gaps.
        if missing:
            what = "no machine is the head (spark_rank 0)" if 0 in missing else "there is a gap in the ranks"
            listed = ", ".join(map(str, missing))
            yield Finding(
                "inventory",
                f"{what}: {listed} not given",
                f"Number the {len(context.hosts)} machines from 0 without gaps",
            )


def check_addresses(context: Context) -> Iterator[Finding]:
    owners: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host, values in context.hosts.items():
        address = str(values.get("ansible_host") or host).lower()
        owners[address, str(values.get("ansible_port") or 22)].append(host)
    for (address, _port), hosts in owners.items():
        if len(hosts) > 1:
            yield Finding(
                ", ".join(hosts),
                f"ansible_host is {address} for {len(hosts)} machines",
                "Give each machine its own address",
            )


def check_unknown(context: Context) -> Iterator[Finding]:
    # A role without a specification documents nothing, so nothing can be said about its names.
    documented = {f"{variable.role}_" for variable in context.variables.values()}
    prefixes = tuple(prefix for prefix in _variables.prefixes(context.layers) if prefix in documented)
    where: dict[str, list[str]] = defaultdict(list)
    for host, values in context.hosts.items():
        for name in {*values, *context.broken.get(host, {})}:
            if name.startswith(prefixes) and name not in context.variables:
                where[name].append(host)
    for name, hosts in sorted(where.items()):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in context.settings.ignored_variables):
            continue
        close = difflib.get_close_matches(name, context.variables, n=1, cutoff=0.75)
        hint = f"Did you mean {close[0]}?" if close else "See the README of the role for its variables"
        yield Finding(
            context.who(h for h in context.hosts if h in hosts),
            f"there is no variable {name}",
            f"{hint} (a name of your own may be listed in preflight_ignored_variables)",
        )


def check_types(context: Context) -> Iterator[Finding]:
    prefixes = _variables.prefixes(context.layers)
    where: dict[str, list[str]] = defaultdict(list)
    for host, values in context.hosts.items():
        for name, message in context.broken.get(host, {}).items():
            where[f"{name} cannot be evaluated: {message}"].append(host)
        for name, value in values.items():
            variable = context.variables.get(name)
            # spark_rank has a check of its own.
            if variable is None or name == "spark_rank" or not name.startswith(prefixes):
                continue
            complaint = _variables.complaint(variable, value)
            if complaint:
                where[complaint].append(host)
    for complaint, hosts in where.items():
        name = complaint.split(" ", 1)[0]
        text = context.variables[name].description if name in context.variables else ""
        yield Finding(context.who(hosts), complaint, f"It says: {text}" if text else f"Correct {name} in the inventory")


def check_parallel(context: Context) -> Iterator[Finding]:
    names = ("engine_tensor_parallel_size", "engine_pipeline_parallel_size", "engine_data_parallel_size")
    head = context.head
    if head is None:
        return
    sizes = {name: context.hosts[head].get(name) for name in names}
    tensor, pipeline = (_whole(sizes[name]) for name in names[:2])
    if not tensor or not pipeline:
        return
    data = _whole(sizes[names[2]]) or 1
    nodes = len(context.hosts)
    if tensor * pipeline * data != nodes:
        product = " x ".join(f"{name} {value}" for name, value in zip(names, (tensor, pipeline, data)) if sizes[name])
        yield Finding(
            "inventory",
            f"{product} = {tensor * pipeline * data} ranks, and there are {nodes} machines with one GPU each",
            f"Make the product {nodes}, or leave one of them out to have it computed",
        )


def check_limit(context: Context) -> Iterator[Finding]:
    missing = [host for host in context.hosts if host not in context.play_hosts]
    if missing and context.play_hosts:
        layers = ", ".join(sorted(context.layers & WHOLE))
        yield Finding(
            ", ".join(missing),
            f"left out by --limit, but {layers} must see every machine: a plan for some would break the others",
            "Run without --limit; to use fewer machines for good, take the others out of the group 'sparks'",
        )


INVENTORY_CHECKS: tuple[Check, ...] = (
    Check("names", ANY, check_names),
    Check("ranks", ANY, check_ranks, firm=True),
    Check("addresses", ANY, check_addresses, firm=True),
    Check("unknown_variables", ANY, check_unknown),
    Check("types", ANY, check_types, firm=True),
    Check("parallel_sizes", frozenset({"plan", "engine"}), check_parallel),
    Check("limit", WHOLE, check_limit, firm=True),
)


# -- the machines


def check_reached(context: Context) -> Iterator[Finding]:
    for host, message in context.failures.items():
        text = " ".join(message.split()).removeprefix("Task failed: ")
        lower = text.lower()
        if "sudo" in lower or "become" in lower or "privilege" in lower:
            remedy = "Add -K to type the sudo password, or let the user run sudo without one (a file in /etc/sudoers.d)"
        elif "host key" in lower:
            remedy = "Log in once by hand to accept the machine's key: ssh <user>@<address>"
        elif "permission denied" in lower:
            remedy = "Check ansible_user, and copy your key with ssh-copy-id; add -k to type a password"
        elif "resolve" in lower:
            remedy = "Write the machine's address in ansible_host"
        elif "timed out" in lower or "no route" in lower or "refused" in lower or "unreachable" in lower:
            remedy = "Is the machine on, and is ansible_host its management address? Try ssh by hand"
        elif "interpreter" in lower or "python" in lower:
            remedy = "Install python3 (at least 3.9) on the machine"
        else:
            remedy = "Try it by hand: ansible -m sparkmatrix.cluster.node_info <host> -b -vvv"
        yield Finding(host, f"the machine could not be read: {text or 'no reason given'}", remedy)


def check_root(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        if node.get("uid") != 0:
            yield Finding(
                host,
                f"tasks run with user id {node.get('uid')}, not as root",
                "Leave become: true in place; the login user needs sudo to root",
            )


def check_systemd(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        if not node.get("systemd"):
            yield Finding(
                host, "systemd is not the init system", "Use DGX OS or another distribution that boots with it"
            )


def check_python(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        python = node.get("python") or {}
        version = str(python.get("version") or "")
        if version and _version(version) < (3, 9):
            yield Finding(
                host,
                f"Python is {version}, at least 3.9 is needed",
                "Install a newer python3, or name one in ansible_python_interpreter",
                str(python.get("executable") or ""),
            )


def check_gb10(context: Context) -> Iterator[Finding]:
    if not context.settings.require_gb10:
        return
    for host, node in context.nodes.items():
        machine = node.get("machine") or {}
        if not machine.get("is_gb10"):
            seen = [f"GPU {machine['gpu']}" if machine.get("gpu") else "no NVIDIA GPU found"]
            seen += [str(machine[key]) for key in ("vendor", "product") if machine.get(key)]
            yield Finding(
                host,
                f"this is no GB10 machine ({', '.join(seen)})",
                "If it is one, look at nvidia-smi; for other hardware set preflight_require_gb10: false",
            )
        elif node.get("arch") != "aarch64":
            yield Finding(
                host, f"the architecture is {node.get('arch')}, a GB10 is aarch64", "Install DGX OS for this machine"
            )


def check_memory(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        total = (node.get("memory") or {}).get("total")
        if total is not None and total < context.settings.min_memory_gib * GIB:
            yield Finding(
                host,
                f"the machine has {total / GIB:.1f} GiB of memory,"
                f" at least {context.settings.min_memory_gib:g} GiB expected",
                "Look for memory that the firmware or kernel parameters keep (a Spark shows about 119 GiB),"
                " or lower preflight_min_memory_gib",
            )


def check_disk(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        seen = set()
        for path, space in (node.get("paths") or {}).items():
            # What is there already, a shared environment mounted read-only for one, has its space.
            if space.get("exists") and path != STATE_DIR:
                continue
            # Paths on one file system are one finding.
            system = (space.get("total"), space.get("free"), space.get("read_only"))
            if system in seen:
                continue
            seen.add(system)
            least = context.settings.min_disk_gib
            if space.get("read_only"):
                yield Finding(
                    host, "the file system is read-only", "Remount it writable; if the kernel did it, see dmesg", path
                )
            elif path != STATE_DIR and space.get("free") is not None and space["free"] < least * GIB:
                yield Finding(
                    host,
                    f"{space['free'] / GIB:.1f} GiB free, at least {least:g} GiB needed",
                    "Free some space, put the path on a larger disk, or lower preflight_min_disk_gib",
                    path,
                )


def check_clock(context: Context) -> Iterator[Finding]:
    offsets = {h: n["clock_offset"] for h, n in context.nodes.items() if n.get("clock_offset") is not None}
    if len(offsets) < 2:
        return
    ordered = sorted(offsets.values())
    usual = ordered[(len(ordered) - 1) // 2]
    for host, offset in offsets.items():
        skew = offset - usual
        if abs(skew) > context.settings.max_clock_skew_s:
            yield Finding(
                host,
                f"the clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the other machines",
                "Set it: timedatectl set-ntp true, and check that the machine reaches a time server",
            )


def check_commands(context: Context) -> Iterator[Finding]:
    needed: dict[str, str] = {}
    for layer in sorted(context.layers):
        needed.update(COMMANDS.get(layer, {}))
    for host, node in context.nodes.items():
        present = node.get("commands") or {}
        missing = sorted(name for name in needed if not present.get(name))
        if missing:
            packages = " ".join(sorted({needed[name] for name in missing}))
            yield Finding(host, f"not installed: {', '.join(missing)}", f"sudo apt-get install {packages}")


def check_clones(context: Context) -> Iterator[Finding]:
    for key, name, why, remedy in (
        (
            "machine_id",
            "/etc/machine-id",
            "network addresses are derived from it (a cloned disk, or one machine under two names)",
            "On all but one: rm /etc/machine-id; systemd-machine-id-setup; reboot",
        ),
        (
            "hostname",
            "the host name",
            "Ray and the logs tell machines apart by it",
            "On each machine: hostnamectl set-hostname <its own name>",
        ),
    ):
        owners: dict[str, list[str]] = defaultdict(list)
        for host, node in context.nodes.items():
            if node.get(key):
                owners[str(node[key])].append(host)
        for value, hosts in owners.items():
            if len(hosts) > 1:
                yield Finding(", ".join(hosts), f"{name} is {value} on {len(hosts)} machines, and {why}", remedy)


def check_versions(context: Context) -> Iterator[Finding]:
    for key, name in (("kernel", "kernel"), ("nvidia_driver", "NVIDIA driver")):
        versions: dict[str, list[str]] = defaultdict(list)
        for host, node in context.nodes.items():
            if node.get(key):
                versions[str(node[key])].append(host)
        if len(versions) > 1:
            listed = "; ".join(f"{version} on {', '.join(hosts)}" for version, hosts in sorted(versions.items()))
            yield Finding(
                context.who(context.nodes),
                f"the machines run different versions of the {name}: {listed}",
                "Update them to the same one; NCCL problems between versions are hard to find",
                severity="warning",
            )


def check_cma(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        memory = node.get("memory") or {}
        # Seen with kernel 7.0.0-1019-nvidia: KHO scratch stays behind as CMA, and memory cannot be registered for RDMA.
        if memory.get("cma_total") == 0 and (memory.get("cma_free") or 0) > 0:
            yield Finding(
                host,
                f"the kernel {node.get('kernel')} keeps {memory['cma_free'] / GIB:.1f} GiB as CMA unaccounted for"
                " (CmaTotal 0, CmaFree above 0); RDMA registration may fail with ENOMEM",
                "Boot with kho=off, or with another kernel, if NCCL fails to start",
                severity="warning",
            )


def check_ports(context: Context) -> Iterator[Finding]:
    head = context.head
    if head is None or head not in context.nodes:
        return
    wanted = _ports(context)
    for listener in context.nodes[head].get("listening") or []:
        port = listener.get("port")
        if port not in wanted or str(listener.get("unit") or "").startswith(OUR_UNITS):
            continue
        process = listener.get("process") or "an unknown process"
        unit = f" of {listener['unit']}" if listener.get("unit") else ""
        yield Finding(
            head,
            f"port {port} ({wanted[port]}) is taken by {process}{unit} at {listener.get('address')}",
            f"Stop it, or set {wanted[port]} to a free port",
        )


def check_subnets(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        subnets = [n for n in map(_network, _as_list(context.value(host, "fabric_subnets", []))) if n is not None]
        network = node.get("network") or {}
        own = _fabric_interfaces(context, host)
        used: dict[Network, str] = {}
        for interface in network.get("interfaces") or []:
            if interface["name"] in own or interface["name"] == "lo":
                continue
            for item in interface["addresses"]:
                found = _network(f"{item['address']}/{item.get('prefix') or ''}".rstrip("/"))
                if found is not None and item.get("scope") != "link":
                    used.setdefault(found, f"address {item['address']} on {interface['name']}")
        for route in network.get("routes") or []:
            found = _network(route["dst"])
            if found is not None and found.prefixlen > 0 and route.get("dev") not in own and not found.is_link_local:
                used.setdefault(found, f"route {route['dst']} through {route.get('dev') or route.get('type')}")
        for subnet in subnets:
            for other, what in used.items():
                if subnet.version == other.version and subnet.overlaps(other):
                    yield Finding(
                        host,
                        f"the fabric subnet {subnet} overlaps {what}",
                        "Choose other fabric_subnets; addresses outside the fabric would be lost",
                    )
                    break


def check_management(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        interface = (node.get("network") or {}).get("connection_interface")
        if interface and interface in _fabric_interfaces(context, host):
            yield Finding(
                host,
                "Ansible reaches the machine over a fabric interface, which this layer reconfigures",
                "Use the machine's other network (10GbE or Wi-Fi) in ansible_host",
                str(interface),
            )


def check_limits(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        have = node.get("limits") or {}
        if have.get("can_raise") is not False or context.value(host, "os_stabilization_limits") is False:
            continue
        for key, unit, scale in (("memlock", "KiB", 1024), ("nofile", "files", 1)):
            wanted = str(context.value(host, f"os_stabilization_{key}", "")).rpartition(":")[2]
            most = have.get(key)
            if most is None or most < 0 or (_whole(wanted) and _whole(wanted) * scale <= most):
                continue
            if wanted == "unlimited" or _whole(wanted):
                # pam_limits refuses every login when it cannot set a limit.
                yield Finding(
                    host,
                    f"os_stabilization_{key} is {wanted}, but this machine cannot raise its limit of"
                    f" {most // scale} {unit} (no CAP_SYS_RESOURCE), so nobody could log in any more",
                    f"Set os_stabilization_{key} to at most {most // scale}, or os_stabilization_limits: false",
                )


def check_fabric_fact(context: Context) -> Iterator[Finding]:
    if "fabric" in context.layers:
        return
    for host in context.nodes:
        if host not in context.local_facts:
            continue
        try:
            fact = _fabric_fact.load((context.local_facts[host] or {}).get("sparkmatrix"), host)
            _fabric_fact.require_applied(fact)
        except SparkError as exc:
            yield Finding(host, exc.found, exc.remedy, _fabric_fact.FACT_PATH)
            continue
        rank = context.hosts.get(host, {}).get("spark_rank")
        if fact.nodes != len(context.hosts) or fact.rank != rank:
            yield Finding(
                host,
                f"the fabric was made for rank {fact.rank} of {fact.nodes},"
                f" the inventory says {rank} of {len(context.hosts)}",
                _fabric_fact.REMEDY,
                _fabric_fact.FACT_PATH,
            )


HOST_CHECKS: tuple[Check, ...] = (
    Check("reached", ANY, check_reached, firm=True),
    Check("root", ANY, check_root, firm=True),
    Check("systemd", ANY, check_systemd, firm=True),
    Check("python", ANY, check_python, firm=True),
    Check("gb10", ANY, check_gb10),
    Check("memory", frozenset({"plan", "engine"}), check_memory),
    Check("disk", frozenset({"ray", "engine"}), check_disk),
    Check("clock", WHOLE, check_clock),
    Check("commands", ANY, check_commands),
    Check("clones", WHOLE, check_clones),
    Check("versions", WHOLE, check_versions),
    Check("cma", WHOLE, check_cma),
    Check("ports", SERVING, check_ports),
    Check("subnets", frozenset({"fabric"}), check_subnets),
    Check("management", frozenset({"fabric"}), check_management),
    Check("limits", frozenset({"os_stabilization"}), check_limits, firm=True),
    Check("fabric_fact", AFTER_FABRIC, check_fabric_fact, firm=True),
)
SKIPPABLE = tuple(check.name for check in (*INVENTORY_CHECKS, *HOST_CHECKS) if not check.firm)


# -- small helpers


def _ports(context: Context) -> dict[int, str]:
    """``{port: variable}`` of the selected layers on the head."""
    head = context.head
    found: dict[int, str] = {}
    for layer in context.layers:
        for name, usual in PORTS.get(layer, {}).items():
            number = _whole(context.value(head or "", name, usual))
            if number:
                found[number] = name
    return found


def _paths(context: Context) -> set[str]:
    found = {STATE_DIR}
    if "engine" in context.layers or "ray" in context.layers:
        for host in context.hosts:
            value = context.value(host, "engine_venv_path", "/opt/sparkmatrix/engine")
            if isinstance(value, str) and value.startswith("/"):
                found.add(value)
    return found


def _fabric_interfaces(context: Context, host: str) -> set[str]:
    """Interfaces of the fabric: those in the fact of an earlier run, and those named like a ConnectX-7's."""
    document = (context.local_facts.get(host) or {}).get("sparkmatrix")
    rails = document.get("rails") if isinstance(document, Mapping) else None
    named = {str(rail.get("netdev")) for rail in _as_list(rails) if isinstance(rail, Mapping)}
    interfaces = ((context.nodes.get(host) or {}).get("network") or {}).get("interfaces") or []
    return named | {item["name"] for item in interfaces if _CONNECTX_NAME.match(item["name"])}


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _whole(value: Any) -> int:
    """The value as a positive whole number, 0 for everything else."""
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() else 0


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _address(text: Any) -> str | None:
    try:
        return str(ipaddress.ip_address(str(text)))
    except ValueError:
        return None


def _network(text: Any) -> Network | None:
    """A network from ``10.0.0.0/24``, ``10.0.0.7/24`` or one address; None for ``default`` and everything else."""
    try:
        return ipaddress.ip_network(str(text), strict=False)
    except ValueError:
        return None
