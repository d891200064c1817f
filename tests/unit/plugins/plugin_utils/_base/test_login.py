# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""How somebody gets to a machine: the words of ssh, and the lines of its configuration."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.login import Login, asked, configured, login
from hypothesis import given
from hypothesis import strategies as st

HERE = {"ansible_host": "10.0.0.11", "ansible_user": "nvidia"}


@pytest.mark.parametrize(
    ("own", "ssh", "settings"),
    [
        ({}, "ssh", []),
        ({"ansible_port": "2222"}, "ssh -p 2222", []),
        ({"ansible_ssh_common_args": "-o ProxyJump=me@b"}, "ssh -J me@b", ["ProxyJump me@b"]),
        ({"ansible_ssh_common_args": "-J me@b:2222,c", "ansible_port": 2222}, "ssh -J me@b:2222,c -p 2222",
         ["ProxyJump me@b:2222,c"]),
        ({"ansible_ssh_extra_args": "-CJme@b"}, "ssh -J me@b", ["ProxyJump me@b"]),
        ({"ansible_ssh_args": "-C -o ControlPersist=60s -oproxyjump=b"}, "ssh -J b", ["ProxyJump b"]),
        ({"ansible_ssh_args": "-o 'ProxyJump b'"}, "ssh -J b", ["ProxyJump b"]),
        ({"ansible_ssh_common_args": """-o ProxyCommand="ssh -W %h:%p -q me@b" """},
         "ssh -o 'ProxyCommand=ssh -W %h:%p -q me@b'", ["ProxyCommand ssh -W %h:%p -q me@b"]),
        # The first that ssh reads counts, of both.
        ({"ansible_ssh_args": "-J a", "ansible_ssh_extra_args": "-J c -o ProxyCommand=x"}, "ssh -J a", ["ProxyJump a"]),
        ({"ansible_ssh_args": "-J none", "ansible_ssh_common_args": "-J c"}, "ssh", []),
        ({"ansible_ssh_common_args": "-F /home/me/my config"}, "ssh -F /home/me/my", []),
        ({"ansible_ssh_common_args": "-F '/home/me/my config'"}, "ssh -F '/home/me/my config'", []),
        # What looks like one and is none; what ssh does not take; more than one line.
        ({"ansible_ssh_common_args": "-i -J -o User=ProxyJump=b"}, "ssh", []),
        ({"ansible_ssh_common_args": "-o 'ProxyJump=b"}, "ssh", []),
        ({"ansible_ssh_common_args": "--jump b"}, "ssh", []),
        ({"ansible_ssh_common_args": "-o 'ProxyJump=b\n  LocalCommand x'"}, "ssh -J 'b LocalCommand x'",
         ["ProxyJump b LocalCommand x"]),
        ({"ansible_ssh_common_args": None}, "ssh", []),
        ({"ansible_ssh_private_key_file": "~/.ssh/sparks"}, "ssh -i '~/.ssh/sparks'", ['IdentityFile "~/.ssh/sparks"']),
    ],
)  # fmt: skip
def test_the_way_is_that_of_ansible(own: dict[str, Any], ssh: str, settings: list[str]) -> None:
    found = login("spark1", {**HERE, **own})
    assert (found.ssh, found.settings) == (ssh, settings)
    assert found.tunnel("8000") == f"{ssh} -fNL 8000:127.0.0.1:8000 nvidia@10.0.0.11"
    assert found.command("ls") == f"{ssh} nvidia@10.0.0.11 'ls'"


def test_what_is_on_this_computer_needs_no_ssh() -> None:
    here = login("spark1", {**HERE, "ansible_connection": "local", "ansible_ssh_args": "-J b"})
    assert here == Login("spark1") and here.command("ls") == "ls" and here.asks == []


@pytest.mark.parametrize(
    ("own", "asks"),
    [
        (HERE, ["ssh", "-G", "nvidia@10.0.0.11"]),
        ({**HERE, "ansible_ssh_args": "-F x"}, ["ssh", "-G", "-F", "x", "nvidia@10.0.0.11"]),
        ({**HERE, "ansible_ssh_args": "-J x"}, []),  # known
        ({"ansible_user": "nvidia"}, []),  # by its name ssh's configuration is read anyway
    ],
)
def test_ssh_is_asked_where_its_configuration_knows_the_address(own: dict[str, Any], asks: list[str]) -> None:
    assert login("spark1", own).asks == asks


def test_what_ssh_says() -> None:
    said = "user me\nproxyusefdpass no\nproxyjump me@b\nproxycommand nc -x p:1 %h %p\n"
    assert asked(said) == ["ProxyJump me@b", "ProxyCommand nc -x p:1 %h %p"]
    assert asked("proxyjump none\nproxyusefdpass no\n\nproxycommand") == []


def test_keys_and_known_hosts() -> None:
    way = Login("spark1", "nvidia@10.0.0.11", 2222, ("ProxyJump", "me@b"), "x y")
    assert way.known == "[10.0.0.11]:2222"
    assert way.copy_key == "ssh-copy-id -F 'x y' -o ProxyJump=me@b -p 2222 nvidia@10.0.0.11"
    assert Login("spark1", "nvidia@10.0.0.11").known == "10.0.0.11"


def test_the_environment_counts_for_hosts_without_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANSIBLE_SSH_COMMON_ARGS", "-J me@b")
    assert login("spark1", {**configured(), **HERE}).settings == ["ProxyJump me@b"]
    assert login("spark1", {**configured(), **HERE, "ansible_ssh_common_args": ""}).settings == []


@given(st.text(max_size=40), st.text(max_size=20))
def test_any_arguments_are_read(args: str, value: str) -> None:
    for text in (args, f"-o ProxyJump={value}", f"-J '{value}'"):
        assert all("\n" not in line for line in login("a", {"ansible_ssh_args": text}).settings)
