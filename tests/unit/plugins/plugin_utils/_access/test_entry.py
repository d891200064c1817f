# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Everybody who is asked and does not let this computer in is told, with the reason and the next step."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.discover import Candidate
from planning import plan

KEY = "SHA256:right"
LOGIN = "Data could not be sent to remote host. Make sure this host can be reached over ssh: "
DENIED = "nvidia@10.0.0.2: Permission denied (publickey,password)."


def shown(state: str, **more: Any) -> dict[str, Any]:
    return {"state": state, "fingerprint": "", "kind": "", "complaint": "", "changed": False, "forget": "", **more}


def strangers(**by_host: dict[str, Any]) -> dict[str, Any]:
    return plan("host_keys", {"shown": by_host})


def test_known_host_keys_are_no_matter() -> None:
    keys = {"a": shown("known"), "b": shown("unreachable"), "c": {"changed": False, "skipped": True}}
    assert "msg" not in strangers(**keys, d=shown("changed", fingerprint=KEY, kind="RSA", changed=True))  # check mode


def test_strangers_are_refused_once_with_one_command_for_all() -> None:
    text = strangers(
        spark1=shown("unknown", fingerprint="SHA256:one", kind="ED25519"),
        spark2=shown("changed", fingerprint="SHA256:two", kind="RSA", forget="ssh-keygen -R 10.0.0.2"),
        spark3=shown("known"),
    )["msg"]
    lines = text.splitlines()
    assert lines[0].startswith("Nobody has vouched for the host keys of these machines. No password was sent")
    assert (
        lines[1] == "  1. spark1: it shows the host key SHA256:one (ED25519), and your computer knows none of it yet."
    )
    assert "2. spark2: it shows the host key SHA256:two (RSA), and your computer knows another one: " in lines[2]
    assert "somebody is in between. To forget the old one: ssh-keygen -R 10.0.0.2." in lines[2]
    assert "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub or /etc/ssh/ssh_host_rsa_key.pub. " in lines[3]
    assert "run again with -e node_fingerprint=SHA256:one,SHA256:two; if not, do not go on." in lines[3]


def test_a_key_that_cannot_be_read() -> None:
    text = strangers(spark1=shown("changed", complaint="odd"))["msg"]
    assert text.endswith(
        "1. spark1: ssh does not accept its host key, and the key could not be read: odd. Try ssh by hand."
    )


@pytest.mark.parametrize(
    ("said", "found", "remedy"),
    [
        (f"{LOGIN}{DENIED}", "refuses the login name nvidia or the password.", "Try both at its screen"),
        ("Invalid/incorrect password: Permission denied", "refuses the login name nvidia or the password.", "Try both"),
        ("Incorrect sudo password", "could not be read: Incorrect sudo password.", "type it again (-K)"),
        ("Missing sudo password", "Missing sudo password", "Add -K"),
        (f"{LOGIN}ssh: connect to host 10.0.0.2 port 22: No route to host", "No route", "Is the machine on"),
    ],
)
def test_a_first_login(said: str, found: str, remedy: str) -> None:
    answers = {"spark1": {"ping": "pong"}, "spark2": {"unreachable": True, "msg": f"Task failed: {said}"}}
    known = {"spark1": {}, "spark2": {"ansible_host": "10.0.0.2", "ansible_user": "nvidia"}}
    text = plan("first_login", {"answers": answers, "logins": known})["msg"]
    assert text.startswith("These machines do not let this computer in; nothing was changed:\n  1. spark2: ")
    assert found in text and remedy in text and "spark1" not in text
    assert "msg" not in plan("first_login", {"answers": {"spark1": {"ping": "pong"}}, "logins": {"spark1": {}}})


def candidate(last: int, name: str = "", **more: Any) -> dict[str, Any]:
    address = f"10.0.0.{last}"
    default = {"banner": "SSH-2.0-X", "fingerprint": f"SHA256:{last}", "kind": "ED25519", "known_hosts": ("a b c",)}
    return Candidate(**{"address": address, "name": name, **default, **more}).__dict__


def looked(is_gb10: bool = True) -> dict[str, Any]:
    machine = {"is_gb10": is_gb10, "gpu": "" if is_gb10 else "NVIDIA RTX", "vendor": "Dell"}
    return {"node": {"machine": machine, "memory": {}, "arch": "aarch64"}}


def discovered(*candidates: dict[str, Any], confirmed: str = "SHA256:1,SHA256:2", **more: Any) -> dict[str, Any]:
    looks = {one["address"]: looked() for one in candidates}
    options = {"candidates": list(candidates), "confirmed": confirmed, "user": "nvidia", "looks": looks, **more}
    return plan("discovered", **options)


def test_all_that_let_this_computer_in_are_taken() -> None:
    own = candidate(2, "spark-2", own=True, banner="", fingerprint="", known_hosts=())
    made = discovered(candidate(1, "spark-1"), own)
    assert made["sparks"] == [
        {"name": "spark1", "address": "10.0.0.1", "own": False},
        {"name": "spark2", "address": "10.0.0.2", "own": True},
    ]


def test_all_that_do_not_are_told_at_once() -> None:
    silent = {"banner": "", "fingerprint": "", "known_hosts": ()}
    found = [
        candidate(1, "spark-1"),
        candidate(2, "", **silent),
        candidate(3, "x", address="spark.lan", **silent),
        candidate(4, "spark-4", known_hosts=()),
        candidate(5, "spark-5"),
        candidate(6),
        candidate(7, "box"),
        candidate(8, "", fingerprint="", known_hosts=()),
        candidate(9),
    ]
    looks = {
        "10.0.0.1": looked(),
        "10.0.0.6": {"unreachable": True, "msg": f"{LOGIN}{DENIED.replace('.2', '.6')}"},
        "10.0.0.7": looked(is_gb10=False),
        "10.0.0.9": {"node": "odd"},
    }
    known = {"10.0.0.5": shown("changed", changed=True, forget="ssh-keygen -R 10.0.0.5")}
    text = discovered(*found, confirmed="SHA256:1, SHA256:9x", looks=looks, known=known)["msg"]
    lines = text.splitlines()
    assert lines[0] == "These machines cannot be taken; nothing was written:"
    said = {line.split(". ", 1)[1].split(" ")[0].rstrip(":"): line for line in lines[1:]}
    assert list(said) == [
        "10.0.0.2", "spark.lan", "10.0.0.4", "10.0.0.5", "10.0.0.8", "10.0.0.6", "10.0.0.9", "10.0.0.7",
    ]  # fmt: skip
    assert "does not answer ssh. Is it on" in said["10.0.0.2"]
    assert "knows no address of that name. Give its address" in said["spark.lan"]
    assert (
        "10.0.0.4 spark-4: it shows the host key SHA256:4 (ED25519), and you have confirmed SHA256:9x: it was "
        in (said["10.0.0.4"])
    )
    assert (
        "your computer knows another one" in said["10.0.0.5"] and "again: ssh-keygen -R 10.0.0.5." in said["10.0.0.5"]
    )
    assert "shows no host key that can be read" in said["10.0.0.8"]
    assert "refuses the login name nvidia or the password. Try" in said["10.0.0.6"]
    assert "it answers what cannot be used" in said["10.0.0.9"]
    assert "7 box: this is no GB10 machine (GPU NVIDIA RTX, Dell). If it is one, look at nvidia-smi" in said["10.0.0.7"]
    assert "-e preflight_require_gb10=false" in said["10.0.0.7"]


def test_a_machine_that_was_read_at_one_address_need_not_answer_at_its_others() -> None:
    """Wi-Fi comes first here, and its old host key is known: it is managed at the address of its default route."""
    same = {"fingerprint": "SHA256:1"}
    wifi, wire = candidate(1, "spark-1", **same), candidate(2, "spark-1", **same)
    routes = [{"dst": "default", "dev": "enP7s7", "metric": 100}, {"dst": "default", "dev": "wlP9s9", "metric": 600}]
    interfaces = [
        {"name": name, "state": "UP", "addresses": [{"address": address}]}
        for name, address in (("wlP9s9", "10.0.0.1"), ("enP7s7", "10.0.0.2"))
    ]
    read = {**looked()["node"], "machine_id": "a" * 32, "network": {"interfaces": interfaces, "routes": routes}}
    known = {"10.0.0.1": shown("changed", changed=True, forget="ssh-keygen -R 10.0.0.1")}
    made = discovered(wifi, wire, looks={"10.0.0.2": {"node": read}}, known=known)
    assert made.get("sparks") == [{"name": "spark1", "address": "10.0.0.2", "own": False}], made


def test_other_hardware_can_be_asked_for() -> None:
    looks = {"10.0.0.1": looked(is_gb10=False)}
    made = discovered(candidate(1), looks=looks, require_gb10="false")
    assert [spark["address"] for spark in made["sparks"]] == ["10.0.0.1"]


def test_without_confirmed_keys_only_silence_is_a_reason() -> None:
    assert discovered(candidate(1), confirmed="", looks={})["sparks"] == []
    silent = candidate(2, banner="", fingerprint="", known_hosts=())
    assert "does not answer ssh" in discovered(candidate(1), silent, confirmed="", looks={})["msg"]
