# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""The last lines of a playbook: what is there now, how to use it, what changed, what to run next, how to undo. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import api_paths
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import start_times
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._base.login import Login
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._screen.commands import Commands

MAX_LINES = 12  # lines
_LABEL = 10

# Playbooks that start or change what serves, so that there is something to look at afterwards.
STARTING = ("start", "restart", "upgrade", "rollback")
# What undoes a playbook. Without an entry it is reset.yml, for the tags of the run.
UNDO = {
    "start": "stop",
    "stop": "start",
    "upgrade": "rollback",
    "rollback": "rollback",
    "node_add": "node_remove",
    "node_remove": "node_add",
    "reset": "site",
}
# Nothing to undo, or not by a playbook.
NO_UNDO = {
    "verify": "",
    "benchmark": "",
    "restart": "",
    "node_replace": "",
    "os_update": "docs/operations.md says how an earlier kernel is chosen; packages are not taken back",
}


@dataclass(frozen=True)
class Layer:
    """A layer that ran. ``figure``: the one that tells most; ``changed``: nodes on which it changed something."""

    name: str
    figure: str = ""
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Service:
    """``high``: tokens/s that the plan expects, 0 where it has no figure; ``measured``: None where nobody measured."""

    model: str
    task: str = "generate"
    words: str = ""
    low: float = 0.0
    high: float = 0.0
    measured: float | None = None


@dataclass(frozen=True)
class Start:
    """Seconds to its first token, by part (:mod:`_keeper.start_times`), and how fast it has read."""

    model: str
    parts: Mapping[str, float]
    load: str = ""


@dataclass(frozen=True)
class Way:
    """How clients come in. ``private``: at loopback of the head, so from elsewhere through ssh."""

    url: str
    key_file: str = ""  # on the head; empty: no key is asked for
    own_ca: bool = False
    private: bool = False

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2].partition("/")[0]


@dataclass(frozen=True)
class Run:
    playbook: str
    hosts: tuple[str, ...]
    head: Login
    commands: Commands = field(default_factory=Commands)
    failed: tuple[str, ...] = ()
    check: bool = False
    tags: tuple[str, ...] = ()  # empty: all layers
    layers: tuple[Layer, ...] = ()
    services: tuple[Service, ...] = ()
    starts: tuple[Start, ...] = ()  # in this run
    way: Way | None = None
    reboot: tuple[str, ...] = ()  # nodes that wait for one
    leaving: tuple[str, ...] = ()
    filtered: bool = True  # by the port filter


def lines(run: Run) -> list[str]:
    """At most :data:`MAX_LINES`."""
    found = [_heading(run)]
    if run.failed:
        found.append(_line("not on", f"{', '.join(run.failed)}: see the error above; run the playbook again"))
    found += _layers(run)
    if run.services and not run.check:
        found += _use(run)
    if run.playbook == "stop" and run.filtered and not run.check:
        reset = run.commands.play("reset", "--tags ray,engine")
        found.append(_line("port", f"stays closed to other programs, until: {reset}"))
    if run.playbook != "reset":
        found.append(_changed(run))
    found += [_line("next", text) for text in _next(run)]
    undo = _undo(run)
    return [*found, _line("undo", undo)] if undo else found


def artifacts(run: Run) -> dict[str, Any]:
    """The same for programs: AWX keeps it as artifacts of the job, and gives it to the next node of a workflow."""
    return {
        "playbook": run.playbook,
        "nodes": len(run.hosts),
        "failed": list(run.failed),
        "check": run.check,
        "changed": {layer.name: list(layer.changed) for layer in run.layers if layer.changed},
        "url": run.way.url if run.way and not run.check else "",
        "services": [
            {
                "model": service.model,
                "tokens_per_s": service.measured,
                "expected": [service.low, service.high] if service.high else None,
                "verdict": "not measured"
                if service.measured is None
                else "slow"
                if service.measured < service.low
                else "ok",
            }
            for service in run.services
        ],
    }


def drift(run: Run) -> str:
    """What a check found to differ, as a refusal; empty where nothing does."""
    differs = [f"{layer.name} on {_nodes(layer.changed, run.hosts)}" for layer in run.layers if layer.changed]
    if not run.check or not differs:
        return ""
    return (
        f"The machines differ from the inventory: {'; '.join(differs)}. The differences are above; site.yml mends them."
    )


def _line(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def _nodes(hosts: Sequence[str], everybody: Sequence[str]) -> str:
    if len(hosts) == len(everybody) > 1:
        return f"all {len(hosts)} nodes"
    return ", ".join(hosts)


def _heading(run: Run) -> str:
    name = f"{run.playbook}.yml{''.join(f' --tags {tags}' for tags in [','.join(run.tags)] if tags)}"
    nodes = [host for host in run.hosts if host not in run.failed]
    where = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}"
    if run.check:
        return f"{name} --check: this is what it would do on {where}; nothing was changed"
    if run.playbook == "stop":
        return f"{name}: the engine is stopped on {where}, and stays so over reboots"
    if run.playbook == "reset":
        return f"{name}: undone on {where}"
    if run.services and (run.way or run.playbook in STARTING):
        models = ", ".join(service.model for service in run.services)
        return f"{name}: {where} serve{'s' if len(nodes) == 1 else ''} {models}"
    return f"{name}: done on {where}"


def _layers(run: Run) -> list[str]:
    if not run.layers:
        return []
    state = "planned" if run.check else "ok"
    words = [f"{layer.name} {state}{f' ({layer.figure})' if layer.figure else ''}" for layer in run.layers]
    return [_line("layers", ", ".join(words))]


def _use(run: Run) -> list[str]:
    found = [
        _line(
            "model",
            "; ".join(f"{service.model}{f', {service.words}' if service.words else ''}" for service in run.services),
        )
    ]
    speeds = "; ".join(
        _speed(service, len(run.services) > 1) for service in run.services if service.measured is not None
    )
    if speeds:
        found.append(_line("speed", speeds))
    elif run.starts and run.playbook in STARTING:  # which measure nothing: it is one line or the other
        found.append(_line("start", "; ".join(_start(start, len(run.services) > 1) for start in run.starts)))
    if run.way:
        found += _way(run, run.way)
    return found


def _start(start: Start, several: bool) -> str:
    said = start_times.words(start.parts, start.load)
    return f"{start.model}: {said}" if several else said


def _speed(service: Service, several: bool) -> str:
    measured = service.measured or 0.0
    what = f"{service.model}: " if several else ""
    if service.task != "generate":
        return f"{what}answers"
    said = f"{what}{measured:.1f} tokens/s for one stream"
    if not service.high:
        return f"{said}; the plan has no expectation"
    band = f"{said}; the plan expects {service.low:.0f} to {service.high:.0f}"
    return f"{band}: slower than expected" if measured < service.low else band


def _way(run: Run, way: Way) -> Iterator[str]:
    head = run.head
    if run.commands.by_verbs and way.private:
        yield _line("URL", f"{way.url}  (on {head.host} only)")
        yield _line("ask it", f'{run.commands.program} ask "…"')
        yield _line("programs", f'eval "$({run.commands.program} env)"    (tunnel, key and model for your shell)')
        return
    tunnel = way.private and head.to
    where = f"on {head.host} only; from here first: {head.tunnel(way.port)}"
    yield _line("URL", f"{way.url}  ({where})" if tunnel else way.url)
    if way.key_file:
        # The engine's file is a line of systemd's, VLLM_API_KEY="...".
        read = f"sudo cat {way.key_file}" if way.key_file.endswith(".key") else f'sudo cut -d\\" -f2 {way.key_file}'
        trust = f"; {head.command('sudo cat /etc/sparkmatrix/gateway/tls/ca.crt')} > sparkmatrix-ca.crt"
        yield _line("key", f"KEY=$({head.command(read)}){trust if way.own_ca else ''}")
    yield _line("try it", curl(run.services[0], way))


def curl(service: Service, way: Way) -> str:
    body = {"model": service.model, **probe.EXAMPLES[service.task]}
    words = ["curl", *(["--cacert", "sparkmatrix-ca.crt"] if way.own_ca else [])]
    words += [
        shlex.quote(f"{way.url}{api_paths.PROBED[service.task].removeprefix('/v1')}"),
        "-H",
        "'Content-Type: application/json'",
    ]
    if way.key_file:
        words += ["-H", '"Authorization: Bearer $KEY"']
    return " ".join([*words, "-d", shlex.quote(json.dumps(body))])


def _changed(run: Run) -> str:
    found = [f"{layer.name} on {_nodes(layer.changed, run.hosts)}" for layer in run.layers if layer.changed]
    return _line("changes" if run.check else "changed", "; ".join(found) or "nothing")


def _next(run: Run) -> Iterator[str]:
    play = run.commands.play
    if run.check:
        yield "the same command without --check"
        return
    notes = []
    if run.leaving:
        notes.append(f"delete {', '.join(run.leaving)} from the group sparks_leaving of the inventory")
    if run.playbook == "rollback":
        notes.append("set the inventory back, too: the next site.yml brings what it says")
    if run.reboot:
        notes.append(f"reboot {_nodes(run.reboot, run.hosts)}, or run with -e os_stabilization_reboot=if_needed")
    if notes:
        yield "; ".join(notes)
    if run.playbook == "stop":
        yield play("start")
    elif run.playbook == "reset":
        return
    elif run.playbook in STARTING:
        yield f"{play('verify')}  (measures it)"
    elif run.services:
        yield f"{play('status')}  (how it is, at any time)"
    else:
        yield f"{play('site')}  (all layers)"


def _undo(run: Run) -> str:
    if run.check or run.playbook in NO_UNDO:
        return "" if run.check else NO_UNDO[run.playbook]
    if run.playbook in UNDO:
        return run.commands.play(UNDO[run.playbook])
    return run.commands.play("reset", f"--tags {','.join(run.tags)}" if run.tags else "")
