# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.host_key import Target, judge
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

CHANGED = "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\r\nHost key verification failed.\r\n"
UNKNOWN = "No ED25519 host key is known for spark2 and you have requested strict checking.\r\n"
DENIED = "dgx@spark2: Permission denied (publickey).\r\n"
DEAD = "ssh: connect to host spark2 port 22: Connection timed out\r\n"
PRINT = "SHA256:right"


class Ssh:
    """An ssh with known hosts in a file, and one machine."""

    def __init__(self, known, says, offers="spark2 ssh-ed25519 NEW\n", stubborn=False):
        self.known, self.says, self.offers, self.stubborn = known, says, offers, stubborn
        self.calls = []

    def __call__(self, argv):
        argv = list(argv)
        self.calls.append(argv)
        if argv[0] == "ssh-keygen" and "-l" in argv:
            return Completed(0, f"256 {PRINT} spark2 (ED25519)\n") if self.offers else Completed(1, "", "no file")
        if argv[0] == "ssh-keygen":
            path = argv[argv.index("-f") + 1]
            with open(path, encoding="ascii") as stream:
                kept = [line for line in stream if not line.startswith(argv[argv.index("-R") + 1])]
            with open(path, "w", encoding="ascii") as stream:
                stream.writelines(kept)
            return Completed(0)
        if "-G" in argv:
            return Completed(0, f"user dgx\nuserknownhostsfile {self.known} /other\n")
        file = next((word[19:] for word in argv if word.startswith("UserKnownHostsFile=")), "")
        if file:
            if self.offers:
                with open(file, "w", encoding="ascii") as stream:
                    stream.write(self.offers)
            return Completed(255, "", DENIED)
        taken = self.known.exists() and "NEW" in self.known.read_text()
        return Completed(255, "", DENIED if taken and not self.stubborn else self.says)


@pytest.fixture(name="known")
def _known(tmp_path):
    path = tmp_path / "dot-ssh/known_hosts"
    path.parent.mkdir()
    path.write_text("spark1 ssh-ed25519 ONE\nspark2 ssh-ed25519 OLD\n")
    return path


TARGET = Target("spark2", "22", "dgx", ("-F", "config"))


@pytest.mark.parametrize(
    ("says", "state"), [(DENIED, "known"), (DEAD, "unreachable"), (CHANGED, "changed"), (UNKNOWN, "unknown")]
)
def test_ssh_itself_judges(known, says, state):
    ssh = Ssh(known, says)
    found = judge(TARGET, runner=ssh)
    assert (found.state, found.changed) == (state, False)
    assert "OLD" in known.read_text()
    assert ssh.calls[0][:4] == ["ssh", "-T", "-o", "BatchMode=yes"]
    assert ssh.calls[0][-7:] == ["-p", "22", "-l", "dgx", "-F", "config", "spark2"]
    assert "StrictHostKeyChecking=yes" in ssh.calls[0]


@pytest.mark.parametrize("says", [CHANGED, UNKNOWN])
def test_a_confirmed_key_replaces_the_old_one_and_nothing_else(known, says):
    found = judge(replace(TARGET, confirmed=(PRINT,)), runner=Ssh(known, says))
    assert (found.state, found.changed) == ("known", True)
    assert known.read_text() == "spark1 ssh-ed25519 ONE\nspark2 ssh-ed25519 NEW\n"
    assert known.stat().st_mode & 0o777 == 0o600


def test_another_fingerprint_confirms_nothing(known):
    found = judge(replace(TARGET, confirmed=("SHA256:wrong",)), runner=Ssh(known, CHANGED))
    assert (found.state, found.changed, found.fingerprint, found.kind) == ("changed", False, PRINT, "ED25519")


@pytest.mark.parametrize(
    ("said", "port", "command"),
    [
        ("", "22", "ssh-keygen -R spark2"),
        ("", "2222", "ssh-keygen -R '[spark2]:2222'"),
        ("Host key for [10.0.0.2]:22 has changed", "", "ssh-keygen -R '[10.0.0.2]:22'"),
        ("Offending ED25519 key in /home/me/.ssh/known_hosts:3", "", "ssh-keygen -R spark2"),
        ("Offending ED25519 key in /etc/my hosts:3", "", "ssh-keygen -R spark2"),
        (
            "Offending ED25519 key in /etc/ssh/known:3\nHost key for a has changed",
            "",
            "ssh-keygen -f /etc/ssh/known -R a",
        ),
    ],
)
def test_the_command_that_forgets_the_old_key(known, said, port, command):
    found = judge(Target("spark2", port), runner=Ssh(known, CHANGED + said))
    assert found.forget == command


def test_check_mode_writes_nothing(known):
    before = known.read_text()
    assert judge(replace(TARGET, confirmed=(PRINT,)), runner=Ssh(known, CHANGED), check_mode=True).changed
    assert known.read_text() == before


def test_known_hosts_are_made_where_there_are_none(tmp_path):
    path = tmp_path / "new/known_hosts"
    assert judge(replace(TARGET, confirmed=(PRINT,)), runner=Ssh(path, UNKNOWN)).changed
    assert path.read_text() == "spark2 ssh-ed25519 NEW\n"


def test_a_key_that_cannot_be_read_is_not_confirmed_by_nothing(known):
    found = judge(replace(TARGET, confirmed=("",)), runner=Ssh(known, CHANGED, offers=""))
    assert not found.changed and not found.fingerprint


def test_an_old_key_elsewhere_is_said(known):
    with pytest.raises(SparkError, match="ssh still refuses it"):
        judge(replace(TARGET, confirmed=(PRINT,)), runner=Ssh(known, CHANGED, stubborn=True))


def test_an_operator_without_known_hosts_is_told():
    class Nowhere(Ssh):
        def __call__(self, argv):
            if "-G" in argv:
                return Completed(0, "userknownhostsfile /dev/null\n")
            return super().__call__(argv)

    class Never:
        def exists(self):
            return False

    with pytest.raises(SparkError, match="keeps no known hosts"):
        judge(replace(TARGET, confirmed=(PRINT,)), runner=Nowhere(Never(), CHANGED))


def test_a_known_hosts_file_that_cannot_be_changed_is_named(known):
    class Fixed(Ssh):
        def __call__(self, argv):
            return Completed(255, "", "read-only") if "-R" in argv else super().__call__(argv)

    with pytest.raises(SparkError, match=r"the old key cannot be removed: read-only"):
        judge(replace(TARGET, confirmed=(PRINT,)), runner=Fixed(known, CHANGED))


def test_arguments_are_split_as_a_shell_would():
    assert Target("a", arguments=('-F "a b"', "", "-o X=1")).command() == ["ssh", "-T", "-F", "a b", "-o", "X=1", "a"]
    assert calls.load_request("host_key", {"host": "a", "confirmed": f"{PRINT}, x"}).confirmed == (PRINT, "x")


def test_a_last_line_without_an_end_stays_whole(known):
    known.write_text("spark1 ssh-ed25519 ONE")
    assert judge(replace(TARGET, confirmed=(PRINT,)), runner=Ssh(known, UNKNOWN)).state == "known"
    assert known.read_text() == "spark1 ssh-ed25519 ONE\nspark2 ssh-ed25519 NEW\n"


def test_several_machines_at_once_lose_nothing(tmp_path):
    """Each rewrites the same file, as ssh-keygen -R does."""
    known = tmp_path / "known_hosts"
    names = [f"spark{number:02}" for number in range(8)]
    known.write_text("nas ssh-ed25519 NAS\n" + "".join(f"{name} ssh-ed25519 OLD\n" for name in names))

    def take(name):
        ssh = Ssh(known, CHANGED, offers=f"{name} ssh-ed25519 NEW\n")

        def runner(argv):
            if argv[0] == "ssh-keygen" and "-R" in argv:
                text = known.read_text()
                time.sleep(0.01)
                known.write_text("".join(line for line in text.splitlines(True) if not line.startswith(name)))
                return Completed(0)
            if argv[0] == "ssh" and "-G" not in argv and not any("UserKnownHostsFile" in word for word in argv):
                return Completed(255, "", DENIED if f"{name} ssh-ed25519 NEW" in known.read_text() else CHANGED)
            return ssh(argv)

        return judge(Target(name, confirmed=(PRINT,)), runner=runner).state

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(take, names)) == {"known"}
    assert sorted(known.read_text().splitlines()) == sorted(
        ["nas ssh-ed25519 NAS", *(f"{name} ssh-ed25519 NEW" for name in names)]
    )
