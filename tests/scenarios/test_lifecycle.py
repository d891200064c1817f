#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Machines join, are replaced, leave and die in a lab of three nodes; ranks and addresses of the others stay.

Usage: test_lifecycle.py [--all] [--beside ID]. Runs the layers access, fabric and plan, with the firewall on.
``--all`` adds the removal of a machine that answers, ranks that were swapped, second runs, and the engine.
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
from cluster import ROOT, LabError, lab, say

ENGINE = ("--tags", "access,fabric,plan")
RULES = "sudo ufw status | grep -o 'sparkmatrix:[a-z]*' | sort | uniq -c | tr -s ' \\n' ' '"
LOOK = "sudo cat /etc/sparkmatrix/ssh/known_hosts /var/lib/sparkmatrix-peer/.ssh/authorized_keys /etc/hosts"

# A machine that joins and is broken: what it is, how it is made and repaired, what has to be said.
BROKEN = (
    ("no-sudo", "mv /etc/sudoers.d /root/", "mv /root/sudoers.d /etc/", "let the user run sudo without one"),
    (
        "read-only",
        "mount --bind /etc /etc && mount -o remount,bind,ro /etc",
        "umount --lazy /etc",
        "the file system is read-only",
    ),
    (
        "full",
        "mkdir -p /etc/sparkmatrix && mount -t tmpfs -o size=4k,mode=755 tmpfs /etc/sparkmatrix && "
        "head -c 4096 /dev/zero > /etc/sparkmatrix/full",
        "umount /etc/sparkmatrix && rmdir /etc/sparkmatrix",
        "the disk is full",
    ),
)


class Cluster:
    """The inventory as an operator edits it, and what is seen on the nodes."""

    def __init__(self, beside: str, options: Sequence[str]) -> None:
        self.lab = (["--id", beside, "--beside"], ["--id", beside])[:2] if beside else ([], [])
        self.state = cluster.STATE / beside if beside else cluster.STATE
        self.options = options
        self.thorough = not options
        self.place = self.state / "lifecycle"
        self.logins: dict[str, dict[str, str]] = {}
        self.seconds: dict[str, float] = {}
        self.executions = 0  # of the last run, on the node that saw most

    def boot(self, nodes: int = 3) -> None:
        command = lab("up", *self.lab[0], "--nodes", str(nodes), "--topology", "switch")
        cluster.step(f"Boot {nodes} simulated Sparks", command, "up.log")
        shutil.rmtree(self.place, ignore_errors=True)
        (self.place / "group_vars").mkdir(parents=True)
        overlay = self.state / "overlay"
        extra = "ansible_user: dgx\nfabric_topology: auto\naccess_firewall: true\nfabric_bandwidth_test: never\n"
        (self.place / "group_vars/sparks.yml").write_text((overlay / "group_vars/sparks.yml").read_text() + extra)
        host = ""
        for line in (overlay / "hosts.yml").read_text().splitlines():
            if found := re.fullmatch(r" {8}(\w+):", line):
                host = found[1]
                self.logins[host] = {}
            elif found := re.fullmatch(r" {10}(\w+): (.*)", line):
                self.logins[host][found[1]] = json.loads(found[2])

    def down(self) -> None:
        cluster.step("Remove the lab", lab("down", *self.lab[1]), "down.log")

    def inventory(self, ranks: dict[str, int], leaving: dict[str, int] | None = None) -> None:
        def group(hosts: dict[str, int], drop: Sequence[str] = ()) -> dict[str, object]:
            kept = {host: {k: v for k, v in self.logins[host].items() if k not in drop} for host in hosts}
            return {"hosts": {host: {**kept[host], "spark_rank": rank} for host, rank in hosts.items()}}

        # The user is a variable of the group sparks, which a machine that leaves is not in any more.
        groups = {"sparks": group(ranks, ["ansible_user"])}
        if leaving:
            groups["sparks_leaving"] = group(leaving, ["ansible_user"])
        (self.place / "hosts.yml").write_text(json.dumps({"all": {"children": groups}}, indent=1))

    def play(self, name: str, playbook: str, *options: str, fails: str = "", unchanged: bool = False) -> str:
        path = str(self.place.relative_to(ROOT))
        run = cluster.play(
            f"lifecycle-{name}", *self.options, *options, playbook=playbook, inventory=path, overlay=path, show=False
        )
        self.seconds[name] = round(run.seconds, 1)
        self.executions = run.executions_per_node()
        said = (cluster.STATE / f"lifecycle-{name}.log").read_text(errors="replace")
        if bool(run.code) != bool(fails) or not _contains(said, fails):
            raise LabError(
                f"{name}: ended with {run.code}, expected {fails or 'success'!r}\n"
                + cluster.log_tail(f"lifecycle-{name}", 60)
            )
        if unchanged and run.changed:
            raise LabError(f"{name}: changed {run.stats.get('changed_tasks')}")
        say(f"   {name}: as expected, {run.seconds:.0f} s")
        return said

    def node(self, host: str, command: str) -> str:
        words = ["ssh", "-F", str(self.state / "ssh_config"), host, command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise LabError(f"{host}: {command}: {done.stdout}{done.stderr}")
        return done.stdout

    def inside(self, host: str, command: str) -> str:
        words = lab("exec", *self.lab[1], host, "--", "sh", "-c", command)
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise LabError(f"{host}: {command}: {done.stdout}{done.stderr}")
        return done.stdout

    def power(self, verb: str, host: str) -> None:
        cluster.step(f"{verb} {host}", lab(verb, *self.lab[1], host), "power.log")

    def identity(self, host: str) -> list[object]:
        fact = json.loads(self.node(host, "cat /etc/ansible/facts.d/sparkmatrix.fact"))
        return [fact["rank"], fact["cluster_address"], [rail["address"] for rail in fact["rails"]]]

    def expect(self, what: str, seen: object, wanted: object) -> None:
        if seen != wanted:
            raise LabError(f"{what}: {seen!r}, expected {wanted!r}")

    def knows(self, host: str, others: Sequence[str], not_others: Sequence[str] = ()) -> None:
        text = self.node(host, LOOK)
        for other in (*others, *not_others):
            self.expect(f"{host} knows {other}", bool(re.search(rf"\b{other}\b", text)), other in others)


def _contains(said: str, part: str) -> bool:
    return " ".join(part.split()) in re.sub(r"\s+", " ", said.replace("\\n", " "))


def add(here: Cluster) -> None:
    before = {host: here.identity(host) for host in ("spark1", "spark2")}
    joined = {"spark1": 0, "spark2": 1, "spark3": 2}
    if here.thorough:
        here.inventory({**joined, "spark2": 2, "spark3": 1})
        here.play("renumbered", "site.yml", fails="it was set up with spark_rank 1, and the inventory says 2")
    here.inventory(joined)
    if here.thorough:
        for name, broken, repaired, says in BROKEN:
            here.inside("spark3", broken)
            here.play(f"add-{name}", "playbooks/node_add.yml", fails=says)
            here.inside("spark3", repaired)
    here.play("add", "playbooks/node_add.yml")
    here.expect("ranks and addresses", {host: here.identity(host) for host in before}, before)
    for host in ("spark1", "spark2"):
        here.knows(host, ["spark3"])
        here.node(host, "sudo ssh -F /etc/sparkmatrix/ssh/config spark3 version")
        here.node(host, "ping -c 3 -W 2 spark3-fabric")


def replace(here: Cluster) -> None:
    """A machine as it comes from the factory: nothing of ours, other host keys, other network cards."""
    before = {host: here.identity(host) for host in ("spark1", "spark2", "spark3")}
    rules = here.node("spark1", RULES)
    here.inside(
        "spark2",
        "systemctl stop 'sparkmatrix-*'; "
        "rm -rf /etc/sparkmatrix /var/lib/sparkmatrix* /etc/ansible/facts.d /usr/local/lib/sparkmatrix "
        "/etc/ssh/ssh_config.d/60-sparkmatrix.conf /etc/sudoers.d/sparkmatrix-peer /etc/netplan/*sparkmatrix*; "
        "userdel sparkmatrix-peer; ufw --force reset >/dev/null; sed -i '/sparkmatrix/,/sparkmatrix/d' /etc/hosts; "
        "rm -f /etc/sysctl.d/*sparkmatrix* /etc/systemd/system/*sparkmatrix*; "
        "for n in enp1s0f0np0 enP2p1s0f0np1 enP2p1s0f0np0 enp1s0f1np1; do ip addr flush dev $n 2>/dev/null; done; "
        "rm -f /etc/ssh/ssh_host_*; ssh-keygen -A >/dev/null",
    )
    # The other nodes' keeper may have started something again meanwhile, and their sessions still stand.
    here.power("stop", "spark2")
    here.power("start", "spark2")
    said = here.play("replaced", "playbooks/node_replace.yml", fails="your computer knows another one")
    shown = re.search(r"SHA256:[A-Za-z0-9+/]{43}", said)
    own = here.inside("spark2", "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
    here.expect("the fingerprint", shown and shown[0], own)
    wrong = "node_fingerprint=SHA256:" + "A" * 43
    here.play("wrong-fingerprint", "playbooks/node_replace.yml", "-e", wrong, fails="your computer knows another one")
    here.play("replace", "playbooks/node_replace.yml", "-e", f"node_fingerprint={own}")
    here.expect("ranks and addresses", {host: here.identity(host) for host in before}, before)
    here.expect("rules", here.node("spark1", RULES), rules)
    for host in ("spark1", "spark3"):
        here.node(host, "sudo ssh -F /etc/sparkmatrix/ssh/config spark2 version")


def remove_dead(here: Cluster) -> None:
    before = {host: here.identity(host) for host in ("spark1", "spark3")}
    here.inventory({"spark1": 0, "spark3": 2}, {"spark2": 1})
    here.power("stop", "spark2")
    here.play("remove-dead", "playbooks/node_remove.yml")
    here.expect("a dead machine is forgotten within five minutes", here.seconds["remove-dead"] < 300, True)
    here.expect("ranks and addresses", {host: here.identity(host) for host in before}, before)
    for host, other in (("spark1", "spark3"), ("spark3", "spark1")):
        here.knows(host, [other], ["spark2"])


def remove_reachable(here: Cluster) -> None:
    here.inventory({"spark3": 2}, {"spark1": 0})
    here.play("remove-head", "playbooks/node_remove.yml", fails="it is the head (spark_rank 0)")
    here.inventory({"spark1": 0}, {"spark3": 2})
    # The lab has no disk for it either, which preflight would say first.
    disk = json.dumps({"preflight_severity": {"model_disk": "warn"}})
    too_large = ("-e", "engine_recipe=llama-3.1-405b-awq", "-e", disk)
    said = here.play("remove-too-large", "playbooks/node_remove.yml", *too_large, fails="is for 2 or more nodes")
    here.expect("the way out is named", "-e node_without_engine=true" in said, True)
    here.knows("spark1", ["spark3"])
    without = ("-e", "node_without_engine=true")
    here.play("remove", "playbooks/node_remove.yml", *without)
    here.knows("spark1", [], ["spark2", "spark3"])
    left = here.node("spark3", "find /etc/sparkmatrix /etc/ansible/facts.d/sparkmatrix.fact 2>/dev/null; true")
    here.expect("files that stay on spark3", left, "")
    units = here.node("spark1", "systemctl list-units --no-legend 'sparkmatrix-engine*' 'sparkmatrix-ray*'")
    here.expect("what runs of the engine", units, "")
    here.inventory({"spark1": 0})
    here.play("remove-again", "playbooks/node_remove.yml", *without, unchanged=True)


def main(arguments: Sequence[str]) -> int:
    beside = arguments[arguments.index("--beside") + 1] if "--beside" in arguments else ""
    everything = "--all" in arguments
    here = Cluster(beside, () if everything else ENGINE)
    code = 0
    try:
        here.boot()
        here.inventory({"spark1": 0, "spark2": 1})
        if everything:
            key = (here.state / "ssh/id_ed25519.pub").read_text().strip()
            admin = {"access_admin": "operator", "access_admin_keys": [key], "access_admin_nopasswd": True}
            here.play("bootstrap", "playbooks/bootstrap.yml", "-e", json.dumps(admin))
            here.expect("the admin's login", here.node("operator@spark1", "sudo id -un; hostname"), "root\nspark1\n")
        here.play("start", "site.yml")
        steps = [add, replace, remove_dead, *([remove_reachable] if everything else [])]
        for step in steps:
            step(here)
        print(json.dumps({"lifecycle_s": here.seconds}))
    except LabError as exc:
        code = 1
        print(exc)
    finally:
        here.down()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
