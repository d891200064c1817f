# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest
import speed_model
import speed_verdict
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Parallel
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine import expected_speed as speed
from ansible_collections.sparkmatrix.cluster.plugins.plugin_utils._engine.model import Architecture, Draft, Kept

DENSE = speed.Served(Architecture(32, 32, 8, 128, 4096), Parallel(1, 1, ""), 16e9, 16e9, 8e9)
SPARSE = replace(
    DENSE, model=replace(DENSE.model, experts=128, experts_per_token=8), weights=60e9, active=6e9, parameters=3e9
)


def rate(served, users=1, context=1024):
    return speed.tokens_per_second(served, users, context)


def split(served, tensor=1, pipeline=1, data=1):
    return replace(served, parallel=Parallel(tensor, pipeline, "", data))


def test_published_runs_are_as_near_as_they_were():
    """As reached; the half that was kept apart was looked at once, after the constants were there."""
    seen, apart = speed_model.halves()
    assert len(seen) + len(apart) >= 60
    assert not {row.configuration for row in seen} & {row.configuration for row in apart}
    for rows, median, within in ((seen, 0.05, 0.97), (apart, 0.125, 0.94)):
        assert statistics.median(speed_model.errors(rows)) <= median
        assert speed_model.within(rows, 0.3) >= within


def test_prompts_are_as_near_as_they_were():
    for rows, median in zip(speed_model.halves(prompts=True), (0.25, 0.22), strict=True):
        assert statistics.median(speed_model.errors(rows)) <= median


def test_the_constants_are_those_that_fit_the_seen_half():
    seen, _apart = speed_model.halves()
    best = speed_model.fit(seen)
    for name in speed_model.FITTED:
        assert getattr(speed.GB10, name) == pytest.approx(getattr(best, name), rel=0.05), name


@pytest.mark.parametrize(("published", "found", "false"), [(False, 0.95, 0.01), (True, 0.99, 0.005)])
def test_a_pair_at_half_its_speed_fails_its_verdict(published, found, false):
    seen, apart = speed_model.halves()
    made = speed_verdict.simulate([*seen, *apart], 8, published)
    assert made.found >= found and made.false_alarms <= false


def test_what_a_step_reads():
    assert rate(DENSE) == pytest.approx(1 / (16e9 / 225e9 + 32 * 71e-6), rel=0.05)
    assert rate(DENSE, 8) > 6 * rate(DENSE), "weights are read once for all"
    assert rate(SPARSE, 8) < 5 * rate(SPARSE), "eight tokens ask for more of the experts than one"
    assert rate(DENSE, 1, 65536) < rate(DENSE) and rate(DENSE, 1, 65536) < rate(replace(DENSE, dtype="fp8"), 1, 65536)
    assert rate(replace(DENSE, eager=True)) < rate(DENSE)
    unknown = replace(SPARSE, model=replace(SPARSE.model, experts_per_token=0))
    assert rate(unknown, 8) > rate(SPARSE, 8), "nothing is known of its experts"


def test_what_requests_keep_is_read():
    hybrid = replace(
        DENSE.model, full_attention_layers=8, linear_key_heads=16, linear_value_heads=48,
        linear_key_head_dim=128, linear_value_head_dim=128,
    )  # fmt: skip
    assert rate(replace(DENSE, model=hybrid), 1, 65536) > rate(DENSE, 1, 65536)
    assert rate(replace(DENSE, model=hybrid), 32) < rate(DENSE, 32), "states are read and written in every step"
    sliding = replace(DENSE.model, sliding_layers=16, sliding_window=1024)
    assert rate(replace(DENSE, model=sliding), 1, 65536) > rate(DENSE, 1, 65536)
    listed = replace(DENSE.model, attention="listed", caches=(Kept(32, 576, window=128), Kept(32, 132, tokens=4)))
    assert rate(DENSE, 1, 65536) < rate(replace(DENSE, model=listed), 1, 65536) < rate(DENSE)
    states = replace(listed, caches=(Kept(32, 2_000_000, once=1, state=True),))
    assert rate(replace(DENSE, model=states), 32) < rate(DENSE, 32)


def test_ranks():
    assert rate(DENSE) < rate(split(DENSE, 2)) < 2 * rate(DENSE)
    assert rate(split(DENSE, pipeline=2)) == pytest.approx(rate(DENSE), rel=0.02), "one stage after the other"
    assert rate(split(DENSE, pipeline=2), 16) > rate(DENSE, 16)
    assert rate(split(DENSE, data=2)) == rate(DENSE) and rate(split(DENSE, data=2), 2) == 2 * rate(DENSE)


def test_drafts():
    draft = Draft("dflash", 7, "another", 2.0)
    drafting = replace(DENSE, draft=draft)
    assert rate(drafting) > 1.8 * rate(DENSE)
    assert rate(replace(DENSE, draft=replace(draft, acceptance=2.0))) < rate(drafting)
    assert speed.accepted(drafting.draft) == pytest.approx(3.14, abs=0.01), "assumed"
    alone = rate(replace(DENSE, draft=replace(draft, acceptance=1.0)))
    assert alone < rate(DENSE), "one of which nothing is accepted costs"
    token = replace(draft, method="mtp", acceptance=3.0)
    assert rate(replace(DENSE, draft=token)) < rate(replace(DENSE, draft=replace(draft, acceptance=3.0)))
    assert {"mtp", "dflash", "dspark", "eagle3", "draft_model"} == set(speed.ACCEPTED)


def test_prompts_and_the_fabric():
    two = split(DENSE, 2)
    assert speed.prefill_s(DENSE, 16384) > 1.9 * speed.prefill_s(DENSE, 8192)
    waits = [speed.prefill_s(replace(two, fabric=share), 8192) for share in (1.0, speed.SMALL_MTU, speed.HALF)]
    assert waits == sorted(waits) and waits[0] < waits[2] < 2 * waits[0]
    assert rate(replace(two, fabric=speed.HALF)) == pytest.approx(rate(two), rel=0.02), "one user hardly notices"
    assert speed.prefill_s(replace(DENSE, batched=512), 8192) > speed.prefill_s(DENSE, 8192)


def test_how_long_a_run_takes():
    assert speed.run_minutes(600, environment=True) == speed.run_minutes(0, environment=False) + 20
