# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Who reaches Ray and the ranks, as a table of nftables: the text, what nft says of it, and values that lie."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import engine_plans
import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._firewall import port_filter as node
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import services as services_of_a_cluster
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric import plan as fabric_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.firewall import netdevs
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._fabric.types import Settings
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._firewall import port_filter as pf
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._firewall.planners import reach
from fabric_inputs import wired
from hypothesis import given
from hypothesis import strategies as st
from planning import plan

RAILS = '{ "enp1s0f0np0", "enP2p1s0f0np0" }'
OTHERS = "{ 192.168.100.11, 192.168.101.11 }"
SERVICES = f"""\
table inet sparkmatrix_services
delete table inet sparkmatrix_services
table inet sparkmatrix_services {{
    chain ours {{
        tcp dport {{ 8000, 8265 }} iifname lo accept
        tcp dport {{ 8000, 8265 }} iifname {RAILS} ip saddr {OTHERS} accept
        tcp dport {{ 8000, 8265 }} iifname != {RAILS} ip saddr {{ 10.0.0.2 }} accept
        ip dscp 1 counter drop
        ip6 dscp 1 counter drop
        iifname lo accept
        iifname {RAILS} ip saddr {OTHERS} accept
        iifname != {RAILS} ip saddr {{ 10.0.0.2 }} accept
        counter drop comment "@STATE@"
    }}
    chain refused {{
        socket wildcard {{ 0, 1 }} counter reject with tcp reset
        socket transparent {{ 0, 1 }} counter drop
        counter reject with tcp reset
    }}
    chain prerouting {{
        type filter hook prerouting priority filter - 10; policy accept;
        tcp flags & (fin | syn | rst | ack) != syn accept
        meta nfproto ipv4 fib daddr type local meta l4proto tcp tproxy ip to ip daddr
        meta nfproto ipv6 fib daddr type local meta l4proto tcp tproxy ip6 to ip6 daddr
    }}
    chain input {{
        type filter hook input priority filter - 10; policy accept;
        tcp flags & (fin | syn | rst | ack) != syn accept
        socket cgroupv2 level 1 "sparkmatrix.slice" jump ours
        ip daddr {{ 127.0.0.1 }} tcp dport {{ 8000 }} goto refused
        ip6 daddr {{ ::1 }} tcp dport {{ 8000 }} goto refused
    }}
    chain output {{
        type filter hook output priority filter - 10; policy accept;
        tcp flags & (fin | syn | rst | ack) != syn accept
        ip saddr {{ 127.0.0.1 }} tcp sport {{ 8000 }} counter reject with tcp reset
        ip6 saddr {{ ::1 }} tcp sport {{ 8000 }} counter reject with tcp reset
        meta skuid $accounts accept
        oifname lo ip dscp set 1
        oifname lo ip6 dscp set 1
        ip daddr {{ 192.168.100.11, 192.168.101.11, 10.0.0.2 }} ip dscp set 1
    }}
}}
"""
GATEWAY = """\
table inet sparkmatrix_gateway
delete table inet sparkmatrix_gateway
table inet sparkmatrix_gateway {
    set ip_clients { type ipv4_addr; size 65535; flags dynamic; }
    set ip6_clients { type ipv6_addr; size 65535; flags dynamic; }
    chain ours {
        iifname lo accept
        tcp dport 8443 add @ip_clients { ip saddr ct count over 512 } counter reject with tcp reset
        tcp dport 8443 add @ip6_clients { ip6 saddr ct count over 512 } counter reject with tcp reset
        accept
    }
    chain refused {
        socket wildcard { 0, 1 } counter reject with tcp reset
        socket transparent { 0, 1 } counter drop
        counter reject with tcp reset
    }
    chain prerouting {
        type filter hook prerouting priority filter - 10; policy accept;
        tcp flags & (fin | syn | rst | ack) != syn accept
        meta nfproto ipv4 fib daddr type local meta l4proto tcp tproxy ip to ip daddr
        meta nfproto ipv6 fib daddr type local meta l4proto tcp tproxy ip6 to ip6 daddr
    }
    chain input {
        type filter hook input priority filter - 10; policy accept;
        tcp flags & (fin | syn | rst | ack) != syn accept
        socket cgroupv2 level 2 "system.slice/system-sparkmatrix_gateway.slice" jump ours comment "@STATE@"
        ip6 daddr { fd00::5 } tcp dport { 8443 } goto refused
        ip daddr { 0.0.0.0/0 } tcp dport { 8443 } goto refused
        ip daddr { 127.0.0.1 } tcp dport { 8081, 8443 } goto refused
        ip6 daddr { ::1 } tcp dport { 8081, 8443 } goto refused
    }
    chain output {
        type filter hook output priority filter - 10; policy accept;
        tcp flags & (fin | syn | rst | ack) != syn accept
        ip6 saddr { fd00::5 } tcp sport { 8443 } counter reject with tcp reset
        ip saddr { 0.0.0.0/0 } tcp sport { 8443 } counter reject with tcp reset
        ip saddr { 127.0.0.1 } tcp sport { 8081, 8443 } counter reject with tcp reset
        ip6 saddr { ::1 } tcp sport { 8081, 8443 } counter reject with tcp reset
    }
}
"""
FABRIC = f"""\
table inet sparkmatrix_fabric
delete table inet sparkmatrix_fabric
table inet sparkmatrix_fabric {{
    chain input {{
        type filter hook input priority filter - 10; policy accept;
        tcp flags & (fin | syn | rst | ack) != syn accept
        iifname {{ "lo", {RAILS[2:]} accept
        ip daddr {{ 192.168.100.10, 192.168.101.10 }} tcp dport >= 1024 counter drop comment "@STATE@"
    }}
}}
"""


def facts(*lines: str) -> dict[str, FabricFact]:
    return dict(fabric_plan.plan(wired(*lines), Settings(allow_large_ring=True)).facts)


PAIR = facts("spark1.0 spark2.0")


def services(also: tuple[str, ...] = (), **changes: object) -> str:
    changed = {**PAIR, "spark2": replace(PAIR["spark2"], **changes)}
    return pf.services(reach("spark1", changed, also, (8265, 8000), [("127.0.0.1", 8000)]))


def test_the_tables_in_full() -> None:
    assert services() == SERVICES
    assert pf.fabric(netdevs(PAIR["spark1"])) == FABRIC
    at = [("127.0.0.1", 8443), ("127.0.0.1", 8081), ("0.0.0.0", 8443), ("fd00::5", 8443)]
    assert sorted(pf.layer("gateway", at, 8443, 512).split("\n")) == sorted(GATEWAY.split("\n"))
    assert "set " not in pf.layer("web_ui", [("127.0.0.1", 8080)])
    assert "tcp sport { 8080 } counter" in pf.layer("web_ui", [("", 8080)])


def test_a_node_without_a_fabric_lets_its_peers_in_by_any_interface() -> None:
    assert pf.fabric(netdevs(replace(PAIR["spark1"], rails=()))) == ""
    alone = {host: replace(fact, rails=()) for host, fact in PAIR.items()}
    made = pf.services(reach("spark1", alone, (), ()))
    assert "        ip saddr { 10.0.0.2 } accept\n" in made and "dport" not in made


def test_a_single_node_is_closed_to_everybody() -> None:
    made = pf.services(reach("spark1", {"spark1": PAIR["spark1"]}, (), (8000,)))
    assert "saddr {" not in made and "daddr {" not in made


def test_who_else_may_come_in_is_named_by_address_or_network() -> None:
    made = services(("10.9.0.0/24", "10.9.0.7", "fd00::/8"))
    assert "        ip saddr { 10.9.0.0/24 } accept\n        ip6 saddr { fd00::/8 } accept\n" in made
    with pytest.raises(SparkError, match="spark_port_filter_from: 'office' is no address"):
        services(("office",))


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(24, 32)), max_size=12))
def test_networks_inside_another_one_are_left_out(chosen) -> None:
    """Compared with all others, as a definition has it; the order stays."""
    own = list(pf.networks(f"10.0.0.{last}/{prefix}" for last, prefix in chosen))
    outer = [one for one in own if not any(one != other and one.subnet_of(other) for other in own)]
    found = dict(pf._families(own)).get("ip", [])
    assert found == [str(one).removesuffix("/32") for one in outer]


@pytest.mark.parametrize(
    "lie", ["10.0.0.1\n accept", "10.0.0.1 } accept #", "", "fe80::1%x } accept", "10.0.0.1; accept"]
)
def test_an_address_that_is_none_is_refused(lie: str) -> None:
    rail = replace(PAIR["spark2"].rails[0], address=lie)
    for changes in ({"management_address": lie}, {"rails": (rail,)}):
        with pytest.raises(SparkError, match="is no address"):
            services(**changes)


@pytest.mark.parametrize("lie", ['lo", "eth0', "a b", "", "x" * 16, "x}\naccept"])
def test_an_interface_that_is_none_is_refused(lie: str) -> None:
    rails = (replace(PAIR["spark1"].rails[0], netdev=lie),)
    with pytest.raises(SparkError, match="no name of an interface"):
        pf.fabric(netdevs(replace(PAIR["spark1"], rails=rails)))
    with pytest.raises(SparkError, match="no name of an interface"):
        pf.services(pf.Reach(interfaces=(lie,)))


def in_a_network_of_its_own(script: str) -> str:
    """What ``script`` prints, as root, with loopback and control groups that nobody else sees."""
    begin = (
        "umount -R /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup || exit 9; ip link set lo up || exit 9;"
        " cd /sys/fs/cgroup;"
    )
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", f"{begin} {script}"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 9 or "not permitted" in done.stderr or "not supported" in done.stderr:
        pytest.skip(f"no network namespace or control groups here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="nft asks the kernel, as root")
def test_nft_takes_both_tables(tmp_path) -> None:
    """In a network of its own, and with a control group of its own where cgroup2 is not mounted."""
    assert shutil.which("nft", path=f"{os.environ['PATH']}:/usr/sbin"), "Install the package nftables (make envs does)"
    ring = facts("spark1.1 spark2.0", "spark2.1 spark3.0", "spark3.1 spark1.0")
    texts = [
        pf.services(reach("spark1", ring, ("10.9.0.0/24", "fd00::/8"), (8000, 8001))),
        services(),
        pf.fabric(netdevs(ring["spark1"])),
        pf.layer("gateway", [("::", 8443), ("0.0.0.0", 8443), ("127.0.0.1", 8081)], 8443, 512),
        pf.layer("observability", [("127.0.0.1", 9090), ("", 9100)]),
    ]
    files = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.nft"
        path.write_text(f"define accounts = {{ 0, 995 }}\n{text}")
        files += ["-f", str(path)]
    groups = [f"/sys/fs/cgroup/{node.cgroup(name)}" for name in node.NAMES if node.slice_of(name)]
    in_a_network_of_its_own(
        f"mkdir -p {' '.join(groups)}; nft {' '.join(files)}; rc=$?; nft {' '.join(files)} || rc=1;"
        f" rmdir {' '.join(groups)}; exit $rc"
    )


# A listener in our slice, one in another control group, and nobody: who can be reached at the ports of two APIs.
TAKEN = """
import os, pathlib, socket, sys
def joined(name):
    pathlib.Path("/sys/fs/cgroup", name, "cgroup.procs").write_text(str(os.getpid()))
def listener(port, host="0.0.0.0"):
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.bind((host, port))
    made.listen()
    return made
def reached(port, host="127.0.0.1", own=0):
    try:
        socket.create_connection((host, port), 2, ("", own) if own else None).close()
        return "reached"
    except OSError as exc:
        return type(exc).__name__
joined(sys.argv[1])
ours = listener(8000)
joined(sys.argv[2])
stranger, elsewhere, six, free = listener(8001), listener(9000), listener(8000, "::1"), listener(9000, "::1")
print(reached(8000), reached(8001), reached(8002), reached(9000), reached(8001, "127.0.0.2"))
print(reached(8000, "::1"), reached(9000, "::1"))
# From there, which would meet a client's first packet without a listener.
print(reached(9000, own=8002), reached(9000, own=8003))
ours.close()
again = listener(8000)
print(reached(8000))
joined(".")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="nft asks the kernel, as root")
def test_who_takes_the_port_of_an_api_is_not_reached(tmp_path) -> None:
    mine, other = f"sparkmatrix-test-{os.getpid()}", f"stranger-test-{os.getpid()}"
    apis = [("127.0.0.1", port) for port in (8000, 8001, 8002)]
    text = pf.services(reach("spark1", PAIR, (), (8000, 8001, 8002), apis)).replace(node.CGROUP, mine)
    (tmp_path / "rules.nft").write_text(f"define accounts = {{ 0 }}\n{text}")
    (tmp_path / "taken.py").write_text(TAKEN)
    script = (
        f"mkdir {mine} {other} || exit 9; nft -f {tmp_path}/rules.nft || exit 8;"
        f" {sys.executable} {tmp_path}/taken.py {mine} {other}; rc=$?; rmdir {mine} {other}; exit $rc"
    )
    told = in_a_network_of_its_own(script)
    refused = "ConnectionRefusedError"
    assert told.split() == [
        "reached",
        refused,
        refused,
        "reached",
        "reached",
        refused,
        "reached",
        refused,
        "reached",
        refused,
    ]


# Services that close first leave something of each connection for a minute (TIME_WAIT). Then the same client comes
# again, from the same port of its own.
REUSED = """
import os, pathlib, socket, sys
mine, other, accounts, *hosts = sys.argv[1:]
def joined(name):
    pathlib.Path("/sys/fs/cgroup", name, "cgroup.procs").write_text(str(os.getpid()))
def opened(host, port):
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.settimeout(0.5)
    made.bind((host, port))
    return made
def listener(host, port, late=0):
    made = opened(host, port)
    # With this one packet makes the connection and carries the first bytes.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, late)
    made.listen()
    return made
def asked(server, port, own, user=0):
    home = "::1" if server.family == socket.AF_INET6 else "127.0.0.1"
    os.seteuid(user)
    client = opened(home, own)
    try:
        client.connect((home, port))
        client.send(b"key")
        answer = server.accept()[0]
        answer.settimeout(0.5)
        got = answer.recv(9).decode()
        answer.close()
        client.recv(9)
        return got
    except OSError as exc:
        return type(exc).__name__
    finally:
        os.seteuid(0)
        client.close()
for host in hosts:
    joined(mine)
    ours, rank = listener(host, 8000), listener(host, 5000)
    print("left", *(asked(ours, 8000, own) for own in range(4001, 4006)))
    print("again", asked(ours, 8000, 4001))
    if int(accounts):
        print("account", asked(rank, 5000, 4001), asked(rank, 5000, 4001, 65534), asked(rank, 5000, 4001))
    ours.close()
    rank.close()
    print("nobody", asked(ours, 8000, 4002))
    joined(other)
    for late in (0, 30):
        stranger = listener(host, 8000, late)
        print("stranger", asked(stranger, 8000, 4100 + late), asked(stranger, 8000, 4003 + bool(late)))
        stranger.close()
    elsewhere = listener(host, 9000)
    print("elsewhere", asked(elsewhere, 9000, 4001), asked(elsewhere, 9000, 4001))
    elsewhere.close()
    joined(mine)
    print("back", asked(listener(host, 8000), 8000, 4005))
joined(".")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="nft asks the kernel, as root")
@pytest.mark.parametrize(
    ("name", "ports", "hosts"),
    [
        ("services", ["127.0.0.1"], ["127.0.0.1", "::1"]),
        ("services", [""], ["0.0.0.0", "::1"]),
        ("gateway", ["0.0.0.0", "::"], ["0.0.0.0", "::"]),
        ("observability", [""], ["127.0.0.1", "::"]),
    ],
)
def test_a_client_that_comes_again_meets_the_service_and_nobody_else(tmp_path, name, ports, hosts) -> None:
    group, other = node.cgroup(name), f"stranger-test-{os.getpid()}"
    mine = group.replace("sparkmatrix", f"sparkmatrix-test-{os.getpid()}")
    places = [(address, 8000) for address in ports]
    if name == "services":
        text = pf.services(reach("spark1", PAIR, (), (8000,), places))
    else:
        text = pf.layer(name, places, *((8000, 6) if name == "gateway" else ()))
    (tmp_path / "rules.nft").write_text(f"define accounts = {{ 0 }}\n{text.replace(group, mine)}")
    (tmp_path / "reused.py").write_text(REUSED)
    told = in_a_network_of_its_own(
        f"mkdir -p {mine} {other} || exit 9; nft -f {tmp_path}/rules.nft || exit 8; {sys.executable}"
        f" {tmp_path}/reused.py {mine} {other} {int(name == 'services')} {' '.join(hosts)};"
        f" rc=$?; rmdir {mine} {other}; exit $rc"
    )
    refused = "ConnectionRefusedError"
    account = ["account key TimeoutError key"] if name == "services" else []
    each = ["left key key key key key", "again key", *account, "nobody TimeoutError"]
    each += [f"stranger {refused} {refused}"] * 2 + ["elsewhere key key", "back key"]
    assert told.splitlines() == each * 2


# The gateway, a stranger at its port on loopback, and machines that open connections and say nothing.
CROWD = """
import os, pathlib, socket, subprocess, sys, threading, time
def joined(name):
    pathlib.Path("/sys/fs/cgroup", name, "cgroup.procs").write_text(str(os.getpid()))
def listener(port, host):
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.bind((host, port))
    made.listen(64)
    threading.Thread(target=serve, args=(made,), daemon=True).start()
    return made
def serve(made):
    while True:
        threading.Thread(target=until_closed, args=made.accept()[:1], daemon=True).start()
def until_closed(one):
    one.recv(1)
    one.close()
def reached(host, port, own=""):
    try:
        return socket.create_connection((host, port), 6, (own, 0) if own else None)
    except OSError as exc:
        return None
if len(sys.argv) > 2:
    joined(sys.argv[1])
    ours = [listener(8443, "10.9.9.1"), listener(8443, "fd99::1")]
    joined(sys.argv[2])
    stranger = listener(8081, "127.0.0.1")
    print("stranger", bool(reached("127.0.0.1", 8081)))
    held = [reached("10.9.9.1", 8443) for _ in range(9)]
    print("itself", sum(map(bool, held)), flush=True)
    away = ["nsenter", f"--net=/proc/{sys.argv[3]}/ns/net", sys.executable, __file__]
    subprocess.run([*away, "away"], check=True)
    # The answers to its first packets are lost for a while, where it is.
    there = [*away[:2], "nft"]
    lost = "table inet lost { chain input { type filter hook input priority 0; tcp flags == syn | ack drop; }; }"
    subprocess.run([*there, lost], check=True)
    threading.Timer(1.5, subprocess.run, [[*there, "delete table inet lost"]]).start()
    subprocess.run([*away, "late"], check=True)
    joined(".")
elif sys.argv[1] == "late":
    print("late", bool(reached("10.9.9.1", 8443)))
else:
    for own in ("10.9.9.2", "10.9.9.3", "fd99::2", "fd99::3"):
        for again in ("at", "again"):
            held = [reached(f"{own[:-1]}1", 8443, own) for _ in range(9)]
            print(again, sum(map(bool, held)))
            for one in filter(None, held):
                one.close()
            time.sleep(0.3)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="nft asks the kernel, as root")
def test_one_address_has_so_many_connections_to_the_gateway_and_others_theirs(tmp_path) -> None:
    mine, other = f"system.slice/sparkmatrix-test-{os.getpid()}", f"stranger-test-{os.getpid()}"
    at = [("127.0.0.1", 8081), ("10.9.9.1", 8443), ("fd99::1", 8443)]
    text = pf.layer("gateway", at, 8443, 6).replace(node.cgroup("gateway"), mine)
    (tmp_path / "rules.nft").write_text(text)
    (tmp_path / "crowd.py").write_text(CROWD)
    script = (
        "unshare --net sleep 60 & away=$!; sleep 0.3; ip link add near type veth peer name far netns $away || exit 9;"
        " for one in '10.9.9.1/24' 'fd99::1/64'; do ip addr add $one dev near nodad; done; ip link set near up;"
        ' far() { nsenter --net=/proc/$away/ns/net ip "$@"; }; far link set far up;'
        " for one in 10.9.9.2/24 10.9.9.3/24 fd99::2/64 fd99::3/64; do far addr add $one dev far nodad; done;"
        f" mkdir -p {mine} {other} || exit 9; nft -f {tmp_path}/rules.nft || exit 8;"
        f" {sys.executable} {tmp_path}/crowd.py {mine} {other} $away; rc=$?; rmdir {mine} {other}; kill $away; exit $rc"
    )
    told = in_a_network_of_its_own(script)
    assert told.split() == ["stranger", "False", "itself", "9", *["at", "6", "again", "6"] * 4, "late", "True"]


def test_the_planner_takes_what_the_engine_plan_returns() -> None:
    facts = {host: fact.as_dict() for host, fact in engine_plan.assumed_facts(["spark1", "spark2"]).items()}
    documents = engine_plans.node_plans(2, launch="ray")
    head = services_of_a_cluster._head("engine", documents["spark1"].here[0])
    documents = {**documents, "spark1": replace(documents["spark1"], heads=(head,))}
    plans = {host: document.as_dict() for host, document in documents.items()}
    made = plan("port_filter", {"facts": facts, "plans": plans}, dashboard_port=8266, also=["10.9.0.1"])
    assert list(made["rules"]) == ["spark1", "spark2"]
    # Ray's dashboard, where there is a Ray; the ports of services come with their heads.
    assert "tcp dport { 8000, 8266 } iifname lo accept" in made["rules"]["spark1"]
    lines = {host: map(str.strip, text.split("\n")) for host, text in made["rules"].items()}
    refused = {host: [line for line in text if "goto refused" in line] for host, text in lines.items()}
    fixed = "21001, 21002, 21003, 21004, 21005, 21006, 21007, 21008, 21009"
    assert refused["spark1"] == [
        f"tcp dport {{ 6379, {fixed} }} goto refused",
        "ip daddr { 127.0.0.1 } tcp dport { 8000, 8266 } goto refused",
        "ip6 daddr { ::1 } tcp dport { 8000, 8266 } goto refused",
    ]
    assert refused["spark2"] == [f"tcp dport {{ {fixed} }} goto refused"]
    assert "ip saddr { 192.0.2.2 } accept" in made["rules"]["spark1"] and "10.9.0.1" in made["rules"]["spark2"]
    facts["spark2"]["management_address"] = "192.0.2.2 }"
    assert plan("port_filter", {"facts": facts, "plans": plans})["failed"]
    assert "no fabric fact" in plan("port_filter", {"facts": {**facts, "spark2": {}}, "plans": plans})["msg"]
