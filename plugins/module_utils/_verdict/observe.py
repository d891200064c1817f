# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Look at a node without disturbing it: journal, processes of the ranks, settings that are active, image, weights, GPU.

What preflight reads (``node_info``: links, PCIe, addresses, GIDs, clocks) is not read again. Nothing is written. Raises
nothing for a part that cannot be looked at: it is named in ``problems``.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import cache as caches
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._artifacts import look
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import meminfo, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Plain
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, image, kept_plan, probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Model,
    NodePlan,
    ServicePlan,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import status as fabric_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import traffic
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import node as cluster_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import gpu, journal, options
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.observation import (
    NOT_ASKED,
    NOT_KNOWN,
    UNLIMITED,
    Difference,
    Gpu,
    Observation,
    Rank,
    Service,
    Weights,
)

DAYS = 7.0  # of the journal
ASK_S = 20.0  # for an answer
SERVER_INFO = ("/server_info", "/get_server_info")  # of SGLang, and its older name
MOST_RANKS = 64
MOST_FILES = 10000  # of a directory with a model
_PARENT = re.compile(r"^PPid:\s*(\d+)", re.MULTILINE)
MOST_DEEP = 8  # processes above a rank
_MEMLOCK = re.compile(r"^Max locked memory\s+(\S+)", re.MULTILINE)
_VERBS = re.compile(r"uverbs\d+")
# What decides the fabric of a process, and is not in the fact: a value that somebody else has set.
_DECIDES = ("NCCL_IB_", "NCCL_NET", "NCCL_SOCKET_")


def told(target: probe.Target) -> Mapping[str, str]:
    """What the engine says of its settings; nothing where it does not."""
    try:
        models = probe.model_list(target)
    except SparkError:
        models = {}
    metrics = probe.metrics(target.host, target.port, target.key)
    info: Mapping[str, Any] = {}
    for path in SERVER_INFO if "vllm:" not in metrics else ():
        with contextlib.suppress(SparkError):
            info = probe.exchange(target, path, None, probe.LISTED_S, "list of settings")[0]
            break
    return options.parse(metrics, models, target.model, info)


@dataclass(frozen=True)
class Asked:
    """What is looked at, and how; tests replace the functions."""

    days: float = DAYS
    gpu: Callable[[Machine, NodePlan | None], Gpu] | None = None  # where it is wanted: _verdict.gpu
    ask: bool = True  # the engine, for a token
    answer: Callable[[probe.Target], probe.Answer] = lambda target: probe.ask(target, probe.Question(timeout_s=ASK_S))
    told: Callable[[probe.Target], Mapping[str, str]] = told


@dataclass(frozen=True)
class Request:
    """``gpu``: measure it where no engine runs; ``ask`` the services whose head the node is for a token; ``here``: the
    status of this node only, not of the others."""

    days: float = DAYS
    gpu: bool = False
    ask: bool = True
    here: bool = True


@dataclass(frozen=True)
class Answer:
    """``status``: what ``sparkmatrix status --json`` prints, or a ``problem``."""

    observation: Observation
    status: Plain
    changed: Flag = False


def observation(request: Request, _check: bool) -> Answer:
    """What cannot be looked at is named; the call does not fail for it."""
    measure = gpu.measure if request.gpu else None
    seen = observe(Machine(), Asked(days=request.days, gpu=measure, ask=request.ask))
    try:
        status = cluster_status.collect(cluster_status.Asked(), here=request.here)
    except SparkError as exc:
        status = {"schema": cluster_status.SCHEMA_VERSION, "problem": str(exc)}
    return Answer(seen, status)


def observe(machine: Machine, asked: Asked | None = None) -> Observation:
    return _Look(machine, asked or Asked()).all()


class _Look:
    def __init__(self, machine: Machine, asked: Asked) -> None:
        self.machine = machine
        self.asked = asked
        self.problems: list[str] = []
        self.fact: FabricFact | None = None

    @contextlib.contextmanager
    def part(self, what: str) -> Iterator[None]:
        """What fails here is named, and the rest is looked at."""
        try:
            yield
        except (SparkError, OSError, ValueError, LookupError) as exc:
            self.problems.append(printable(f"{what}: {exc}")[:300])

    def all(self) -> Observation:
        machine = self.machine
        with self.part("fabric fact"):
            document = fabric_fact.on_disk(machine)
            self.fact = fabric_fact.load(document, "this node") if document is not None else None
        plan = self.plan()
        since = machine.now() - self.asked.days * journal.DAY
        lines, read = journal.kernel(machine, since)
        services, ranks = self.services(plan)
        memory = meminfo.read(machine.root)
        uptime = (machine.text("/proc/uptime") or "0").split()
        weights = self.weights(plan)
        gpu = Gpu(reason=NOT_ASKED)
        if self.asked.gpu:
            with self.part("GPU"):
                gpu = self.asked.gpu(machine, plan)
        return Observation(
            host=self.fact.host if self.fact else "",
            journal_read=read,
            lines=tuple(lines),
            boots=tuple(journal.boots(machine, since)),
            uptime_s=float(uptime[0]) if uptime else 0,
            days=self.asked.days,
            services=tuple(services),
            ranks=tuple(ranks[:MOST_RANKS]),
            weights=tuple(weights),
            gpu=gpu,
            halves=tuple(rail.rdma_device for rail in self.fact.rails) if self.fact else (),
            filters=tuple(fabric_status.filters(machine)),
            problems=tuple(self.problems),
            used_bytes=memory.get("MemTotal", 0) - memory.get("MemAvailable", 0),
            total_bytes=memory.get("MemTotal", 0),
            facts=self.facts(),
        )

    def plan(self) -> NodePlan | None:
        """By which this node serves."""
        kept = kept_plan.read(self.machine.root)
        if kept.refused:
            self.problems.append(printable(f"engine plan: {kept.refused}")[:300])
        return kept.current

    def facts(self) -> dict[str, str]:
        """What decides numbers and is not read by ``node_info``."""
        place = "/sys/class/dmi/id"
        found = {name: self.machine.text(f"{place}/{name}") for name in ("bios_version", "bios_date")}
        return {name: value for name, value in found.items() if value}

    # -- services and their ranks

    def services(self, plan: NodePlan | None) -> tuple[list[Service], list[Rank]]:
        found: list[Service] = []
        ranks: list[Rank] = []
        planned = {one.instance: one for one in plan.here} if plan else {}
        for instance in engine_names.instances(self.machine.root):
            with self.part(f"service {instance}".strip()):
                one, of = self.service(instance, planned.get(instance), plan)
                found.append(one)
                ranks += of
        return found, ranks

    def service(self, instance: str, planned: ServicePlan | None, plan: NodePlan | None) -> tuple[Service, list[Rank]]:
        names = Names(instance)
        description = engine_json.read(self.machine.real(names.description))
        node = engine_rank.Node(engine_rank.of(description), runner=self.machine.runner, root=self.machine.root)
        units = node.report().units
        own = units.get(description.unit)
        made: dict[str, Any] = {
            "instance": instance,
            "unit": description.unit or names.unit,
            "model": description.model,
            "recipe": description.recipe,
            "engine": description.engine,
            "runs": all(unit.active == "active" for unit in units.values()),
            "other_settings": own is not None and bool(own.hash) and own.hash != own.wanted,
        }
        ranks: list[Rank] = []
        if planned is not None:
            made["version"] = planned.engine.version
            if planned.from_image and plan is not None:
                made |= self.image(planned, plan)
            ranks = self.ranks(planned, plan, units)
        if self.asked.ask and (planned.is_head if planned else description.role == "head"):
            made |= {"head": True, **self.answer(names.description, planned)}
        return Service(**made), ranks

    def image(self, planned: ServicePlan, plan: NodePlan) -> dict[str, str]:
        made = {"image": planned.image}
        with self.part(f"image {planned.image}"):
            made["image_named"] = image.find(planned.image, self.machine.runner).id
            # Where Docker does not answer nothing is compared: an image that nobody could look for is not gone.
            made["image_planned"] = plan.image_ids.get(planned.image, "")
            container = engine_names.RAY_PROJECT if planned.over_ray else planned.names.project
            done = self.machine.runner(["docker", "inspect", "--format", "{{.Image}}", "--", container])
            made["image_running"] = done.out.strip() if done.rc == 0 else ""
        return made

    def answer(self, description: str, planned: ServicePlan | None) -> dict[str, Any]:
        machine = self.machine
        rails = traffic.planned(machine)
        before = traffic.read(machine, rails)
        try:
            target = probe.target_of(probe.read_config(machine.real(description)))
            said = self.asked.answer(target)
        except SparkError as exc:
            return {"answer": str(exc)[:500]}
        after = traffic.read(machine, rails)
        moved = {
            device: float(last - first)
            for device, last in after.items()
            if last is not None and (first := before.get(device)) is not None and last >= first
        }
        active = self.asked.told(target)
        ignored = options.compare(planned.engine.command.options, active) if planned else []
        return {
            "answered": True,
            "seconds": said.seconds,
            "answer": said.measured,
            "tokens_per_s": said.tokens_per_s,
            "moved": moved,
            "options": {name: printable(value)[:200] for name, value in active.items()},
            "ignored": tuple(ignored),
        }

    def ranks(self, planned: ServicePlan, plan: NodePlan | None, units: Mapping[str, UnitReport]) -> list[Rank]:
        found = []
        for unit, report in units.items():
            in_ray = unit == engine_names.RAY_UNIT
            environment = plan.ray.env if in_ray and plan is not None else planned.engine.env
            limit = _limit(planned.container.memlock) if planned.contained else self.unit_memlock(unit)
            for ident, title in report.ranks.items():
                with self.part(f"process {title}"):
                    made = self.rank(ident.partition("-")[0], environment)
                    found.append(
                        replace(
                            made,
                            service=planned.instance,
                            unit=unit,
                            title=printable(title)[:100],
                            memlock_planned=limit,
                            over_rdma=self.over_rdma(planned),
                        )
                    )
        return found

    def over_rdma(self, planned: ServicePlan) -> bool:
        parallel = planned.parallel
        spans = planned.nodes > 1 and (parallel.tensor * parallel.pipeline > 1 or parallel.expert)
        return bool(spans and planned.memory.device == "gpu" and self.fact and self.fact.transport == "rdma")

    def rank(self, pid: str, environment: Mapping[str, str]) -> Rank:
        limits = _MEMLOCK.search(self.machine.text(f"/proc/{pid}/limits") or "")
        verbs = [name for name in self.machine.names(f"/proc/{pid}/root/dev/infiniband") if _VERBS.fullmatch(name)]
        return Rank(
            service="",
            unit="",
            title="",
            memlock=_limit(limits.group(1)) if limits else NOT_KNOWN,
            may_open=tuple(self.device(name) for name in verbs),
            opened=tuple(sorted({self.device(name) for name in self.open_verbs(pid)})),
            environment=tuple(self.environment(pid, environment)),
            environment_known=bool(self.environ(pid)),
        )

    def unit_memlock(self, unit: str) -> int:
        done = self.machine.output("systemctl", "show", "-P", "LimitMEMLOCK", "--", unit)
        return _limit((done or "").strip())

    def device(self, verbs: str) -> str:
        """The RDMA device behind a file of /dev/infiniband."""
        return self.machine.text(f"/sys/class/infiniband_verbs/{verbs}/ibdev") or verbs

    def open_verbs(self, pid: str) -> Iterator[str]:
        for name in self.machine.names(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(self.machine.real(f"/proc/{pid}/fd/{name}")).rpartition("/")[2]
                if _VERBS.fullmatch(target):
                    yield target

    def environment(self, pid: str, planned: Mapping[str, str]) -> Iterator[Difference]:
        """Only what the fabric decides: engines set much of the rest themselves, and some of that is secret."""
        content = self.environ(pid)
        if not content or self.fact is None:
            return
        pairs = (part.decode("utf-8", "replace").partition("=")[::2] for part in content.split(b"\0") if part)
        has = dict(pairs)
        for name in self.fact.environment:
            if name in planned and has.get(name) != planned[name]:
                yield Difference(name, planned[name][:200], printable(has.get(name, ""))[:200])
        for name in sorted(has):
            if name.startswith(_DECIDES) and name not in planned:
                yield Difference(printable(name)[:100], "", printable(has[name])[:200])

    def environ(self, pid: str) -> bytes:
        """Of the process, or of the next one above it whose environment can be read; empty where there is none.

        A process that gives itself a title (``VLLM::EngineCore``) writes it over its environment, which then
        begins with zero bytes (setproctitle). What it was started with is that of its parent.
        """
        for _deep in range(MOST_DEEP):
            content = self.machine.content(f"/proc/{pid}/environ") or b""
            if content and not content.startswith(b"\0"):
                return content
            parent = _PARENT.search(self.machine.text(f"/proc/{pid}/status") or "")
            if not parent or parent.group(1) in ("0", "1"):
                break
            pid = parent.group(1)
        return b""

    # -- models

    def weights(self, plan: NodePlan | None) -> list[Weights]:
        found = []
        models = {(one.name, one.revision): one for one in (plan.models if plan else ())}
        for one in models.values():
            with self.part(f"model {one.name}"):
                found.append(self.model(one, plan.model_cache if plan else ""))
        return found

    def model(self, one: Model, home: str) -> Weights:
        if one.name.startswith("/"):
            problem = _dangling(self.machine.real(one.name))
            return Weights(one.name, "", "broken" if problem else "whole", problem)
        if not look.is_cache_of(one.environment, home):
            return Weights(one.name, one.revision, "unseen", "it comes from a cache of its own")
        cache = caches.Cache(self.machine.real(home))
        held = look.held(cache, one.name, one.revision)
        if held.state == look.NONE:
            return Weights(one.name, one.revision, "missing", "it is not in the cache of this node")
        if held.state == look.FOREIGN:
            broken = [
                path
                for kept in caches.kept(cache)
                if (kept.name, kept.revision) == (one.name, held.revision)
                for path in kept.broken
            ]
            if broken:
                return Weights(one.name, held.revision, "broken", _first("leads nowhere", broken))
        return Weights(one.name, held.revision, held.state, held.found[:300])


def _first(what: str, paths: list[str]) -> str:
    more = f", and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0]} {what}{more}"


def _dangling(path: str) -> str:
    """What is wrong with a directory, or a file, that a model is read from."""
    if not os.path.exists(path):
        return "a link that leads nowhere" if os.path.islink(path) else "it is not there"
    if not stat.S_ISDIR(os.stat(path).st_mode):
        return ""
    broken = []
    for count, (above, _folders, names) in enumerate(os.walk(path)):
        if count > MOST_FILES:
            break
        broken += [os.path.join(above, name) for name in names if not os.path.exists(os.path.join(above, name))]
    return _first("leads nowhere", sorted(broken)) if broken else ""


def _limit(text: str) -> int:
    """Bytes, as proc(5), systemd and Compose write them."""
    if text in ("infinity", "unlimited", "-1", str(2**64 - 1)):
        return UNLIMITED
    number = strict.digits(text)
    return NOT_KNOWN if number is None else number
