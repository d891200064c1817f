# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""A snapshot of all that doctor and ``sparkmatrix drift`` judge: journal, processes of the ranks, settings that are
active, image, weights, and where it is asked for the GPU. Disturbs nothing and writes nothing; a part that cannot be
looked at is named in ``problems``.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import gpu, hardware, journal, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError, printable
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import engine_json, image, kept_plan, probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import rank as engine_rank
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import NodePlan, ServicePlan
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import status as fabric_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import traffic
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._preflight import running_engines
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot import models, options
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._snapshot.snapshot import (
    BUSY,
    NO_GPU,
    NOT_ASKED,
    NOT_KNOWN,
    UNLIMITED,
    Difference,
    Rank,
    Service,
    Snapshot,
    Weights,
)

DAYS = 7.0  # of the journal
ASK_S = 20.0  # for an answer
SERVER_INFO = ("/server_info", "/get_server_info")  # of SGLang, and its older name
MAX_RANKS = 64
_PARENT = re.compile(r"^PPid:\s*(\d+)", re.MULTILINE)
MAX_DEPTH = 8  # processes above a rank
_MEMLOCK = re.compile(r"^Max locked memory\s+(\S+)", re.MULTILINE)
_VERBS = re.compile(r"uverbs\d+")
# What decides the fabric of a process, and is not in the fact: a value that somebody else has set.
_DECIDES = ("NCCL_IB_", "NCCL_NET", "NCCL_SOCKET_")

# What has to be the same on all nodes, and the file where it stands; of a pattern all of them.
VERSIONS: Mapping[str, str] = {
    "kernel": "/proc/sys/kernel/osrelease",
    "driver": "/proc/driver/nvidia/version",
    "UEFI firmware": "/sys/class/dmi/id/bios_version",
    "ConnectX firmware": "/sys/class/infiniband/*/fw_ver",
}


def told(target: probe.Target) -> Mapping[str, str]:
    """What the engine says of its settings; nothing where it does not."""
    try:
        models = probe.model_list(target)
    except SparkError:
        models = {}
    metrics = probe.metrics(target)
    info: Mapping[str, Any] = {}
    for path in SERVER_INFO if "vllm:" not in metrics else ():
        with contextlib.suppress(SparkError):
            info = probe.exchange(target, path, None, probe.LISTED_S, "list of settings")[0]
            break
    return options.parse(metrics, models, target.model, info)


@dataclass(frozen=True)
class Request:
    """``gpu``: measure it where no engine runs; ``ask`` the services whose head the node is for a token."""

    days: float = DAYS
    gpu: bool = False
    ask: bool = True


def ask(target: probe.Target) -> probe.Answer:
    return probe.ask(target, probe.Question(timeout_s=ASK_S))


def read(
    machine: Machine,
    request: Request,
    ask: Callable[[probe.Target], probe.Answer] = ask,
    told: Callable[[probe.Target], Mapping[str, str]] = told,
) -> Snapshot:
    """What preflight reads (``node_info``: links, PCIe, addresses, GIDs, clocks) is not read again.

    Args:
        machine: The node.
        request: What is looked at.
        ask: A service for a token.
        told: The settings that an engine says it has.
    """
    return _Look(machine, request, ask, told).all()


class _Look:
    def __init__(self, machine: Machine, request: Request, ask: Any, told: Any) -> None:
        self.machine, self.request, self.ask, self.told = machine, request, ask, told
        self.problems: list[str] = []
        self.fact: FabricFact | None = None

    @contextlib.contextmanager
    def part(self, what: str) -> Iterator[None]:
        """What fails here is named, and the rest is looked at."""
        try:
            yield
        except (SparkError, OSError, ValueError, LookupError) as exc:
            self.problems.append(printable(f"{what}: {exc}")[:300])

    def all(self) -> Snapshot:
        machine, days = self.machine, self.request.days
        with self.part("fabric fact"):
            document = fabric_fact.on_disk(machine)
            self.fact = fabric_fact.load(document, "this node") if document is not None else None
        plan = self.plan()
        since = machine.now() - days * journal.DAY
        lines, journal_read = journal.faults(machine, since)
        services, ranks = self.services(plan)
        uptime = (machine.text("/proc/uptime") or "0").split()
        weights = self.weights(plan)
        rate = gpu.Rate(reason=NOT_ASKED)
        if self.request.gpu:
            with self.part("GPU"):
                rate = self.rate(plan)
        return Snapshot(
            host=self.fact.host if self.fact else "",
            memory=hardware.memory(machine),
            services=tuple(services),
            journal_read=journal_read,
            lines=tuple(lines),
            boots=tuple(journal.boots(machine, since)),
            uptime_s=float(uptime[0]) if uptime else 0,
            days=days,
            ranks=tuple(ranks[:MAX_RANKS]),
            weights=tuple(weights),
            gpu=rate,
            halves=tuple(rail.rdma_device for rail in self.fact.rails) if self.fact else (),
            filters=tuple(fabric_status.filters(machine)),
            problems=tuple(self.problems),
            versions=versions(machine),
        )

    def plan(self) -> NodePlan | None:
        """By which this node serves."""
        kept = kept_plan.read(self.machine.root)
        if kept.refused:
            self.problems.append(printable(f"engine plan: {kept.refused}")[:300])
        return kept.current

    def weights(self, plan: NodePlan | None) -> list[Weights]:
        found = []
        for model in {(model.name, model.revision): model for model in (plan.models if plan else ())}.values():
            with self.part(f"model {model.name}"):
                found.append(models.read(self.machine, model, plan.model_cache if plan else ""))
        return found

    def rate(self, plan: NodePlan | None) -> gpu.Rate:
        if not gpu.model(self.machine):
            return gpu.Rate(reason=NO_GPU)
        if running_engines.running(self.machine):
            return gpu.Rate(reason=BUSY)
        places = [service.venv.path for service in (plan.here if plan else ()) if not service.contained]
        return gpu.rate(self.machine, places)

    # -- services and their ranks

    def services(self, plan: NodePlan | None) -> tuple[list[Service], list[Rank]]:
        found: list[Service] = []
        ranks: list[Rank] = []
        planned = {service_plan.instance: service_plan for service_plan in plan.here} if plan else {}
        for instance in engine_names.instances(self.machine.root):
            with self.part(f"service {instance}".strip()):
                service, of = self.service(instance, planned.get(instance), plan)
                found.append(service)
                ranks += of
        return found, ranks

    def service(self, instance: str, planned: ServicePlan | None, plan: NodePlan | None) -> tuple[Service, list[Rank]]:
        names = Names(instance)
        description = engine_json.read(self.machine.real(names.description))
        units = engine_rank.Node(engine_rank.of(description), self.machine).report().units
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
        if self.request.ask and (planned.is_head if planned else description.role == "head"):
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
            said = self.ask(target)
        except SparkError as exc:
            return {"answer": str(exc)[:500]}
        after = traffic.read(machine, rails)
        moved = traffic.added(before, after)
        active = self.told(target)
        ignored = options.compare(planned.engine.command.options, active) if planned else []
        return {
            "answered": True,
            "seconds": said.seconds,
            "answer": said.measured,
            "tokens_per_s": said.tokens_per_s,
            "moved": {device: float(size) for device, size in moved.items() if size is not None},
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
        for _deep in range(MAX_DEPTH):
            content = self.machine.content(f"/proc/{pid}/environ") or b""
            if content and not content.startswith(b"\0"):
                return content
            parent = _PARENT.search(self.machine.text(f"/proc/{pid}/status") or "")
            if not parent or parent.group(1) in ("0", "1"):
                break
            pid = parent.group(1)
        return b""


def versions(machine: Machine) -> dict[str, str]:
    """What has to be the same on all nodes; an empty text where it has none."""
    found = {}
    for name, place in VERSIONS.items():
        above, star, below = place.partition("/*")
        files = [f"{above}/{entry}{below}" for entry in machine.names(above)] if star else [place]
        texts = sorted({(machine.text(file) or "").partition("\n")[0].strip() for file in files} - {""})
        found[name] = ", ".join(texts)
    return found


def _limit(text: str) -> int:
    """Bytes, as proc(5), systemd and Compose write them."""
    if text in ("infinity", "unlimited", "-1", str(2**64 - 1)):
        return UNLIMITED
    number = strict.digits(text)
    return NOT_KNOWN if number is None else number
