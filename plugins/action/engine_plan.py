# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.engine_plan``. Contacts no host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    Finding,
    SparkError,
    errors,
    refusal,
)
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import OptionNames
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan import Container
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import fact as fabric_fact
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import job as engine_job
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import model as engine_model
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import plan as engine_plan
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import recipe as engine_recipe
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import services as engine_services
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.ray import RayWishes
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.render import sbatch as render_sbatch

SPEC: dict[str, dict[str, Any]] = {
    "recipe": {"type": "str", "required": True},
    "recipe_paths": {"type": "list", "elements": "str", "default": []},
    "engine": {"type": "str", "default": ""},
    "launch": {"type": "str", "default": "auto"},
    "runtime": {"type": "str", "default": ""},
    "image": {"type": "str", "default": ""},
    "profile": {"type": "str", "default": ""},
    "model_files": {"type": "path", "default": ""},
    "only_print": {"type": "bool", "default": False},
    "context": {"type": "int", "default": 0},
    "concurrency": {"type": "int", "default": 0},
    "gpu_memory_utilization": {"type": "float", "default": 0},
    "pin_kv_cache": {"type": "bool", "default": False},
    "free_memory_gib": {"type": "float", "default": 0},
    "tensor_parallel_size": {"type": "int", "default": 0},
    "pipeline_parallel_size": {"type": "int", "default": 0},
    "data_parallel_size": {"type": "int", "default": 0},
    "expert_parallel": {"type": "str", "default": "auto", "choices": ["auto", "true", "false"]},
    "served_model_name": {"type": "str", "default": ""},
    "model": {"type": "str", "default": ""},
    "port": {"type": "int", "default": 8000},
    "rendezvous_port": {"type": "int", "default": 29501},
    "options": {"type": "dict", "default": {}},
    "environment": {"type": "dict", "default": {}},
    "requirements": {"type": "list", "elements": "str", "default": []},
    "venv_path": {"type": "path", "default": "/opt/sparkmatrix/engine"},
    "home": {"type": "path", "default": paths.HOME},
    "hf_home": {"type": "path", "default": "/opt/sparkmatrix/models/huggingface"},
    "ray": {
        "type": "dict",
        "default": {},
        "options": {
            "port": {"type": "int"},
            "dashboard_port": {"type": "int"},
            "object_store_bytes": {"type": "int"},
            "num_cpus": {"type": "int"},
            "temp_dir": {"type": "path"},
            "token_path": {"type": "path", "no_log": False},
        },
    },
    "container": {
        "type": "dict",
        "default": {},
        "options": {
            "gpus": {"type": "str"},
            "devices": {"type": "list", "elements": "path"},
            "memlock": {"type": "str"},
            "nofile": {"type": "str"},
            "nccl_conf": {"type": "path"},
            "stop_timeout_s": {"type": "int"},
        },
    },
    "group": {"type": "str", "default": "sparks"},
    "services": {"type": "list", "elements": "dict", "default": []},
    "firewall": {"type": "bool", "default": False},
}
COMMON = ("group", "services", "firewall", "recipe_paths", "only_print")  # not of one service
NODE_VARIABLE = "__preflight_node"
ASSUMED = "Nothing was asked of the {} node(s): network, addresses and memory (GB10, 121.6 GiB) are assumed"


class ActionModule(ActionBase):
    TRANSFERS_FILES = False
    _only_print = False  # a fabric that is not there is assumed

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(argument_spec=SPEC)
        task_vars = task_vars or {}
        hosts = list(task_vars["groups"].get(args["group"], []))
        self._only_print = bool(args["only_print"])
        facts, memory, findings = self._nodes(hosts, task_vars["hostvars"])
        assumed = [host for host in hosts if host not in facts] if args["only_print"] else []
        if assumed:
            # All or none: ranks and addresses of a mixture would not fit together.
            facts = engine_plan.assumed_facts(hosts)
        entries, problems = engine_services.read(args["services"], hosts)
        findings += problems
        services = []
        available = _available(hosts, task_vars["hostvars"])
        for entry in entries:
            service, problems = _service(entry, args, available)
            findings += engine_services.said(entry, problems) if args["services"] else problems
            services += [service] if service else []
        plans = None
        if services and len(facts) == len(hosts):
            plans = engine_services.plan(
                services, facts, memory, firewall=args["firewall"], given=len(args["services"])
            )
            findings += plans.findings
        result["changed"] = False
        if plans is None or not plans.plans or errors(findings):
            text = refusal("The engine plan was refused, and nothing was started:", findings)
            known = "".join(f"\n  {line}" for line in (plans.summary if plans else ()))
            result.update(failed=True, msg=text + known)
            return result
        if assumed:
            plans = replace(plans, summary=[*plans.summary, ASSUMED.format(len(hosts))])
        if plans.warnings:
            result["warnings"] = plans.warnings
        # A batch job holds its machines alone.
        sbatch = "" if args["services"] else render_sbatch.script(plans.plans)
        documents = {host: plan.as_dict() for host, plan in plans.plans.items()}
        result.update(plans=documents, summary=plans.summary, sbatch=sbatch)
        return result

    def _nodes(
        self, hosts: list[str], hostvars: Mapping[str, Any]
    ) -> tuple[dict[str, fabric_fact.FabricFact], dict[str, int], list[Finding]]:
        """Facts and measured memory of all hosts; a host whose fact cannot be used is a finding."""
        facts: dict[str, fabric_fact.FabricFact] = {}
        memory: dict[str, int] = {}
        findings: list[Finding] = []
        for host in hosts:
            variables = hostvars[host]
            try:
                facts[host] = self._fact(host, variables)
            except SparkError as exc:
                if not self._only_print:
                    findings.append(Finding(exc.where or host, exc.found, exc.remedy))
            memory[host] = int((_node(variables).get("memory") or {}).get("total") or 0)
        return facts, memory, findings

    def _fact(self, host: str, variables: Mapping[str, Any]) -> fabric_fact.FabricFact:
        """This run's fact, else the one that the node keeps. A planned one is good enough in check mode."""
        present = variables.get("spark_fabric")
        if present is None:
            local = (variables.get("ansible_facts") or {}).get("ansible_local") or variables.get("ansible_local") or {}
            present = local.get("sparkmatrix")
        fact = fabric_fact.load(present, host)
        if (self._task.check_mode or self._only_print) and fact.state == "planned":
            return fact
        return fabric_fact.require_applied(fact)


def _node(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """What preflight has read on a host in this run."""
    found: Mapping[str, Any] = (variables.get(NODE_VARIABLE) or {}).get("node") or {}
    return found


def _available(hosts: list[str], hostvars: Mapping[str, Any]) -> dict[str, int]:
    """Available memory in bytes, where it says what an engine may have: none of ours is installed on any node.

    Else it may run, also on a node without a unit of its own: as a worker of Ray.
    """
    nodes = {host: _node(hostvars[host]) for host in hosts}
    if any(node.get("engine_units") != [] for node in nodes.values()):
        return {}
    return {host: int((node.get("memory") or {}).get("available") or 0) for host, node in nodes.items()}


def _service(
    entry: engine_services.Entry, args: Mapping[str, Any], available: Mapping[str, int]
) -> tuple[engine_services.Service | None, list[Finding]]:
    """Recipe, wishes and shape of one service, or what is wrong with them."""
    given = engine_services.over(args, entry)
    checked = ArgumentSpecValidator({name: option for name, option in SPEC.items() if name not in COMMON}).validate(
        {name: value for name, value in given.items() if name not in COMMON}
    )
    if checked.error_messages:
        return None, [Finding("", message, "Correct it in the inventory") for message in checked.error_messages]
    given = {**given, **checked.validated_parameters}
    recipe, findings = engine_recipe.find(
        given["recipe"], args["recipe_paths"], OptionNames(in_entry=bool(args["services"]))
    )
    shape = None
    if given["model_files"]:
        try:
            shape = engine_model.read(Path(given["model_files"]).expanduser())
        except SparkError as exc:
            findings.append(Finding(exc.where, exc.found, exc.remedy))
    if recipe is None:
        return None, findings
    return engine_services.Service(entry, recipe, replace(_wishes(given), available=available), shape), findings


def _wishes(args: Mapping[str, Any]) -> engine_job.Wishes:
    ray = {name: value for name, value in (args["ray"] or {}).items() if value is not None}
    container: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in (args["container"] or {}).items()
        if value is not None
    }
    return engine_job.Wishes(
        engine=args["engine"],
        launch=args["launch"],
        runtime=args["runtime"],
        image=args["image"],
        profile=args["profile"],
        pin_kv_cache=args["pin_kv_cache"],
        free_memory_gib=args["free_memory_gib"],
        data_parallel_size=args["data_parallel_size"],
        expert_parallel={"true": True, "false": False}.get(args["expert_parallel"]),
        rendezvous_port=args["rendezvous_port"],
        only_print=args["only_print"],
        context=args["context"],
        concurrency=args["concurrency"],
        gpu_memory_utilization=args["gpu_memory_utilization"],
        tensor_parallel_size=args["tensor_parallel_size"],
        pipeline_parallel_size=args["pipeline_parallel_size"],
        served_model_name=args["served_model_name"],
        model=args["model"],
        port=args["port"],
        options=args["options"],
        environment={name: str(value) for name, value in args["environment"].items()},
        requirements=args["requirements"],
        venv_path=args["venv_path"],
        home=args["home"],
        hf_home=args["hf_home"],
        container=Container(**container),
        ray=RayWishes(executable=f"{args['venv_path']}/bin/ray", **ray),
    )
