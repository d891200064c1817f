# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed import packages
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import update as os_update
from fake_machine import FakeFiles

OLD, NEW = "6.11.0-1016-nvidia", "6.14.0-1013-nvidia"
PREVIOUS = f"gnulinux-advanced-1234>gnulinux-{OLD}-advanced-1234"
NEXT = f"gnulinux-advanced-1234>gnulinux-{NEW}-advanced-1234"
# As update-grub writes it on Ubuntu 24.04.
GRUB_CFG = """\
menuentry 'Ubuntu' --class ubuntu --class os $menuentry_id_option 'gnulinux-simple-1234' {
\tlinux\t/vmlinuz-{new} root=UUID=1234 ro
}
submenu 'Advanced options for Ubuntu' $menuentry_id_option 'gnulinux-advanced-1234' {
\tmenuentry 'Ubuntu, with Linux {new}' --class ubuntu $menuentry_id_option 'gnulinux-{new}-advanced-1234' {
\t\tlinux\t/vmlinuz-{new} root=UUID=1234 ro
\t}
\tmenuentry 'Ubuntu, with Linux {new} (recovery mode)' $menuentry_id_option 'gnulinux-{new}-recovery-1234' {
\t}
\tmenuentry 'Ubuntu, with Linux {old}' --class ubuntu $menuentry_id_option 'gnulinux-{old}-advanced-1234' {
\t}
}
menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {
}
""".replace("{new}", NEW).replace("{old}", OLD)
SIMULATION = f"""\
Reading package lists...
The following held packages will be changed:
  nvidia-driver-580-open
Remv nvidia-old [1.0]
Inst linux-image-{NEW} ({NEW[:11]}.13 Ubuntu:24.04/noble-updates [arm64])
Inst linux-image-nvidia [6.11] (6.14 Ubuntu:24.04/noble-updates [arm64]) []
Inst nvidia-driver-580-open [580.82-0ubuntu1] (580.95-0ubuntu1 Ubuntu:24.04 [arm64])
Conf linux-image-nvidia (6.14 Ubuntu:24.04/noble-updates [arm64])
"""
DPKG = f"""\
installed linux-image-{OLD} 6.11.16
installed linux-image-nvidia 6.11
installed nvidia-driver-580-open 580.82-0ubuntu1
config-files nvidia-gone 1
installed bash 5
"""


class Node(FakeFiles):
    """Programs by their first words; the files are real ones below a directory."""

    def __init__(self, root, **answers):
        self.root = root
        self.calls = []
        self.environment = {}
        self.answers = {
            "uname": OLD,
            "dpkg-query": DPKG,
            "apt-mark showhold": "nvidia-driver-580-open\n",
            "apt-get --yes": SIMULATION,
            "findmnt": "ext4 /dev/nvme0n1p2 rw,relatime",
            "fwupdmgr": json.dumps(
                {"Devices": [{"Name": "ConnectX-7", "Version": "1", "Releases": [{"Version": "2"}]}, {}]}
            ),
            **answers,
        }
        self.write("/boot/grub/grub.cfg", GRUB_CFG)
        self.write("/etc/default/grub", "GRUB_DEFAULT=0\n")
        self.write(f"/boot/vmlinuz-{OLD}", "x" * (3 << 20))
        for tool in os_update.GRUB_TOOLS:
            self.write(f"/usr/sbin/{tool}", "")
        self.machine = Machine(root=str(root), runner=self.run)

    def run(self, argv):
        argv = list(argv)
        self.calls.append(argv)
        if argv[0] == "grub-set-default":
            self.environment["saved_entry"] = argv[1]
        if argv[0] == "grub-reboot":
            self.environment["next_entry"] = argv[1]
        if argv[:2] == ["grub-editenv", "-"]:
            self.environment.pop(argv[3], None)
        if argv == ["grub-editenv", "list"]:
            return Completed(0, "".join(f"{name}={value}\n" for name, value in self.environment.items()))
        for words, answer in self.answers.items():
            if " ".join(argv).startswith(words):
                return answer if isinstance(answer, Completed) else Completed(0, answer)
        return Completed(0)


@pytest.fixture(name="node")
def _node(tmp_path):
    return Node(tmp_path)


def test_a_look_changes_nothing_and_says_what_apt_would_do(node):
    found = os_update.look(node.machine, ["linux-*", "nvidia-*"], {})
    assert (found.kernel, found.kernels) == (OLD, [OLD])
    assert found.packages == {
        f"linux-image-{OLD}": "6.11.16",
        "linux-image-nvidia": "6.11",
        "nvidia-driver-580-open": "580.82-0ubuntu1",
    }
    assert found.changes == [
        os_update.Change("nvidia-old", "1.0", ""),
        os_update.Change(f"linux-image-{NEW}", "", "6.14.0-1013.13"),
        os_update.Change("linux-image-nvidia", "6.11", "6.14"),
        os_update.Change("nvidia-driver-580-open", "580.82-0ubuntu1", "580.95-0ubuntu1"),
    ]
    assert found.held == ["nvidia-driver-580-open"]
    assert (found.problems, found.grub, found.kernel_mib) == ([], [], 3)
    assert found.boot_free_mib > 0
    assert found.firmware == ["ConnectX-7: 1 -> 2"]
    assert not found.reboot_required
    assert not found.probation
    writing = [call for call in node.calls if call[0] == "apt-get" and "install" in call and "--simulate" not in call]
    assert writing == []
    assert not any(call[:2] == ["apt-get", "update"] for call in node.calls)


def test_sources_are_read_when_asked_for(node):
    assert os_update.look(node.machine, ["nvidia-*"], {}, refresh=True).problems == []
    assert any(call[:2] == ["apt-get", "update"] for call in node.calls)


POLICY = """nvidia-driver-580-open:
  Installed: 580.82-0ubuntu1
  Version table:
     580.95-0ubuntu1 500
        500 http://ports.ubuntu.com/ubuntu-ports noble-updates/restricted arm64 Packages
 *** 580.82-0ubuntu1 100
        100 /var/lib/dpkg/status
"""
EXPIRED = """W: GPG error: https://download.docker.com/linux/ubuntu noble InRelease: EXPKEYSIG 7EA0A9C3F273FCD8
E: The repository 'https://download.docker.com/linux/ubuntu noble InRelease' is not signed.
"""
UNREACHABLE = (
    "E: Failed to fetch http://ports.ubuntu.com/ubuntu-ports/dists/noble-updates/InRelease  Could not connect\n"
)
REST = "E: Some index files failed to download. They have been ignored, or old ones used instead.\n"


@pytest.mark.parametrize(
    ("complaints", "foreign"),
    [
        (EXPIRED + REST, True),
        (UNREACHABLE + REST, False),
        (EXPIRED + UNREACHABLE + REST, False),
        ("E: Failed to fetch http://ports.ubuntu.com/ubuntu-ports-mirror/dists/x  404\n", True),
        ("E: The list of sources could not be read.\n", False),
        (REST, False),
        ("", False),
    ],
)
def test_a_broken_source_of_others_is_a_note(tmp_path, complaints, foreign):
    assert os_update.is_foreign(complaints, POLICY) is foreign
    answers = {"apt-get update": Completed(100, "", complaints), "apt-cache policy": POLICY}
    found = os_update.look(Node(tmp_path, **answers).machine, ["nvidia-*"], {}, refresh=True)
    assert (bool(found.notes), bool(found.problems)) == (foreign, not foreign)


def test_another_apt_is_waited_for_and_named(tmp_path):
    held = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 4711 (apt-get)\n"
    node = Node(tmp_path, **{"apt-get update": Completed(100, "", held)})
    passed = [0.0]
    waiting = replace(node.machine, clock=lambda: passed[0], sleep=lambda s: passed.append(passed.pop() + s))
    found = os_update.look(waiting, ["nvidia-*"], {}, refresh=True)
    assert passed == [packages.LOCK_S]
    assert "held by process 4711 (apt-get)" in found.problems[0]
    assert all("DPkg::Lock::Timeout=600" in call for call in node.calls if call[:2] == ["apt-get", "check"])


@pytest.mark.parametrize(
    ("words", "answer", "says"),
    [
        ("dpkg --audit", Completed(0, "linux-image half configured"), "dpkg --audit: linux-image half configured"),
        ("apt-get check", Completed(100, "", "unmet dependencies"), "apt-get check: unmet dependencies"),
        ("apt-get update", Completed(100, "", "no such host"), "apt-get update: no such host"),
        ("apt-get --yes", Completed(100, "", "no version"), "apt-get install --simulate: no version"),
    ],
)
def test_a_broken_package_system_is_a_problem(tmp_path, words, answer, says):
    node = Node(tmp_path, **{words: answer})
    assert os_update.look(node.machine, ["nvidia-*"], {}, refresh=True).problems == [says]


def test_versions_that_are_named_may_go_down():
    command = os_update.install_command({"nvidia-a": "2", "nvidia-b": "2"}, {"nvidia-a": "1", "nvidia-c": "3"})
    assert command[-3:] == ("nvidia-a=1", "nvidia-b", "nvidia-c=3")
    assert "--allow-downgrades" in command
    assert "--allow-downgrades" not in os_update.install_command({"nvidia-a": "2"}, {})


def test_holds_are_kept_also_when_installing_fails(tmp_path):
    node = Node(tmp_path, **{"apt-get --yes": Completed(100, "", "disk full")})
    with pytest.raises(SparkError, match=r"installing failed: .*disk full"):
        os_update.install(node.machine, {"nvidia-a": "1"}, {}, ["nvidia-a", "linux-b"])
    assert node.calls[-1] == ["apt-mark", "hold", "nvidia-a", "linux-b"]


def test_versions_sort_by_number():
    names = ["6.8.0-9-nvidia", "6.8.0-10-nvidia", "6.11.0-1-nvidia", "6.14.0-1013-nvidia", "10.0.0-1-nvidia"]
    assert sorted({*names}, key=os_update.version_key) == names
    assert all(os_update.version_key(a) < os_update.version_key(b) for a, b in pairwise(names))


def test_the_menu():
    assert os_update.menu(GRUB_CFG) == {OLD: PREVIOUS, NEW: NEXT}
    flat = "menuentry 'Debian' $menuentry_id_option 'gnulinux-6.1.0-9-arm64-advanced-1' {\n}\n"
    assert os_update.menu(flat) == {"6.1.0-9-arm64": "gnulinux-6.1.0-9-arm64-advanced-1"}


@pytest.mark.parametrize(
    ("mount", "says"),
    [
        ("btrfs /dev/nvme0n1p2 rw", "on btrfs (/dev/nvme0n1p2), where GRUB cannot write"),
        ("ext4 /dev/mapper/vg-boot rw", "on ext4 (/dev/mapper/vg-boot), where GRUB cannot write"),
        ("ext4 /dev/md0 rw", "where GRUB cannot write"),
        ("ext4 /dev/nvme0n1p2 ro,relatime", "mounted read-only"),
        ("", "findmnt does not know"),
    ],
)
def test_where_grub_cannot_return(tmp_path, mount, says):
    complaints = os_update.grub_complaints(Node(tmp_path, findmnt=mount).machine, OLD)
    assert len(complaints) == 1
    assert says in complaints[0]


def test_without_grub(node):
    (node.root / "boot/grub/grub.cfg").unlink()
    assert os_update.grub_complaints(node.machine, OLD) == ["there is no /boot/grub/grub.cfg"]
    (node.root / "usr/sbin/grub-reboot").unlink()
    assert os_update.grub_complaints(node.machine, OLD) == [
        "grub-reboot not found: this machine does not boot with GRUB"
    ]


def test_a_kernel_without_entry(node):
    assert "no entry for the running kernel 5.0" in os_update.grub_complaints(node.machine, "5.0")[0]


@pytest.mark.parametrize("answer", [Completed(127), Completed(0, "not json"), Completed(2, "")])
def test_without_fwupd(tmp_path, answer):
    assert os_update.firmware(Node(tmp_path, fwupdmgr=answer).machine) == []


def test_a_new_kernel_is_booted_once_and_the_previous_one_stays_the_default(node):
    os_update.try_kernel(node.machine, NEW, OLD)
    assert os_update.look(node.machine, [], {}).probation
    node.calls = node.calls[:1]
    assert node.environment == {"saved_entry": PREVIOUS, "next_entry": NEXT}
    assert "GRUB_DEFAULT=saved" in node.machine.read(os_update.DROP_IN)
    # The drop-in has to be there before the menu is written.
    assert next(call for call in node.calls) == ["update-grub"]


def test_a_kernel_that_is_not_in_the_menu_is_not_tried(node):
    with pytest.raises(SparkError, match="no entry for the kernel"):
        os_update.try_kernel(node.machine, "7.0", OLD)
    assert node.environment == {}


def test_a_choice_that_was_not_taken_is_an_error(tmp_path):
    node = Node(tmp_path)
    node.environment = {}
    node.machine.runner = lambda argv: Completed(0) if argv[0] == "grub-reboot" else node.run(argv)
    with pytest.raises(SparkError, match="did not take the choice"):
        os_update.try_kernel(node.machine, NEW, OLD)


@pytest.mark.parametrize(("own", "saved"), [("GRUB_DEFAULT=0\n", None), ('GRUB_DEFAULT="saved"\n', NEXT)])
def test_a_kernel_that_proved_itself_is_kept_as_the_machine_chooses(node, own, saved):
    node.write("/etc/default/grub", own)
    os_update.try_kernel(node.machine, NEW, OLD)
    assert os_update.keep_kernel(node.machine, NEW)
    assert node.machine.read(os_update.DROP_IN) is None
    assert node.environment.get("saved_entry") == saved
    assert not os_update.keep_kernel(node.machine, NEW)
