# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a real Spark prints, as this collection could only assume it: raw outputs, without what tells whose machine it
is. Changes nothing."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine

MOST_CHARACTERS = 60000  # of one output
COMMANDS: Mapping[str, Sequence[str]] = {
    "ip_link": ("ip", "-br", "link"),
    "ip_addr": ("ip", "-br", "addr"),
    "networkctl": ("networkctl", "list", "--no-legend", "--no-pager"),
    "nmcli": ("nmcli", "-t", "-f", "DEVICE,TYPE,STATE", "device"),
    "lspci": ("lspci", "-nn", "-tv"),
    "lspci_mellanox": ("lspci", "-vv", "-d", "15b3:"),
    "ibdev2netdev": ("ibdev2netdev",),
    "show_gids": ("show_gids",),
    "rdma_link": ("rdma", "link"),
    "nvidia_smi": ("nvidia-smi",),
    "nvidia_smi_clock": ("nvidia-smi", "-q", "-d", "CLOCK,PERFORMANCE,TEMPERATURE,POWER"),
    "grub": ("grub-editenv", "list"),
    "boots": ("journalctl", "--list-boots", "--no-pager", "-q"),
    "kernel_journal": (
        *("journalctl", "-b", "_TRANSPORT=kernel", "--no-pager", "-q", "-o", "short-monotonic", "-n", "2000"),
        "--grep=mlx5|[Aa][Ee][Rr]|pcieport|NVRM|D3cold|hotplug|thermal|MTU|Link",
    ),
    "docker": ("docker", "info", "--format", "{{.ServerVersion}} {{.Driver}} {{.CgroupDriver}}"),
}
FILES = (
    "/etc/dgx-release",
    "/etc/os-release",
    "/etc/avahi/avahi-daemon.conf",
    "/proc/cmdline",
    "/proc/meminfo",
    "/proc/driver/nvidia/version",
    "/sys/class/dmi/id/product_name",
    "/sys/class/dmi/id/sys_vendor",
    "/sys/class/dmi/id/bios_version",
)
FOLDERS = ("/etc/netplan", "/etc/NetworkManager/conf.d", "/etc/systemd/network", "/boot/grub")
PORTS = ("speed", "carrier", "operstate", "mtu", "phys_port_name", "phys_switch_id")
_MAC = re.compile(r"\b([0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){2})((?::[0-9a-fA-F]{2}){3})\b")
_GUID = re.compile(r"(?<![:\w])[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){3}(?![:\w])")
_FROM_MAC = re.compile(r"([0-9a-fA-F]{1,4}:[0-9a-fA-F]{2}ff:fe)([0-9a-fA-F]{2}:[0-9a-fA-F]{4})")
_HEX = re.compile(r"(?<![0-9a-zA-Z])(?:0x)?[0-9a-f]{16,64}\b")
_UUID = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_IPV6 = re.compile(r"\b(?:[0-9a-fA-F]{1,4}:){2,7}(?::?[0-9a-fA-F]{1,4}){0,5}(?![\w:])")
_IPV4 = re.compile(
    r"\b(?!10\.|127\.|0\.|255\.|169\.254\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.)\d{1,3}(?:\.\d{1,3}){3}(?!\w|-|\.\d)"
)
_SERIAL = re.compile(r"(?i)(serial[^:=\n]{0,20}[:=]\s*|device serial number )\S.*|(\[(?:SN|V\d)\][^:\n]{0,20}:\s*)\S.*")
_NAMES = re.compile(r"(?im)^(\s*(?:host|domain)-name\s*=\s*)\S.*")  # avahi
# NetworkManager puts the name of a wireless network behind the UUID.
_NETPLAN = re.compile(r"(90-NM-[0-9a-f-]{36})-.*(?=\.yaml)")
_MAPPED = re.compile(r"\b((?:0000:){5}ffff:)([0-9a-f]{4}):([0-9a-f]{4})\b")  # IPv4 in a GID
_COMMAND_LINE = re.compile(r"((?:^BOOT_IMAGE=|command line: ).*)", re.MULTILINE | re.IGNORECASE)
# Options of the kernel whose values tell of the machine; values of all others are left out.
_OPTION = re.compile(
    r"(?<!\S)(?!(?:BOOT_IMAGE|acpi|arm-smmu|cgroup|console|cpu|crashkernel|default_huge|earlycon|efi|huge|init_on|iommu"
    r"|mem|mitigations|mlx5|module|net\.ifnames|nohz|numa|nvidia|pci|pm|preempt|psi|rcu|thunderbolt|transparent_huge)"
    r"[^\s=]*=)([^\s=]+)=\S+"
)


def collect(machine: Machine) -> dict[str, str]:
    """Outputs by name; what is not there is left out."""
    with ThreadPoolExecutor(max_workers=8) as pool:
        done = dict(zip(COMMANDS, pool.map(machine.runner, COMMANDS.values())))
    found = {name: one.out or one.err for name, one in done.items() if one.rc != 127}
    found |= {path: text for path in FILES if (text := machine.text(path)) is not None}
    found |= {path: "\n".join(names) for path in FOLDERS if (names := machine.names(path))}
    for netdev in machine.names("/sys/class/net"):
        place = f"/sys/class/net/{netdev}"
        if (machine.text(f"{place}/device/vendor") or "") == "0x15b3":
            for name in PORTS:
                value = machine.text(f"{place}/{name}")
                # The kernel refuses to tell the speed of a port without a link (EINVAL).
                found[f"{place}/{name}"] = "(not readable)" if value is None else value
    host = machine.text("/proc/sys/kernel/hostname") or ""
    return {name: redact(text, host)[:MOST_CHARACTERS] for name, text in sorted(found.items())}


def redact(text: str, host: str = "") -> str:
    """Without serial numbers, identities and public addresses; what is the same stays the same within the text."""
    seen: dict[str, str] = {}

    def number(value: str) -> int:
        return int(seen.setdefault(value.lower(), str(len(seen) + 1)))

    text = printable(text)
    text = _SERIAL.sub(lambda match: f"{match.group(1) or match.group(2)}(left out)", text)
    text = _NAMES.sub(lambda match: f"{match.group(1)}(left out)", text)
    text = _NETPLAN.sub(lambda match: f"{match.group(1)}-(left out)", text)
    text = _COMMAND_LINE.sub(lambda match: _OPTION.sub(r"\1=(left out)", match.group(0)), text)
    text = _UUID.sub("00000000-0000-0000-0000-000000000000", text)
    text = _MAC.sub(lambda match: f"{match.group(1)}:00:00:{number(match.group(0)) % 256:02x}", text)
    text = _FROM_MAC.sub(lambda match: f"{match.group(1)}00:{number(match.group(0)):04x}", text)
    text = _GUID.sub(lambda match: f"0000:0000:0000:{number(match.group(0)):04x}", text)
    text = _IPV6.sub(
        lambda match: f"2001:db8::{number(match.group(0)):x}" if _public(match.group(0)) else match.group(0), text
    )
    text = _IPV4.sub(lambda match: f"203.0.113.{number(match.group(0)) % 256}", text)
    text = _MAPPED.sub(lambda match: _mapped(match, number), text)
    text = _HEX.sub(lambda match: f"{number(match.group(0)):016x}", text)
    for name in (host, host.partition(".")[0]):
        if len(name) > 2:
            text = re.sub(rf"\b{re.escape(name)}\b(?:\.[a-zA-Z][\w-]*)*", "host", text)
    return text


def _mapped(match: re.Match[str], number: Callable[[str], int]) -> str:
    if not ipaddress.ip_address(int(match.group(2) + match.group(3), 16)).is_global:
        return match.group(0)
    return f"{match.group(1)}cb00:71{number(match.group(0)) % 256:02x}"


def _public(address: str) -> bool:
    """Global unicast, and unique local ones, whose prefix is somebody's own (RFC 4193); not times and PCI addresses."""
    return address.count(":") >= 3 and bool(re.match("(?:[23][0-9a-f]|f[cd])[0-9a-f]{2}:", address, re.IGNORECASE))
