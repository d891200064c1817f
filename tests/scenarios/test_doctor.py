#!/usr/bin/env python3
# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Doctor beside a cluster that serves: it finds nothing where nothing is wrong and disturbs nobody, and each fault that
is injected gets its cause, on the right machine, and no other.

Usage: test_doctor.py [--nodes 2|4] [--beside ID] [--keep]

Not injected, since all nodes share one kernel: limits of running ranks, and everything of real RDMA and GPUs. Lines of
the kernel, and a boot that broke off, are a journal that is placed beside the node's own.
Prints one JSON line with the seconds of each run, and the size of the report.
"""

from __future__ import annotations

import json
import pathlib
import shlex
import shutil
import sys
import time
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))

import cluster
import kernel_log
from cluster import LabError, say
from kernel_log import Line
from test_staying_up import HEAD, WORKER, Cluster

MAX_S = 60.0  # of a run with four nodes
HALF, OTHER = "enp1s0f0np0", "enP2p1s0f0np0"
FOREIGN = "192.168.77.5/24"
KEY = "/etc/sparkmatrix/engine-key.env"
PEERS = "/var/lib/sparkmatrix-peer/.ssh/authorized_keys"
FACT = "/etc/ansible/facts.d/sparkmatrix.fact"
# Everything that was written since, other than by the keeper, by services that log, and by Ansible for its own module.
WRITTEN = (
    "sudo find /etc /opt/sparkmatrix /usr/local /var/lib/sparkmatrix -xdev -newer /run/doctor-began -type f"
    " -not -path '/var/lib/sparkmatrix/keeper/*' -not -path '/var/lib/sparkmatrix/home/*'"
    " -not -path '/var/lib/sparkmatrix/verdicts/*' -not -path '/etc/*.cache' 2>/dev/null; true"
)


def journal(name: str, lines: list[Line]) -> str:
    return f"sudo sh -ec {shlex.quote(kernel_log.script(name, lines))}"


LINK_DOWN = [Line(f"mlx5_core 0000:01:00.0 {HALF}: Link down", 60.0 * number) for number in range(6)]
KILLED = [Line("Out of memory: Killed process 4711 (python3) total-vm:1kB, anon-rss:1kB")]
XID = [Line("NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', GPU has fallen off the bus.")]
LACKING = [Line("NVRM: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)", 9.0 * number) for number in range(200)]
BROKEN_OFF = [Line("Started something.", 7200.0 - number, "b" * 32, kernel_log.ROOT) for number in range(9)]
# What a user may write is no fault of the machine.
FORGED = "; ".join(f"sudo -u nobody logger -t kernel {shlex.quote(one.text)}" for one in (*LINK_DOWN, *KILLED, *XID))

# What is done, and the cause that it has to get: all at once, since each of them stands for itself.
BESIDE = (
    (WORKER, f"sudo ip link set {OTHER} mtu 1500", "wrong_mtu"),
    (WORKER, f"sudo ip addr add {FOREIGN} dev {HALF}", "foreign_address"),
    (WORKER, journal("flaps", LINK_DOWN), "link_flaps"),
    (WORKER, journal("lacking", LACKING), "no_memory_journal"),
    (HEAD, journal("killed", KILLED + XID), "out_of_memory"),
    (HEAD, "true", "gpu_error"),
    (HEAD, journal("boot", BROKEN_OFF), "power_off"),
    (HEAD, "sudo nft flush ruleset", "port_filter_off"),
)
# What the timer does, at once: the metric, and the lines of this time.
LOOK = (
    "systemctl is-active sparkmatrix-drift.timer; sudo systemctl start sparkmatrix-drift.service;"
    " cat /var/lib/sparkmatrix/metrics/drift.prom; sudo journalctl --sync;"
    " sudo journalctl -q --no-pager -o cat -t sparkmatrix-drift --cursor-file=/run/doctor-cursor"
)
# What is done under a cluster that serves, how it is taken back, and what the head says of it.
DRIFTED = (
    (f"link set {OTHER} mtu 1500", f"link set {OTHER} mtu 9000", "the MTU is 1500, and 9000 were verified"),
    (f"addr add {FOREIGN} dev {HALF}", f"addr del {FOREIGN} dev {HALF}", f"the interface has the address {FOREIGN} "),
)
# What is there of the timer: files, and the folder of its metric; units.
LEFT = (
    "sudo find /etc/systemd /run/systemd /var/lib/sparkmatrix"
    " -name '*drift*' -o -path /var/lib/sparkmatrix/metrics;"
    " systemctl list-units --all --no-legend '*drift*'; systemctl list-timers --all --no-legend '*drift*'"
)
OF_JOURNAL = ("link_flaps", "no_memory_journal", "out_of_memory", "gpu_error", "power_off")  # these stay
REPAIR = ((WORKER, f"sudo ip link set {OTHER} mtu 9000; sudo ip addr del {FOREIGN} dev {HALF}"),)
DAMAGED = (
    (HEAD, f"sudo cp -p {KEY} /root/key; sudo truncate -s 0 {KEY}", "not_serving"),
    (WORKER, f"sudo mv {PEERS} /root/peers", "peers_unreachable"),
    (WORKER, f"sudo cp -p {FACT} /root/fact; sudo truncate -s 40 {FACT}", "fabric_fact"),
)
PUT_BACK = (
    (HEAD, f"sudo cp -p /root/key {KEY}"),
    (WORKER, f"sudo mv /root/peers {PEERS}"),
    (WORKER, f"sudo cp -p /root/fact {FACT}"),
)


class Doctor:
    def __init__(self, here: Cluster) -> None:
        self.here = here
        self.out = cluster.STATE / "doctor"
        self.seconds: dict[str, float] = {}
        self.bytes = 0  # of the report

    def run(self, name: str) -> list[dict[str, Any]]:
        """The verdicts that are worse than passed; JUnit and the exit code have to agree with them."""
        shutil.rmtree(self.out, ignore_errors=True)
        done = self.here.play(f"doctor-{name}", "playbooks/doctor.yml", "-e", f"verify_verdicts_dir={self.out}")
        self.seconds[name] = round(done.seconds, 1)
        try:
            run = json.loads((self.out / "sparkmatrix-doctor.json").read_text())
            suite = ElementTree.parse(self.out / "sparkmatrix-doctor.xml").getroot()
        except (OSError, ValueError, ElementTree.ParseError) as exc:
            raise LabError(f"{name}: {exc}\n{cluster.log_tail(f'doctor-{name}')}") from exc
        failed = [verdict for verdict in run["verdicts"] if verdict["outcome"] == "fail"]
        if bool(done.code) != bool(failed) or suite.get("failures") != str(len(failed)):
            raise LabError(f"{name}: exit code {done.code}, {suite.get('failures')} failures, {len(failed)} verdicts")
        found = [verdict for verdict in run["verdicts"] if verdict["outcome"] != "pass"]
        say(f"   {name}: {done.seconds:.0f} s, {len(run['verdicts'])} verdicts")
        for one in found:
            say(f"     {one['outcome']} {one['cause'] or one['check']} {' '.join(one['hosts'])}: {one['found'][:150]}")
        return found

    def expect(self, name: str, causes: set[tuple[str, str]]) -> None:
        """``causes``: (cause, host), all of them and no other."""
        found = {(one["cause"], host) for one in self.run(name) if one["cause"] for host in one["hosts"]}
        if found != causes:
            raise LabError(f"{name}: missed {sorted(causes - found)}, false {sorted(found - causes)}")

    def act(self, steps: tuple[tuple[str, ...], ...]) -> set[tuple[str, str]]:
        for host, command, *_cause in steps:
            self.here.node(host, command)
        return {(step[2], step[0]) for step in steps if len(step) > 2}

    def invocations(self) -> list[str]:
        units = "sparkmatrix-engine sparkmatrix-keeper"
        return [self.here.node(host, f"systemctl show -P InvocationID {units}") for host in self.here.launch.hosts]


def healthy(doctor: Doctor) -> None:
    """Nothing is found, nothing is written, and nobody notices."""
    here = doctor.here
    here.serving()
    before = doctor.invocations()
    for host in here.launch.hosts:
        here.node(host, f"{FORGED}; sudo touch /run/doctor-began")
    doctor.expect("healthy", set())
    written = {host: here.node(host, WRITTEN).split() for host in here.launch.hosts}
    if any(written.values()):
        raise LabError(f"doctor wrote {written}")
    if doctor.invocations() != before or not here.status()["serving"]:
        raise LabError("something was started anew beside doctor")
    kept = here.node(HEAD, "cd /; sudo sh -c 'cd /var/lib/sparkmatrix/verdicts; ls; stat -c %a *'")
    if "-doctor.json" not in kept or {word for word in kept.split() if not word.endswith(".json")} != {"600"}:
        raise LabError(f"on the head is {kept}")


def drift(doctor: Doctor) -> None:
    """The timer on the head: nothing to tell; then a line per difference in the journal and a number, while it goes on
    serving; nothing again; and it can be taken away."""
    here = doctor.here
    here.serving()
    before = doctor.invocations()
    here.site("doctor-timer", "playbooks/drift.yml")
    again = here.site("doctor-timer-again", "playbooks/drift.yml")
    if again.changed:
        raise LabError(f"the timer was placed once more: {again.changed}")
    looked(doctor, ())
    for act, _back, _says in DRIFTED:
        here.node(WORKER, f"sudo ip {act}")
    looked(doctor, tuple(says for _act, _back, says in DRIFTED))
    for _act, back, _says in DRIFTED:
        here.node(WORKER, f"sudo ip {back}")
    looked(doctor, ())
    if doctor.invocations() != before or not here.status()["serving"]:
        raise LabError("something was started anew beside drift")
    here.site("doctor-timer-absent", "playbooks/drift.yml", "-e", "doctor_drift_state=absent")
    left = "".join(here.node(host, LEFT) for host in here.launch.hosts)
    if left.strip():
        raise LabError(f"the timer left {left}")


def looked(doctor: Doctor, says: tuple[str, ...]) -> None:
    """The timer has to tell of each difference on the worker, and of nothing else."""
    told = doctor.here.node(HEAD, LOOK)
    say("".join(f"   {line}\n" for line in told.splitlines() if "drift" in line and not line.endswith(" 0")).rstrip())
    number = f'sparkmatrix_drift{{host="{WORKER}",kind="wrong_mtu"}} 1\n'
    lines = [line for line in told.splitlines() if line.startswith("drift ")]
    of_worker = [line for line in lines if f" {WORKER}: {WORKER} " in line]
    if not (
        told.startswith("active\n")
        and len(lines) == len(of_worker) == len(says)
        and all(any(words in line for line in lines) for words in says)
        and ((number in told) if says else ("nothing has drifted" in told and "} 1" not in told))
    ):
        raise LabError(f"the timer, expected {says}: {told}")


def faults(doctor: Doctor) -> None:
    """Faults of the fabric, in the journal, and a port filter that somebody has flushed."""
    wanted = doctor.act(BESIDE)
    doctor.expect("faults", wanted)
    doctor.act(REPAIR)


def damaged(doctor: Doctor) -> None:
    """Files that somebody has emptied or moved away."""
    stays = {(cause, host) for host, _command, cause in BESIDE if cause in OF_JOURNAL}
    wanted = doctor.act(DAMAGED) | stays | {("port_filter_off", HEAD)}
    doctor.expect("damaged", wanted)
    doctor.act(PUT_BACK)


def page(doctor: Doctor) -> None:
    """What was found, as a page that is read from the head: every cause with its remedy, from where the user stands."""
    path = doctor.out / "report.html"
    done = doctor.here.play("doctor-report", "playbooks/report.yml", "-e", f"report_path={path}")
    text = path.read_text() if path.exists() else ""
    wanted = (f"inventories/{doctor.here.launch.nodes}spark", "A boot ended without a shutdown")
    if done.code or any(words not in text for words in wanted):
        raise LabError(f"the report: {done.code}, {len(text)} characters\n{cluster.log_tail('doctor-report')}")
    doctor.bytes = len(text.encode())


def off(doctor: Doctor) -> None:
    """A machine without power: it is named, and the others are looked at all the same."""
    doctor.here.lab("stop", WORKER)
    time.sleep(5)
    found = doctor.run("off")
    causes = {(one["cause"], host) for one in found if one["cause"] for host in one["hosts"]}
    if ("not_answering", WORKER) not in causes or ("not_serving", HEAD) not in causes:
        raise LabError(f"a machine without power: {sorted(causes)}")
    if not any(one["check"] == "journal" and HEAD in one["hosts"] for one in found):
        raise LabError("the head was not looked at")


STEPS = {"healthy": healthy, "drift": drift, "faults": faults, "damaged": damaged, "page": page, "off": off}


def main() -> int:
    parser = cluster.options(__doc__, STEPS)
    parser.add_argument("--nodes", type=int, choices=(2, 4), default=2)
    chosen = parser.parse_args()
    here = Cluster(chosen.beside, "native" if chosen.nodes == 2 else "native4")
    doctor = Doctor(here)
    problem = ""
    try:
        if not chosen.keep:
            cluster.build()
            here.boot()
            here.site("doctor-site")
        for name in chosen.only or STEPS:
            say(f"-- {name}: {STEPS[name].__doc__}")
            STEPS[name](doctor)
        slow = {name: took for name, took in doctor.seconds.items() if took > MAX_S and name != "off"}
        if slow:
            raise LabError(f"doctor took {slow}, expected {MAX_S:.0f} s at most")
    except LabError as exc:
        problem = str(exc)
        say(problem)
    finally:
        if not chosen.keep:
            here.down()
    found = {"nodes": chosen.nodes, "seconds": doctor.seconds, "report_bytes": doctor.bytes, "problem": problem}
    print(json.dumps(found))
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
