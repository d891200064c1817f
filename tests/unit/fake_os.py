# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A machine for tests of ``os_stabilization``: files below a temporary root, and the programs that are asked about it.

``calls`` holds what changed something. ``fail`` maps the beginning of a command to what it complains about.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from fake_machine import FakeFiles, Killed

GIB = 2**30


class FakeOs(FakeFiles):
    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[str] = []
        self.fail: dict[str, str] = {}
        self.kill_at = ""
        self.units: dict[str, dict[str, str]] = {}
        self.holds: set[str] = set()
        self.packages = {"nvidia-modprobe": "580.95-1", "linux-image-6.17-nvidia": "6.17.0-1031", "bash": "5.2"}
        self.sessions: list[dict[str, str]] = []
        self.swaps: dict[str, int] = {}
        self.swap_units: list[str] = []
        self.containers: list[str] = []
        self.synchronized = "yes"
        self.clock_mhz: int | None = None  # cap of the GPU
        self.journal = ""
        self.limits = {"DefaultLimitMEMLOCK": "8388608:8388608", "DefaultLimitNOFILE": "1024:524288"}
        for name in ("ssh.service", "systemd-journald.service", "docker.service", "chrony.service"):
            self.unit(name, cgroup=f"/system.slice/{name}")
        self.unit("user.slice", cgroup="/user.slice")
        self.unit("system.slice", cgroup="/system.slice")
        self.unit("ssh.socket", active="inactive")
        self.unit("display-manager.service", cgroup="/system.slice/gdm.service")
        for key, value in {"vm/swappiness": "60", "vm/max_map_count": "65530"}.items():
            self.write(f"/proc/sys/{key}", value + "\n")
        self.memory(total=128, available=100)
        self.write("/proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate,memory_recursiveprot 0 0\n")
        self.write("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n")
        self.write("/etc/apt/apt.conf.d/50unattended-upgrades", "")
        self.write("/etc/docker/keep", "")
        self.write("/var/lib/keep", "")
        self.link("/etc/systemd/system/default.target", "/usr/lib/systemd/system/graphical.target")

    # -- files

    def link(self, name: str, target: str) -> None:
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        self.path(name).unlink(missing_ok=True)
        self.path(name).symlink_to(target)

    def memory(self, total: float, available: float) -> None:
        sizes = {"MemTotal": total, "MemAvailable": available}
        self.write("/proc/meminfo", "".join(f"{name}: {int(size * GIB / 1024)} kB\n" for name, size in sizes.items()))

    def tree(self) -> dict[str, str]:
        """Everything that must be the same again."""
        found = {}
        for path in sorted((self.root / "etc").rglob("*")) + sorted((self.root / "var").rglob("*")):
            name = str(path.relative_to(self.root))
            found[name] = str(path.readlink()) if path.is_symlink() else path.read_text() if path.is_file() else "dir"
        return found

    def state(self) -> tuple[object, ...]:
        units = {name: (unit["ActiveState"], unit["UnitFileState"]) for name, unit in self.units.items()}
        return (
            self.tree(),
            {name: self.read(f"/proc/sys/{name}") for name in ("vm/swappiness", "vm/max_map_count")},
            units,
            set(self.holds),
            dict(self.packages),
            dict(self.swaps),
        )

    # -- programs

    def unit(self, name: str, active: str = "active", enabled: str = "enabled", cgroup: str = "", **more: str) -> None:
        self.units[name] = {
            "Id": name,
            "LoadState": "loaded",
            "ActiveState": active,
            "SubState": "running",
            "UnitFileState": enabled,
            "ControlGroup": cgroup if active == "active" else "",
            "Slice": "system.slice",
            "InvocationID": "1",
            "MainPID": "0",
            **more,
        }

    def swap(self, name: str, used_gib: float = 0, priority: int = -2) -> None:
        self.write(name, "")
        self.swaps[name] = priority
        self._used = used_gib
        self._write_swaps()

    def _write_swaps(self) -> None:
        used = int(getattr(self, "_used", 0) * GIB / 1024)
        lines = [f"{name}\tfile\t16777212\t{used}\t{priority}\n" for name, priority in self.swaps.items()]
        self.write("/proc/swaps", "Filename Type Size Used Priority\n" + "".join(lines))

    def run(self, argv: Sequence[str]) -> Completed:
        command = " ".join(argv)
        for beginning, complaint in self.fail.items():
            if command.startswith(beginning):
                return Completed(1, "", complaint)
        if self.kill_at and command.startswith(self.kill_at):
            raise Killed
        if argv[0] == "env":
            argv = argv[2:]
        return getattr(self, "_" + argv[0].replace("-", "_"))(list(argv)) or Completed(0)

    def sleep(self, seconds: float) -> None:
        pass

    def _changed(self, argv: Sequence[str]) -> None:
        self.calls.append(" ".join(argv))

    def _systemctl(self, argv: list[str]) -> Completed:
        words = [word for word in argv[1:] if not word.startswith("-")]
        verb = words[0]
        if verb == "show":
            return self._show(argv, words[1:])
        if verb == "list-unit-files":
            return Completed(0, "".join(f"{name} generated -\n" for name in self.swap_units))
        if verb == "is-active":
            return Completed(0 if self.units.get(words[1], {}).get("ActiveState") == "active" else 3)
        self._changed(argv)
        if verb == "daemon-reload":
            self._reload()
            return Completed(0)
        unit = self.units.get(words[-1])
        if unit is None:
            return Completed(5, "", f"Unit {words[-1]} not found")
        if verb in ("start", "stop", "restart", "try-restart"):
            unit["ActiveState"] = "inactive" if verb == "stop" else "active"
            unit["InvocationID"] = str(int(unit["InvocationID"]) + 1)
            path = self.path(f"/etc/systemd/system/{words[-1]}")
            if verb == "stop" and path.is_file() and "ExecStop=" in path.read_text():
                self._execute(path, "ExecStop")
            if verb in ("start", "restart", "try-restart"):
                unit["ControlGroup"] = unit["ControlGroup"] or f"/system.slice/{words[-1]}"
                self._environment(words[-1], unit)
        elif verb in ("enable", "disable"):
            unit["UnitFileState"] = f"{verb}d"
        return Completed(0)

    def _environment(self, name: str, unit: dict[str, str]) -> None:
        path = self.path(f"/etc/systemd/system/{name}")
        if path.is_file() and "Type=oneshot" in path.read_text():
            unit["MainPID"] = "0"
            if not self._execute(path, "ExecStart"):
                unit.update(ActiveState="failed", SubState="failed", Result="exit-code")
        elif path.is_file():
            lines = [line for line in path.read_text().splitlines() if line.startswith("Environment=")]
            if "MemoryMin=32M" in path.read_text():
                self.write(f"/sys/fs/cgroup{unit['ControlGroup']}/memory.min", f"{32 * 2**20}\n")
            unit["MainPID"] = "4711"
            self.write("/proc/4711/environ", "\0".join(line.partition("=")[2] for line in lines) + "\0")

    def _execute(self, path: Path, key: str) -> bool:
        line = next(line for line in path.read_text().splitlines() if line.startswith(f"{key}="))
        done = self.run(line.partition("=")[2].lstrip("-").split())
        self.journal = done.err
        return done.rc == 0

    def _nvidia_smi(self, argv: list[str]) -> Completed:
        self._changed(argv)
        self.clock_mhz = int(argv[1].rpartition(",")[2]) if argv[1].startswith("--lock-gpu-clocks=") else None
        return Completed(0)

    def _reload(self) -> None:
        for path in self.path("/etc/systemd/system").glob("sparkmatrix-*.service"):
            if path.name not in self.units:
                self.unit(path.name, active="inactive", enabled="disabled")
        for name in [name for name in self.units if name.startswith("sparkmatrix-")]:
            if not self.path(f"/etc/systemd/system/{name}").exists():
                del self.units[name]
        config = self.path("/etc/systemd/system.conf.d/90-sparkmatrix.conf")
        self.limits = {"DefaultLimitMEMLOCK": "8388608:8388608", "DefaultLimitNOFILE": "1024:524288"}
        if config.exists():
            values = dict(line.split("=") for line in config.read_text().splitlines() if "=" in line)
            for name, value in values.items():
                self.limits[name] = value if ":" in value else f"{value}:{value}"
        for name, unit in self.units.items():
            if unit["ControlGroup"] and not name.endswith(".socket") and not name.startswith("sparkmatrix-"):
                drop_in = self.path(f"/etc/systemd/system/{name}.d/90-sparkmatrix.conf")
                size = drop_in.read_text().strip().rpartition("=")[2] if drop_in.exists() else "0"
                self.write(f"/sys/fs/cgroup{unit['ControlGroup']}/memory.min", size + "\n")

    def _show(self, argv: list[str], names: list[str]) -> Completed:
        wanted = next(word.partition("=")[2] for word in argv if word.startswith("--property=")).split(",")
        if not names:  # the manager
            lines = []
            for name, value in self.limits.items():
                soft, hard = value.split(":")
                lines += [f"{name}={hard}\n", f"{name}Soft={soft}\n"]
            return Completed(0, "".join(lines))
        absent = {"LoadState": "not-found", "ActiveState": "inactive"}
        blocks = []
        for name in names:
            unit = self.units.get(name, {"Id": name, **absent})
            if "--value" in argv:
                return Completed(0, unit.get(wanted[0], "") + "\n")
            blocks.append("".join(f"{key}={unit[key]}\n" for key in wanted if key in unit))
        return Completed(0, "\n".join(blocks))

    def _journalctl(self, argv: list[str]) -> Completed:
        return Completed(0, self.journal)

    def _loginctl(self, argv: list[str]) -> Completed:
        if argv[1] == "list-sessions":
            return Completed(0, "".join(f" {s['Id']} 1000 {s['Name']} seat0\n" for s in self.sessions))
        return Completed(0, "\n".join("".join(f"{k}={v}\n" for k, v in s.items()) for s in self.sessions))

    def _dpkg_query(self, argv: list[str]) -> Completed:
        if argv[3].startswith("${db"):
            return Completed(0, "".join(f"ii \t{name}\t{version}\n" for name, version in self.packages.items()))
        known = [name for name in argv[4:] if name in self.packages]
        return Completed(0 if known else 1, "".join(f"{name} installed\n" for name in known))

    def _apt_mark(self, argv: list[str]) -> Completed:
        if argv[1] == "showhold":
            return Completed(0, "".join(f"{name}\n" for name in sorted(self.holds)))
        self._changed(argv)
        self.holds = self.holds | set(argv[2:]) if argv[1] == "hold" else self.holds - set(argv[2:])
        return Completed(0)

    def _apt_get(self, argv: list[str]) -> Completed:
        if argv[1] == "update":
            return Completed(100, "", "a source of others is broken")
        self._changed(argv)
        for name in argv[argv.index("install" if "install" in argv else "purge") + 1 :]:
            if "install" in argv:
                self.packages[name] = "1"
                self.unit(f"{name}.service")
                self.write(f"/etc/default/{name}", "package's own\n")
            else:
                del self.packages[name]
                del self.units[f"{name}.service"]
                self.path(f"/etc/default/{name}").unlink()
                self.path("/etc/default").rmdir()
        return Completed(0)

    def _swapoff(self, argv: list[str]) -> Completed:
        self._changed(argv)
        del self.swaps[argv[-1]]
        self._write_swaps()
        return Completed(0)

    def _swapon(self, argv: list[str]) -> Completed:
        self._changed(argv)
        self.swaps[argv[-1]] = int(argv[2]) if argv[1] == "-p" else -2
        self._write_swaps()
        return Completed(0)

    def _docker(self, argv: list[str]) -> Completed:
        return Completed(0, "".join(f"{name}\n" for name in self.containers))

    def _timedatectl(self, argv: list[str]) -> Completed:
        return Completed(0, f"{self.synchronized}\n")
