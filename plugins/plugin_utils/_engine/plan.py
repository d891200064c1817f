# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The engine plan of one service: from recipe, fabric facts and settings to what each of its nodes runs.

Computed once per play on the controller. Roles put it on disk and start it; nothing in it is decided again later.
:mod:`_engine.services` puts several services together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import Finding, errors, warnings
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import plan_document as documents
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.image import MIN_RAY_TEXT
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.model_files import VARIABLES
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import RAY_NCCL_CONF, RAY_PROJECT, Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import (
    Command,
    EnginePlan,
    Member,
    Model,
    Mount,
    NodePlan,
    Prefixes,
    RayPlan,
    ServicePlan,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FabricFact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import checks as engine_checks
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import job as engine_job
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import memory_fit, own_command
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import ray as engine_ray
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import report as engine_report
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.checks import Asked
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.job import Job
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds import base as kinds_base
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.kinds.base import Launch, Rank
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture, Weights
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.parallelism import WHERE
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.recipe import Recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.user_settings import UserSettings


@dataclass(frozen=True)
class Plans:
    """Either one plan per host, or none and at least one finding of severity ``error``."""

    plans: Mapping[str, NodePlan]
    summary: Sequence[str]
    findings: Sequence[Finding]

    @property
    def warnings(self) -> list[str]:
        return [str(finding) for finding in warnings(self.findings)]


def plan(
    recipe: Recipe,
    facts: Mapping[str, FabricFact],
    settings: UserSettings,
    memory: Mapping[str, int],
    shape: tuple[Architecture, Weights | None] | None = None,
) -> Plans:
    """``facts``: every host of the cluster. ``memory``: measured bytes per host, for those that were asked.

    ``shape``: read from the model's own files (:func:`_engine.model.read`), in place of what the recipe says.
    """
    asked = Asked(recipe, facts, settings)
    findings, wrong = engine_checks.run("asked", asked), engine_checks.run("numbers", asked)
    if errors(findings):
        return Plans({}, (), [*findings, *wrong])
    job = engine_job.make_job(recipe, facts, settings, asked.engine, shape)
    findings += [*wrong, *engine_checks.run("job", job)]
    if wrong:  # nothing can be computed from them
        return Plans({}, (), [*findings, *engine_checks.run("ports", job)])
    job, problems = engine_job.split(job, memory)
    findings += problems
    for stage in ("ray", "ports", "sizes"):
        findings += engine_checks.run(stage, job)
    if job.parallel is None or errors(findings):
        return Plans({}, engine_report.verdict(job), findings)
    launch = _launch(job, job.parallel)
    ranks = job.engine.ranks(launch)
    # What the plan itself writes has to be right for this version too.
    findings += kinds_base.check_words(job.engine, job.version, ranks[0].options, WHERE)
    findings += job.engine.check_ranks(launch, ranks, job.where)
    if errors(findings):
        return Plans({}, engine_report.verdict(job), findings)
    parts = _Parts(job, launch, ranks)
    findings += parts.overwritten()
    if errors(findings):
        return Plans({}, engine_report.verdict(job), findings)
    plans = {fact.host: parts.node(number) for number, fact in enumerate(job.ordered)}
    return Plans(plans, engine_report.summary(job, plans), findings)


def assumed_facts(hosts: Sequence[str]) -> dict[str, FabricFact]:
    """Facts for a plan without machines: one switch, RDMA, ranks in the order of the inventory."""
    count = len(hosts)
    return {
        host: FabricFact(
            host=host,
            state="planned",
            topology="single" if count == 1 else "direct" if count == 2 else "switch",
            transport="rdma",
            rank=rank,
            nodes=count,
            management_address=f"192.0.2.{rank + 1}",
            cluster_address=f"192.168.100.{rank + 10}",
            cluster_interface="enp1s0f0np0",
            environment={}
            if count == 1
            else {
                "NCCL_NET": "IB",
                "NCCL_NET_PLUGIN": "none",
                "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
                "GLOO_SOCKET_IFNAME": "enp1s0f0np0",
            },
        )
        for rank, host in enumerate(hosts)
    }


def _launch(job: Job, parallel: documents.Parallel) -> Launch:
    settings = job.settings
    return Launch(
        version=job.version,
        model=job.model,
        served=job.served,
        ordered=job.ordered,
        parallel=parallel,
        backend=job.backend,
        context=job.context,
        sequences=job.sequences,
        port=settings.port,
        options=job.options,
        revision="" if settings.model else job.recipe.revision,
        budget=job.budget,
        draft=job.draft,
        bin=f"{settings.venv_path}/bin/" if job.runtime == "venv" else "",
        rendezvous_port=settings.rendezvous_port,
        api_host=settings.api_host,
        task=job.recipe.task,
        names=job.names,
        media_domains=settings.media_domains,
        shared=settings.others > 0,
        own=job.recipe.own,
        prefixes=_prefixes(job, parallel),
        # Two services on a node may both have files.
        file_directory=Names(settings.instance).directory if settings.instance else paths.ETC,
    )


def _prefixes(job: Job, parallel: documents.Parallel) -> Prefixes:
    """The key is of all that may change what the engine writes, and of more rather than of less."""
    if job.settings.prefix_cache_gb <= 0 or not job.budget:
        return Prefixes()
    of = (job.engine.name, job.version, job.image, job.requirements, job.model, job.recipe.revision, job.draft)
    key = documents.fingerprint(*of, parallel, job.options, job.environment)
    return Prefixes(Names(job.settings.instance).prefixes, key, job.settings.prefix_cache_gb, job.budget.prefixes)


@dataclass(frozen=True)
class _Parts:
    """All that is known of a job, made into the plans of its nodes."""

    job: Job
    launch: Launch
    ranks: Sequence[Rank]  # by node

    def node(self, number: int) -> NodePlan:
        service, ray = self.service(number), self.ray(number)
        parts = (service.engine, service.mounts, service.container, service.image, service.recipe, service.venv)
        service = replace(service, config_hash=documents.fingerprint(*parts, ray.command, ray.env))
        return NodePlan(service.host, here=(service,), ray=ray)

    def service(self, number: int) -> ServicePlan:
        job, fact = self.job, self.job.ordered[number]
        return ServicePlan(
            instance=job.settings.instance,
            host=fact.host,
            rank=fact.rank,
            role=_role(number),
            head=job.ordered[0].host,
            nodes=len(job.ordered),
            backend=job.backend,
            runtime=job.runtime,
            recipe=job.recipe.name,
            profile=job.settings.profile,
            hazards=tuple(engine_job.known_problems(job)),
            not_pinned=tuple(job.recipe.not_pinned(job.image)),
            image=job.image,
            mounts=self._mounts(number),
            patches=tuple(documents.Patch(patch.source, patch.target) for patch in job.recipe.patches),
            container=job.settings.container,
            venv=documents.Environment(job.settings.venv_path, tuple(job.requirements)),
            home=paths.HOME,
            model_cache="" if job.model.startswith("/") else job.settings.hf_home,
            engine=self._engine(number),
            members=self._members(),
            parallel=self.launch.parallel,
            memory=engine_report.memory_report(job),
            expectation=engine_report.expectation(job, self.launch.parallel),
            models=self._models(number),
            prefixes=self.launch.prefixes,
        )

    def ray(self, number: int) -> RayPlan:
        job, fact, settings = self.job, self.job.ordered[number], self._ray
        if job.backend != "ray":
            return RayPlan()
        contained = job.runtime == "container"
        mounts = (*self._shared_mounts(self.ranks[number], RAY_NCCL_CONF), *_ray_mounts(settings)) if contained else ()
        return RayPlan(
            needed=True,
            role=_role(number),
            head=job.ordered[0].host,
            keeper=Names(job.settings.instance).keeper,
            address=self._ray_address,
            members={node.host: node.cluster_address for node in job.ordered},
            command=engine_ray.command(settings, fact.cluster_address, job.ordered[0].cluster_address),
            env=self._environment(number),
            token_path=settings.token_path,
            temp_dir=settings.temp_dir,
            # In a container Ray is asked there, by whoever is allowed to talk to Docker.
            python="python3" if contained else f"{job.settings.venv_path}/bin/python",
            container=RAY_PROJECT if contained else "",
            image=job.image,
            mounts=mounts,
            oldest={} if contained else {job.settings.venv_path: MIN_RAY_TEXT},
        )

    @property
    def _ray(self) -> engine_ray.RaySettings:
        settings = self.job.settings.ray
        return engine_ray.contained(settings) if self.job.runtime == "container" else settings

    @property
    def _ray_address(self) -> str:
        return f"{self.job.ordered[0].cluster_address}:{self._ray.port}"

    def _engine(self, number: int) -> EnginePlan:
        job, own = self.job, self.ranks[number]
        # Under Ray the workers' processes come from the head; its command is in every plan.
        rank = own if own.runs else self.ranks[0]
        return EnginePlan(
            name=job.engine.name,
            version=job.version,
            runs_here=own.runs,
            command=Command(tuple(rank.program), tuple(rank.options), tuple(rank.starter), rank.entrypoint),
            env={**self._environment(number), **({"RAY_ADDRESS": self._ray_address} if job.backend == "ray" else {})},
            starter_env=dict(own.starter_environment),
            files=dict(own.files),
            ports=dict(own.ports),
            host=job.settings.api_host,
            port=job.settings.port,
            model=job.model,
            served_model_name=job.engine.served_name(self.launch),
            task=job.recipe.task,
            health=job.recipe.health if job.engine.opaque else "",
            key=bool(job.engine.key_variable),
        )

    def _environment(self, number: int) -> dict[str, str]:
        """Of a rank, and of the Ray that holds it."""
        return {**_base_environment(self.job), **self._planned(number), **self._asked(number)}

    def _asked(self, number: int) -> dict[str, str]:
        """By recipe and user."""
        return {name: self._filled(number, value) for name, value in self.job.environment.items()}

    def _filled(self, number: int, text: str) -> str:
        return self.job.engine.filled(self.launch, number, text)

    def _planned(self, number: int) -> dict[str, str]:
        """What belongs to the node: :meth:`overwritten` refuses another value for it."""
        job, fact, ray = self.job, self.job.ordered[number], self._ray
        shared = ray.temp_dir if job.backend == "ray" and job.runtime == "container" else ""
        own = job.engine.own_environment(fact.cluster_address, shared)
        over_ray = job.engine.over_ray and job.backend != "native"
        return {
            **fact.environment,
            **own,
            **self.ranks[number].environment,
            **(engine_ray.environment(ray, fact.cluster_address) if over_ray else {}),
        }

    def overwritten(self) -> Iterator[Finding]:
        """Variables of recipe and user that would take something from the plan, each once."""
        job = self.job
        for name in sorted(job.environment):
            place = job.names["environment"] if name in job.settings.environment else job.where
            for number, fact in enumerate(job.ordered):
                planned, asked = self._planned(number).get(name), self._asked(number)[name]
                if planned is None or planned == asked or name in engine_checks.FREE:
                    continue
                of_fabric = name in fact.environment
                yield Finding(
                    place,
                    f"{name} is {asked!r}, and {'the fabric' if of_fabric else 'the plan'} of"
                    f" {fact.host} sets it to {planned!r}",
                    "Set it in fabric_environment, which is for all that runs there, and run the fabric layer"
                    if of_fabric
                    else "Leave it out",
                )
                break

    def _models(self, number: int) -> tuple[Model, ...]:
        """Also of a rank that Ray holds; a node without one reads none."""
        job = self.job
        if not self.ranks[number].runs and job.backend != "ray":
            return ()
        environment = {name: value for name, value in self._environment(number).items() if name in VARIABLES}
        named = {job.model: self.launch.revision}
        if job.used_draft and job.used_draft.model:
            told = job.drafting
            named[job.used_draft.model] = (told.revision if told else "") or job.used_draft.revision
        return tuple(Model(name, revision, environment, job.runtime == "container") for name, revision in named.items())

    def _members(self) -> tuple[Member, ...]:
        return tuple(
            Member(
                host=fact.host,
                rank=fact.rank,
                address=fact.cluster_address,
                runs_here=rank.runs,
                ranks=rank.runs or self.job.backend == "ray",
            )
            for fact, rank in zip(self.job.ordered, self.ranks)
        )

    def _mounts(self, number: int) -> tuple[Mount, ...]:
        """Of the engine's container; beside Ray's it also has what it needs to use that."""
        job = self.job
        if job.runtime != "container":
            return ()
        mounts = self._shared_mounts(self.ranks[number], Names(job.settings.instance).nccl_conf)
        home = own_command.plain(job.settings.hf_home)
        for one in job.recipe.mounts:
            source = self._filled(number, one.source)
            # Wherever the models are, what root notes of them is not.
            why = documents.MODEL if own_command.plain(source) == home else one.why
            mounts = (*mounts, Mount(source, self._filled(number, one.target), one.read_only, why))
        if job.backend != "ray":
            return mounts
        root = job.engine.config_root
        return (*mounts, *_ray_mounts(self._ray), Mount(root, root, True, "what ranks are not told"))

    def _shared_mounts(self, rank: Rank, own_conf: str) -> tuple[Mount, ...]:
        """Paths of the node in the container, at the same place there; a patch covers a file of the image."""
        job = self.job
        local = job.model.startswith("/")
        model = job.model if local else job.settings.hf_home
        hf_token = job.environment.get("HF_TOKEN_PATH")
        return (
            Mount(model, model, local, documents.MODEL),
            *(Mount(path, path, True, "its options") for path in sorted(rank.files)),
            *(_MPI_MOUNTS if job.backend == "mpi" else ()),
            *((Mount(hf_token, hf_token, True, "the token for downloads"),) if hf_token else ()),
            Mount(paths.KERNELS, paths.KERNELS, False, "what it has compiled"),
            *(
                (Mount(base, base, False, "what it has computed of prompts"),)
                if (base := self.launch.prefixes.base)
                else ()
            ),
            # Images bring one, with settings that apply wherever our environment has none.
            Mount(own_conf, "/etc/nccl.conf", True, "NCCL's settings"),
            *(Mount(patch.source, patch.target, True, patch.why) for patch in job.recipe.patches),
        )


# What brings the ranks of an MPI job together; as few images have ssh, it is the node's own tool.
_MPI_MOUNTS = (
    Mount(paths.NODE_PROGRAM, paths.NODE_PROGRAM, True, "starts the ranks"),
    Mount(paths.MPI_TOKEN, paths.MPI_TOKEN, True, "the secret that they share"),
)


def _ray_mounts(ray: engine_ray.RaySettings) -> tuple[Mount, ...]:
    return (
        Mount(ray.temp_dir, ray.temp_dir, False, "Ray's sockets and logs"),
        Mount(ray.token_path, ray.token_path, True, "Ray's token"),
    )


def _role(number: int) -> str:
    return documents.WORKER if number else documents.HEAD


def _base_environment(job: Job) -> dict[str, str]:
    """What recipe and user may override."""
    settings = job.settings
    made = {"HF_HUB_OFFLINE": "1"} if job.model.startswith("/") else {"HF_HOME": settings.hf_home}
    if job.runtime == "venv":
        made["HOME"] = paths.HOME
        # torch and vLLM compile with programs of the environment (ninja) and of the system (g++).
        made["PATH"] = f"{settings.venv_path}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    else:
        made |= {name: f"{paths.KERNELS}/{directory}" for name, directory in CACHES.items()}
    if job.recipe.device == "gpu":
        made["MAX_JOBS"] = str(_compilers(job))
    made |= job.engine.defaults(job.runtime, job.backend)
    return made


# Where torch, Triton, FlashInfer and the driver keep what they compile at a start: a container forgets it when it ends.
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
}
_COMPILER = 6 * memory_fit.GIB  # of one that compiles a kernel of CUTLASS; 3 to 8 in reports
_MAX_COMPILERS = 4


def _compilers(job: Job) -> int:
    """How many may run beside the weights. Without a number ninja starts two more than there are processors."""
    budget = job.budget
    beside = budget.total - budget.budget - budget.host if budget else 0
    return max(1, min(_MAX_COMPILERS, beside // _COMPILER))
