# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import traffic
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric.fact import FACT_PATH, dump
from fabric_change import planned

RAILS = planned()[0].rails
FIRST, SECOND = (rail.rdma_device for rail in RAILS)
UNIT = "sparkmatrix-engine.service"


def count(root: Path, device: str, sent: str, received: str) -> None:
    place = root / f"sys/class/infiniband/{device}/ports/1/counters"
    place.mkdir(parents=True, exist_ok=True)
    (place / "port_xmit_data").write_text(f"{sent}\n")
    (place / "port_rcv_data").write_text(f"{received}\n")


def test_counters_are_words_of_both_directions(tmp_path: Path) -> None:
    count(tmp_path, FIRST, "17721340", "1")
    count(tmp_path, SECOND, "N/A (no PMA)", "3")
    assert traffic.read(Machine(str(tmp_path)), RAILS) == {FIRST: 70885364, SECOND: None}


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ({FIRST: 0, SECOND: 8}, {FIRST: 14_200_000, SECOND: 8}, f"moved meanwhile: {FIRST} 14.2 MB, {SECOND} 0.0 MB"),
        ({FIRST: 5, SECOND: None}, {FIRST: 5, SECOND: None}, f"{FIRST} 0.0 MB, {SECOND} not counted"),
        ({FIRST: 9, SECOND: 9}, {FIRST: 0, SECOND: 0}, "not measured"),
        ({}, {}, "not measured"),
    ],
)
def test_what_moved(before: traffic.Moved, after: traffic.Moved, words: str) -> None:
    found = traffic.judge(RAILS, before, after, UNIT)
    assert words in found.words and not found.warning


def test_an_answer_without_a_byte_came_over_tcp() -> None:
    still = {FIRST: 4096, SECOND: 0}
    found = traffic.judge(RAILS, still, still, UNIT)
    assert "serves over TCP" in found.warning and f"({FIRST}, {SECOND})" in found.warning
    assert "NCCL_NET" in found.warning and f"journalctl -u {UNIT}" in found.warning


@pytest.mark.parametrize(
    ("text", "rails"),
    [
        (dump(replace(planned()[0], state="applied")), RAILS),
        (dump(planned()[0]), ()),
        (dump(replace(planned(transport="socket")[0], state="applied")), ()),
        ("{", ()),
        (None, ()),
    ],
)
def test_where_rdma_is_planned(tmp_path: Path, text: str | None, rails: tuple[object, ...]) -> None:
    if text is not None:
        path = tmp_path / FACT_PATH[1:]
        path.parent.mkdir(parents=True)
        path.write_text(text)
    assert traffic.planned(Machine(str(tmp_path))) == rails
