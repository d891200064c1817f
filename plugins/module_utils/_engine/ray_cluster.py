# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Ask Ray itself which nodes its cluster has, and compare them with the plan.

Counting text of ``ray status`` breaks with every release; ``ray.nodes()`` is Ray's public Python interface. It runs in
the engine's environment, as the service user, because the module's own Python has no Ray.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import json_text
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.kinds import Flag, Words

# argv: address, wanted addresses as JSON, seconds. The last line is {"nodes": [{address, alive, gpus}], "error": text}.
SCRIPT = """
import json, sys, time
address, wanted, seconds = sys.argv[1], sorted(json.loads(sys.argv[2])), float(sys.argv[3])
end = time.monotonic() + seconds
nodes, error = None, ""
import ray
while True:
    try:
        if not ray.is_initialized():
            ray.init(address=address, logging_level="ERROR", log_to_driver=False, configure_logging=False)
        nodes = [
            {
                "address": node.get("NodeManagerAddress", ""),
                "alive": bool(node.get("Alive")),
                "gpus": (node.get("Resources") or {}).get("GPU", 0),
            }
            for node in ray.nodes()
        ]
        error = ""
    except Exception as exc:
        error = f"{type(exc).__name__}: {exc}"
    alive = sorted(node["address"] for node in nodes or [] if node["alive"])
    if (not error and alive == wanted) or time.monotonic() >= end:
        break
    time.sleep(0.5)
print(json.dumps({"nodes": nodes, "error": error}))
"""
REMEDY = (
    "On a missing node look at: systemctl status sparkmatrix-ray; journalctl -u sparkmatrix-ray; Ray's own files in"
    " /var/lib/sparkmatrix/home/ray/session_latest/logs, first raylet.out and, on the head, dashboard.log. One that is"
    " not planned or there twice runs a Ray of its own: stop it, or restart sparkmatrix-ray there"
)
GRACE_S = 20.0  # for the interpreter and ray.init, beyond the time limit


@dataclass(frozen=True)
class Query:
    """``nodes``: planned addresses on the cluster network by host. ``user`` is empty for the user that asks.

    With ``container`` the question is asked in that container, which has the environment already.
    """

    python: str
    address: str
    nodes: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    timeout_s: float = 60.0
    container: str = ""


@dataclass(frozen=True)
class Counted:
    """``complete``: exactly the planned nodes are alive. ``reason``: in check mode, why nobody could be asked."""

    complete: Flag = False
    alive: tuple[Words, ...] = ()
    reason: Words = ""
    failed: Flag = False
    msg: Words = ""


def wait(query: Query, check: bool) -> Counted:
    """Wait until exactly the planned nodes are alive; in check mode look once, and nothing is a failure."""
    try:
        verdict = read(replace(query, timeout_s=0) if check else query)
    except SparkError as exc:
        if check:
            return Counted(reason=str(exc))
        raise
    if verdict.complete or check:
        return Counted(verdict.complete, verdict.alive)
    problem = SparkError(verdict.sentence(query.nodes), f"Ray cluster at {query.address}", REMEDY)
    return Counted(False, verdict.alive, failed=True, msg=str(problem))


@dataclass(frozen=True)
class Verdict:
    alive: tuple[str, ...]
    missing: tuple[str, ...] = ()
    duplicate: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    error: str = ""

    @property
    def complete(self) -> bool:
        return not (self.missing or self.duplicate or self.foreign or self.error)

    def sentence(self, nodes: Mapping[str, str]) -> str:
        """``nodes``: planned addresses by host, for a message that says which machine to look at."""
        names = {address: host for host, address in nodes.items()}

        def shown(addresses: Sequence[str]) -> str:
            return ", ".join(f"{names[item]} ({item})" if item in names else item for item in addresses)

        parts = [f"{len(self.alive)} nodes are alive, {len(names)} are planned"]
        if self.error:
            parts.append(f"Ray said: {self.error}")
        if self.missing:
            parts.append(f"missing: {shown(self.missing)}")
        if self.duplicate:
            parts.append(f"there more than once: {shown(self.duplicate)}")
        if self.foreign:
            parts.append(f"not planned: {shown(self.foreign)}")
        return "; ".join(parts)


def judge(nodes: Sequence[Mapping[str, Any]] | None, wanted: Sequence[str], error: str = "") -> Verdict:
    """Dead entries stay in Ray's list after a restart and do not count."""
    alive = sorted(str(node.get("address", "")) for node in nodes or [] if node.get("alive"))
    count = Counter(alive)
    return Verdict(
        alive=tuple(alive),
        missing=tuple(address for address in wanted if not count[address]),
        duplicate=tuple(sorted(address for address, number in count.items() if number > 1)),
        foreign=tuple(sorted(set(alive) - set(wanted))),
        error=error,
    )


def parse(output: str) -> tuple[list[dict[str, Any]] | None, str]:
    """The script's last line. Everything before it is Ray's own talk."""
    for line in reversed(output.strip().splitlines()):
        try:
            document = json_text.mapping(line)
            nodes = document["nodes"]
        except (KeyError, SparkError):
            continue
        if nodes is None or (isinstance(nodes, list) and all(isinstance(node, dict) for node in nodes)):
            return nodes, str(document.get("error") or "")
    return None, "the query gave no answer"


Execute = Callable[[Sequence[str], Mapping[str, str], str, float], "tuple[int, str, str]"]


def execute(argv: Sequence[str], environment: Mapping[str, str], user: str, timeout_s: float) -> tuple[int, str, str]:
    """Run as ``user`` with exactly this environment; (exit code, stdout, stderr), 124 when it ran too long."""
    options: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if user else {}
    try:
        # module.run_command can neither change the user nor start with an empty environment.
        done = subprocess.run(  # pylint: disable=ansible-bad-function
            list(argv),
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            **options,
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer within {timeout_s:.0f} s"
    except (OSError, LookupError, PermissionError) as exc:
        raise SparkError(
            f"Ray cannot be asked ({exc})", argv[0], "Run the ray layer, which makes user and environment"
        ) from exc
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def read(
    query: Query,
    run: Execute = execute,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Verdict:
    """Wait until exactly the planned nodes are alive, or until the time is over; the last verdict either way.

    A head that is just starting can end the query (Ray's client aborts the process), so it is repeated.
    """
    inside = ["docker", "exec", query.container] if query.container else []
    environment = {"PATH": os.defpath, **({} if query.container else query.environment)}
    user = "" if query.container else query.user
    addresses = sorted(query.nodes.values())
    deadline = clock() + query.timeout_s
    while True:
        left = max(deadline - clock(), 0.0)
        script = [query.python, "-c", SCRIPT, query.address, json.dumps(addresses), f"{left:.1f}"]
        code, out, err = run([*inside, *script], environment, user, left + GRACE_S)
        nodes, error = parse(out)
        if code and nodes is None:
            error = " ".join((err or out).strip().splitlines()[-1:]) or error
        verdict = judge(nodes, addresses, error)
        if verdict.complete or clock() >= deadline:
            return verdict
        sleep(1.0)
