# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

"""Which model is served, where several can be had and clients ask for them by name. Pure.

The model of which the files are in place on the head is the truth; what is kept beside it is a switch that has begun
(``going``). Whoever is killed in between finds both again, and goes on: towards ``going``, and from there to serving,
or, where it fails, back to the model that served last. What clients ask for is not kept: who waits asks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.word import (
    ABSENT,
    BROKEN,
    LOADING,
    QUEUED,
    SERVING,
    UNKNOWN,
    Shown,
)

# What nobody has asked for again for so long is no longer asked for; the relay asks every second or two.
ASKED_S = 10.0
IDLE_S = 3.0  # without a request for so long a model has none; they are told every second
# While it has requests, a model stays for so long, and for as long as loading another one takes, this many times.
STAY_S = 60.0
STAY_LOADS = 3.0
# Half of the time is for answers: each second of a switch is served for another one before the next, but for so many.
SPARE_S = 300.0
LONGEST_S = 3600.0  # what took longer was off meanwhile
BROKEN_S = 1800.0  # after which a model that did not start may be asked for again


@dataclass(frozen=True)
class Broken:
    """``plan``: with which it did not start; one of another run is tried again."""

    plan: str
    at: float
    why: str


@dataclass(frozen=True)
class Models:
    """What is kept. ``loaded``: served last; ``going``: is to be in place, empty where no switch goes on; ``since``:
    when that began; ``left``: when another one took its place; ``paid``: when what switches took has been served for.
    Times are seconds since 1970."""

    loaded: str = ""
    going: str = ""
    since: float = 0.0
    paid: float = 0.0
    left: Mapping[str, float] = field(default_factory=dict)
    took: Mapping[str, float] = field(default_factory=dict)  # seconds from the decision to its first token
    broken: Mapping[str, Broken] = field(default_factory=dict)

    @property
    def trial(self) -> bool:
        """A model is loaded that has not served yet, and another one has."""
        return bool(self.loaded and self.going and self.going != self.loaded)


@dataclass(frozen=True)
class Asked:
    first: float
    last: float


def adopted(models: Models, in_place: str, plans: Mapping[str, str], stopped: bool) -> Models:
    """At the begin of a keeper: a switch goes on where the keeper before was cut off. Where somebody ``stopped`` it
    before the other files were in place, or a run has put others there, what is in place is what is served; but not
    where it has not started just now."""
    found = models.broken.get(in_place)
    goes_on = not stopped or models.going == in_place or (found is not None and found.plan == plans.get(in_place))
    if models.going and goes_on and {models.going, models.loaded} <= set(plans):
        return models
    return replace(models, loaded=in_place, going="")


def is_broken(models: Models, model: str, plan: str, now: float) -> bool:
    found = models.broken.get(model)
    return bool(found and found.plan == plan and now - found.at < BROKEN_S)


def chosen(
    models: Models, plans: Mapping[str, str], asked: Mapping[str, Asked], served_since: float, now: float
) -> str:
    """The model to switch to now, or none. ``plans``: of all that are at hand; ``asked``: also of the one that is
    loaded, which is told with each of its requests."""
    waiting = waiting_for(models, plans, asked, now)
    if models.going or not waiting or now < may_switch_at(models, asked, waiting[0], served_since, now):
        return ""
    return waiting[0]


def waiting_for(models: Models, plans: Mapping[str, str], asked: Mapping[str, Asked], now: float) -> list[str]:
    """The one first that has not been loaded for longest; of those that never were, who has waited longest."""
    alive = [
        (models.left.get(model, 0.0), one.first, model)
        for model, one in asked.items()
        if now - one.last <= ASKED_S and model in plans and model != models.loaded
    ]
    return [model for _left, _first, model in sorted(alive) if not is_broken(models, model, plans[model], now)]


def may_switch_at(models: Models, asked: Mapping[str, Asked], model: str, served_since: float, now: float) -> float:
    """When the model that is loaded may go. At once, where nobody asks for it."""
    used = asked.get(models.loaded)
    busy = used is not None and now - used.last < IDLE_S
    stays = max(STAY_S, STAY_LOADS * models.took.get(model, 0.0)) if busy else 0.0
    return max(served_since + stays, models.paid - SPARE_S)


def _paid(models: Models, now: float) -> float:
    """As much again as it took."""
    return max(models.paid, models.since) + 2 * min(now - models.since, LONGEST_S)


def begun(models: Models, model: str, now: float) -> Models:
    return replace(models, going=model, since=now)


def arrived(models: Models, now: float) -> Models:
    """It has given a token."""
    if not models.going:
        return models
    came, took, left = models.going, models.took, models.left
    if models.trial:
        took = {**took, came: round(min(now - models.since, LONGEST_S), 1)}
        left = {**left, models.loaded: now}
    broken = {model: found for model, found in models.broken.items() if model != came}
    return replace(models, loaded=came, going="", took=took, left=left, paid=_paid(models, now), broken=broken)


def failed(models: Models, plan: str, why: str, now: float) -> Models:
    """The model of a trial does not start: back to the one before, which may take as many starts as it needs."""
    found = marked(models, models.going, plan, why, now)
    return replace(found, going=models.loaded, since=now, paid=_paid(models, now))


def marked(models: Models, model: str, plan: str, why: str, now: float) -> Models:
    return replace(models, broken={**models.broken, model: Broken(plan, now, why)})


# -- for those who wait -----------------------------------------------------------------------------------------------


def shown(
    model: str,
    models: Models,
    plans: Mapping[str, str],
    asked: Mapping[str, Asked],
    *,
    serves_since: float | None,
    now: float,
) -> Shown:
    """``serves_since``: of the model that is loaded; none where it does not answer."""
    if model not in plans:
        return Shown(UNKNOWN, None)
    if is_broken(models, model, plans[model], now) and model != models.loaded:
        return Shown(BROKEN, None)
    took = models.took.get(model)
    if model == (models.going or models.loaded):
        if serves_since is not None and not models.going:
            return Shown(SERVING)
        left = None if took is None else round(max(1.0, took - (now - models.since if models.going else 0.0)), 1)
        return Shown(LOADING, left)
    waiting = waiting_for(models, plans, asked, now)
    if took is None or serves_since is None:
        return Shown(QUEUED if model in waiting else ABSENT, None)
    before = waiting[: waiting.index(model)] if model in waiting else waiting
    left = max(0.0, may_switch_at(models, asked, model, serves_since, now) - now) + took
    left += sum(STAY_S + models.took.get(other, took) for other in before)
    return Shown(QUEUED if model in waiting else ABSENT, round(left, 1))
