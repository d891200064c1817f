# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Machines that could not be read: what Ansible, ssh (OpenSSH 7.6 to 10) and sudo say, and what helps."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, and_others
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.host_keys import forget
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.login import login
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight.base import Context

# The first whose words occur counts. ssh says last that the connection was closed, whatever the reason.
REMEDIES: tuple[tuple[str, str], ...] = (
    (
        "not in the sudoers|not allowed to (run|execute)|may not run sudo",
        "At the machine, let the login use sudo: sudo usermod -aG sudo {login}",
    ),
    (
        "booting up|shutting down|going down|unprivileged users",
        "It starts or stops right now. Wait until it has started, and run again",
    ),
    ("incorrect (sudo|become) password", "sudo did not take the password: type it again (-K)"),
    (
        "sudo|become|privilege",
        "Add -K to type the sudo password, or let the user run sudo without one (a file in /etc/sudoers.d)",
    ),
    (
        "identification has changed|host key for .* has changed|differs from the key|offending .*key",
        "If that machine was installed again or replaced, forget its old key: {forget}; then log in "
        "once and compare the fingerprint at its screen: {ssh}. If it was not, find out who answers at this address",
    ),
    (
        "too many authentication failures",
        "ssh offers more keys than sshd takes. Keep fewer in the agent (ssh-add -l, ssh-add -d <key>), or name the "
        "right one: ansible_ssh_private_key_file, and -o IdentitiesOnly=yes in ansible_ssh_common_args",
    ),
    (
        "no matching .*found|unable to negotiate|no hostkey alg",
        "This computer's ssh and the machine's have no algorithm in common: update the older one. Until then add what "
        "they offer, by the message, to ansible_ssh_common_args: -o HostKeyAlgorithms=+<offer> (or KexAlgorithms, "
        "Ciphers, MACs)",
    ),
    (
        "unprotected private key|bad (owner or )?permissions|permissions .* are too open",
        "Take the rights of others from the file that the message names: chmod 600 <file>",
    ),
    (
        "host key",
        "Log in once by hand to accept the machine's key, and compare the fingerprint at its screen: {ssh}; for all of "
        "them: playbooks/bootstrap.yml -e node_fingerprint=…",
    ),
    (
        "stdio forwarding failed|administratively prohibited|open failed|unknown port 65535",
        "The jump host does not get to the machine, or ssh not to the jump host. Try it by hand: {ssh}",
    ),
    (
        "tailscale ssh|tailnet",
        "Tailscale SSH answers for sshd here. Open the address in the message, or let the tailnet's policy accept this "
        "computer; or write the machine's address in the local network into ansible_host",
    ),
    (
        "bad configuration option|keyword .* extra arguments|bad port",
        "Correct that line of ssh's configuration on this computer, or that option in ansible_ssh_common_args",
    ),
    (
        "controlpath|too long for unix domain socket",
        "Give ssh's control sockets a short path: export ANSIBLE_SSH_CONTROL_PATH_DIR=~/.cp",
    ),
    ("password has expired|password change", "Log in once by hand and give it a new password: {ssh}"),
    ("sshpass", "Install sshpass on this computer to log in with a password (-k), or put your key there: {copy}"),
    (
        "temporary directory|no space left|did not have permissions on the remote",
        "Is its disk full (df -h), and may the login write its home directory? ansible_remote_tmp names another one",
    ),
    (
        "load key|no such identity|identity file .* not accessible|signing failed|agent refused|no mutual signature",
        "ssh cannot use the key that the message names: correct ansible_ssh_private_key_file, or unlock it: ssh-add "
        "<key>",
    ),
    (
        "permission denied|authentication failed|no supported authentication",
        "Check ansible_user, and put your key there: {copy}, or playbooks/bootstrap.yml --ask-pass; add -k to type a "
        "password",
    ),
    (
        "resolve|name or service not known|nodename nor servname",
        "Write the machine's address into hosts.yml of your inventory, as ansible_host; playbooks/discover.yml looks "
        "for machines",
    ),
    (
        "refused|banner exchange.*invalid format|protocol banner",
        "Something answers at this address, and no sshd at port {port}: is ansible_host its management address, and "
        "ansible_port right? At its screen: sudo systemctl enable --now ssh",
    ),
    (
        "no route to host",
        "Is the machine on, and is ansible_host its management address? On a Mac, does your terminal program have "
        "access to the local network (System Settings, Privacy & Security)? Try it by hand: {ssh}",
    ),
    (
        "timed out|timeout|assign requested|unreachable|host is down",
        "Is the machine on, and is ansible_host its management address? Try it by hand: {ssh}; where that takes long, "
        "set preflight_contact_timeout_s",
    ),
    (
        "connection (closed|reset)|kex_exchange|not allowed at this time",
        "Its sshd hung up before the login: too many connections at once (run with fewer --forks), an address that is "
        "banned there (sudo fail2ban-client unban <address>), or a rule of its own. There: sudo journalctl -u ssh",
    ),
    ("interpreter|python", "Install python3 (at least 3.9) on the machine"),
    (
        "closed by remote|shared connection .*closed|broken pipe",
        "The connection broke after the login: did the machine restart, or lose its network (Wi-Fi)? Run again; if it "
        "breaks again, look there: sudo journalctl -b -1 -n 50",
    ),
    ("", "Try it by hand: ansible -m sparkmatrix.cluster.node_info {hosts} -b -vvv"),
)


def check_reached(context: Context) -> Iterator[Finding]:
    logins = {host: login(host, context.hosts.get(host, {})) for host in context.failures}
    alike: dict[str, dict[str, str]] = {}  # what is said, by host the address in it
    for host, said in context.failures.items():
        text = " ".join(said.split()).removeprefix("Task failed: ")
        found = re.search(r"\bto host (\S+) port\b", text)
        address = found[1] if found else logins[host].address or host
        alike.setdefault(re.sub(rf"(?<![\w.-]){re.escape(address)}(?![\w-])", "\0", text), {})[host] = address
    for general, hosts in alike.items():  # told once, for all of them
        text = general.replace("\0", and_others(hosts.values()))
        ways = [logins[host] for host in hosts]
        first = ways[0]
        way = replace(first, to=and_others(one.to for one in ways))
        remedy = next(remedy for words, remedy in REMEDIES if re.search(words, text.lower())).format(
            forget=forget(text, and_others(shlex.quote(one.known) for one in ways)),
            copy=way.copy_key,
            port=first.port or 22,
            ssh=f"{way.ssh} {way.to}",
            login=first.to.rpartition("@")[0] or "<login>",
            hosts=",".join(hosts),
        )
        for host in hosts:
            yield Finding(host, f"the machine could not be read: {text or 'no reason given'}", remedy)


def reason(result: Mapping[str, Any]) -> str:
    """Ansible's message, with the last line that the machine printed where it printed one."""
    message = str(result.get("msg") or "")
    printed = f"{result.get('module_stdout') or ''}\n{result.get('module_stderr') or ''}".strip().splitlines()
    return strict.words(f"{message} ({printed[-1]})" if printed else message)
