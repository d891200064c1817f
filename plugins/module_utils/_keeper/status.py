# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a service serves, by its keeper, and why it was restarted: a part of ``sparkmatrix status``.

The keeper's word alone is not believed: it has to live, and the engine has to answer now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Optional

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import names as engine_names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine import probe
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.names import Names
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import pulse
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.pulse import Sign
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import State, Store, Verified, seconds
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._managed.service import returning

UNIT = "sparkmatrix-keeper.service"
SHOWN = 5
SERVING = "serving"
SERVES = "it serves"  # of the keeper's own words
UNATTENDED = 3  # exit code


def asked(instance: str) -> str:
    """What is wrong with the engine's answer to a short question now, or nothing."""
    try:
        probe.listed(probe.target_of(probe.read_config(Names(instance).description)))
    except SparkError as exc:
        return str(exc)
    return ""


def what(instance: str) -> str:
    """Which model is served where; nothing where that cannot be read, which :func:`asked` tells."""
    try:
        config = probe.read_config(Names(instance).description)
    except SparkError:
        return ""
    return f"{config.model} at {config.endpoint or f'http://{config.host}:{config.port}'}"


@dataclass(frozen=True)
class Served(State):
    """What the keeper of a service says, whether it lives, and whether the engine answers now.

    ``serving``: all three. ``running``: the keeper; ``frozen``: it runs and gives no sign of life. ``answers``: the
    engine, None where nobody asked because the keeper itself says that it does not serve. ``elapsed_s``: in this phase;
    ``start_elapsed_s``: in this start. Both are None where nobody counts. Without ``unit`` its keeper is elsewhere.
    """

    unit: str = ""
    running: bool = False
    returns: bool = False
    frozen: bool = False
    silent_s: Optional[float] = None
    damage: str = ""
    answers: Optional[bool] = None
    problem: str = ""
    elapsed_s: Optional[float] = None
    start_elapsed_s: Optional[float] = None
    serving: bool = False
    serves: str = ""
    verified: Optional[Verified] = None

    @property
    def code(self) -> int:
        """For monitoring: 0 it serves, 1 it does not, 3 it answers and nobody looks after it. 2 is a wrong option."""
        if self.serving:
            return 0
        return UNATTENDED if self.answers else 1


def collect(
    store: Store,
    machine: Machine,
    *,
    unit: str = UNIT,
    sign: Callable[[str], Sign | None] = pulse.last,
    ask: Callable[[str], str] = asked,
    what: Callable[[str], str] = what,
) -> Served:
    state, damage = store.look()
    keeper = machine.unit(unit)
    if damage and not keeper.exists:
        raise SparkError("there is no keeper on this node", unit, "Ask on the head (spark_rank 0)")
    instance = engine_names.instance_of(unit)
    seen = sign(instance) if keeper.running else None
    frozen = keeper.running and (seen is None or seen.frozen)
    says = keeper.running and state.phase == SERVING
    problem = ask(instance) if says or damage or frozen or not keeper.running else None
    kept = vars(replace(state, stopped=None) if keeper.running else state)
    return Served(
        **kept,
        unit=unit,
        running=keeper.running,
        returns=not keeper.running and returning(unit, machine.root),
        frozen=frozen,
        silent_s=round(seen.age_s) if frozen and seen else None,
        damage=damage,
        answers=None if problem is None else not problem,
        problem=problem or "",
        elapsed_s=elapsed(state.since, machine.now()) if keeper.running else None,
        start_elapsed_s=elapsed(state.start_since, machine.now()) if keeper.running else None,
        serving=says and not frozen and not problem,
        serves=what(instance),
        verified=store.verified(),
    )


def elapsed(kept: str, now: float) -> float | None:
    """Seconds since a time that was kept; None where it is none."""
    then = seconds(kept)
    return None if then is None else max(round(now - then), 0)


def _since(found: Served) -> str:
    if found.elapsed_s is None:
        return f"since {found.since}"
    line = f"for {found.elapsed_s:g} s, since {found.since}"
    if found.phase == SERVING and not found.stable:
        return f"{line}; counted as stable after {found.stable_s:.0f} s"
    if found.start_elapsed_s is None:
        return line
    return f"{line}; this start for {found.start_elapsed_s:g} s, at most {found.start_limit_s:.0f} s"


def _verdict(found: Served) -> tuple[str, str]:
    """What it is, and what to do about it."""
    detail = found.detail.replace(SERVES, f"{SERVES} {found.serves}".rstrip(), 1)
    said = f"{found.phase or 'unknown'}: {detail}"
    again = f"Begin anew: systemctl restart {found.unit}"
    if found.stopped:
        who = f", run by {found.stopped.user}" if found.stopped.user else ""
        first = f"Stopped by {found.stopped.by} at {found.stopped.time}{who}"
        again = "Start it: ansible-playbook playbooks/start.yml"
    elif not found.running and found.end == "gave_up":
        first = f"The keeper gave up: {found.detail}"
    elif found.returns:
        first = "The keeper does not run: a run has stopped it. It goes on with that run, or by itself after it"
        again = f"When: systemctl list-timers. Or at once: systemctl restart {found.unit}"
    elif not found.running:
        first = "The keeper does not run, so nobody starts the engine again"
    elif found.frozen:
        silent = "" if found.silent_s is None else f" for {found.silent_s:g} s"
        first = f"The keeper gives no sign of life{silent}, so nobody looks after the engine. It said last: {said}"
        again = f"systemd starts it again after {pulse.WATCHDOG_S} s of that. Or: systemctl restart {found.unit}"
    else:
        first = f"The keeper runs; {found.damage}" if found.damage else said
    return first, again


def text(found: Served) -> str:
    first, again = _verdict(found)
    lines = [first]
    if not found.damage and not found.stopped:
        lines.append(f"{_since(found)}; failures in a row: {found.failures} of {found.start_limit}")
    if found.serving and found.start_load:
        lines.append(f"The last start: {found.start_load}")
    if found.answers is not None and not (found.stopped and not found.answers):
        lines.append(f"Asked just now: {'it answers' if found.answers else found.problem}")
    if not found.running or found.frozen:
        lines.append(again)
    history = found.history[-SHOWN:]
    lines.append("Restarts and their reasons, the last first:" if history else "No restart so far")
    for entry in reversed(history):
        after = "" if entry.back_after_s is None else f" (served again after {entry.back_after_s:.0f} s)"
        lines.append(f"  {entry.time}  {entry.event}: {''.join(entry.reason.splitlines()[:1])}{after}")
    return "\n".join(lines)


def check(instance: str, look: Callable[..., Served] = collect, model: str = "") -> None:
    """Raise :class:`SparkError` at once where the keeper knows that nobody answers: nobody has to be waited for.
    ``model``: of the plan, for whoever judges by it."""
    unit = Names(instance).keeper
    found = look(Store(instance=instance), Machine(), unit=unit)
    loaded = found.models.loaded
    if found.serving and model and loaded not in ("", model):
        told = f"{loaded} is loaded, since a client has asked for it, and this compares with the plan of {model}"
        raise SparkError(told, unit, f"Ask for {model}, or run site.yml, and then this again")
    if found.serving or found.answers:
        return
    first, again = _verdict(found)
    if found.running and not found.frozen:
        again = "See how it goes on: sudo sparkmatrix status, on the head"
        first = f"it does not serve: {first}" if found.answers is None else f"it says {first}; {found.problem}"
    raise SparkError(first, unit, again)


def kept(root: str = "/") -> list[str]:
    """Services whose keeper has left something on this node; empty for the one that is alone."""
    found = [instance for instance in engine_names.instances(root) if Store(root, instance).exists]
    return found or [""]
