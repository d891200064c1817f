# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Units as guides have them made, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.leftover_units import LIMIT, leftovers
from fake_machine import FakeFiles

HALVES = ("enP2p1s0f0np0", "enp1s0f0np0")
A, B = reversed(HALVES)
SCRIPT = "/usr/local/bin/x.sh"


class Node(FakeFiles):
    def __init__(self, root: Path) -> None:
        self.root = root

    def enable(self, name: str, target: str = "multi-user.target.wants") -> None:
        link = self.root / "etc/systemd/system" / target / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"/etc/systemd/system/{name}")

    def unit(self, start: str, name: str = "x.service", enabled: bool = True, of: str = "/etc/systemd/system") -> None:
        self.write(f"{of}/{name}", f"[Unit]\nDescription=x\n[Service]\nType=oneshot\n{start}\n")
        if enabled:
            self.enable(name)

    def found(self) -> list[tuple[str, tuple[str, ...], bool]]:
        return [
            (leftover.unit, leftover.netdevs, leftover.peermem)
            for leftover in leftovers(Machine(str(self.root)), HALVES)
        ]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("script", "netdevs"),
    [
        (f"ip link set dev {A} down\n", (A,)),
        (f"/usr/sbin/ip -4 addr add 10.0.0.1/24 dev {B}\n", (B,)),
        (f"for i in {A} {B}; do\n  ip link set $i mtu 9000\ndone\n", HALVES),
        ("for i in /sys/class/net/enp1s0f*; do ip link set $(basename $i) down; done\n", (A,)),
        (f"PORTS='{A},{B}'\nethtool -A $PORTS rx off\n", HALVES),
        (f"nmcli device set {A} managed no\n", (A,)),
        (f"ifconfig {A} mtu 9000\n", (A,)),
        (f"nmcli -w 5 con up cx7 ifname {A}\n", (A,)),
        (f"networkctl reconfigure {A}\n", (A,)),
        (f"ethtool -i {A}; nmcli device show {A}; ifconfig {A}; networkctl status {A}; ip -s link show {A}\n", ()),
        (f"# ip link set {A} down\nip link show {A}\necho {A} | grep -q x\n", ()),
        ("ip link set enp1s0f0np01 down; ip link set enP7s7 up\n", ()),
        ("for i in *; do ip link set $i up; done\n", ()),
        (f"ip l s {A} mtu 9000\nip a a 10.0.0.1/24 dev {B}\n", HALVES),
        (f"echo 9000 > /sys/class/net/{A}/mtu\n", (A,)),
        (f"subprocess.run(['ip', 'link', 'set', '{A}', 'mtu', '9000'])\n", (A,)),
        ("ls /sys/class/net | grep -E 'enp1s0f|x' | xargs -I{} ip link set {} mtu 9000\n", (A,)),
        ("for i in $(ibdev2netdev | awk '{print $5}'); do ip link set $i mtu 9000; done\n", HALVES),
        (
            f"ping -I {A} 10.0.0.1\nip link set dummy0 up\nip a s {A}\nip l show {A}\n",
            (),
        ),  # another interface than it changes
        (f"#!/bin/sh\0\nip link set {A} down\n", ()),
    ],
)
def test_a_script_that_a_unit_starts(node: Node, script: str, netdevs: tuple[str, ...]) -> None:
    node.write(SCRIPT, f"#!/bin/bash\n{script}")
    for start in (f"ExecStart={SCRIPT}", f"ExecStart=-/bin/bash \\\n  {SCRIPT} now", f"ExecStartPost=+{SCRIPT}"):
        (node.root / "etc/systemd/system/multi-user.target.wants/x.service").unlink(missing_ok=True)
        node.unit(start)
        assert node.found() == [("x.service", netdevs, False)] * bool(netdevs)


@pytest.mark.parametrize(
    ("start", "name", "netdevs"),
    [
        (f"ExecStart=/usr/sbin/ip link set {A} down", "x.service", (A,)),
        (f"ExecStart=/bin/sh -c 'ip link set {A} mtu 1500; ip link set {B} mtu 1500'", "disable-nics.service", HALVES),
        ("ExecStart=/usr/sbin/ip link set %i down", f"off@{A}.service", (A,)),
        (f"ExecStop=/usr/sbin/ip link set {A} down", "x.service", ()),
        (f"ExecStart=/usr/sbin/ip link show {A}", "x.service", ()),
    ],
)
def test_a_command_in_a_unit(node: Node, start: str, name: str, netdevs: tuple[str, ...]) -> None:
    node.unit(start, name)
    assert node.found() == [(name, netdevs, False)] * bool(netdevs)


def test_names_in_the_environment_of_a_unit(node: Node) -> None:
    node.write(SCRIPT, "for i in $PORTS; do ip link set $i mtu 9000; done\n")
    node.write("/etc/default/rdma", f"PORTS='{A} {B}'\n")
    for line, netdevs in ((f"Environment=PORTS={A}", (A,)), ("EnvironmentFile=-/etc/default/rdma", HALVES)):
        node.unit(f"{line}\nExecStart={SCRIPT}", enabled=not node.found() and netdevs == (A,))
        assert node.found() == [("x.service", netdevs, False)]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/etc/rc.local", f"#!/bin/sh -e\nip link set {A} mtu 9000\nexit 0\n"),
        ("/etc/crontab", f"@reboot root {SCRIPT}\n"),
        ("/etc/cron.d/rdma", f"@reboot root ip link set {A} down\n"),
        ("/var/spool/cron/crontabs/root", f"@reboot /sbin/ip link set {A} down\n"),
        ("/etc/NetworkManager/dispatcher.d/99-rdma", f'[ "$1" = {A} ] && ip link set "$1" mtu 9000\n'),
        ("/etc/networkd-dispatcher/routable.d/50-x", f"ip addr add 10.0.0.1/24 dev {A}\n"),
        ("/etc/udev/rules.d/99-x.rules", f'SUBSYSTEM=="net", KERNEL=="{A}", RUN+="/sbin/ip link set %k mtu 9000"\n'),
        ("/etc/udev/rules.d/99-x.rules", 'ACTION=="add", KERNEL=="enp1s0f*", ATTR{mtu}="9000"\n'),
        ("/etc/systemd/system/NetworkManager.service.d/x.conf", f"[Service]\nExecStartPost=/sbin/ip link set {A} up\n"),
    ],
)
def test_what_starts_without_a_unit_of_its_own(node: Node, path: str, text: str) -> None:
    node.write(SCRIPT, f"ip link set {A} down\n")
    node.write(path, "# sparkmatrix.cluster\n" + text)
    assert leftovers(Machine(str(node.root)), HALVES) == []
    node.write(path, text)
    (found,) = leftovers(Machine(str(node.root)), HALVES)
    assert (found.unit, found.netdevs) == ("", (A,)) and found.file == (SCRIPT if SCRIPT in text else path)


def test_what_loads_peermem(node: Node) -> None:
    node.unit(f"ExecStart={SCRIPT}", "rdma-optimize.service")
    node.write(SCRIPT, f"modprobe -q nvidia_peermem || true\nip link set dev {B} mtu 9000\n")
    assert node.found() == [("rdma-optimize.service", (B,), False), ("rdma-optimize.service", (), True)]
    first, second = leftovers(Machine(str(node.root)), HALVES)
    assert (first.file, first.line) == (SCRIPT, f"ip link set dev {B} mtu 9000")
    assert (second.file, second.line) == (SCRIPT, "modprobe -q nvidia_peermem || true")


def test_a_timer_starts_a_unit_that_is_not_enabled(node: Node) -> None:
    node.unit(f"ExecStart=/usr/sbin/ip link set {A} down", enabled=False)
    assert node.found() == []
    node.write("/etc/systemd/system/x.timer", "[Timer]\nOnBootSec=1\n")
    node.enable("x.timer", "timers.target.wants")
    assert node.found() == [("x.timer", (A,), False)]
    node.write("/etc/systemd/system/y.timer", "[Timer]\nUnit=x.service\n")
    node.enable("y.timer", "timers.target.wants")
    assert [unit for unit, _netdevs, _peermem in node.found()] == ["x.timer", "y.timer"]


def test_units_of_packages_and_ours_are_no_leftovers(node: Node) -> None:
    start = f"ExecStart=/usr/sbin/ip link set {A} down"
    node.unit(start, of="/usr/lib/systemd/system")
    node.unit(start, "sparkmatrix-x.service")
    node.unit(f"# Written by the role fabric of sparkmatrix.cluster\n{start}", "ray.service")
    assert node.found() == []
    node.unit(start, "z.service", of="/usr/local/lib/systemd/system")
    assert node.found() == [("z.service", (A,), False)]


def test_a_large_file_is_read_to_a_limit(node: Node) -> None:
    node.unit(f"ExecStart={SCRIPT}")
    node.write(SCRIPT, "\n" * LIMIT + f"ip link set {A} down\n")
    assert node.found() == []
    node.write(SCRIPT, f"ip link set {A} down\n" + "\n" * LIMIT)
    assert node.found() == [("x.service", (A,), False)]
