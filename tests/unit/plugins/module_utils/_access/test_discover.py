# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access import discover
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import NOT_FOUND, Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError

AVAHI = r"""+;eno1;IPv4;spark-1a2b;SSH Remote Terminal;local
=;eno1;IPv6;spark-1a2b;_ssh._tcp;local;spark-1a2b.local;fe80::1;22;
=;eno1;IPv4;spark-1a2b;_ssh._tcp;local;spark-1a2b.local;192.168.1.20;22;
=;wlan0;IPv4;spark-1a2b;_ssh._tcp;local;spark-1a2b.local;192.168.1.20;22;
=;eno1;IPv4;Ann\039s\032box;_ssh._tcp;local;ann\045s\.box.local;192.168.1.9;22;"model=x"
=;eno1;IPv4;gx10-77;_ssh._tcp;local;gx10-77.local;192.168.1.21;22;
torn;line
"""


def test_what_avahi_prints() -> None:
    found = discover.parse_avahi(AVAHI)
    assert [(item.address, item.name, item.likely) for item in found] == [
        ("192.168.1.9", "ann-s.box", False),
        ("192.168.1.21", "gx10-77", True),
        ("192.168.1.20", "spark-1a2b", True),
    ]
    assert discover.parse_avahi("") == []
    assert discover.parse_avahi('=;lo;IPv4;spark;_ssh._tcp;local;spark.local;127.0.0.1;22;""\n') == []


@pytest.mark.parametrize(
    ("name", "address", "kept"),
    [
        (r"spark-1\010      ansible_host\058 evil", "192.168.1.20", [""]),  # a line break, and a variable behind it
        (r"spark-1\032x", "192.168.1.20", [""]),
        ("{{ 7 * 7 }}", "192.168.1.20", [""]),
        ("-spark", "192.168.1.20", [""]),
        ("spark-1a2b.local", "192.168.1.20", ["spark-1a2b"]),
        ("\\²", "192.168.1.20", [""]),  # a digit to Python, and no number
        ("spark-1", "192.168.1.20 -o ProxyCommand=x", []),
        ("spark-1", "fe80::1", []),
    ],
)
def test_what_anybody_may_announce(name: str, address: str, kept: list[str]) -> None:
    found = discover.parse_avahi(f'=;eth0;IPv4;spark;_ssh._tcp;local;{name};{address};22;""\n')
    assert [item.name for item in found] == kept


def test_a_login_that_nobody_has_vouched_for_takes_nothing_along() -> None:
    """Neither a password nor the agent, a port or a shared connection, whatever the own configuration of ssh has."""
    asked: list[Sequence[str]] = []
    machine = discover.Machine("192.168.1.20", "spark", "SHA256:a", "ED25519", True, False)
    assert discover.opens("me", machine, [], lambda argv: (asked.append(argv), Completed(0))[1])
    for option in ("BatchMode=yes", "ForwardAgent=no", "ClearAllForwardings=yes", "ControlPath=none",
                   "StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null"):  # fmt: skip
        assert f"-o{option}" in asked[0]


@pytest.mark.parametrize(
    ("cidr", "says"),
    [("home", "no IPv4 network"), ("8.8.8.0/24", "not a private one"), ("10.0.0.0/8", "more than 1024")],
)
def test_networks_that_are_not_asked(cidr: str, says: str) -> None:
    with pytest.raises(SparkError, match=says):
        discover.addresses(cidr)


@pytest.mark.parametrize(("says", "heard"), [(b"SSH-2.0-X\r\n", "SSH-2.0-X"), (b"HTTP/1.1 400\r\n", ""), (b"", "")])
def test_the_banner(says: bytes, heard: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _address = server.accept()
            with connection:
                connection.sendall(says)

        thread = threading.Thread(target=answer)
        thread.start()
        assert discover.banner("127.0.0.1", server.getsockname()[1]) == heard
        thread.join()
        port = server.getsockname()[1]
    assert discover.banner("127.0.0.1", port) == ""


# The key of a test, and the fingerprint that ssh-keygen -lf prints for it.
KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIEVKn7UdAGCDVTEIvgYWiFEl0qjTUqZzIDRYg4Nuk0O7"
FINGERPRINT = "SHA256:6TdwafL52qVd8XH32caUAGBHFo7TCZUA/BRK5DytPlg"
KEYS = f"""# 192.168.1.20:22 SSH-2.0-OpenSSH_9.6
192.168.1.20 ssh-rsa AAAAB3NzaC1yc2E=
192.168.1.20 ssh-ed25519 {KEY}
192.168.1.20 ssh-ed25519 no/base64*
192.168.1.20 ssh-dss AAAA
192.168.1.99 ssh-ed25519 {KEY}
torn
"""


def test_host_keys_are_read_and_the_best_one_is_shown() -> None:
    asked: list[Sequence[str]] = []

    def runner(argv: Sequence[str]) -> Completed:
        asked.append(argv)
        return Completed(0, KEYS)

    plain = [discover.Candidate("192.168.1.20", interface="eno1"), discover.Candidate("192.168.1.21")]
    seen, silent = discover.with_host_keys(plain, runner)
    assert asked == [("ssh-keyscan", "-T", "3", "-t", "ed25519,ecdsa,rsa", "192.168.1.20", "192.168.1.21")]
    assert (seen.fingerprint, seen.kind) == (FINGERPRINT, "ED25519")
    assert seen.known_hosts == ("192.168.1.20 ssh-rsa AAAAB3NzaC1yc2E=", f"192.168.1.20 ssh-ed25519 {KEY}")
    assert silent == discover.Candidate("192.168.1.21")
    assert discover.with_host_keys([], runner) == []
    with pytest.raises(SparkError, match="ssh-keyscan is not on this machine"):
        discover.with_host_keys(plain, lambda argv: Completed(NOT_FOUND))


def reply(*records: bytes, asked: bytes = b"\x0220\x011\x03168\x03192\x07in-addr\x04arpa\0\0\x0c\0\1") -> bytes:
    return b"\0\1\x84\0\0\1\0" + bytes([len(records)]) + b"\0\0\0\0" + asked + b"".join(records)


def record(kind: int, data: bytes) -> bytes:
    return b"\xc0\x0c\0" + bytes([kind]) + b"\0\1\0\0\0\x0a\0" + bytes([len(data)]) + data


LOCAL = b"\x0aspark-1a2b\x05local\0"


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (reply(record(12, LOCAL)), "spark-1a2b"),
        (reply(record(1, b"\xc0\xa8\1\x14"), record(12, LOCAL)), "spark-1a2b"),
        (reply(record(12, b"\x05spark\xc0\x19")), "spark.in-addr.arpa"),  # its end stands further to the front
        (reply(record(12, b"\xc0\x37")), ""),  # it points to itself, behind itself, and to what leads to it again
        (reply(record(12, b"\xc0\x39")), ""),
        (reply(record(12, b"\1a\xc0\x37")), ""),
        (reply(record(12, b"\x05a b\nc\0")), ""),
        (reply(), ""),
        (reply(record(12, LOCAL))[:40], ""),
        (b"", ""),
    ],
)
def test_the_name_that_a_machine_gives(said: bytes, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert discover.parse_name(said) == name
    monkeypatch.setattr(discover, "_NAME_S", 0.05)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))

        def answer() -> None:
            server.recvfrom(512)  # is lost
            asked, whom = server.recvfrom(512)
            assert asked[12:] == b"\x011\x010\x010\x03127\x07in-addr\x04arpa\0\0\x0c\0\1"
            server.sendto(said, whom)

        thread = threading.Thread(target=answer)
        thread.start()
        assert discover.name_at("127.0.0.1", server.getsockname()[1]) == name
        thread.join()


ADDRESSES = """[{"ifname": "lo", "flags": ["UP"],
"addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]},
{"ifname": "docker0", "flags": ["UP"], "addr_info": [{"family": "inet", "local": "172.17.0.1", "prefixlen": 16}]},
{"ifname": "eth1", "flags": ["UP"], "addr_info": [{"family": "inet", "local": "10.1.2.3", "prefixlen": 8}]},
{"ifname": "eth0", "flags": ["UP"], "addr_info": [{"family": "inet", "local": "192.168.7.9", "prefixlen": 23}]},
{"ifname": "eth2", "flags": ["UP"], "addr_info": [{"family": "inet", "local": "10.9.0.1", "prefixlen": 22}]},
{"ifname": "eth3", "flags": [], "addr_info": [{"family": "inet", "local": "192.168.9.1", "prefixlen": 24}]},
{"ifname": "eth4", "flags": ["UP"], "addr_info": [{"family": "inet", "local": "8.8.8.1", "prefixlen": 24}]}]"""


# A Mac with Wi-Fi, an Ethernet adapter without a cable, virtual machines, and a VPN that has the default route.
IFCONFIG = """lo0: flags=8049<UP,LOOPBACK,RUNNING,MULTICAST> mtu 16384
\tinet 127.0.0.1 netmask 0xff000000
gif0: flags=8010<POINTOPOINT,MULTICAST> mtu 1280
en5: flags=8822<BROADCAST,SMART,SIMPLEX,MULTICAST> mtu 1500
\tinet 192.168.9.5 netmask 0xffffff00 broadcast 192.168.9.255
en0: flags=8863<UP,BROADCAST,SMART,RUNNING,SIMPLEX,MULTICAST> mtu 1500
\toptions=6460<TSO4,TSO6,CHANNEL_IO,PARTIAL_CSUM,ZEROINVERT_CSUM>
\tether 3c:22:fb:00:00:01
\tinet6 fe80::10%en0 prefixlen 64 secured scopeid 0xb
\tinet 192.168.4.37 netmask 0xfffffe00 broadcast 192.168.5.255
\tstatus: active
bridge100: flags=8a63<UP,BROADCAST,SMART,RUNNING,ALLMULTI,SIMPLEX,MULTICAST> mtu 1500
\tinet 192.168.64.1 netmask 0xffffff00 broadcast 192.168.64.255
utun4: flags=8051<UP,POINTOPOINT,RUNNING,MULTICAST> mtu 1280
\tinet 100.101.102.103 --> 100.101.102.103 netmask 0xffffffff
utun6: flags=8051<UP,POINTOPOINT,RUNNING,MULTICAST> mtu 1420
\tinet 10.8.0.2 --> 10.8.0.1 netmask 0xffffffff
"""


@pytest.mark.parametrize(
    ("said", "first", "networks"),
    [
        (IFCONFIG, "10.8.0.2", ["192.168.4.0/23"]),
        (ADDRESSES, "192.168.7.9", ["192.168.6.0/23", "10.1.2.0/24"]),  # 768 of 1024, and a /22 more
        ("", "192.168.7.9", ["192.168.7.0/24"]),  # a computer without ip
        ("no JSON", "192.168.7.9", ["192.168.7.0/24"]),
        ("", "8.8.8.1", []),
        ("", "", []),
    ],
)
def test_the_own_networks(monkeypatch: pytest.MonkeyPatch, said: str, first: str, networks: list[str]) -> None:
    monkeypatch.setattr(discover, "_sender", lambda place: first)
    if networks:
        assert discover.own_networks(lambda argv: Completed(0, said)) == networks
    else:
        with pytest.raises(SparkError, match="in no private IPv4 network"):
            discover.own_networks(lambda argv: Completed(0, said))


class Network:
    """Who answers ssh, by which name; what was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, avahi: str = "", **names: str) -> None:
        self.avahi = avahi
        self.names = {f"192.168.1.{number[1:]}": name for number, name in names.items()}
        self.asked: list[str] = []
        monkeypatch.setattr(discover, "banner", lambda address: "SSH-2.0-X" if address in self.names else "")
        monkeypatch.setattr(discover, "name_at", lambda address: self.names[address])
        monkeypatch.setattr(discover, "_sender", lambda place: "192.168.1.9")
        monkeypatch.setattr(discover, "_resolved", lambda place: {"gx10.local": "192.168.1.21"}.get(place, place))

    def run(self, argv: Sequence[str]) -> Completed:
        self.asked.append(argv[0])
        said = {"ssh-keyscan": KEYS, "avahi-browse": self.avahi}.get(argv[0], "")
        return Completed(0 if said else NOT_FOUND, said)


def test_where_a_spark_announces_itself_nobody_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Network(monkeypatch, AVAHI, n30="spark-3")
    found = discover.find(runner=here.run)
    assert here.asked == ["avahi-browse", "ssh-keyscan"]
    assert [(candidate.address, candidate.own, bool(candidate.fingerprint)) for candidate in found] == [
        ("192.168.1.9", True, False),
        ("192.168.1.21", False, False),
        ("192.168.1.20", False, True),
    ]


@pytest.mark.parametrize("avahi", ["", '=;e;IPv4;nas;_ssh._tcp;local;nas.local;192.168.1.30;22;""\n'])
def test_where_none_does_the_own_networks_are_asked(monkeypatch: pytest.MonkeyPatch, avahi: str) -> None:
    here = Network(monkeypatch, avahi, n20="spark-1a2b", n30="nas")
    found = discover.find(runner=here.run)
    assert here.asked == ["avahi-browse", "ip", "ifconfig", "ssh-keyscan"]
    assert sorted((candidate.address, candidate.name) for candidate in found) == [
        ("192.168.1.20", "spark-1a2b"),
        ("192.168.1.30", "nas"),
    ]


def test_what_is_named_is_in_the_result_whether_it_answers_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Network(monkeypatch, n20="spark-1a2b", n21="gx10")
    found = discover.find(" 192.168.1.20,gx10.local  192.168.1.40 192.168.1.20", runner=here.run)
    assert [(candidate.address, candidate.name, candidate.banner) for candidate in found] == [
        ("192.168.1.20", "spark-1a2b", "SSH-2.0-X"),
        ("192.168.1.21", "gx10", "SSH-2.0-X"),
        ("192.168.1.40", "", ""),
    ]
    monkeypatch.setattr(discover, "_resolved", lambda place: "")
    here.asked.clear()
    assert [candidate.address for candidate in discover.find("-oProxyCommand=x spark.lan", runner=here.run)] == [
        "-oProxyCommand=x",
        "spark.lan",
    ]
    assert here.asked == []
    assert [candidate.address for candidate in discover.find("192.168.1.20/30", runner=here.run)] == ["192.168.1.21"]
    assert not discover.find("192.168.1.40/30", runner=here.run)


def test_who_sends_to_himself_is_own() -> None:
    assert discover.is_own("127.0.0.1") and not discover.is_own("198.51.100.7") and not discover.is_own("no address")


def test_machines_are_shown_once_and_sparks_first() -> None:
    def one(number: int, name: str, key: str, interface: str = "eno1", own: bool = False) -> discover.Candidate:
        return discover.Candidate(f"10.0.0.{number}", name, "", interface, key, "ED25519" * bool(key), own=own)

    cable, house = one(9, "spark-b", "B", "enp1s0f0np0"), one(3, "", "B")
    found = [
        one(1, "nas", "N"),
        one(2, "me", "M", own=True),
        cable,
        house,
        one(4, "gx10-a", "A", own=True),
        one(5, "", ""),
    ]
    made = discover.machines(found)
    assert [(at.address, at.name, at.fingerprint, at.likely, at.own, at.others) for at in made] == [
        ("10.0.0.4", "gx10-a", "A", True, True, ()),
        ("10.0.0.3", "spark-b", "B", True, False, ("10.0.0.9",)),
        ("10.0.0.1", "nas", "N", False, False, ()),
        ("10.0.0.5", "", "", False, False, ()),
        ("10.0.0.2", "me", "M", False, True, ()),
    ]
    silent = [one(number, "", "", own=True) for number in (6, 7)]
    assert [at.others for at in discover.machines(silent)] == [("10.0.0.7",)]


@pytest.mark.parametrize(
    ("platform", "says"),
    [
        ("darwin 24.1.0", "Local Network"),
        ("linux 5.15.167.4-microsoft-standard-WSL2", "give addresses"),
        ("linux 6.11.0-1016-nvidia", "this computer."),
    ],
)
def test_where_nobody_was_found(platform: str, says: str) -> None:
    assert says in discover.nobody([discover.Candidate("192.168.1.9", own=True)], platform)
    assert discover.nobody([discover.Candidate("192.168.1.8")], platform) == "No machine is named like a Spark."


def test_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "find", lambda at: [discover.Candidate(at, "spark-1", known_hosts=("a b c",))])
    (found,) = discover.look(discover.Request("192.168.1.20"), False).candidates
    assert found.likely and found.known_hosts
    (found,) = discover.look(discover.Request("192.168.1.20", ("SHA256:other",)), False).candidates
    assert not found.known_hosts
