# Copyright (c) 2026, The sparkmatrix.cluster authors
# GNU General Public License v3.0-or-later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What planners have in common: they turn what was read on the nodes into decisions, and contact no host.

Each room names its planners in ``PLANNERS`` of its ``planners.py``; the action ``plan`` runs one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    Finding,
    SparkError,
    errors,
    refusal,
    warnings,
)
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base import border

Options = Mapping[str, Any]
Spec = Mapping[str, Mapping[str, Any]]


class RefusedError(Exception):
    """The plan cannot be made; its text has all reasons."""


@dataclass(frozen=True)
class Planner:
    """``gathered``: options that name a variable, with the shape of its value; the planner gets it of every host of the
    play, by host, as :func:`border.read` lets it in.

    ``alive``: only of the hosts that have not failed so far. A way back must not wait for a machine that died.
    ``partly``: options of ``gathered`` whose variable not every host has; those without it are left out.
    ``same``: options of ``partly`` whose variable a task that runs once has registered, so that it is as long as there
    are hosts and the same on all of them. The planner gets it of the first host that has it.
    """

    make: Callable[[Options], dict[str, Any]]
    spec: Spec
    gathered: Mapping[str, border.Shape] = field(default_factory=dict)
    alive: bool = False
    partly: tuple[str, ...] = ()
    same: tuple[str, ...] = ()


def gather(variables: Mapping[str, Mapping[str, Any]], name: str, partly: bool = False) -> dict[str, Any]:
    """The value of a variable by host."""
    missing = [host for host in variables if name not in variables[host]]
    if missing and not partly:
        raise SparkError(f"{name} is not known", ", ".join(missing), "Run the whole layer for all machines")
    return {host: known[name] for host, known in variables.items() if name in known}


def run(name: str, planner: Planner, options: Options, task_vars: Mapping[str, Any]) -> dict[str, Any]:
    """The result of the task, a refusal included."""
    spec = {**planner.spec, **{option: {"type": "str", "required": True} for option in planner.gathered}}
    checked = ArgumentSpecValidator(spec).validate(options)
    if checked.error_messages:
        return failure(f"planner {name}: {'; '.join(checked.error_messages)}")
    # Looked up once: Ansible puts all variables of a host together each time.
    hosts = task_vars["ansible_play_hosts" if planner.alive else "ansible_play_hosts_all"] if planner.gathered else ()
    variables = {host: task_vars["hostvars"][host] for host in hosts}
    try:
        read = {
            option: gather(
                _first(variables, name) if option in planner.same else variables, name, option in planner.partly
            )
            for option in planner.gathered
            for name in [checked.validated_parameters[option]]
        }
        findings: list[Finding] = []
        known = {
            option: {
                host: border.read(planner.gathered[option], value, host, findings) for host, value in values.items()
            }
            for option, values in read.items()
        }
        judged(border.REFUSED, findings)
        return {"changed": False, **planner.make({**checked.validated_parameters, **known})}
    except (RefusedError, SparkError) as exc:
        return failure(str(exc))
    except (LookupError, TypeError, AttributeError, ValueError) as exc:
        # A result that is not what our modules return: named, not shown as a traceback.
        return failure(f"the planner {name} was given something unexpected: {exc!r}")


def _first(variables: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Mapping[str, Any]]:
    return dict([(host, known) for host, known in variables.items() if name in known][:1])


def failure(text: str) -> dict[str, Any]:
    return {"changed": False, "failed": True, "msg": text}


def judged(title: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """The part of a result that shows warnings; refuses where a finding is an error."""
    if errors(findings):
        raise RefusedError(refusal(title, findings))
    return {"warnings": [str(finding) for finding in warnings(findings)]}
