# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One node lies, in every field of every answer of every module: nothing of it reaches the files, rules and plans of
another node, or a terminal. It is refused with the name of the node and of the field, or it makes no difference.

The fields are those of true answers, so a new one is tried as well.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
import report_samples
from ansible.parsing.dataloader import DataLoader
from ansible.playbook.task import Task
from ansible.template import Templar
from ansible_collections.sparkmatrix.cluster.plugins.action import engine_plan, node_membership, preflight
from ansible_collections.sparkmatrix.cluster.plugins.action.plan import PLANNERS
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._access.node import Look
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.neighbors import Heard
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl import log as nccl_log
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl import results as nccl_results
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._nccl import run as nccl_run
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._os import update as os_update
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.capture import Captured
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observation import (
    Boot,
    Difference,
    Lines,
    Observation,
    Rank,
    Service,
    Weights,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import answers, border, planner
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._preflight import variables
from engine_plans import REQUIREMENTS, cluster_plans, node_plans
from exploring import EXPLORE
from fabric_inputs import half, spark_cages
from preflight_inputs import inventory, nodes
from ssh_keys import ssh_key
from status_documents import ELSEWHERE, SERVICE, said
from sysfs_tree import gid_of

STOPPED = "nobody does anything, which a node may cause: it says that it is busy, or does not work"
LIAR = "spark2"
HOSTS = ("spark1", "spark2")
HOSTILE: tuple[Any, ...] = (
    "x\n    ProxyCommand id\n#",
    "10.0.0.66\n10.0.0.67",
    "fe80::1%x",
    'x"; id; "',
    "#",
    "%",
    "a\rb",
    "a\0b",
    "\x1b[2J\x1b]0;x\x07",
    "\u202e\u2028",
    "x" * 1_000_000,
    -(2**80),
    float("nan"),
    ["x"],
    {"x": "y\n"},
)
Result = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """``judge`` gets the answers of all nodes and returns the result of the task; ``others`` what of it is the others'.

    ``trusted``: first names of the fields that are of the inventory.
    """

    answer: Callable[[int], dict[str, Any]]
    judge: Callable[[dict[str, Any]], Result]
    others: Callable[[Result], Any]
    trusted: tuple[str, ...] = ()
    dear: bool = False  # each judgement takes long
    wide: bool = False  # hundreds of fields


def plan(name: str, gathered: Mapping[str, Mapping[str, Any]], **options: Any) -> Result:
    """As the action ``plan`` does it, which costs more than the planners."""
    variables: dict[str, dict[str, Any]] = {host: {} for host in HOSTS}
    for option, values in gathered.items():
        options[option] = f"__{option}"
        for host, value in values.items():
            variables[host][f"__{option}"] = value
    hosts = {"ansible_play_hosts_all": HOSTS, "ansible_play_hosts": HOSTS, "hostvars": variables}
    return planner.run(name, PLANNERS[name], options, hosts)


def by_host(*names: str) -> Callable[[Result], Any]:
    return lambda result: {name: {host: result[name].get(host) for host in HOSTS if host != LIAR} for name in names}


def nothing(_result: Result) -> Any:
    """The result is text for people, and whether the run goes on."""
    return None


# --- true answers


def look(rank: int) -> dict[str, Any]:
    known = "".join(f"{host},{host}.local {ssh_key(host)}\n" for host in HOSTS)
    found = Look(
        public_key=ssh_key(f"own {rank}"),
        host_keys=[ssh_key(HOSTS[rank])],
        connection=["10.0.0.99", "50000", f"10.0.0.{rank + 1}", "22"],
        ssh_ports=[22],
        network=network(rank),
        account=True,
    ).as_dict()
    return {**found, "known_hosts": known}


def network(rank: int) -> dict[str, Any]:
    return {
        "interfaces": [
            {
                "name": "enP7s7",
                "mac": "48:21:0b:95:01:01",
                "mtu": 1500,
                "state": "UP",
                "kind": None,
                "master": None,
                "link": None,
                "addresses": [{"address": f"10.0.0.{rank + 1}", "prefix": 24, "family": "inet", "scope": "global"}],
            }
        ],
        "rdma_interfaces": ["enp1s0f0np0", "enP2p1s0f0np0"],
        "kept": {"address": f"10.0.0.{rank + 1}", "interface": "enP7s7"},
        "routes": [
            {
                "dst": "default",
                "gateway": "10.0.0.254",
                "dev": "enP7s7",
                "table": "main",
                "metric": 100,
                "type": "unicast",
            }
        ],
        "default_gateway": {"address": "10.0.0.254", "interface": "enP7s7"},
        "connection_address": f"10.0.0.{rank + 1}",
        "connection_interface": "enP7s7",
        "connection_source": "ssh",
    }


def rdma() -> dict[str, Any]:
    devices = [half(0, domain, mac="48:21:0b:96:01:c0", firmware="28.45.4028").as_dict() for domain in ("0000", "0002")]
    change = {(0, domain): {"mac": "48:21:0b:96:01:c0"} for domain in ("0000", "0002")}
    cages = spark_cages(change=change)
    return {"devices": devices, "cages": cages, "source": "sysfs", "reason": None, "message": None}


def neighbors(rank: int) -> dict[str, Any]:
    netdev = half(0, "0000").netdev or ""
    heard = [
        Heard(netdev, 0, "probe", host, netdev, 0, f"48:21:0b:96:0{number}:c0", True).as_dict()
        for number, host in enumerate(HOSTS)
        if number != rank
    ]
    said = Heard(netdev, 0, "lldp", system="mikrotik (CRS)", port="qsfp56-1-1", ids=("192.168.88.2",)).as_dict()
    said["ids"] = list(said["ids"])  # as JSON has it
    interfaces = {netdev: {"carrier": True, "brought_up": False, "module_serial": "APF21330038TKU"}}
    return {"heard": [said, *heard], "interfaces": interfaces, "notes": ["a note"]}


def cabled(rank: int) -> dict[str, Any]:
    return {
        "rank": rank,
        "management_address": "",
        "login": "",
        "cages": "auto",
        "addresses": {},
        "environment": {},
        "network": network(rank),
        "rdma": rdma(),
        "neighbors": neighbors(rank),
    }


def fabric(seen: dict[str, Any]) -> Result:
    heard = {host: found["neighbors"] for host, found in seen.items()}
    nodes = {host: {k: v for k, v in found.items() if k != "neighbors"} for host, found in seen.items()}
    return plan("fabric", {"nodes": nodes, "heard": heard}, sparks=list(HOSTS))


PLANNED = fabric({host: cabled(rank) for rank, host in enumerate(HOSTS)})
assert not PLANNED.get("failed"), PLANNED
FACTS = PLANNED["facts"]


def gids(rank: int) -> list[dict[str, Any]]:
    return [
        {
            "device": rail["rdma_device"],
            "port": 1,
            "index": 3,
            "gid": gid_of(rail["address"]),
            "version": 2,
            "ipv4": rail["address"],
            "netdev": rail["netdev"],
        }
        for rail in FACTS[HOSTS[rank]]["rails"]
    ]


def holders(rank: int) -> list[dict[str, Any]]:
    return [{"netdev": "enp1s0f0np0", "address": f"192.168.100.{10 + rank}", "mac": f"02:00:00:00:00:0{rank}"}]


def probes(rank: int) -> list[dict[str, Any]]:
    more = {"ok": True, "rtt_ms": 0.04, "attempts": 1, "cause": None, "reason": None, "remedy": None}
    return [{**{k: v for k, v in path.items() if k != "mtu"}, **more} for path in PLANNED["paths"][HOSTS[rank]]]


VERIFIED = plan(
    "fabric_verify",
    {"measured": {host: {"probes": probes(rank), "gids": gids(rank)} for rank, host in enumerate(HOSTS)}},
    facts=FACTS,
)
assert VERIFIED["refusal"] is None, VERIFIED


def ready(rank: int) -> dict[str, Any]:
    return {
        "tool": "/usr/bin/ib_write_bw",
        "verbs": True,
        "busy": [],
        "software": ["rxe0"],
        "record": {"plan_hash": "a1"},
        "ports": rdma()["devices"],
        "gids": gids(rank),
    }


LOOKS = {host: {"ready": ready(rank)} for rank, host in enumerate(HOSTS)}
SCHEDULE = plan("bandwidth", {"looks": LOOKS, "facts": VERIFIED["facts"]}, everything=True)
assert not SCHEDULE.get("failed") and SCHEDULE["reason"] == "", SCHEDULE


def outcomes(rank: int) -> dict[str, Any]:
    """Of the nodes' first round, with one failure."""
    more = {"rdma_mtu": 4096, "cause": "", "reason": None, "remedy": None, "value": 98.0}
    tests = next(one[HOSTS[rank]] for one in SCHEDULE["rounds"] if HOSTS[rank] in one)
    told = [{**{k: t[k] for k in ("slot", "role", "test", "rail", "peer", "device")}, **more} for t in tests]
    device = tests[0]["device"]
    return {
        "outcomes": told,
        "idle": {device: 0.0},
        "counted": {device: {"bytes": 5, "out_of_sequence": 1}},
        "seconds": 4.5,
    }


def nccl_answer(rank: int) -> dict[str, Any]:
    one = nccl_results.Results("all_gather", (nccl_results.Row(2**32, 96298.8, 44.6, 22.3),), 2, average_gbs=21.4)
    log = nccl_log.parse("NET/IB : Using [0]rocep1s0f0:1/RoCE; OOB e:192.0.2.1<0>\nNCCL version 2.28.9+cuda13.0")
    found = nccl_run.Answer(0, (one,) if rank == 0 else (), log, {"rocep1s0f0": 10**9, "roceP2p1s0f0": 10**9})
    return {"answer": document.plain(found)}


def qos(_rank: int) -> dict[str, Any]:
    state = {
        "trust": "dscp",
        "dscp2prio": {"26": 3},
        "pfc": [0, 0, 0, 1, 0, 0, 0, 0],
        "prio_tc": [1, 0, 2, 3, 4, 5, 6, 7],
        "tsa": ["vendor"] * 8,
    }
    entry = {"applied": ["trust"], "link_bounced": True, "carrier": True, "state": state}
    problem = {"device": "enp1s0f0np0", "found": "a problem", "remedy": "a remedy"}
    return {"interfaces": {"enp1s0f0np0": entry}, "problems": [problem], "engines": ["a unit"], "differs": True}


def updates(_rank: int) -> dict[str, Any]:
    change = {"name": "linux-image-6.14.0-1014-nvidia", "old": "", "new": "6.14.0-1014.14"}
    look = os_update.Look(
        kernel="6.14.0-1013-nvidia",
        kernels=["6.14.0-1013-nvidia"],
        packages={"docker-ce": "5:28.5.1-1~ubuntu.24.04~noble"},
        held=["nvidia-driver-580"],
        changes=[change],
        boot_free_mib=900,
        kernel_mib=100,
        firmware=["ConnectX 28.45 -> 28.46"],
    )
    return {"look": look.as_dict()}


PLANS = {host: made.as_dict() for host, made in node_plans(len(HOSTS), launch="ray").items()}
PLANS = dict(zip(HOSTS, PLANS.values()))
for made in PLANS.values():
    made["models"] = [{**one, "revision": ""} for one in made["here"][0]["models"]]
    made["model_cache"] = made["here"][0]["model_cache"]
SERVING = {host: made.as_dict() for host, made in cluster_plans(len(HOSTS)).items()}
IMAGE = "nvcr.io/nvidia/vllm:26.10-py3"


def node(rank: int) -> dict[str, Any]:
    """Of ``node_info``, with what is read only on demand."""
    return {**nodes(len(HOSTS))[HOSTS[rank]], "rdma": rdma(), "engine_units": [], "managed": ["engine"]}


PLUGINS: dict[Any, Any] = {}


def act(module: Any, args: dict[str, Any], variables: dict[str, Any]) -> Result:
    if module not in PLUGINS:
        parts = (mock.MagicMock(), mock.MagicMock(), DataLoader(), Templar(None), mock.MagicMock())
        PLUGINS[module] = module.ActionModule(Task(), *parts)
    plugin = PLUGINS[module]
    plugin._task.args = args
    made: Result = plugin.run(task_vars=variables)
    return made


def judge_engine(seen: dict[str, Any]) -> Result:
    args = {"recipe": "qwen3-8b", "requirements": list(REQUIREMENTS)}
    return act(engine_plan, args, {"groups": {"sparks": list(HOSTS)}, "hostvars": seen})


def judge_membership(seen: dict[str, Any]) -> Result:
    variables = {host: {"spark_rank": rank, "spark_peer": seen[host]} for rank, host in enumerate(HOSTS)}
    args = {"phase": "compare", "change": "add"}
    return act(node_membership, args, {"groups": {"sparks": list(HOSTS)}, "hostvars": variables})


def judge_preflight(seen: dict[str, Any]) -> Result:
    read = {
        host: {
            **values,
            "spark_node_info": {"node": seen[host]["node"], "fact": seen[host]["fact"]},
        }
        for host, values in inventory(len(HOSTS)).items()
    }
    args = {"phase": "hosts", "layers": ["fabric", "engine"], "play_hosts": list(HOSTS)}
    return act(preflight, args, {"groups": {"sparks": list(HOSTS)}, "hostvars": read})


def planned(name: str, option: str, **options: Any) -> Callable[[dict[str, Any]], Result]:
    return lambda seen: plan(name, {option: seen}, **options)


COMMIT, DIGEST = "a" * 40, "d" * 64
MODEL = "Qwen/Qwen3-8B"


def held(state: str) -> dict[str, Any]:
    known = {"revision": COMMIT, "digest": DIGEST, "size": 2} if state == "whole" else {"size": 0}
    return {"name": MODEL, "ref": "", "state": state, "there": 2, "found": "", "revision": "", "digest": "", **known}


def inputs(rank: int) -> dict[str, Any]:
    """The head has the model, the other node does not."""
    where = "download" if rank else "cache"
    one = {"name": MODEL, "where": where, "signature": "" if rank else "0a", "problem": "", "remedy": "", "ref": ""}
    return {"models": [{**one, "held": held("none" if rank else "whole")}]}


def models(rank: int) -> dict[str, Any]:
    """Of artifacts_state."""
    image = {"id": "sha256:1", "names": ["vllm:1"], "digests": ["vllm@sha256:2"], "known": ["vllm:1"]}
    known = {"files": 2, "size": 2, "frees": 2, "refs": ["main"], "used_at": 1.7e9, "manifest": True, "broken": ["x"]}
    return {
        "room": {"free": 10**12, "total": 10**12},
        "models": [held("none" if rank else "whole")],
        "kept": [{"name": "org/old", "revision": "b" * 40, **known}],
        "referred": [{"name": MODEL, "ref": "", "why": "serves now"}],
        "images": [{**image, "size": 2, "used_at": 2, "why": ""}],
        "docker": "",
    }


def benched(rank: int) -> dict[str, Any]:
    """Of serving_bench and verdicts; only the head of a service is asked."""
    times = {"median": 45.0, "p90": 46.0, "p99": 47.0}
    one = {"requests": 2, "failed": 0, "output_rate": 20.0, "goodput": 0.0, "acceptance": None}
    point = {"concurrency": 1, "prompt_tokens": 512, "output_tokens": 128, "seed": 1, "text": False}
    measured = {
        "repetitions": [{**one, "ttft_ms": times, "tpot_ms": times}],
        "missing": "",
        "broken": "",
        "lines": ["a line"],
    }
    gpu = {"mhz": 2405, "celsius": 71, "slowed": []}
    result = {"item": {"service": "", "point": point}, "measured": measured, "others": 0, "gpu": gpu}
    run = {"cluster": HOSTS[0], "playbook": "benchmark", "at": "2026-11-22T08:00:00Z", "seconds": 9, "schema": 1}
    return {
        "plan": SERVING[HOSTS[rank]],
        "info": {"node": nodes(len(HOSTS))[HOSTS[rank]], "fact": VERIFIED["facts"][HOSTS[rank]]},
        "served": {"results": [result]},
        "kept": {"runs": [{**run, "release": "0.1.0"}], "refused": ["a file"]},
    }


BRING = {"name": MODEL, "ref": "", "hosts": list(HOSTS), "seed": HOSTS[0], "obtain": "", "revision": COMMIT}
BRING |= {"home": "/opt/sparkmatrix/models/huggingface", "environment": {}, "source": ""}
MANIFEST = {
    "name": MODEL,
    "revision": COMMIT,
    "files": [{"path": "config.json", "size": 2, "sha256": "1" * 64, "blob": "2" * 40, "segments": ["1" * 64]}],
    "source": "hub",
    "segment_bytes": 4096,
    "schema": 1,
}


def worked(_rank: int) -> dict[str, Any]:
    known = {"bytes": 2, "sources": {HOSTS[0]: 2}, "broken": ["x"], "problems": ["y"]}
    return {"result": {"revision": COMMIT, "digest": DIGEST, "changed": True, **known}}


def judge_manifest(seen: dict[str, Any]) -> Result:
    """The liar is the node that has the model."""
    looks = {host: models(rank) for rank, host in enumerate(reversed(HOSTS))}
    return plan(
        "artifacts_fan_out",
        {"looks": looks, "facts": VERIFIED["facts"]},
        bring={**BRING, "seed": LIAR},
        manifest=json.dumps(seen[LIAR]),
    )


SAID = {"model": "x", "measured": "1 token", "tokens_per_s": 1.5}
TRIED = {"kind": "chat", "outcome": "ok", "seconds": 0.5, "found": "an answer"}


def observation(_rank: int) -> dict[str, Any]:
    halves = ("rocep1s0f0", "roceP2p1s0f0")
    lines = Lines("link_down", "enp1s0f0np0", 9, 9, 9, 1.7e9, "mlx5_core 0000:01:00.0 enp1s0f0np0: Link down")
    rank = Rank("", "sparkmatrix-engine.service", "VLLM::Worker", 2**16, -1, halves, halves[:1], over_rdma=True)
    service = Service("", "sparkmatrix-engine.service", "m", image="i", image_planned="a", image_named="b", head=True)
    seen = Observation(
        HOSTS[0],
        True,
        (lines,),
        (Boot(1.7e9, False, 1, ("x",)),),
        services=(
            replace(service, options={"a": "b"}, ignored=(Difference("--a", "c", "b"),), moved={halves[0]: 0.0}),
        ),
        ranks=(replace(rank, environment=(Difference("NCCL_NET", "IB", ""),)),),
        weights=(Weights(MODEL, COMMIT, "broken", "x"),),
        halves=halves,
        filters=("gone",),
        problems=("none",),
        facts={"bios_version": "1"},
    )
    return seen.as_dict()


CASES = {
    "artifacts_wanted": Case(
        lambda rank: {"plan": PLANS[HOSTS[rank]], "seen": inputs(rank)},
        lambda seen: plan(
            "artifacts_wanted",
            {"plans": {h: s["plan"] for h, s in seen.items()}, "seen": {h: s["seen"] for h, s in seen.items()}},
        ),
        # That it has the model already is its own affair.
        lambda result: result["bring"] or STOPPED,
        trusted=("plan",),  # tried with images
    ),
    "artifacts_room": Case(
        models,
        # A lie about the fabric can only leave the model to the engines; facts are tried with artifacts_fan_out.
        lambda seen: plan("artifacts_room", {"looks": seen, "facts": VERIFIED["facts"]}, bring=BRING),
        lambda result: [result["revision"], result["lines"][0]],
    ),
    "artifacts_fan_out": Case(
        lambda rank: {"look": models(rank), "fact": VERIFIED["facts"][HOSTS[rank]]},
        lambda seen: plan(
            "artifacts_fan_out",
            {"looks": {h: s["look"] for h, s in seen.items()}, "facts": {h: s["fact"] for h, s in seen.items()}},
            bring=BRING,
            manifest=json.dumps(MANIFEST),
        ),
        lambda result: result["works"].get(HOSTS[0]) or STOPPED,
    ),
    "artifacts_manifest": Case(
        lambda _rank: MANIFEST,
        judge_manifest,
        # Others check what comes by it; and it decides itself what the model is.
        lambda result: [sorted(result["works"]), result["receivers"]],
    ),
    "artifacts_done": Case(
        worked,
        planned("artifacts_done", "worked", model=MODEL, seed=HOSTS[0], digest=DIGEST, receivers=[LIAR]),
        nothing,
    ),
    "artifacts_here": Case(
        lambda rank: {"obtained": worked(rank), "copied": worked(rank)},
        lambda seen: plan(
            "artifacts_here",
            {
                "obtained": {h: s["obtained"] for h, s in seen.items()},
                "copied": {h: s["copied"] for h, s in seen.items()},
            },
        ),
        lambda result: [host for host in result["hosts"] if host != LIAR],
    ),
    "artifacts_listing": Case(models, planned("artifacts_listing", "looks"), nothing),
    "artifacts_export": Case(
        models,
        planned("artifacts_export", "looks", host=HOSTS[0], models=["org/old"]),
        lambda result: result["models"],
    ),
    "artifacts_unused": Case(models, planned("artifacts_unused", "looks"), lambda result: result["removals"][HOSTS[0]]),
    "verdicts": Case(
        lambda rank: {
            "plans": PLANS[HOSTS[rank]],
            "answers": {
                "results": [{"item": {"instance": "", "model": "x"}, "ready": True, "answer": SAID, "access": 401}]
            },
            "smoke": {"results": [{"item": {"instance": ""}, "tried": [TRIED]}]},
            "before": {"moved": {"rocep1s0f0": 1}},
            "after": {"moved": {"rocep1s0f0": 5}},
            "ray": {"complete": True, "alive": ["10.0.0.1"]},
            "filters": {"changes": []},
            "gateway": {"results": [{"item": {"model": "x"}, "ready": True, "answer": SAID}]},
            "observed": {"observation": {}},
            "info": {"node": nodes(len(HOSTS))[HOSTS[rank]], "fact": VERIFIED["facts"][HOSTS[rank]]},
            "keeper": {"changed": True},
        },
        lambda seen: plan(
            "verdicts",
            {
                **{name: {h: s[name] for h, s in seen.items()} for name in next(iter(seen.values()))},
                **{name: {} for name in ("doctor", "fabric", "first_contact", "nccl", "serving")},
            },
            playbook="verify",
            head=HOSTS[0],
        ),
        lambda result: [[one for one in result["run"][name] if one["host"] != LIAR] for name in ("machines", "links")],
        wide=True,
    ),
    "report": Case(
        lambda rank: {"runs": [report_samples.hostile("spark").as_dict()], "refused": ["x.json: old"]} if rank else {},
        # What goes into files is escaped there (_report/test_page.py).
        lambda seen: {k: v for k, v in planned("report", "kept")(seen).items() if k not in ("html", "json", "xml")},
        nothing,
        dear=True,
    ),
    "first_contact": Case(
        lambda _rank: {
            "packed": Captured({"nvidia_smi": "GB10", "/sys/class/net/enp1s0f0np0/carrier": "1"}).packed(),
            "counts": {"tokens": 1},
        },
        planned("first_contact", "seen"),
        nothing,
    ),
    "doctor": Case(
        lambda rank: {"observation": observation(rank), "status": json.loads(said()["stdout"])},
        planned("doctor", "observed", head=HOSTS[0], findings=[], checks=40),
        # What a node says of itself makes no verdict about another one, other than that they differ.
        lambda result: [
            one
            for one in result["part"]["verdicts"]
            if one["scope"] != "cluster" and one["hosts"] == [HOSTS[0]] and one["outcome"] != "pass"
        ],
    ),
    "serving_verdicts": Case(
        benched,
        lambda seen: plan(
            "serving_verdicts",
            {
                option: {host: told[name] for host, told in seen.items()}
                for option, name in {"plans": "plan", "info": "info", "measured": "served", "earlier": "kept"}.items()
            },
        ),
        # What it says of itself is shown, and whose runs are compared is said with them.
        lambda result: result["part"]["serving"],
        trusted=("plan",),  # tried with images
        wide=True,
    ),
    "serving_sweep": Case(
        lambda rank: SERVING[HOSTS[rank]],
        planned("serving_sweep", "plans", settings={"seed": 1}),
        lambda result: [result["runs"][HOSTS[0]], result["lines"]],
        dear=True,
    ),
    "host_keys": Case(
        lambda rank: {
            "state": "changed" if rank else "known",
            "fingerprint": "SHA256:x",
            "kind": "RSA",
            "complaint": "Offending key in a:1",
            "changed": False,
            "forget": "ssh-keygen -R a",
        },
        planned("host_keys", "shown"),
        nothing,
    ),
    "first_login": Case(
        lambda rank: {"msg": "Permission denied", "module_stdout": "a\nb", "module_stderr": "", "unreachable": True},
        lambda seen: plan("first_login", {"answers": seen, "logins": {host: {} for host in HOSTS}}),
        nothing,
    ),
    "peers": Case(
        lambda rank: {
            "rank": rank,
            "address": "",
            "login": HOSTS[rank],
            "addresses": {},
            "look": look(rank),
            "fact": VERIFIED["facts"][HOSTS[rank]],
        },
        planned("peers", "nodes"),
        by_host("files", "hosts_lines", "rules", "ignore"),
        trusted=("rank", "address", "login", "addresses"),
    ),
    "fabric_discovery": Case(
        cabled,
        lambda seen: plan("fabric_discovery", {"nodes": seen}, topology="auto"),
        lambda result: result["cluster"],
        trusted=("rank", "management_address", "login", "cages", "addresses", "environment"),
    ),
    "fabric": Case(
        cabled,
        fabric,
        lambda result: [by_host("facts", "texts", "paths", "firewall")(result), result["hosts_lines"]],
        trusted=("rank", "management_address", "login", "cages", "addresses", "environment"),
    ),
    "fabric_verify": Case(
        lambda rank: {"probes": probes(rank), "holders": holders(rank), "gids": gids(rank)},
        planned("fabric_verify", "measured", facts=FACTS),
        # Where one half does not work, nobody's fact counts.
        lambda result: STOPPED if result["refusal"] else by_host("facts", "texts")(result),
    ),
    "fabric_publish": Case(
        lambda rank: {"fact": VERIFIED["facts"][HOSTS[rank]], "fact_applied": True, "changes": [], "transaction": "a1"},
        lambda seen: plan("fabric_publish", {"compared": seen, "applied": seen}, plan=PLANNED, verified=None),
        by_host("facts", "texts"),
    ),
    "bandwidth": Case(
        lambda rank: {"look": {"ready": ready(rank)}, "fact": VERIFIED["facts"][HOSTS[rank]]},
        lambda seen: plan(
            "bandwidth",
            {"looks": {h: s["look"] for h, s in seen.items()}, "facts": {h: s["fact"] for h, s in seen.items()}},
        ),
        lambda result: STOPPED if result["reason"] else [one.get(HOSTS[0]) for one in result["rounds"]],
    ),
    "bandwidth_verdict": Case(
        lambda rank: {"results": [outcomes(rank)]},
        lambda seen: plan(
            "bandwidth_verdict",
            {
                "measured": seen,
                "facts": VERIFIED["facts"],
                "looks": LOOKS,
                "pings": {host: {"probes": probes(rank)} for rank, host in enumerate(HOSTS)},
            },
            schedule=SCHEDULE,
        ),
        lambda result: STOPPED if result["refusal"] else by_host("records")(result),
    ),
    "nccl": Case(
        lambda rank: {
            "look": {"ready": {"engine": True, "program": True, "busy": [], "available": 2**37}},
            "fact": VERIFIED["facts"][HOSTS[rank]],
        },
        lambda seen: plan(
            "nccl",
            {"looks": {h: s["look"] for h, s in seen.items()}, "facts": {h: s["fact"] for h, s in seen.items()}},
            head="spark1",
        ),
        lambda result: STOPPED if result["reason"] else by_host("parts")(result),
    ),
    "nccl_verdicts": Case(
        nccl_answer,
        lambda seen: plan("nccl_verdicts", {"measured": seen, "facts": VERIFIED["facts"]}),
        nothing,
    ),
    "qos_before": Case(qos, planned("qos_before", "nodes", facts=FACTS, profile="roce"), nothing),
    "qos_after": Case(qos, planned("qos_after", "nodes", facts=FACTS, profile="roce"), nothing),
    "os_update": Case(updates, planned("os_update", "nodes"), by_host("nodes")),
    "port_filter": Case(
        lambda rank: {"plan": PLANS[HOSTS[rank]], "fact": VERIFIED["facts"][HOSTS[rank]]},
        lambda seen: plan(
            "port_filter",
            {"plans": {h: s["plan"] for h, s in seen.items()}, "facts": {h: s["fact"] for h, s in seen.items()}},
        ),
        by_host("rules"),
        dear=True,
    ),
    "images": Case(
        lambda rank: {
            "plan": PLANS[HOSTS[rank]],
            "image": {
                "ids": {IMAGE: "sha256:1f0c"},
                "contents": {IMAGE: "content:9e41"},
                "nccl": {IMAGE: "2.30.7"},
                "platforms": {IMAGE: "linux/arm64"},
                "platform": "linux/arm64",
                "archive": False,
            },
            "fact": VERIFIED["facts"][HOSTS[rank]],
        },
        lambda seen: plan(
            "images",
            {
                "plans": {h: s["plan"] for h, s in seen.items()},
                "images": {h: s["image"] for h, s in seen.items()},
                "facts": {h: s["fact"] for h, s in seen.items()},
            },
        ),
        nothing,
        trusted=("fact",),  # tried with port_filter
        dear=True,
    ),
    "engine_inputs": Case(
        lambda rank: {
            "plan": PLANS[HOSTS[rank]],
            "seen": {
                "models": [{"name": "Qwen/Qwen3-8B", "where": "cache", "signature": "0a", "problem": "", "remedy": ""}]
            },
        },
        lambda seen: plan(
            "engine_inputs",
            {"plans": {h: s["plan"] for h, s in seen.items()}, "seen": {h: s["seen"] for h, s in seen.items()}},
        ),
        nothing,
        trusted=("plan",),  # tried with images
    ),
    "engine_versions": Case(
        lambda rank: {
            "plan": PLANS[HOSTS[rank]],
            "told": {"engines": {IMAGE: {"version": "0.34.0", "options": ["--max-model-len"]}}},
        },
        lambda seen: plan(
            "engine_versions",
            {"plans": {h: s["plan"] for h, s in seen.items()}, "told": {h: s["told"] for h, s in seen.items()}},
        ),
        nothing,
        trusted=("plan",),  # tried with images
    ),
    "engine_plan": Case(
        lambda rank: {"spark_fabric": VERIFIED["facts"][HOSTS[rank]], "spark_node_info": {"node": node(rank)}},
        judge_engine,
        lambda result: {host: {**made, "identity": ""} for host, made in result["plans"].items() if host != LIAR},
        dear=True,
    ),
    "cluster_status": Case(
        lambda rank: json.loads(said(ELSEWHERE if rank else SERVICE)["stdout"]),
        lambda seen: plan(
            "cluster_status",
            {"answers": {host: {"rc": 0, "stdout": json.dumps(document)} for host, document in seen.items()}},
            head=HOSTS[0],
        ),
        lambda result: [line for line in result["lines"] if LIAR not in line],
    ),
    "observability": Case(
        lambda rank: {"plan": PLANS[HOSTS[rank]], "fact": VERIFIED["facts"][HOSTS[rank]]},
        lambda seen: plan(
            "observability",
            {"plans": {h: s["plan"] for h, s in seen.items()}, "facts": {h: s["fact"] for h, s in seen.items()}},
            head=HOSTS[0],
            tool="0a",
        ),
        by_host("nodes"),
        trusted=("fact",),  # tried with peers; where a node is asked is its own word
        dear=True,
    ),
    "node_membership": Case(
        lambda rank: {key: value for key, value in look(rank).items() if key != "fact"},
        judge_membership,
        lambda result: [result["joins"], result["replaced"], result["departed"]],
    ),
    "preflight": Case(
        lambda rank: {"node": node(rank), "fact": VERIFIED["facts"][HOSTS[rank]]},
        judge_preflight,
        nothing,
        trusted=("fact",),  # tried with peers
        dear=True,
    ),
}


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Places of all values, lists and mappings too; of a list the first entry, since the others are like it."""
    if place:
        yield place
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, (*place, key))
    elif isinstance(value, list):
        for item in value[:1]:
            yield from leaves(item, (*place, 0))


def changed(value: Any, place: tuple[Any, ...], hostile: Any) -> Any:
    """A copy of the way to one place, with another value there."""
    if not place:
        return hostile
    made = copy.copy(value)
    made[place[0]] = changed(value[place[0]], place[1:], hostile)
    return made


def texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from texts(key)
            yield from texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from texts(item)


def harmless(text: str) -> bool:
    return text.replace("\n", "").replace("\t", "").isprintable() and "ProxyCommand id\n" not in text


@pytest.fixture(autouse=True)
def _documented_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read once: they are the same for every lie."""
    monkeypatch.setattr(variables, "load", functools.cache(variables.load))


@pytest.mark.parametrize("name", CASES)
def test_a_lie_changes_nothing_for_others(name: str) -> None:
    case = CASES[name]
    true = {host: case.answer(rank) for rank, host in enumerate(HOSTS)}
    honest = case.judge(true)
    expected = None if honest.get("failed") else case.others(honest)
    assert expected is not None or case.others is nothing, honest
    tried = 0
    for place in leaves(true[LIAR]):
        if place[0] in case.trusted:
            continue
        every = (5 if case.dear else 1) if EXPLORE else (len(HOSTILE) if case.dear or case.wide else 5)
        for lie in HOSTILE[tried % every :: every]:  # other ones in the next place
            result = case.judge({**true, LIAR: changed(true[LIAR], place, lie)})
            what = f"{name}: {place} = {lie!r:.60}: {str(result.get('msg'))[:600]}"
            assert all(map(harmless, texts(result))), what
            assert "unexpected" not in str(result.get("msg")), what
            if result.get("failed"):
                assert LIAR in result["msg"], what
            else:
                assert case.others(result) in (expected, STOPPED), what
            if border.REFUSED in str(result.get("msg")) and len(place) > 1:
                names = [part for part in place if isinstance(part, str)]
                assert any(part in result["msg"] for part in names[-2:]), what
        tried += 1
    assert tried


def test_every_planner_that_reads_nodes_is_tried() -> None:
    """What is gathered of the inventory only (``ours``) is the user's own word."""
    read = {
        name
        for name, planner in PLANNERS.items()
        for shape in planner.gathered.values()
        if not isinstance(shape, dict) or any(kind is not border.ours for kind in shape.values())
    }
    assert read <= set(CASES)


def test_true_answers_come_in_unchanged() -> None:
    """A field that the border does not know is dropped, and the check that needs it finds nothing."""
    findings: list[Any] = []
    lost = {"kind": "low_power", "device": "0000:01:00.0", "line": "mlx5_core", "count": 1, "missing": True}
    profile = {"interface": "wlP9s9", "uuid": "2b0c3f4e", "users": ["ann"], "secret": False}
    settled = {
        "files": {"ray": "ab12"},
        "units": {"sparkmatrix-ray.service": {"enabled": False, "config_hash": "", "serving": False}},
        "filters": {"fabric": True},
        "accounts": {"sparkmatrix": 995},
        "plan": {"identity": "ab12", "image_ids": {}},
        "peermem": True,
        "bandwidth": {"tool": None, "verbs": False, "busy": [], "software": [], "record": None},
        "names": ["192.0.2.2 spark2"],
    }
    for shape, value in (
        (answers.LOOK, {k: v for k, v in look(0).items() if k in answers.LOOK.fields}),
        (answers.RDMA, rdma()),
        (answers.NODE, {**node(0), "kernel_log": [lost], "session": profile, "settled": settled}),
        (answers.UPDATE, {"look": os_update.Look(kernel="6.14.0", notes=["apt-get update: no key"]).as_dict()}),
        (answers.NEIGHBORS, neighbors(0)),
        (answers.FACT, VERIFIED["facts"]["spark1"]),
    ):
        assert json.loads(json.dumps(border.read(shape, value, "spark1", findings))) == json.loads(json.dumps(value))
    assert not findings
