# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A node with netplan, systemd-networkd and NetworkManager for tests of what changes its network.

Its files are below a temporary root; :meth:`FakeNode.run` stands for the programs. ``netplan generate`` writes one
``.network`` file per definition, ``networkctl reconfigure`` makes it effective after ``delay`` looks at the addresses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.arp import Holder
from fake_machine import FakeMachine


@dataclass
class Nic:
    mtu: int = 1500
    up: bool = True
    carrier: bool = True
    addresses: list[str] = field(default_factory=list)
    dynamic: list[str] = field(default_factory=list)


class FakeNode(FakeMachine):
    looks = frozenset({"is-active", "is-enabled", "show", "--root-dir"})

    def __init__(self, root: Path, nics: Sequence[str]) -> None:
        super().__init__(root)
        self.nics = {"enP7s7": Nic(addresses=["10.0.0.1/24"]), **{name: Nic() for name in nics}}
        self.networkd = False
        self.nm = True
        self.masked = False
        self.avahi = True  # its package is there, not its file alone
        self.nm_managed = set(nics)
        self.rules = ["from 10.99.0.0/16 lookup 99"]  # of a VPN
        self.manages_rules = True  # networkd, by what it read when it started
        self.delay = 2
        self.pending: list[tuple[int, str]] = []
        self.timers: dict[str, list[str]] = {}  # armed by systemd-run: unit and what it runs
        self.default_routes = ["enP7s7"]
        self.strangers: list[Holder] = []  # who answers ARP probes
        self.asked: list[dict[str, list[str]]] = []
        self.ignored: set[str] = set()  # keys that netplan makes nothing of
        self.masters: dict[str, str] = {}
        for name in ("all", *self.nics):
            for key in ("arp_ignore", "arp_announce"):
                self.write(f"/proc/sys/net/ipv4/conf/{name}/{key}", "0\n")
            self.write(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6", "0\n")
        self.write("/usr/local/lib/sparkmatrix/sparkmatrix-node", "the tool\n")
        self.path("/usr/local/lib/sparkmatrix/sparkmatrix-node").chmod(0o755)
        self.write("/etc/hosts", "127.0.0.1 localhost\n")
        self.write("/etc/netplan/01-nm.yaml", "network:\n  renderer: NetworkManager\n")
        self.path("/etc/NetworkManager/conf.d").mkdir(parents=True)
        self.write("/etc/avahi/avahi-daemon.conf", "[server]\n#deny-interfaces=eth1\nuse-ipv4=yes\n\n[wide-area]\n")
        self.start_avahi()

    # --- files

    def tree(self) -> dict[str, tuple[str, int]]:
        """Every file with content and mode, without what netplan generates."""
        return {
            str(path.relative_to(self.root)): (path.read_text(), path.stat().st_mode & 0o777)
            for path in sorted(self.root.rglob("*"))
            if path.is_file() and "run/" not in str(path.relative_to(self.root))
        }

    def state(self) -> dict[str, Any]:
        return {name: (nic.mtu, nic.up, sorted(nic.addresses)) for name, nic in self.nics.items()}

    # --- programs

    def run(self, argv: Sequence[str]) -> Completed:
        if argv[0] == "ip" and argv[1] == "-j":
            return self.failed(argv) or Completed(0, self._show_routes() if "route" in argv else self._show())
        return super().run(argv)

    def holders(self, _machine: Any, asked: Any) -> list[Holder]:
        self.asked.append({netdev: list(addresses) for netdev, addresses in asked.items()})
        return [holder for holder in self.strangers if holder.address in asked.get(holder.netdev, ())]

    def _show(self) -> str:
        due, self.pending = (
            [name for n, name in self.pending if n <= 0],
            [(n - 1, name) for n, name in self.pending if n],
        )
        for name in due:
            self._configure(name)
        shown = []
        for number, (name, nic) in enumerate(self.nics.items()):
            flags = ["BROADCAST", "MULTICAST", *(["UP"] if nic.up else []), *(["LOWER_UP"] if nic.carrier else [])]
            infos: list[dict[str, Any]] = [{"family": "inet6", "local": "fe80::1", "prefixlen": 64}]
            for address in nic.addresses:
                local, _, prefix = address.partition("/")
                infos.append({"family": "inet", "local": local, "prefixlen": int(prefix)})
                if address in nic.dynamic:
                    infos[-1]["dynamic"] = True
            shown.append({"ifindex": number, "ifname": name, "flags": flags, "mtu": nic.mtu, "addr_info": infos})
            if name in self.masters:
                shown[-1]["master"] = self.masters[name]
        return json.dumps(shown)

    def _show_routes(self) -> str:
        return json.dumps([{"dst": "default", "gateway": "10.0.0.254", "dev": dev} for dev in self.default_routes])

    def reboot(self) -> None:
        """What the kernel knew is gone; netplan has read its files before any unit runs."""
        self.timers, self.pending, self.networkd = {}, [], False
        for nic in self.nics.values():
            nic.mtu, nic.up = 1500, True
            nic.addresses = [address for address in nic.addresses if address.startswith("10.0.0.")]
        self._netplan(["netplan", "generate"])
        for name, nic in self.nics.items():  # by udev, from netplan's .link file
            nic.mtu = (self._file(name) or {}).get("mtu") or nic.mtu

    def start_network(self) -> None:
        """The rest of the boot: udev applies sysctl.d, the daemons start; networkd only if netplan has work for it."""
        for path in self.path("/proc/sys/net").glob("ipv*/conf/*/*"):
            path.write_text("0\n")
        for path in sorted(self.path("/etc/sysctl.d").glob("*.conf")):
            for line in path.read_text().splitlines():
                if not line.startswith("#"):
                    key, _, value = line.partition(" = ")
                    self.write(f"/proc/sys/{key.replace('.', '/')}", f"{value}\n")
        self.start_avahi()
        self.nm_managed = {name for name in self.nics if name != "enP7s7" and self._nm_wants(name)}
        for name in self.nics:
            if self._file(name):
                self._start_networkd()
                self._configure(name)

    def _nm_wants(self, name: str) -> bool:
        """netplan's udev rule yields to its "managed=1" for a profile of any interface, both to a file in conf.d."""
        anyone = self.path("/run/NetworkManager/conf.d/netplan.conf").exists()
        return not self._nm_told(name) and (anyone or not self._file(name))

    def _nm_told(self, name: str) -> bool:
        texts = [path.read_text() for path in self.path("/etc/NetworkManager/conf.d").glob("*.conf")]
        lines = [line for text in texts for line in text.splitlines() if line.startswith("unmanaged-devices+=")]
        return any(f"interface-name:{name}" in line.partition("=")[2].split(";") for line in lines)

    def start_avahi(self) -> None:
        lines = self.read("/etc/avahi/avahi-daemon.conf").splitlines()
        self.avahi_denies = [line for line in lines if line.startswith("deny-interfaces")]

    def _start_networkd(self) -> None:
        texts = [path.read_text() for path in self.path("/etc/systemd/networkd.conf.d").glob("*.conf")]
        self.manages_rules = not any("ManageForeignRoutingPolicyRules=no\n" in text for text in texts)
        self.networkd = True

    def _file(self, name: str) -> dict[str, Any] | None:
        for path in sorted(self.path("/run/systemd/network").glob("*.network")):
            wanted = self._wanted(path)
            if wanted["match"] == name:
                return wanted
        return None

    def _wanted(self, path: Path) -> dict[str, Any]:
        """What :meth:`_netplan` wrote beside what is read of it."""
        wanted: dict[str, Any] = json.loads(path.read_text().partition("\n")[0].lstrip("# "))
        return wanted

    def _apply_file(self, name: str, wanted: dict[str, Any]) -> None:
        nic = self.nics[name]
        nic.up = True
        nic.mtu = wanted["mtu"] or nic.mtu
        nic.addresses = list(dict.fromkeys(wanted["addresses"])) if nic.carrier else []
        if self.networkd and self.manages_rules:
            self.rules = []

    def _configure(self, name: str) -> None:
        wanted = self._file(name)
        if wanted:
            self._apply_file(name, wanted)

    def _netplan(self, argv: list[str]) -> Completed:
        assert argv[1] == "generate", "neither apply nor try"
        root = Path(argv[3]) if "--root-dir" in argv else self.root
        merged: dict[str, Any] = {}
        files = [path for place in ("lib", "etc", "run") for path in (root / place / "netplan").glob("*.yaml")]
        for path in sorted(files, key=lambda item: item.name):
            try:
                document = (yaml.load(path.read_text(), yaml.CSafeLoader) or {}).get("network") or {}
            except yaml.YAMLError:
                return Completed(1, "", f"{path}:1:1: Invalid YAML")
            for key, values in (document.get("ethernets") or {}).items():
                if "adresses" in values:
                    return Completed(1, "", f"{path}: unknown key 'adresses'")
                known = merged.setdefault(key, {"addresses": []})
                known["addresses"] += values.pop("addresses", [])
                known.update({**values, "renderer": values.get("renderer", document.get("renderer", "networkd"))})
        out = root / "run/systemd/network"
        out.mkdir(parents=True, exist_ok=True)
        for path in out.glob("10-netplan-*"):
            path.unlink()
        profiles = root / "run/NetworkManager/system-connections"
        for path in profiles.glob("netplan-*"):
            path.unlink()
        anyone = root / "run/NetworkManager/conf.d/netplan.conf"
        anyone.unlink(missing_ok=True)
        for key, values in merged.items():
            wanted = {"match": key, "mtu": values.get("mtu"), "addresses": values["addresses"]}
            said = json.dumps(wanted)
            keys = {"name": "Name", "macaddress": "MACAddress", "driver": "Driver"}
            match = {keys[k]: v for k, v in values["match"].items()} if "match" in values else {"Name": key}
            match = match or {"Name": "*"}
            if values["renderer"] == "networkd":
                lines = [f"# {said}", "[Match]", *(f"{k}={v}" for k, v in match.items()), "[Network]"]
                lines += [f"Address={address}" for address in values["addresses"]]
                lines += [
                    f"{k}={v}" for k, v in values.items() if k not in {"match", "addresses", "renderer", *self.ignored}
                ]
                (out / f"10-netplan-{key}.network").write_text("\n".join(lines) + "\n")
            else:
                if values.get("match") == {}:
                    anyone.parent.mkdir(parents=True, exist_ok=True)
                    anyone.write_text("managed=1\n")
                profiles.mkdir(parents=True, exist_ok=True)
                inside = {
                    "Name": f"[match]\ninterface-name={match.get('Name')};",
                    "MACAddress": f"[ethernet]\nmac-address={match.get('MACAddress')}",
                }
                lines = [f"# {said}", "[connection]", *([f"interface-name={key}"] if "match" not in values else [])]
                lines += [inside[k] for k in match if values.get("match")]
                lines += ["[ipv4]", *(f"address1={address}" for address in values["addresses"])]
                (profiles / f"netplan-{key}.nmconnection").write_text("\n".join(lines) + "\n")
        return Completed(0)

    def _networkctl(self, argv: list[str]) -> Completed:
        if not self.networkd:
            return Completed(1, "", "Failed to connect to bus")
        if argv[1] == "reconfigure":
            self.pending += [(self.delay, name) for name in argv[2:]]
        return Completed(0)

    def _systemctl(self, argv: list[str]) -> Completed:
        unit = argv[-1]
        if argv[1] == "is-active":
            return Completed(0 if (self.networkd if "networkd" in unit else self.nm) else 3)
        if argv[1] == "is-enabled":
            return Completed(1, "masked\n") if self.masked else Completed(0, "enabled\n")
        if argv[1] == "daemon-reload":
            return Completed(0)
        if unit.endswith(".timer"):
            return Completed(0 if self.timers.pop(unit.removesuffix(".timer"), None) else 5)
        if argv[1] == "show":
            assert unit == "avahi-daemon.service"
            return Completed(0, "LoadState=loaded\nActiveState=active\n" if self.avahi else "LoadState=not-found\n")
        if argv[1] == "try-restart":
            if not self.avahi:
                return Completed(5, "", f"Unit {unit} not found.")
            self.start_avahi()
        elif argv[1] == "start":
            self._start_networkd()
        else:
            self.networkd = False
        return Completed(0)

    def _nmcli(self, argv: list[str]) -> Completed:
        if not self.nm:
            return Completed(8, "", "NetworkManager is not running")
        if "show" in argv:
            return Completed(0, "100 (connected)\n" if argv[-1] in self.nm_managed else "10 (unmanaged)\n")
        if argv[1:3] == ["connection", "reload"]:
            return Completed(0)
        if argv[1:3] == ["general", "reload"]:
            self.nm_managed -= {name for name in self.nics if self._nm_told(name)}
            return Completed(0)
        if "up" in argv:
            path = self.path(f"/run/NetworkManager/system-connections/{argv[argv.index('up') + 1]}.nmconnection")
            if not path.exists():
                return Completed(10, "", "unknown connection")
            self._apply_file(argv[-1], self._wanted(path))
            self.write(f"/proc/sys/net/ipv6/conf/{argv[-1]}/disable_ipv6", "0\n")  # as it does when it activates
            return Completed(0)
        managed = argv[-1] == "yes" and not self._nm_told(argv[3])
        (self.nm_managed.add if managed else self.nm_managed.discard)(argv[3])
        return Completed(0)

    def _udevadm(self, argv: list[str]) -> Completed:
        return Completed(0)

    def _ip(self, argv: list[str]) -> Completed:
        if argv[1:3] == ["addr", "del"]:
            nic = self.nics[argv[5]]
            if argv[3] not in nic.addresses:
                return Completed(2, "", "Cannot assign requested address")
            nic.addresses.remove(argv[3])
        elif argv[1:3] == ["link", "set"] and argv[4] == "mtu":
            self.nics[argv[3]].mtu = int(argv[5])
        elif argv[1:3] == ["link", "set"]:
            self.nics[argv[3]].up = argv[4] == "up"
        else:
            raise AssertionError(argv)
        return Completed(0)

    def _systemd_run(self, argv: list[str]) -> Completed:
        unit = next(option.partition("=")[2] for option in argv if option.startswith("--unit="))
        self.timers[unit] = argv[argv.index("/usr/local/lib/sparkmatrix/sparkmatrix-node") :]
        return Completed(0)
