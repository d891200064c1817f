#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""From machines that are only announced on the network, with an account and its password, to keys and no passwords.

Two lab nodes. discover.yml finds them by mDNS and by their network, and is told of them with the host keys that their
owner has compared; bootstrap.yml turns password logins into keys, with an inventory that was written by hand and with
the one of discover.yml; ssh_config.yml writes what ssh reads. mDNS: avahi announces on both nodes, and the controller's
``avahi-browse`` is the one of spark1, asked over ssh. Passwords reach Ansible as --ask-pass would give them, in a file.

Usage: test_first_login.py [--beside ID]
"""

from __future__ import annotations

import json
import os
import pathlib
import secrets
import subprocess
import sys
from collections.abc import Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import LabError
from test_lifecycle import Cluster, _contains

HOSTS = ("spark1", "spark2")
ACCOUNT, OTHER = "setup", "first"
TOOL = "/usr/bin/nvidia-smi"
HOST_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
LOGIN_TEST = "bootstrap | Test the login with the key"
NEXT = "bootstrap | Set the host name"
PASSWORDS = ("--connection-password-file", "--become-password-file")
ANNOUNCE = """<service-group><name>%h</name><service><type>_ssh._tcp</type><port>22</port></service></service-group>"""
# An account as the first start of a Spark makes it: a password, sudo with it, no key.
MAKE = """
set -eu
useradd --create-home --shell /bin/bash --groups sudo {account}
echo '{account}:{password}' | chpasswd
sed -i 's/^PasswordAuthentication no/PasswordAuthentication yes/' /etc/ssh/sshd_config.d/lab.conf
systemctl reload ssh
"""
AVAHI = f"""
set -eu
echo '{ANNOUNCE}' > /etc/avahi/services/ssh.service
systemctl start avahi-daemon.service
"""


class FirstLogin(Cluster):
    def __init__(self, beside: str) -> None:
        super().__init__(beside, ())
        self.password = secrets.token_hex(8)

    def announce(self) -> None:
        for host in self.logins:
            self.inside(host, AVAHI)
        program = self.place / "bin/avahi-browse"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec ssh -F {self.state}/ssh_config spark1 avahi-browse "$@"\n')
        program.chmod(0o755)

    def prepare(self) -> None:
        self.announce()
        # A GB10 by what its driver's tool says; spark2 stays what it is.
        self.inside("spark1", f"printf '#!/bin/sh\\necho NVIDIA GB10\\n' > {TOOL} && chmod 755 {TOOL}")
        os.environ["PATH"] = f"{self.place}/bin:{os.environ['PATH']}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.place / "key"], check=True)
        (self.place / "password").touch(0o600)
        (self.place / "password").write_text(self.password)

    def ssh(
        self, host: str, *words: str, password: bool = False, account: str = ACCOUNT
    ) -> subprocess.CompletedProcess[str]:
        """As the operator's computer would: with the new key only, or with the password only."""
        login = self.logins[host]["ansible_host"]
        options = ["-F", "none", "-o", f"UserKnownHostsFile={self.state}/ssh/known_hosts", "-o", "ConnectTimeout=10"]
        options += ["-o", "NumberOfPasswordPrompts=1", "-o", f"IdentityFile={self.place}/key"]
        options += ["-o", f"PreferredAuthentications={'password' if password else 'publickey'}"]
        prefix = ["sshpass", "-f", str(self.place / "password")] if password else []
        return subprocess.run(
            [*prefix, "ssh", *options, f"{account}@{login}", *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def given(self, name: str = "password") -> list[str]:
        return [word for option in PASSWORDS for word in (option, str(self.place / name))]

    def fingerprint(self, host: str) -> str:
        return self.inside(host, f"ssh-keygen -lf {HOST_KEY}").split()[1]

    def password_logins(self, host: str) -> int:
        """How often sshd was shown a password, right or wrong."""
        self.inside(host, "journalctl --sync")
        return int(
            self.inside(host, "journalctl -q -t sshd -t sshd-session | grep -cE '(Accepted|Failed) password' || true")
        )

    def run_local(
        self,
        name: str,
        playbook: str,
        *options: str,
        fails: str = "",
        where: str = "",
        overlay: str = "",
        unchanged: bool = False,
        kill: int = 0,
    ) -> str:
        """A playbook that needs no inventory of the nodes, only reads it, or has one of its own."""
        path = where or str(self.place)
        run = cluster.play(
            f"first-{name}",
            *options,
            playbook=f"playbooks/{playbook}",
            inventory=path,
            overlay=overlay or path,
            kill_at_change=kill,
            show=False,
        )
        said = (cluster.STATE / f"first-{name}.log").read_text(errors="replace")
        if (
            bool(run.code) != bool(fails or kill)
            or run.killed != bool(kill)
            or not _contains(said, fails)
            or (unchanged and run.changed)
        ):
            raise LabError(f"{name}: ended with {run.code}\n{cluster.log_tail(f'first-{name}', 40)}")
        cluster.say(f"   {name}: as expected, {run.seconds:.0f} s")
        return " ".join(said.split())


def discover(here: FirstLogin) -> None:
    address = {host: str(here.logins[host]["ansible_host"]) for host in HOSTS}
    network = f"{address['spark1']}/28"
    mine = pathlib.Path.home() / ".ssh/known_hosts"
    before = mine.read_bytes() if mine.exists() else None
    key = f"-i {here.state}/ssh/id_ed25519 -F none"
    login = ("-u", "dgx", "-e", json.dumps({"discover_ssh_args": key}))
    for name, more in (("mdns", ()), ("cidr", ("-e", f"discover_cidr={network}"))):
        folder = here.place / f"found-{name}"
        words = (*login, *more, "-e", f"discover_inventory={folder}")
        here.run_local(f"discover-{name}", "discover.yml", *words)
        text = (folder / "hosts.yml").read_text()
        for part in (f"ansible_host: {address['spark1']}", f"# {address['spark2']} "):
            here.expect(f"{part} in {folder}", part in text, True)
        shared = (folder / "group_vars/sparks.yml").read_text()
        here.expect(
            "login and topology", ['ansible_user: "dgx"' in shared, "fabric_topology: single" in shared], [True] * 2
        )
        here.expect("the one that is no GB10", f"{address['spark2']} " in text and "not a GB10" in text, True)
        here.run_local(f"discover-{name}-again", "discover.yml", *words, fails="is there already")
        here.expect("itself on loopback", "127.0.0.1" in text, False)
        if name == "mdns":
            here.expect("the name that it announces", "# spark1 GB10 by its own word" in text, True)
        shown = here.fingerprint("spark1")
        here.expect("the fingerprint of its host key", f"# shows the host key {shown} (ED25519)" in text, True)
    here.expect("known hosts", mine.read_bytes() if mine.exists() else None, before)


def bootstrap(here: FirstLogin) -> None:
    def group(**extra: object) -> None:
        # With the hosts: the lab's group_vars name another user.
        shared = {"ansible_user": ACCOUNT, "ansible_ssh_common_args": known, **extra}
        hosts = {
            host: {"ansible_host": here.logins[host]["ansible_host"], "spark_rank": rank, **shared}
            for rank, host in enumerate(HOSTS)
        }
        (here.place / "hosts.yml").write_text(json.dumps({"all": {"children": {"sparks": {"hosts": hosts}}}}))

    # A computer that has never seen these machines: they might be anybody's.
    known = f"-F none -o UserKnownHostsFile={here.place}/known_hosts"
    passwords = here.given()
    key = (here.place / "key.pub").read_text().strip()
    off = {"access_sshd_hardening": True, "access_sshd_passwords": "off"}
    wanted = ("-e", json.dumps({"access_admin_keys": [key], "access_admin_nopasswd": True, **off}))
    for host in HOSTS:
        here.expect(f"only the password lets {ACCOUNT} in", here.ssh(host, "true").returncode, 255)
        here.expect("the password lets in", here.ssh(host, "true", password=True).returncode, 0)
    group()
    attempts = {host: here.password_logins(host) for host in HOSTS}
    said = here.play("bootstrap-stranger", "playbooks/bootstrap.yml", *passwords, *wanted, fails="knows none of it yet")
    here.expect("passwords sent to strangers", {host: here.password_logins(host) for host in HOSTS}, attempts)
    shown = [here.fingerprint(host) for host in HOSTS]
    here.expect("all fingerprints at once", [one in said for one in shown], [True, True])
    confirmed = ("-e", f"node_fingerprint={','.join(shown)}")
    no_sudo = (*passwords[:2], *wanted, *confirmed)
    here.play("bootstrap-no-sudo-password", "playbooks/bootstrap.yml", *no_sudo, fails="sudo password")
    # The key is not one that this computer has: the login test fails, and passwords stay.
    here.play("bootstrap-wrong-key", "playbooks/bootstrap.yml", *passwords, *wanted, fails="UNREACHABLE")
    said = (cluster.STATE / "lifecycle-bootstrap-wrong-key.log").read_text()
    here.expect("the login test ends the run", [name in said for name in (LOGIN_TEST, NEXT)], [True, False])
    for host in HOSTS:
        here.expect("the password lets in still", here.ssh(host, "true", password=True).returncode, 0)
    group(ansible_ssh_private_key_file=str(here.place / "key"))
    here.play("bootstrap-password", "playbooks/bootstrap.yml", *passwords, *wanted)
    for host in HOSTS:
        refused = here.ssh(host, "true", password=True)
        here.expect("passwords are off", (refused.returncode, "Permission denied" in refused.stderr), (255, True))
        seen = here.ssh(host, "sudo -n id -un; hostname; grep 127.0.1.1 /etc/hosts").stdout.split()
        here.expect("key, sudo and name", seen, ["root", host, "127.0.1.1", host])
    # From here on with the key, no password anywhere.
    here.play("bootstrap-key", "playbooks/bootstrap.yml", *wanted, unchanged=True)


def confirmed(here: FirstLogin) -> None:
    """Named machines, compared host keys, passwords, an inventory, keys. Nothing that this computer knows of ssh."""
    address = [str(here.logins[host]["ansible_host"]) for host in HOSTS]
    prints = [here.fingerprint(host) for host in HOSTS]
    known = here.place / "known_hosts_first"
    mine = f"-F none -o UserKnownHostsFile={known} -o IdentityFile={here.place}/key"
    folder = here.place / "sparkmatrix/mine"
    (here.place / "wrong").write_text("wrong")
    lab = here.place / "lab"  # what a lab needs of every inventory
    (lab / "group_vars").mkdir(parents=True)
    (lab / "group_vars/sparks.yml").write_text((here.state / "overlay/group_vars/sparks.yml").read_text())
    (lab / "hosts.yml").write_text("all:\n")

    def told(addresses: Sequence[str] = address, confirmed: Sequence[str] = prints, **more: object) -> tuple[str, ...]:
        words = {
            "discover_addresses": " ".join(addresses),
            "discover_fingerprints": ",".join(confirmed),
            "discover_inventory": str(folder),
            "discover_ssh_args": mine,
            **more,
        }
        return ("-u", OTHER, "-e", json.dumps(words))

    def refused(name: str, *words: str, fails: str) -> str:
        said = here.run_local(f"named-{name}", "discover.yml", *words, fails=fails, where=str(lab))
        here.expect(f"{name}: nothing was written", folder.exists(), False)
        return said

    before = {host: here.password_logins(host) for host in HOSTS}
    said = refused(
        "other-key", *told(confirmed=[prints[0][:-4] + "AAAA", prints[1]]), *here.given(), fails="you have confirmed"
    )
    here.expect("both fingerprints", [prints[0] in said, prints[0][:-4] + "AAAA" in said], [True, True])
    known.write_text(f"{address[0]} {here.inside('spark2', f'cat {HOST_KEY}')}")
    refused("changed-key", *told(), *here.given(), fails=f"-R {address[0]}")
    here.expect("no password to another key than the known one", here.password_logins("spark1"), before["spark1"])
    known.unlink()
    refused(
        "silent", *told([*address, "no-such-machine.invalid"]), *here.given(), fails="knows no address of that name"
    )
    refused("wrong-password", *told(), *here.given("wrong"), fails="refuses the login name")
    refused("no-password", *told(), fails="refuses the login name")
    said = refused("no-gb10", *told(), *here.given(), fails="this is no GB10 machine")
    here.expect("the way on", "preflight_require_gb10=false" in said, True)
    taken = (*told(preflight_require_gb10=False), *here.given())
    here.run_local("named", "discover.yml", *taken, where=str(lab))
    hosts, shared = (folder / "hosts.yml").read_text(), (folder / "group_vars/sparks.yml").read_text()
    here.expect("machines", [f"ansible_host: {one}\n" in hosts for one in address], [True, True])
    heard = "could not listen" not in shared and "fabric_topology: direct" in shared
    here.expect("the cables are heard with sudo", heard, True)
    here.expect("known hosts", known.exists(), False)
    here.run_local("named-again", "discover.yml", *taken, fails="is there already", where=str(lab))

    def bootstrap(name: str, *words: str, fails: str = "", unchanged: bool = False, kill: int = 0) -> str:
        more = {"ansible_ssh_common_args": mine, "access_admin_keys": [(here.place / "key.pub").read_text().strip()]}
        options = ("-e", json.dumps(more), *words)
        how = {"where": str(folder), "overlay": str(lab), "fails": fails}
        return here.run_local(f"keys-{name}", "bootstrap.yml", *options, unchanged=unchanged, kill=kill, **how)

    once = ("-e", f"node_fingerprint={','.join(prints)}")
    gone = f"{address[1].rpartition('.')[0]}.250"
    (folder / "hosts.yml").write_text(hosts.replace(address[1], gone))
    said = bootstrap("refused", *once, *here.given("wrong"), fails=f"refuses the login name {OTHER}")
    here.expect("the one that is gone", f"{gone} port 22: " in said, True)
    (folder / "hosts.yml").write_text(hosts)
    one, other = here.given(), here.given("wrong")
    bootstrap("wrong-sudo", *once, *one[:2], *other[2:], fails="Incorrect sudo password")
    bootstrap("killed", *once, *here.given(), kill=2)
    bootstrap("first", *once, *here.given())
    for host in HOSTS:
        here.expect("the key lets in", here.ssh(host, "true", account=OTHER).returncode, 0)
    bootstrap("again", *once, *here.given(), unchanged=True)


def ssh_config(here: FirstLogin) -> None:
    file = here.place / "ssh/sparkmatrix.conf"
    here.run_local("ssh-config", "ssh_config.yml", "-e", f"access_client_file={file}")

    def read(host: str) -> list[str]:
        return subprocess.run(["ssh", "-G", "-F", file, host], capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )

    for host in HOSTS:
        wanted = {f"hostname {here.logins[host]['ansible_host']}", f"user {ACCOUNT}"}
        here.expect(f"{host} as ssh reads it", wanted - set(read(host)), set())
    forwards = sorted(line for line in read("spark1-tunnel") if line.startswith("localforward "))
    # What the inventory asks for: an engine without Ray, no gateway, no Grafana.
    here.expect("forwards", forwards, ["localforward [127.0.0.1]:8000 [127.0.0.1]:8000"])
    here.expect("no forward without asking", [line for line in read("spark1") if line.startswith("localf")], [])


def main(arguments: Sequence[str]) -> int:
    beside = arguments[arguments.index("--beside") + 1] if "--beside" in arguments else ""
    here = FirstLogin(beside)
    try:
        here.boot(2)
        here.prepare()
        discover(here)
        for host in HOSTS:
            for account in (ACCOUNT, OTHER):
                here.inside(host, MAKE.format(account=account, password=here.password))
        confirmed(here)
        bootstrap(here)
        ssh_config(here)
    except (LabError, subprocess.SubprocessError) as exc:
        print(exc)
        return 1
    finally:
        here.down()
    cluster.say(str(here.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
