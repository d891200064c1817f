# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""What planners have in common: they turn what was read on the nodes into decisions, and contact no host.

Each room names its planners in ``PLANNERS`` of its ``planners.py``; the action ``plan`` runs one of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls, document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import (
    Finding,
    SparkError,
    errors,
    refusal,
    warnings,
)

Options = Mapping[str, Any]
Spec = Mapping[str, Mapping[str, Any]]
Place = str | Sequence[str] | Mapping[str, str | Sequence[str]]
# How a value of a host is read: the name of a call of the module ``node``, or, in a list, of one that a loop has made;
# a reader that takes value and host; or a mapping of these, where a place is one.
Shape = Any
REFUSED = "What these machines answered cannot be used:"
_ABSENT = object()


class RefusedError(Exception):
    """The plan cannot be made; its text has all reasons."""


@dataclass(frozen=True)
class Planner:
    """``gathered``: options that say where something is (:func:`gather`), with the shape of its value; the planner gets
    it of every host of the play, by host, read by that shape.

    ``alive``: only of the hosts that have not failed so far. A way back must not wait for a machine that died.
    ``partly``: options of ``gathered`` whose variable not every host has; those without it are left out.
    ``same``: options of ``partly`` whose variable a task that runs once has registered, so that it is as long as there
    are hosts and the same on all of them. The planner gets it of the first host that has it.
    """

    make: Callable[[Options], dict[str, Any]]
    spec: Spec
    gathered: Mapping[str, Shape] = field(default_factory=dict)
    alive: bool = False
    partly: tuple[str, ...] = ()
    same: tuple[str, ...] = ()


def gather(variables: Mapping[str, Mapping[str, Any]], place: Place, partly: bool = False) -> dict[str, Any]:
    """The value by host. ``place``: a variable, a field of one (``a.b``), or a list of such, of which the first counts
    that a host has and is not null; or a mapping of such, and each host's value is a mapping with what it has of them.

    Nothing has to be recorded on each host first, which costs Ansible a process for each.
    """
    if isinstance(place, Mapping):
        return {
            host: {name: found[0] for name, one in place.items() if (found := _at(known, one))}
            for host, known in variables.items()
        }
    values = {host: found[0] for host, known in variables.items() if (found := _at(known, place))}
    missing = [host for host in variables if host not in values]
    if missing and not partly:
        names = place if isinstance(place, str) else " or ".join(place)
        raise SparkError(f"{names} is not known", ", ".join(missing), "Run the whole layer for all machines")
    return values


def _at(known: Mapping[str, Any], place: str | Sequence[str]) -> list[Any]:
    """The value in a list, or an empty one. Nothing (null) counts where no other place has more."""
    found: list[Any] = []
    for one in [place] if isinstance(place, str) else place:
        value: Any = known
        for name in one.split("."):
            value = value.get(name, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is not None and value is not _ABSENT:
            return [value]
        found += [None] if value is None else []
    return found[:1]


def run(name: str, planner: Planner, options: Options, task_vars: Mapping[str, Any]) -> dict[str, Any]:
    """The result of the task, a refusal included."""
    spec = {**planner.spec, **{option: {"type": "raw", "required": True} for option in planner.gathered}}
    checked = ArgumentSpecValidator(spec).validate(options)
    if checked.error_messages:
        return failure(f"planner {name}: {'; '.join(checked.error_messages)}")
    # Looked up once: Ansible puts all variables of a host together each time.
    hosts = task_vars["ansible_play_hosts" if planner.alive else "ansible_play_hosts_all"] if planner.gathered else ()
    variables = {host: task_vars["hostvars"][host] for host in hosts}
    try:
        read = {
            option: gather(
                _first(variables, place) if option in planner.same else variables, place, option in planner.partly
            )
            for option in planner.gathered
            for place in [checked.validated_parameters[option]]
        }
        findings: list[Finding] = []
        known = {
            option: {host: _typed(planner.gathered[option], value, host, findings) for host, value in values.items()}
            for option, values in read.items()
        }
        judged(REFUSED, findings)
        made = planner.make({**checked.validated_parameters, **known})
        if not isinstance(made.get("changed", False), bool):
            # ansible-core before 2.21 passes a list, later ones make it a yes.
            return failure(f"the planner {name} answers {made['changed']!r} as 'changed', which is Ansible's own word")
        return {"changed": False, **made}
    except (RefusedError, SparkError) as exc:
        return failure(str(exc))
    except (LookupError, TypeError, AttributeError, ValueError) as exc:
        # A result that is not what our modules return: named, not shown as a traceback.
        return failure(f"the planner {name} was given something unexpected: {exc!r}")


def _typed(shape: Shape, value: Any, host: str, findings: list[Finding]) -> Any:
    """What :data:`Shape` says; a finding, and nothing, where the value cannot be used."""
    try:
        return _read(shape, value, host)
    except SparkError as exc:
        findings.append(Finding(host, exc.found, exc.remedy, exc.where.removeprefix(host).strip()))
    except (TypeError, ValueError) as exc:
        findings.append(Finding(host, f"its answer {exc}", calls.REMEDY))
    return None


def _read(shape: Shape, value: Any, host: str) -> Any:
    if isinstance(shape, str):
        return calls.read(shape, value, host)
    if isinstance(shape, list):
        return [calls.read(shape[0], one, host) for one in value.get("results") or ()]
    if isinstance(shape, Mapping):
        return {name: _read(inner, value[name], host) for name, inner in shape.items() if name in value}
    return shape(value, host)


def reader_of(cls: type[Any]) -> Callable[[Any, str], Any]:
    """The reader of a dataclass that is a part of what a host answered; nothing has its defaults."""
    return lambda value, _host: document.load_known(cls, value or {})


def ours(value: Any, _host: str) -> Any:
    """A field of the inventory, or what our own planner has returned: nobody else's word."""
    return value


def _first(variables: Mapping[str, Mapping[str, Any]], place: str | Sequence[str]) -> dict[str, Mapping[str, Any]]:
    return dict(itertools.islice(((host, known) for host, known in variables.items() if _at(known, place)), 1))


def failure(text: str) -> dict[str, Any]:
    return {"changed": False, "failed": True, "msg": text}


def judged(title: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """The part of a result that shows warnings; refuses where a finding is an error."""
    if errors(findings):
        raise RefusedError(refusal(title, findings))
    return {"warnings": [str(finding) for finding in warnings(findings)]}
