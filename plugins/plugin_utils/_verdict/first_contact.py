# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What this collection assumes of real Sparks and could not see: each assumption is held, is not held, or is not seen,
by what the machines print. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document as documents
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Verdict
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.planner import Options, Planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._rules.table import passed, unknown, verdict

Outputs = Mapping[str, str]  # of one machine, by name
HALVES = ("enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1")
_NETDEV = re.compile(r"/sys/class/net/([^/]+)/carrier")


@dataclass(frozen=True)
class Assumption:
    """``judge`` returns whether it holds, None where it was not seen, and what was seen."""

    name: str
    says: str
    judge: Callable[[Outputs], tuple[bool | None, str]]


def _ports(outputs: Outputs) -> dict[str, dict[str, str]]:
    """Attributes of the ConnectX ports by interface."""
    names = [match.group(1) for match in map(_NETDEV.fullmatch, outputs) if match]
    return {
        name: {
            key.rpartition("/")[2]: text for key, text in outputs.items() if key.startswith(f"/sys/class/net/{name}/")
        }
        for name in names
    }


def _product(outputs: Outputs) -> tuple[bool | None, str]:
    found = outputs.get("/sys/class/dmi/id/product_name", "")
    gpu = re.search(r"NVIDIA GB10\b", outputs.get("nvidia_smi", ""))
    if not outputs.get("nvidia_smi"):
        return None, f"product {found or 'not told'}, no nvidia-smi"
    return gpu is not None, f"product {found or 'not told'}, GPU {'NVIDIA GB10' if gpu else 'of another name'}"


def _names(outputs: Outputs) -> tuple[bool | None, str]:
    found = sorted(_ports(outputs))
    return (set(found) <= set(HALVES), ", ".join(found)) if found else (None, "no ConnectX port")


def _cages(outputs: Outputs) -> tuple[bool | None, str]:
    """One PCI function per half, so that a later multi-PF netdev would show one per cage."""
    found = _ports(outputs)
    by = {name: port.get("phys_port_name", "") for name, port in sorted(found.items())}
    if not by:
        return None, "no ConnectX port"
    counts = {port: list(by.values()).count(port) for port in by.values()}
    return set(counts) <= {"p0", "p1"} and set(counts.values()) == {2}, ", ".join(f"{n} {p}" for n, p in by.items())


def _down_speed(outputs: Outputs) -> tuple[bool | None, str]:
    found = _ports(outputs)
    down = {name: port["speed"] for name, port in found.items() if port.get("carrier") != "1" and "speed" in port}
    if not found:
        return None, "no ConnectX port"
    if not down:
        return None, "every port has a link"
    good = all(speed in ("-1", "(not readable)", "") for speed in down.values())
    return good, ", ".join(f"{name} {speed}" for name, speed in sorted(down.items()))


def _networkd(outputs: Outputs) -> tuple[bool | None, str]:
    """After the fabric layer: NetworkManager leaves the ports alone, and networkd has configured them."""
    nm = dict(re.findall(r"^([^:\n]+):ethernet:(\w+)", outputs.get("nmcli", ""), re.MULTILINE))
    own = {
        words[1]: words[4]
        for line in outputs.get("networkctl", "").splitlines()
        if len(words := line.split()) >= 5 and words[1] in _ports(outputs)
    }
    configured = sorted(name for name, state in own.items() if state == "configured")
    if not configured:
        return None, "networkd has configured no ConnectX port: the fabric layer has not run"
    wrong = [name for name in configured if nm.get(name, "unmanaged") != "unmanaged"]
    return not wrong, f"by networkd: {', '.join(configured)}" + (
        f"; also by NetworkManager: {', '.join(wrong)}" if wrong else ""
    )


def _sync(outputs: Outputs) -> tuple[bool | None, str]:
    files = outputs.get("/etc/netplan", "").split()
    found = [name for name in files if re.search(r"dgx-interconnect|cx7", name)]
    return (True, ", ".join(found)) if found else (None, f"files of netplan: {', '.join(files) or 'none'}")


def _avahi(outputs: Outputs) -> tuple[bool | None, str]:
    text = outputs.get("/etc/avahi/avahi-daemon.conf")
    if text is None:
        return None, "avahi is not installed"
    lines = re.findall(r"^\s*((?:allow|deny)-interfaces=.*)$", text, re.MULTILINE)
    if any("enp1s0" in line for line in lines):
        return None, "the fabric layer has set it already"
    return not lines, "; ".join(lines) or "it publishes on every interface"


def _journal(outputs: Outputs) -> tuple[bool | None, str]:
    text = outputs.get("kernel_journal")
    linked = [name for name, port in _ports(outputs).items() if port.get("carrier") == "1"]
    if not text or not linked:
        return None, "no journal of the kernel, or no port with a link"
    bad = re.findall(r"^.*(?:severity=Uncorrect\w+ \(Fatal\)|device inaccessible).*$", text, re.MULTILINE)
    return not bad, bad[0].strip() if bad else f"no fatal line, with a link on {', '.join(sorted(linked))}"


def _persistent(outputs: Outputs) -> tuple[bool | None, str]:
    boots = re.findall(r"^\s*-?\d+\s+\w", outputs.get("boots", ""), re.MULTILINE)
    return (True, f"{len(boots)} boots") if len(boots) > 1 else (None, f"{len(boots)} boots")


def _grub(outputs: Outputs) -> tuple[bool | None, str]:
    names = outputs.get("/boot/grub", "").split()
    if not names:
        return None, "no /boot/grub"
    tool, file = "grub" in outputs, "grubenv" in names
    return tool and file, f"{'grubenv' if file else 'no grubenv'} in /boot/grub{'' if tool else ', no grub-editenv'}"


def _clock(outputs: Outputs) -> tuple[bool | None, str]:
    text = outputs.get("nvidia_smi_clock", "")
    match = re.search(r"SM\s+: (\d+ MHz)", text)
    return (
        (match is not None, f"SM {match.group(1)}" if match else "no clock of the SMs")
        if text
        else (None, "no nvidia-smi")
    )


def _memory(outputs: Outputs) -> tuple[bool | None, str]:
    match = re.search(r"MemTotal:\s+(\d+) kB", outputs.get("/proc/meminfo", ""))
    if not match:
        return None, "no /proc/meminfo"
    size = int(match.group(1)) / 2**20
    return 52 <= size <= 64 or 110 <= size <= 128, f"{size:.1f} GiB"


ASSUMPTIONS: tuple[Assumption, ...] = (
    Assumption("product", "nvidia-smi names the GPU NVIDIA GB10", _product),
    Assumption("memory", "Linux shows 110 to 128 GiB of a Spark of 128 GB, 52 to 64 of one of 64 GB", _memory),
    Assumption("names", f"the ConnectX ports are called {', '.join(HALVES)}", _names),
    Assumption("cages", "each cage is two network devices with the same phys_port_name, p0 or p1", _cages),
    Assumption("down_speed", "a port without a link tells no speed", _down_speed),
    Assumption("networkd", "NetworkManager leaves the ports to networkd, also after a reboot", _networkd),
    Assumption("sync", "NVIDIA Sync and NVIDIA's playbooks write 60-dgx-interconnect.yaml or 40-cx7.yaml", _sync),
    Assumption("avahi", "avahi publishes on the ConnectX ports as it is shipped", _avahi),
    Assumption("journal", "the kernel's journal of a healthy boot has no fatal PCIe line", _journal),
    Assumption("persistent", "the journal keeps earlier boots", _persistent),
    Assumption("grub", "GRUB can boot a kernel once (grubenv in /boot/grub)", _grub),
    Assumption("clock", "nvidia-smi tells the clock of the SMs", _clock),
)


def judge(outputs: Mapping[str, Outputs]) -> list[Verdict]:
    """Of all machines: one that contradicts is enough."""
    made = []
    for assumption in ASSUMPTIONS:
        seen = {host: assumption.judge(text) for host, text in outputs.items()}
        against = [host for host, (holds, _found) in seen.items() if holds is False]
        held = [host for host, (holds, _found) in seen.items() if holds]
        hosts = against or held or list(seen)
        shown = "; ".join(dict.fromkeys(seen[host][1] for host in hosts))
        words = f"{assumption.says}: {'does not hold' if against else 'held' if held else 'not seen'} ({shown})"
        evidence = [seen[host][1] for host in hosts]
        if against:
            made.append(verdict(assumption.name, "node", words, "assumption_wrong", hosts, evidence=evidence))
        else:
            made.append((passed if held else unknown)(assumption.name, "node", words, hosts, evidence=evidence))
    return made


def make(options: Options) -> dict[str, Any]:
    outputs = {host: told.outputs for host, told in options["seen"].items() if told.outputs}
    return {"part": {"verdicts": documents.plain(judge(outputs))}}


PLANNERS = {"first_contact": Planner(make, {}, gathered={"seen": "support"}, alive=True)}
