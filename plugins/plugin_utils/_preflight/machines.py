# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Checks of the machines one by one and against each other, beside the fabric."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import gpu, listening, paths, ports
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway import listeners
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight.node import Node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import early
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.registry import KINDS
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import reached
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.base import (
    GIB,
    Context,
    Judge,
    as_version,
    environment_path,
    nccl_version,
    versions_by_host,
    whole,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.inventory import (
    gateway_listeners,
    gateway_wanted,
    ray_asked_for,
    service_ports,
    web_ui_wanted,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.ready import (
    check_model_disk,
    check_prefix_disk,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.variables import ROLES

LOCKS = ROLES / "engine/files/locks"
LOCKED_FOR = re.compile(r"^# .* Python (\d+\.\d+)")
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
    "gateway": {"systemctl": "systemd", "journalctl": "systemd", "ip": "iproute2"},
}
# Programs that the roles install where preflight has not seen them.
INSTALLED: Mapping[str, frozenset[str]] = {
    "nft": frozenset({"fabric"}),
    "ib_write_bw": frozenset({"fabric"}),
    "tmux": frozenset({"access"}),
    "fail2ban-client": frozenset({"access", "fabric"}),
    "nginx": frozenset({"gateway"}),
}
# Ports that a layer opens on the head: variables that hold them, with what is assumed where none of them is documented.
PORTS: Mapping[str, Mapping[str, int]] = {
    "ray": {"ray_port": ports.RAY_GCS, "ray_dashboard_port": ports.RAY_DASHBOARD},
}
# Those that Ray has everywhere and takes from nobody; of those for its workers it leaves out what is taken.
RAY_OF_NODES = range(ports.RAY_NODE_MANAGER, ports.RAY_DASHBOARD_METRICS)
RAY_OF_HEAD = (ports.RAY_CLIENT, ports.RAY_DASHBOARD_METRICS, ports.RAY_AUTOSCALER_METRICS)
MIN_ENGINE_PYTHON = (3, 11)  # vLLM's wheels, see roles/engine/defaults/main.yml
# The measurement is off by as long as a call takes.
CLOCK_SKEW_S = 10


def check_root(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        if node.uid != 0:
            yield Finding(host, f"tasks run with user id {node.uid}, not as root")


def check_systemd(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        if not node.systemd:
            yield Finding(host, "systemd is not the init system")


def check_python(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        version = node.python.version
        if version and as_version(version) < (3, 9):
            yield Finding(host, f"Python is {version}, at least 3.9 is needed", device=node.python.executable)


def check_gb10(context: Context) -> Iterator[Finding]:
    if not context.settings.require_gb10:
        return
    for host, node in context.nodes.items():
        machine = node.machine
        if not machine.is_gb10:
            seen = [f"GPU {machine.gpu}" if machine.gpu else "no NVIDIA GPU found"]
            seen += [words for words in (machine.vendor, machine.product) if words]
            yield Finding(
                host,
                f"this is no GB10 machine ({', '.join(seen)})",
                "If it is one, look at nvidia-smi; for other hardware set preflight_require_gb10: false",
            )
        elif node.arch != "aarch64":
            yield Finding(
                host, f"the architecture is {node.arch}, a GB10 is aarch64", "Install DGX OS for this machine"
            )


# What Linux shows of the memory of a Spark, GiB, by what it is sold with, GB.
SPARKS = {64: (52.0, 64.0), 128: (110.0, 128.0)}
# vLLM with torch and CUDA libraries takes 9 to 12 GiB; weights come on top (the check model_disk).
SOFTWARE_GIB = 20
SIZES_DIFFER = 0.1  # of the larger one; kernels and firmware keep a few GiB, one more than the other


def _totals(context: Context) -> dict[str, float]:
    """GiB by host, where it was read."""
    totals = {host: node.memory.total for host, node in context.nodes.items()}
    return {host: total / GIB for host, total in totals.items() if total is not None}


def check_memory(context: Context) -> Iterator[Finding]:
    expected = " or ".join(
        f"{least:g} to {most:g} GiB (a Spark of {size} GB)" for size, (least, most) in SPARKS.items()
    )
    for host, total in _totals(context).items():
        if context.settings.require_gb10 and not any(least <= total <= most for least, most in SPARKS.values()):
            yield Finding(host, f"the machine has {total:.1f} GiB of memory, expected {expected}")


def check_memory_differs(context: Context) -> Iterator[Finding]:
    told = {finding.host for finding in check_memory(context)}
    totals = {host: total for host, total in _totals(context).items() if host not in told}
    if totals and min(totals.values()) < (1 - SIZES_DIFFER) * max(totals.values()):
        shown = ", ".join(f"{host} {total:.1f} GiB" for host, total in totals.items())
        yield Finding(context.who(totals), f"the machines have different memory: {shown}")


def check_disk(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        seen = set()
        for path, space in node.paths.items():
            # What is there already, a shared environment mounted read-only for one, has its space.
            if space.exists and path != paths.STATE:
                continue
            # Paths on one file system are one finding.
            system = (space.total, space.free, space.read_only)
            if system in seen:
                continue
            seen.add(system)
            if space.read_only:
                yield Finding(
                    host, "the file system is read-only", "Remount it writable; if the kernel did it, see dmesg", path
                )
            elif path != paths.STATE and space.free is not None and space.free < SOFTWARE_GIB * GIB:
                yield Finding(
                    host,
                    f"{space.free / GIB:.1f} GiB free, at least {SOFTWARE_GIB} GiB needed",
                    "Free some space, or put the path on a larger disk",
                    path,
                )


def check_clock(context: Context) -> Iterator[Finding]:
    offsets = {h: n.clock_offset for h, n in context.nodes.items() if n.clock_offset is not None}
    if len(offsets) < 2:
        return
    ordered = sorted(offsets.values())
    # Offsets are against the controller's clock: of two machines, the one that agrees with it is right.
    usual = min(ordered, key=abs) if len(ordered) == 2 else ordered[(len(ordered) - 1) // 2]
    for host, offset in offsets.items():
        skew = offset - usual
        if abs(skew) > CLOCK_SKEW_S:
            yield Finding(
                host, f"the clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the other machines"
            )


def wanted_commands(context: Context, host: str) -> dict[str, str]:
    """Programs that this run needs on a host, with their packages."""
    needed: dict[str, str] = {}
    for layer in sorted(context.layers):
        needed.update(COMMANDS.get(layer, {}))
    own_ca = str(context.value(host, "gateway_tls", "")) == "own_ca"
    if "gateway" in context.layers and host == context.head and own_ca and gateway_wanted(context):
        needed["openssl"] = "openssl"
    return needed


def check_commands(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        needed = wanted_commands(context, host)
        missing = sorted(name for name in needed if not node.commands.get(name))
        if missing:
            packages = " ".join(sorted({needed[name] for name in missing}))
            yield Finding(host, f"not installed: {', '.join(missing)}", f"sudo apt-get install {packages}")


NVCC = ("nvcc", "/usr/local/cuda/bin/nvcc")  # where FlashInfer looks for it


def check_compiler(context: Context) -> Iterator[Finding]:
    """Of the engine's environment on a Spark: an image has its own, or what it needs compiled."""
    for host, node in context.nodes.items():
        contained = context.value(host, "engine_runtime", "") == "container"
        asked = [path for name, path in node.commands.items() if name in NVCC]
        if contained or not asked or any(asked) or not node.machine.is_gb10:
            continue
        yield Finding(host, f"there is no nvcc (neither in PATH nor as {NVCC[1]})")


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
            if getattr(node, key):
                owners[getattr(node, key)].append(host)
        for value, hosts in owners.items():
            if len(hosts) > 1:
                yield Finding(", ".join(hosts), f"{name} is {value} on {len(hosts)} machines: {why}", remedy)


def check_firmware_differs(context: Context) -> Iterator[Finding]:
    def firmware(host: str, _node: Node) -> str:
        return ", ".join(sorted({port.firmware for port in context.rdma_ports(host) if port.firmware}))

    for name, value in (
        ("kernel", lambda _host, node: node.kernel),
        ("NVIDIA driver", lambda _host, node: node.nvidia_driver),
        ("ConnectX firmware", firmware),
        ("NCCL", lambda host, _node: nccl_version(context, host)),
    ):
        versions = versions_by_host(context, value)
        if len(versions) > 1:
            listed = "; ".join(f"{text} on {', '.join(hosts)}" for text, hosts in sorted(versions.items()))
            yield Finding(
                context.who(host for hosts in versions.values() for host in hosts),
                f"different versions of the {name}: {listed}",
                "Update the machines to the same one",
            )


def check_cma(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        memory = node.memory
        # Seen with kernel 7.0.0-1019-nvidia: KHO scratch stays behind as CMA, and memory cannot be registered for RDMA.
        if memory.cma_total == 0 and (memory.cma_free or 0) > 0:
            yield Finding(
                host,
                f"the kernel {node.kernel} keeps {(memory.cma_free or 0) / GIB:.1f} GiB as CMA unaccounted for"
                " (CmaTotal 0, CmaFree above 0)",
            )


def check_ports(context: Context) -> Iterator[Finding]:
    if context.head is None:
        return
    wanted = wanted_ports(context)
    for host, node in context.nodes.items():
        for listener in node.listening or ():
            place = host, listener.port
            if place not in wanted or (listener.unit or "").startswith(listening.OURS):
                continue
            name, addresses = wanted[place]
            if not any(listeners.collide(listener.address, address) for address in addresses):
                continue
            process = listener.process or "an unknown process"
            unit = f" of {listener.unit}" if listener.unit else ""
            yield Finding(
                host,
                f"port {place[1]} ({name}) is taken by {process}{unit} at {listener.address}",
                "Stop it, or give it another port: these of Ray are fixed"
                if place[1] in ports.RAY_RANGE
                else f"Stop it, or set {name} to a free port",
            )


def check_limits(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        have = node.limits
        if have.can_raise is not False or context.value(host, "os_stabilization_limits") is False:
            continue
        for key, most, unit, scale in (("memlock", have.memlock, "KiB", 1024), ("nofile", have.nofile, "files", 1)):
            wanted = str(context.value(host, f"os_stabilization_{key}", "")).rpartition(":")[2]
            if most is None or most < 0 or (whole(wanted) and whole(wanted) * scale <= most):
                continue
            if wanted == "unlimited" or whole(wanted):
                # pam_limits refuses every login when it cannot set a limit.
                yield Finding(
                    host,
                    f"os_stabilization_{key} is {wanted}, but this machine cannot raise its limit of"
                    f" {most // scale} {unit} (no CAP_SYS_RESOURCE), so nobody could log in any more",
                    f"Set os_stabilization_{key} to at most {most // scale}, or os_stabilization_limits: false",
                )


def check_engine_python(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        versions = node.interpreters
        path = environment_path(context, host)
        state = node.environments.get(path or "")
        if path is None or state is None:
            continue
        if state.distrusted:
            yield Finding(
                host,
                f"{state.distrusted}: who can change the engine's Python environment would be root at the next run",
                "Give it to root (sudo chown -R root:root), or name the account as spark_service_user",
                path,
            )
            continue
        made = state.exists
        program = f"{path}/bin/python" if made else str(context.value(host, "engine_python", "python3"))
        if program not in versions:
            continue
        version = versions[program]
        least = ".".join(map(str, MIN_ENGINE_PYTHON))
        if version is None and made:
            yield Finding(
                host,
                "the environment's own Python does not run (an upgrade of the system's Python has this effect)",
                f"Remove the environment, the next run builds it again: sudo rm -r {path}",
                program,
            )
        elif version is None:
            yield Finding(
                host,
                "the interpreter that engine_python names does not run",
                f"Install Python {least} or later, or correct engine_python",
                program,
            )
        elif as_version(version) < MIN_ENGINE_PYTHON:
            again = f"; then remove the environment: sudo rm -r {path}" if made else ""
            yield Finding(
                host,
                f"{'the environment has' if made else 'engine_python is'} Python {version}, {least} or later is needed",
                f"Install a newer Python and name it in engine_python, for example python3.12{again}",
                program,
            )
        elif not made and (lock := _lock(context, host)):
            name, only = lock
            if as_version(version) != as_version(only):
                yield Finding(
                    host,
                    f"engine_python is Python {version}, and the lock {name} has wheels for Python {only} only:"
                    " pip would refuse them by their hashes after minutes",
                    f"Set engine_python: python{only} (sudo apt-get install python{only}-venv), or name a lock of"
                    " your own: engine_venv_lock",
                    program,
                )


def _lock(context: Context, host: str) -> tuple[str, str] | None:
    """The collection's lock by which the environment of a node would be built, and the Python that it is for."""
    hosts = sorted(context.hosts, key=lambda name: whole(context.hosts[name].get("spark_rank")))
    if context.value(host, "engine_venv_lock") or context.value(host, "engine_recipe") is None:
        return None
    for service in early.asked(lambda name: context.value(host, name), hosts)[0]:
        if host not in (service.entry.hosts or hosts):
            continue
        recipe, settings = service.recipe, service.settings
        name = settings.engine or recipe.engine
        own = recipe.settings(name)
        if name in KINDS and (settings.runtime or recipe.runtime or KINDS[name].runtime) == "venv":
            for requirement in (*settings.requirements, *(own.requirements if own else ())):
                path = LOCKS / f"{requirement.replace('==', '-')}.txt"
                if path.is_file() and (made := LOCKED_FOR.search(path.read_text(encoding="utf-8"))):
                    return path.name, made[1]
    return None


def check_gpu(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        state = node.gpu
        if state is None:
            continue
        if not state.checked:
            yield Finding(
                host,
                f"not checked: whether CUDA can use the GPU ({state.message or 'no answer'})",
                "Install the NVIDIA driver with libcuda.so.1, if this machine has an NVIDIA GPU",
                severity="info",
            )
        elif not state.ok:
            code = "" if state.code is None else f" (error {state.code})"
            yield Finding(
                host,
                f"cuInit fails, whatever nvidia-smi says: {state.message or 'no reason given'}{code}",
                device=node.machine.gpu or "GPU",
            )


BUSY_PERCENT = 80
# A GB10 runs at 2000 to 2500 MHz under load (3003 at most); stuck in its low-power state, at 500 to 850.
SLOW_MHZ = 1000


def check_gpu_slow(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        state, device = node.clocks, node.machine.gpu or "GPU"
        if state is None:
            if not node.unread("clocks") or node.gpu is None or not node.gpu.checked:
                continue  # the check `gpu` says it
            yield Finding(
                host,
                "not checked: whether the GPU is slowed down (nvidia-smi does not tell its clock)",
                "Try it by hand: nvidia-smi -q -d CLOCK,PERFORMANCE,TEMPERATURE",
                device,
                severity="info",
            )
            continue
        busy, mhz = state.busy, state.mhz
        at = f" at {state.celsius} degrees Celsius" if state.celsius is not None else ""
        faults = [why for why in state.slowed if why in gpu.FAULTS]
        if faults:
            yield Finding(
                host,
                f"the GPU holds its clock down now: {', '.join(faults)}{at}",
                "Give the machine air on all sides, and use the power supply that came with it; a lower highest clock "
                "keeps it cooler until the next boot: sudo nvidia-smi -lgc 0,2000 (nvidia-smi -rgc takes it back)",
                device,
            )
        elif busy is not None and mhz is not None and busy >= BUSY_PERCENT and 0 < mhz < SLOW_MHZ:
            yield Finding(
                host,
                f"the GPU is {busy} % busy at {mhz} MHz{at}: a GB10 at work runs above 2000",
                "If it stays so, and nobody has capped the clock (nvidia-smi -rgc takes a cap away): shut the machine "
                "down, unplug its power supply for five minutes, and start it. A reboot does not end this state",
                device,
            )


def _journal(
    context: Context, kind: str, found: str, remedy: str, *, missing: bool | None = None, severity: str = "error"
) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        for entry in node.kernel_log or ():
            if entry.kind == kind and missing in (None, entry.missing):
                times = f" ({entry.count} lines)" if entry.count > 1 else ""
                text = f"{found} in this boot: {entry.line}{times}"
                yield Finding(host, text, remedy, entry.device, severity)


def check_pcie_error(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        if node.unread("kernel_log"):
            yield Finding(
                host,
                "not checked: fatal PCIe errors and lost devices (journalctl -k does not answer)",
                "Check that systemd-journald runs: journalctl -k -b -p err",
                severity="info",
            )
    yield from _journal(
        context,
        "aer_fatal",
        "a fatal PCIe error",
        "",
    )


def check_low_power(context: Context) -> Iterator[Finding]:
    for missing, after, remedy, severity in (
        (
            True,
            ", and is gone",
            "Shut the machine down, unplug its power supply for a minute, and start it with the QSFP cable attached",
            "error",
        ),
        (False, " at first, and is there now", "Nothing to do while it works", "info"),
    ):
        found = f"a PCIe device did not come back from its low-power state{after}"
        yield from _journal(context, "low_power", found, remedy, missing=missing, severity=severity)


def check_session(context: Context) -> Iterator[Finding]:
    for host, node in context.nodes.items():
        profile = node.session
        stays = context.value(host, "os_stabilization_headless", "boot") == "off"
        if stays or profile is None or not (profile.users or profile.secret):
            continue
        whose = f"belongs to {', '.join(profile.users)}" if profile.users else "has its password from a user's session"
        yield Finding(
            host,
            f"the connection that Ansible comes over {whose}, so it may not come up without the desktop",
            f"sudo nmcli connection modify {profile.uuid} connection.permissions '' "
            "802-11-wireless-security.psk-flags 0, then give it the password: sudo nmcli --ask connection up "
            f"{profile.uuid}. Or keep the desktop: "
            'os_stabilization_headless: "off"',
            profile.interface,
        )


def _observability_wanted(context: Context, head: str) -> bool:
    enabled = boolean(context.value(head, "observability_enabled", False), strict=False)
    return bool(enabled)


def wanted_ports(context: Context) -> dict[tuple[str, int], tuple[str, list[str]]]:
    """``{(node, port): (variable, addresses)}`` of the selected layers: those of the head, Ray's of every node, and
    each service's where it listens. Which address that will be is known of the gateway alone."""
    head = context.head or ""
    everywhere = list(listeners.EVERYWHERE)
    found: dict[tuple[str, int], tuple[str, list[str]]] = {}
    for layer in context.layers:
        for name, usual in PORTS.get(layer, {}).items():
            found[head, whole(context.value(head, name, usual))] = name, everywhere
        # Whether there will be a Ray is the plan's to say; here it is left out where there surely is none.
        if layer == "ray" and len(context.hosts) > 1 and ray_asked_for(context):
            places = [(head, port) for port in RAY_OF_HEAD]
            places += [(host, port) for host in context.hosts for port in RAY_OF_NODES]
            found |= dict.fromkeys(places, ("Ray", everywhere))
        if layer == "gateway" and gateway_wanted(context):
            found |= {(head, port): (name, where) for port, name, where in gateway_listeners(context)}
        if layer == "observability" and _observability_wanted(context, head):
            name = "observability_prometheus_port"
            found[head, whole(context.value(head, name, ports.PROMETHEUS))] = name, ["127.0.0.1"]
            name = "observability_exporter_port"
            port = whole(context.value(head, name, ports.NODE_EXPORTER))
            found |= dict.fromkeys([(host, port) for host in context.hosts], (name, everywhere))
        if layer == "web_ui" and web_ui_wanted(context):
            found[head, whole(context.value(head, "web_ui_port", ports.WEB_UI))] = "web_ui_port", ["127.0.0.1"]
        if layer == "engine":
            found |= {(node, port): (what, everywhere) for node, port, what in service_ports(context)}
    return {place: wanted for place, wanted in found.items() if place[1]}


JUDGES: Mapping[str, Judge] = {
    "not_answering": reached.check_reached,
    "root": check_root,
    "systemd": check_systemd,
    "python": check_python,
    "gb10": check_gb10,
    "memory": check_memory,
    "memory_differs": check_memory_differs,
    "disk": check_disk,
    "model_disk": check_model_disk,
    "prefix_disk": check_prefix_disk,
    "clock": check_clock,
    "commands": check_commands,
    "compiler": check_compiler,
    "clones": check_clones,
    "firmware_differs": check_firmware_differs,
    "cma": check_cma,
    "ports": check_ports,
    "limits": check_limits,
    "engine_python": check_engine_python,
    "gpu": check_gpu,
    "gpu_slow": check_gpu_slow,
    "pcie_error": check_pcie_error,
    "low_power": check_low_power,
    "session": check_session,
}
