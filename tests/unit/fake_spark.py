# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A node that serves, as files below a temporary root and what its programs print: the head of two."""

from __future__ import annotations

import json
from dataclasses import replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import kept_plan, probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH, dump
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot import full
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import Snapshot
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.plan import assumed_facts
from engine_plans import node_plans
from fabric_rates import DEVICES as HALVES
from fabric_rates import fabric
from fake_machine import FakeFiles

UNIT = "sparkmatrix-engine.service"
ANSWER = probe.Answer("m", " a", 1, 0.2, 0.2, 5.0)
NO_LIMITS = "Max locked memory         unlimited            unlimited            bytes\n"


class Spark(FakeFiles):
    """The head of two, with a service whose rank is process 4242."""

    def __init__(self, root):
        self.root = root
        planned = assumed_facts(("spark1", "spark2"))["spark1"]
        self.fact = replace(planned, state="applied", rails=fabric(2)["spark1"].rails)
        self.write(FACT_PATH, dump(self.fact))
        self.plan = node_plans(2)["spark1"]
        self.service = self.plan.here[0]
        self.keep(self.plan)
        told = Description(
            host="127.0.0.1",
            port=8000,
            model=self.service.engine.served_model_name,
            key_file=str(root / "key"),
            units=(UNIT,),
            members=self.service.members,
            unit=UNIT,
            runtime=self.service.runtime,
            role="head",
        )
        self.write("key", 'VLLM_API_KEY="secret"')
        self.write("etc/sparkmatrix/engine.json", json.dumps(told.as_dict()))
        self.write("proc/uptime", "100000.0 1.0")
        self.write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable: 40 kB\n")
        self.process(4242)
        self.answers = {}
        self.said = ANSWER
        self.gpu = Completed(0, "GBS 231.5\n")

    def keep(self, plan):
        self.write(f"{kept_plan.DIRECTORY}/current.json", json.dumps(plan.as_dict()))

    def process(self, pid, limits=NO_LIMITS, opened=HALVES, **environment):
        proc = f"proc/{pid}"
        self.write(f"{proc}/cgroup", f"0::/sparkmatrix.slice/{UNIT}\n")
        self.write(f"{proc}/io", "rchar: 1\nwchar: 1\n")
        self.write(f"{proc}/cmdline", "VLLM::Worker_TP0\0")
        self.write(f"{proc}/stat", f"{pid} (VLLM::Worker) S 1 {' '.join(['0'] * 17)} 100 0 0\n")
        self.write(f"{proc}/limits", limits)
        values = {**self.service.engine.env, **environment}
        self.write(f"{proc}/environ", "\0".join(f"{name}={value}" for name, value in values.items()))
        (self.root / proc / "fd").mkdir(exist_ok=True)
        for number, device in enumerate(HALVES):
            self.write(f"{proc}/root/dev/infiniband/uverbs{number}", "")
            self.write(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", device)
            link = self.root / proc / "fd" / str(number)
            link.unlink(missing_ok=True)
            if device in opened:
                link.symlink_to(f"/dev/infiniband/uverbs{number}")

    def run(self, argv):
        words = list(argv)
        for start, answer in self.answers.items():
            if " ".join(words).startswith(start):
                return answer
        if words[:2] == ["systemctl", "show"] and "LimitMEMLOCK" in words:
            return Completed(0, "infinity\n")
        if words[:2] == ["systemctl", "show"]:
            return Completed(0, f"Id={UNIT}\nLoadState=loaded\nActiveState=active\nInvocationID=1\nMainPID=4242\n")
        if words[0] == "journalctl":
            return Completed(1 if "-t" in words else 0, "")
        return Completed(127, "", "not here")

    def ask(self, _target):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def look(self, machine, told=lambda _target: {}, **asked):
        return full.read(machine, full.Request(**asked), self.ask, told)

    def seen(self, **asked):
        found = self.look(Machine(str(self.root), self.run), **asked)
        assert document.load(Snapshot, json.loads(json.dumps(document.plain(found)))) == found
        return found
