# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import pytest

CONFIG = "/etc/sparkmatrix/ssh/config"
KEY = "/etc/sparkmatrix/ssh/id_ed25519"
SIX_KEYS = """
set -eu
d=$(mktemp -d); trap 'rm -rf "$d"' EXIT
for n in 1 2 3 4 5 6; do ssh-keygen -q -t ed25519 -N '' -f "$d/k$n"; ssh-add -q "$d/k$n"; done
ssh -F {config} -o IdentitiesOnly=no {peer} version
"""


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
    done = host.run("ssh-agent sh -c %s", SIX_KEYS.format(config=CONFIG, peer=peer(host)))
    assert done.rc == 0, done.stderr


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


def test_sudo_is_still_in_order_and_nothing_waits_for_a_confirmation(host):
    host.check_output("visudo -c -q")
    assert not host.file("/var/lib/sparkmatrix/pending").exists
