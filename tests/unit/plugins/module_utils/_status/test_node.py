# Copyright (c) 2026, The sparkmatrix.cluster authors; SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base import document
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.command import Completed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.findings import SparkError
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._base.machine import Machine
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.engine_json import Description
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.plan_document import Member
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._engine.report import Report, UnitReport
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._fabric import status as fabric_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._gateway.status import Relayed
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper import status as keeper_status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.pulse import Sign
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._keeper.store import Store, Verified
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._status import node as status
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict import store as verdict_store
from ansible_collections.sparkmatrix.cluster.plugins.module_utils._verdict.document import Run, Verdict
from fake_machine import FakeFiles

RAY, ENGINE = "sparkmatrix-ray.service", "sparkmatrix-engine.service"
TOLD = Description(
    host="127.0.0.1",
    port=8000,
    model="m",
    key_file="/key",
    units=(RAY, ENGINE),
    members=(Member("spark1", 0, "a", True, True), Member("spark2", 1, "b", False, True)),
    unit=ENGINE,
)
REPORT = Report({RAY: UnitReport("active")}, available=70 * 2**30).text()
DEAD = Completed(255, "", "ssh: connect to host spark2: No route to host")


class Cluster(FakeFiles):
    """The head, with what its programs and the other node say."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.keeper = "active"
        self.peer: Mapping[str, Completed] = {
            "rank-status": Completed(0, REPORT),
            "fabric-status": Completed(0, "fabric: switch, applied, plan 1\n"),
        }
        self.gateway = ""
        self.held = 0
        self.tokens = ""
        self.asked: list[str] = []
        self.write("etc/sparkmatrix/engine.json", json.dumps(TOLD.as_dict()))
        self.store = Store(str(root))
        self.store.write(print, phase="serving", detail="it serves", stable=True)

    def run(self, argv: Sequence[str]) -> Completed:
        if argv[0] == "openssl":
            return Completed(0, "notAfter=Feb  3 10:00:00 2028 GMT\n")
        if argv[0] == "systemctl" and argv[1] == "show":
            units = [word for word in argv if word.endswith(".service")]
            state = {"sparkmatrix-keeper.service": self.keeper}
            return Completed(
                0,
                "\n".join(f"Id={unit}\nLoadState=loaded\nActiveState={state.get(unit, 'active')}\n" for unit in units),
            )
        return Completed(0, "")

    def ask(self, host: str, word: str) -> Completed:
        self.asked.append(f"{host} {word}")
        return self.peer[word]

    def listed(self, _config: Mapping[str, Any]) -> None:
        if self.gateway:
            raise SparkError(self.gateway)

    def token(self, _config: Mapping[str, Any]) -> None:
        self.asked.append("a token")
        if self.tokens:
            raise SparkError(self.tokens)

    def look(self, store: Store, machine: Machine, unit: str) -> keeper_status.Served:
        return keeper_status.collect(store, machine, unit=unit, sign=lambda _name: Sign(7, 1.0), ask=lambda _name: "")

    def found(self, **changes: Any) -> status.Status:
        here = bool(changes.pop("here", False))
        asked = status.Asked(
            Machine(str(self.root), changes.pop("runner", self.run)),
            self.ask,
            self.listed,
            self.token,
            self.look,
            True,
            lambda: datetime(2028, 1, 4, tzinfo=timezone.utc),
            lambda: Relayed(held=self.held),
        )
        found = status.collect(replace(asked, **changes), here=here)
        assert document.load(status.Status, json.loads(json.dumps(document.plain(found)))) == found
        return found


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    fact = SimpleNamespace(topology="switch", state="applied", plan_hash="1", rails=())
    monkeypatch.setattr(fabric_status, "read", lambda _machine: fabric_status.Fabric(fact))
    return Cluster(tmp_path)


def test_one_screen_for_a_cluster_that_serves(cluster: Cluster) -> None:
    cluster.store.verify(Verified("t", "m", "32 tokens in 1.40 s, 22.9 tokens/s", 22.9, 12.0, 41.0))
    cluster.write(
        "etc/sparkmatrix/gateway.json",
        '{"host": "h", "port": 1, "model": "m", "key_file": "k", "endpoints": ["https://a/v1"]}',
    )
    cluster.write("run/sparkmatrix-gateway/tls.crt", "")
    found = cluster.found()
    assert (status.code(found), found.serving, found.schema) == (0, True, 1)
    text = status.text(found)
    for line in (
        "engine    serving: it serves",
        "          Asked just now: it answers",
        "nodes     spark1       ray active, engine active, 0.0 GiB free, fabric verified",
        "          spark2       ray active, 70.0 GiB free, fabric verified",
        "ray       2 of 2 nodes",
        "fabric    switch, applied, plan 1",
        "gateway   https://a/v1: active, it answers; certificate until 2028-02-03 (30 days)",
        "verified  t, m: 32 tokens in 1.40 s, 22.9 tokens/s; the plan expects 12 to 41",
    ):
        assert line in text.splitlines()


def test_a_dead_node_is_named_and_the_rest_is_shown(cluster: Cluster) -> None:
    cluster.peer = {"rank-status": DEAD}
    found = cluster.found()
    assert [(node.host, node.answers) for node in found.nodes] == [("spark1", True), ("spark2", False)]
    assert "spark2       not known: ssh: connect to host spark2: No route to host" in status.text(found)
    assert found.ray == status.Ray(2, 1)
    assert status.code(found) == 0, "a token came, so all ranks work"
    cluster.tokens = "no complete answer within the time limit"
    found = cluster.found()
    assert status.code(found) == 1
    assert "spark2 is silent, and no token came: no complete answer" in status.text(found)


def test_no_token_is_asked_for_where_all_answer(cluster: Cluster) -> None:
    cluster.found()
    assert "a token" not in cluster.asked


def test_what_another_node_says_is_not_trusted(cluster: Cluster) -> None:
    cluster.peer = {"rank-status": Completed(0, '{"schema": 1, "units": "\x1b[2J"}')}
    text = status.text(cluster.found())
    assert "not understood" in text
    assert "\x1b" not in text


def test_a_drifted_node_says_where_to_look(cluster: Cluster) -> None:
    cluster.peer = {**cluster.peer, "fabric-status": Completed(1, "fabric: switch, applied, plan 1\n  MTU 1500\n")}
    assert "fabric drifted (there: sudo sparkmatrix fabric-status)" in status.text(cluster.found())


def test_monitoring_asks_no_other_node(cluster: Cluster) -> None:
    found = cluster.found(here=True)
    assert cluster.asked == []
    assert status.code(found) == 0
    assert "not asked (--here)" in status.text(found)
    assert found.ray is None  # of the others nobody knows


def test_a_gateway_that_fails_is_said(cluster: Cluster) -> None:
    cluster.write("etc/sparkmatrix/gateway.json", '{"host": "h", "port": 1, "model": "m", "key_file": "k"}')
    cluster.gateway = "nothing listens there"
    assert "gateway   active, nothing listens there" in status.text(cluster.found())
    cluster.held = 2
    assert "; 2 requests wait for the engine" in status.text(cluster.found())


def test_a_worker_sends_to_the_head(cluster: Cluster) -> None:
    cluster.write("etc/sparkmatrix/engine.json", json.dumps(replace(TOLD, rank=1, unit="").as_dict()))

    def none(*_arguments: Any, **_more: Any) -> keeper_status.Served:
        raise SparkError("there is no keeper on this node")

    def nothing(argv: Sequence[str]) -> Completed:
        done = cluster.run(argv)
        return Completed(0, done.out.replace("loaded", "not-found")) if "sparkmatrix-keeper.service" in argv else done

    found = cluster.found(keeper=none, runner=nothing)
    assert status.code(found) == 1
    assert "engine    its keeper is on the head, spark1: ask there" in status.text(found).splitlines()


def test_without_root_it_says_so_in_a_line(cluster: Cluster) -> None:
    def refused(*_arguments: Any, **_more: Any) -> keeper_status.Served:
        raise SparkError("you may not read what the keeper keeps")

    found = cluster.found(keeper=refused, root=False)
    assert status.code(found) == 1
    assert cluster.asked == []
    text = status.text(found)
    assert "engine    sparkmatrix-keeper.service runs; this needs root: sudo sparkmatrix status" in text
    assert "fabric    this needs root: sudo sparkmatrix status" in text and "drifted" not in text


def test_a_node_without_an_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)
    (tmp_path / "etc/sparkmatrix/engine.json").unlink()

    def none(*_arguments: Any, **_more: Any) -> keeper_status.Served:
        raise SparkError("there is no keeper on this node")

    with pytest.raises(SparkError, match="no engine is set up on this node"):
        cluster.found(keeper=none, runner=lambda _argv: Completed(0, "LoadState=not-found\n"))


def test_the_last_verdicts_are_shown_with_what_failed(cluster: Cluster) -> None:
    slow = Verdict("rdma_rate", "fail", "pair", "13 Gb/s", hosts=("spark1", "spark2"), cause="nic_degraded")
    off = Verdict("y", "fail", "node", "off")
    run = Run(
        *("spark1", "verify", "2026-11-23T07:30:00Z", 12.5, "0.1.0"),
        verdicts=(slow, Verdict("x", "pass", "node", ""), *(replace(off, hosts=(f"spark{n}",)) for n in (1, 2, 3))),
    )
    verdict_store.keep(run, str(cluster.root))
    found = cluster.found()
    assert found.verdict and found.verdict.outcome == "fail"
    assert cluster.found(root=False).verdict is None
    assert status.text(found).splitlines()[-3:] == [
        "verdict   2026-11-23T07:30:00Z, verify.yml: 4 failed, 1 passed",
        "          spark1 - spark2: 13 Gb/s",
        "          spark1..spark3: off",
    ]


def test_damaged_verdicts_are_told(cluster: Cluster) -> None:
    path = verdict_store.keep(Run("spark1", "verify", "2026-11-23T07:30:00Z", 1, "0.1.0"), str(cluster.root))
    (cluster.root / path.lstrip("/")).write_text("{")
    shown = status.text(cluster.found()).splitlines()[-1]
    assert shown.startswith(f"verdict   {path}: the verdicts cannot be read")
    assert "run the playbook again" in shown
