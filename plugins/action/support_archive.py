# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Controller side of ``sparkmatrix.cluster.support_archive``: says what goes into the archive, or writes it.
Contacts no host."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import calls, strict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.redaction import Redactor
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._support.secret_rules import leaves
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen import log
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._support import bundle
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._verdict.planners import release

SPEC: dict[str, dict[str, Any]] = {
    "seen": {"type": "str", "required": True},
    "file": {"type": "path", "required": True},
    "write": {"type": "bool", "default": True},
    "logs": {"type": "bool", "default": False},
    "anonymous": {"type": "bool", "default": False},
    "names": {"type": "dict", "default": {}},
    "key": {"type": "str", "default": "", "no_log": True},
}
RUNS = 3  # logs of earlier runs
MOST = 200_000  # characters of one
LOGIN = ("ansible_user", "ansible_ssh_user", "ansible_become_user")
WIDTH = 300  # of what a machine says
# Not of the user: what machines have answered, which must not say what is left out, and the variables of all hosts.
_NOT_OF_THE_USER = re.compile(r"__|spark_|(?:ansible_facts|ansible_local|hostvars|vars|groups)$")


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(argument_spec=SPEC)
        variables = task_vars or {}
        hostvars = variables["hostvars"]
        known = {value for told in (variables, *(hostvars[host] for host in hostvars)) for value in _secrets(told)}
        names = {socket.gethostname(): bundle.CONTROLLER, **args["names"]}
        redactor = Redactor(sorted(known), args["anonymous"], names, args["key"], _users(hostvars, variables))
        parts = {}
        for host in variables["ansible_play_hosts_all"]:
            shown = args["names"].get(host, host) if args["anonymous"] else host
            part = _part(hostvars[host], args["seen"], host)
            parts[shown] = replace(part, problem=redactor.redact(part.problem))
        if args["logs"]:
            parts[bundle.CONTROLLER] = _runs(replace(redactor, counts={}))
        made = bundle.Bundle(parts, release(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), args["anonymous"])
        data = bundle.archive(made.files)
        if args["write"] and not self._task.check_mode:
            _write(Path(args["file"]), data)
        said = bundle.verdict(made, args["file"], len(data))
        if self._task.check_mode:
            said = f"{said}; a check, so it was not written"
        return {**result, "changed": args["write"], "lines": made.lines, "verdict": said, "silent": made.silent}


def _secrets(variables: Mapping[str, Any]) -> Iterator[str]:
    """Of one host. A variable whose template fails has no value, and so is no secret."""
    for name in variables:
        if not _NOT_OF_THE_USER.match(name):
            with contextlib.suppress(Exception):  # a template can fail in any way
                yield from leaves(name, variables[name])


def _users(hostvars: Mapping[str, Any], variables: Mapping[str, Any]) -> list[str]:
    """Who runs this, and as whom machines are contacted."""
    own = pwd.getpwuid(os.getuid()).pw_name
    told = [hostvars[host].get(name) for host in variables["ansible_play_hosts_all"] for name in LOGIN]
    return sorted({own, *(str(name) for name in told if name)})


def _part(known: Mapping[str, Any], name: str, host: str) -> bundle.Part:
    """Nothing of a machine that did not answer, could not, or answered what our module never does: of the others there
    is an archive all the same, which is wanted most when one of them is out of order."""
    if name not in known:
        return bundle.Part(problem="it was not asked")
    try:
        told = calls.read("support", known[name], host)
        why = strict.words(known[name].get("msg") or "it gave no answer")
    except (SparkError, ValueError) as exc:
        return bundle.Part(problem=str(exc)[:WIDTH])
    return bundle.Part(told.outputs, told.counts) if told.outputs else bundle.Part(problem=why[:WIDTH])


def _runs(redactor: Redactor) -> bundle.Part:
    """Logs of the last runs from this computer, as everything else without secrets."""
    named = os.environ.get("SPARKMATRIX_LOG_FOLDER", "")
    folder = Path(named).expanduser() if named else log.default_folder()
    outputs = {}
    for path in sorted(folder.glob("[0-9]*-[0-9]*-*.log"))[-RUNS:]:
        text = path.read_text(encoding="utf-8", errors="replace")
        outputs[f"logs/{path.name}"] = redactor.redact(text[-2 * MOST :])[-MOST:]
    return bundle.Part(outputs, redactor.counts, "" if outputs else f"no logs in {folder}")


def _write(path: Path, data: bytes) -> None:
    """Only its owner may read it, from the first byte on; one that was there is replaced as a whole."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
