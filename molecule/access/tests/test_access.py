# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import re

import pytest

CONFIG = "/etc/sparkmatrix/ssh/config"
KEY = "/etc/sparkmatrix/ssh/id_ed25519"
SIX_KEYS = """
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT
for n in 1 2 3 4 5 6; do ssh-keygen -q -t ed25519 -N '' -f "$d/k$n"; ssh-add -q "$d/k$n"; done
ssh -v -F {config} -o IdentitiesOnly=no {peer} version
"""
# Somebody from outside: an address that no node has, on a cable of its own. Six logins that fail, a wait for the ban,
# then more until one is refused: a ban is listed before its first rule stands, and one that falls into a login leaves
# it without an answer.
STRANGER = """
set -eu
trap 'ip link delete stranger0; ip netns delete stranger' EXIT
ip netns add stranger
ip link add stranger0 type veth peer name eth0 netns stranger
ip address add 192.0.2.1/30 dev stranger0
ip link set stranger0 up
ip -n stranger address add 192.0.2.2/30 dev eth0
ip -n stranger link set eth0 up
login() {{ ip netns exec stranger timeout 10 ssh {options} nosuch@192.0.2.1 true 2>&1 || true; }}
for n in 1 2 3 4 5 6; do login; done
timeout 60 sh -c 'until fail2ban-client get sshd banip | grep -q 192.0.2.2; do sleep 0.2; done'
for n in $(seq 25); do
  said=$(login)
  case $said in *refused*) break ;; esac
  sleep 0.4
done
echo "$said"
fail2ban-client get sshd banip
fail2ban-client unban 192.0.2.2
"""
OPTIONS = "-F none -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o ConnectTimeout=5"


def name(host):
    return host.backend.host.name


def peer(host):
    return "spark1" if name(host) != "spark1" else "spark2"


def test_every_node_has_a_key_of_its_own(host):
    file = host.file(KEY)
    assert (file.mode, file.user) == (0o600, "root")
    own = host.check_output(f"ssh-keygen -y -P '' -f {KEY}").split()[1]
    assert own not in host.file("/var/lib/sparkmatrix-peer/.ssh/authorized_keys").content_string


@pytest.mark.parametrize("way", ["name", "address"])
def test_nodes_run_the_peer_commands_on_each_other(host, way):
    target = peer(host)
    if way == "address":
        target = host.check_output(f"getent ahostsv4 {target}").split()[0]
    assert host.check_output(f"ssh -F {CONFIG} {target} version").startswith("sparkmatrix-node ")
    assert "fabric: " in host.check_output(f"ssh -F {CONFIG} {target} fabric-status")


@pytest.mark.parametrize("asked", ["id", "'version; id'", ""])
def test_nodes_run_nothing_else_on_each_other(host, asked):
    done = host.run(f"ssh -F {CONFIG} {peer(host)} {asked} </dev/null")
    assert done.rc == 126
    assert "uid=" not in done.stdout


def test_an_agent_with_six_other_keys_gets_in(host):
    if name(host) != "spark2":
        return  # sshd has the same settings everywhere
    done = host.run("ssh-agent sh -c %s", SIX_KEYS.format(config=CONFIG, peer=peer(host)))
    assert done.rc == 0, done.stderr
    assert done.stderr.count("Offering public key") == 7


def test_host_keys_are_known_to_everybody_on_the_node(host):
    said = host.check_output(f"sudo -u dgx ssh -o BatchMode=yes nobody@{peer(host)} true 2>&1 || true")
    assert "Permission denied" in said
    assert "Host key verification failed" not in said


def test_the_firewall_lets_ssh_in_and_nothing_else_from_everywhere(host):
    status = host.check_output("ufw status verbose")
    assert "Status: active" in status and "deny (incoming)" in status
    everywhere = [line for line in status.splitlines() if "ALLOW IN" in line and "ALLOW IN    Anywhere" in line]
    assert {line.split()[0] for line in everywhere} == {"22/tcp"}


def test_the_rules_of_the_second_operator_are_theirs(host):
    if name(host) == "spark2":
        added = host.check_output("ufw show added").splitlines()
        assert "ufw allow from 10.9.9.9 to any port 9100 proto tcp comment 'monitoring (ops)'" in added
        assert "ufw allow 22/tcp" in added


def test_sshd_goes_by_the_settings(host):
    settings = dict(line.partition(" ")[::2] for line in host.check_output("sshd -T").splitlines())
    found = [settings[name] for name in ("maxauthtries", "passwordauthentication", "permitrootlogin")]
    assert found == ["10", "no", "no"]


def test_the_jail_knows_every_node_and_the_controller(host):
    ignored = set(re.findall(r"^[|`]- (\S+)$", host.check_output("fail2ban-client get sshd ignoreip"), re.MULTILINE))
    nodes = set(re.findall(r"^([0-9.]+) .*spark", host.file("/etc/hosts").content_string, re.MULTILINE))
    controller = host.check_output("echo $SSH_CONNECTION").split()[:1]
    assert {*nodes, *controller} <= ignored
    assert host.service("fail2ban").is_enabled


def test_a_stranger_is_banned(host):
    if name(host) != "spark1":
        return  # the jail is the same everywhere
    done = host.run("sh -c %s", STRANGER.format(options=OPTIONS))
    assert done.rc == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if "ermission denied" in line or "refused" in line]
    assert "Permission denied" in said[0] and "Connection refused" in said[-1]
    assert "192.0.2.2" in done.stdout.split()


def test_a_node_is_not_banned_whatever_it_tries(host):
    if name(host) != "spark2":
        return
    for _attempt in range(7):
        said = host.check_output(f"ssh {OPTIONS} nosuch@{peer(host)} true 2>&1 || true")
        assert "Permission denied" in said
    assert host.check_output(f"ssh -F {CONFIG} {peer(host)} version").startswith("sparkmatrix-node ")


def test_tmux_is_there(host):
    assert host.check_output("tmux -V").startswith("tmux ")


def test_sudo_is_still_in_order_and_nothing_waits_for_a_confirmation(host):
    host.check_output("visudo -c -q")
    assert not host.file("/var/lib/sparkmatrix/pending").exists
